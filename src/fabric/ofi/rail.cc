#include "fabric/ofi/rail.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "fabric/ofi/address.hpp"

namespace railyard::fabric::ofi {

namespace {

/// The longest single write: larger ones are cut anyway, and some providers fail late on more than this.
constexpr std::size_t kMostWriteBytes = std::size_t{1} << 30;

}  // namespace

Error OfiRail::set_up_error(const char* step, int code) const {
  return Error(Status::io, fmt::format("{}: could not {}: {}. `railyard info` lists other rails; RAILYARD_PROVIDER and "
                                       "RAILYARD_INTERFACES choose among them",
                                       name_, step, library().strerror(-code)));
}

Result<void> OfiRail::open_domain(const RailOffer& offer, const Choice& choice) {
  name_ = fmt::format("{} {}", core_name(offer.provider), offer.label(offer.domain));
  set_number(offer.number);
  if (!choice.shown_address.empty()) name_ += " " + choice.shown_address;
  fabric_ = offer.fabric;
  info_.reset(library().dupinfo(choice.info.get()));
  if (!info_) return Error(Status::no_memory, "no memory for a copy of a fi_info");
  set_capabilities(offer, choice);

  fid_fabric* fabric = nullptr;
  if (int code = library().fabric(info_->fabric_attr, &fabric, nullptr); code != 0)
    return set_up_error("open the fabric", code);
  fabric_object_.reset(fabric);
  fid_domain* domain = nullptr;
  if (int code = fi_domain(fabric, info_.get(), &domain, nullptr); code != 0)
    return set_up_error("open the domain", code);
  domain_.reset(domain);
  if ((info_->domain_attr->mr_mode & FI_MR_PROV_KEY) == 0) {
    auto keys = KeyPool::open(info_->domain_attr->mr_key_size);
    if (!keys) return std::move(keys.error());
    keys_ = std::move(*keys);
  }
  if (!choice.interface.empty()) watch_interface(choice.interface);
  return {};
}

void OfiRail::set_capabilities(const RailOffer& offer, const Choice& choice) {
  const int modes = info_->domain_attr->mr_mode;
  depth_ = std::max<std::size_t>(std::min(info_->tx_attr->size, info_->rx_attr->size), 1);
  capabilities_.driver = "ofi";
  capabilities_.provider = offer.provider;
  capabilities_.delivery_complete = choice.delivery_complete;
  capabilities_.needs_local_registration = (modes & FI_MR_LOCAL) != 0;
  capabilities_.binds_registrations = (modes & FI_MR_ENDPOINT) != 0;
  capabilities_.virtual_addresses = (modes & FI_MR_VIRT_ADDR) != 0;
  capabilities_.progresses_alone = info_->domain_attr->data_progress == FI_PROGRESS_AUTO;
  capabilities_.max_message = info_->ep_attr->max_msg_size;
  capabilities_.max_write = std::min(info_->ep_attr->max_msg_size, kMostWriteBytes);
  capabilities_.depth = depth_;
  capabilities_.line_rate = offer.line_rate;
}

Result<Fid<fid_cq>> OfiRail::open_queue(std::size_t wanted, std::size_t least) {
  for (std::size_t size = wanted;; size = std::max(size / 2, least)) {
    fi_cq_attr attributes{};
    attributes.size = size;
    attributes.format = FI_CQ_FORMAT_DATA;
    attributes.wait_obj = FI_WAIT_NONE;
    fid_cq* queue = nullptr;
    const int code = fi_cq_open(domain_.get(), &attributes, &queue, nullptr);
    if (code == 0) return Fid<fid_cq>(queue);
    if (size <= least) return set_up_error("open a completion queue", code);
  }
}

Result<std::vector<std::byte>> OfiRail::name_of(fid& endpoint) const {
  std::size_t bytes = kMostNameBytes;
  std::vector<std::byte> name(bytes);
  if (int code = fi_getname(&endpoint, name.data(), &bytes); code != 0)
    return set_up_error("get the endpoint's name", code);
  name.resize(bytes);
  return name;
}

void OfiRail::give_up(int code) {
  if (broken_ != 0) return;
  broken_ = code;
  log_error(in_log(), "its completion queue failed: {}", library().strerror(code));
}

bool OfiRail::read_arrival(const fi_cq_data_entry& entry, Event& event) {
  event.bytes = entry.len;
  if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
    event.kind = Event::Kind::landed;
    event.immediate = static_cast<std::uint32_t>(entry.data);
    event.context = nullptr;
    landing_.take_back(entry.op_context);
    return true;
  }
  if ((entry.flags & FI_RECV) == 0) return false;
  event.kind = Event::Kind::received;
  event.context = static_cast<PostContext*>(entry.op_context);
  --receives_;
  return true;
}

bool OfiRail::read_error(fid_cq& queue, fi_cq_err_entry& entry) const {
  entry = {};
  if (fi_cq_readerr(&queue, &entry, 0) != 1) return false;
  if (log_enabled(LogLevel::debug)) {
    std::array<char, 160> text{};
    const char* detail = fi_cq_strerror(&queue, entry.prov_errno, entry.err_data, text.data(), text.size());
    log_debug(in_log(), "error completion: {} ({})", library().strerror(entry.err), detail == nullptr ? "" : detail);
  }
  return true;
}

std::string OfiRail::describe_error(int error) const { return library().strerror(error); }

}  // namespace railyard::fabric::ofi
