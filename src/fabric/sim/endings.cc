// How operations end: completions, failures, and when their room is free again.
#include "fabric/sim/fabric.hpp"

namespace railyard::fabric::sim {

std::int64_t SimFabric::completion_delay(const RailOptions& options) {
  if (options.late_probability > 0 && random_.chance(options.late_probability)) {
    return static_cast<std::int64_t>(draw(options.late_delay));
  }
  return static_cast<std::int64_t>(draw(options.completion_delay));
}

void SimFabric::fail(std::uint32_t index, int fault) {
  ++statistics_.faults[static_cast<std::size_t>(fault)];
  operations_[index].fault = fault;
  settle(index);
}

/// Completes what has nothing left in the network and was not complete before: failures, reads, confirmed writes.
void SimFabric::settle(std::uint32_t index) {
  Operation& operation = operations_[index];
  if (operation.queued || operation.packets > 0) return;
  if (!operation.completing && !operation.swallowed) {
    const bool news_travels = operation.kind == Operation::Kind::write || operation.fault != kFaultNone;
    std::int64_t delay = completion_delay(options(operation.from));
    if (news_travels) {
      delay += latency(operation.from, operation.to);
      delay += trouble_of_news(operation);
    }
    if (!operation.swallowed) complete_in(index, delay);
  }
  release(index);
}

/// How much longer the target's answer takes; it may be swallowed, or turn into an error although all is in place.
std::int64_t SimFabric::trouble_of_news(Operation& operation) {
  switch (way_back(operation)) {
    case Carry::everything:
      return 0;
    case Carry::late:
      return hold(operation.to);
    case Carry::nothing:
      if (options(operation.from).retransmits) return hold(operation.to);
      operation.swallowed = true;
      spoil_link_of(operation);
      return 0;
    case Carry::errors:
      break;
  }
  const std::int64_t delay = options(operation.from).error_delay;
  ++statistics_.faults[kFaultDown];
  operation.fault = kFaultDown;
  break_link_of(operation, delay, false);
  return delay;
}

void SimFabric::complete_in(std::uint32_t index, std::int64_t nanoseconds) {
  Operation& operation = operations_[index];
  operation.completing = true;
  const double lost = options(operation.from).lost_completion_probability;
  if (lost > 0 && operation.fault == kFaultNone && random_.chance(lost)) {
    ++statistics_.completions_lost;
    return;
  }
  operation.scheduled = true;
  queue_.push(now() + nanoseconds, Happening::completion, index);
}

void SimFabric::complete(std::uint32_t index) {
  Operation& operation = operations_[index];
  operation.scheduled = false;
  strike(index);
  if (!ports_[operation.from].open) {
    finish(index);
    return;
  }
  Event event;
  event.context = operation.context;
  event.bytes = operation.local.bytes;
  // A plain completion was true when it was scheduled: what failed since then is counted, not told.
  if (operation.fault != kFaultNone) {
    event.kind = Event::Kind::failed;
    event.error = operation.fault;
    event.blame = blame_of(operation.fault);
  } else {
    switch (operation.kind) {
      case Operation::Kind::send:
        event.kind = Event::Kind::sent;
        break;
      case Operation::Kind::write:
        event.kind = Event::Kind::written;
        break;
      case Operation::Kind::read:
        event.kind = Event::Kind::read;
        break;
    }
  }
  deliver(operation.from, event, index);
}

void SimFabric::deliver(std::uint32_t port_index, const Event& event, std::uint32_t operation) {
  deliver(port_index, Entry{event, operation, kNone, 0, {}});
}

void SimFabric::deliver(std::uint32_t port_index, const Entry& entry) {
  note(32 + static_cast<std::uint64_t>(entry.event.kind), port_index, entry.event.bytes ^ entry.event.immediate);
  ports_[port_index].completions.push(entry);
  ++ready_[static_cast<std::size_t>(options(port_index).process)];
  ++ready_total_;
}

/// Its poster has seen how it ended: there is room for another one.
void SimFabric::finish(std::uint32_t index) {
  Operation& operation = operations_[index];
  operation.finished = true;
  SimLink* link = link_of(operation);
  if (options(operation.from).fencing == Fencing::timed) {
    --ports_[operation.from].in_flight[static_cast<std::size_t>(operation.lane)];
  } else if (link != nullptr) {
    --link->in_flight[static_cast<std::size_t>(operation.lane)];
  }
  release(index);
}

/// Forgets the operation once it is finished and nothing of it is in the network.
void SimFabric::release(std::uint32_t index) {
  Operation& operation = operations_[index];
  if (!operation.finished || operation.queued || operation.packets > 0) return;
  operation.finished = false;
  free_operations_.push_back(index);
}

}  // namespace railyard::fabric::sim
