// Links: how they come to stand, break and end, and who learns of it when.
#include <algorithm>

#include "fabric/sim/fabric.hpp"

namespace railyard::fabric::sim {

RemoteId SimFabric::connect(std::uint32_t port, std::uint32_t to, LinkTag tag) {
  std::uint32_t index = 0;
  if (free_links_.empty()) {
    index = static_cast<std::uint32_t>(links_.size());
    links_.emplace_back();
  } else {
    index = free_links_.back();
    free_links_.pop_back();
  }
  SimLink& link = links_[index];
  link.state = SimLink::State::connecting;
  link.from = port;
  link.to = to;
  link.tag = tag;
  auto& remotes = ports_[port].remotes;
  auto& free = ports_[port].free_remotes;
  if (free.empty()) {
    link.remote = static_cast<RemoteId>(remotes.size());
    remotes.push_back(index);
  } else {
    link.remote = free.back();
    free.pop_back();
    remotes[link.remote] = index;
  }
  ++statistics_.connects;
  attempt(index);
  return link.remote;
}

void SimFabric::attempt(std::uint32_t index) {
  const SimLink& link = links_[index];
  const std::int64_t trip = latency(link.from, link.to);
  switch (ports_[link.from].state.out) {
    case Carry::everything:
      tell(Notice::Kind::request, index, trip);
      break;
    case Carry::late:
      tell(Notice::Kind::request, index, trip + hold(link.from));
      break;
    case Carry::nothing:
      tell(Notice::Kind::attempt, index, options(link.from).connect_retry);
      break;
    case Carry::errors:
      tell(Notice::Kind::lost, index, options(link.from).error_delay);
      break;
  }
}

void SimFabric::take_request_to_connect(std::uint32_t index) {
  SimLink& link = links_[index];
  Port& there = ports_[link.to];
  const Carry carry = std::max({there.state.in, there.state.out, ports_[link.from].state.in});
  if (carry == Carry::errors) {
    take_loss(index, false);
  } else if (carry == Carry::nothing || there.silent) {
    tell(Notice::Kind::attempt, index, options(link.from).connect_retry);
  } else if (!there.open || fenced(there, link.tag)) {
    take_loss(index, !there.open, there.open);
  } else if (paused(options(link.to).process)) {
    // Its kernel has the request; only the process could answer it.
    const std::int64_t resumes = paused_until_[static_cast<std::size_t>(options(link.to).process)];
    tell(Notice::Kind::request, index, resumes - now() + 1);
  } else {
    link.state = SimLink::State::standing;
    there.incoming.push_back({link.tag.id, link.tag.epoch, index, link.generation});
  }
}

void SimFabric::tell(Notice::Kind kind, std::uint32_t link, std::int64_t nanoseconds, bool refused) {
  std::uint32_t index = 0;
  if (free_notices_.empty()) {
    index = static_cast<std::uint32_t>(notices_.size());
    notices_.emplace_back();
  } else {
    index = free_notices_.back();
    free_notices_.pop_back();
  }
  notices_[index] = Notice{kind, refused, link, links_[link].generation, links_[link].to};
  queue_.push(now() + nanoseconds, Happening::link_news, index);
}

void SimFabric::take_news(std::uint32_t index) {
  const Notice notice = notices_[index];
  free_notices_.push_back(index);
  if (notice.kind == Notice::Kind::ended) {
    take_end(notice);
    return;
  }
  if (links_[notice.link].generation != notice.generation) return;  // its owner has given it up
  switch (notice.kind) {
    case Notice::Kind::attempt:
      attempt(notice.link);
      break;
    case Notice::Kind::request:
      take_request_to_connect(notice.link);
      break;
    case Notice::Kind::lost:
      take_loss(notice.link, notice.refused);
      break;
    case Notice::Kind::ended:
      break;
  }
}

void SimFabric::break_link(std::uint32_t index, std::int64_t nanoseconds, bool refused) {
  SimLink& link = links_[index];
  if (link.breaking) return;
  link.breaking = true;
  tell(Notice::Kind::lost, index, nanoseconds, refused);
}

SimFabric::SimLink* SimFabric::link_of(const Operation& operation) {
  SimLink& link = links_[operation.link];
  return link.generation == operation.generation ? &link : nullptr;
}

void SimFabric::break_link_of(const Operation& operation, std::int64_t nanoseconds, bool refused) {
  if (link_of(operation) != nullptr) break_link(operation.link, nanoseconds, refused);
}

void SimFabric::spoil_link_of(const Operation& operation) {
  SimLink* link = link_of(operation);
  if (link == nullptr || link->spoilt) return;
  link->spoilt = true;
  const std::int64_t give_up = options(operation.from).give_up;
  if (give_up > 0) break_link(operation.link, give_up, false);
}

void SimFabric::take_loss(std::uint32_t index, bool refused, bool unwanted) {
  SimLink& link = links_[index];
  link.breaking = true;
  link.state = SimLink::State::broken;
  ++statistics_.links_lost;
  // A driver may give the contexts back now or when it is told to disconnect: the contract allows both.
  if (link.operations != kNone && random_.chance(0.5)) fail_contexts(index, kFaultDown);
  Entry entry;
  entry.event.kind = Event::Kind::lost;
  entry.event.remote = link.remote;
  entry.event.refused = refused;
  entry.event.unwanted = unwanted;
  entry.event.error = refused ? kFaultUnreachable : kFaultDown;
  entry.link = index;
  entry.generation = link.generation;
  deliver(link.from, entry);
}

/// At the target: the other end has gone.
void SimFabric::take_end(const Notice& notice) {
  Port& port = ports_[notice.port];
  const auto found = std::ranges::find_if(port.incoming, [&notice](const Incoming& one) {
    return one.link == notice.link && one.generation == notice.generation;
  });
  if (found == port.incoming.end()) return;  // fenced before, or the target itself has gone
  Entry entry;
  entry.event.kind = Event::Kind::left;
  entry.event.link = {found->id, found->epoch};
  *found = port.incoming.back();
  port.incoming.pop_back();
  if (port.state.in <= Carry::late) deliver(notice.port, entry);
}

void SimFabric::disconnect(std::uint32_t port_index, RemoteId remote) {
  const auto& remotes = ports_[port_index].remotes;
  if (remote < remotes.size() && remotes[remote] != kNone) end_link(remotes[remote]);
}

void SimFabric::end_link(std::uint32_t index) {
  const SimLink& link = links_[index];
  const Port& port = ports_[link.from];
  fail_contexts(index, kFaultDisconnected);
  if (!port.silent && port.state.out <= Carry::late) tell(Notice::Kind::ended, index, latency(link.from, link.to));
  free_link(index);
}

/// The contexts that are still out come back; nothing more of these operations leaves, and no answer is put in place.
void SimFabric::fail_contexts(std::uint32_t index, int fault) {
  for (std::uint32_t next = links_[index].operations; next != kNone;) {
    const std::uint32_t current = next;
    Operation& operation = operations_[current];
    next = operation.next;
    strike(current);
    if (succeeds_late(operation)) {
      ++statistics_.late_successes;
      if (operation.scheduled) continue;
      operation.completing = operation.scheduled = true;
      const auto most = static_cast<std::uint32_t>(options(operation.from).late_success_delay);
      queue_.push(now() + static_cast<std::int64_t>(draw(most)), Happening::completion, current);
      continue;
    }
    leave_in_part(current);
    ++statistics_.faults[static_cast<std::size_t>(fault)];
    // What its target has refused stays refused, though the link ends with it.
    if (blame_of(operation.fault) == Blame::link) operation.fault = fault;
    if (!operation.scheduled) complete_in(current, completion_delay(options(operation.from)));
  }
}

/// Whether the operation, which its link still holds at its end, is told as the success it is: its bytes have left, and
/// where a success says more than that, they are in place.
bool SimFabric::succeeds_late(const Operation& operation) {
  const RailOptions& rail = options(operation.from);
  if (rail.late_success_probability == 0 || operation.fault != kFaultNone || operation.queued) return false;
  const bool confirmed =
      operation.kind == Operation::Kind::read ||
      (operation.kind == Operation::Kind::write && (operation.options.delivery_complete || rail.writes_confirmed));
  const bool in_place = operation.landed == operation.local.bytes && operation.packets == 0 && !operation.swallowed;
  if (confirmed ? !in_place : operation.departed < operation.local.bytes) return false;
  return random_.chance(rail.late_success_probability);
}

/// The NIC has some of the write in hand already: it leaves although the link has ended.
void SimFabric::leave_in_part(std::uint32_t index) {
  const Operation& operation = operations_[index];
  const RailOptions& rail = options(operation.from);
  if (rail.partial_probability == 0 || operation.kind != Operation::Kind::write || !operation.queued ||
      operation.fault != kFaultNone || !random_.chance(rail.partial_probability)) {
    return;
  }
  // Never all of it: the last chunk is what the departure queue waits for.
  for (std::uint64_t left = 1 + random_.below(4); left > 0; --left) {
    if (operations_[index].local.bytes - operations_[index].departed <= rail.mtu) return;
    depart_chunk(operation.from, index);
    if (operations_[index].fault != kFaultNone) return;
  }
}

Liveness SimFabric::liveness(std::uint32_t port_index, RemoteId remote) const {
  const Port& port = ports_[port_index];
  const std::uint32_t index = remote < port.remotes.size() ? port.remotes[remote] : kNone;
  if (index == kNone || !port.open || !options(port_index).knows_liveness) return Liveness::unknown;
  // As a kernel that gets no acknowledgement for what it sends.
  if (links_[index].spoilt) return Liveness::unknown;
  const Port& there = ports_[links_[index].to];
  const Carry way = std::max({port.state.out, port.state.in, there.state.out, there.state.in});
  if (way > Carry::late || there.silent) return Liveness::unknown;
  return there.open ? Liveness::alive : Liveness::gone;
}

void SimFabric::free_link(std::uint32_t index) {
  SimLink& link = links_[index];
  ports_[link.from].remotes[link.remote] = kNone;
  ports_[link.from].free_remotes.push_back(link.remote);
  const std::uint32_t generation = link.generation + 1;
  link = SimLink{};
  link.generation = generation;
  free_links_.push_back(index);
}

/// The rail is closed: its own links end, those of others to it break.
void SimFabric::end_links(std::uint32_t port_index) {
  Port& port = ports_[port_index];
  for (const std::uint32_t link : port.remotes) {
    if (link != kNone) end_link(link);
  }
  for (const Incoming& incoming : port.incoming) {
    const SimLink& link = links_[incoming.link];
    if (link.generation != incoming.generation || port.silent) continue;
    const bool told = port.state.out <= Carry::late && ports_[link.from].state.in <= Carry::late;
    if (told) break_link(incoming.link, latency(port_index, link.from), false);
  }
  port.incoming.clear();
}

void SimFabric::enlist(std::uint32_t index) {
  Operation& operation = operations_[index];
  SimLink& link = links_[operation.link];
  operation.listed = true;
  operation.next = link.operations;
  operation.previous = kNone;
  if (link.operations != kNone) operations_[link.operations].previous = index;
  link.operations = index;
}

void SimFabric::strike(std::uint32_t index) {
  Operation& operation = operations_[index];
  if (!operation.listed) return;
  operation.listed = false;
  if (operation.next != kNone) operations_[operation.next].previous = operation.previous;
  if (operation.previous != kNone) {
    operations_[operation.previous].next = operation.next;
  } else {
    links_[operation.link].operations = operation.next;
  }
}

}  // namespace railyard::fabric::sim
