#include "waiting.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace railyard::provider {

int Waiting::open(fi_wait_obj kind) {
  kind_ = kind;
  if (kind == FI_WAIT_NONE || kind == FI_WAIT_YIELD) return 0;
  if (!sleeps()) return -FI_ENOSYS;
  together_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  own_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!together_ || !own_) return -FI_EMFILE;
  add(own_.get());
  return 0;
}

void Waiting::add(int bell) {
  if (!together_ || bell < 0) return;
  epoll_event event{};
  event.events = EPOLLIN;
  // One endpoint may be bound for sending and for receiving: the second time is no error.
  ::epoll_ctl(together_.get(), EPOLL_CTL_ADD, bell, &event);
}
void Waiting::remove(int bell) {
  if (together_ && bell >= 0) ::epoll_ctl(together_.get(), EPOLL_CTL_DEL, bell, nullptr);
}

void Waiting::ring() {
  if (own_) ::eventfd_write(own_.get(), 1);
}
void Waiting::clear() {
  eventfd_t count = 0;
  if (own_) ::eventfd_read(own_.get(), &count);
}

int Waiting::control(int command, void* argument) const {
  if (command == FI_GETWAIT && kind_ == FI_WAIT_FD) {
    *static_cast<int*>(argument) = together_.get();
    return 0;
  }
  if (command == FI_GETWAITOBJ) {
    *static_cast<fi_wait_obj*>(argument) = kind_;
    return 0;
  }
  return -FI_ENOSYS;
}

void Waiting::sleep(std::chrono::milliseconds longest) const {
  pollfd wait{.fd = together_.get(), .events = POLLIN, .revents = 0};
  ::poll(&wait, 1, static_cast<int>(longest.count()));
}

Until::Until(int milliseconds)
    : forever_(milliseconds < 0), end_(std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds)) {}

bool Until::over() const { return !forever_ && std::chrono::steady_clock::now() >= end_; }

std::chrono::milliseconds Until::left(std::chrono::milliseconds longest) const {
  if (forever_) return longest;
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now());
  return std::clamp(rest, std::chrono::milliseconds(0), longest);
}

}  // namespace railyard::provider
