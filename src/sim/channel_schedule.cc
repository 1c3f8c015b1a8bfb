#include "sim/channel_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "sim/channel_pair.hpp"

namespace railyard::sim {

namespace {

/// Nothing changes for so long in virtual time: what is under way then is lost.
constexpr std::int64_t kNoNews = 90'000'000'000;
/// Everybody waits for what nobody will begin: receives of other tags than what was sent.
constexpr std::int64_t kBlocked = 500'000'000;
constexpr std::int64_t kParting = 60'000'000'000;
constexpr int kLastRounds = 100;

class ChannelRun {
 public:
  ChannelRun(std::uint64_t seed, const ScenarioOptions& options)
      : random_(seed * 0x2545f4914f6cdd1dULL + 1), plan_(draw_plan(seed, options)) {
    const auto& programs = plan_.fabric.programs;
    behaviour_.eager_bytes = plan_.settings.eager_bytes;
    behaviour_.most_bytes = plan_.behaviour.large ? 256 * 1024 : 1 + random_.below(40'000);
    behaviour_.most_outstanding = plan_.behaviour.most_outstanding;
    behaviour_.tags = 1 + static_cast<std::uint32_t>(random_.below(4));
    behaviour_.group_percent = random_.chance(0.5) ? 50 : 0;
    behaviour_.registered_percent = random_.chance(0.5) ? 40 : 0;
    // Whoever takes memory back has registered it.
    if (programs.aborts || programs.deregisters) behaviour_.registered_percent = 100;
    most_pairs_ = 1 + random_.below(8);
    close_probability_ = random_.chance(0.5) ? 0.02 : 0.0;
  }

  Result<void> open() {
    std::vector<Settings> settings(plan_.ranks, plan_.settings);
    // Ends that are set otherwise must get along.
    if (random_.chance(0.3)) settings.back().shared_links = static_cast<std::uint32_t>(random_.below(3));
    auto processes = ChannelProcesses::open(plan_.fabric, settings);
    if (!processes) return std::move(processes.error());
    processes_ = std::move(*processes);
    return {};
  }

  Outcome run() {
    play();
    if (wind_up()) part();
    Outcome outcome;
    for (auto& pair : pairs_) {
      pair->check_ghosts();
      outcome.operations += pair->messages();
    }
    for (std::size_t process = 0; process < processes_->size(); ++process) look_at_engine(process, outcome);
    pairs_.clear();
    auto& fabric = processes_->fabric;
    outcome.digest = fabric.trace();
    outcome.virtual_time = fabric.now();
    for (std::size_t process = 0; process < processes_->size(); ++process) {
      outcome.death |= !processes_->alive(process);
      processes_->end(process);
    }
    look_at_network(outcome);
    outcome.findings = std::move(findings_);
    return outcome;
  }

 private:
  Plan draw_plan(std::uint64_t seed, ScenarioOptions options) {
    if (options.ranks == 0) options.ranks = random_.chance(0.7) ? 2 : 3;
    options.ranks = std::max(options.ranks, 2U);
    Plan plan = make_plan(seed, options);
    plan.settings.timeout_ms = 30'000;
    constexpr std::array<std::uint32_t, 5> kEager{0, 64, 4096, 4096, 30'000};
    plan.settings.eager_bytes = kEager[random_.below(kEager.size())];
    plan.settings.shared_links = static_cast<std::uint32_t>(random_.below(4));
    plan.behaviour.operations = std::min(plan.behaviour.operations, 400U);
    return plan;
  }

  void note(bool news) {
    if (news) last_news_ = processes_->fabric.now();
  }
  bool stuck() {
    if (processes_->fabric.now() - last_news_ < kNoNews) return false;
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      if (!pairs_[i]->settled()) {
        findings_.add(Finding::lost, fmt::format("channel {} hangs:{}", i, pairs_[i]->describe()));
      }
    }
    if (findings_.clean()) findings_.add(Finding::lost, "nothing happens any more");
    return true;
  }

  void open_pair() {
    const std::size_t from = random_.below(processes_->size());
    const std::size_t to = (from + 1 + random_.below(processes_->size() - 1)) % processes_->size();
    if (!processes_->able(from) || !processes_->able(to)) return;
    ChannelEnds ends = processes_->join(from, to, static_cast<std::uint32_t>(random_.below(2)), random_.chance(0.9));
    if (!ends) {
      if (!may_be_lost(from, to)) findings_.add(Finding::lost, "no channel: " + processes_->why);
      return;
    }
    pairs_.push_back(std::make_unique<ChannelPair>(*processes_, std::move(ends), from, to, behaviour_,
                                                   fmt::format("channel {}", pairs_.size()), findings_));
  }
  std::size_t open_pairs() const {
    return static_cast<std::size_t>(std::ranges::count_if(pairs_, [](const auto& pair) { return !pair->over(); }));
  }
  /// One of them was stopped for long, and nothing told the other that it lives.
  bool may_be_lost(std::size_t one, std::size_t other) const {
    for (const auto& rail : plan_.fabric.rails) {
      if (rail.knows_liveness) return false;
    }
    const auto& fabric = processes_->fabric;
    const std::int64_t patience = std::int64_t{plan_.settings.peer_timeout_ms} * 1'000'000 / 2;
    return std::max(fabric.longest_pause(static_cast<int>(one)), fabric.longest_pause(static_cast<int>(other))) >=
           patience;
  }
  void close(ChannelPair& pair, std::size_t end) {
    if (pair.closed(end) || !processes_->able(pair.owner(end))) return;
    if (may_be_lost(pair.owner(0), pair.owner(1))) pair.allow_loss();
    pair.close(end);
    note(true);  // however long it waited
  }
  void perhaps_take_memory_back(ChannelPair& pair) {
    const auto& programs = plan_.fabric.programs;
    const std::size_t end = random_.below(2);
    if (pair.aborted(end)) {
      // Sooner or later it is closed as well.
      if (random_.chance(0.1)) close(pair, end);
      return;
    }
    if (programs.aborts && random_.chance(0.01)) pair.take_memory_back(end, true, random_);
    if (programs.deregisters && random_.chance(0.005)) pair.take_memory_back(end, false, random_);
  }

  /// Random acts until enough was begun.
  void play() {
    last_news_ = processes_->fabric.now();
    for (std::uint32_t acts = 0; acts < plan_.behaviour.operations;) {
      if (open_pairs() < most_pairs_ && (pairs_.empty() || random_.chance(0.1))) {
        open_pair();
        ++acts;
      }
      for (auto& pair : pairs_) {
        if (pair->over()) continue;
        if (may_be_lost(pair->owner(0), pair->owner(1))) pair->allow_loss();
        for (std::uint64_t burst = random_.below(plan_.behaviour.most_burst + 1); burst > 0; --burst) {
          const bool begun = pair->act(random_);
          acts += begun ? 1 : 0;
          note(begun);
        }
        if (random_.chance(plan_.behaviour.progress_percent / 100.0)) note(pair->look());
        perhaps_take_memory_back(*pair);
        if (random_.chance(close_probability_)) close(*pair, random_.below(2));
      }
      if (open_pairs() == 0) ++acts;
      processes_->round();
      if (processes_->fabric.now() - last_news_ > kBlocked) return;
    }
  }

  /// Until everything that was begun has ended, and all has arrived that could.
  bool wind_up() {
    for (bool all = false; !all;) {
      all = true;
      for (auto& pair : pairs_) {
        if (pair->over()) continue;
        if (may_be_lost(pair->owner(0), pair->owner(1))) pair->allow_loss();
        note(pair->look());
        for (std::size_t end = 0; end < 2; ++end) {
          if (pair->aborted(end) && random_.chance(0.1)) close(*pair, end);
          if (pair->aborted(end) && !pair->closed(end)) all = false;
        }
        const bool missing = pair->wind_up(random_);
        if (missing || !pair->settled()) all = false;
      }
      processes_->round();
      if (stuck()) return false;
    }
    return true;
  }

  /// Closes what is open, from either end first, and waits until nothing is left.
  void part() {
    for (bool all = false; !all;) {
      all = true;
      for (auto& pair : pairs_) {
        const std::size_t first = random_.below(2);
        close(*pair, first);
        if (random_.chance(0.5)) processes_->round();
        close(*pair, 1 - first);
        if (!pair->over()) all = false;  // its process is stopped
      }
      if (!all) processes_->round();
    }
    if (!processes_->until([this] { return processes_->empty(); }, kParting)) {
      for (std::size_t i = 0; i < processes_->size(); ++i) {
        if (!processes_->alive(i)) continue;
        findings_.add(Finding::lost, fmt::format("process {} is left with {} routes, {} flows, {} channels", i,
                                                 processes_->at(i).engine().peers().registry().size(),
                                                 processes_->at(i).engine().peers().flows().all().size(),
                                                 processes_->at(i).channels()));
      }
    }
    // What is late lands now, or never.
    for (int i = 0; i < kLastRounds; ++i) processes_->round();
  }

  void look_at_engine(std::size_t process, Outcome& outcome) {
    const WorldStatistics statistics = processes_->at(process).engine().statistics();
    outcome.held_out_of_order += statistics.held_out_of_order;
    outcome.links_lost += statistics.links_lost;
    outcome.replayed += statistics.segments_replayed;
    const bool expected = plan_.fabric.programs.any() || !plan_.fabric.intrusions.empty();
    if (statistics.dropped_malformed != 0 && !expected) {
      findings_.add(Finding::violation,
                    fmt::format("process {} dropped {} malformed messages", process, statistics.dropped_malformed));
    }
  }
  void look_at_network(Outcome& outcome) {
    const auto& network = processes_->fabric.statistics();
    outcome.packets = network.packets;
    outcome.busy = network.busy;
    outcome.packets_fenced = network.fenced;
    // An end that closes takes its memory back at once: what its peer writes then is refused, and nobody's mistake.
    const std::uint64_t expected = network.faults[fabric::sim::kFaultDeregistered];
    if (network.violations() != expected) {
      findings_.add(Finding::violation,
                    fmt::format("{} accesses were refused, {} registrations are left, {} unknown "
                                "ones were taken back",
                                network.violations(), network.registrations_left, network.unknown_registrations));
    }
  }

  Random random_;
  Plan plan_;
  Findings findings_;
  ChannelBehaviour behaviour_;
  std::unique_ptr<ChannelProcesses> processes_;
  std::vector<std::unique_ptr<ChannelPair>> pairs_;  // before the processes
  std::size_t most_pairs_ = 1;
  double close_probability_ = 0;
  std::int64_t last_news_ = 0;
};

}  // namespace

Result<Outcome> run_channel_schedule(std::uint64_t seed, const ScenarioOptions& options) {
  ChannelRun run(seed, options);
  if (auto opened = run.open(); !opened) return std::move(opened.error());
  return run.run();
}

}  // namespace railyard::sim
