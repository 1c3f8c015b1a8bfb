/// What the proxy does with commands.
#include "device/proxy.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "device/issue.hpp"

namespace railyard {

using device_detail::Report;
using device_detail::RingProgress;

DeviceProxy::State::State(Window& window, const DeviceOptions& options, device_detail::SharedMemory memory)
    : window_(window),
      state_(window_detail::WindowAccess::state(window)),
      options_(options),
      memory_(std::move(memory)),
      error_(memory_.shared<Report>(memory_.layout().error)) {
  const auto& layout = memory_.layout();
  for (std::uint32_t number = 0; number < options.rings; ++number) {
    auto ring = std::make_unique<Ring>();
    ring->number = number;
    ring->slots =
        memory_.shared<Word>(layout.commands) + std::size_t{number} * options.depth * device::detail::kCommandWords;
    ring->progress = memory_.shared<RingProgress>(layout.progress) + number;
    ring->attention = memory_.shared<Word>(layout.attention) + std::size_t{number} * device_detail::kLineWords;
    ring->pending = std::make_unique<Pending[]>(kMostPending);
    rings_.push_back(std::move(ring));
  }
  for (std::uint32_t number = 0; number < options.threads; ++number) {
    auto proxy = std::make_unique<ProxyThread>();
    proxy->under_way.resize(static_cast<std::size_t>(state_.world().size));
    proxy->next.resize(proxy->under_way.size());
    for (std::uint32_t ring = number; ring < options.rings; ring += options.threads) {
      proxy->rings.push_back(rings_[ring].get());
    }
    proxies_.push_back(std::move(proxy));
  }
}

/// The command of that number, if all of it is there.
bool DeviceProxy::State::load(const Ring& ring, std::uint64_t number, Command& command) const {
  const Word* const slot = ring.slots + number % options_.depth * std::size_t{device::detail::kCommandWords};
  const Word phase = device::detail::phase_of(number, options_.depth);
  Word words[device::detail::kCommandWords];
  for (std::size_t word = 0; word < device::detail::kCommandWords; ++word) {
    // Acquire: what the producer wrote before the command is visible.
    words[word] = device::detail::load_system(&slot[word]);
    if ((words[word] & device::detail::kPhase) != phase) return false;
  }
  command = Command::unpack(words);
  return true;
}

bool DeviceProxy::State::pass(ProxyThread& proxy) {
  bool news = false;
  for (Ring* ring : proxy.rings) news |= take(proxy, *ring);
  if (proxy.pending > 0) {
    transport::Engine& engine = state_.engine();
    if (engine.progress_lock().try_take()) {
      engine.progress();
      engine.progress_lock().give();
    }
    for (Ring* ring : proxy.rings) {
      if (ring->completed < ring->consumed) news |= retire(proxy, *ring);
    }
  }
  return news;
}

bool DeviceProxy::State::pass_all() {
  bool news = false;
  for (auto& proxy : proxies_) news |= pass(*proxy);
  return news;
}

/// Takes a batch: one ring that is always full does not keep the others waiting.
bool DeviceProxy::State::take(ProxyThread& proxy, Ring& ring) {
  const std::uint64_t before = ring.consumed;
  Command command;
  while (ring.consumed - before < kBatch && ring.consumed - ring.completed < kMostPending &&
         load(ring, ring.consumed, command)) {
    if (!has_turn(proxy, ring, command.rank, ring.consumed != before)) break;
    issue_one(proxy, ring, command);
    ++ring.consumed;
  }
  if (ring.consumed == before) return false;
  proxy.pending += ring.consumed - before;
  ring.commands.store(ring.consumed, std::memory_order_relaxed);
  // Release: the slots have been read.
  device::detail::store_system(&ring.progress->consumed, ring.consumed);
  retire(proxy, ring);
  return true;
}

/// Whether its command may be issued now. Rings that find enough under way to a rank have their turns one after the
/// other: else the first would take all that becomes free, and the last would wait until the first have ended.
/// `had_some`: in this batch. A ring keeps its turn until it has used it, so nobody waits for a ring that does not want
/// it any more.
bool DeviceProxy::State::has_turn(ProxyThread& proxy, Ring& ring, std::uint32_t rank, bool had_some) {
  if (rank >= proxy.under_way.size()) return true;
  Ring*& next = proxy.next[rank];
  if (proxy.under_way[rank] < kMostToOne && (next == nullptr || next == &ring)) {
    next = nullptr;
    return true;
  }
  if (next == nullptr && !had_some) next = &ring;
  return false;
}

void DeviceProxy::State::issue_one(ProxyThread& proxy, Ring& ring, const Command& command) {
  const bool known = command.rank < proxy.under_way.size();
  Pending& pending = ring.at(ring.consumed);
  pending.ticket = {};
  pending.operation = command.operation;
  pending.peer = known ? static_cast<std::int32_t>(command.rank) : -1;
  // In this order: whoever sees that `resume` was called sees what it dropped.
  pending.dropped = stopped() || ring.consumed < ring.drop_below.load(std::memory_order_relaxed);
  if (pending.dropped) return;
  auto issued = device_detail::issue(window_, memory_, ring.number, command, pending.payload);
  if (!issued) {
    pending.dropped = true;
    if (!known && command.operation != device::Operation::fence) pending.peer = static_cast<std::int32_t>(command.rank);
    fail(ring, ring.consumed, pending, std::move(issued.error()));
    return;
  }
  pending.ticket = *issued;
  if (pending.ticket.number != 0) ++proxy.under_way[command.rank];
}

bool DeviceProxy::State::is_done(const Pending& pending) const {
  if (pending.ticket.number == 0) return true;
  const transport::Flow* const flow = state_.existing_flow(pending.ticket.peer);
  // Gets and fetches complete out of sequence.
  if (pending.ticket.slot != 0 && pending.ticket.slot != window_detail::kSourceFree) {
    auto seen = state_.look(pending.ticket, Completion::remote);
    return !seen || *seen;
  }
  return flow->completed.load(std::memory_order_acquire) >= pending.ticket.number ||
         flow->failed.load(std::memory_order_acquire);
}

/// Publishes what is complete, in order.
bool DeviceProxy::State::retire(ProxyThread& proxy, Ring& ring) {
  const std::uint64_t before = ring.completed;
  for (; ring.completed < ring.consumed; ++ring.completed) {
    Pending& pending = ring.at(ring.completed);
    if (!pending.dropped) {
      if (!is_done(pending)) break;
      if (pending.ticket.number != 0) {
        if (state_.engine().completions().any_failed()) {
          if (auto seen = window_.test(pending.ticket); !seen) {
            fail(ring, ring.completed, pending, std::move(seen.error()));
            pending.dropped = true;
          }
        }
        --proxy.under_way[static_cast<std::size_t>(pending.ticket.peer)];
        pending.ticket = {};
      }
    }
    if (pending.dropped && stopped()) break;  // until `resume`
  }
  if (ring.completed == before) return false;
  proxy.pending -= ring.completed - before;
  // Release: what was completed is visible, counters too.
  device::detail::store_system(&ring.progress->completed, ring.completed);
  return true;
}

void DeviceProxy::State::fail(const Ring& ring, std::uint64_t index, const Pending& pending, Error error) {
  const std::lock_guard lock(mutex_);
  if (stopped_.load(std::memory_order_relaxed)) return;  // the first one counts
  const Status status = error.status();
  first_ = Error(status,
                 fmt::format("{} by a kernel (command {} of ring {}): {}", device_detail::to_string(pending.operation),
                             index, ring.number, error.message()),
                 {.peer = pending.peer,
                  .rail = error.where().rail,
                  .operation = device_detail::to_string(pending.operation),
                  .sequence = index});
  error_->operation = static_cast<Word>(pending.operation);
  error_->peer = static_cast<Word>(pending.peer + 1);
  error_->ring = ring.number;
  error_->subject = index;
  stopped_.store(true, std::memory_order_release);
  device::detail::store_system(&error_->code, static_cast<Word>(status));
}

std::uint64_t DeviceProxy::State::commands() const {
  std::uint64_t sum = 0;
  for (const auto& ring : rings_) sum += ring->commands.load(std::memory_order_relaxed);
  return sum;
}

}  // namespace railyard
