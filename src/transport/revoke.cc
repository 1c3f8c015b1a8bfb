/// Taking memory back while operations of our own use it.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/log.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

/// Looks at the rails until each has given back what a link that was disconnected held.
constexpr int kMostLooks = 100000;

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

bool Engine::holds(const memory::Region& region) {
  bool held = false;
  core_.pools.for_each_segment(
      [&](const Segment& segment) { held |= is_held(segment) && segment.operation->region.get() == &region; });
  return held;
}

void Engine::revoke(memory::Region& region) {
  if (region.revoked()) return;
  Slots& slots = completions_.slots();
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    Slots::Content& content = slots.content(slot);
    if (overlap(static_cast<const std::byte*>(content.before), content.width, region.memory()))
      content.withdrawn = true;
  }
  take_back([&](const Operation& operation) { return uses(operation, region); });
  region.revoke();
}

void Engine::revoke(const Flow& flow) {
  take_back([&](const Operation& operation) { return operation.flow == &flow && operation.local != nullptr; });
}

void Engine::revoke_registration(memory::Region& region) {
  take_back([&](const Operation& operation) { return operation.region.get() == &region; });
  region.revoke();
}

void Engine::take_back(const std::function<bool(const Operation&)>& chosen) {
  core_.now = core_.clock->now();
  core_.pools.for_each_operation([&](Operation& operation) {
    if (operation.flow == nullptr || !chosen(operation)) return;
    operation.withdrawn = true;
    // What is not whole still waits to be sent. What is may have arrived: only a chunk that must go out again fails it.
    if (!operation.whole)
      completions_.fail(operation, FailureCause::deregistered, operation.flow->sender.next_sequence());
  });
  take_back_segments(chosen);
}

/// A rail lets go of a chunk when its link ends: that is the only way that every driver has.
void Engine::take_back_segments(const std::function<bool(const Operation&)>& chosen) {
  std::vector<const Segment*> waiting;
  core_.pools.for_each_segment([&](const Segment& segment) {
    if (is_held(segment) && chosen(*segment.operation)) waiting.push_back(&segment);
  });
  for (const Segment* segment : waiting) {
    Route& route = *segment->operation->flow->route;
    Link& link = route.links[segment->link];
    if (segment->epoch != link.health.epoch || !link.up()) continue;  // that link has ended already
    failover_.fail_link(route, link, LossCause::revoked);
    links_.drop(link);  // where nobody is left who would have it made anew
  }
  const auto held = [](const Segment* segment) { return segment->posted; };
  for (int look = 0; std::ranges::any_of(waiting, held); ++look) {
    if (look == kMostLooks) {
      log_error("memory is taken back though {} chunks of it did not come back from their rails",
                std::ranges::count_if(waiting, held));
      return;
    }
    if (poll_once() == 0) core_.clock->idle();
  }
}

}  // namespace railyard::transport
