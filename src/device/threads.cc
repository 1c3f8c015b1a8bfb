/// The proxy's threads: when they work, when they sleep, how they end.
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>

#include "base/log.hpp"
#include "device/issue.hpp"
#include "device/proxy.hpp"
#include "topology/pci.hpp"

namespace railyard {

namespace {

/// Naps are this part of the time without news, so that waking late costs little beside what was waited already.
constexpr std::int64_t kNapPart = 16;
constexpr std::int64_t kShortestNap = 5'000;
/// A rank that a kernel waits for is asked whether it is there after so long, and again.
constexpr std::int64_t kAskPeerAfter = 100'000'000;
constexpr std::int64_t kAskPeerAgain = 1'000'000'000;
constexpr std::int64_t kLookForLosses = 1'000'000;

std::int64_t proxy_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void DeviceProxy::State::start() {
  for (auto& proxy : proxies_) {
    proxy->thread = std::thread([this, mine = proxy.get()] { run(*mine); });
  }
}

/// On the processors near the GPU, of those that this thread may use.
void DeviceProxy::State::stay_near_device() const {
  accelerator::Driver* const driver = options_.device == DeviceOptions::kHost ? nullptr : accelerator::driver();
  const auto address = driver == nullptr ? std::nullopt : topology::parse_pci_address(driver->bus_id(options_.device));
  if (!address) return;
  cpu_set_t allowed;
  cpu_set_t near;
  CPU_ZERO(&near);
  if (::pthread_getaffinity_np(::pthread_self(), sizeof allowed, &allowed) != 0) return;
  for (const int number : topology::near_processors(*address)) {
    if (number < CPU_SETSIZE && CPU_ISSET(number, &allowed)) CPU_SET(number, &near);
  }
  if (CPU_COUNT(&near) > 0) ::pthread_setaffinity_np(::pthread_self(), sizeof near, &near);
}

void DeviceProxy::State::run(ProxyThread& proxy) {
  ::pthread_setname_np(::pthread_self(), "railyard-proxy");
  stay_near_device();
  ::prctl(PR_SET_TIMERSLACK, 1);  // naps are short
  transport::Engine& engine = state_.engine();
  std::int64_t last_news = proxy_now();
  std::int64_t now = last_news;
  std::uint64_t woken = 0;
  while (!stop_.load(std::memory_order_acquire)) {
    if (wedged_.load(std::memory_order_acquire)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    const bool news = pass(proxy);
    now = proxy_now();
    const bool awaited = attend(proxy, now);
    watch_peers(proxy, now);
    if (news || awaited) last_news = now;
    const std::int64_t idle = now - last_news;
    if (idle < options_.spin.count()) {
      // Kernels wait for what peers send as well: nobody else makes the pass that brings it.
      if (proxy.pending == 0 && engine.progress_lock().try_take()) {
        engine.progress();
        engine.progress_lock().give();
      }
      if (!news) ::sched_yield();
      continue;
    }
    const std::int64_t longest = std::max<std::int64_t>(options_.longest_nap.count(), kShortestNap);
    if (nap(std::clamp(idle / kNapPart, kShortestNap, longest), woken)) last_news = proxy_now();
  }
}

/// Whether somebody called meanwhile; `woken`: the calls known so far.
bool DeviceProxy::State::nap(std::int64_t nanoseconds, std::uint64_t& woken) {
  std::unique_lock lock(nap_mutex_);
  const auto called = [&] { return stop_.load(std::memory_order_acquire) || wakes_ != woken; };
  const bool was_called = napping_.wait_for(lock, std::chrono::nanoseconds(nanoseconds), called);
  woken = wakes_;
  return was_called;
}

void DeviceProxy::State::wake() {
  {
    const std::lock_guard lock(nap_mutex_);
    ++wakes_;
  }
  napping_.notify_all();
}

/// Whether a kernel is waiting for something; asks after the rank that it waits for.
bool DeviceProxy::State::attend(ProxyThread& proxy, std::int64_t now) {
  bool awaited = false;
  for (Ring* ring : proxy.rings) {
    const Word attention = device::detail::load_system(ring->attention);
    if (attention == ring->attention_seen) continue;
    awaited = true;
    ring->attention_seen = attention;
    const auto peer = static_cast<int>(attention & device::detail::kEveryRank) - 1;
    if (peer != ring->awaited || now - ring->attended_at > kAskPeerAfter) ring->awaited_since = now;  // another wait
    ring->awaited = peer;
    ring->attended_at = now;
    if (now - ring->awaited_since > kAskPeerAfter && now - proxy.asked_at > kAskPeerAgain) {
      proxy.asked_at = now;
      ask_after(peer);
    }
  }
  return awaited;
}

/// Finds out whether a rank is still there, also where nothing was ever sent to it.
void DeviceProxy::State::ask_after(int peer) {
  if (peer < 0 || peer >= state_.world().size || state_.is_self(peer)) return;
  transport::Engine& engine = state_.engine();
  const transport::ProgressGuard hold(engine.progress_lock());
  const transport::Flow* const flow = state_.existing_flow(peer);
  if (flow == nullptr || flow->route->concerned_since == 0) engine.check_on(state_.flow_of(peer));
}

/// Tells kernels which ranks are gone. By one thread: the words are its own.
void DeviceProxy::State::watch_peers(ProxyThread& proxy, std::int64_t now) {
  if (&proxy != proxies_.front().get() || now - proxy.lost_looked_at < kLookForLosses) return;
  proxy.lost_looked_at = now;
  const transport::Engine& engine = state_.engine();
  if (!engine.completions().any_failed()) return;
  Word* const lost = memory_.shared<Word>(memory_.layout().lost);
  const auto ranks = static_cast<std::size_t>(state_.world().size);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const transport::Flow* const flow = state_.existing_flow(static_cast<int>(rank));
    if (lost[rank] != 0 || flow == nullptr || !flow->failed.load(std::memory_order_acquire)) continue;
    device::detail::store_system(&lost[rank], 1);
  }
  // One that has left came through every barrier before it did.
  const Word gone = static_cast<Word>(state_.lost_rank() + 1);
  if (lost[ranks] != gone) device::detail::store_system(&lost[ranks], gone);
}

void DeviceProxy::State::stop_threads() {
  stop_.store(true, std::memory_order_release);
  wake();
  for (auto& proxy : proxies_) {
    if (proxy->thread.joinable()) proxy->thread.join();
  }
}

/// With the threads stopped.
bool DeviceProxy::State::all_done() const {
  return std::ranges::all_of(rings_, [&](const auto& ring) {
    Command command;
    return ring->completed == ring->consumed && !load(*ring, ring->consumed, command);
  });
}

Result<void> DeviceProxy::State::close(Deadline deadline) {
  if (closed_) return {};
  stop_threads();
  const std::int64_t patience = state_.nanoseconds(deadline);
  const bool issued = !stopped() && !wedged_.load(std::memory_order_acquire);
  const bool over =
      !issued || state_.engine().wait_until([&] { return pass_all(), stopped() || all_done(); }, patience);
  closed_ = true;
  {
    // Whoever still waits learns that nobody answers any more.
    const std::lock_guard lock(mutex_);
    if (!stopped_.exchange(true)) device::detail::store_system(&error_->code, static_cast<Word>(Status::not_found));
  }
  if (!over) {
    for (const auto& ring : rings_) {
      if (ring->completed == ring->consumed) continue;
      const Pending& oldest = ring->at(ring->completed);
      return Error(
          Status::timeout,
          fmt::format("close: command {} of ring {} was not complete after {:.3f} s", ring->completed, ring->number,
                      static_cast<double>(patience) * 1e-9),
          {.peer = oldest.peer, .operation = device_detail::to_string(oldest.operation), .sequence = ring->completed});
    }
  }
  return status();
}

DeviceProxy::State::~State() {
  stop_threads();
  if (!closed_) device::detail::store_system(&error_->code, static_cast<Word>(Status::not_found));
  const bool under_way = std::ranges::any_of(rings_, [&](const auto& ring) {
    for (std::uint64_t index = ring->completed; index < ring->consumed; ++index)
      if (!is_done(ring->at(index))) return true;
    return false;
  });
  if (!under_way) return;
  // The engine may still read a payload, and write the result of a fetch.
  struct Rest {
    device_detail::SharedMemory memory;
    std::vector<std::unique_ptr<Ring>> rings;
  };
  auto rest = std::make_shared<Rest>(Rest{std::move(memory_), std::move(rings_)});
  const transport::ProgressGuard hold(state_.engine().progress_lock());
  state_.engine().keep(std::move(rest));
}

Error DeviceProxy::State::kernel_failure() const {
  const auto* const report = memory_.shared<device_detail::Report>(memory_.layout().failure);
  const Word code = device::detail::load_system(&report->code);
  if (code == 0) return Error(Status::ok);
  const auto read = [](const Word& word) { return device::detail::load_system(&word); };
  const auto operation = static_cast<device::Operation>(read(report->operation));
  const char* const name = device_detail::to_string(operation);
  const int peer = static_cast<int>(read(report->peer)) - 1;
  const bool lost = code == static_cast<Word>(device::Status::peer_lost);
  const std::string what =
      operation == device::Operation::wait_signal || operation == device::Operation::barrier
          ? fmt::format("signal {}", read(report->subject))
      : operation == device::Operation::wait_counter ? fmt::format("counter {}", read(report->subject))
      : operation <= device::Operation::fetch_atomic ? std::string("room in the ring")
                                                     : fmt::format("command {}", read(report->subject));
  return {lost ? Status::peer_lost : Status::timeout,
          fmt::format("{} in a kernel on ring {}: {}: {} was waited for, {} was there{}", name, read(report->ring),
                      what, read(report->wanted), read(report->held), lost ? "; the rank is gone" : ""),
          {.peer = peer, .operation = name, .sequence = read(report->subject)}};
}

Result<void> DeviceProxy::State::status() const {
  {
    const std::lock_guard lock(mutex_);
    if (first_.status() != Status::ok) return first_.copy();
  }
  Error failure = kernel_failure();
  return failure.status() == Status::ok ? Result<void>() : Result<void>(std::move(failure));
}

void DeviceProxy::State::resume() {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  if (stopped()) {
    // No kernel posts meanwhile: what is in the rings was posted since the error, or before anybody saw it.
    for (const auto& ring : rings_) {
      Command command;
      std::uint64_t end = ring->commands.load(std::memory_order_relaxed);
      while (load(*ring, end, command)) ++end;
      ring->drop_below.store(end, std::memory_order_relaxed);
    }
  }
  first_ = Error();
  device::detail::store_system(&memory_.shared<device_detail::Report>(memory_.layout().failure)->code, 0);
  if (auto cleared = memory_.clear_claim(); !cleared) log_warn("device proxy: {}", cleared.error().text());
  device::detail::store_system(&error_->code, 0);
  stopped_.store(false, std::memory_order_release);
}

}  // namespace railyard
