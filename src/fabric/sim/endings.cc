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
  if (!operation.completing) {
    const RailOptions& rail = options(operation.from);
    const bool news_travels = operation.kind == Operation::Kind::write || operation.fault != kFaultNone;
    complete_in(index, completion_delay(rail) + (news_travels ? latency(operation.from, operation.to) : 0));
  }
  release(index);
}

void SimFabric::complete_in(std::uint32_t index, std::int64_t nanoseconds) {
  operations_[index].completing = true;
  queue_.push(now() + nanoseconds, Happening::completion, index);
}

void SimFabric::complete(std::uint32_t index) {
  Operation& operation = operations_[index];
  if (!ports_[operation.from].open) {
    operation.finished = true;
    release(index);
    return;
  }
  Event event;
  event.context = operation.context;
  event.bytes = operation.local.bytes;
  // A plain completion was true when it was scheduled: what failed since then is counted, not told.
  if (operation.fault != kFaultNone) {
    event.kind = Event::Kind::failed;
    event.error = operation.fault;
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
  note(32 + static_cast<std::uint64_t>(event.kind), port_index, event.bytes ^ event.immediate);
  ports_[port_index].completions.push(Entry{event, operation});
  ++ready_[static_cast<std::size_t>(options(port_index).process)];
  ++ready_total_;
}

/// The operation's room is free when nothing of it is in the network and its poster has seen its completion.
void SimFabric::release(std::uint32_t index) {
  Operation& operation = operations_[index];
  if (!operation.finished || operation.queued || operation.packets > 0) return;
  operation.finished = false;
  --ports_[operation.from].in_flight[static_cast<std::size_t>(operation.lane)];
  free_operations_.push_back(index);
}

}  // namespace railyard::fabric::sim
