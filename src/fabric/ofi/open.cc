/// Set-up: fabric, domain, and for each lane a completion queue, an address vector and an endpoint.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.hpp"
#include "fabric/ofi/driver.hpp"
#include "fabric/ofi/rail.hpp"

namespace railyard::fabric {

namespace ofi {

namespace {

constexpr std::uint32_t kAddressMagic = 0x41415952;  // "RYAA"
constexpr std::uint16_t kAddressVersion = 1;
constexpr std::size_t kMostNameBytes = 512;
/// Immediates of many peers may arrive between two polls: room for them beyond this rail's own operations.
constexpr std::size_t kLandingRoom = 16384;
/// The longest single write: larger ones are cut anyway, and some providers fail late on more than this.
constexpr std::size_t kMostWriteBytes = std::size_t{1} << 30;

Error set_up_error(const std::string& rail, const char* step, int code) {
  return Error(Status::io, fmt::format("{}: could not {}: {}. `railyard info` lists other rails; RAILYARD_PROVIDER and "
                                       "RAILYARD_INTERFACES choose among them",
                                       rail, step, fi_strerror(-code)));
}

}  // namespace

Result<std::unique_ptr<OfiRail>> OfiRail::open(const RailOffer& offer) {
  const auto* choice = static_cast<const Choice*>(offer.driver_data.get());
  if (choice == nullptr) return Error(Status::invalid, "this rail offer does not come from the ofi driver");
  std::unique_ptr<OfiRail> rail(new OfiRail);
  rail->name_ = fmt::format("{} {}", core_name(offer.provider), offer.domain);
  if (!choice->place.empty()) rail->name_ += " " + choice->place;
  rail->fabric_name_ = offer.fabric;
  rail->info_.reset(fi_dupinfo(choice->info.get()));
  if (!rail->info_) return Error(Status::no_memory, "no memory for a copy of a fi_info");
  rail->set_capabilities(offer, choice->delivery_complete);

  fid_fabric* fabric = nullptr;
  if (int code = fi_fabric(rail->info_->fabric_attr, &fabric, nullptr); code != 0)
    return set_up_error(rail->name_, "open the fabric", code);
  rail->fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  if (int code = fi_domain(fabric, rail->info_.get(), &domain, nullptr); code != 0)
    return set_up_error(rail->name_, "open the domain", code);
  rail->domain_.reset(domain);
  if ((rail->info_->domain_attr->mr_mode & FI_MR_PROV_KEY) == 0) {
    auto keys = KeyPool::open(rail->info_->domain_attr->mr_key_size);
    if (!keys) return std::move(keys.error());
    rail->keys_ = std::move(*keys);
  }
  for (const Lane lane : {Lane::control, Lane::data})
    if (auto opened = rail->open_lane(lane); !opened) return std::move(opened.error());
  if ((rail->info_->mode & FI_RX_CQ_DATA) != 0) rail->open_landing_receives();
  return rail;
}

OfiRail::~OfiRail() { stop(); }

void OfiRail::stop() {
  stopped_ = true;
  if (broken_ == 0) broken_ = FI_ESHUTDOWN;
  for (auto& [id, held] : held_) held.object.reset();
  held_.clear();
  for (LaneParts& lane : lanes_) lane.endpoint.reset();
}

void OfiRail::set_capabilities(const RailOffer& offer, bool delivery_complete) {
  const int modes = info_->domain_attr->mr_mode;
  depth_ = std::max<std::size_t>(std::min(info_->tx_attr->size, info_->rx_attr->size), 1);
  capabilities_.driver = "ofi";
  capabilities_.provider = offer.provider;
  capabilities_.delivery_complete = delivery_complete;
  capabilities_.needs_local_registration = (modes & FI_MR_LOCAL) != 0;
  capabilities_.binds_registrations = (modes & FI_MR_ENDPOINT) != 0;
  capabilities_.virtual_addresses = (modes & FI_MR_VIRT_ADDR) != 0;
  capabilities_.progresses_alone = info_->domain_attr->data_progress == FI_PROGRESS_AUTO;
  capabilities_.max_message = info_->ep_attr->max_msg_size;
  capabilities_.max_write = std::min(info_->ep_attr->max_msg_size, kMostWriteBytes);
  capabilities_.depth = depth_;
  capabilities_.line_rate = offer.line_rate;
}

/// A queue of the wanted size, or of the largest that the provider grants, but not under the least.
Result<void> OfiRail::open_queue(LaneParts& parts, std::size_t wanted, std::size_t least) {
  for (std::size_t size = wanted;; size = std::max(size / 2, least)) {
    fi_cq_attr attributes{};
    attributes.size = size;
    attributes.format = FI_CQ_FORMAT_DATA;
    attributes.wait_obj = FI_WAIT_NONE;
    fid_cq* queue = nullptr;
    const int code = fi_cq_open(domain_.get(), &attributes, &queue, nullptr);
    if (code == 0) {
      parts.queue.reset(queue);
      return {};
    }
    if (size <= least) return set_up_error(name_, "open a completion queue", code);
  }
}

Result<void> OfiRail::open_lane(Lane lane) {
  LaneParts& parts = part(lane);
  const std::size_t least = 2 * depth_;
  if (auto opened = open_queue(parts, least + (lane == Lane::data ? kLandingRoom : 0), least); !opened) return opened;

  fi_av_attr attributes{};
  attributes.type = info_->domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : info_->domain_attr->av_type;
  fid_av* addresses = nullptr;
  if (int code = fi_av_open(domain_.get(), &attributes, &addresses, nullptr); code != 0)
    return set_up_error(name_, "open an address vector", code);
  parts.addresses.reset(addresses);

  fid_ep* endpoint = nullptr;
  if (int code = fi_endpoint(domain_.get(), info_.get(), &endpoint, nullptr); code != 0)
    return set_up_error(name_, "open an endpoint", code);
  parts.endpoint.reset(endpoint);
  if (int code = fi_ep_bind(endpoint, &parts.addresses->fid, 0); code != 0)
    return set_up_error(name_, "bind the endpoint to its address vector", code);
  if (int code = fi_ep_bind(endpoint, &parts.queue->fid, FI_TRANSMIT | FI_RECV); code != 0)
    return set_up_error(name_, "bind the endpoint to its completion queue", code);
  if (int code = fi_enable(endpoint); code != 0) return set_up_error(name_, "enable the endpoint", code);

  std::size_t bytes = kMostNameBytes;
  parts.name.resize(bytes);
  if (int code = fi_getname(&endpoint->fid, parts.name.data(), &bytes); code != 0)
    return set_up_error(name_, "get the endpoint's name", code);
  parts.name.resize(bytes);
  return {};
}

void OfiRail::open_landing_receives() {
  landing_receives_.resize(depth_);
  idle_landing_receives_.reserve(depth_);
  for (PostContext& context : landing_receives_) idle_landing_receives_.push_back(&context);
  post_landing_receives();
}

std::vector<std::byte> OfiRail::address() const {
  ByteWriter writer;
  writer.u32(kAddressMagic);
  writer.u16(kAddressVersion);
  writer.u16(static_cast<std::uint16_t>(kLanes));
  writer.text(capabilities_.provider);
  writer.u32(info_->addr_format);
  for (const LaneParts& lane : lanes_) writer.blob(lane.name);
  return writer.take();
}

Result<RemoteId> OfiRail::connect(std::span<const std::byte> address) {
  if (stopped_) return Error(Status::rail_failed, fmt::format("{} is stopped", name_));
  ByteReader reader(address);
  if (reader.u32() != kAddressMagic)
    return Error(Status::invalid, fmt::format("{}: a peer's rail address is no address of the ofi driver", name_));
  if (const auto version = reader.u16(); version != kAddressVersion)
    return Error(Status::version_mismatch,
                 fmt::format("{}: a peer's rail address has version {}, this library speaks {}: use the same release "
                             "on all ranks",
                             name_, version, kAddressVersion));
  const std::size_t lanes = reader.u16();
  const std::string provider = reader.text(kMostNameBytes);
  const std::uint32_t format = reader.u32();
  std::array<std::span<const std::byte>, kLanes> names;
  for (auto& name : names) name = reader.blob(kMostNameBytes);
  if (!reader.done() || lanes != kLanes || names[0].empty() || names[1].empty())
    return Error(Status::invalid, fmt::format("{}: a peer's rail address is malformed", name_));
  if (provider != capabilities_.provider || format != info_->addr_format)
    return Error(Status::invalid,
                 fmt::format("{}: a peer's rail uses provider '{}', this one '{}': set RAILYARD_PROVIDER alike on all "
                             "ranks",
                             name_, provider, capabilities_.provider));
  Remote remote;
  for (const Lane lane : {Lane::control, Lane::data}) {
    const auto index = static_cast<std::size_t>(lane);
    auto inserted = insert_address(lane, names[index]);
    if (!inserted) {
      if (lane == Lane::data) fi_av_remove(part(Lane::control).addresses.get(), remote.lane.data(), 1, 0);
      return std::move(inserted.error());
    }
    remote.lane[index] = *inserted;
  }
  if (free_remotes_.empty()) {
    remotes_.push_back(remote);
    return static_cast<RemoteId>(remotes_.size() - 1);
  }
  const RemoteId id = free_remotes_.back();
  free_remotes_.pop_back();
  remotes_[id] = remote;
  return id;
}

Result<fi_addr_t> OfiRail::insert_address(Lane lane, std::span<const std::byte> name) {
  // Providers read a name as if it had the length of their own; strings (shm) may differ in it but end with a zero.
  const bool text = info_->addr_format == FI_ADDR_STR;
  if (text ? name.back() != std::byte{0} : name.size() != part(lane).name.size())
    return Error(Status::invalid, fmt::format("{}: a peer's rail address is malformed", name_));
  fi_addr_t address = FI_ADDR_NOTAVAIL;
  const int count = fi_av_insert(part(lane).addresses.get(), name.data(), 1, &address, 0, nullptr);
  if (count != 1 || address == FI_ADDR_NOTAVAIL)
    return Error(Status::io, fmt::format("{}: libfabric refused a peer's address: {}", name_,
                                         fi_strerror(count < 0 ? -count : FI_EINVAL)));
  return address;
}

void OfiRail::disconnect(RemoteId remote) {
  if (!known(remote)) return;
  for (const Lane lane : {Lane::control, Lane::data}) {
    fi_addr_t& address = remotes_[remote].lane[static_cast<std::size_t>(lane)];
    if (!stopped_) fi_av_remove(part(lane).addresses.get(), &address, 1, 0);
    address = FI_ADDR_NOTAVAIL;
  }
  free_remotes_.push_back(remote);
}

}  // namespace ofi

Result<std::unique_ptr<Rail>> open_ofi(const RailOffer& offer, const Settings& /*settings*/) {
  auto rail = ofi::OfiRail::open(offer);
  if (!rail) return std::move(rail.error());
  return std::unique_ptr<Rail>(std::move(*rail));
}

}  // namespace railyard::fabric
