/// Sleeping in the kernel while there is nothing to do. One thread at a time *leads*: it arms the rails and sleeps on
/// their descriptors and on a bell that callers ring. Others *follow*: they sleep until a pass has brought something.
/// Nobody leads while another thread makes passes: a poll takes the rails' alarms away, so a pass ends the lead of
/// whoever sleeps. A sleeper never waits for the progress lock: its holder makes a pass, and may make one after the
/// other.
///
/// A leader that waits for nothing itself (the progress thread) is not woken at once by callers who submit or make
/// passes: most of them wait for what follows and need no help. Its timer wakes it a moment later.
///
/// Words that threads or peers change past the engine: who waits for one counts itself among its `Sleepers` once it
/// would be woken, then looks a last time. Who has changed one looks at the count, and wakes whoever leads there, who
/// wakes those who follow. A process that ends between the two leaves a sleeper to its next look at the
/// links.
///
/// No wake-up is lost. What the engine's state depends on is changed with the progress lock held, and so is the
/// leader's decision to sleep. What callers leave without the progress lock is looked for after `sleeping_` was set;
/// they look at `sleeping_` after they have left it.
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kLongestSleep = kSecond / 2;  ///< with nothing under way: peers that died are found out
constexpr std::int64_t kLeastWatch = 1'000'000;      ///< between two looks at links with something under way
constexpr std::int64_t kMostWatch = 5'000'000;
constexpr std::int64_t kLeastNap = 50'000;
constexpr std::int64_t kMostNap = 1'000'000;  ///< with something under way
constexpr std::int64_t kFollow = 1'000'000;
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

Engine::WaitPolicy Engine::wait_policy(const std::string& word) {
  if (word == "spin") return WaitPolicy::spin;
  if (word == "yield") return WaitPolicy::yield;
  return word == "sleep" ? WaitPolicy::sleep : WaitPolicy::automatic;
}

// ---- Waits ----

/// Passes the time awake, if the policy says so.
bool Engine::stays_awake(std::int64_t idle) {
  if (wait_policy_ == WaitPolicy::spin) return true;
  const auto wakes_nobody = [](const fabric::Rail* rail) { return rail->descriptor() < 0; };
  const std::int64_t yields = std::ranges::any_of(rail_views_, wakes_nobody) ? kBlindYield : kYieldNanoseconds;
  const bool early = wait_policy_ == WaitPolicy::automatic && idle < yields;
  if (!early && wait_policy_ != WaitPolicy::yield && clock_->real()) return false;
  clock_->idle();
  return true;
}

bool Engine::rest(std::int64_t idle, std::int64_t left, bool& insist, Sleepers* sleepers,
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

/// How long nothing needs to be done if nobody says anything.
std::int64_t Engine::next_look() const {
  const bool unfinished = !active_.empty() || !reporting_.empty() || !ready_.empty() || !noticing_.empty() ||
                          !refusing_.empty() || !losing_.empty() || !fence_requests_.empty() || !gossip_.empty() ||
                          leaving_ != 0;
  std::int64_t longest = kLongestSleep;
  if (unfinished) {
    longest = kLeastWatch;
  } else if (!watched_.empty()) {
    longest = std::clamp(deadline_floor_ / 4, kLeastWatch, kMostWatch);
  }
  // What a reader of the telemetry sees is never older than what happened last.
  if (telemetry_ != nullptr && !telemetry_->settled())
    longest = std::min(longest, std::max(publish_at_ - clock_->now(), kLeastWatch));
  return std::min(longest, sleep_limit_);
}

/// How long a rail that wakes nobody goes without being polled.
std::int64_t Engine::blind_nap(std::int64_t longest) const {
  const bool under_way = outstanding() != 0 || !watched_.empty();
  return std::clamp((clock_->now() - moved_at_) / kNapShare, kLeastNap, under_way ? kMostNap : longest);
}

Engine::Slept Engine::lead(bool insist, std::int64_t& nanoseconds, int outside, const SleepOn& also) {
  if (!open_bell()) return Slept::poll_first;
  nanoseconds = std::min(nanoseconds, next_look());
  for (fabric::Rail* rail : rail_views_) {
    if (rail->descriptor() >= 0 && rail->arm()) continue;
    if (rail->descriptor() >= 0 && !insist) return Slept::poll_first;
    nanoseconds = std::min(nanoseconds, blind_nap(also.longest_blind));
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

Engine::Slept Engine::sleep(std::int64_t nanoseconds, std::uint64_t seen, bool insist, const SleepOn& also) {
  std::vector<pollfd> watched;
  std::uint64_t number = 0;
  {
    if (!progress_lock_.try_take()) return Slept::others_are;
    const ProgressGuard hold(progress_lock_, std::adopt_lock);
    if (attended() || passes() != seen) return Slept::others_are;
    if (const Slept begun = lead(insist, nanoseconds, -1, also); begun != Slept::yes) return begun;
    number = leaders_.load(std::memory_order_relaxed);
    watched.push_back({bell_.get(), POLLIN, 0});
    for (const fabric::Rail* rail : rail_views_) watched.push_back({rail->descriptor(), POLLIN, 0});  // -1 is skipped
    watched.push_back({also.descriptor, POLLIN, 0});
    watched.push_back({timer_, POLLIN, 0});
  }
  const bool awake = (awake_ && awake_()) || (also.awake && also.awake());
  const timespec timeout = to_timespec(nanoseconds);
  if (!awake) ::ppoll(watched.data(), watched.size(), &timeout, nullptr);
  const auto over = [&] { return number != leaders_.load(std::memory_order_relaxed); };
  for (;;) {
    if (over()) return Slept::others_are;  // somebody makes passes, or one who sleeps outside has taken over
    if (!progress_lock_.try_take()) {
      clock_->idle();
      continue;
    }
    const ProgressGuard hold(progress_lock_, std::adopt_lock);
    if (over()) return Slept::others_are;
    end_sleep(watched.front().revents != 0);
    return Slept::yes;
  }
}

Engine::Slept Engine::begin_sleep(bool insist, std::int64_t& nanoseconds, int outside) {
  nudge();
  if (const Slept begun = lead(insist, nanoseconds, outside, {}); begun != Slept::yes) return begun;
  if (!awake_ || !awake_()) return Slept::yes;
  end_sleep();
  return Slept::poll_first;
}

void Engine::end_sleep(bool rung) {
  led_.store(false, std::memory_order_relaxed);
  outside_.store(-1, std::memory_order_relaxed);
  sleeping_.store(false, std::memory_order_relaxed);
  just_woke_ = true;
  tell_followers();  // it may have been woken on their behalf
  if (!rung) return;
  std::uint64_t strokes = 0;
  [[maybe_unused]] const ssize_t bytes = ::read(bell_.get(), &strokes, sizeof strokes);
}

bool Engine::outside_is_late() const {
  pollfd readable{outside_.load(std::memory_order_relaxed), POLLIN, 0};
  return readable.fd >= 0 && ::poll(&readable, 1, 0) > 0;
}

Result<std::vector<int>> Engine::watch_descriptors() {
  const ProgressGuard hold(progress_lock_);
  if (auto opened = open_bell(); !opened) return std::move(opened.error());
  std::vector<int> all{bell_.get()};
  for (const fabric::Rail* rail : rail_views_)
    if (rail->descriptor() >= 0) all.push_back(rail->descriptor());
  return all;
}

Result<void> Engine::open_bell() {
  if (bell_) return {};
  bell_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (bell_) return {};
  return Error(Status::io, std::string("eventfd: ") + std::strerror(errno));
}

void Engine::ring_bell() {
  nudges_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t stroke = 1;
  [[maybe_unused]] const ssize_t bytes = ::write(bell_.get(), &stroke, sizeof stroke);
}

// ---- Following ----

/// Wakes the leader in a moment, if that is early enough for it, else at once.
void Engine::nudge_later() {
  if (!led_.load(std::memory_order_relaxed)) return;
  if (!timer_runs_) timer_runs_ = timer_ >= 0 && set_timer(timer_, kMoment);
  if (!timer_runs_) nudge();
}

void Engine::wake_sleepers(bool news) {
  if (led_.load(std::memory_order_relaxed) && outside_.load(std::memory_order_relaxed) < 0) {
    nudge_later();
    leaders_.fetch_add(1, std::memory_order_relaxed);
    led_.store(false, std::memory_order_relaxed);
    sleeping_.store(false, std::memory_order_relaxed);
  } else {
    nudge();
  }
  if (news) tell_followers();
}

void Engine::tell_followers() {
  if (followers_.load(std::memory_order_relaxed) == 0) return;
  news_.fetch_add(1, std::memory_order_relaxed);
  ::syscall(SYS_futex, &news_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

void Engine::wake_peer(int peer) {
  if (peer == rank_) return nudge();
  const ProgressGuard hold(progress_lock_);
  const Flow* const known = existing_flow(peer);
  if (known == nullptr || known->failed.load(std::memory_order_relaxed)) return;
  ++counts_.direct_wakes;
  for (const Link& link : known->route->links)
    if (link.up() && rails_[link.rail()]->wake(link.remote())) return;
  check_on(*known->route);  // where no rail rings, anything that arrives there does
}

void Engine::follow(std::int64_t nanoseconds, const SleepOn& also) {
  const std::uint32_t seen = news_.load(std::memory_order_relaxed);
  followers_.fetch_add(1, std::memory_order_relaxed);
  const timespec timeout = to_timespec(nanoseconds);
  if (!also.awake || !also.awake()) ::syscall(SYS_futex, &news_, FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0);
  followers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace railyard::transport
