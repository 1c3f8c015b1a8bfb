// The fence: what a target shuts out, and when it can say that the rest has been seen.
#include <algorithm>

#include "fabric/sim/fabric.hpp"

namespace railyard::fabric::sim {

namespace {

bool covers(LinkTag fence, LinkTag tag) { return fence.id == tag.id && tag.epoch <= fence.epoch; }

}  // namespace

bool SimFabric::fence(std::uint32_t port_index, LinkTag tag) {
  if (!options_.fence_works) return true;
  const bool exact = options(port_index).fencing == Fencing::exact;
  if (exact) shut_out(port_index, tag);
  return !anything_unpolled(port_index, tag, !exact);
}

bool SimFabric::fenced(const Port& port, LinkTag tag) const {
  const auto found = std::ranges::lower_bound(port.fences, tag.id, {}, &LinkTag::id);
  return found != port.fences.end() && covers(*found, tag);
}

void SimFabric::shut_out(std::uint32_t port_index, LinkTag tag) {
  Port& port = ports_[port_index];
  const auto found = std::ranges::lower_bound(port.fences, tag.id, {}, &LinkTag::id);
  if (found == port.fences.end() || found->id != tag.id) {
    port.fences.insert(found, tag);
  } else {
    if (found->epoch >= tag.epoch) return;
    found->epoch = tag.epoch;
  }
  // The connection is closed from this end: the other one learns of it, if it is still there.
  std::erase_if(port.incoming, [&](const Incoming& incoming) {
    if (!covers(tag, {incoming.id, incoming.epoch})) return false;
    const SimLink& link = links_[incoming.link];
    const bool told = port.state.out <= Carry::late;
    if (told && link.generation == incoming.generation) {
      break_link(incoming.link, latency(port_index, link.from), false);
    }
    return true;
  });
  // What waits for a receive has not landed.
  for (std::size_t left = port.not_ready.size(); left > 0; --left) {
    const std::uint32_t index = port.not_ready.front();
    port.not_ready.pop();
    Operation& operation = operations_[index];
    if (!covers(tag, operation.tag)) {
      port.not_ready.push(index);
      continue;
    }
    ++statistics_.fenced;
    if (operation.held != kNone) give_packet(operation.held);
    operation.held = kNone;
    --operation.packets;
    operation.swallowed = true;
    release(index);
  }
}

/// Whether `poll` has still to bring something of these epochs; or, where nothing shuts it out, has still to land it.
bool SimFabric::anything_unpolled(std::uint32_t port_index, LinkTag tag, bool not_landed_too) {
  Port& port = ports_[port_index];
  for (std::size_t i = 0; i < port.completions.size(); ++i) {
    const Entry& entry = port.completions[i];
    const bool arrival = entry.event.kind == Event::Kind::received || entry.event.kind == Event::Kind::landed;
    if (arrival && covers(tag, entry.from)) return true;
  }
  if (!not_landed_too) return false;
  for (std::size_t i = 0; i < port.not_ready.size(); ++i) {
    if (covers(tag, operations_[port.not_ready[i]].tag)) return true;
  }
  // Rare enough to look at every packet: on the receiver's wire, or waiting for a poll.
  return std::ranges::any_of(packets_, [&](const Packet& packet) {
    return packet.at_target && packet.to == port_index && covers(tag, operations_[packet.operation].tag);
  });
}

}  // namespace railyard::fabric::sim
