/// Set-up of a datagram rail: for each lane a completion queue, an address vector and an endpoint; remotes are entries
/// of the address vectors.
#include "fabric/ofi/datagram.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <array>
#include <utility>

#include "fabric/ofi/address.hpp"

namespace railyard::fabric::ofi {

namespace {

/// How long a packet may still be under way after its sender's endpoint has let go of it.
constexpr std::int64_t kPacketLifetime = 1'000'000'000;

}  // namespace

Result<std::unique_ptr<Rail>> DatagramRail::open(const RailOffer& offer, const Choice& choice) {
  std::unique_ptr<DatagramRail> rail(new DatagramRail);
  if (auto opened = rail->open_domain(offer, choice); !opened) return std::move(opened.error());
  rail->capabilities_.fencing = Fencing::timed;
  rail->capabilities_.packet_lifetime = kPacketLifetime;
  for (const Lane lane : {Lane::control, Lane::data})
    if (auto opened = rail->open_lane(lane); !opened) return std::move(opened.error());
  if ((rail->info_->mode & FI_RX_CQ_DATA) != 0)
    rail->landing_.open(rail->part(Lane::data).endpoint.get(), rail->depth_);
  return std::unique_ptr<Rail>(std::move(rail));
}

DatagramRail::~DatagramRail() { DatagramRail::stop(); }

/// A provider may refuse to close a registration that a transmit uses, and with it all that it belongs to. Most end
/// within a few looks; one to a peer that is gone may not end at all.
void DatagramRail::let_transmits_end() {
  std::array<Event, 16> dropped;
  for (int look = 0; look < kLastLooks; ++look) {
    if (part(Lane::control).outstanding == 0 && part(Lane::data).outstanding == 0) return;
    for (LaneParts& lane : lanes_) read_queue(lane, dropped);
    ::sched_yield();
  }
}

void DatagramRail::stop() {
  if (!stopped_ && broken_ == 0) let_transmits_end();
  stopped_ = true;
  if (broken_ == 0) broken_ = FI_ESHUTDOWN;
  close_registrations();
  for (LaneParts& lane : lanes_) lane.endpoint.reset();
}

Result<void> DatagramRail::open_lane(Lane lane) {
  LaneParts& parts = part(lane);
  const std::size_t least = 2 * depth_;
  auto queue = open_queue(least + (lane == Lane::data ? kLandingRoom : 0), least);
  if (!queue) return std::move(queue.error());
  parts.queue = std::move(*queue);

  fi_av_attr attributes{};
  attributes.type = info_->domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : info_->domain_attr->av_type;
  fid_av* addresses = nullptr;
  if (int code = fi_av_open(domain_.get(), &attributes, &addresses, nullptr); code != 0)
    return set_up_error("open an address vector", code);
  parts.addresses.reset(addresses);

  fid_ep* endpoint = nullptr;
  if (int code = fi_endpoint(domain_.get(), info_.get(), &endpoint, nullptr); code != 0)
    return set_up_error("open an endpoint", code);
  parts.endpoint.reset(endpoint);
  if (int code = fi_ep_bind(endpoint, &parts.addresses->fid, 0); code != 0)
    return set_up_error("bind the endpoint to its address vector", code);
  if (int code = fi_ep_bind(endpoint, &parts.queue->fid, FI_TRANSMIT | FI_RECV); code != 0)
    return set_up_error("bind the endpoint to its completion queue", code);
  if (int code = fi_enable(endpoint); code != 0) return set_up_error("enable the endpoint", code);
  auto name = name_of(endpoint->fid);
  if (!name) return std::move(name.error());
  parts.name = std::move(*name);
  return {};
}

std::vector<std::byte> DatagramRail::address() const {
  return OfiRailAddress{capabilities_.provider, info_->addr_format, {lanes_[0].name, lanes_[1].name}}.pack();
}

Result<RemoteId> DatagramRail::connect(std::span<const std::byte> address, LinkTag tag) {
  if (auto running = refuse_if_stopped(); !running) return std::move(running.error());
  const OfiRailAddress own{capabilities_.provider, info_->addr_format, {lanes_[0].name, lanes_[1].name}};
  auto peer = OfiRailAddress::parse(address, own, name_);
  if (!peer) return std::move(peer.error());
  std::array<fi_addr_t, kLanes> lanes{};
  for (const Lane lane : {Lane::control, Lane::data}) {
    auto inserted = insert_address(lane, peer->names[index_of(lane)]);
    if (!inserted) {
      if (lane == Lane::data) fi_av_remove(part(Lane::control).addresses.get(), lanes.data(), 1, 0);
      return std::move(inserted.error());
    }
    lanes[index_of(lane)] = *inserted;
  }
  DatagramLink& link = links_.take(tag);
  link.lane = lanes;
  links_.stands(link);
  return link.remote;
}

Result<fi_addr_t> DatagramRail::insert_address(Lane lane, const std::vector<std::byte>& name) {
  fi_addr_t address = FI_ADDR_NOTAVAIL;
  const int count = fi_av_insert(part(lane).addresses.get(), name.data(), 1, &address, 0, nullptr);
  if (count != 1 || address == FI_ADDR_NOTAVAIL)
    return Error(Status::io, fmt::format("{}: libfabric refused a peer's address: {}", name_,
                                         library().strerror(count < 0 ? -count : FI_EINVAL)));
  return address;
}

void DatagramRail::disconnect(RemoteId remote) {
  DatagramLink* const link = links_.find(remote);
  if (link == nullptr) return;
  for (const Lane lane : {Lane::control, Lane::data})
    if (!stopped_) fi_av_remove(part(lane).addresses.get(), &link->lane[index_of(lane)], 1, 0);
  links_.release(*link);
}

/// Nothing is kept back here: what the queues hold is handed out by the polls that find it.
bool DatagramRail::fence(LinkTag /*tag*/) { return pending_.empty(); }

}  // namespace railyard::fabric::ofi
