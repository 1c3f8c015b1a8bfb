#include "message/rendezvous_inbound.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/entropy.hpp"
#include "bootstrap/address.hpp"

namespace railyard::message {

namespace {

/// While this process makes no progress the system answers for it: as many as it lets wait.
constexpr int kBacklog = 4096;
constexpr int kAcceptsPerPass = 64;
/// How long one that was turned away gets to read why.
constexpr std::int64_t kLingerNs = 2'000'000'000;
constexpr std::string_view kClosed = "the listener was closed";

std::string describe_peer(const sockaddr_storage& name) {
  const auto address = IpAddress::of(reinterpret_cast<const sockaddr&>(name));
  if (!address) return "an unknown address";
  const bool four = name.ss_family == AF_INET;
  return Target{*address}.text(ntohs(four ? reinterpret_cast<const sockaddr_in&>(name).sin_port
                                          : reinterpret_cast<const sockaddr_in6&>(name).sin6_port));
}

}  // namespace

// ---- Listeners ----

Result<Handle> InboundConnections::open_listener(Host& host) {
  if (!listen_socket_) {
    if (auto opened = open_listen_socket(); !opened) return std::move(opened.error());
  }
  ListenerEntry listener{&host};
  const std::uint64_t id = watch_.new_id();
  if (auto filled = fill_random(listener.secret); !filled) {
    if (listeners_.empty()) listen_socket_.reset();
    return std::move(filled.error());
  }
  listeners_.emplace(id, listener);
  return make_handle({listener.secret, id, machine_, port_, addresses_});
}

Result<void> InboundConnections::open_listen_socket() {
  auto ports = PortRange::parse(ports_);
  if (!ports) return std::move(ports.error());
  // A host that is no numeric address stands for every address of this machine, IPv4 and IPv6.
  auto listener = bootstrap::listen_at({bootstrap::Address::Kind::tcp, "*", 0, {}}, kBacklog, *ports);
  if (!listener) return std::move(listener.error());
  addresses_ = choose_addresses(list_addresses(), interfaces_, kMostAddresses);
  if (addresses_.empty()) {
    return Error(Status::not_found,
                 "no network interface of this machine is up: nobody could connect, not even from "
                 "here; bring up at least the loopback interface");
  }
  listen_socket_id_ = watch_.new_id();
  if (!watch_.set(listener->socket.get(), listen_socket_id_, EPOLLIN, EPOLL_CTL_ADD)) {
    return Error(Status::io, fmt::format("cannot watch the listening socket: {}", std::strerror(errno)));
  }
  listen_socket_ = std::move(listener->socket);
  port_ = listener->address.port;
  return {};
}

Host* InboundConnections::close_listener(const Handle& handle) {
  const auto contents = read_handle(handle);
  const auto found = contents ? listeners_.find(contents->listener) : listeners_.end();
  if (found == listeners_.end() || !equal_in_constant_time(found->second.secret, contents->secret)) return nullptr;
  Host* const host = found->second.host;
  listeners_.erase(found);
  std::erase_if(calls_, [&](const HostCall& call) { return call.listener == contents->listener; });
  std::vector<InboundConnection*> theirs;
  for (const auto& [id, inbound] : inbound_) {
    if (inbound->talk.listener() == contents->listener && inbound->standing != Standing::closing)
      theirs.push_back(inbound.get());
  }
  for (InboundConnection* const inbound : theirs) {
    if (inbound->lost) {
      erase(inbound->id);
      continue;
    }
    inbound->talk.refuse(Status::peer_lost, kClosed);
    begin_closing(*inbound);
  }
  // Who still waits to be let in learns it from the system.
  if (listeners_.empty()) listen_socket_.reset();
  return host;
}

// ---- Unauthenticated peers ----

void InboundConnections::accept_some() {
  for (int i = 0; i < kAcceptsPerPass; ++i) {
    const std::int64_t now = watch_.now();
    // Full of newcomers: the next one waits in the system's queue.
    if (unauthenticated_.size() >= kMostUnauthenticated && !make_room(now, kLeastStayNs)) return;
    sockaddr_storage name{};
    socklen_t length = sizeof(name);
    Fd socket(
        ::accept4(listen_socket_.get(), reinterpret_cast<sockaddr*>(&name), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      admit(std::move(socket), describe_peer(name));
      continue;
    }
    const int code = errno;
    if (code == EINTR || code == ECONNABORTED) continue;
    if (code != EMFILE && code != ENFILE && code != ENOBUFS && code != ENOMEM) return;
    if (!make_room(now, 0)) {
      if (complaints_.allow(now)) {
        log_warn("cannot take more connections: {}; raise the limit of open files (ulimit -n)", std::strerror(code));
      }
      return;
    }
  }
}

/// Drops the oldest unauthenticated peer if it has stayed that long.
bool InboundConnections::make_room(std::int64_t now_ns, std::int64_t least_stay_ns) {
  if (unauthenticated_.empty()) return false;
  const InboundConnection& oldest = *inbound_.at(*unauthenticated_.begin());
  if (now_ns - oldest.since_ns < least_stay_ns) return false;
  if (oldest.standing == Standing::unauthenticated) ++counts_.late;
  erase(oldest.id);
  return true;
}

void InboundConnections::admit(Fd socket, const std::string& peer) {
  bootstrap::Nonce nonce;
  if (!fill_random(nonce)) return;
  bootstrap::tune_tcp(socket.get());
  const std::uint64_t id = watch_.new_id();
  auto inbound = std::make_unique<InboundConnection>(id, peer, nonce, watch_.now());
  inbound->line = Line(watch_, std::move(socket), id, false);
  inbound_.emplace(id, std::move(inbound));
  unauthenticated_.insert(id);
  watch_.set_alarm(id, watch_.now() + kUnauthenticatedNs);
}

// ---- Talking to inbound connections ----

bool InboundConnections::serve(std::uint64_t id) {
  if (id == listen_socket_id_) {
    if (listen_socket_) accept_some();
    return true;
  }
  const auto found = inbound_.find(id);
  if (found == inbound_.end()) return false;
  InboundConnection& inbound = *found->second;
  if (!inbound.line.open()) return true;
  if (inbound.standing == Standing::closing) {
    finish_closing(inbound);
  } else {
    listen(inbound);
  }
  return true;
}

void InboundConnections::listen(InboundConnection& inbound) {
  const Line::Read got = inbound.line.read();
  switch (got.state) {
    case Line::Read::State::some:
      inbound.talk.feed(got.bytes);
      return hear(inbound);
    case Line::Read::State::nothing:
      return inbound.line.flush(inbound.talk);
    case Line::Read::State::ended:
    case Line::Read::State::broken:
      return lose(inbound);
  }
}

void InboundConnections::hear(InboundConnection& inbound) {
  const auto find_listener = [this](std::uint64_t id) -> const Secret* {
    const auto found = listeners_.find(id);
    return found == listeners_.end() ? nullptr : &found->second.secret;
  };
  for (;;) {
    switch (inbound.talk.next(find_listener)) {
      case ListenerHandshake::News::nothing:
        return inbound.line.flush(inbound.talk);
      case ListenerHandshake::News::hello:
        unauthenticated_.erase(inbound.id);
        inbound.standing = Standing::waiting;
        watch_.set_alarm(inbound.id, watch_.now() + timeout_ns_);
        call(HostCall::Kind::hello, inbound, inbound.talk.take_setup_message());
        break;
      case ListenerHandshake::News::ready:
        ++counts_.handshakes;
        call(HostCall::Kind::ready, inbound, inbound.talk.take_setup_message());
        return erase(inbound.id);
      case ListenerHandshake::News::fault:
        return turn_away(inbound);
    }
  }
}

void InboundConnections::turn_away(InboundConnection& inbound) {
  count(inbound.talk.fault());
  if (log_enabled(LogLevel::warn) && complaints_.allow(watch_.now())) {
    log_warn("turned {} away: {} ({} more not shown)", inbound.peer, inbound.talk.fault_text(),
             complaints_.take_suppressed());
  }
  if (inbound.standing == Standing::in_call) return lose(inbound);
  if (inbound.standing == Standing::accepted) call(HostCall::Kind::gone, inbound);
  begin_closing(inbound);
}

void InboundConnections::begin_closing(InboundConnection& inbound) {
  inbound.standing = Standing::closing;
  unauthenticated_.insert(inbound.id);
  watch_.set_alarm(inbound.id, watch_.now() + kLingerNs);
  // At least once: the end of what is sent must be seen even where all of it went out already.
  inbound.line.flush(inbound.talk);
  if (inbound.talk.outgoing().empty()) inbound.line.shut_down();
}

/// Everything is said and read, or thrown away: closing earlier would take the reason from the other end again.
void InboundConnections::finish_closing(InboundConnection& inbound) {
  if (!inbound.talk.outgoing().empty()) {
    inbound.line.flush(inbound.talk);
    if (inbound.talk.outgoing().empty()) inbound.line.shut_down();
  }
  const Line::Read::State got = inbound.line.read().state;
  if (got == Line::Read::State::ended || got == Line::Read::State::broken) erase(inbound.id);
}

void InboundConnections::lose(InboundConnection& inbound) {
  switch (inbound.standing) {
    case Standing::in_call:  // `answered` knows whether the host must be told
      inbound.lost = true;
      inbound.line.close();
      return;
    case Standing::accepted:
      call(HostCall::Kind::gone, inbound);
      break;
    case Standing::unauthenticated:
    case Standing::waiting:
    case Standing::closing:
      break;
  }
  erase(inbound.id);
}

void InboundConnections::erase(std::uint64_t id) {
  watch_.set_alarm(id, kNever);
  unauthenticated_.erase(id);
  inbound_.erase(id);
}

// ---- Hosts ----

void InboundConnections::call(HostCall::Kind kind, const InboundConnection& inbound,
                              std::vector<std::byte> setup_message) {
  const auto listener = listeners_.find(inbound.talk.listener());
  if (listener == listeners_.end()) return;
  calls_.push_back({kind, listener->second.host, listener->first, inbound.id, std::move(setup_message)});
}

std::optional<HostCall> InboundConnections::take_call() {
  while (!calls_.empty()) {
    HostCall call = std::move(calls_.front());
    calls_.pop_front();
    if (call.kind != HostCall::Kind::hello) return call;
    // An inbound connection that went away before the host heard of it never was there.
    const auto found = inbound_.find(call.handshake);
    if (found == inbound_.end() || found->second->standing != Standing::waiting) continue;
    found->second->standing = Standing::in_call;
    return call;
  }
  return std::nullopt;
}

void InboundConnections::answered(std::uint64_t handshake, const Result<std::vector<std::byte>>& answer) {
  const auto found = inbound_.find(handshake);
  if (found == inbound_.end() || found->second->standing != Standing::in_call) return;
  InboundConnection& inbound = *found->second;
  if (inbound.lost) {
    if (answer) call(HostCall::Kind::gone, inbound);
    return erase(handshake);
  }
  if (!answer) {
    inbound.talk.refuse(answer.status(), answer.error().message());
    return begin_closing(inbound);
  }
  inbound.standing = Standing::accepted;
  if (answer->size() > kMostSetupMessage) {
    inbound.talk.refuse(Status::out_of_range, fmt::format("its welcome has {} bytes, the longest set-up message {}",
                                                          answer->size(), kMostSetupMessage));
    call(HostCall::Kind::gone, inbound);
    return begin_closing(inbound);
  }
  inbound.talk.answer(*answer);
  inbound.line.flush(inbound.talk);
}

// ---- Time ----

bool InboundConnections::ring(std::uint64_t id) {
  // What has arrived counts, however late this process looks.
  for (int i = 0; i < kLastReads && !watch_.has_alarm(id) && serve(id); ++i) {
  }
  const auto found = inbound_.find(id);
  if (found == inbound_.end() || watch_.has_alarm(id)) return found != inbound_.end();
  InboundConnection& inbound = *found->second;
  switch (inbound.standing) {
    case Standing::unauthenticated:
      ++counts_.late;
      lose(inbound);
      break;
    case Standing::waiting:
    case Standing::accepted:
      inbound.talk.refuse(Status::timeout, "the connector took too long");
      if (inbound.standing == Standing::accepted) call(HostCall::Kind::gone, inbound);
      begin_closing(inbound);
      break;
    case Standing::in_call:
    case Standing::closing:
      lose(inbound);
      break;
  }
  return true;
}

void InboundConnections::count(ListenerHandshake::Fault fault) {
  switch (fault) {
    case ListenerHandshake::Fault::none:
      break;
    case ListenerHandshake::Fault::malformed:
    case ListenerHandshake::Fault::version:
      ++counts_.malformed;
      break;
    case ListenerHandshake::Fault::unknown_listener:
      ++counts_.unknown;
      break;
    case ListenerHandshake::Fault::forged:
      ++counts_.forged;
      break;
  }
}

bool InboundConnections::anything_outgoing() const {
  return std::ranges::any_of(inbound_, [](const auto& entry) { return !entry.second->talk.outgoing().empty(); });
}

}  // namespace railyard::message
