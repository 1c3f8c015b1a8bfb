#include "fabric/verbs/rail.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/entropy.hpp"
#include "base/log.hpp"
#include "fabric/verbs/driver.hpp"
#include "fabric/verbs/host_addresses.hpp"

namespace railyard::fabric::verbs {

namespace {

/// What a rail would like; a device may grant less.
constexpr std::uint32_t kDepth = SendQueue::kMostDepth;  // work requests of a queue pair
constexpr std::uint32_t kReceives = 1024;                // of the shared receive queue
constexpr std::uint32_t kTransmits = 16384;              // work requests of all queue pairs together
constexpr std::uint32_t kInline = 220;                   // what many devices carry in a work request
constexpr std::uint32_t kLeastDepth = 4;                 // less cannot move
constexpr std::uint32_t kControlReserve = 16;            // of a queue pair's
constexpr std::uint8_t kReads = 16;                      // under way at once
constexpr std::size_t kMostMessageBytes = std::size_t{1} << 20;
constexpr std::size_t kMostWriteBytes = std::size_t{1} << 30;

}  // namespace

Error VerbsRail::set_up_error(const char* step, int code, int limit) const {
  const char* const hint =
      code == ENOMEM || code == EPERM ? " (often: too little memory may be locked; see `ulimit -l`)" : "";
  return Error(
      code == ENOMEM ? Status::no_memory : Status::io,
      fmt::format("{}: could not {}: {}{}{}. `railyard info` lists other rails; RAILYARD_INTERFACES chooses among "
                  "them, RAILYARD_DRIVER=ofi does without verbs",
                  name_, step, std::strerror(code), limit < 0 ? "" : fmt::format(" (its limit: {})", limit), hint));
}

Result<std::unique_ptr<Rail>> VerbsRail::open(const RailOffer& offer, const Settings& settings) {
  auto calls = verbs::library();
  if (!calls) return std::move(calls.error());
  std::unique_ptr<VerbsRail> rail(new VerbsRail);
  rail->library_ = *calls;
  rail->port_ = *static_cast<const Port*>(offer.driver_data.get());
  rail->fabric_ = rail->port_.fabric;
  rail->name_ = fmt::format("verbs {} {}", offer.label(rail->port_.name()), rail->port_.gid_text);
  rail->set_number(offer.number);
  if (auto opened = rail->open_parts(settings); !opened) return std::move(opened.error());
  return std::unique_ptr<Rail>(std::move(rail));
}

VerbsRail::~VerbsRail() { stop(); }

std::string VerbsRail::describe_address(std::span<const std::byte> address) const {
  const auto parsed = VerbsRailAddress::parse(address, own_address_.infiniband, name_);
  return parsed ? fmt::format("GID {}, CM queue pair {}", text_of(parsed->gid), parsed->queue_pair) : "";
}

Result<void> VerbsRail::open_parts(const Settings& settings) {
  auto context = open_device(*library_, port_.device);
  if (!context) return std::move(context.error());
  context_ = std::move(*context);
  if (int code = library_->query_device(context_.get(), &limits_))
    return set_up_error("ask for the device's limits", code);
  const int flags = ::fcntl(context_->async_fd, F_GETFL);
  if (flags < 0 || ::fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return set_up_error("listen for the device's events", errno);
  in_system_ = ::access(context_->device->dev_path, F_OK) == 0;
  domain_ = Domain(library_->alloc_pd(context_.get()), {library_});
  if (!domain_) return set_up_error("make a protection domain", errno, limits_.max_pd);

  // All that may be under way must fit into the completion queue: CM messages, receives, and what is left for
  // transmits.
  const auto entries = static_cast<std::uint32_t>(std::max(limits_.max_cqe, 0));
  receive_room_ = std::min({kReceives, static_cast<std::uint32_t>(std::max(limits_.max_srq_wr, 0)), entries / 4});
  const std::uint32_t others = receive_room_ + ConnectionManager::kCompletions + Flush::kMostGpus;
  depth_ = std::min(kDepth, static_cast<std::uint32_t>(std::max(limits_.max_qp_wr, 0)));
  if (depth_ < kLeastDepth || receive_room_ == 0 || entries < others + kLeastDepth)
    return Error(
        Status::unsupported,
        fmt::format("{}: the device's queues are too short for a rail: {} work requests, {} shared receives, {} "
                    "completions (least: {}, 1, {}). RAILYARD_INTERFACES chooses another, RAILYARD_DRIVER=ofi does "
                    "without verbs",
                    name_, limits_.max_qp_wr, limits_.max_srq_wr, limits_.max_cqe, kLeastDepth, others + kLeastDepth));
  const std::uint32_t wanted = std::min(entries, others + kTransmits);
  queue_ = Queue(library_->create_cq(context_.get(), static_cast<int>(wanted), nullptr, nullptr, 0), {library_});
  if (!queue_) return set_up_error("make a completion queue", errno, limits_.max_cq);
  transmit_room_ = wanted - others;

  ibv_srq_init_attr receives{};
  receives.attr.max_wr = receive_room_;
  receives.attr.max_sge = 1;
  shared_receives_ = SharedReceives(library_->create_srq(domain_.get(), &receives), {library_});
  if (!shared_receives_) return set_up_error("make a shared receive queue", errno, limits_.max_srq);

  ConnectionManager::Parts parts;
  parts.library = library_;
  parts.domain = domain_.get();
  parts.queue = queue_.get();
  parts.port = &port_;
  parts.limits = &limits_;
  parts.traffic_class = static_cast<std::uint8_t>(settings.traffic_class);
  parts.service_level = static_cast<std::uint8_t>(settings.service_level);
  const char* step = "";
  int limit = -1;
  if (int code = connection_manager_.open(parts, step, limit)) return set_up_error(step, code, limit);
  std::uint64_t name = 0;
  if (auto filled = fill_random(std::as_writable_bytes(std::span(&name, 1))); !filled) return filled;
  if (auto filled = fill_random(own_address_.secret); !filled) return filled;
  static_cast<CmAddress&>(own_address_) = {
      name, port_.gid, port_.lid, port_.infiniband, connection_manager_.queue_pair(), connection_manager_.queue_key(),
      0};
  admission_.open(own_address_, std::as_bytes(std::span(settings.job_key)));
  if (auto opened = open_liveness_port(settings); !opened) return opened;
  reads_ = static_cast<std::uint8_t>(std::clamp(limits_.max_qp_rd_atom, 1, static_cast<int>(kReads)));
  inline_bytes_ = kInline;
  data_depth_ = depth_ - std::min(depth_ / 4, kControlReserve);
  set_capabilities();
  return {};
}

/// At the GID where that is an IP address of this host, else at all addresses of the host, some of which peers are
/// told.
Result<void> VerbsRail::open_liveness_port(const Settings& settings) {
  peer_liveness_.open(port_.interface, in_log());
  auto ports = PortRange::parse(settings.ports);
  if (!ports) return std::move(ports.error());
  if (!port_.infiniband) {
    if (auto port = LivenessPort::open({port_.gid, 0, port_.interface}, *ports, admission_.own_key())) {
      liveness_port_ = std::move(*port);
      own_address_.liveness_port = liveness_port_.port();
      return {};
    }
  }
  auto port = LivenessPort::open({}, *ports, admission_.own_key());
  if (port) {
    liveness_port_ = std::move(*port);
    own_address_.host_port = liveness_port_.port();
    own_address_.hosts = choose_host_addresses(list_host_addresses(), port_.gid, VerbsRailAddress::kMostHosts);
  } else {
    log_warn(in_log(), "{}; peers find out by its silence that this process is dead, and lose it when it is stopped",
             port.error().message());
  }
  return {};
}

void VerbsRail::set_capabilities() {
  capabilities_.driver = "verbs";
  capabilities_.provider = "verbs";
  capabilities_.needs_local_registration = true;
  capabilities_.virtual_addresses = true;
  capabilities_.progresses_alone = true;
  capabilities_.landings_use_receives = true;
  capabilities_.chains_posts = true;
  capabilities_.native_atomics = limits_.atomic_cap != IBV_ATOMIC_NONE;
  capabilities_.device_memory = port_.dma_bufs;
  capabilities_.max_message = std::min(port_.max_message, kMostMessageBytes);
  capabilities_.max_write = std::min(port_.max_message, kMostWriteBytes);
  capabilities_.depth = std::min(data_depth_, receive_room_);
  capabilities_.line_rate = port_.rate;
  capabilities_.fencing = Fencing::exact;
}

Result<void> VerbsRail::refuse_if_gone() const {
  if (gone_ && !stopped_) return Error(Status::rail_failed, fmt::format("{}: its device has gone", name_));
  return refuse_if_stopped();
}

void VerbsRail::close_device() {
  flush_.close();
  handshaking_.clear();
  closing_.clear();
  disconnects_.clear();
  turn_away(*posting_);
  to_ring_ = nullptr;
  lately_ = {};
  for (Slot& slot : slots_) slot.pair.reset();
  connection_manager_.close();
  held_.clear();
  shared_receives_.reset();
  queue_.reset();
  domain_.reset();
  context_.reset();
  liveness_port_ = {};
  peer_liveness_.close();
}

void VerbsRail::stop() {
  if (stopped_) return;
  stopped_ = true;
  // Peers hear of it at once rather than by silence.
  if (!gone_)
    for (Slot& slot : slots_)
      if (slot.pair && slot.pair->state != Pair::State::closing) say_over(*slot.pair);
  links_.clear();
  inbound_.clear();
  pending_.clear();
  if (!gone_) close_device();
}

std::string VerbsRail::describe_error(int error) const {
  switch (error) {
    case kPeerEnded:
      return "the peer ended it";
    case kUnwanted:
      return "the peer shut it out";
    case kNoAnswer:
      return "no answer (a peer with another job key gives none)";
    case kNobodyThere:
      return "connections to its liveness port are refused";
    case kNoRoom:
      return "the peer's device has no queue pair left for it";
    case kDeviceGone:
      return "the device has gone";
    case kQueuePairFault:
      return "the device gave the queue pair up";
    case kNotFlushed:
      return "writes to the memory of a GPU could not be made visible to it";
    case IBV_WC_LOC_LEN_ERR:
      return "a message was longer than its receive";
    case IBV_WC_LOC_PROT_ERR:
      return "memory of this side is not registered as used";
    case IBV_WC_WR_FLUSH_ERR:
      return "the queue pair had broken before";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer's memory is not registered as used";
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer could not take it";
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer's port does not acknowledge";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer has no receive for it";
    default:
      return error >= kErrno ? std::string(std::strerror(error - kErrno))
                             : fmt::format("work completion status {}", error);
  }
}

}  // namespace railyard::fabric::verbs

namespace railyard::fabric {

Result<std::unique_ptr<Rail>> open_verbs(const RailOffer& offer, const Settings& settings) {
  return verbs::VerbsRail::open(offer, settings);
}

}  // namespace railyard::fabric
