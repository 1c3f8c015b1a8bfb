#include "rendezvous/epoll_set.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/entropy.hpp"

namespace railyard::rendezvous {

namespace {

constexpr std::uint64_t kTimerId = 0;  // no socket's
constexpr std::int64_t kSecond = 1'000'000'000;

}  // namespace

Result<std::unique_ptr<EpollSet>> EpollSet::open(const Clock& clock) {
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  Fd timer(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!epoll || !timer) return Error(Status::io, fmt::format("cannot watch sockets: {}", std::strerror(errno)));
  std::uint64_t first_id = 0;
  if (auto filled = fill_random(std::as_writable_bytes(std::span(&first_id, 1))); !filled) {
    return std::move(filled.error());
  }
  // The lower half of the range: no counting brings it round to 0.
  std::unique_ptr<EpollSet> opened(new EpollSet(clock, std::move(epoll), std::move(timer), first_id >> 1U));
  if (!opened->set(opened->timer_.get(), kTimerId, EPOLLIN, EPOLL_CTL_ADD))
    return Error(Status::io, fmt::format("cannot watch a timer: {}", std::strerror(errno)));
  return opened;
}

bool EpollSet::set(int socket, std::uint64_t id, std::uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  return epoll_ctl(epoll_.get(), operation, socket, &event) == 0;
}

std::span<const epoll_event> EpollSet::poll(int timeout_ms) {
  const int count = epoll_wait(epoll_.get(), events_.data(), kMostEvents, timeout_ms);
  const auto events = std::span(events_).first(count > 0 ? static_cast<std::size_t>(count) : 0);
  const auto alarm =
      std::partition(events.begin(), events.end(), [](const epoll_event& event) { return event.data.u64 != kTimerId; });
  if (alarm == events.end()) return events;
  // The alarm itself is taken by the clock. Set anew where the clock is behind, or the alarm has gone.
  std::uint64_t times = 0;
  [[maybe_unused]] const ssize_t bytes = ::read(timer_.get(), &times, sizeof(times));
  timer_due_ = kNever;
  arm_timer();
  return events.first(static_cast<std::size_t>(alarm - events.begin()));
}

void EpollSet::arm_timer() {
  const std::int64_t due = alarms_.empty() ? kNever : alarms_.begin()->first;
  if (due == timer_due_) return;
  timer_due_ = due;
  itimerspec at{};  // all zero: not set
  if (due != kNever) {
    const std::int64_t left = std::max<std::int64_t>(due - now(), 1);
    at.it_value.tv_sec = left / kSecond;
    at.it_value.tv_nsec = left % kSecond;
  }
  ::timerfd_settime(timer_.get(), 0, &at, nullptr);
}

void EpollSet::set_alarm(std::uint64_t id, std::int64_t due_ns) {
  if (const auto found = due_.find(id); found != due_.end()) {
    alarms_.erase({found->second, id});
    due_.erase(found);
  }
  if (due_ns != kNever) {
    alarms_.insert({due_ns, id});
    due_.emplace(id, due_ns);
  }
  arm_timer();
}

std::optional<std::uint64_t> EpollSet::take_alarm(std::int64_t now_ns) {
  if (alarms_.empty() || alarms_.begin()->first > now_ns) return std::nullopt;
  const std::uint64_t id = alarms_.begin()->second;
  set_alarm(id, kNever);
  return id;
}

Socket::Socket(EpollSet& watch, Fd socket, std::uint64_t id, bool connecting)
    : watch_(&watch), socket_(std::move(socket)), id_(id), writing_(connecting) {
  watch_->set(socket_.get(), id_, connecting ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_ADD);
}

std::optional<int> Socket::connected() {
  pollfd ready{socket_.get(), POLLOUT, 0};
  if (::poll(&ready, 1, 0) <= 0) return std::nullopt;
  int code = 0;
  socklen_t length = sizeof(code);
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0) return errno;
  return code;
}

Socket::Read Socket::read() {
  const auto buffer = watch_->buffer();
  for (;;) {
    const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (count > 0) return {Read::State::some, buffer.first(static_cast<std::size_t>(count))};
    if (count == 0) return {Read::State::ended, {}};
    if (errno == EAGAIN) return {};
    if (errno != EINTR) return {Read::State::broken, {}, errno};
  }
}

void Socket::flush(Conversation& conversation) {
  for (Bytes bytes = conversation.outgoing(); !bytes.empty(); bytes = conversation.outgoing()) {
    const int flags = MSG_NOSIGNAL | (conversation.more_outgoing() ? MSG_MORE : 0);
    const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), flags);
    if (count >= 0) {
      conversation.sent(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      conversation.sent(bytes.size());  // nobody will read it
    }
  }
  watch_for_writing(!conversation.outgoing().empty());
}

void Socket::watch_for_writing(bool wanted) {
  if (wanted == writing_) return;
  writing_ = wanted;
  watch_->set(socket_.get(), id_, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
}

void Socket::shut_down() { ::shutdown(socket_.get(), SHUT_WR); }

}  // namespace railyard::rendezvous
