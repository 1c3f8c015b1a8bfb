#include "message/channel_setup.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "message/handle.hpp"
#include "message/setup_connectors.hpp"
#include "message/setup_listeners.hpp"
#include "rendezvous/epoll_set.hpp"

namespace railyard::message {

using rendezvous::EpollSet;

namespace {

/// How long a set-up that ends goes on sending what it owes.
constexpr std::int64_t kDrainNs = 100'000'000;

}  // namespace

class ChannelSetup::State {
 public:
  State(std::unique_ptr<EpollSet> watch, const Clock& clock, const Settings& settings)
      : State(std::move(watch), clock, settings, machine_of_handles(),
              std::int64_t{settings.bootstrap_timeout_ms} * 1'000'000) {}

  ~State() {
    const std::int64_t until = watch_->now() + kDrainNs;
    while ((connectors_.anything_outgoing() || inbound_.anything_outgoing()) && watch_->now() < until) move_on(1);
  }

  /// Everything but progress: one thing under the lock. What it changed, progress must see.
  template <typename Do>
  auto locked(Do&& todo) {
    const std::unique_lock lock = enter();
    auto result = todo(inbound_, connectors_);
    inbound_.settle();
    note_business();
    return result;
  }

  void close_listener(const Handle& handle) {
    std::unique_lock lock = enter();
    const Host* const host = inbound_.close_listener(handle);
    inbound_.settle();
    note_business();
    if (host == nullptr || called_host_ != host || calling_thread_ == std::this_thread::get_id()) return;
    call_ended_.wait(lock, [this, call = call_number_] { return call_number_ != call; });
  }

  int descriptor() const { return watch_->descriptor(); }

  bool progress() {
    if (!busy_.load(std::memory_order_relaxed)) return false;
    if (waiting_.load(std::memory_order_relaxed) > 0) return false;
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;  // somebody else is at it
    const bool moved = move_on(0);
    const bool called = make_calls(lock);
    note_business();
    return moved || called;
  }

 private:
  State(std::unique_ptr<EpollSet> watch, const Clock& clock, const Settings& settings, std::uint64_t machine,
        std::int64_t timeout_ns)
      : watch_(std::move(watch)),
        inbound_(*watch_, clock, machine, settings.interfaces, settings.ports, timeout_ns),
        connectors_(*watch_, machine, timeout_ns) {}

  /// A loop of `progress` would take the lock again before one who waits for it has woken up: it gives way.
  std::unique_lock<std::mutex> enter() {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    std::unique_lock lock(mutex_);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    return lock;
  }

  bool move_on(int timeout_ms) {
    const auto events = watch_->poll(timeout_ms);
    for (const epoll_event& event : events) {
      if (!connectors_.serve(event.data.u64)) inbound_.serve(event.data.u64);
    }
    bool rang = false;
    const std::int64_t now = watch_->now();
    while (const auto id = watch_->take_alarm(now)) {
      if (!connectors_.ring(*id)) inbound_.ring(*id);
      rang = true;
    }
    inbound_.settle();
    return rang || !events.empty();
  }

  /// Hosts are called without the lock, by one thread at a time. A host that calls `progress` moves bytes only.
  bool make_calls(std::unique_lock<std::mutex>& lock) {
    if (called_host_ != nullptr) return false;
    bool any = false;
    while (const auto call = inbound_.take_call()) {
      any = true;
      called_host_ = call->host;
      calling_thread_ = std::this_thread::get_id();
      lock.unlock();
      const auto answer = make_call(*call);
      lock.lock();
      called_host_ = nullptr;
      ++call_number_;
      call_ended_.notify_all();
      if (answer) inbound_.answered(call->handshake, *answer);
    }
    if (any) inbound_.settle();
    return any;
  }

  static std::optional<Result<std::vector<std::byte>>> make_call(const HostCall& call) {
    switch (call.kind) {
      case HostCall::Kind::hello:
        return call.host->on_hello(call.handshake, call.setup_message);
      case HostCall::Kind::ready:
        call.host->on_ready(call.handshake, call.setup_message);
        break;
      case HostCall::Kind::gone:
        call.host->on_gone(call.handshake);
        break;
    }
    return std::nullopt;
  }

  void note_business() {
    // Relaxed: it publishes nothing but itself; a progress that sees it late is one that came a little earlier.
    busy_.store(!inbound_.idle() || connectors_.size() != 0, std::memory_order_relaxed);
  }

  std::atomic<bool> busy_{false};
  std::atomic<int> waiting_{0};  ///< for the lock; a hint, it publishes nothing
  std::mutex mutex_;             ///< guards everything below
  std::unique_ptr<EpollSet> watch_;
  SetupListeners inbound_;
  SetupConnectors connectors_;
  const Host* called_host_ = nullptr;  ///< the one that is being called
  std::thread::id calling_thread_;
  std::uint64_t call_number_ = 0;
  std::condition_variable call_ended_;
};

ChannelSetup::ChannelSetup(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChannelSetup::~ChannelSetup() = default;

Result<std::unique_ptr<ChannelSetup>> ChannelSetup::open(const Settings& settings, Clock& clock) {
  auto watch = EpollSet::open(clock);
  if (!watch) return std::move(watch.error());
  return std::unique_ptr<ChannelSetup>(new ChannelSetup(std::make_unique<State>(std::move(*watch), clock, settings)));
}

Result<Handle> ChannelSetup::open_listener(Host& host) {
  return state_->locked([&](SetupListeners& inbound, SetupConnectors&) { return inbound.open_listener(host); });
}

void ChannelSetup::close_listener(const Handle& handle) { state_->close_listener(handle); }

bool ChannelSetup::begun(const Handle& handle) const {
  return state_->locked([&](SetupListeners&, SetupConnectors& connectors) { return connectors.begun(handle); });
}

Result<void> ChannelSetup::begin(Handle& handle, std::vector<std::byte> hello) {
  return state_->locked(
      [&](SetupListeners&, SetupConnectors& connectors) { return connectors.begin(handle, std::move(hello)); });
}

Result<std::optional<std::vector<std::byte>>> ChannelSetup::welcome(Handle& handle) {
  return state_->locked([&](SetupListeners&, SetupConnectors& connectors) { return connectors.welcome(handle); });
}

Result<void> ChannelSetup::finish(Handle& handle, std::vector<std::byte> ready) {
  return state_->locked(
      [&](SetupListeners&, SetupConnectors& connectors) { return connectors.finish(handle, std::move(ready)); });
}

void ChannelSetup::abandon(Handle& handle) {
  state_->locked([&](SetupListeners&, SetupConnectors& connectors) { return connectors.abandon(handle), true; });
}

int ChannelSetup::descriptor() const { return state_->descriptor(); }

bool ChannelSetup::progress() { return state_->progress(); }

SetupCounts ChannelSetup::counts() const {
  return state_->locked([](const SetupListeners& inbound, SetupConnectors&) { return inbound.counts(); });
}

}  // namespace railyard::message
