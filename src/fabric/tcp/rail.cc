/// Set-up of a tcp rail, its registrations, and its end.
#include "fabric/tcp/rail.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/entropy.hpp"
#include "base/log.hpp"
#include "base/ports.hpp"
#include "fabric/tcp/driver.hpp"
#include "fabric/tcp/poll_set.hpp"
#include "fabric/tcp/socket.hpp"
#include "fabric/tcp_delivery.hpp"

namespace railyard::fabric {

namespace tcp {

namespace {

constexpr int kBacklog = 4096;
constexpr int kMisroutedBacklog = 128;
/// Bytes that the kernel may take ahead of the wire: about a millisecond of it.
constexpr double kUnsentSeconds = 1e-3;
constexpr std::uint32_t kLeastUnsent = 128U << 10U;
constexpr std::uint32_t kMostUnsent = 2U << 20U;

}  // namespace

std::int64_t now_ns() { return SteadyClock().now(); }

Result<std::unique_ptr<Rail>> TcpRail::open(const RailOffer& offer, const Interface& interface,
                                            const Settings& settings) {
  std::unique_ptr<TcpRail> rail(new TcpRail);
  rail->interface_ = interface;
  rail->name_ = fmt::format("tcp {} {}", offer.label(interface.device), interface.address.text());
  rail->set_number(offer.number);
  rail->fabric_ = offer.fabric;
  Capabilities& can = rail->capabilities_;
  can.driver = can.provider = "tcp";
  can.delivery_complete = can.sees_one_sided = true;
  can.chains_posts = true;
  can.device_memory = true;  // wherever there is any: it came from a driver
  can.max_message = kMostMessageBytes;
  can.max_write = kMostWriteBytes;
  can.depth = kDepth;
  can.line_rate = offer.line_rate;
  can.fencing = Fencing::exact;
  const double unsent = offer.line_rate * kUnsentSeconds;
  rail->socket_options_.unsent =
      unsent == 0 ? kMostUnsent : static_cast<std::uint32_t>(std::clamp<double>(unsent, kLeastUnsent, kMostUnsent));
  if (auto opened = rail->open_parts(settings); !opened) return std::move(opened.error());
  return std::unique_ptr<Rail>(std::move(rail));
}

Error TcpRail::set_up_error(const char* step) const {
  return Error(Status::io, fmt::format("{}: could not {}: {}. `railyard info` lists other rails; RAILYARD_INTERFACES "
                                       "chooses among them",
                                       name_, step, std::strerror(errno)));
}

Result<void> TcpRail::open_parts(const Settings& settings) {
  if (auto filled = fill_random(own_.name); !filled) return filled;
  if (auto filled = fill_random(own_.secret); !filled) return filled;
  const auto key = std::as_bytes(std::span(settings.job_key));
  job_key_.assign(key.begin(), key.end());
  admission_key_ = admission_key(own_.secret, job_key_);
  staging_ = std::make_unique<std::byte[]>(kStaging);

  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  admission_set_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_ || !admission_set_) return set_up_error("make an epoll set");
  constexpr std::uint64_t kBytesPerMegabit = 1'000'000 / 8;
  socket_options_.traffic_class = static_cast<std::uint8_t>(settings.traffic_class);
  socket_options_.pacing = settings.pacing_mbps * kBytesPerMegabit;
  // What stays within the host meets no congestion, and a kernel whose default is to pace (bbr) arms timers for it.
  socket_options_.congestion = settings.congestion.empty() && interface_.loopback ? "reno" : settings.congestion;
  if (auto listens = open_listener(settings); !listens) return listens;
  static LogLimit limit(1, 60'000'000'000);
  if (const std::string wrong = settings_in_the_way(interface_); bound_ && !wrong.empty() && limit.allow(now_ns()))
    log_warn(
        in_log(),
        "other NICs of this host are in its subnet and answer for its address, so packets arrive at the wrong "
        "one and links may not come about. `sysctl -w {}` on all hosts keeps them apart (or a subnet for each NIC)",
        wrong);
  if (!watch_fd(admission_set_.get(), listener_.get(), EPOLLIN, kListenerMark) ||
      (misrouted_listener_ && !watch_fd(admission_set_.get(), misrouted_listener_.get(), EPOLLIN, kMisroutedMark)) ||
      !watch_fd(epoll_.get(), admission_set_.get(), EPOLLIN | EPOLLET, kAdmissionMark))
    return set_up_error("watch the listening socket");
  if (interface_.loopback) return {};
  device_account_ = DeviceAccount::of(interface_.device);
  watch_interface(interface_.device);
  if (const int descriptor = interface_descriptor(); descriptor >= 0)
    (void)watch_fd(epoll_.get(), descriptor, EPOLLIN | EPOLLET, kInterfaceMark);
  return {};
}

Result<void> TcpRail::open_listener(const Settings& settings) {
  auto ports = PortRange::parse(settings.ports);
  if (!ports) return std::move(ports.error());
  own_.endpoint = interface_.address;
  int refused = 0;
  auto listener = listen_within(*ports, own_.endpoint.storage, own_.endpoint.length, kBacklog, [&] {
    Fd socket = open_socket(interface_.address);
    if (!socket || interface_.loopback) return socket;
    bound_ = bind_to_device(socket.get(), interface_.device);
    if (!bound_) refused = errno;
    return socket;
  });
  if (!listener) {
    return Error(listener.status(), fmt::format("{}: {}. `railyard info` lists other rails; RAILYARD_INTERFACES "
                                                "chooses among them",
                                                name_, listener.error().message()));
  }
  listener_ = std::move(*listener);
  if (bound_) misrouted_listener_ = listen_beside(listener_.get(), own_.endpoint, kMisroutedBacklog);
  if (!interface_.loopback && !bound_)
    log_info(in_log(), "its sockets cannot be bound to the device ({}): the kernel's routes are asked instead",
             std::strerror(refused));
  // Its answers to those who connect carry the mark, too.
  mark_packets(listener_.get(), socket_options_.traffic_class);
  if (socket_options_.congestion.empty()) return {};
  return use_congestion_control(listener_.get(), socket_options_.congestion);
}

std::string TcpRail::describe_address(std::span<const std::byte> address) const {
  const auto parsed = TcpRailAddress::parse(address, name_);
  return parsed ? parsed->endpoint.text_with_port() : "";
}

TcpRail::~TcpRail() { TcpRail::stop(); }

void TcpRail::stop() {
  if (stopped_) return;
  for (auto& connection : connections_) {
    if (connection->phase == Connection::Phase::closed) continue;
    // What is posted leaves; unread input would make the kernel reset the connection, and the peer lose our last word.
    if (connection->standing() && connection->dirty) flush(*connection, true);
    throw_away_input(*connection);
  }
  stopped_ = true;
  links_.clear();
  inbound_.clear();
  regions_.clear();
  receives_.clear();
  active_.clear();
  dirty_.clear();
  owing_.clear();
  heard_.clear();
  stalled_.clear();
  attempting_.clear();
  connections_.clear();
  unproven_.clear();
  device_.reset();  // waits for the copies under way
  listener_.reset();
  misrouted_listener_.reset();
  unwatch_interface();
  pending_.clear();
}

Result<Registration> TcpRail::register_memory(std::span<std::byte> memory, Access access) {
  if (auto running = refuse_if_stopped(); !running) return std::move(running.error());
  Registration registration;
  if (access.device >= 0) {
    if (auto ready = open_device(access.device); !ready) return std::move(ready.error());
    registration.descriptor[static_cast<std::size_t>(Lane::data)] = device_descriptor(access.device);
  }
  // The kernel reads sources and fills destinations of our own: only what peers may name needs an entry.
  if (!access.remote) return registration;
  do {
    if (auto filled = fill_random(std::as_writable_bytes(std::span(&registration.key, 1))); !filled)
      return std::move(filled.error());
  } while (registration.key == 0 || regions_.contains(registration.key));
  regions_[registration.key] = {memory.data(), memory.size(), access.device};
  return registration;
}

/// Nothing lands but what we read from a socket ourselves: the key goes, and whoever is in the middle of it is
/// diverted. What GPUs are copying meanwhile is waited for.
void TcpRail::revoke(const Registration& registration) {
  if (registration.key == 0 || regions_.erase(registration.key) == 0) return;
  for (auto& connection : connections_) {
    if (connection->left != 0 && connection->frame.kind == FrameKind::write &&
        connection->frame.key == registration.key && connection->to != nullptr) {
      connection->to = nullptr;
      connection->refusing = connection->frame.number;
      if (std::byte* const bounce = std::exchange(connection->bounce, nullptr)) device_->to_device.give_bounce(bounce);
    }
    for (ServedRead& read : connection->served) read.refused |= read.key == registration.key;
    // Frames that go out already take what they promised along, read before this returns.
    for (std::size_t i = connection->out_head; i < connection->out.size(); ++i) {
      OutgoingFrame& frame = connection->out[i];
      if (frame.key != registration.key || frame.bytes == 0) continue;
      frame.payload = connection->copies.emplace_back(frame.payload, frame.payload + frame.bytes).data();
      frame.key = 0;
    }
  }
  if (device_ != nullptr) wait_for_copies(registration.key);
}

Liveness TcpRail::liveness(RemoteId remote) {
  const TcpLink* const link = links_.find(remote);
  if (link == nullptr) return Liveness::unknown;
  if (link->lost()) return link->refused ? Liveness::gone : Liveness::unknown;
  if (link->connection == nullptr || !link->connection->socket) return Liveness::unknown;
  return answered_lately(link->connection->socket.get()) ? Liveness::alive : Liveness::unknown;
}

std::optional<Delivery> TcpRail::delivery(RemoteId remote) {
  const TcpLink* const link = links_.ready(remote);
  if (link == nullptr) return std::nullopt;
  return delivery_of(link->connection->socket.get());
}

void TcpRail::look_at_own_interface() {
  const auto usable = look_at_interface();
  // New connections are bound by name; the listener is the one socket that stays.
  if (usable && *usable && bound_ && !still_bound(listener_.get(), interface_.device) &&
      !bind_to_device(listener_.get(), interface_.device))
    log_warn(
        in_log(),
        "{} was made anew, and the kernel does not let the listening socket move there ({}): this rail can connect, "
        "but peers cannot connect to it (CAP_NET_RAW lets it move)",
        interface_.device, std::strerror(errno));
}

void TcpRail::look_at_device_account() {
  const auto disagrees = device_account_->add(std::exchange(unaccounted_, 0), connections_.size(), now_ns());
  if (!disagrees) return;
  log_warn(in_log(),
           "of the last {} MB that rails on {} have sent, the kernel says that {} MB left by this NIC. Have routes or "
           "rules changed? `ip route get ADDRESS from {}` shows the way to a peer, `ip -s link` who has the bytes",
           disagrees->ours / 1'000'000, interface_.device, disagrees->kernels / 1'000'000, own_.endpoint.text());
}

std::string TcpRail::describe_error(int error) const {
  switch (error) {
    case kPeerClosed:
      return "the peer closed the connection";
    case kNoSuchRegion:
      return "the target has no such memory: its key was revoked, or the range is outside of it";
    case kBadFrame:
      return "the peer sent a malformed frame";
    case kNotThePeer:
      return "another process listens there, or its job key is another";
    case kOtherDevice:
      return fmt::format("the route leaves by another NIC than {}", interface_.device);
    case kMisrouted:
      return "its process lives, but packets for its rail arrive at another NIC of its host, which answers for the "
             "address: `sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2` there";
    case kGpuFailed:
      return "a GPU did not copy the bytes: it has failed, or the memory was freed (the log has the driver's words)";
    case kTargetGpuFailed:
      return "a GPU of the target did not copy the bytes: it has failed, or the memory was freed (its log has the "
             "driver's words)";
    default:
      return std::strerror(error);
  }
}

}  // namespace tcp

Result<std::unique_ptr<Rail>> open_tcp(const RailOffer& offer, const Settings& settings) {
  const auto* const interface = static_cast<const tcp::Interface*>(offer.driver_data.get());
  if (interface == nullptr) return Error(Status::invalid, "this rail offer does not come from the tcp driver");
  return tcp::TcpRail::open(offer, *interface, settings);
}

}  // namespace railyard::fabric
