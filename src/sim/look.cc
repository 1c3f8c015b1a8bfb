// What a program looks at: its signals, its counters, its tickets. What it sees goes to the model.
#include <fmt/format.h>

#include <algorithm>

#include "sim/program.hpp"

namespace railyard::sim {

namespace {

constexpr std::uint64_t kSharedBits = 0xffff;
/// Tickets that one turn asks after.
constexpr std::size_t kAsked = 2;
constexpr std::size_t kAskedAtEnd = 4;

}  // namespace

Program::Program(Stage& stage, int rank)
    : stage_(stage),
      rank_(rank),
      buffers_(stage.plan.behaviour.large),
      signal_base_(stage.plan.ranks),
      said_goodbye_(stage.plan.ranks),
      lost_(stage.plan.ranks) {
  outstanding_.reserve(stage.plan.behaviour.most_outstanding + 16);
  for (std::uint32_t i = 0; i < kCounters; ++i) free_counters_.push_back(i);
  for (std::uint32_t i = 0; i < kCells; ++i) free_cells_.push_back(i);
}

void Program::turn() {
  const Behaviour& behaviour = stage_.plan.behaviour;
  if (stage_.fabric().now() < asleep_until_) return;
  if (stage_.operations < behaviour.operations && percent(behaviour.issue_percent) && !broken_) {
    for (std::uint64_t left = 1 + draw(behaviour.most_burst); left > 0; --left) {
      if (outstanding_.size() >= behaviour.most_outstanding ||
          !submit(draw_kind(), stage_.pair(rank_, draw_target()))) {
        break;
      }
    }
  }
  if (percent(behaviour.progress_percent)) stage_.world(rank_).progress();
  watch_signals();
  watch_counters();
  for (std::size_t i = 0; i < kAsked && !outstanding_.empty(); ++i) ask_after(draw(outstanding_.size()));
  if (percent(1)) ask_quiet();
  if (stage_.brief != nullptr) stage_.brief->turn(rank_);
  if (percent(behaviour.sleep_percent)) {
    asleep_until_ =
        stage_.fabric().now() + static_cast<std::int64_t>(draw(static_cast<std::uint64_t>(behaviour.sleep)));
  }
}

void Program::look_around() {
  stage_.world(rank_).progress();
  watch_signals();
  watch_counters();
  // A few at a time: each question makes progress too, and most answers are no.
  for (std::size_t i = 0; i < kAskedAtEnd && !outstanding_.empty(); ++i) ask_after(next_asked_++ % outstanding_.size());
  if (stage_.brief != nullptr) stage_.brief->look(rank_);
}

void Program::watch_signals() {
  const Layout& layout = stage_.layout;
  bool news = false;
  for (int source = 0; source < static_cast<int>(stage_.plan.ranks); ++source) {
    Pair* pair = stage_.existing_pair(source, rank_);
    if (pair == nullptr || pair->cut) continue;
    const auto from = static_cast<std::size_t>(source);
    const std::uint64_t sets = window().read_signal(layout.set_signal(from));
    news |= pair->sets.observe(sets, stage_.findings);
    const std::uint64_t shared = window().read_signal(layout.shared_signal(from)) >> Layout::shared_shift(from);
    news |= pair->shared.observe(shared & kSharedBits, stage_.findings);
    const std::uint64_t adds = window().read_signal(Layout::add_signal(from));
    news |= pair->adds.observe(adds + signal_base_[from], stage_.findings);
    if (adds != 0 && percent(2) && window().reset_signal(Layout::add_signal(from)).ok()) signal_base_[from] += adds;
  }
  if (news) stage_.note_change();
  Target& here = stage_.targets[static_cast<std::size_t>(rank_)];
  const std::uint64_t sum = window().read_signal(layout.sum_signal());
  if (sum < here.sum_seen || sum > here.sums.total()) {
    stage_.findings.add(Finding::doubled, fmt::format("rank {}: the sum signal went from {} to {}, {} was submitted",
                                                      rank_, here.sum_seen, sum, here.sums.total()));
  }
  here.sum_seen = sum;
}

void Program::watch_counters() {
  for (Outstanding& one : outstanding_) {
    if (one.counter != UINT32_MAX && !one.source_free && check_counter(one)) source_is_free(one);
  }
}

/// Whether the operation's counter has advanced; it may only do so once, by the right amount.
bool Program::check_counter(Outstanding& one) {
  const std::uint64_t value = window().read_counter(one.counter);
  if (value == one.counter_before) return false;
  if (value != one.counter_before + one.counter_value) {
    stage_.findings.add(value > one.counter_before + one.counter_value ? Finding::doubled : Finding::corrupt,
                        fmt::format("{}: its counter went from {} to {}, not to {}", name(one), one.counter_before,
                                    value, one.counter_before + one.counter_value));
  }
  counter_values_[one.counter] = value;
  return true;
}

void Program::ask_after(std::size_t index) {
  Outstanding& one = outstanding_[index];
  if (!one.source_free && !one.is_get) {
    const auto free = window().test(one.ticket, Completion::local);
    if (free.ok() && free.value()) source_is_free(one);
  }
  const auto done = window().test(one.ticket, Completion::remote);
  if (!done.ok()) {
    if (is_peer_loss(done.error(), one.pair->flow.target())) {
      give_up(one);
    } else {
      if (!broken_) stage_.findings.add(Finding::lost, fmt::format("{} failed: {}", name(one), done.error().text()));
      broken_ = true;
    }
    forget(index);
    return;
  }
  if (!done.value()) return;
  complete(one);
  forget(index);
}

/// With nothing outstanding to a target, all that was ever sent there must be visible.
void Program::ask_quiet() {
  const auto target = static_cast<int>(draw(stage_.plan.ranks));
  Pair* pair = stage_.existing_pair(rank_, target);
  if (pair == nullptr || !pair->whole() || !window().quiet(target, Deadline::in(std::chrono::nanoseconds(0))).ok()) {
    return;
  }
  pair->flow.confirm_all("quiet");
}

void Program::source_is_free(Outstanding& done) {
  done.source_free = true;
  buffers_.give(done.buffer, done.shift + done.bytes);
  stage_.note_change();
}

void Program::complete(Outstanding& done) {
  stage_.note_change();
  FlowModel& flow = done.pair->flow;
  if (done.is_get) {
    complete_get(done);
    return;
  }
  if (!done.source_free) source_is_free(done);
  if (done.put != FlowModel::kNone) flow.confirm_put(done.put, "its completion");
  if (done.fetch != Outstanding::Fetch::none) complete_fetch(done);
  if (done.position != FlowModel::kNone) flow.confirm(done.position, to_string(done.kind));
  if (done.counter != UINT32_MAX) {
    if (!check_counter(done)) {
      stage_.findings.add(Finding::lost, fmt::format("{} is complete, but its counter did not advance", name(done)));
    }
    free_counters_.push_back(done.counter);
  }
}

/// Its target is dead. What it used is used again at once: nothing may still read from it or write to it.
void Program::give_up(Outstanding& failed) {
  stage_.note_change();
  if (failed.is_get) {
    if (failed.put != FlowModel::kNone) failed.pair->flow.end_read(failed.put);
    buffers_.give(failed.buffer, failed.shift + failed.bytes);
  } else if (!failed.source_free) {
    source_is_free(failed);
  }
  // Its counter may or may not have advanced: that one is not used again.
  if (failed.cell != UINT32_MAX) free_cells_.push_back(failed.cell);
}

void Program::complete_get(Outstanding& done) {
  const auto bytes = std::span<const std::byte>(buffers_.memory(done.buffer)).subspan(done.shift, done.bytes);
  if (done.pair->cut) {
    // It may have read what its target's program has put there since.
    if (done.put != FlowModel::kNone) done.pair->flow.end_read(done.put);
  } else if (done.put != FlowModel::kNone) {
    done.pair->flow.check_read(done.put, bytes, "a get behind a fence");
    done.pair->flow.end_read(done.put);
  } else {
    const Pattern constant(stage_.plan.seed, static_cast<std::uint64_t>(done.pair->flow.target()), 0);
    if (!constant.matches(bytes, done.constant_offset)) {
      stage_.findings.add(Finding::corrupt, fmt::format("{}: got wrong bytes", name(done)));
    }
  }
  if (!buffers_.intact_around(done.buffer)) {
    stage_.findings.add(Finding::corrupt, fmt::format("{}: bytes beside its destination were changed", name(done)));
  }
  buffers_.give(done.buffer, done.shift + done.bytes);
}

void Program::complete_fetch(Outstanding& done) {
  const std::uint64_t before = cells_[done.cell];
  SharedWords& words = stage_.targets[static_cast<std::size_t>(done.pair->flow.target())].words;
  switch (done.fetch) {
    case Outstanding::Fetch::own: {
      // A 32-bit fetch writes 32 bits.
      const std::uint64_t expected = done.order == 4 ? (0xdbdbdbdb00000000ULL | done.expected) : done.expected;
      if (before != expected) {
        stage_.findings.add(Finding::corrupt,
                            fmt::format("{}: fetched {:#x}, not {:#x}", name(done), before, expected));
      }
      break;
    }
    case Outstanding::Fetch::add:
      words.fetched_add(rank_, done.order, before);
      break;
    case Outstanding::Fetch::swap:
      words.fetched_swap(before);
      break;
    case Outstanding::Fetch::compare:
      words.fetched_compare(done.expected, done.brought, before);
      done.pair->compare_seen = before == done.expected ? done.brought : before;
      break;
    case Outstanding::Fetch::none:
      break;
  }
  free_cells_.push_back(done.cell);
}

void Program::forget(std::size_t index) {
  outstanding_[index] = outstanding_.back();
  outstanding_.pop_back();
}

std::string Program::name(const Outstanding& one) const {
  return fmt::format("rank {} to {}: operation {} ({}{})", rank_, one.pair->flow.target(), one.operation,
                     one.is_get ? "get of " : "", to_string(one.kind));
}

void Program::report_stuck() {
  for (const Outstanding& one : outstanding_) {
    stage_.findings.add(Finding::lost, fmt::format("{}: not complete", name(one)));
  }
  if (stage_.brief != nullptr) stage_.brief->report_stuck(rank_);
}

/// What one source has done here. What a dead one had begun may be there or not, but only in order.
void Program::finish_pair(Pair& pair) {
  const Layout& layout = stage_.layout;
  const int source = pair.flow.source();
  const auto from = static_cast<std::size_t>(source);
  if (pair.cut) {
    if (changed_since_cut(pair)) {
      stage_.findings.add(Finding::ghost, fmt::format("rank {} to {}: something took effect after its source had been "
                                                      "given up as lost",
                                                      source, rank_));
    }
    pair.flow.finish(false);
    return;
  }
  const bool all = stage_.fabric().alive(source) && pair.whole();
  pair.adds.finish(window().read_signal(Layout::add_signal(from)) + signal_base_[from], all, stage_.findings);
  pair.sets.finish(window().read_signal(layout.set_signal(from)), all, stage_.findings);
  const std::uint64_t shared = window().read_signal(layout.shared_signal(from)) >> Layout::shared_shift(from);
  pair.shared.finish(shared & kSharedBits, all, stage_.findings);
  for (std::size_t word = 0; word < Layout::kOwnWords; ++word) {
    std::uint64_t held = 0;
    std::memcpy(&held, window().local().data() + layout.own_word(from, word), pair.words[word].width);
    if (all ? held == pair.words[word].value : pair.words[word].ever_held(held)) continue;
    stage_.findings.add(Finding::corrupt, fmt::format("rank {} to {}: its atomics made {:#x} of word {}, not {:#x}",
                                                      source, rank_, held, word, pair.words[word].value));
  }
  pair.flow.finish(all);
}

void Program::finish() {
  const auto memory = window().local();
  int dead = -1;
  int gone = 0;
  for (int source = 0; source < static_cast<int>(stage_.plan.ranks); ++source) {
    Pair* pair = stage_.existing_pair(source, rank_);
    if (!stage_.fabric().alive(source) || (pair != nullptr && !pair->whole())) {
      dead = source;
      ++gone;
    }
    if (pair != nullptr) finish_pair(*pair);
  }
  if (stage_.brief != nullptr) stage_.brief->finish(rank_);
  const Pattern constant(stage_.plan.seed, static_cast<std::uint64_t>(rank_), 0);
  if (!constant.matches(memory.first(Layout::kConstantBytes))) {
    stage_.findings.add(Finding::corrupt, fmt::format("rank {}: memory that nobody puts to was changed", rank_));
  }
  if (gone > 1) return;  // what the words of all ranks hold cannot be told from the rest
  Target& here = stage_.targets[static_cast<std::size_t>(rank_)];
  const std::uint64_t sum = window().read_signal(stage_.layout.sum_signal());
  here.sums.finish(sum, UINT64_MAX, dead, fmt::format("rank {}: the sum signal", rank_), stage_.findings);
  here.words.finish(stage_.layout, memory, dead, stage_.findings);
}

}  // namespace railyard::sim
