#include "fabric/verbs/liveness_port.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.hpp"
#include "base/clock.hpp"
#include "base/entropy.hpp"
#include "fabric/refusals.hpp"
#include "fabric/tcp_liveness.hpp"
#include "fabric/verbs/port.hpp"

namespace railyard::fabric::verbs {

namespace {

/// A nonce that has not come by then does not come.
constexpr std::int64_t kNonceTime = 2'000'000'000;
/// All of a job may connect while its process is stopped, and the kernel keeps no more than this (net.core.somaxconn,
/// if that is less).
constexpr int kBacklog = 4096;

socklen_t fill_in(sockaddr_storage& address, const LivenessEndpoint& endpoint) {
  address = {};
  if (const std::uint32_t ipv4 = ipv4_of(endpoint.ip); ipv4 != 0) {
    auto& four = reinterpret_cast<sockaddr_in&>(address);
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = ipv4;
    four.sin_port = htons(endpoint.port);
    return sizeof four;
  }
  auto& six = reinterpret_cast<sockaddr_in6&>(address);
  six.sin6_family = AF_INET6;
  std::memcpy(&six.sin6_addr, endpoint.ip.raw, sizeof six.sin6_addr);
  six.sin6_port = htons(endpoint.port);
  six.sin6_scope_id = is_link_local(endpoint.ip) ? endpoint.interface : 0;
  return sizeof six;
}

Fd open_socket(sa_family_t family) { return Fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

/// At every address of the host, of both versions.
Fd open_for_all() {
  Fd socket = open_socket(AF_INET6);
  const int off = 0;
  if (socket) (void)::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  return socket;
}

/// Where IPv6 is turned off.
sockaddr_storage every_ipv4() {
  sockaddr_storage address{};
  address.ss_family = AF_INET;
  return address;
}

Digest proof_of(const Secret& key, std::span<const std::byte> nonce) {
  ByteWriter writer;
  writer.text("railyard liveness");  // no CM message begins like that
  writer.raw(nonce);
  return hmac_sha256(key, writer.bytes());
}

}  // namespace

Result<LivenessPort> LivenessPort::open(const LivenessEndpoint& at, const PortRange& ports, const Secret& key) {
  sockaddr_storage address{};
  const socklen_t length = fill_in(address, at);
  const sa_family_t family = address.ss_family;
  auto socket = is_zero(at.ip)
                    ? listen_within(ports, address, length, kBacklog, open_for_all)
                    : listen_within(ports, address, length, kBacklog, [family] { return open_socket(family); });
  if (!socket && is_zero(at.ip)) {
    address = every_ipv4();
    socket = listen_within(ports, address, sizeof(sockaddr_in), kBacklog, [] { return open_socket(AF_INET); });
  }
  if (!socket) return std::move(socket.error());
  LivenessPort made;
  made.socket_ = std::move(*socket);
  made.port_ = ntohs(address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                                  : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  made.key_ = key;
  return made;
}

bool LivenessPort::answer(Asked& asked) const {
  const auto rest = std::span(asked.nonce).subspan(asked.got);
  const ssize_t got = ::recv(asked.socket.get(), rest.data(), rest.size(), MSG_DONTWAIT);
  if (got <= 0) return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  asked.got += static_cast<std::size_t>(got);
  if (asked.got < asked.nonce.size()) return false;
  const Digest proof = proof_of(key_, asked.nonce);
  (void)::send(asked.socket.get(), proof.data(), proof.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return true;
}

void LivenessPort::sweep() {
  if (!socket_) return;
  const std::int64_t now = SteadyClock().now();
  std::erase_if(waiting_, [&](Asked& asked) { return now >= asked.until || answer(asked); });
  for (int i = 0; i < kMostPerSweep; ++i) {
    Asked asked;
    asked.socket = Fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!asked.socket) return;
    if (answer(asked)) continue;
    if (waiting_.size() == kMostWaiting) waiting_.erase(waiting_.begin());
    asked.until = now + kNonceTime;
    waiting_.push_back(std::move(asked));
  }
}

LivenessProbe::LivenessProbe(const LivenessEndpoint& there, const std::optional<Secret>& key)
    : there_(there), key_(key) {
  if (there.port == 0) return;
  if (!fill_random(nonce_)) key_.reset();
  connect();
}

void LivenessProbe::connect() {
  again_at_ = 0;
  stands_ = false;
  got_ = 0;
  sockaddr_storage address{};
  const socklen_t length = fill_in(address, there_);
  socket_ = open_socket(address.ss_family);
  if (!socket_ || ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) return;
  if (errno == ECONNREFUSED)
    note_refusal();
  else if (errno != EINPROGRESS)
    socket_.reset();  // no way there
}

void LivenessProbe::note_refusal() {
  socket_.reset();
  if (++refusals_ < kRefusalsToBelieve) again_at_ = SteadyClock().now() + kRefusalPause;
}

void LivenessProbe::try_again() {
  if (again_at_ != 0 && SteadyClock().now() >= again_at_) connect();
}

bool LivenessProbe::look() {
  pollfd one{socket_.get(), POLLOUT, 0};
  if (::poll(&one, 1, 0) <= 0) return false;
  int error = 0;
  socklen_t bytes = sizeof error;
  (void)::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error == ECONNREFUSED)
    note_refusal();
  else if (error != 0)
    socket_.reset();
  return error == 0;
}

void LivenessProbe::ask() {
  stands_ = true;
  if (!key_) refusals_ = 0;
  keep_asking(socket_.get());
  (void)::send(socket_.get(), nonce_.data(), nonce_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

Liveness LivenessProbe::verdict() const { return refusals_ >= kRefusalsToBelieve ? Liveness::gone : Liveness::unknown; }

Liveness LivenessProbe::take(std::size_t got) {
  got_ += got;
  if (got == 0) {  // let go of over there, by whomever
    socket_.reset();
    return Liveness::unknown;
  }
  if (got_ < answer_.size()) return Liveness::alive;
  proven_ = equal_in_constant_time(answer_, proof_of(*key_, nonce_));
  if (!proven_) {
    note_refusal();
    return verdict();
  }
  refusals_ = 0;
  socket_.reset();
  return Liveness::alive;
}

Liveness LivenessProbe::liveness() {
  try_again();
  if (!socket_) return verdict();
  if (!stands_) {
    if (!look()) return verdict();
    ask();
    return Liveness::alive;
  }
  const auto rest = std::span(answer_).subspan(got_);
  const ssize_t got = ::recv(socket_.get(), rest.data(), rest.size(), MSG_DONTWAIT);
  if (got >= 0 && key_) return take(static_cast<std::size_t>(got));
  if (got >= 0) {
    socket_.reset();  // let go of over there, which takes a living process
    return Liveness::alive;
  }
  // A connection that its peer's end has reset says nothing for sure: the next one does.
  if (errno != EAGAIN && errno != EWOULDBLOCK) {
    socket_.reset();
    return Liveness::unknown;
  }
  return liveness_of(socket_.get());
}

bool LivenessProbe::refused() {
  try_again();
  if (socket_ && look()) socket_.reset();  // somebody is there
  return refusals_ >= kRefusalsToBelieve;
}

}  // namespace railyard::fabric::verbs
