#include "sim/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "sim/program.hpp"
#include "sim/stage.hpp"

namespace railyard::sim {

namespace {

/// Nothing changes for so long in virtual time: what is under way then is lost.
constexpr std::int64_t kPatience = 60'000'000'000;
constexpr std::int64_t kFirstIdle = 10'000;
constexpr std::int64_t kMostIdle = 10'000'000;
/// Rounds without a packet before a world counts as silent: acknowledgements may wait for a few passes.
constexpr int kSilentRounds = 64;
/// Links that are down are tried again for ever, so silence may never come; what was held back has landed by then.
constexpr std::int64_t kMostSettling = 1'000'000'000;

class Run {
 public:
  /// `second`: what the same ranks do in another world, in turn with the first; null: there is none.
  Run(Stage& stage, Stage* second) : stage_(stage), second_(second) {
    for (std::uint32_t rank = 0; rank < stage.plan.ranks; ++rank) {
      programs_.push_back(std::make_unique<Program>(stage, static_cast<int>(rank)));
      if (second != nullptr) programs_.push_back(std::make_unique<Program>(*second, static_cast<int>(rank)));
    }
  }

  void play() {
    if (act() && drain()) settle();
    for (auto& program : programs_) {
      if (program->alive()) program->finish();
    }
  }

 private:
  bool stuck() {
    const std::int64_t change =
        second_ == nullptr ? stage_.last_change : std::max(stage_.last_change, second_->last_change);
    if (stage_.fabric().now() - change < kPatience) return false;
    for (auto& program : programs_) {
      if (program->alive()) program->report_stuck();
    }
    return true;
  }

  void let_time_pass() {
    auto& fabric = stage_.fabric();
    if (fabric.anything_ready()) {
      fabric.advance(
          static_cast<std::int64_t>(stage_.random.below(static_cast<std::uint64_t>(stage_.plan.behaviour.turn))));
      return;
    }
    if (fabric.step_within(idle_)) {
      idle_ = kFirstIdle;
      return;
    }
    // Only timers are left: go on faster and faster, so that a stuck run ends soon.
    fabric.advance(idle_);
    idle_ = std::min(idle_ * 2, kMostIdle);
  }

  /// Everybody in turn, from a random first one, until enough was submitted.
  bool act() {
    const std::size_t ranks = programs_.size();
    while (stage_.operations + (second_ == nullptr ? 0 : second_->operations) < stage_.plan.behaviour.operations) {
      const std::size_t first = stage_.random.below(ranks);
      for (std::size_t i = 0; i < ranks; ++i) {
        Program& program = *programs_[(first + i) % ranks];
        if (program.able()) program.turn();
      }
      let_time_pass();
      if (stuck()) return false;
    }
    return true;
  }

  /// Until everything is complete everywhere and every last signal has been seen.
  bool drain() {
    for (;;) {
      bool done = true;
      for (auto& program : programs_) {
        if (!program->alive()) continue;
        if (!program->able()) {
          done = false;
          continue;
        }
        done = program->say_goodbye() && done;
        program->look_around();
        done = program->idle() && done;
      }
      if (done) return true;
      let_time_pass();
      if (stuck()) return false;
    }
  }

  /// Until the network is silent, so that whatever is late has landed before the last look.
  void settle() {
    auto& fabric = stage_.fabric();
    const std::int64_t until = fabric.now() + kMostSettling;
    for (int silent = 0; silent < kSilentRounds && fabric.now() < until; ++silent) {
      for (auto& program : programs_) {
        if (program->able()) program->look_around();
      }
      if (fabric.anything_ready() || fabric.packets_in_network() > 0) silent = 0;
      let_time_pass();
    }
  }

  Stage& stage_;
  Stage* second_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::int64_t idle_ = kFirstIdle;
};

}  // namespace

Result<Outcome> run_schedule(std::uint64_t seed, const ScenarioOptions& options) {
  auto opened = Stage::open(make_plan(seed, options));
  if (!opened) return std::move(opened.error());
  Stage& stage = **opened;
  std::unique_ptr<Stage> second;
  if (stage.plan.two_worlds) {
    auto beside = stage.open_second();
    if (!beside) return std::move(beside.error());
    second = std::move(*beside);
  }
  {
    Run run(stage, second.get());
    run.play();
  }
  Outcome outcome;
  for (const World& world : stage.cluster->worlds) {
    const WorldStatistics statistics = world.statistics();
    outcome.held_out_of_order += statistics.held_out_of_order;
    outcome.links_lost += statistics.links_lost;
    outcome.replayed += statistics.segments_replayed;
    // Where somebody asks for what must be refused, some of it is malformed.
    const bool expected = stage.plan.fabric.programs.any() || !stage.plan.fabric.intrusions.empty();
    if (statistics.dropped_malformed != 0 && !expected) {
      stage.findings.add(Finding::violation, fmt::format("rank {} dropped {} malformed messages", world.rank(),
                                                         statistics.dropped_malformed));
    }
  }
  outcome.virtual_time = stage.fabric().now();
  outcome.digest = stage.fabric().trace();
  if (stage.brief != nullptr) stage.brief->close();
  stage.cluster->close();
  const auto& fabric = stage.fabric().statistics();
  for (int fault = 1; fault < fabric::sim::kFaults; ++fault) {
    const std::uint64_t count = fabric.faults[static_cast<std::size_t>(fault)];
    if (!fabric::sim::is_violation(fault) || count == 0) continue;
    stage.findings.add(Finding::violation,
                       fmt::format("{} accesses refused: {}", count, fabric::sim::fault_text(fault)));
  }
  if (fabric.registrations_left != 0 || fabric.unknown_registrations != 0) {
    stage.findings.add(Finding::violation,
                       fmt::format("{} registrations left when their rail was closed, {} unknown ones taken back",
                                   fabric.registrations_left, fabric.unknown_registrations));
  }
  outcome.packets = fabric.packets;
  outcome.busy = fabric.busy;
  outcome.packets_fenced = fabric.fenced;
  outcome.death = std::ranges::any_of(stage.plan.fabric.deaths,
                                      [&](const auto& death) { return !stage.fabric().alive(death.process); });
  outcome.operations = stage.operations;
  if (second != nullptr) {
    outcome.operations += second->operations;
    stage.findings.add(second->findings);
  }
  outcome.findings = std::move(stage.findings);
  return outcome;
}

}  // namespace railyard::sim
