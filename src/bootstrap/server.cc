#include "bootstrap/server.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "bootstrap/job_server.hpp"
#include "rendezvous/epoll_set.hpp"
#include "rendezvous/inbound_sockets.hpp"

namespace railyard::bootstrap {

using rendezvous::EpollSet;

namespace {

constexpr int kBacklog = 1024;
/// How long a server that is told to stop goes on delivering what it owes.
constexpr std::int64_t kDrainNs = 5'000'000'000;

}  // namespace

/// Sockets and the thread around a JobServer. Everything below `job_` belongs to the thread once it runs.
class Server::Loop {
 public:
  Loop(Address address, std::unique_ptr<EpollSet> set, Fd wake, JobServerOptions options)
      : address_(std::move(address)),
        wake_(std::move(wake)),
        set_(std::move(set)),
        wake_id_(set_->new_id()),
        job_alarm_(set_->new_id()),
        job_(std::move(options), clock_),
        sockets_(*set_, job_.acceptor(), fmt::format("the rendezvous at {}", address_.text())) {}
  ~Loop() {
    // Release: pairs with the loop's acquire load; nothing but the flag is passed.
    stop_.store(true, std::memory_order_release);
    wake_up();
    if (thread_.joinable()) thread_.join();
    if (owns_file_ && address_.kind == Address::Kind::unix_path) unlink(address_.path.c_str());
  }

  const Address& address() const { return address_; }

  Result<void> listen(Fd listener) {
    if (!set_->set(wake_.get(), wake_id_, EPOLLIN, EPOLL_CTL_ADD)) {
      return Error(Status::io, fmt::format("cannot serve a rendezvous: {}", std::strerror(errno)));
    }
    return sockets_.listen(std::move(listener));
  }

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
    sockets_.stop_listening();
    set_->abandon();
    wake_.reset();
  }

 private:
  void wake_up() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  }

  void run() {
    std::int64_t stop_by = RankGroup::kNever;
    for (;;) {
      for (const epoll_event& event : set_->poll(wait_ms(stop_by))) handle(event.data.u64);
      take_ended();
      while (const auto alarm = set_->take_alarm(clock_.now())) sockets_.ring(*alarm);
      job_.tick();
      sockets_.settle();
      set_->set_alarm(job_alarm_, job_.deadline());
      if (stop_.load(std::memory_order_acquire)) {
        if (stop_by == RankGroup::kNever) {
          stop_by = clock_.now() + kDrainNs;
          sockets_.stop_listening();
        }
        if (!job_.acceptor().anything_outgoing() || clock_.now() >= stop_by) return;
      }
    }
  }

  /// Alarms wake the set up by themselves.
  int wait_ms(std::int64_t stop_by) const {
    if (stop_by == RankGroup::kNever) return -1;
    return static_cast<int>(std::clamp<std::int64_t>((stop_by - clock_.now() + 999'999) / 1'000'000, 0, 3'600'000));
  }

  void handle(std::uint64_t id) {
    if (id != wake_id_) {
      sockets_.serve(id);
      return;
    }
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof(count));
  }

  void take_ended() {
    std::vector<std::pair<std::int32_t, std::string>> ended;
    {
      const std::lock_guard lock(mutex_);
      ended.swap(ended_);
    }
    for (auto& [rank, how] : ended) job_.process_ended(rank, std::move(how));
  }

  const Address address_;
  Fd wake_;
  const SteadyClock clock_;
  std::atomic<bool> stop_{false};
  bool owns_file_ = true;
  std::mutex mutex_;
  std::vector<std::pair<std::int32_t, std::string>> ended_;  ///< guarded by mutex_

  std::unique_ptr<EpollSet> set_;
  const std::uint64_t wake_id_;
  const std::uint64_t job_alarm_;
  JobServer job_;
  rendezvous::InboundSockets sockets_;
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
  auto listener = rendezvous::listen_at(options.address, kBacklog);
  if (!listener) return std::move(listener.error());
  return open(options, std::move(*listener));
}

Result<std::unique_ptr<Server>> Server::open(const ServerOptions& options, Listener listener) {
  if (auto checked = check_options(options); !checked) return std::move(checked.error());
  static const SteadyClock clock;
  auto set = EpollSet::open(clock);
  if (!set) return std::move(set.error());
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Error(Status::io, fmt::format("cannot serve a rendezvous: {}", std::strerror(errno)));
  JobServerOptions job;
  job.size = options.size;
  job.job_key = options.job_key;
  job.where = listener.address.text();
  job.handshake_timeout_ns = options.handshake_timeout_ns;
  job.most_unauthenticated = options.most_unauthenticated;
  job.wrong_key_ends = options.wrong_key_ends;
  auto loop = std::make_unique<Loop>(listener.address, std::move(*set), std::move(wake), std::move(job));
  if (auto listening = loop->listen(std::move(listener.socket)); !listening) return std::move(listening.error());
  return std::unique_ptr<Server>(new Server(std::move(loop)));
}

Result<void> Server::start() { return loop_->start(); }
const Address& Server::address() const { return loop_->address(); }
void Server::process_ended(std::int32_t rank, std::string how) { loop_->process_ended(rank, std::move(how)); }
void Server::abandon() { loop_->abandon(); }

}  // namespace railyard::bootstrap
