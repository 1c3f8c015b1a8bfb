/// Waiting: how threads that wait for the engine pass the time: awake, or asleep in the kernel. It knows the rails'
/// descriptors and nothing of flows or links.
///
/// One thread at a time *leads*: it arms the rails and sleeps on their descriptors and on a bell that callers ring.
/// Others *follow*: they sleep until a pass has brought something. Nobody leads while another thread makes passes: a
/// poll takes the rails' alarms away, so a pass ends the lead of whoever sleeps. A sleeper never waits for the progress
/// lock: its holder makes a pass, and may make one after the other.
///
/// A leader that waits for nothing itself (the progress thread) is not woken at once by callers who submit or make
/// passes: most of them wait for what follows and need no help. Its timer wakes it a moment later. Nor do the rails
/// wake it from then on: what arrives is for the caller.
///
/// Words that threads or peers change past the engine: who waits for one counts itself among its `Sleepers` once it
/// would be woken, then looks a last time. Who has changed one looks at the count, and wakes whoever leads there, who
/// wakes those who follow. A process that ends between the two leaves a sleeper to its next look at the links.
///
/// No wake-up is lost. What the engine's state depends on is changed with the progress lock held, and so is the
/// leader's decision to sleep. What callers leave without the progress lock is looked for after `sleeping_` was set;
/// they look at `sleeping_` after they have left it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "fabric/rail.hpp"
#include "railyard/result.hpp"
#include "transport/progress_lock.hpp"
#include "transport/sleepers.hpp"

namespace railyard::transport {

class Waiting {
 public:
  /// What there is to do if nobody says anything. Asked with the progress lock held.
  struct Agenda {
    std::int64_t next_look = 0;  ///< nanoseconds until the engine must look after something itself
    bool under_way = false;      ///< something is
  };
  /// `rails` may still be filled. `policy`: the setting RAILYARD_WAIT.
  Waiting(Clock& clock, ProgressLock& lock, const std::vector<fabric::Rail*>& rails, const std::string& policy,
          std::function<Agenda()> agenda);

  /// Time without news before a wait lets others have the core: longer than an answer takes to come back.
  static constexpr std::int64_t kSpinNanoseconds = 100'000;
  /// And before it sleeps in the kernel, unless the settings say otherwise.
  static constexpr std::int64_t kYieldNanoseconds = 2'000'000;

  // ---- Without the progress lock ----

  /// What a wait without news for `idle` does, with `left` nanoseconds to go. `insist`: its own, between two calls.
  /// True: it has slept.
  bool rest(std::int64_t idle, std::int64_t left, bool& insist, Sleepers* sleepers, const std::function<bool()>& done);

  /// Passes that anybody has made so far.
  std::uint64_t passes() const { return passes_.load(std::memory_order_relaxed); }
  /// What a sleeper waits for beside the rails.
  struct SleepOn {
    int descriptor = -1;
    std::function<bool()> awake = {};        ///< asked once peers and callers would wake it: true: it does not sleep
    std::int64_t longest_blind = 2'000'000;  ///< between two polls of rails that wake nobody, nothing under way
    /// A timer of a sleeper that waits for nothing itself: when callers submit or make passes, it is woken a moment
    /// later, in case they leave the rest to it. At once, it would want their core and the progress lock. -1: it is no
    /// such.
    int timer = -1;
  };
  enum class Slept : std::uint8_t {
    yes,         ///< something happened, or the time is over
    others_are,  ///< another thread makes passes or sleeps on the rails itself
    poll_first,  ///< a rail has something to do
  };
  /// Sleeps until a rail or a caller has something to do, a link must be looked after, or the time is over. `seen`: the
  /// passes that the caller knows of; more: others are at it. `insist`: a rail that must be polled is polled a little
  /// later.
  Slept sleep(std::int64_t nanoseconds, std::uint64_t seen, bool insist, const SleepOn& also);
  /// Sleeps until another thread's pass has brought something, or the time is over.
  void follow(std::int64_t nanoseconds, const SleepOn& also);
  /// How often a thread of this process that slept on the rails was woken by another one.
  std::uint64_t nudges() const { return nudges_.load(std::memory_order_relaxed); }
  /// Wakes whoever sleeps on the rails.
  void nudge() {
    // Pairs with `sleep`, which says that it sleeps and then looks for what came before this.
    if (sleeping_.load(std::memory_order_seq_cst) && sleeping_.exchange(false)) ring_bell();
  }
  /// A thread sleeps on the rails: it moves things on when it wakes.
  bool attended() const { return led_.load(std::memory_order_relaxed); }
  /// The same, once for each sleep: for callers who read ahead what they are about to run through. `seen`: the sleep
  /// that they know of.
  bool newly_attended(std::atomic<std::uint64_t>& seen) const {
    if (!attended()) return false;
    const std::uint64_t now = leaders_.load(std::memory_order_relaxed);
    if (seen.load(std::memory_order_relaxed) == now) return false;
    seen.store(now, std::memory_order_relaxed);
    return true;
  }

  // ---- With the progress lock held ----

  /// A pass has ended: its time, and whether it brought something.
  void passed(std::int64_t now, bool news) {
    // The progress lock's holder is the only writer.
    passes_.store(passes_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    just_woke_ = false;
    if (news) moved_at_ = now;
    if (led_.load(std::memory_order_relaxed) || followers_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      wake_sleepers(news);
  }
  /// Wakes the leader in a moment, if that is early enough for it, else at once.
  void nudge_later();
  /// Whoever sleeps wakes after so long at most. For users of the engine with clocks of their own.
  void limit_sleep(std::int64_t nanoseconds) { sleep_limit_ = nanoseconds; }
  /// What `SleepOn::awake` is for one sleeper, for all.
  void set_awake(std::function<bool()> awake) { awake_ = std::move(awake); }
  /// This is the first pass after a sleep.
  bool just_woke() const { return just_woke_; }

  /// For a caller who sleeps elsewhere on what `watch_descriptors` names, put together in `outside`: the same as
  /// `sleep`, in two parts. Whoever sleeps on the rails leaves it to the caller.
  Slept begin_sleep(bool insist, std::int64_t& nanoseconds, int outside);
  void end_sleep(bool rung = true);
  /// What becomes readable then: the rails' own, and the one that callers ring. Takes the progress lock itself.
  Result<std::vector<int>> watch_descriptors();
  /// Such a caller was called, and has not come yet.
  bool outside_is_late() const;

 private:
  enum class Policy : std::uint8_t { automatic, spin, yield, sleep };
  static Policy policy_of(const std::string& word);
  bool stays_awake(std::int64_t idle);
  Slept lead(bool insist, std::int64_t& nanoseconds, int outside, const SleepOn& also);
  Result<void> open_bell();
  Result<void> open_gate();
  void set_gate(bool open);
  void ring_bell();
  void wake_sleepers(bool news);
  [[gnu::hot]] void tell_followers();

  Clock& clock_;
  ProgressLock& lock_;
  const std::vector<fabric::Rail*>& rails_;
  Policy policy_;
  std::function<Agenda()> agenda_;
  std::atomic<std::uint64_t> passes_{0};
  std::int64_t moved_at_;              ///< the last pass in which something happened
  std::atomic<bool> led_{false};       ///< somebody sleeps on the rails
  std::atomic<bool> sleeping_{false};  ///< and nobody has woken it yet
  std::atomic<std::uint32_t> followers_{0};
  std::atomic<std::uint32_t> news_{0};  ///< what followers sleep on
  /// Changes whenever somebody begins to sleep on the rails, and whenever a pass of another ends that.
  std::atomic<std::uint64_t> leaders_{0};
  std::atomic<int> outside_{-1};  ///< where the leader sleeps if not in `sleep`
  int timer_ = -1;                ///< the leader's; see SleepOn
  bool timer_runs_ = false;
  std::atomic<std::uint64_t> nudges_{0};
  bool just_woke_ = false;
  std::int64_t sleep_limit_ = INT64_MAX;
  std::function<bool()> awake_;
  Fd bell_;
  Fd gate_;  ///< an epoll set of the rails' descriptors: where `sleep` waits for them
  bool gate_open_ = false;
};

}  // namespace railyard::transport
