#include "transport/revocation.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/log.hpp"

namespace railyard::transport {
namespace {

bool overlap(const std::byte* first, std::uint64_t bytes, std::span<const std::byte> memory) {
  // As numbers: the two may have nothing to do with each other.
  const auto begin = reinterpret_cast<std::uintptr_t>(first);
  const auto other = reinterpret_cast<std::uintptr_t>(memory.data());
  return bytes != 0 && begin < other + memory.size() && other < begin + bytes;
}

bool uses(const Operation& operation, const memory::Region& region) {
  if (operation.local == nullptr) return false;
  return operation.region.get() == &region || overlap(operation.local, operation.bytes, region.memory());
}

bool is_held(const Segment& segment) { return segment.operation != nullptr && segment.posted && !segment.voided; }

}  // namespace

bool Revocation::holds(const memory::Region& region) {
  bool held = false;
  parts_.core.pools.for_each_segment(
      [&](const Segment& segment) { held |= is_held(segment) && segment.operation->region.get() == &region; });
  return held;
}

void Revocation::revoke(memory::Region& region) {
  if (region.revoked()) return;
  withdraw_results(region.memory());
  take_back([&](const Operation& operation) { return uses(operation, region); });
  region.revoke();
}

void Revocation::revoke(std::span<const std::byte> memory) {
  withdraw_results(memory);
  take_back([&](const Operation& operation) { return overlap(operation.local, operation.bytes, memory); });
}

/// Values that were fetched are not written there.
void Revocation::withdraw_results(std::span<const std::byte> memory) {
  Slots& slots = parts_.completions.slots();
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    Slots::Content& content = slots.content(slot);
    if (overlap(static_cast<const std::byte*>(content.before), content.width, memory)) content.withdrawn = true;
  }
}

void Revocation::revoke(const Flow& flow) {
  take_back([&](const Operation& operation) { return operation.flow == &flow && operation.local != nullptr; });
}

void Revocation::revoke_registration(memory::Region& region) {
  take_back([&](const Operation& operation) { return operation.region.get() == &region; });
  region.revoke();
}

void Revocation::take_back(const std::function<bool(const Operation&)>& chosen) {
  parts_.core.now = parts_.core.clock->now();
  parts_.core.pools.for_each_operation([&](Operation& operation) {
    if (operation.flow == nullptr || !chosen(operation)) return;
    operation.withdrawn = true;
    // What is not whole still waits to be sent. What is may have arrived: only a chunk that must go out again fails it.
    if (!operation.whole)
      parts_.completions.fail(operation, FailureCause::deregistered, operation.flow->sender.next_sequence());
  });
  take_back_segments(chosen);
}

/// A rail lets go of a chunk when its link ends: that is the only way that every driver has.
void Revocation::take_back_segments(const std::function<bool(const Operation&)>& chosen) {
  std::vector<const Segment*> waiting;
  parts_.core.pools.for_each_segment([&](const Segment& segment) {
    if (is_held(segment) && chosen(*segment.operation)) waiting.push_back(&segment);
  });
  for (const Segment* segment : waiting) {
    Route& route = *segment->operation->flow->route;
    Link& link = route.links[segment->link];
    if (segment->epoch != link.health.epoch || !link.up()) continue;  // that link has ended already
    parts_.failover.fail_link(route, link, LossCause::revoked);
    parts_.links.drop(link);  // where nobody is left who would have it made anew
  }
  const auto held = [](const Segment* segment) { return segment->posted; };
  for (const std::int64_t began = parts_.core.clock->now();
       std::ranges::any_of(waiting, held) && parts_.core.clock->now() - began < kMostReturn;)
    if (parts_.poll() == 0) parts_.core.clock->idle();
  for (const Segment* segment : waiting)
    if (segment->posted) parts_.core.note_stuck(*segment);
  if (parts_.core.rails_stuck) stop_stuck_rails();
}

/// A rail that does not let go of what a link that has ended held may still read or write it. Stopping the rail is what
/// remains: it touches no memory from then on, and what it carried goes over the others.
void Revocation::stop_stuck_rails() {
  parts_.core.rails_stuck = false;
  for (std::size_t index = 0; index < parts_.core.rails.size(); ++index) {
    RailState& rail = parts_.core.rails.state(index);
    if (!rail.stuck) continue;
    log_error(rail.rail->in_log(), "does not let go of memory that a link which has ended used: the rail is stopped");
    RailSet::stop(rail);
    parts_.failover.fail_links_of(rail);
    std::vector<Segment*> carried;
    parts_.core.pools.for_each_segment_and_frame([&](Segment& segment) {
      if (parts_.core.carries(rail, segment)) carried.push_back(&segment);
    });
    for (Segment* segment : carried)
      if (segment->posted) parts_.failover.on_failed(*segment, fabric::Blame::link, "its rail was stopped");
  }
}

}  // namespace railyard::transport
