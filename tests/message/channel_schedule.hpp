/// One schedule of channels: processes, a network with faults, settings and a random program, all from one seed. What
/// `sim/schedule.hpp` is to windows.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "channel_line.hpp"
#include "sim/plan.hpp"
#include "yard.hpp"

namespace railyard::message {

struct ScheduleOutcome {
  std::vector<std::string> findings;
  std::uint64_t messages = 0;
  std::uint64_t channels = 0;
  std::uint64_t links_lost = 0;
  std::uint64_t replayed = 0;
  std::uint64_t fenced = 0;
  std::uint64_t aborts = 0;
  std::uint64_t digest = 0;
  bool death = false;
};

class ChannelSchedule {
 public:
  ChannelSchedule(std::uint64_t seed, const sim::ScenarioOptions& options)
      : random_(seed * 0x2545f4914f6cdd1dULL + 1), abort_random_(seed), plan_(draw_plan(seed, options)) {
    std::vector<Settings> settings(plan_.ranks, plan_.settings);
    // Ends that are set otherwise must get along.
    if (random_.chance(0.3)) settings.back().shared_links = static_cast<std::uint32_t>(random_.below(3));
    yard_ = std::make_unique<Yard>(plan_.fabric, settings);
    behaviour_.eager_bytes = plan_.settings.eager_bytes;
    behaviour_.most_bytes = plan_.behaviour.large ? 256 * 1024 : 1 + random_.below(40'000);
    behaviour_.most_outstanding = plan_.behaviour.most_outstanding;
    behaviour_.tags = 1 + static_cast<std::uint32_t>(random_.below(4));
    behaviour_.group_percent = random_.chance(0.5) ? 50 : 0;
    behaviour_.registered_percent = random_.chance(0.5) ? 40 : 0;
    most_lines_ = 1 + random_.below(8);
    close_probability_ = random_.chance(0.5) ? 0.02 : 0.0;
  }

  ScheduleOutcome run() {
    play();
    if (wind_up()) part();
    for (auto& line : lines_) line->report(outcome_.findings);
    for (std::size_t process = 0; process < yard_->size(); ++process) look_at_engine(process);
    for (auto& line : lines_) outcome_.messages += line->messages();
    outcome_.channels = lines_.size();
    lines_.clear();
    outcome_.digest = yard_->fabric.trace();
    for (std::size_t process = 0; process < yard_->size(); ++process) {
      outcome_.death |= !yard_->alive(process);
      yard_->end(process);
    }
    look_at_network();
    return std::move(outcome_);
  }

 private:
  static constexpr std::int64_t kPatience = 60'000'000'000;
  static constexpr std::int64_t kBlocked = 500'000'000;

  sim::Plan draw_plan(std::uint64_t seed, sim::ScenarioOptions options) {
    if (options.ranks == 0) options.ranks = random_.chance(0.7) ? 2 : 3;
    sim::Plan plan = sim::make_plan(seed, options);
    plan.settings.timeout_ms = 30'000;
    constexpr std::array<std::uint32_t, 5> kEager{0, 64, 4096, 4096, 30'000};
    plan.settings.eager_bytes = kEager[random_.below(kEager.size())];
    plan.settings.shared_links = static_cast<std::uint32_t>(random_.below(4));
    plan.behaviour.operations = std::min(plan.behaviour.operations, 400U);
    return plan;
  }

  void find(const std::string& what) { outcome_.findings.push_back(what); }
  bool stuck(const char* where) {
    if (yard_->fabric.now() - last_news_ < kPatience) return false;
    find(fmt::format("nothing happens any more: {}", where));
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (!lines_[i]->idle() || !lines_[i]->hears_the_end())
        find(fmt::format("channel {}:{}", i, lines_[i]->describe()));
    }
    for (std::size_t process = 0; process < yard_->size(); ++process) describe_routes(process);
    return true;
  }
  void describe_routes(std::size_t process) {
    for (const auto& route : yard_->at(process).engine().registry().routes()) {
      std::string links;
      for (const auto& link : route->links) links += fmt::format(" {}", static_cast<int>(link.health.state));
      for (const transport::Flow* flow : route->flows) {
        links += fmt::format(", flow {}{}{}", flow->id, flow->failed ? " failed" : "", flow->closing ? " closing" : "");
      }
      find(fmt::format("process {} ({}): route to {}: links in state{}{}{}{}", process,
                       yard_->alive(process) ? "alive" : "dead", route->who, links, route->over ? ", over" : "",
                       route->watched ? ", watched" : "", route->concerned_since != 0 ? ", concerned" : ""));
    }
  }
  void note(bool news) {
    if (news) last_news_ = yard_->fabric.now();
  }

  void open_line() {
    const std::size_t from = random_.below(yard_->size());
    const std::size_t to = (from + 1 + random_.below(yard_->size() - 1)) % yard_->size();
    if (!yard_->alive(from) || !yard_->alive(to)) return;
    Ends ends = yard_->join(from, to, static_cast<std::uint32_t>(random_.below(2)), random_.chance(0.9));
    if (!ends) return find("no channel: " + yard_->why);
    lines_.push_back(std::make_unique<ChannelLine>(*yard_, std::move(ends), from, to, behaviour_,
                                                   fmt::format("channel {}", lines_.size())));
  }
  std::size_t open_lines() const {
    std::size_t count = 0;
    for (const auto& line : lines_) count += line->over() ? 0 : 1;
    return count;
  }

  /// Random acts until enough was begun.
  void play() {
    last_news_ = yard_->fabric.now();
    for (std::uint32_t acts = 0; acts < plan_.behaviour.operations;) {
      if (open_lines() < most_lines_ && (lines_.empty() || random_.chance(0.1))) {
        open_line();
        ++acts;
      }
      for (auto& line : lines_) {
        if (line->over()) continue;
        for (std::uint64_t burst = random_.below(plan_.behaviour.most_burst + 1); burst > 0; --burst) {
          const bool begun = line->act(random_);
          acts += begun ? 1 : 0;
          note(begun);
        }
        if (random_.chance(plan_.behaviour.progress_percent / 100.0)) note(line->look());
        if (!random_.chance(close_probability_)) continue;
        const std::size_t end = random_.below(2);
        if (abort_random_.chance(0.5)) {
          line->abort(end, abort_random_);
          outcome_.aborts += 1;
        } else {
          line->close(end);
        }
        note(true);  // however long it waited
      }
      if (open_lines() == 0) ++acts;
      yard_->round();
      // Everybody waits for what nobody will begin: receives of other tags than what was sent.
      if (yard_->fabric.now() - last_news_ > kBlocked) return;
    }
  }

  /// Until everything that was begun has ended, and all has arrived that could.
  bool wind_up() {
    for (bool all = false; !all;) {
      all = true;
      for (auto& line : lines_) {
        if (line->over()) continue;
        note(line->look());
        if (line->healthy()) {
          const bool missing = line->wind_up(random_);
          if (missing || !line->idle() || !line->arrived()) all = false;
        } else if (!line->hears_the_end()) {
          all = false;
        }
      }
      yard_->round();
      if (stuck("while everything was to end")) return false;
    }
    return true;
  }

  /// Closes what is open, from either end first, and waits until nothing is left.
  void part() {
    for (auto& line : lines_) {
      const std::size_t first = random_.below(2);
      line->close(first);
      if (random_.chance(0.5)) yard_->round();
      line->close(1 - first);
    }
    if (!yard_->until([this] { return yard_->empty(); }, 30'000'000'000)) {
      for (std::size_t i = 0; i < yard_->size(); ++i) {
        find(fmt::format("process {} is left with {} routes, {} flows, {} channels", i, yard_->routes(i),
                         yard_->flows(i), yard_->at(i).channels()));
      }
    }
    // What is late lands now, or never.
    for (int i = 0; i < 100; ++i) yard_->round();
  }

  void look_at_engine(std::size_t process) {
    const WorldStatistics statistics = yard_->at(process).engine().statistics();
    outcome_.links_lost += statistics.links_lost;
    outcome_.replayed += statistics.units_replayed;
    if (statistics.dropped_malformed != 0) {
      find(fmt::format("process {} dropped {} malformed messages", process, statistics.dropped_malformed));
    }
  }
  void look_at_network() {
    const auto& network = yard_->fabric.statistics();
    outcome_.fenced = network.fenced;
    // Whoever was told of memory that is deregistered since may still name it, and is refused.
    if (network.violations() != 0 && outcome_.aborts == 0)
      find(fmt::format("{} accesses were refused", network.violations()));
    if (network.registrations_left != 0 || network.unknown_registrations != 0) {
      find(fmt::format("{} registrations are left, {} unknown ones were taken back", network.registrations_left,
                       network.unknown_registrations));
    }
  }

  Random random_;
  Random abort_random_;  ///< of its own: what the others draw stays as it was
  sim::Plan plan_;
  std::unique_ptr<Yard> yard_;
  LineBehaviour behaviour_;
  std::vector<std::unique_ptr<ChannelLine>> lines_;
  std::size_t most_lines_ = 1;
  double close_probability_ = 0;
  std::int64_t last_news_ = 0;
  ScheduleOutcome outcome_;
};

inline ScheduleOutcome run_channels(std::uint64_t seed, const sim::ScenarioOptions& options = {}) {
  return ChannelSchedule(seed, options).run();
}

}  // namespace railyard::message
