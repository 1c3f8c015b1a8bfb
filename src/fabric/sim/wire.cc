// What happens between a post and its completion: packets leave, travel, wait for the receiver's wire and land.
#include <algorithm>
#include <cstring>

#include "fabric/sim/fabric.hpp"

namespace railyard::fabric::sim {

namespace {

constexpr std::size_t kControl = static_cast<std::size_t>(Lane::control);
constexpr std::size_t kData = static_cast<std::size_t>(Lane::data);

/// Control packets go first, but they use the wire that bulk data waits for.
void use_wire(std::array<std::int64_t, kLanes>& free_at, std::size_t lane, std::int64_t now, std::int64_t until,
              std::int64_t wire_time) {
  free_at[lane] = until;
  if (lane == kControl && free_at[kData] > now) free_at[kData] += wire_time;
}

}  // namespace

void SimFabric::start_departing(std::uint32_t port_index, Lane lane) {
  Port& port = ports_[port_index];
  const auto which = static_cast<std::size_t>(lane);
  if (port.departing[which] || port.departures[which].empty()) return;
  port.departing[which] = true;
  const std::int64_t at = std::max(now() + options(port_index).post_delay, port.sends_free_at[which]);
  queue_.push(at, lane == Lane::control ? Happening::departure_control : Happening::departure_data, port_index);
}

void SimFabric::depart(std::uint32_t port_index, Lane lane) {
  Port& port = ports_[port_index];
  const auto which = static_cast<std::size_t>(lane);
  auto& waiting = port.departures[which];
  port.departing[which] = false;
  if (waiting.empty()) return;  // the rail was closed meanwhile
  if (!options(port_index).progresses_alone && paused(options(port_index).process)) return;

  const std::size_t turns = std::min(options(port_index).interleave, waiting.size());
  const std::size_t position = turns > 1 ? random_.below(turns) : 0;
  const std::uint32_t index = waiting[position];
  depart_chunk(port_index, index);
  if (!operations_[index].queued) waiting.remove(position);
  settle(index);

  if (waiting.empty()) return;
  port.departing[which] = true;
  queue_.push(std::max(now(), port.sends_free_at[which]),
              lane == Lane::control ? Happening::departure_control : Happening::departure_data, port_index);
}

/// Sends the operation's next chunk; clears `queued` after its last one.
void SimFabric::depart_chunk(std::uint32_t port_index, std::uint32_t index) {
  Operation& operation = operations_[index];
  if (operation.fault != kFaultNone) {  // an earlier chunk was refused, or the link has ended
    operation.queued = false;
    if (operation.held != kNone) give_packet(operation.held);
    operation.held = kNone;
    return;
  }
  if (operation.kind == Operation::Kind::read && !operation.requested) {
    operation.requested = true;
    operation.queued = false;
    const std::uint32_t packet = take_packet(0);
    packets_[packet].request = true;
    packets_[packet].operation = index;
    packets_[packet].to = operation.to;
    launch(port_index, packet);
    return;
  }

  const std::size_t total = operation.local.bytes;
  const bool whole = operation.kind == Operation::Kind::send;
  const std::size_t bytes = whole ? total : std::min(options(port_index).mtu, total - operation.departed);
  std::uint32_t packet = operation.held;
  operation.held = kNone;
  if (packet == kNone) {
    const std::byte* source = source_of_chunk(operation, bytes);
    if (operation.fault != kFaultNone) {
      if (source == nullptr) {
        count_refusal(operation.fault);
        if (options(operation.from).refusal_breaks_link) {
          break_link_of(operation, 2 * latency(operation.from, operation.to), false);
        }
      } else {
        ++statistics_.faults[static_cast<std::size_t>(operation.fault)];
      }
      operation.queued = false;
      return;
    }
    packet = take_packet(bytes);
    if (bytes > 0) std::memcpy(packets_[packet].payload.get(), source, bytes);
  }
  packets_[packet].operation = index;
  packets_[packet].offset = operation.departed;
  packets_[packet].to = operation.kind == Operation::Kind::read ? operation.from : operation.to;
  operation.departed += bytes;
  operation.queued = operation.departed < total;
  launch(port_index, packet);

  const bool waits_for_target = operation.kind == Operation::Kind::read || operation.options.delivery_complete ||
                                (operation.kind == Operation::Kind::write && options(port_index).writes_confirmed);
  const bool told = !operation.swallowed || options(port_index).completes_unsent;
  if (!operation.queued && !waits_for_target && told && !operation.completing) {
    complete_in(index, packets_[packet].wire_time + completion_delay(options(port_index)));
  }
}

/// Where the next chunk is read from, checked as it is read; sets the operation's fault where that is refused, and
/// answers null where it is the remote end that refuses.
const std::byte* SimFabric::source_of_chunk(Operation& operation, std::size_t bytes) {
  if (operation.kind == Operation::Kind::read) {
    const auto access =
        ports_[operation.to].registrations.remote(operation.key, operation.address + operation.departed, bytes);
    operation.fault = access.fault;
    return access.memory;
  }
  const Port& here = ports_[operation.from];
  if (options(operation.from).needs_local_registration && bytes > 0) {
    operation.fault = here.registrations.local(operation.local.descriptor, operation.lane, operation.local.address,
                                               operation.local.bytes);
  }
  // A target refuses before a plain completion could say otherwise; each chunk is checked once more when it lands.
  const Port& there = ports_[operation.to];
  if (operation.kind == Operation::Kind::write && operation.departed == 0 && there.open &&
      operation.fault == kFaultNone) {
    operation.fault = there.registrations.remote(operation.key, operation.address, operation.local.bytes).fault;
    if (operation.fault != kFaultNone) return nullptr;
  }
  return static_cast<const std::byte*>(operation.local.address) + operation.departed;
}

void SimFabric::launch(std::uint32_t port_index, std::uint32_t packet_index) {
  Packet& packet = packets_[packet_index];
  Operation& operation = operations_[packet.operation];
  packet.wire_time = wire_time(port_index, packet.bytes);
  use_wire(ports_[port_index].sends_free_at, static_cast<std::size_t>(operation.lane), now(), now() + packet.wire_time,
           packet.wire_time);
  ++operation.packets;
  ++statistics_.packets;
  statistics_.bytes += packet.bytes;
  packet.launched = now();
  const SimLink* link = link_of(operation);
  const Carry carry = link != nullptr && link->spoilt ? Carry::nothing : ports_[port_index].state.out;
  if (carry == Carry::errors || (link != nullptr && link->spoilt)) {
    drop(packet_index, carry);
    return;
  }
  if (carry == Carry::nothing) {
    swallow(packet_index, port_index);
    return;
  }
  std::int64_t time = arrival_time(port_index, packet.to, operation.lane, packet.wire_time);
  if (carry == Carry::late) {
    packet.held = true;
    time = now() + hold(port_index);
  }
  queue_.push(time, Happening::arrival, packet_index);
}

std::int64_t SimFabric::arrival_time(std::uint32_t from, std::uint32_t to, Lane lane, std::int64_t wire_time) {
  const RailOptions& rail = options(from);
  std::int64_t time = now() + wire_time + latency(from, to) + static_cast<std::int64_t>(draw(rail.jitter));
  const bool delayed = rail.delay_probability > 0 && random_.chance(rail.delay_probability);
  if (delayed) time += static_cast<std::int64_t>(draw(rail.delay));
  if (rail.reorder_probability > 0) {
    const bool reordered = random_.chance(rail.reorder_probability);
    if (reordered) time += static_cast<std::int64_t>(draw(rail.reorder_delay));
    if (reordered || delayed) {
      ++statistics_.reordered;
      return time;
    }
  }
  auto& floors = ports_[from].floors;
  auto floor = std::ranges::lower_bound(floors, to, {}, &Floor::to);
  if (floor == floors.end() || floor->to != to) floor = floors.insert(floor, Floor{to, {}});
  std::int64_t& least = floor->time[static_cast<std::size_t>(lane)];
  least = std::max(least, time);
  return least;
}

void SimFabric::arrive(std::uint32_t packet_index) {
  Packet& packet = packets_[packet_index];
  if (packet.tries > 0 && swallowed_again(packet_index)) return;
  const Carry carry = ports_[packet.to].state.in;
  if (carry == Carry::errors) {
    drop(packet_index, carry);
    return;
  }
  if (carry == Carry::nothing) {
    swallow(packet_index, packet.to);
    return;
  }
  if (carry == Carry::late && !packet.held) {
    packet.held = true;
    queue_.push(now() + hold(packet.to), Happening::arrival, packet_index);
    return;
  }
  const RailOptions& rail = options(packet.to);
  if (rail.fencing == Fencing::timed && options_.fence_works && now() - packet.launched > rail.packet_lifetime) {
    drop(packet_index, Carry::nothing);
    return;
  }
  packet.at_target = true;
  auto& free_at = ports_[packet.to].receives_free_at;
  const auto lane = static_cast<std::size_t>(operations_[packet.operation].lane);
  // The first bit came in a wire time ago; the last one is in when this side's wire, too, has carried them all.
  const std::int64_t takes = wire_time(packet.to, packet.bytes);
  const std::int64_t done = std::max(now(), std::max(free_at[lane], now() - packet.wire_time) + takes);
  use_wire(free_at, lane, now(), done, takes);
  if (done > now()) {
    queue_.push(done, Happening::landing, packet_index);
    return;
  }
  reach(packet_index);
}

/// The packet is at its target: it lands now, or when the target polls, where nothing else moves that rail on.
void SimFabric::reach(std::uint32_t packet_index) {
  const std::uint32_t port_index = packets_[packet_index].to;
  Port& port = ports_[port_index];
  if (options(port_index).progresses_alone || !port.open) {
    land(packet_index);
    return;
  }
  port.arrived.push(packet_index);
  ++ready_[static_cast<std::size_t>(options(port_index).process)];
  ++ready_total_;
}

void SimFabric::land(std::uint32_t packet_index) {
  const Packet& packet = packets_[packet_index];
  const Operation& operation = operations_[packet.operation];
  note(16 + static_cast<std::uint64_t>(operation.kind), packet.to, packet.offset + packet.bytes);
  const bool answer = operation.kind == Operation::Kind::read && !packet.request;
  const Port& port = ports_[packet.to];
  if (!answer && fenced(port, operation.tag)) {
    ++statistics_.fenced;
    drop(packet_index, Carry::nothing);
    return;
  }
  if (!answer && !port.open) {
    turn_away(packet_index);
    return;
  }
  if (packet.request) {
    take_request(packet_index);
    return;
  }
  switch (operation.kind) {
    case Operation::Kind::send:
      land_send(packet_index);
      break;
    case Operation::Kind::write:
      land_write(packet_index);
      break;
    case Operation::Kind::read:
      land_read(packet_index);
      break;
  }
}

void SimFabric::take_request(std::uint32_t packet_index) {
  const std::uint32_t index = packets_[packet_index].operation;
  Operation& operation = operations_[index];
  give_packet(packet_index);
  --operation.packets;
  Port& port = ports_[operation.to];
  const int fault = port.registrations.remote(operation.key, operation.address, operation.local.bytes).fault;
  if (fault != kFaultNone) {
    refuse_access(index, fault);
    return;
  }
  operation.queued = true;
  port.departures[kData].push(index);
  start_departing(operation.to, Lane::data);
}

void SimFabric::land_read(std::uint32_t packet_index) {
  const Packet& packet = packets_[packet_index];
  const std::uint32_t index = packet.operation;
  Operation& operation = operations_[index];
  const Port& port = ports_[operation.from];
  int fault = port.open ? operation.fault : int{kFaultUnreachable};
  if (fault == kFaultNone && options(operation.from).needs_local_registration && packet.bytes > 0) {
    fault = port.registrations.local(operation.local.descriptor, operation.lane, operation.local.address,
                                     operation.local.bytes);
  }
  if (fault == kFaultNone) {
    if (packet.bytes > 0) {
      std::memcpy(static_cast<std::byte*>(operation.local.address) + packet.offset, packet.payload.get(), packet.bytes);
    }
    operation.landed += packet.bytes;
  }
  give_packet(packet_index);
  --operation.packets;
  if (fault != kFaultNone && operation.fault == kFaultNone) {
    fail(index, fault);
  } else {
    settle(index);
  }
}

void SimFabric::land_write(std::uint32_t packet_index) {
  const Packet& packet = packets_[packet_index];
  const std::uint32_t index = packet.operation;
  Operation& operation = operations_[index];
  Port& port = ports_[operation.to];
  const auto access = port.registrations.remote(operation.key, operation.address + packet.offset, packet.bytes);
  if (access.fault == kFaultNone) {
    if (packet.bytes > 0) std::memcpy(access.memory, packet.payload.get(), packet.bytes);
    operation.landed += packet.bytes;
  }
  give_packet(packet_index);
  --operation.packets;
  if (access.fault != kFaultNone) {
    refuse_access(index, access.fault);
    return;
  }
  const bool visible = !operation.queued && operation.packets == 0 && operation.landed == operation.local.bytes;
  if (visible && operation.options.with_immediate) {
    if (options(operation.to).immediate_takes_receive) {
      ++operation.packets;  // it stays in the network until a receive is there
      port.not_ready.push(index);
      offer_receives(operation.to);
      return;
    }
    Event landed;
    landed.kind = Event::Kind::landed;
    landed.immediate = operation.options.immediate;
    landed.bytes = operation.local.bytes;
    deliver(operation.to, Entry{landed, kNone, kNone, 0, operation.tag});
  }
  settle(index);
}

void SimFabric::land_send(std::uint32_t packet_index) {
  const std::uint32_t index = packets_[packet_index].operation;
  Operation& operation = operations_[index];
  Port& port = ports_[operation.to];
  if (port.receives.empty() || !port.not_ready.empty()) {
    ++statistics_.receiver_not_ready;
    if (port.not_ready.size() >= options(operation.to).not_ready) {
      // A process that is stopped posts no receive before it goes on.
      const std::int64_t resumes = paused_until_[static_cast<std::size_t>(options(operation.to).process)];
      queue_.push(std::max(now(), resumes) + options(operation.to).not_ready_retry, Happening::landing, packet_index);
      return;
    }
  }
  operation.held = packet_index;
  port.not_ready.push(index);
  offer_receives(operation.to);
}

/// Gives what waits to what was posted, first come first served.
void SimFabric::offer_receives(std::uint32_t port_index) {
  Port& port = ports_[port_index];
  PostedReceive taken;
  while (!port.not_ready.empty() && take_receive(port_index, taken)) {
    const std::uint32_t index = port.not_ready.front();
    port.not_ready.pop();
    Operation& operation = operations_[index];
    const std::size_t bytes = operation.local.bytes;
    --operation.packets;
    Event event;
    event.bytes = bytes;
    event.context = taken.context;
    if (operation.kind == Operation::Kind::write) {
      event.kind = Event::Kind::landed;
      event.immediate = operation.options.immediate;
      deliver(port_index, Entry{event, kNone, kNone, 0, operation.tag});
      settle(index);
      continue;
    }
    const std::uint32_t packet = operation.held;
    operation.held = kNone;
    if (bytes > taken.buffer.bytes) {
      give_packet(packet);
      event.error = kFaultTruncated;
      deliver(port_index, event, kNone);
      fail(index, kFaultTruncated);
      continue;
    }
    if (bytes > 0) std::memcpy(taken.buffer.address, packets_[packet].payload.get(), bytes);
    if (!options_.intrusions.empty() && (port.overheard.empty() || random_.chance(0.05))) {
      const std::byte* message = packets_[packet].payload.get();
      port.overheard.assign(message, message + bytes);
    }
    give_packet(packet);
    event.kind = Event::Kind::received;
    deliver(port_index, Entry{event, kNone, kNone, 0, operation.tag});
    settle(index);
  }
}

/// The next posted receive whose memory is still registered where it must be.
bool SimFabric::take_receive(std::uint32_t port_index, PostedReceive& taken) {
  Port& port = ports_[port_index];
  while (!port.receives.empty()) {
    taken = port.receives.front();
    port.receives.pop();
    if (!options(port_index).needs_local_registration) return true;
    const int fault =
        port.registrations.local(taken.buffer.descriptor, Lane::control, taken.buffer.address, taken.buffer.bytes);
    if (fault == kFaultNone) return true;
    ++statistics_.faults[static_cast<std::size_t>(fault)];
    Event event;
    event.context = taken.context;
    event.error = fault;
    deliver(port_index, event, kNone);
  }
  return false;
}

}  // namespace railyard::fabric::sim
