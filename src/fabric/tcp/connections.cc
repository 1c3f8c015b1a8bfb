/// Connections: how they are found to be ready, and how they end.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "fabric/tcp/poll_set.hpp"
#include "fabric/tcp/rail.hpp"

namespace railyard::fabric::tcp {

namespace {

constexpr std::int64_t kLingerFor = 2'000'000'000;
constexpr std::size_t kEpollBatch = 64;

}  // namespace

Connection& TcpRail::add_connection(Fd socket, Connection::Phase phase) {
  Connection& connection = *connections_.emplace_back(std::make_unique<Connection>());
  connection.socket = std::move(socket);
  connection.phase = phase;
  // Edges only: a connection that is read from directly is not reported again and again.
  (void)watch_fd(epoll_.get(), connection.socket.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                 reinterpret_cast<std::uintptr_t>(&connection));
  return connection;
}

void TcpRail::activate(Connection& connection) {
  connection.heat = kHeat;
  connection.unread = true;
  if (connection.active) return;
  connection.active = true;
  active_.push_back(&connection);
}

/// A receive that was half filled serves the next message.
void TcpRail::let_go_of_receive(Connection& connection) {
  if (connection.taking != nullptr && connection.frame.kind == FrameKind::message && connection.left != 0) {
    receives_.push_front(connection.taking);
    ++receive_count_;
  }
  connection.taking = nullptr;
  connection.to = nullptr;
  if (device_ != nullptr) let_go_of_device(connection);
}

void TcpRail::end_connection(Connection& connection, int error) {
  if (connection.phase == Connection::Phase::closed) return;
  if (connection.phase == Connection::Phase::lingering) --lingering_;
  let_go_of_receive(connection);
  connection.phase = Connection::Phase::closed;
  // Closing it ends its events only where nobody else has it: a child that was forked may.
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);
  connection.socket.reset();
  if (connection.blocked) --blocked_;
  connection.blocked = false;
  sweeps_ = true;
  inbound_.left(connection);
  if (TcpLink* const link = std::exchange(connection.link, nullptr)) {
    link->connection = nullptr;
    // A bind that came to nothing is not the end of the link: it connects.
    if (std::exchange(connection.binding, false) && error != EACCES)
      try_again(*link);
    else if (error == ECONNREFUSED || error == kNotThePeer)
      turned_away(*link, error);
    else
      lose(*link, error);
  }
}

void TcpRail::close_in_order(Connection& connection) {
  let_go_of_receive(connection);
  if (connection.blocked) --blocked_;
  connection.blocked = false;
  inbound_.left(connection);
  if (::shutdown(connection.socket.get(), SHUT_WR) != 0) return end_connection(connection, 0);
  connection.phase = Connection::Phase::lingering;
  connection.since = now_ns();
  ++lingering_;
  activate(connection);
}

void TcpRail::sweep() {
  if (lingering_ != 0 && turn_ % 64 == 0) {
    const std::int64_t now = now_ns();
    for (auto& connection : connections_)
      if (connection->phase == Connection::Phase::lingering && now - connection->since > kLingerFor)
        end_connection(*connection, 0);
  }
  if (!std::exchange(sweeps_, false)) return;
  const auto closed = [](const Connection* connection) { return connection->phase == Connection::Phase::closed; };
  std::erase_if(active_, closed);
  std::erase_if(dirty_, closed);
  std::erase_if(owing_, closed);
  std::erase_if(heard_, closed);
  std::erase_if(stalled_, closed);
  if (device_ != nullptr) {
    std::erase_if(device_->fetching, closed);
    std::erase_if(device_->landing, closed);
  }
  std::erase_if(connections_, [&](const auto& connection) { return closed(connection.get()); });
}

[[gnu::hot]] void TcpRail::look_at_epoll() {
  std::array<epoll_event, kEpollBatch> events;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  if (count > 0) epoll_gap_ = 0;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if (event.data.u64 == kAdmissionMark) {
      admission_waits_ = true;
      continue;
    }
    if (event.data.u64 == kInterfaceMark) {
      look_at_own_interface();
      continue;
    }
    auto& connection = *reinterpret_cast<Connection*>(event.data.u64);
    if (connection.phase == Connection::Phase::closed) continue;
    if (connection.phase == Connection::Phase::connecting) connecting_done(connection);
    if ((event.events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) activate(connection);
    if ((event.events & EPOLLOUT) != 0 && connection.blocked) {
      connection.blocked = false;
      --blocked_;
      mark_dirty(connection);
    }
  }
}

}  // namespace railyard::fabric::tcp
