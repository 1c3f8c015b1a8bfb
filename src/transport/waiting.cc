#include "transport/waiting.hpp"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/touch.hpp"

namespace railyard::transport {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kLeastNap = 50'000;
constexpr std::int64_t kMostNap = 1'000'000;  ///< with something under way
constexpr std::int64_t kFollow = 1'000'000;
constexpr std::size_t kMostUngated = 8;      ///< rails that a caller sleeps on one by one
constexpr std::int64_t kMoment = 1'000'000;  ///< after which callers may need the help of one who sleeps
/// A nap is so much shorter than the time that nothing has happened for.
constexpr std::int64_t kNapShare = 32;
/// Where a rail wakes nobody, waits go on polling for longer: what arrives is not to wait for the end of a nap.
constexpr std::int64_t kBlindYield = 20'000'000;

timespec to_timespec(std::int64_t nanoseconds) {
  nanoseconds = std::clamp<std::int64_t>(nanoseconds, 0, 3600 * kSecond);
  return {static_cast<time_t>(nanoseconds / kSecond), static_cast<long>(nanoseconds % kSecond)};
}

bool set_timer(int timer, std::int64_t nanoseconds) {
  const itimerspec due{{}, to_timespec(nanoseconds)};
  return ::timerfd_settime(timer, 0, &due, nullptr) == 0;
}

/// Among the sleepers, as long as it lives.
class Asleep {
 public:
  explicit Asleep(Sleepers* sleepers) : sleepers_(sleepers) {}
  ~Asleep() {
    if (entered_) sleepers_->leave();
  }
  Asleep(const Asleep&) = delete;
  Asleep& operator=(const Asleep&) = delete;

  bool sees(const std::function<bool()>& done) {
    if (!std::exchange(entered_, true)) sleepers_->enter();
    return done();
  }

 private:
  Sleepers* sleepers_;
  bool entered_ = false;
};

}  // namespace

Waiting::Policy Waiting::policy_of(const std::string& word) {
  if (word == "spin") return Policy::spin;
  if (word == "yield") return Policy::yield;
  return word == "sleep" ? Policy::sleep : Policy::automatic;
}

Waiting::Waiting(Clock& clock, ProgressLock& lock, const std::vector<fabric::Rail*>& rails, const std::string& policy,
                 std::function<Agenda()> agenda)
    : clock_(clock),
      lock_(lock),
      rails_(rails),
      policy_(policy_of(policy)),
      agenda_(std::move(agenda)),
      moved_at_(clock.now()) {}

// ---- Waits ----

/// Passes the time awake, if the policy says so.
[[gnu::hot]] bool Waiting::stays_awake(std::int64_t idle) {
  if (policy_ == Policy::spin) return true;
  const auto wakes_nobody = [](const fabric::Rail* rail) { return rail->descriptor() < 0; };
  const std::int64_t yields = std::ranges::any_of(rails_, wakes_nobody) ? kBlindYield : kYieldNanoseconds;
  const bool early = policy_ == Policy::automatic && idle < yields;
  if (!early && policy_ != Policy::yield && clock_.real()) return false;
  clock_.idle();
  return true;
}

[[gnu::hot]] bool Waiting::rest(std::int64_t idle, std::int64_t left, bool& insist, Sleepers* sleepers,
                                const std::function<bool()>& done) {
  if (stays_awake(idle)) return false;
  Asleep asleep(sleepers);
  SleepOn also;
  if (sleepers != nullptr) also.awake = [&] { return asleep.sees(done); };
  const Slept slept = sleep(left, passes(), insist, also);
  // Where others make passes and do not sleep, peers that store ring for nobody.
  const std::int64_t longest = sleepers == nullptr ? kFollow : std::clamp(idle / kNapShare, kLeastNap, kFollow);
  if (slept == Slept::others_are) follow(std::min(left, longest), also);
  insist = slept == Slept::poll_first;
  return true;
}

// ---- Leading ----

Waiting::Slept Waiting::lead(bool insist, std::int64_t& nanoseconds, int outside, const SleepOn& also) {
  if (!open_bell()) return Slept::poll_first;
  const Agenda agenda = agenda_();
  nanoseconds = std::min({nanoseconds, agenda.next_look, sleep_limit_});
  // A rail that wakes nobody is polled after a while.
  const std::int64_t most = agenda.under_way ? kMostNap : also.longest_blind;
  const std::int64_t blind_nap = std::clamp((clock_.now() - moved_at_) / kNapShare, kLeastNap, most);
  for (fabric::Rail* rail : rails_) {
    if (rail->descriptor() >= 0 && rail->arm()) continue;
    if (rail->descriptor() >= 0 && !insist) return Slept::poll_first;
    nanoseconds = std::min(nanoseconds, blind_nap);
  }
  leaders_.fetch_add(1, std::memory_order_relaxed);
  outside_.store(outside, std::memory_order_relaxed);
  // One that is left from an earlier sleep of this thread's is over; those of others are not touched: they sleep on.
  timer_ = also.timer >= 0 && set_timer(also.timer, 0) ? also.timer : -1;
  timer_runs_ = false;
  led_.store(true, std::memory_order_relaxed);
  sleeping_.store(true, std::memory_order_seq_cst);
  return Slept::yes;
}

[[gnu::hot]] Waiting::Slept Waiting::sleep(std::int64_t nanoseconds, std::uint64_t seen, bool insist,
                                           const SleepOn& also) {
  // A caller sleeps on the rails themselves: the gate, one more set between the two, adds 3 us to a wake-up.
  const bool gated = also.timer >= 0 || rails_.size() > kMostUngated;
  std::array<pollfd, 3 + kMostUngated> watched{};
  std::size_t count = 0;
  const auto watch = [&](int descriptor) {
    if (descriptor >= 0) watched[count++] = {descriptor, POLLIN, 0};
  };
  std::uint64_t number = 0;
  {
    if (!lock_.try_take()) return Slept::others_are;
    const ProgressGuard hold(lock_, std::adopt_lock);
    if (attended() || passes() != seen) return Slept::others_are;
    if (gated && !open_gate()) return Slept::others_are;  // it naps
    if (const Slept begun = lead(insist, nanoseconds, -1, also); begun != Slept::yes) return begun;
    number = leaders_.load(std::memory_order_relaxed);
    watch(bell_.get());
    if (gated) {
      watch(gate_.get());
    } else {
      for (const fabric::Rail* rail : rails_) watch(rail->descriptor());
    }
    watch(also.descriptor);
    watch(timer_);
  }
  const bool awake = (awake_ && awake_()) || (also.awake && also.awake());
  const timespec timeout = to_timespec(nanoseconds);
  if (!awake) {
    ::ppoll(watched.data(), count, &timeout, nullptr);
    touch_hot_code();
  }
  const auto over = [&] { return number != leaders_.load(std::memory_order_relaxed); };
  for (;;) {
    if (over()) return Slept::others_are;  // somebody makes passes, or one who sleeps outside has taken over
    if (!lock_.try_take()) {
      clock_.idle();
      continue;
    }
    const ProgressGuard hold(lock_, std::adopt_lock);
    if (over()) return Slept::others_are;
    end_sleep(watched.front().revents != 0);
    return Slept::yes;
  }
}

Waiting::Slept Waiting::begin_sleep(bool insist, std::int64_t& nanoseconds, int outside) {
  nudge();
  if (const Slept begun = lead(insist, nanoseconds, outside, {}); begun != Slept::yes) return begun;
  if (!awake_ || !awake_()) return Slept::yes;
  end_sleep();
  return Slept::poll_first;
}

[[gnu::hot]] void Waiting::end_sleep(bool rung) {
  led_.store(false, std::memory_order_relaxed);
  outside_.store(-1, std::memory_order_relaxed);
  sleeping_.store(false, std::memory_order_relaxed);
  just_woke_ = true;
  tell_followers();  // it may have been woken on their behalf
  if (!rung) return;
  std::uint64_t strokes = 0;
  [[maybe_unused]] const ssize_t bytes = ::read(bell_.get(), &strokes, sizeof strokes);
}

bool Waiting::outside_is_late() const {
  pollfd readable{outside_.load(std::memory_order_relaxed), POLLIN, 0};
  return readable.fd >= 0 && ::poll(&readable, 1, 0) > 0;
}

Result<std::vector<int>> Waiting::watch_descriptors() {
  const ProgressGuard hold(lock_);
  if (auto opened = open_bell(); !opened) return std::move(opened.error());
  std::vector<int> all{bell_.get()};
  for (const fabric::Rail* rail : rails_)
    if (rail->descriptor() >= 0) all.push_back(rail->descriptor());
  return all;
}

Result<void> Waiting::open_bell() {
  if (bell_) return {};
  bell_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (bell_) return {};
  return Error(Status::io, std::string("eventfd: ") + std::strerror(errno));
}

/// Before the rails are armed: what they have from then on is seen.
Result<void> Waiting::open_gate() {
  if (!gate_) {
    gate_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!gate_) return Error(Status::io, std::string("epoll_create1: ") + std::strerror(errno));
    for (const fabric::Rail* rail : rails_) {
      epoll_event event{};
      if (rail->descriptor() < 0 || ::epoll_ctl(gate_.get(), EPOLL_CTL_ADD, rail->descriptor(), &event) == 0) continue;
      Error error(Status::io, std::string("epoll_ctl: ") + std::strerror(errno));
      gate_.reset();
      return error;
    }
  }
  if (!gate_open_) set_gate(true);
  return {};
}

void Waiting::set_gate(bool open) {
  gate_open_ = open;
  for (const fabric::Rail* rail : rails_) {
    epoll_event event{};
    event.events = open ? EPOLLIN : 0U;  // without one it is not looked at
    if (rail->descriptor() >= 0) (void)::epoll_ctl(gate_.get(), EPOLL_CTL_MOD, rail->descriptor(), &event);
  }
}

void Waiting::ring_bell() {
  nudges_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t stroke = 1;
  [[maybe_unused]] const ssize_t bytes = ::write(bell_.get(), &stroke, sizeof stroke);
}

// ---- Following ----

[[gnu::hot]] void Waiting::nudge_later() {
  if (!led_.load(std::memory_order_relaxed)) return;
  if (!timer_runs_) timer_runs_ = timer_ >= 0 && set_timer(timer_, kMoment);
  if (!timer_runs_) nudge();
}

void Waiting::wake_sleepers(bool news) {
  if (led_.load(std::memory_order_relaxed) && outside_.load(std::memory_order_relaxed) < 0) {
    nudge_later();
    if (timer_runs_) set_gate(false);
    leaders_.fetch_add(1, std::memory_order_relaxed);
    led_.store(false, std::memory_order_relaxed);
    sleeping_.store(false, std::memory_order_relaxed);
  } else {
    nudge();
  }
  if (news) tell_followers();
}

void Waiting::tell_followers() {
  if (followers_.load(std::memory_order_relaxed) == 0) return;
  news_.fetch_add(1, std::memory_order_relaxed);
  ::syscall(SYS_futex, &news_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

void Waiting::follow(std::int64_t nanoseconds, const SleepOn& also) {
  const std::uint32_t seen = news_.load(std::memory_order_relaxed);
  followers_.fetch_add(1, std::memory_order_relaxed);
  const timespec timeout = to_timespec(nanoseconds);
  if (!also.awake || !also.awake()) ::syscall(SYS_futex, &news_, FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0);
  followers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace railyard::transport
