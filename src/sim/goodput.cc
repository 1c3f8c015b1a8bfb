#include "sim/goodput.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>

#include "sim/pattern.hpp"
#include "sim/stage.hpp"

namespace railyard::sim {

namespace {

using fabric::sim::Carry;
using fabric::sim::RailState;

// Slow rails, so that a thousand ranks fit in one thread; a chunk takes a rail 4 ms, as on a loaded network.
constexpr double kBandwidth = 4e6;
constexpr std::uint32_t kChunk = 16 * 1024;
constexpr std::size_t kPut = 32 * 1024;
/// Puts under way from one rank to the next: more than its rails carry until a dead link has been replaced.
constexpr std::size_t kSlots = 48;
constexpr std::int64_t kTurn = 200'000;  ///< virtual time between two rounds of all ranks
constexpr std::int64_t kStep = 10'000'000;
/// A rank with nothing to do looks at its links so often.
constexpr std::uint64_t kIdleTurns = 5;
/// Ranks begin one after the other within this time: chunks of all of them at the same instant would make waves.
constexpr std::int64_t kBegin = 40'000'000;
constexpr std::byte kUsed{0x5a};

enum SignalIndex : std::size_t { kArrived, kFreed, kSignals };

Plan make_goodput_plan(const GoodputOptions& options, std::uint64_t& failures) {
  Plan plan = orderly_plan(options.ranks, options.rails);
  plan.seed = plan.fabric.seed = options.seed;
  plan.settings.log = "error";
  plan.settings.chunk_min = kChunk;
  plan.settings.chunk_max = kChunk;
  Random random(Random(options.seed).next());
  for (auto& rail : plan.fabric.rails) {
    rail.bandwidth = kBandwidth;
    rail.mtu = kChunk;
    rail.latency = 20'000;
    rail.plane = fmt::format("plane {}", rail.number);
    rail.knows_interface = random.chance(0.5);
    rail.retransmits = true;
  }
  const auto rails = static_cast<double>(plan.fabric.rails.size());
  const auto end = static_cast<std::int64_t>(options.seconds * 1e9);
  const auto start = static_cast<std::int64_t>(kGoodputStart * 1e9);
  failures = static_cast<std::uint64_t>(std::lround(rails * options.failing * (options.seconds - kGoodputStart)));
  for (std::uint64_t i = 0; i < failures; ++i) {
    const auto rail = static_cast<std::uint32_t>(random.below(plan.fabric.rails.size()));
    const auto from = start + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(end - start)));
    const auto until = from + 200'000'000 + static_cast<std::int64_t>(random.below(600'000'000));
    // Half of them with errors, half without a word.
    const Carry failure = random.chance(0.5) ? Carry::errors : Carry::nothing;
    plan.fabric.changes.push_back({from, rail, {failure, failure}});
    plan.fabric.changes.push_back({until, rail, {}});
  }
  return plan;
}

/// One rank: sends to the next one, checks what the one before it sends.
class Neighbour {
 public:
  Neighbour(Cluster& cluster, std::uint64_t seed, std::size_t rank, std::int64_t begins)
      : world_(cluster.worlds[rank]),
        window_(cluster.windows[rank]),
        seed_(seed),
        rank_(rank),
        next_((rank + 1) % cluster.worlds.size()),
        before_((rank + cluster.worlds.size() - 1) % cluster.worlds.size()),
        begins_(begins),
        sources_(std::make_unique_for_overwrite<std::byte[]>(kSlots * kPut)) {}

  /// Returns the bytes that arrived and were right.
  std::size_t turn(std::int64_t now, Goodput& result) {
    world_.progress();
    const std::size_t bytes = check_arrivals(result);
    give_back(result);
    if (now >= begins_) send(result);
    return bytes;
  }

 private:
  std::size_t check_arrivals(Goodput& result) {
    std::size_t bytes = 0;
    for (const std::uint64_t arrived = window_.read_signal(kArrived); checked_ < arrived; ++checked_) {
      const auto place = window_.local().subspan(checked_ % kSlots * kPut, kPut);
      ++result.puts;
      if (Pattern(seed_, before_, checked_).matches(place)) {
        bytes += kPut;
      } else {
        ++result.wrong;
      }
      std::memset(place.data(), static_cast<int>(kUsed), place.size());  // what lands once more is found out
    }
    return bytes;
  }

  void give_back(Goodput& result) {
    if (freed_ == checked_) return;
    const auto ticket = window_.signal(static_cast<int>(before_), {kFreed, checked_ - freed_, SignalOp::add});
    if (accepted(ticket, result)) freed_ = checked_;
  }

  void send(Goodput& result) {
    const std::uint64_t free_until = window_.read_signal(kFreed) + kSlots;
    for (; sent_ < free_until; ++sent_) {
      const std::size_t offset = sent_ % kSlots * kPut;
      const std::span<std::byte> source(sources_.get() + offset, kPut);
      if (prepared_ == sent_) {
        Pattern(seed_, rank_, sent_).fill(source);
        ++prepared_;
      }
      const auto ticket =
          window_.put_signal(static_cast<int>(next_), offset, source.data(), kPut, {kArrived, 1, SignalOp::add});
      if (!accepted(ticket, result)) return;
    }
  }

  static bool accepted(const Result<Ticket>& ticket, Goodput& result) {
    if (!ticket.ok() && ticket.status() != Status::busy) ++result.refused;
    return ticket.ok();
  }

  World& world_;
  Window& window_;
  std::uint64_t seed_;
  std::size_t rank_;
  std::size_t next_;
  std::size_t before_;
  std::int64_t begins_;
  std::unique_ptr<std::byte[]> sources_;
  std::uint64_t prepared_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t checked_ = 0;
  std::uint64_t freed_ = 0;
};

/// Line rate of the links to the next rank that carry at this moment.
double possible_rate(const Cluster& cluster, const GoodputOptions& options) {
  const auto count = options.ranks * options.rails;
  std::uint64_t standing = 0;
  for (std::uint32_t rail = 0; rail < count; ++rail) {
    const std::uint32_t next = (rail + options.rails) % count;
    standing += cluster.fabric.state(rail) == RailState{} && cluster.fabric.state(next) == RailState{} ? 1U : 0U;
  }
  return static_cast<double>(standing) * kBandwidth;
}

void sum_up(Goodput& result) {
  double delivered = 0;
  double possible = 0;
  result.worst = 1;
  for (const GoodputStep& step : result.steps) {
    if (step.time <= kGoodputStart) continue;
    delivered += step.delivered;
    possible += step.possible;
    result.worst = std::min(result.worst, step.delivered / step.possible);
  }
  result.share = delivered / possible;
}

}  // namespace

Result<Goodput> measure_goodput(const GoodputOptions& options) {
  if (options.ranks < 2 || options.rails == 0 || options.seconds <= kGoodputStart) {
    return Error(Status::out_of_range,
                 fmt::format("{} ranks, {} rails, {} s: at least 2 ranks, 1 rail and more than {} s", options.ranks,
                             options.rails, options.seconds, kGoodputStart));
  }
  Goodput result;
  result.line_rate = kBandwidth * options.ranks * options.rails;
  WindowOptions window_options;
  window_options.signals = kSignals;
  auto opened = Cluster::open(make_goodput_plan(options, result.failures), kSlots * kPut, window_options);
  if (!opened) return std::move(opened.error());
  Cluster& cluster = **opened;
  std::vector<std::unique_ptr<Neighbour>> ranks;
  Random random(options.seed);
  for (std::size_t rank = 0; rank < options.ranks; ++rank) {
    const auto begins = static_cast<std::int64_t>(random.below(kBegin));
    ranks.push_back(std::make_unique<Neighbour>(cluster, options.seed, rank, begins));
  }

  const auto steps = static_cast<std::uint64_t>(options.seconds * 1e9 / kStep);
  std::uint64_t turn = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    GoodputStep& added = result.steps.emplace_back();
    std::uint64_t bytes = 0;
    constexpr std::uint64_t kTurns = kStep / kTurn;
    for (std::uint64_t i = 0; i < kTurns; ++i, ++turn) {
      cluster.fabric.advance(kTurn);
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const bool due = turn % kIdleTurns == rank % kIdleTurns;
        if (due || cluster.fabric.ready(static_cast<int>(rank))) {
          bytes += ranks[rank]->turn(cluster.fabric.now(), result);
        }
      }
      added.possible += possible_rate(cluster, options) / kTurns;
    }
    added.time = static_cast<double>(cluster.fabric.now()) * 1e-9;
    added.delivered = static_cast<double>(bytes) * 1e9 / kStep;
  }
  for (const World& world : cluster.worlds) {
    const WorldStatistics statistics = world.statistics();
    result.links_lost += statistics.links_lost;
    result.replayed += statistics.segments_replayed;
  }
  sum_up(result);
  return result;
}

}  // namespace railyard::sim
