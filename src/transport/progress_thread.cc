#include "transport/progress_thread.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/timerfd.h>
#include <time.h>

#include <algorithm>
#include <chrono>

#include "base/cpu_pause.hpp"

namespace railyard::transport {
namespace {

constexpr std::int64_t kLook = 1'000'000;           ///< nanoseconds between two looks at callers
constexpr std::int64_t kMostLook = 10'000'000;      ///< while one of them sleeps on the rails itself
constexpr std::int64_t kLongestBlind = 20'000'000;  ///< between two polls of rails that wake nobody
constexpr std::int64_t kLongestSleep = 500'000'000;
constexpr std::int64_t kSpin = 20'000;          ///< without news before it sleeps
constexpr std::int64_t kHelp = 5'000'000;       ///< without news before it leaves the work to callers again
constexpr std::uint32_t kTrial = 32;            ///< passes with news, after which it is judged whether it helps
constexpr std::int64_t kWorthwhile = 2'000;     ///< nanoseconds of a pass that are worth sharing out
constexpr std::int64_t kMostAway = 16'000'000;  ///< until the next trial, where one was for nothing
constexpr std::int64_t kWatch = 3'000;          ///< without a caller's pass before it makes one, where watched
constexpr int kPausesBetweenLooks = 16;         ///< the line with their number is theirs most of the time

}  // namespace

ProgressThread::ProgressThread(Engine& engine, std::function<bool()> pass, Options options)
    : engine_(engine),
      pass_(std::move(pass)),
      options_(std::move(options)),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
  // The program's signals are for the program's threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(thread_.native_handle(), options_.name.substr(0, 15).c_str());
}

ProgressThread::~ProgressThread() {
  {
    const std::scoped_lock lock(mutex_);
    stop_.store(true, std::memory_order_seq_cst);
  }
  stopping_.notify_all();
  engine_.waiting().nudge();
  thread_.join();
}

void ProgressThread::nap(std::int64_t nanoseconds) {
  naps_.fetch_add(1, std::memory_order_relaxed);
  std::unique_lock lock(mutex_);
  stopping_.wait_for(lock, std::chrono::nanoseconds(nanoseconds), [this] { return stopped(); });
}

/// Where there are cores to spare: callers that have just made passes are watched closely, without the lock, because
/// whoever got what it waited for makes no more passes and may owe acknowledgements.
void ProgressThread::watch() const {
  Clock& clock = engine_.clock();
  const std::uint64_t seen = engine_.waiting().passes();
  for (const std::int64_t begin = clock.now(); !stopped() && clock.now() - begin < kWatch;) {
    for (int i = 0; i < kPausesBetweenLooks; ++i) cpu_pause();
    if (engine_.waiting().passes() != seen) return;
  }
}

void ProgressThread::run() {
  if (options_.at_once) work();
  Clock& clock = engine_.clock();
  std::uint64_t seen = engine_.waiting().passes();
  std::int64_t look = kLook;
  std::int64_t watch_until = 0;
  std::int64_t meanwhile_at = 0;
  std::int64_t trial_at = 0;   // when it tries again whether help is worth it
  std::int64_t stay_away = 0;  // for how long it stayed away last time
  bool was_late = false;
  while (!stopped()) {
    if (clock.now() < watch_until) {
      watch();
    } else {
      nap(look);
    }
    if (stopped()) return;
    const std::int64_t now = clock.now();
    if (options_.meanwhile && now >= meanwhile_at) {
      options_.meanwhile();
      meanwhile_at = now + kLook;
    }
    const std::uint64_t passes = engine_.waiting().passes();
    if (passes != seen) {
      look = kLook;
      if (options_.shares_work) {
        watch_until = now + kHelp;
        if (now >= trial_at) {
          stay_away = help() ? 0 : std::clamp(2 * stay_away, kLook, kMostAway);
          trial_at = clock.now() + stay_away;
        }
      }
    } else if (engine_.waiting().attended()) {
      // An event loop that was called and does not come is busy elsewhere.
      const bool late = engine_.waiting().outside_is_late();
      if (late && was_late) pass_();
      was_late = late;
      look = late ? kLook : std::min(2 * look, kMostLook);
      watch_until = 0;
    } else {
      look = kLook;
      work();
      if (options_.shares_work) watch_until = clock.now() + kHelp;
    }
    seen = engine_.waiting().passes();
  }
}

/// Makes passes beside callers as long as they bring much: long copies are shared out. Short messages are not worth two
/// cores that take the same cache lines from each other. False: it was not worth it.
bool ProgressThread::help() {
  Clock& clock = engine_.clock();
  std::int64_t now = clock.now();
  std::int64_t news = now;
  std::int64_t spent = 0;
  std::uint32_t fruitful = 0;
  while (!stopped()) {
    const std::int64_t begin = now;
    const bool moved = pass_();
    now = clock.now();
    if (moved) {
      news = now;
      spent += now - begin;
      if (++fruitful < kTrial) continue;
      if (spent < kTrial * kWorthwhile) return false;
      fruitful = 0;
      spent = 0;
    } else if (now - news >= kHelp) {
      return true;
    } else if (now - news >= kSpin) {
      clock.idle();
      now = clock.now();
    }
  }
  return true;
}

/// Until others make passes.
void ProgressThread::work() {
  Clock& clock = engine_.clock();
  const Waiting::SleepOn also{options_.descriptor, [this] { return stopped(); }, kLongestBlind, timer_.get()};
  std::int64_t news = clock.now();
  bool insist = false;
  while (!stopped()) {
    const std::uint64_t before = engine_.waiting().passes();
    const bool moved = pass_();
    if (engine_.waiting().passes() != before + 1) return;
    const std::int64_t now = clock.now();
    if (moved) news = now;
    if (now - news < kSpin) continue;
    if (options_.shares_work && now - news < kHelp) {
      clock.idle();
      continue;
    }
    const Waiting::Slept slept = engine_.waiting().sleep(kLongestSleep, before + 1, insist, also);
    if (slept == Waiting::Slept::others_are) return;
    insist = slept == Waiting::Slept::poll_first;
  }
}

}  // namespace railyard::transport
