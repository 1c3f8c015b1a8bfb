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
  OfiLink& link = links_.take(tag);
  link.peer = std::move(*peer);
  for (const Lane lane : {Lane::control, Lane::data})
    if (auto begun = begin_end(link, lane); !begun) {
      disconnect(link.remote);
      return std::move(begun.error());
    }
  return link.remote;
}

Result<void> ConnectedRail::begin_end(OfiLink& link, Lane lane) {
  const Info info(library().dupinfo(info_.get()));
  if (!info) return Error(Status::no_memory, "no memory for a copy of a fi_info");
  const std::vector<std::byte>& name = link.peer.names[0];
  // libfabric frees it with the info.
  std::free(std::exchange(info->dest_addr, std::malloc(name.size())));
  if (info->dest_addr == nullptr) return Error(Status::no_memory, "no memory for a peer's address");
  std::memcpy(info->dest_addr, name.data(), name.size());
  info->dest_addrlen = name.size();
  auto endpoint = open_endpoint(*info, lane, false);
  if (!endpoint) return std::move(endpoint.error());
  End& end = link.ends[index_of(lane)];
  end.endpoint = std::move(*endpoint);
  end_names_[&end.endpoint->fid] = {link.remote, lane};
  const auto request = admission_.request(link.peer, lane, link.tag);
  // An attempt that fails at once is told like one that fails later.
  if (int code = fi_connect(end.endpoint.get(), name.data(), request.data(), request.size()); code != 0)
    lose(link, -code, code == -FI_ECONNREFUSED);
  return {};
}

void ConnectedRail::end_stands(const EndName& name) {
  OfiLink& link = *links_[name.remote];
  link.ends[index_of(name.lane)].stands = true;
  if (!link.connecting() || !link.ends[0].stands || !link.ends[1].stands) return;
  links_.stands(link);
  refusals_.stood(link.peer.rail);
  choose_message_way(link);
}

bool ConnectedRail::rides_on_inbound_link(const OfiLink& link) const {
  return link.message_way != nullptr && link.message_way != link.ends[index_of(Lane::control)].endpoint.get();
}

void ConnectedRail::choose_message_way(OfiLink& link) {
  link.message_way = link.ends[index_of(Lane::control)].endpoint.get();
  if (!(link.peer.rail < admission_.rail())) return;
  const Accepted* const facing = inbound_.find(link.tag.facing, [&](const Accepted& one) {
    return one.carries(Lane::control) && one.stands && one.from == link.peer.rail;
  });
  if (facing != nullptr) link.message_way = facing->endpoint.get();
}

void ConnectedRail::lose(OfiLink& link, int error, bool refused) {
  if (link.lost()) return;
  // A target that finds no such key closes the connection, and so does a source that cannot be read: providers with
  // connections of their own tell neither from a broken path.
  const Blame blame = link.up() ? Blame::unknown : Blame::link;
  const bool gone = refused && refusals_.refused(link.peer.rail, SteadyClock().now());
  links_.lose(link, {.error = error,
                     .refused = gone,
                     .unverified = refused && !gone,
                     .unwanted = error == FI_EACCES,
                     .blame = blame});
}

void ConnectedRail::disconnect(RemoteId remote) {
  OfiLink* const found = links_.find(remote);
  if (found == nullptr) return;
  OfiLink& link = *found;
  // Messages that are still out on an inbound link can be had back only with its end.
  if (rides_on_inbound_link(link) && link.ends[index_of(Lane::control)].outstanding != 0) {
    const LinkTag tag = *accepted_.at(&link.message_way->fid).inbound;
    const auto same = [&](const Accepted& one) { return one.inbound->epoch <= tag.epoch; };
    while (Accepted* const one = inbound_.find(tag.id, same)) close_accepted(*one);
  }
  link.message_way = nullptr;
  links_.retire(link);
  close_end(link.ends[index_of(Lane::control)], kMessages);
  if (begin_run_out(link)) {
    link.run_out_until = SteadyClock().now() + kMostRunOut;
    return running_out_.push_back(remote);
  }
  close_last(link);
}

void ConnectedRail::close_end(End& end, QueueName queue) {
  if (end.endpoint) end_names_.erase(&end.endpoint->fid);
  end.endpoint.reset();
  drain(queue);
}

/// The end of a link that was disconnected: its contexts come out of `poll`, and its slot is free.
void ConnectedRail::close_last(OfiLink& link) {
  close_end(link.ends[index_of(Lane::data)], kLinkData);
  // What the provider dropped without a word.
  for (const Lane lane : {Lane::control, Lane::data})
    outstanding_[index_of(lane)] -= link.ends[index_of(lane)].outstanding;
  link.in_flight.end(pending_, FI_ECANCELED);
  links_.release(link);
}

/// The data lane is to come to its end before it is closed. libfabric's tcp provider (1.17) frees a read twice when its
/// endpoint is closed while the answer is half here, and from then on hands out one chunk of memory for every operation
/// of the queue. When the connection itself ends first, the provider takes its other way out, which is sound. What
/// is still to be read is no more than the socket's buffer holds. False: it may be closed at once.
bool ConnectedRail::begin_run_out(const OfiLink& link) {
  const End& end = link.ends[index_of(Lane::data)];
  if (end.outstanding == 0 || end.ended) return false;
  const int socket = socket_of(*queues_[kLinkData], *end.endpoint);
  return socket >= 0 && ::shutdown(socket, SHUT_RDWR) == 0;
}

/// One look for each poll: the provider reads a part of what is left each time.
void ConnectedRail::run_out() {
  look_at_connections();
  drain(kLinkData);
  const std::int64_t now = SteadyClock().now();
  std::erase_if(running_out_, [&](RemoteId remote) {
    OfiLink& link = *links_[remote];
    const End& end = link.ends[index_of(Lane::data)];
    if (end.outstanding != 0 && !end.ended && now < link.run_out_until) return false;
    close_last(link);
    return true;
  });
}

/// Over tcp, by the sockets that the provider uses: the one that carries the messages, and the data lane's.
Liveness ConnectedRail::liveness(RemoteId remote) {
  const OfiLink* const found = links_.find(remote);
  if (found == nullptr) return Liveness::unknown;
  const OfiLink& link = *found;
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
  const OfiLink* const found = links_.find(remote);
  if (found == nullptr) return std::nullopt;
  const OfiLink& link = *found;
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

}  // namespace railyard::fabric::ofi
