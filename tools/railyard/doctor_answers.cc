#include "doctor_answers.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace railyard::tool {

namespace {

/// Anybody can connect: further ones wait in the kernel's queue.
constexpr std::size_t kMostConnections = 256;

struct Inbound {
  Fd socket;
  std::size_t taken = 0;
};

/// False: it is over.
bool take(Inbound& inbound) {
  std::array<char, 16384> room;
  while (inbound.taken < PeerAnswers::kBytes) {
    const ssize_t count =
        ::recv(inbound.socket.get(), room.data(), std::min(room.size(), PeerAnswers::kBytes - inbound.taken), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 && errno == EAGAIN;
    inbound.taken += static_cast<std::size_t>(count);
  }
  const char answer = 1;
  (void)::send(inbound.socket.get(), &answer, 1, MSG_NOSIGNAL);  // nothing was sent before: there is room
  return false;
}

}  // namespace

PeerAnswers::PeerAnswers(std::vector<Fd> listeners) : listeners_(std::move(listeners)) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;  // nobody is answered, and peers say so
  ended_.reset(ends[0]);
  ends_with_.reset(ends[1]);
  thread_ = std::thread([this] { serve(); });
}

PeerAnswers::~PeerAnswers() {
  ends_with_.reset();
  if (thread_.joinable()) thread_.join();
}

void PeerAnswers::serve() {
  std::vector<Inbound> inbound;
  for (;;) {
    std::vector<pollfd> wait{{ended_.get(), POLLIN, 0}};
    for (const Inbound& one : inbound) wait.push_back({one.socket.get(), POLLIN, 0});
    const bool room = inbound.size() < kMostConnections;
    for (const Fd& listener : listeners_) wait.push_back({listener.get(), static_cast<short>(room ? POLLIN : 0), 0});
    if (::poll(wait.data(), wait.size(), -1) < 0 && errno != EINTR) return;
    if (wait[0].revents != 0) return;
    std::erase_if(inbound, [](Inbound& one) { return !take(one); });
    if (!room) continue;
    for (const Fd& listener : listeners_) {
      Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket) inbound.push_back({std::move(socket), 0});
    }
  }
}

}  // namespace railyard::tool
