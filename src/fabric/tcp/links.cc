/// Links: what a tcp rail connects to, from `connect` until a link stands, is lost or is ended.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/entropy.hpp"
#include "base/log.hpp"
#include "fabric/tcp/rail.hpp"
#include "fabric/tcp/socket.hpp"

namespace railyard::fabric::tcp {

namespace {

constexpr std::int64_t kGiveUpAfter = 10'000'000'000;
constexpr std::int64_t kFirstRetry = 500'000;
constexpr std::int64_t kMostRetry = 50'000'000;
constexpr unsigned kMostCrossings = 8;
/// The kernel repeats a lost SYN after one, two, four seconds: a path that comes back should not wait for that.
constexpr std::int64_t kReconnectAfter = 300'000'000;
constexpr std::int64_t kMostReconnect = 2'000'000'000;
/// A connection that does not answer a bind for so long may hang: the link gets one of its own.
constexpr std::int64_t kBindPatience = 1'000'000'000;

}  // namespace

Result<RemoteId> TcpRail::connect(std::span<const std::byte> address, LinkTag tag) {
  if (auto running = refuse_if_stopped(); !running) return std::move(running.error());
  auto peer = TcpRailAddress::parse(address, name_);
  if (!peer) return std::move(peer.error());
  if (peer->endpoint.family() != own_.endpoint.family())
    return Error(Status::invalid, name_ + ": a peer's rail has an address of the other IP version");
  peer->endpoint.reach_from(interface_.address);
  TcpLink& link = links_.take(tag);
  // A rail that connects to itself has no two directions to share.
  if (peer->name == own_.name) link.tag.facing = {};
  link.peer = *peer;
  link.give_up_at = now_ns() + kGiveUpAfter;
  attempting_.push_back(&link);
  begin(link);
  return link.remote;
}

void TcpRail::begin(TcpLink& link) {
  link.retry_at = 0;
  if (!bind_to_facing(link)) start_connecting(link);
}

bool TcpRail::bind_to_facing(TcpLink& link) {
  if (!link.facing() || link.crossings >= kMostCrossings) return false;
  Connection* const connection = inbound_.find(link.tag.facing, [&](const Connection& one) {
    return one.standing() && one.link == nullptr && one.peer == link.peer.name;
  });
  if (connection == nullptr) return false;
  connection->link = &link;
  connection->binding = true;
  connection->sends_tag = true;
  connection->since = now_ns();
  pack_tag(link.tag, connection->tag_bytes);
  link.connection = connection;
  mark_dirty(*connection);
  return true;
}

/// Where the kernel cannot be told which NIC to use it is asked which one it will use: a source address chooses none.
bool TcpRail::leaves_by_own_device(const Endpoint& target) {
  if (interface_.loopback || bound_) return true;
  const auto device = device_of_route(own_.endpoint, target);
  if (!device || *device == interface_.device || *device == "lo") return true;
  static LogLimit limit;
  if (limit.allow(now_ns()))
    log_warn(in_log(),
             "bytes to {} would leave by {}, so this pair of NICs is not used. Give each NIC a subnet of its own, or "
             "a routing table of its own (`ip rule add from {} table N`), or let sockets be bound to a device "
             "(CAP_NET_RAW)",
             target.text(), *device, own_.endpoint.text());
  return false;
}

/// What goes to an address of this host takes the loopback device, whatever the socket is bound to.
bool TcpRail::leaves_host(int socket) const {
  if (interface_.loopback) return false;
  Endpoint peer;
  peer.length = sizeof peer.storage;
  if (::getpeername(socket, peer.get(), &peer.length) != 0) return false;
  // Without the device that the socket is bound to, the kernel may name another one; loopback it names either way.
  const auto device = device_of_route(own_.endpoint, peer);
  return device && *device != "lo";
}

void TcpRail::log_connection(int socket) const {
  if (!log_enabled(LogLevel::debug)) return;
  Endpoint own;
  Endpoint peer;
  own.length = peer.length = sizeof own.storage;
  if (::getsockname(socket, own.get(), &own.length) != 0 || ::getpeername(socket, peer.get(), &peer.length) != 0)
    return;
  log_debug(in_log(), "a connection stands: {} to {}", own.text_with_port(), peer.text_with_port());
}

void TcpRail::start_connecting(TcpLink& link) {
  ++link.attempts;
  if (!leaves_by_own_device(link.peer.endpoint)) return lose(link, kOtherDevice);
  Fd socket = open_socket(link.peer.endpoint);
  if (!socket) return lose(link, errno);
  if (bound_ && !bind_to_device(socket.get(), interface_.device)) return lose(link, errno);
  Endpoint source = interface_.address;  // port 0: the kernel's choice
  if (::bind(socket.get(), source.get(), source.length) != 0) return lose(link, errno);
  tune(socket.get(), socket_options_, link.tag.traffic_class);
  const int code = ::connect(socket.get(), link.peer.endpoint.get(), link.peer.endpoint.length);
  if (code != 0 && errno == ECONNREFUSED) return turned_away(link, errno);
  if (code != 0 && errno != EINPROGRESS) return lose(link, errno);
  Connection& connection = add_connection(std::move(socket), Connection::Phase::connecting);
  connection.peer = link.peer.name;
  connection.link = &link;
  connection.since = now_ns();
  link.connection = &connection;
}

/// The kernel has an answer: we greet.
void TcpRail::connecting_done(Connection& connection) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(connection.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  TcpLink& link = *connection.link;
  if (error != 0) return end_connection(connection, error);
  Endpoint peer;
  peer.length = sizeof peer.storage;
  if (::getpeername(connection.socket.get(), peer.get(), &peer.length) != 0) return;  // not yet
  Hello& hello = connection.transcript.hello;
  hello.from = own_.name;
  hello.tag = link.tag;
  hello.insists = link.crossings >= kMostCrossings;
  if (!fill_random(hello.nonce)) return end_connection(connection, EIO);
  const auto bytes = hello.pack(admission_key(link.peer.secret, job_key_));
  connection.phase = Connection::Phase::greeted;
  if (::send(connection.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
    try_again(link);
}

void TcpRail::read_handshake(Connection& connection) {
  TcpLink& link = *connection.link;
  for (;;) {
    // Never a byte more than the message that is due: frames may follow it.
    std::size_t wanted = kPrefixBytes;
    const bool verdict =
        connection.head_have >= kPrefixBytes && is_verdict(std::span(connection.head).first<kPrefixBytes>());
    if (connection.head_have >= kPrefixBytes) wanted = verdict ? kVerdictBytes : kChallengeBytes;
    if (connection.head_have >= kPrefixBytes && connection.head_have == wanted) {
      connection.head_have = 0;
      if (verdict) return take_verdict(connection);
      const auto nonce = parse_challenge(std::span(connection.head).first<kChallengeBytes>());
      if (!nonce || connection.phase != Connection::Phase::greeted) return end_connection(connection, kNotThePeer);
      connection.transcript.challenge = *nonce;
      const auto proof = connection.transcript.proof(admission_key(link.peer.secret, job_key_));
      connection.phase = Connection::Phase::proving;
      if (::send(connection.socket.get(), proof.data(), proof.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(proof.size()))
        return try_again(link);
      continue;
    }
    const ssize_t got = ::recv(connection.socket.get(), connection.head.data() + connection.head_have,
                               wanted - connection.head_have, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    // The listener had no time for us, or its process is gone: the next attempt finds out.
    if (got <= 0) return try_again(link);
    connection.head_have += static_cast<std::size_t>(got);
  }
}

void TcpRail::take_verdict(Connection& connection) {
  TcpLink& link = *connection.link;
  const auto received = parse_verdict(std::span(connection.head).first<kVerdictBytes>(), connection.transcript,
                                      admission_key(link.peer.secret, job_key_));
  // Whoever listens there now does not know the rail's secret: the process that made it is gone.
  if (!received || !received->authentic) return end_connection(connection, kNotThePeer);
  switch (received->verdict) {
    case Verdict::accepted:
      connection.phase = Connection::Phase::standing;
      connection.head_have = 0;
      return link_stands(link, connection);
    case Verdict::crossed:
      ++link.crossings;
      return try_again(link);
    case Verdict::misrouted: {
      static LogLimit limit(1, 60'000'000'000);
      if (limit.allow(now_ns()))
        log_warn(in_log(), "no link to {} comes about: {}", link.peer.endpoint.text(), describe_error(kMisrouted));
      return end_connection(connection, kMisrouted);
    }
    default:
      return end_connection(connection, EACCES);
  }
}

void TcpRail::link_stands(TcpLink& link, Connection& connection) {
  connection.link = &link;
  link.connection = &connection;
  links_.stands(link);
  connection.leaves_host = leaves_host(connection.socket.get());
  log_connection(connection.socket.get());
  refusals_.stood(link.peer.name);
  std::erase(attempting_, &link);
  activate(connection);
}

/// The attempt that is under way is over; a connection that carries the peer's link stays.
void TcpRail::leave_connection(TcpLink& link) {
  Connection* const connection = std::exchange(link.connection, nullptr);
  if (connection == nullptr) return;
  connection->link = nullptr;
  connection->binding = connection->sends_tag = false;
  if (!connection->inbound) end_connection(*connection, 0);
}

void TcpRail::try_again(TcpLink& link, std::int64_t least_pause) {
  leave_connection(link);
  if (least_pause == 0) link.refusals = 0;
  const unsigned doublings = std::min(std::max(link.attempts, 1U) - 1, 10U);
  link.retry_at = now_ns() + std::max(least_pause, std::min(kFirstRetry << doublings, kMostRetry));
}

void TcpRail::look_at_attempts() {
  const std::int64_t now = now_ns();
  for (std::size_t i = 0; i < attempting_.size();) {
    TcpLink& link = *attempting_[i];
    const std::size_t before = attempting_.size();
    if (now >= link.give_up_at) {
      leave_connection(link);
      lose(link, ETIMEDOUT);
    } else if (link.connection != nullptr && link.connection->binding && now - link.connection->since > kBindPatience) {
      link.crossings = kMostCrossings;
      end_connection(*link.connection, ETIMEDOUT);
    } else if (link.connection != nullptr && link.connection->phase == Connection::Phase::connecting &&
               now - link.connection->since > std::min(kReconnectAfter * link.attempts, kMostReconnect)) {
      try_again(link);
    } else if (link.retry_at != 0 && now >= link.retry_at) {
      begin(link);
    }
    if (attempting_.size() == before) ++i;
  }
}

/// A process that lives answers at its port whichever NIC a packet arrives at, so a refusal says that it is gone, if it
/// is its machine that refuses. That is known where a connection has led to it: else a packet filter or another machine
/// may be what answers.
void TcpRail::turned_away(TcpLink& link, int error) {
  if (!link.connecting() || ++link.refusals >= kRefusalsToBelieve) return lose(link, error);
  try_again(link, kRefusalPause);
}

void TcpRail::lose(TcpLink& link, int error) {
  std::erase(attempting_, &link);
  const bool nobody = error == ECONNREFUSED || error == kNotThePeer;
  const bool gone = nobody && link.refusals >= kRefusalsToBelieve && refusals_.reached(link.peer.name);
  links_.lose(link, {.error = error, .refused = gone, .unverified = nobody && !gone, .unwanted = error == EACCES});
}

void TcpRail::return_contexts(TcpLink& link) {
  if (device_ != nullptr) let_go_of_fetches(link.fetches);
  while (PostContext* const context = link.in_flight.take())
    if (device_ == nullptr || !ends_after_copies(context)) pending_.push_failed(context, ECANCELED);
}

void TcpRail::disconnect(RemoteId remote) {
  TcpLink* const link = links_.find(remote);
  if (link == nullptr) return;
  std::erase(attempting_, link);
  if (Connection* const connection = std::exchange(link->connection, nullptr)) {
    const bool quiet = link->messages_out == 0 && link->data_out == 0;
    connection->link = nullptr;
    connection->binding = false;
    if (std::exchange(connection->sends_tag, false)) {
      // The peer has not heard of it.
    } else if (connection->standing() && connection->inbound && quiet) {
      // The peer's link goes on.
      Frame unbind;
      unbind.kind = FrameKind::unbind;
      connection->control.push_back(unbind);
      mark_dirty(*connection);
    } else if (connection->standing()) {
      close_in_order(*connection);
    } else {
      end_connection(*connection, 0);
    }
  }
  if (!stopped_) return_contexts(*link);
  links_.release(*link);
}

}  // namespace railyard::fabric::tcp
