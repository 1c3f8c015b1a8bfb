#include "bootstrap/server.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <netdb.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "bootstrap/server_core.hpp"

namespace railyard::bootstrap {

namespace {

constexpr int kBacklog = 1024;
/// How long a server that is told to stop goes on delivering what it owes.
constexpr std::int64_t kDrainNs = 5'000'000'000;
/// At most so much work for one connection or for newcomers before the others get their turn.
constexpr std::size_t kReadBytes = 64 * 1024;
constexpr int kAcceptsPerPass = 64;
/// With no descriptor or slot left for newcomers, how long to wait for one.
constexpr std::int64_t kAcceptPauseNs = 200'000'000;

// Marks in epoll_data, beyond any connection's id.
constexpr std::uint64_t kListenerMark = UINT64_MAX;
constexpr std::uint64_t kWakeMark = UINT64_MAX - 1;

std::string describe_peer(const sockaddr_storage& name, socklen_t length) {
  if (name.ss_family == AF_UNIX) return "a local process";
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&name), length, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  return fmt::format("{}:{}", host.data(), port.data());
}

}  // namespace

/// Sockets and the thread around a ServerCore. Everything below `core_` belongs to the thread once it runs.
class Server::Loop {
 public:
  Loop(Listener listener, Fd epoll, Fd wake, ServerCoreOptions options)
      : address_(listener.address),
        epoll_(std::move(epoll)),
        wake_(std::move(wake)),
        core_(std::move(options)),
        listener_(std::move(listener.socket)) {
    watch(listener_.get(), EPOLLIN, kListenerMark, EPOLL_CTL_ADD);
    watch(wake_.get(), EPOLLIN, kWakeMark, EPOLL_CTL_ADD);
  }
  ~Loop() {
    // Release: pairs with the loop's acquire load; nothing but the flag is passed.
    stop_.store(true, std::memory_order_release);
    wake_up();
    if (thread_.joinable()) thread_.join();
    if (owns_file_ && address_.kind == Address::Kind::unix_path) unlink(address_.path.c_str());
  }

  const Address& address() const { return address_; }

  Result<void> start() {
    // The application's signals are not for this thread.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      return Error(Status::io, fmt::format("cannot start the rendezvous's thread: {}", error.what()));
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return {};
  }

  void process_ended(std::int32_t rank, std::string how) {
    {
      const std::lock_guard lock(mutex_);
      ended_.emplace_back(rank, std::move(how));
    }
    wake_up();
  }

  void abandon() {
    owns_file_ = false;
    listener_.reset();
    epoll_.reset();
    wake_.reset();
  }

 private:
  struct Connection {
    Fd socket;
    bool wants_write = false;
    bool shut_down = false;
  };

  void watch(int fd, std::uint32_t events, std::uint64_t mark, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = mark;
    epoll_ctl(epoll_.get(), operation, fd, &event);
  }

  void wake_up() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  }

  void run() {
    std::array<epoll_event, 128> events;
    std::int64_t stop_by = RankGroup::kNever;
    for (;;) {
      const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms(stop_by));
      for (int i = 0; i < count; ++i) handle(events[static_cast<std::size_t>(i)]);
      take_ended();
      core_.tick(clock_.now());
      resume_accepting();
      settle();
      if (stop_.load(std::memory_order_acquire)) {
        if (stop_by == RankGroup::kNever) {
          stop_by = clock_.now() + kDrainNs;
          listener_.reset();
        }
        if (!core_.anything_outgoing() || clock_.now() >= stop_by) return;
      }
    }
  }

  int wait_ms(std::int64_t stop_by) const {
    std::int64_t until = std::min(core_.deadline(), stop_by);
    if (accept_paused_until_ != 0) until = std::min(until, accept_paused_until_);
    if (until == RankGroup::kNever) return -1;
    // Rounded up: waking a little early would spin.
    return static_cast<int>(std::clamp<std::int64_t>((until - clock_.now() + 999'999) / 1'000'000, 0, 3'600'000));
  }

  void handle(const epoll_event& event) {
    if (event.data.u64 == kListenerMark) return accept_some();
    if (event.data.u64 == kWakeMark) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof(count));
      return;
    }
    const ConnectionId id = event.data.u64;
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    if ((event.events & EPOLLOUT) != 0) flush(id, found->second);
    if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read_some(id);
  }

  void accept_some() {
    for (int i = 0; i < kAcceptsPerPass && listener_; ++i) {
      if (!core_.has_room(clock_.now())) return pause_accepting();
      sockaddr_storage name{};
      socklen_t length = sizeof(name);
      Fd socket(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&name), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
        const int code = errno;
        if (!core_.drop_unauthenticated()) return run_out(code);
        close_dropped();
        continue;
      }
      tune_tcp(socket.get());
      const ConnectionId id = core_.connected(describe_peer(name, length), clock_.now());
      watch(socket.get(), EPOLLIN, id, EPOLL_CTL_ADD);
      connections_.emplace(id, Connection{std::move(socket)});
      close_dropped();
      // Its hello mostly came with it. Once that is read, the next newcomer does not push it out.
      read_some(id);
    }
  }

  void run_out(int code) {
    if (complaints_.allow(clock_.now())) {
      log_warn("the rendezvous at {} cannot take more connections: {}; raise the limit of open files (ulimit -n)",
               address_.text(), std::strerror(code));
    }
    pause_accepting();
  }

  void pause_accepting() {
    watch(listener_.get(), 0, kListenerMark, EPOLL_CTL_MOD);
    accept_paused_until_ = clock_.now() + kAcceptPauseNs;
  }

  void resume_accepting() {
    if (accept_paused_until_ == 0 || clock_.now() < accept_paused_until_) return;
    accept_paused_until_ = 0;
    if (listener_) watch(listener_.get(), EPOLLIN, kListenerMark, EPOLL_CTL_MOD);
  }

  void read_some(ConnectionId id) {
    const ssize_t count = ::recv(connections_.at(id).socket.get(), buffer_.data(), buffer_.size(), 0);
    if (count > 0) {
      core_.received(id, std::span(buffer_).first(static_cast<std::size_t>(count)), clock_.now());
    } else if (count == 0) {
      close(id, "its connection closed");
    } else if (errno != EAGAIN && errno != EINTR) {
      close(id, fmt::format("its connection broke: {}", std::strerror(errno)));
    }
  }

  void close(ConnectionId id, std::string_view why) {
    connections_.erase(id);
    core_.closed(id, why);
  }

  void flush(ConnectionId id, Connection& connection) {
    for (auto bytes = core_.outgoing(id); !bytes.empty(); bytes = core_.outgoing(id)) {
      const ssize_t count = ::send(connection.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno != EAGAIN) {
        // What broke shows in the next read, which closes it; nothing more can be sent meanwhile.
        discard(id);
        break;
      }
      if (count < 0) break;
      core_.sent(id, static_cast<std::size_t>(count));
    }
    const bool wants_write = !core_.outgoing(id).empty();
    if (wants_write != connection.wants_write) {
      connection.wants_write = wants_write;
      watch(connection.socket.get(), wants_write ? EPOLLIN | EPOLLOUT : EPOLLIN, id, EPOLL_CTL_MOD);
    }
    if (!wants_write && core_.finished(id) && !std::exchange(connection.shut_down, true)) {
      shutdown(connection.socket.get(), SHUT_WR);
    }
  }

  void discard(ConnectionId id) {
    for (auto bytes = core_.outgoing(id); !bytes.empty(); bytes = core_.outgoing(id)) core_.sent(id, bytes.size());
  }

  void take_ended() {
    std::vector<std::pair<std::int32_t, std::string>> ended;
    {
      const std::lock_guard lock(mutex_);
      ended.swap(ended_);
    }
    for (auto& [rank, how] : ended) core_.process_ended(rank, std::move(how));
  }

  /// Sends what came up in this pass and closes what the core gave up.
  void settle() {
    for (const ConnectionId id : core_.take_touched()) {
      if (const auto found = connections_.find(id); found != connections_.end()) flush(id, found->second);
    }
    close_dropped();
  }

  void close_dropped() {
    for (const ConnectionId id : core_.take_dropped()) connections_.erase(id);
  }

  const Address address_;
  Fd epoll_;
  Fd wake_;
  const SteadyClock clock_;
  std::atomic<bool> stop_{false};
  bool owns_file_ = true;
  std::mutex mutex_;
  std::vector<std::pair<std::int32_t, std::string>> ended_;  ///< guarded by mutex_

  ServerCore core_;
  Fd listener_;
  std::map<ConnectionId, Connection> connections_;
  std::array<std::byte, kReadBytes> buffer_;
  std::int64_t accept_paused_until_ = 0;
  LogLimit complaints_;
  std::thread thread_;
};

Server::Server(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Server::~Server() = default;

namespace {

Result<void> check_options(const ServerOptions& options) {
  if (options.size < 1 || options.size > kMostRanks) {
    return Error(Status::out_of_range, fmt::format("a job has 1 to {} ranks, not {}", kMostRanks, options.size));
  }
  if (options.job_key.empty()) {
    return Error(Status::invalid, "no job key: set RAILYARD_JOB_KEY to the same secret on every rank");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Server>> Server::open(const ServerOptions& options) {
  if (auto checked = check_options(options); !checked) return std::move(checked.error());
  auto listener = listen_at(options.address, kBacklog);
  if (!listener) return std::move(listener.error());
  return open(options, std::move(*listener));
}

Result<std::unique_ptr<Server>> Server::open(const ServerOptions& options, Listener listener) {
  if (auto checked = check_options(options); !checked) return std::move(checked.error());
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll || !wake) return Error(Status::io, fmt::format("cannot serve a rendezvous: {}", std::strerror(errno)));
  ServerCoreOptions core;
  core.size = options.size;
  core.job_key = options.job_key;
  core.where = listener.address.text();
  core.handshake_timeout_ns = options.handshake_timeout_ns;
  core.most_unauthenticated = options.most_unauthenticated;
  core.wrong_key_ends = options.wrong_key_ends;
  return std::unique_ptr<Server>(
      new Server(std::make_unique<Loop>(std::move(listener), std::move(epoll), std::move(wake), std::move(core))));
}

Result<void> Server::start() { return loop_->start(); }
const Address& Server::address() const { return loop_->address(); }
void Server::process_ended(std::int32_t rank, std::string how) { loop_->process_ended(rank, std::move(how)); }
void Server::abandon() { loop_->abandon(); }

}  // namespace railyard::bootstrap
