/// The proxy's rings and threads. Each ring belongs to one thread, which alone takes its commands and publishes what
/// became of them.
///
/// After an error nothing is issued any more: what kernels post is taken and dropped, so that no signal follows a put
/// that failed. `completed` stops at the first command that did not complete; waits see the error word and return.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/issue.hpp"
#include "device/memory.hpp"
#include "railyard/device.hpp"

namespace railyard {

class DeviceProxy::State {
 public:
  State(Window& window, const DeviceOptions& options, device_detail::SharedMemory memory);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void start();
  Result<void> close(Deadline deadline);
  device::Window handle() const { return device::Window(memory_.handle()); }
  Result<void> status() const;
  void resume();
  std::uint64_t commands() const;
  void wake();

  /// For tests: the threads live and do nothing.
  void wedge(bool wedged) { wedged_.store(wedged, std::memory_order_release); }
  /// For tests and tools: one pass over all rings, by the caller. Only before `start`.
  bool pass_all();

 private:
  using Command = device_detail::Command;
  using Word = device_detail::Word;
  /// Commands taken from one ring at a time, before the next ring's turn.
  static constexpr std::uint32_t kBatch = 16;
  /// Commands of one ring that are under way; more stay in the ring.
  static constexpr std::uint32_t kMostPending = 1024;
  /// Operations under way to one rank from one thread. Less than a flow takes (transport/submit.cc), so that a rank
  /// that is slow stops the rings that wait for it and no others.
  static constexpr std::uint32_t kMostToOne = 512;

  /// A command that was issued.
  struct Pending {
    Ticket ticket;
    device::Operation operation = device::Operation::none;
    std::int32_t peer = -1;
    bool dropped = false;
    device_detail::Payload payload{};
  };
  struct Ring {
    std::uint32_t number = 0;
    const Word* slots = nullptr;
    device_detail::RingProgress* progress = nullptr;
    const Word* attention = nullptr;
    Word attention_seen = 0;
    int awaited = -1;  ///< the rank that a kernel waits for
    std::int64_t awaited_since = 0;
    std::int64_t attended_at = 0;
    std::uint64_t consumed = 0;
    std::uint64_t completed = 0;
    std::unique_ptr<Pending[]> pending;  ///< by number modulo kMostPending: [completed, consumed)
    std::atomic<std::uint64_t> commands{0};
    std::atomic<std::uint64_t> drop_below{0};  ///< posted before `resume`: taken, never issued

    Pending& at(std::uint64_t index) { return pending[index % kMostPending]; }
  };
  struct ProxyThread {
    std::vector<Ring*> rings;
    std::vector<std::uint32_t> under_way;  ///< by rank
    std::vector<Ring*> next;               ///< by rank: whose turn it is when there is room; null: anybody's
    std::uint64_t pending = 0;
    std::int64_t asked_at = 0;
    std::int64_t lost_looked_at = 0;
    std::thread thread;
  };

  // proxy.cc
  bool pass(ProxyThread& proxy);
  bool take(ProxyThread& proxy, Ring& ring);
  bool load(const Ring& ring, std::uint64_t number, Command& command) const;
  static bool has_turn(ProxyThread& proxy, Ring& ring, std::uint32_t rank, bool had_some);
  void issue_one(ProxyThread& proxy, Ring& ring, const Command& command);
  bool retire(ProxyThread& proxy, Ring& ring);
  bool is_done(const Pending& pending) const;
  void fail(const Ring& ring, std::uint64_t index, const Pending& pending, Error error);
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

  // threads.cc
  void run(ProxyThread& proxy);
  bool attend(ProxyThread& proxy, std::int64_t now);
  void ask_after(int peer);
  void watch_peers(ProxyThread& proxy, std::int64_t now);
  bool nap(std::int64_t nanoseconds, std::uint64_t& woken);
  void stop_threads();
  void stay_near_device() const;
  Error kernel_failure() const;
  bool all_done() const;

  Window& window_;
  window_detail::WindowState& state_;
  const DeviceOptions options_;
  device_detail::SharedMemory memory_;
  std::vector<std::unique_ptr<Ring>> rings_;
  std::vector<std::unique_ptr<ProxyThread>> proxies_;
  device_detail::Report* error_ = nullptr;
  std::atomic<bool> stop_{false};
  std::atomic<bool> wedged_{false};
  std::atomic<bool> stopped_{false};  ///< an error: nothing is issued
  bool closed_ = false;
  std::mutex nap_mutex_;
  std::uint64_t wakes_ = 0;  ///< calls of `wake`; under `nap_mutex_`
  std::condition_variable napping_;
  mutable std::mutex mutex_;
  Error first_;  ///< under `mutex_`
};

}  // namespace railyard
