#include "message/rendezvous_line.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "base/entropy.hpp"

namespace railyard::message {

Result<std::unique_ptr<EpollSet>> EpollSet::open(const Clock& clock) {
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return Error(Status::io, fmt::format("cannot watch sockets: {}", std::strerror(errno)));
  std::uint64_t first_id = 0;
  if (auto filled = fill_random(std::as_writable_bytes(std::span(&first_id, 1))); !filled) {
    return std::move(filled.error());
  }
  // The lower half of the range: no counting brings it round to 0.
  return std::unique_ptr<EpollSet>(new EpollSet(clock, std::move(epoll), first_id >> 1U));
}

bool EpollSet::set(int socket, std::uint64_t id, std::uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  return epoll_ctl(epoll_.get(), operation, socket, &event) == 0;
}

std::span<const epoll_event> EpollSet::poll(int timeout_ms) {
  const int count = epoll_wait(epoll_.get(), events_.data(), kMostEvents, timeout_ms);
  return std::span(events_).first(count > 0 ? static_cast<std::size_t>(count) : 0);
}

void EpollSet::set_alarm(std::uint64_t id, std::int64_t due_ns) {
  if (const auto found = due_.find(id); found != due_.end()) {
    alarms_.erase({found->second, id});
    due_.erase(found);
  }
  if (due_ns == kNever) return;
  alarms_.insert({due_ns, id});
  due_.emplace(id, due_ns);
}

std::optional<std::uint64_t> EpollSet::take_alarm(std::int64_t now_ns) {
  if (alarms_.empty() || alarms_.begin()->first > now_ns) return std::nullopt;
  const std::uint64_t id = alarms_.begin()->second;
  set_alarm(id, kNever);
  return id;
}

Line::Line(EpollSet& watch, Fd socket, std::uint64_t id, bool connecting)
    : watch_(&watch), socket_(std::move(socket)), id_(id), writing_(connecting) {
  watch_->set(socket_.get(), id_, connecting ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_ADD);
}

std::optional<int> Line::connected() {
  pollfd ready{socket_.get(), POLLOUT, 0};
  if (::poll(&ready, 1, 0) <= 0) return std::nullopt;
  int code = 0;
  socklen_t length = sizeof(code);
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0) return errno;
  return code;
}

Line::Read Line::read() {
  const auto buffer = watch_->buffer();
  for (;;) {
    const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (count > 0) return {Read::State::some, buffer.first(static_cast<std::size_t>(count))};
    if (count == 0) return {Read::State::ended, {}};
    if (errno == EAGAIN) return {};
    if (errno != EINTR) return {Read::State::broken, {}, errno};
  }
}

void Line::flush(Conversation& talk) {
  while (!talk.outgoing().empty()) {
    const auto bytes = talk.outgoing();
    const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      talk.sent(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      talk.sent(bytes.size());  // nobody will read it
    }
  }
  watch_for_writing(!talk.outgoing().empty());
}

void Line::watch_for_writing(bool wanted) {
  if (wanted == writing_) return;
  writing_ = wanted;
  watch_->set(socket_.get(), id_, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
}

void Line::shut_down() { ::shutdown(socket_.get(), SHUT_WR); }

}  // namespace railyard::message
