// What a rail's user calls: post, poll, connect, close.
#include <fmt/format.h>

#include <cstring>

#include "fabric/sim/fabric.hpp"

namespace railyard::fabric::sim {

namespace {

std::size_t lane_index(Lane lane) { return static_cast<std::size_t>(lane); }

}  // namespace

/// What counts against `depth`. A link that can be fenced by itself has a queue of its own, as connected endpoints do.
std::uint32_t& SimFabric::in_flight(std::uint32_t port, SimLink& link, Lane lane) {
  auto& counts = options(port).fencing == Fencing::exact ? link.in_flight : ports_[port].in_flight;
  return counts[lane_index(lane)];
}

/// The standing link that a post may use, or null and the answer to give.
SimFabric::SimLink* SimFabric::link_to_post(std::uint32_t port_index, RemoteId remote, Post& answer) {
  Port& port = ports_[port_index];
  const std::uint32_t index = remote < port.remotes.size() ? port.remotes[remote] : kNone;
  SimLink* link = index == kNone ? nullptr : &links_[index];
  answer = Post::failed;
  if (!port.open) {
    port.failure = "the rail is stopped";
  } else if (link == nullptr) {
    port.failure = fmt::format("not connected to remote {}", remote);
  } else if (link->state == SimLink::State::broken) {
    port.failure = fmt::format("the link to remote {} is broken", remote);
  } else if (link->state == SimLink::State::connecting) {
    answer = Post::busy;
  } else {
    return link;
  }
  return nullptr;
}

bool SimFabric::refuse_at_random(std::uint32_t port) {
  const double probability = options(port).busy_probability;
  return probability > 0 && random_.chance(probability);
}

int SimFabric::check_post(std::uint32_t port, const Operation& operation) const {
  const RailOptions& rail = options(port);
  const std::size_t most = operation.kind == Operation::Kind::send ? rail.max_message : rail.max_write;
  if (operation.local.bytes > most) return kFaultTooLong;
  if (rail.needs_local_registration && operation.local.bytes > 0) {
    return ports_[port].registrations.local(operation.local.descriptor, operation.lane, operation.local.address,
                                            operation.local.bytes);
  }
  return kFaultNone;
}

Post SimFabric::post(std::uint32_t port_index, RemoteId remote, const Operation& operation) {
  Port& port = ports_[port_index];
  Post answer = Post::posted;
  SimLink* link = link_to_post(port_index, remote, answer);
  if (link == nullptr) {
    if (answer == Post::busy) ++statistics_.busy;
    return answer;
  }
  const std::size_t lane = lane_index(operation.lane);
  std::uint32_t& used = in_flight(port_index, *link, operation.lane);
  if (used >= options(port_index).depth || refuse_at_random(port_index)) {
    ++statistics_.busy;
    return Post::busy;
  }
  ++used;

  std::uint32_t index = 0;
  if (free_operations_.empty()) {
    index = static_cast<std::uint32_t>(operations_.size());
    operations_.push_back(operation);
  } else {
    index = free_operations_.back();
    free_operations_.pop_back();
    operations_[index] = operation;
  }
  Operation& posted = operations_[index];
  posted.from = port_index;
  posted.to = link->to;
  posted.link = port.remotes[remote];
  posted.generation = link->generation;
  posted.tag = link->tag;
  enlist(index);
  note(8 + static_cast<std::uint64_t>(posted.kind), index, posted.local.bytes);
  switch (posted.kind) {
    case Operation::Kind::send:
      ++statistics_.sends;
      break;
    case Operation::Kind::write:
      ++statistics_.writes;
      break;
    case Operation::Kind::read:
      ++statistics_.reads;
      break;
  }

  if (const int fault = check_post(port_index, posted); fault != kFaultNone) {
    fail(index, fault);
    return Post::posted;
  }
  if (posted.kind == Operation::Kind::send && posted.local.bytes <= options(port_index).inject_bytes) {
    // The buffer may be reused as soon as we return: copy it now.
    posted.held = take_packet(posted.local.bytes);
    if (posted.local.bytes > 0) {
      std::memcpy(packets_[posted.held].payload.get(), posted.local.address, posted.local.bytes);
    }
  }
  posted.queued = true;
  port.departures[lane].push(index);
  start_departing(port_index, posted.lane);
  return Post::posted;
}

Post SimFabric::post_receive(std::uint32_t port_index, const LocalChunk& buffer, PostContext* context) {
  Port& port = ports_[port_index];
  const RailOptions& rail = options(port_index);
  if (!port.open) {
    port.failure = "the rail is stopped";
    return Post::failed;
  }
  if (port.receives.size() >= rail.receive_depth || refuse_at_random(port_index)) {
    ++statistics_.busy;
    return Post::busy;
  }
  if (rail.needs_local_registration) {
    const int fault = port.registrations.local(buffer.descriptor, Lane::control, buffer.address, buffer.bytes);
    if (fault != kFaultNone) {
      ++statistics_.faults[static_cast<std::size_t>(fault)];
      Event event;
      event.context = context;
      event.error = fault;
      deliver(port_index, event, kNone);
      return Post::posted;
    }
  }
  port.receives.push(PostedReceive{buffer, context});
  if (!port.not_ready.empty()) offer_receives(port_index);
  return Post::posted;
}

std::size_t SimFabric::poll(std::uint32_t port_index, std::span<Event> events) {
  Port& port = ports_[port_index];
  // Only as many as there are now: landing one may not bring more for this poll.
  for (std::size_t left = port.arrived.size(); left > 0; --left) {
    const std::uint32_t packet = port.arrived.front();
    port.arrived.pop();
    --ready_[static_cast<std::size_t>(options(port_index).process)];
    --ready_total_;
    land(packet);
  }
  std::size_t count = 0;
  while (count < events.size() && !port.completions.empty()) {
    const Entry entry = port.completions.front();
    port.completions.pop();
    --ready_[static_cast<std::size_t>(options(port_index).process)];
    --ready_total_;
    // The number may be another link's by now.
    if (entry.link != kNone && links_[entry.link].generation != entry.generation) continue;
    events[count++] = entry.event;
    if (entry.operation != kNone) finish(entry.operation);
  }
  for (; count < events.size() && !port.orphans.empty(); port.orphans.pop_back()) {
    events[count] = {};
    events[count].context = port.orphans.back();
    events[count++].error = kFaultDisconnected;
  }
  return count;
}

void SimFabric::close(std::uint32_t port_index) {
  stop(port_index);
  statistics_.registrations_left += ports_[port_index].registrations.live();
}

void SimFabric::stop(std::uint32_t port_index) {
  Port& port = ports_[port_index];
  if (!port.open) return;
  port.open = false;
  std::vector<Event> discarded(64);
  while (!port.arrived.empty() || !port.completions.empty()) poll(port_index, discarded);
  port.receives.clear();
  end_links(port_index);
  // Messages that wait here for a receive never get one.
  while (!port.not_ready.empty()) {
    const std::uint32_t index = port.not_ready.front();
    port.not_ready.pop();
    Operation& operation = operations_[index];
    if (operation.held != kNone) give_packet(operation.held);
    operation.held = kNone;
    --operation.packets;
    refuse_access(index, kFaultUnreachable);
  }
  discard_departures(port_index);
}

/// What a stopped rail had still to send, answers to reads among it.
void SimFabric::discard_departures(std::uint32_t port_index) {
  for (auto& departures : ports_[port_index].departures) {
    while (!departures.empty()) {
      const std::uint32_t index = departures.front();
      departures.pop();
      Operation& operation = operations_[index];
      operation.queued = false;
      if (operation.held != kNone) give_packet(operation.held);
      operation.held = kNone;
      if (operation.from == port_index) {
        release(index);
      } else {
        refuse_access(index, kFaultUnreachable);
      }
    }
  }
}

}  // namespace railyard::fabric::sim
