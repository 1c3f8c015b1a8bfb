// What goes wrong on purpose: rails that carry late, nothing or errors, and processes that die.
#include <algorithm>
#include <cstring>

#include "fabric/sim/fabric.hpp"

namespace railyard::fabric::sim {

namespace {

constexpr std::uint8_t kMostTries = 12;
constexpr std::uint8_t kMostDoublings = 8;

}  // namespace

void SimFabric::set_state(std::uint32_t rail, RailState state) {
  Port& port = ports_[rail];
  const bool carried = port.state.carries();
  port.state = state;
  note(4, rail, (static_cast<std::uint64_t>(state.out) << 8U) | static_cast<std::uint64_t>(state.in));
  if (!options(rail).knows_interface || !port.open || state.carries() == carried) return;
  Event event;
  event.kind = carried ? Event::Kind::rail_down : Event::Kind::rail_up;
  deliver(rail, event, kNone);
}

void SimFabric::kill(int process, Death how) {
  dead_[static_cast<std::size_t>(process)] = true;
  std::vector<bool> is_free(operations_.size());
  for (const std::uint32_t index : free_operations_) is_free[index] = true;
  for (std::uint32_t port = 0; port < ports_.size(); ++port) {
    if (options(port).process != process) continue;
    ports_[port].silent = how == Death::silent;
    std::vector<PostContext*> orphans;
    for (std::size_t index = 0; index < is_free.size(); ++index) {
      const Operation& operation = operations_[index];
      if (operation.from == port && !is_free[index] && !operation.finished) orphans.push_back(operation.context);
    }
    stop(port);
    ports_[port].orphans = std::move(orphans);
  }
}

std::int64_t SimFabric::hold(std::uint32_t port) {
  ++statistics_.held;
  const RailOptions& rail = options(port);
  return rail.hold_least + static_cast<std::int64_t>(draw(rail.hold_most - rail.hold_least));
}

/// What becomes of an answer to the operation's poster now.
Carry SimFabric::way_back(const Operation& operation) const {
  return std::max(ports_[operation.to].state.out, ports_[operation.from].state.in);
}

/// A black hole at this port has the packet. Its sender may have another copy, also when it has left the link by then.
void SimFabric::swallow(std::uint32_t packet_index, std::uint32_t port_index) {
  Packet& packet = packets_[packet_index];
  const RailOptions& rail = options(port_index);
  if (!rail.retransmits || packet.tries == kMostTries) {
    drop(packet_index, Carry::nothing);
    return;
  }
  ++statistics_.retransmitted;
  const std::int64_t wait = rail.retransmit << std::min(packet.tries, kMostDoublings);
  ++packet.tries;
  queue_.push(now() + wait, Happening::arrival, packet_index);
}

/// Whether the copy does not get away from its sender either.
bool SimFabric::swallowed_again(std::uint32_t packet_index) {
  const Packet& packet = packets_[packet_index];
  const Operation& operation = operations_[packet.operation];
  const std::uint32_t sender = packet.to == operation.to ? operation.from : operation.to;
  const bool gone = !ports_[sender].open;
  if (!gone && ports_[sender].state.out <= Carry::late) return false;
  if (gone || ports_[sender].state.out == Carry::errors) {
    drop(packet_index, gone ? Carry::nothing : Carry::errors);
  } else {
    swallow(packet_index, sender);
  }
  return true;
}

/// The packet goes no further.
void SimFabric::drop(std::uint32_t packet_index, Carry why) {
  const std::uint32_t index = packets_[packet_index].operation;
  Operation& operation = operations_[index];
  land_in_part(packets_[packet_index]);
  ++statistics_.dropped;
  give_packet(packet_index);
  --operation.packets;
  if (why == Carry::errors) {
    const std::int64_t delay = options(operation.from).error_delay;
    ++statistics_.faults[kFaultDown];
    operation.fault = kFaultDown;
    if (!operation.completing) complete_in(index, delay);
    break_link_of(operation, delay + static_cast<std::int64_t>(draw(delay)), false);
  } else {
    operation.swallowed = true;
    spoil_link_of(operation);
  }
  release(index);
}

/// What is left of a write's packet that does not arrive whole: nothing, or some of its bytes.
void SimFabric::land_in_part(const Packet& packet) {
  const Operation& operation = operations_[packet.operation];
  const double probability = options(operation.from).partial_probability;
  if (probability == 0 || operation.kind != Operation::Kind::write || packet.bytes == 0) return;
  const Port& there = ports_[operation.to];
  const RailOptions& rail = options(operation.to);
  const bool expired = rail.fencing == Fencing::timed && now() - packet.launched > rail.packet_lifetime;
  if (!there.open || expired || fenced(there, operation.tag) || !random_.chance(probability)) return;
  const auto access = there.registrations.remote(operation.key, operation.address + packet.offset, packet.bytes);
  if (access.fault != kFaultNone) return;
  const std::size_t first = random_.chance(0.5) ? 0 : random_.below(packet.bytes);
  const std::size_t count = 1 + random_.below(packet.bytes - first);
  std::memcpy(access.memory + first, packet.payload.get() + first, count);
  ++statistics_.partial_writes;
}

void SimFabric::pause(int process, std::int64_t nanoseconds) {
  if (!alive(process)) return;
  ++statistics_.pauses;
  const auto which = static_cast<std::size_t>(process);
  paused_until_[which] = std::max(paused_until_[which], now() + nanoseconds);
  longest_pause_[which] = std::max(longest_pause_[which], paused_until_[which] - now());
  queue_.push(paused_until_[which], Happening::resumption, static_cast<std::uint32_t>(process));
}

/// Rails that only move inside a call have something to make up for.
void SimFabric::resume(int process) {
  if (paused(process)) return;
  for (std::uint32_t port = 0; port < ports_.size(); ++port) {
    if (options(port).process != process || !ports_[port].open) continue;
    start_departing(port, Lane::control);
    start_departing(port, Lane::data);
  }
}

/// The packet found nobody.
void SimFabric::turn_away(std::uint32_t packet_index) {
  const std::uint32_t index = packets_[packet_index].operation;
  give_packet(packet_index);
  --operations_[index].packets;
  refuse_access(index, kFaultUnreachable);
}

/// The target refuses: its rail is closed, or the memory is not there.
void SimFabric::refuse_access(std::uint32_t index, int fault) {
  Operation& operation = operations_[index];
  if (fault == kFaultUnreachable && ports_[operation.to].silent) {
    operation.swallowed = true;
    spoil_link_of(operation);
    settle(index);
    return;
  }
  if (link_of(operation) == nullptr) {
    ++statistics_.stale;
    operation.swallowed = true;
    settle(index);
    return;
  }
  const std::int64_t trip = latency(operation.to, operation.from);
  if (fault == kFaultUnreachable) {
    break_link_of(operation, trip, false);
    fail(index, fault);
    return;
  }
  // A write that was told as done cannot be told as refused: its link ends instead.
  const bool told = operation.finished || operation.completing;
  if (told || options(operation.from).refusal_breaks_link) break_link_of(operation, trip, false);
  count_refusal(fault);
  operation.fault = fault;
  settle(index);
}

/// Remote accesses only: what a program does to its own registrations is its own mistake in any world.
void SimFabric::count_refusal(int fault) {
  if (options_.programs.any()) {
    ++statistics_.refused;
  } else {
    ++statistics_.faults[static_cast<std::size_t>(fault)];
  }
}

}  // namespace railyard::fabric::sim
