/// Waits for signals and barriers: they end when what they wait for is there, when nobody is left who could bring it,
/// or when their time is up.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "window/direct.hpp"

namespace railyard {
namespace window_detail {
namespace {

constexpr std::int64_t kAskAfter = 1'000'000'000;  // nanoseconds in a wait without `from`, or in a barrier
/// Where a rank is named, its loss is what the caller wants to hear of.
constexpr std::int64_t kAskNamedAfter = 100'000'000;
/// A rank is about to be found lost when this part of its time is left.
constexpr std::int64_t kNearlyLost = 4;
constexpr std::int64_t kLookAgainAfter = 100'000'000;

std::uint64_t load_word(const std::uint64_t& word) {
  // Acquire: pairs with the release that changed the word; what came before it is visible.
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}

bool compares(std::uint64_t held, Comparison comparison, std::uint64_t value) {
  switch (comparison) {
    case Comparison::equal:
      return held == value;
    case Comparison::not_equal:
      return held != value;
    case Comparison::less:
      return held < value;
    case Comparison::less_equal:
      return held <= value;
    case Comparison::greater:
      return held > value;
    case Comparison::greater_equal:
      return held >= value;
  }
  return false;
}

const char* sign_of(Comparison comparison) {
  static constexpr const char* kSigns[] = {"==", "!=", "<", "<=", ">", ">="};
  return kSigns[static_cast<std::size_t>(comparison)];
}

/// Asks whether a rank is still there. False: that is being found out already; asked again, its time would start anew.
bool ask_after(WindowState& state, int rank) {
  const transport::ProgressGuard hold(state.engine().progress_lock());
  const transport::Flow* flow = state.existing_flow(rank);
  if (flow != nullptr && flow->route->concerned_since != 0) return false;
  state.engine().check_on(state.flow_of(rank));
  return true;
}

bool is_gone(const WindowState& state, int rank) {
  const transport::Flow* flow = state.existing_flow(rank);
  return flow != nullptr && flow->failed.load(std::memory_order_acquire);
}

/// One wait for signals.
class SignalWait {
 public:
  SignalWait(WindowState& state, std::span<const SignalCondition> conditions, WindowState::Wanted wanted)
      : state_(state), conditions_(conditions), all_(wanted == WindowState::Wanted::all) {}

  bool met() {
    for (std::size_t i = 0; i < conditions_.size(); ++i) {
      const SignalCondition& condition = conditions_[i];
      const std::uint64_t held = load(condition);
      if (compares(held, condition.comparison, condition.value) != all_) {
        which_ = i;
        held_ = held;
        return !all_;
      }
    }
    return all_;
  }
  /// There is something to do but to wait.
  bool ended() { return met() || (state_.engine().completions().any_failed() && (hopeless() || moved_on())); }
  /// Nobody is left who could end it.
  bool hopeless() {
    for (const SignalCondition& condition : conditions_) {
      const bool lost = !can_come(condition);
      // Of all, one that cannot come is enough, if it is not there yet.
      if (all_ && lost && !compares(load(condition), condition.comparison, condition.value)) return true;
      if (!all_ && !lost) return false;
    }
    return !all_;
  }
  /// True: the next rank to ask after has changed.
  bool moved_on() const { return asked_ && last_asked_ != watched_rank_; }
  void ask() {
    bool any = false;
    for (const SignalCondition& condition : conditions_) {
      any |= condition.from == SignalCondition::kAnyRank;
      if (condition.from != SignalCondition::kAnyRank && !state_.is_self(condition.from))
        ask_after(state_, condition.from);
    }
    if (any) ask_any();
    asked_ = true;
    last_asked_ = watched_rank_;
  }
  std::int64_t ask_after_nanoseconds() const {
    const bool named = std::ranges::any_of(
        conditions_, [](const SignalCondition& each) { return each.from != SignalCondition::kAnyRank; });
    return named ? kAskNamedAfter : kAskAfter;
  }

  /// Until nobody is left who could end it; INT64_MAX: somebody is there whom nobody doubts.
  std::int64_t time_to_loss() {
    std::int64_t first = INT64_MAX;
    std::int64_t last = 0;
    for (const SignalCondition& condition : conditions_) {
      if (all_ && compares(load(condition), condition.comparison, condition.value)) continue;
      const std::int64_t left = time_to_loss(condition);
      first = std::min(first, left);
      last = std::max(last, left);
    }
    return all_ ? first : last;
  }

  SignalMet result() const { return {which_, held_}; }
  /// The rank that must bring it; -1: any may.
  int named() const {
    return conditions_.size() == 1 && conditions_[0].from != SignalCondition::kAnyRank ? conditions_[0].from : -1;
  }
  /// What it waits for and how the ranks stand that may bring it, for a person.
  std::string describe(const char* call) {
    met();
    const SignalCondition& condition = conditions_[which_];
    std::string text = fmt::format("{}: {}", call, unmet(condition));
    if (condition.from != SignalCondition::kAnyRank) {
      return text + fmt::format(", for rank {}: {}", condition.from,
                                transport::describe_peer(state_.engine(), state_.flow_of(condition.from)));
    }
    int told = 0;
    for (int rank = 0; rank < state_.world().size && told < kMostTold; ++rank) {
      if (state_.is_self(rank) || state_.existing_flow(rank) == nullptr) continue;
      text += fmt::format("; rank {}: {}", rank, transport::describe_peer(state_.engine(), state_.flow_of(rank)));
      ++told;
    }
    return text;
  }
  /// Why it was not met.
  [[gnu::noinline, gnu::cold]] Error failure(const char* call, std::int64_t patience) {
    return hopeless() ? lost(call) : timed_out(call, patience);
  }

 private:
  static constexpr int kNobody = -1;
  static constexpr int kMostTold = 4;  ///< ranks in one report

  Error lost(const char* call) {
    met();
    for (const SignalCondition& condition : conditions_) {
      if (can_come(condition)) continue;
      const bool named = condition.from != SignalCondition::kAnyRank;
      const int last = state_.lost_rank();
      const int rank = named ? condition.from : last;
      std::string why = named ? fmt::format("rank {} is gone", rank) : std::string("every other rank is gone");
      if (rank >= 0)
        why += fmt::format(" ({})", state_.in_our_terms(state_.existing_flow(rank)->error.copy()).message());
      return {Status::peer_lost,
              fmt::format("{}: {}, and {}", call, unmet(condition), why),
              {.peer = rank, .operation = call}};
    }
    return Error(Status::peer_lost);
  }
  Error timed_out(const char* call, std::int64_t nanoseconds) {
    met();
    const int last = state_.lost_rank();
    const std::string why = last < 0 ? "" : fmt::format("; rank {} is lost", last);
    return {Status::timeout,
            fmt::format("{}: {}, after {:.3f} s{}", call, unmet(conditions_[which_]),
                        static_cast<double>(nanoseconds) * 1e-9, why),
            {.peer = last, .operation = call}};
  }
  std::uint64_t load(const SignalCondition& condition) const {
    const std::uint64_t held = load_word(state_.signals()[condition.index]);
    if (!compares(held, condition.comparison, condition.value)) state_.want_signal(condition.index);
    return held;
  }
  std::int64_t time_to_loss(const SignalCondition& condition) {
    if (condition.from != SignalCondition::kAnyRank)
      return state_.is_self(condition.from) ? INT64_MAX : state_.time_to_loss(condition.from);
    std::int64_t last = state_.world().size == 1 ? INT64_MAX : 0;
    for (int rank = watched_rank_; rank < state_.world().size && last != INT64_MAX; ++rank)
      if (!state_.is_self(rank)) last = std::max(last, state_.time_to_loss(rank));
    return last;
  }
  bool can_come(const SignalCondition& condition) {
    if (condition.from == SignalCondition::kAnyRank) return watched_rank() != kNobody || state_.world().size == 1;
    return state_.is_self(condition.from) || !is_gone(state_, condition.from);
  }
  /// One that answers is enough, and asking connects: so one is asked at first, and as many more as have not answered
  /// each time. The time of all that are gone runs out nearly together then.
  void ask_any() {
    int silent = 0;
    int asked = 0;
    for (int rank = watched_rank(); rank != kNobody && rank < state_.world().size && asked <= silent; ++rank) {
      if (state_.is_self(rank) || is_gone(state_, rank)) continue;
      ++(ask_after(state_, rank) ? asked : silent);
    }
  }
  /// Another rank that is not known to be gone: one is enough to go on. Those known to be gone stay so.
  int watched_rank() {
    const int size = state_.world().size;
    while (watched_rank_ < size && (state_.is_self(watched_rank_) || is_gone(state_, watched_rank_))) ++watched_rank_;
    return watched_rank_ < size ? watched_rank_ : kNobody;
  }
  std::string unmet(const SignalCondition& condition) const {
    return fmt::format("signal {} holds {}, not {} {}", condition.index, load(condition), sign_of(condition.comparison),
                       condition.value);
  }

  WindowState& state_;
  std::span<const SignalCondition> conditions_;
  bool all_;
  bool asked_ = false;
  int watched_rank_ = 0;
  int last_asked_ = 0;
  std::size_t which_ = 0;
  std::uint64_t held_ = 0;
};

/// A wait has taken `part` so far: somebody may be gone, and whoever looks after the job is told.
[[gnu::noinline, gnu::cold]] void wait_long(WindowState& state, const char* call, SignalWait& wait, std::int64_t part,
                                            std::int64_t patience) {
  transport::Engine& engine = state.engine();
  const std::int64_t until = patience == INT64_MAX ? INT64_MAX : engine.clock().now() + (patience - part);
  const int named = wait.named();
  transport::LongWait watched(engine, telemetry::Waiting::signal, named < 0 ? named : state.world().world_rank(named),
                              part);
  do {
    wait.ask();
    watched.look([&] { return wait.describe(call); });
    part = std::min({kAskAfter, until - engine.clock().now(), watched.left()});
    state.wait_for_word([&] { return wait.ended(); }, part);
  } while (!wait.met() && !wait.hopeless() && engine.clock().now() < until);
}

}  // namespace

[[gnu::hot]] Result<SignalMet> WindowState::wait_signals(const char* call, std::span<const SignalCondition> conditions,
                                                         Wanted wanted, Deadline deadline) {
  const auto good = [this](const SignalCondition& each) { return makes_sense(each); };
  if (conditions.empty() || !std::ranges::all_of(conditions, good)) return bad_conditions(call, conditions);
  SignalWait wait(*this, conditions, wanted);
  const std::int64_t patience = nanoseconds(deadline);
  const std::int64_t away = engine_.health().away();
  // No clock is read before the wait turns out to be long.
  const std::int64_t part = std::min(wait.ask_after_nanoseconds(), patience);
  if (!wait_for_word([&] { return wait.ended(); }, part) && patience > part)
    wait_long(*this, call, wait, part, patience);
  if (wait.met()) return wait.result();
  if (deadline.is_default() && !wait.hopeless()) {
    const auto over = [&] { return wait.met() || (engine_.completions().any_failed() && wait.hopeless()); };
    await_loss(
        deadline, away, [&] { return wait.time_to_loss(); },
        [&](std::int64_t time) { return wait_for_word(over, time); });
    if (wait.met()) return wait.result();
  }
  return wait.failure(call, patience);
}

std::int64_t WindowState::time_to_loss(int rank) {
  const transport::Flow* const flow = existing_flow(rank);
  if (flow == nullptr) return INT64_MAX;
  if (flow->failed.load(std::memory_order_acquire)) return 0;
  const transport::ProgressGuard hold(engine_.progress_lock());
  return engine_.health().time_to_loss(*flow->route);
}

[[gnu::noinline, gnu::cold]] bool WindowState::await_loss(Deadline deadline, std::int64_t away,
                                                          const std::function<std::int64_t()>& left,
                                                          const std::function<bool(std::int64_t)>& wait) {
  if (!deadline.is_default()) return false;
  const Settings& settings = engine_.settings();
  const std::int64_t most = std::int64_t{std::min(settings.timeout_ms, settings.peer_timeout_ms)} * 1'000'000;
  // Not counting what this process is away from now on, as the peer's time does not.
  const std::int64_t until = engine_.clock().now() + most - engine_.health().away();
  for (;;) {
    const std::int64_t to_go = left();
    const std::int64_t away_now = engine_.health().away();
    if (to_go == INT64_MAX || to_go - (away_now - away) > most / kNearlyLost) return false;
    const std::int64_t time = std::min(kLookAgainAfter, until + away_now - engine_.clock().now());
    if (time <= 0) return false;
    if (wait(time)) return true;
  }
}

bool WindowState::wait_for_all(Deadline deadline) {
  const auto busy = [this] {
    for (int rank = 0; rank < world_.size; ++rank) {
      const transport::Flow* const flow = existing_flow(rank);
      if (flow != nullptr && flow->outstanding.load(std::memory_order_acquire) != 0) return rank;
    }
    return -1;
  };
  const auto none = [this] { return outstanding() == 0; };
  const auto wait = [&](std::int64_t time) { return engine_.wait_until(none, time); };
  const std::int64_t away = engine_.health().away();
  const bool in_time =
      transport::wait_watched(engine_, nanoseconds(deadline), telemetry::Waiting::quiet, -1, wait, [&] {
        const int rank = busy();
        return rank < 0 ? std::string("quiet") : waits_for("quiet", rank);
      });
  const auto time_to_first_loss = [this] {
    std::int64_t first = INT64_MAX;
    for (int rank = 0; rank < world_.size; ++rank) {
      const transport::Flow* const flow = existing_flow(rank);
      if (flow != nullptr && flow->outstanding.load(std::memory_order_acquire) != 0)
        first = std::min(first, time_to_loss(rank));
    }
    return first;
  };
  return in_time || await_loss(deadline, away, time_to_first_loss, wait);
}

/// The short way for one signal: most are there before the first pass is due. What is between the store of a peer and
/// the return of the wait is part of every round trip, so its caller takes this in, and nothing goes through memory.
[[gnu::always_inline]] inline bool WindowState::comes_shortly(const SignalCondition& condition, std::uint64_t& held) {
  if (!has_direct_peers_ || !makes_sense(condition)) return false;
  const std::uint64_t& word = signals()[condition.index];
  const Comparison comparison = condition.comparison;
  const std::uint64_t value = condition.value;
  const auto met = [&] {
    held = load_word(word);
    return comparison == Comparison::greater_equal ? held >= value : compares(held, comparison, value);
  };
  return use_.direct().mine().pace.spin(met);
}

Error WindowState::bad_conditions(const char* call, std::span<const SignalCondition> conditions) const {
  if (auto open = check_open(call); !open) return std::move(open.error());
  for (const SignalCondition& condition : conditions) {
    if (auto checked = check_signal(call, world_.rank, condition.index); !checked) return std::move(checked.error());
    if (condition.comparison > Comparison::greater_equal) {
      return unknown(call, "comparison", static_cast<int>(condition.comparison),
                     "equal (0), not_equal, less, less_equal, greater and greater_equal (5)");
    }
    if (condition.from == SignalCondition::kAnyRank) continue;
    if (auto checked = check_rank(call, condition.from); !checked) return std::move(checked.error());
  }
  return {Status::invalid, fmt::format("{}: no signal to wait for", call), {.operation = call}};
}

/// Dissemination: after round k every rank has heard, directly or not, of 2^(k+1) ranks.
Result<void> WindowState::run_barrier(Deadline deadline) {
  const std::int64_t nanoseconds = this->nanoseconds(deadline);
  const std::int64_t away = engine_.health().away();
  const std::int64_t start = engine_.clock().now();
  const auto left = [&] {
    return nanoseconds == INT64_MAX ? INT64_MAX
                                    : std::max<std::int64_t>(0, nanoseconds - (engine_.clock().now() - start));
  };
  if (!std::exchange(barrier_.inside, true)) {
    ++barrier_.epoch;
    barrier_.round = 0;
    barrier_.distance = 1;
    barrier_.told = false;
  }
  for (; barrier_.distance < world_.size; barrier_.distance *= 2, ++barrier_.round, barrier_.told = false) {
    const int to = (world_.rank + barrier_.distance) % world_.size;
    const int from = (world_.rank - barrier_.distance + world_.size) % world_.size;
    if (!barrier_.told) {
      const SignalUpdate arrival{barrier_.round * kWordsPerRound, 1, SignalOp::add};
      auto sent =
          put({.call = "barrier", .rank = to, .signal = &arrival, .exposed_region = part(to).barrier_exposed_region});
      if (!sent) return std::move(sent.error());
      barrier_.told = true;
    }
    const std::uint64_t& word = barrier_word(barrier_.round);
    // A barrier needs every rank: one that is lost ends it. (One that has left came through it before.) Whoever takes
    // long is asked whether it is still there: nothing may ever have been sent to it.
    const auto over = [&] { return load_word(word) >= barrier_.epoch || lost_rank() >= 0; };
    std::int64_t until_asked = kAskAfter;
    const auto wait = [&](std::int64_t time) {
      const std::int64_t part = std::min(time, until_asked);
      if (part > 0) {
        if (wait_for_word(over, part)) return true;
        if ((until_asked -= part) == 0) ask_after(*this, from);
        if (time == part) return false;
      }
      return wait_for_word(over, time - part);
    };
    if (!wait_watched("barrier", from, telemetry::Waiting::barrier, left(), wait))
      await_loss(
          deadline, away, [&] { return time_to_loss(from); }, wait);
    if (load_word(word) >= barrier_.epoch) continue;
    if (const int lost = lost_rank(); lost >= 0) return in_our_terms(existing_flow(lost)->error.copy());
    return Error(Status::timeout,
                 fmt::format("barrier: rank {} did not come within {:.3f} s; the next call goes on waiting for it",
                             from, static_cast<double>(nanoseconds) * 1e-9),
                 {.peer = from, .operation = "barrier"});
  }
  // Nobody may owe an acknowledgement on leaving: the peer that waits for it could not tell us to make progress.
  const transport::ProgressGuard hold(engine_.progress_lock());
  engine_.report_now();
  return {};
}

}  // namespace window_detail

using window_detail::WindowState;

[[gnu::hot]] Result<std::uint64_t> Window::wait_signal(std::size_t index, Comparison comparison, std::uint64_t value,
                                                       Deadline deadline, int from) {
  const SignalCondition condition{index, comparison, value, from};
  if (std::uint64_t held = 0; state_->comes_shortly(condition, held)) return held;
  auto met = state_->wait_signals("wait_signal", {&condition, 1}, WindowState::Wanted::any, deadline);
  if (!met) return std::move(met.error());
  return met->held;
}

Result<SignalMet> Window::wait_any_signal(std::span<const SignalCondition> conditions, Deadline deadline) {
  return state_->wait_signals("wait_any_signal", conditions, WindowState::Wanted::any, deadline);
}

Result<void> Window::wait_all_signals(std::span<const SignalCondition> conditions, Deadline deadline) {
  auto met = state_->wait_signals("wait_all_signals", conditions, WindowState::Wanted::all, deadline);
  if (!met) return std::move(met.error());
  return {};
}

Result<void> Window::barrier(Deadline deadline) {
  if (auto checked = state_->check_collective("barrier"); !checked) return checked;
  if (auto quieted = quiet(deadline); !quieted) return quieted;
  if (auto met = state_->run_barrier(deadline); !met) return met;
  auto quieted = quiet(deadline);
  // Everybody has come; only what was sent to say so may still be under way, and the next call sees to that.
  state_->barrier().inside = quieted.status() == Status::timeout;
  return quieted;
}

}  // namespace railyard
