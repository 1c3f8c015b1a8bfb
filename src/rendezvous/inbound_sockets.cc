#include "rendezvous/inbound_sockets.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <utility>

#include "rendezvous/address.hpp"

namespace railyard::rendezvous {

namespace {

/// At most so many newcomers before the others get their turn.
constexpr int kAcceptsPerPass = 64;
/// With no descriptor or slot left for newcomers, how long to wait for one.
constexpr std::int64_t kAcceptPauseNs = 200'000'000;

std::string describe_peer(const sockaddr_storage& name, socklen_t length) {
  if (name.ss_family == AF_UNIX) return "a local process";
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&name), length, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  std::string_view text = host.data();
  // IPv4 as an IPv6 socket shows it.
  constexpr std::string_view kMapped = "::ffff:";
  if (text.starts_with(kMapped)) text.remove_prefix(kMapped.size());
  return text.find(':') == std::string_view::npos ? fmt::format("{}:{}", text, port.data())
                                                  : fmt::format("[{}]:{}", text, port.data());
}

}  // namespace

Result<void> InboundSockets::listen(Fd listener) {
  listener_id_ = set_.new_id();
  pause_id_ = set_.new_id();
  if (tick_id_ == 0) tick_id_ = set_.new_id();
  if (!set_.set(listener.get(), listener_id_, EPOLLIN, EPOLL_CTL_ADD)) {
    return Error(Status::io, fmt::format("cannot watch the listening socket: {}", std::strerror(errno)));
  }
  listener_ = std::move(listener);
  return {};
}

void InboundSockets::stop_listening() {
  listener_.reset();
  set_.set_alarm(pause_id_, kNever);
}

bool InboundSockets::serve(std::uint64_t id) {
  if (id == listener_id_ && id != 0) {
    accept_some();
    return true;
  }
  const auto found = connections_.find(id);
  if (found == connections_.end()) return false;
  flush(id, found->second);
  read_some(id);
  return true;
}

void InboundSockets::accept_some() {
  for (int i = 0; i < kAcceptsPerPass && listener_; ++i) {
    if (!acceptor_.has_room()) return pause_accepting();
    sockaddr_storage name{};
    socklen_t length = sizeof(name);
    Fd socket(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&name), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      const int code = errno;
      if (!acceptor_.drop_unauthenticated()) return run_out(code);
      close_dropped();
      continue;
    }
    tune_tcp(socket.get());
    const ConnectionId id = set_.new_id();
    acceptor_.connected(id, describe_peer(name, length));
    connections_.try_emplace(id).first->second.socket = Socket(set_, std::move(socket), id, false);
    close_dropped();
    // Its hello mostly came with it. Once that is read, the next newcomer does not push it out.
    read_some(id);
  }
}

void InboundSockets::run_out(int code) {
  if (complaints_.allow(set_.now())) {
    log_warn("{} cannot take more connections: {}; raise the limit of open files (ulimit -n)", who_,
             std::strerror(code));
  }
  pause_accepting();
}

void InboundSockets::pause_accepting() {
  set_.set(listener_.get(), listener_id_, 0, EPOLL_CTL_MOD);
  set_.set_alarm(pause_id_, set_.now() + kAcceptPauseNs);
}

void InboundSockets::read_some(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const Socket::Read got = found->second.socket.read();
  switch (got.state) {
    case Socket::Read::State::some:
      acceptor_.received(id, got.bytes);
      return;
    case Socket::Read::State::nothing:
      return;
    case Socket::Read::State::ended:
    case Socket::Read::State::broken:
      connections_.erase(found);
      acceptor_.closed(id, got.state == Socket::Read::State::ended
                               ? "its connection closed"
                               : fmt::format("its connection broke: {}", std::strerror(got.code)));
  }
}

void InboundSockets::flush(ConnectionId id, Connection& connection) {
  Conversation* const conversation = acceptor_.conversation(id);
  if (conversation == nullptr) return;
  connection.socket.flush(*conversation);
  if (conversation->outgoing().empty() && acceptor_.finished(id) && !std::exchange(connection.shut_down, true)) {
    connection.socket.shut_down();
  }
}

void InboundSockets::close_dropped() {
  for (const ConnectionId id : acceptor_.take_dropped()) connections_.erase(id);
}

void InboundSockets::settle() {
  for (const ConnectionId id : acceptor_.take_touched()) {
    if (const auto found = connections_.find(id); found != connections_.end()) flush(id, found->second);
  }
  close_dropped();
  const std::int64_t due = acceptor_.deadline();
  if (due == tick_due_ns_) return;
  tick_due_ns_ = due;
  set_.set_alarm(tick_id_, due);
}

bool InboundSockets::ring(std::uint64_t id) {
  if (id == 0) return false;
  if (id == pause_id_) {
    if (listener_) set_.set(listener_.get(), listener_id_, EPOLLIN, EPOLL_CTL_MOD);
    return true;
  }
  if (id != tick_id_) return false;
  tick_due_ns_ = kNever;
  for (const ConnectionId late : acceptor_.late()) {
    const std::int64_t due = acceptor_.deadline_of(late);
    // Until it has a new deadline, or none, or there is nothing to read.
    for (int i = 0; i < kLastReads && acceptor_.deadline_of(late) == due && connections_.contains(late); ++i) {
      read_some(late);
    }
  }
  acceptor_.tick();
  settle();
  return true;
}

}  // namespace railyard::rendezvous
