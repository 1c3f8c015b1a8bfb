/// Links: what a connected rail has made itself.
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "fabric/ofi/connected.hpp"
#include "fabric/ofi/socket_of.hpp"
#include "fabric/tcp_delivery.hpp"
#include "fabric/tcp_liveness.hpp"

namespace railyard::fabric::ofi {

Result<RemoteId> ConnectedRail::connect(std::span<const std::byte> address, LinkTag tag) {
  if (auto running = refuse_if_stopped(); !running) return std::move(running.error());
  auto peer = OfiRailAddress::parse(address, own_address(), name_);
  if (!peer) return std::move(peer.error());
  const RemoteId remote = take_slot();
  links_[remote]->peer = peer->names[0];
  links_[remote]->facing = tag.facing;
  set_state(*links_[remote], OfiLink::State::connecting);
  for (const Lane lane : {Lane::control, Lane::data})
    if (auto begun = begin_end(remote, lane, peer->names[0], tag); !begun) {
      disconnect(remote);
      return std::move(begun.error());
    }
  return remote;
}

RemoteId ConnectedRail::take_slot() {
  if (free_links_.empty()) {
    links_.push_back(std::make_unique<OfiLink>());
    return static_cast<RemoteId>(links_.size() - 1);
  }
  const RemoteId remote = free_links_.back();
  free_links_.pop_back();
  return remote;
}

Result<void> ConnectedRail::begin_end(RemoteId remote, Lane lane, const std::vector<std::byte>& name, LinkTag tag) {
  const Info info(library().dupinfo(info_.get()));
  if (!info) return Error(Status::no_memory, "no memory for a copy of a fi_info");
  // libfabric frees it with the info.
  std::free(std::exchange(info->dest_addr, std::malloc(name.size())));
  if (info->dest_addr == nullptr) return Error(Status::no_memory, "no memory for a peer's address");
  std::memcpy(info->dest_addr, name.data(), name.size());
  info->dest_addrlen = name.size();
  auto endpoint = open_endpoint(*info, lane, false);
  if (!endpoint) return std::move(endpoint.error());
  End& end = links_[remote]->ends[index_of(lane)];
  end.endpoint = std::move(*endpoint);
  end_names_[&end.endpoint->fid] = {remote, lane};
  const auto request = LinkRequest{lane, tag, listener_name_}.pack();
  // An attempt that fails at once is told like one that fails later.
  if (int code = fi_connect(end.endpoint.get(), name.data(), request.data(), request.size()); code != 0)
    lose(remote, -code, code == -FI_ECONNREFUSED);
  return {};
}

void ConnectedRail::set_state(OfiLink& link, OfiLink::State state) {
  if (link.state == OfiLink::State::connecting) --setting_up_;
  if (state == OfiLink::State::connecting) ++setting_up_;
  link.state = state;
}

void ConnectedRail::end_stands(const EndName& name) {
  OfiLink& link = *links_[name.remote];
  link.ends[index_of(name.lane)].stands = true;
  if (link.state != OfiLink::State::connecting || !link.ends[0].stands || !link.ends[1].stands) return;
  set_state(link, OfiLink::State::up);
  refusals_.stood(link.peer);
  choose_message_way(link);
}

bool ConnectedRail::rides_on_inbound_link(const OfiLink& link) const {
  return link.message_way != nullptr && link.message_way != link.ends[index_of(Lane::control)].endpoint.get();
}

void ConnectedRail::choose_message_way(OfiLink& link) {
  link.message_way = link.ends[index_of(Lane::control)].endpoint.get();
  if (!(link.peer < listener_name_)) return;
  for (auto& [name, inbound_link] : inbound_links_) {
    if (inbound_link.lane == Lane::control && inbound_link.stands && inbound_link.from == link.peer &&
        inbound_link.tag.id == link.facing)
      link.message_way = inbound_link.endpoint.get();
  }
}

void ConnectedRail::lose(RemoteId remote, int error, bool refused) {
  OfiLink& link = *links_[remote];
  if (link.state == OfiLink::State::lost) return;
  // A target that finds no such key closes the connection, and so does a source that cannot be read: providers with
  // connections of their own tell neither from a broken path.
  const Blame blame = link.state == OfiLink::State::up ? Blame::unknown : Blame::link;
  set_state(link, OfiLink::State::lost);
  if (refused && !refusals_.refused(link.peer, SteadyClock().now())) return pending_.push_unverified(remote, error);
  pending_.push_lost(remote, error, refused, error == FI_EACCES, blame);
}

void ConnectedRail::disconnect(RemoteId remote) {
  if (!known(remote)) return;
  OfiLink& link = *links_[remote];
  // Messages that are still out on an inbound link can be had back only with its end.
  if (!stopped_ && rides_on_inbound_link(link) && link.ends[index_of(Lane::control)].outstanding != 0) {
    const LinkTag tag = inbound_links_.at(&link.message_way->fid).tag;
    close_inbound_links(tag.id, tag.epoch, true);
  }
  link.message_way = nullptr;
  if (!stopped_) run_out(link);
  for (End& end : link.ends) {
    if (end.endpoint) end_names_.erase(&end.endpoint->fid);
    end.endpoint.reset();
  }
  if (!stopped_) {
    drain(kMessages);
    drain(kLinkData);
    return_contexts(link);
  }
  set_state(link, OfiLink::State::free);
  pending_.forget_lost(remote);
  link.ends = {};
  link.peer.clear();
  free_links_.push_back(remote);
}

/// Lets the data lane come to its end before it is closed. libfabric's tcp provider (1.17) frees a read twice when its
/// endpoint is closed while the answer is half here, and from then on hands out one chunk of memory for every operation
/// of the queue. When the connection itself ends first, the provider takes its other way out, which is sound. What
/// is still to be read is no more than the socket's buffer holds.
void ConnectedRail::run_out(OfiLink& link) {
  constexpr int kMostTurns = 10000;
  End& end = link.ends[index_of(Lane::data)];
  if (end.outstanding == 0 || end.ended) return;
  const int socket = socket_of(*queues_[kLinkData], *end.endpoint);
  if (socket < 0 || ::shutdown(socket, SHUT_RDWR) != 0) return;
  for (int turn = 0; turn < kMostTurns && !end.ended; ++turn) {
    drain(kLinkData);
    look_at_connections();
  }
}

/// Over tcp, by the sockets that the provider uses: the one that carries the messages, and the data lane's.
Liveness ConnectedRail::liveness(RemoteId remote) {
  if (stopped_ || !known(remote)) return Liveness::unknown;
  const OfiLink& link = *links_[remote];
  const End& data = link.ends[index_of(Lane::data)];
  for (const auto& [queue, endpoint] :
       {std::pair{kMessages, link.message_way}, std::pair{kLinkData, data.endpoint.get()}}) {
    if (endpoint == nullptr) continue;
    const int socket = socket_of(*queues_[queue], *endpoint);
    if (socket < 0) continue;
    keep_asking(socket);
    if (liveness_of(socket) == Liveness::alive) return Liveness::alive;
  }
  return Liveness::unknown;
}

/// Of both lanes together.
std::optional<Delivery> ConnectedRail::delivery(RemoteId remote) {
  if (stopped_ || !known(remote)) return std::nullopt;
  const OfiLink& link = *links_[remote];
  const End& data = link.ends[index_of(Lane::data)];
  Delivery both;
  for (const auto& [queue, endpoint] :
       {std::pair{kMessages, link.message_way}, std::pair{kLinkData, data.endpoint.get()}}) {
    const int socket = endpoint == nullptr ? -1 : socket_of(*queues_[queue], *endpoint);
    const auto one = delivery_of(socket);
    if (!one) return std::nullopt;
    both.taken += one->taken;
    both.waits |= one->waits;
  }
  return both;
}

/// What the provider dropped without a word.
void ConnectedRail::return_contexts(OfiLink& link) {
  for (const Lane lane : {Lane::control, Lane::data})
    outstanding_[index_of(lane)] -= link.ends[index_of(lane)].outstanding;
  while (PostContext* const context = link.in_flight.take()) {
    Event event;
    event.kind = Event::Kind::failed;
    event.context = context;
    event.error = FI_ECANCELED;
    pending_.push(event);
  }
}

}  // namespace railyard::fabric::ofi
