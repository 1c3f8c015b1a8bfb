#include "bench_match.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.hpp"
#include "base/clock.hpp"
#include "bench/check.hpp"
#include "bench_domains.hpp"
#include "text.hpp"

namespace railyard::tool {

using bench::Contestant;
using bench::Plan;
using bench::Round;
using bench::Test;

namespace {

constexpr std::size_t kBytesInFlight = 8 * 1024 * 1024;
constexpr std::size_t kMostInFlight = 1024;
constexpr std::size_t kLeastInFlight = 4;

/// How a size is spread over memory: a stream keeps several MB in flight, each operation in a place of its own.
std::size_t slots_for(Test test, std::size_t bytes) {
  if (is_latency(test)) return 1;
  const std::size_t fitting = bytes == 0 ? kMostInFlight : kBytesInFlight / bytes;
  return std::clamp(fitting, kLeastInFlight, kMostInFlight);
}

std::size_t memory_for(const BenchOptions& options) {
  std::size_t most = 0;
  for (const std::size_t bytes : options.sizes) most = std::max(most, bytes * slots_for(options.test, bytes));
  // Rounded, so that the spare bytes at the end are aligned for any word.
  return (most + 63) / 64 * 64 + bench::kSpareBytes;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double figure(Test test, std::size_t bytes, std::uint64_t count, double seconds) {
  const auto operations = static_cast<double>(count);
  if (is_latency(test)) return seconds * 1e6 / operations;
  if (test == Test::rate) return operations / seconds;
  return static_cast<double>(bytes) * operations / seconds / 1e6;
}

/// `later` less `earlier`, over `seconds`.
std::vector<RailFigure> rail_figures(const WorldStatistics& earlier, const WorldStatistics& later, double seconds) {
  std::vector<RailFigure> figures;
  const auto rate = [seconds](std::uint64_t before, std::uint64_t after) {
    return seconds > 0 ? static_cast<double>(after - before) / seconds / 1e6 : 0;
  };
  for (std::size_t i = 0; i < later.rails.size(); ++i) {
    const RailStatistics& before = earlier.rails[i];
    const RailStatistics& after = later.rails[i];
    figures.push_back(
        {after.name, rate(before.bytes_sent, after.bytes_sent), rate(before.bytes_received, after.bytes_received)});
  }
  return figures;
}

}  // namespace

const char* test_name(Test test) {
  static constexpr const char* kNames[] = {"put", "get", "put_signal", "atomic", "rate"};
  return kNames[static_cast<std::size_t>(test)];
}

bool is_latency(Test test) { return test == Test::put_signal || test == Test::atomic; }

const char* test_unit(Test test) { return is_latency(test) ? "us" : test == Test::rate ? "op/s" : "MB/s"; }

BenchMatch::BenchMatch(const BenchOptions& options, World world, bench::Referee& referee)
    : options_(options), world_(std::move(world)), referee_(referee), began_ns_(SteadyClock().now()) {}

Result<std::unique_ptr<BenchMatch>> BenchMatch::open(const BenchOptions& options, const Settings& settings,
                                                     Bootstrap& bootstrap, bench::Referee& referee) {
  auto world = World::open({.settings = &settings, .bootstrap = &bootstrap});
  if (!world) return std::move(world.error());
  std::unique_ptr<BenchMatch> match(new BenchMatch(options, std::move(*world), referee));
  auto ours = bench::Ours::open(match->world_, memory_for(options));
  if (!ours) return std::move(ours.error());
  match->ours_ = std::move(*ours);
  if (options.beside_raw) {
    if (auto opened = match->open_raw(settings); !opened) return std::move(opened.error());
  }
  if (options.beside_socket) {
    if (auto opened = match->open_socket(settings); !opened) return std::move(opened.error());
  }
  match->serials_.resize(match->contestants().size());
  return match;
}

Result<void> BenchMatch::open_raw(const Settings& settings) {
  auto domains = domains_of_rails(world_, settings);
  Result<void> opened = domains.ok() ? Result<void>{} : Result<void>(std::move(domains.error()));
  raw_exposed_.resize(memory_for(options_));
  raw_buffer_.resize(memory_for(options_));
  for (std::size_t i = 0; opened.ok() && i < domains->size(); ++i) {
    auto rail = bench::RawRail::open((*domains)[i], raw_exposed_, raw_buffer_, options_.test == Test::atomic,
                                     settings.timeout_ms);
    if (rail) {
      raw_.push_back(std::move(*rail));
    } else {
      opened = std::move(rail.error());
    }
  }
  // A rank that could not open says so, rather than leaving the other one waiting.
  if (auto both = referee_.verdict(opened); !both) return both;
  return referee_.verdict(connect_raw());
}

Result<void> BenchMatch::connect_raw() {
  ByteWriter mine;
  mine.u32(static_cast<std::uint32_t>(raw_.size()));
  for (const auto& rail : raw_) {
    mine.text(rail->where().fabric);
    mine.blob(rail->contribution());
  }
  auto theirs = referee_.exchange(mine.bytes());
  if (!theirs) return std::move(theirs.error());
  ByteReader in(*theirs);
  std::vector<PeerDomain> peers(std::min<std::size_t>(in.u32(), 256));
  for (PeerDomain& peer : peers) {
    peer.fabric = in.text();
    const auto contribution = in.blob();
    peer.contribution.assign(contribution.begin(), contribution.end());
  }
  if (!in.done()) return Error(Status::version_mismatch, "the ranks of this bench run different programs");
  return pair_rails(raw_, peers, referee_.rank());
}

Result<void> BenchMatch::open_socket(const Settings& settings) {
  raw_exposed_.resize(memory_for(options_));
  raw_buffer_.resize(memory_for(options_));
  // A rail is called "tcp eth0 10.0.0.1".
  const std::string rail = world_.statistics().rails.front().name;
  auto opened =
      bench::RawSocket::open(rail.substr(rail.rfind(' ') + 1), raw_exposed_, raw_buffer_, settings.timeout_ms);
  if (opened) socket_ = std::move(*opened);
  if (auto both = referee_.verdict(socket_ ? Result<void>{} : Result<void>(std::move(opened.error()))); !both)
    return both;
  return referee_.verdict(connect_socket());
}

Result<void> BenchMatch::connect_socket() {
  ByteWriter mine;
  mine.text(socket_->address());
  mine.u32(socket_->port());
  auto theirs = referee_.exchange(mine.bytes());
  if (!theirs) return std::move(theirs.error());
  ByteReader in(*theirs);
  const std::string address = in.text();
  const std::uint32_t port = in.u32();
  if (!in.done()) return Error(Status::version_mismatch, "the ranks of this bench run different programs");
  return socket_->connect(referee_.rank(), address, static_cast<std::uint16_t>(port));
}

std::vector<Contestant*> BenchMatch::contestants() const {
  std::vector<Contestant*> all{ours_.get()};
  for (const auto& rail : raw_) all.push_back(rail.get());
  if (socket_) all.push_back(socket_.get());
  return all;
}

Result<void> BenchMatch::perform(const Plan& plan, double& seconds) {
  const auto all = contestants();
  if (plan.contestant >= all.size()) return Error(Status::version_mismatch, "rank 0 asks for a contestant not known");
  Contestant& contestant = *all[plan.contestant];
  bench::prepare(contestant, plan, referee_.rank());
  if (auto started = referee_.start(); !started) return started;
  Result<void> outcome;
  if (referee_.rank() == 0) {
    auto measured = contestant.run_source(plan.round);
    if (measured) {
      seconds = *measured;
    } else {
      outcome = std::move(measured.error());
    }
  } else {
    outcome = contestant.run_target(plan.round);
  }
  if (outcome.ok()) outcome = bench::verify(contestant, plan, referee_.rank());
  return referee_.verdict(outcome);
}

Result<double> BenchMatch::direct(std::size_t contestant, std::size_t bytes, std::uint64_t count, BenchRow& row) {
  Plan plan;
  plan.contestant = contestant;
  const std::size_t slots = slots_for(options_.test, bytes);
  // We have every rail, bare libfabric one at a time: each rail may have as much in flight either way.
  const std::size_t rails = contestant == 0 && !is_latency(options_.test) ? world_.rail_count() : 1;
  plan.round = Round{.test = options_.test,
                     .bytes = bytes,
                     .slots = slots,
                     .depth = slots * rails,
                     .count = count,
                     .serial = ++serials_[contestant]};
  if (auto agreed = referee_.agree(plan); !agreed) return std::move(agreed.error());
  double seconds = 0;
  if (auto done = perform(plan, seconds); !done) return std::move(done.error());
  ++row.rounds_verified;
  row.bytes_verified += options_.test == Test::put_signal ? 2 * bench::covered(plan.round) : bench::covered(plan.round);
  return std::max(seconds, 1e-9);
}

Result<void> BenchMatch::follow() {
  for (;;) {
    auto plan = referee_.agree(Plan{});
    if (!plan) return std::move(plan.error());
    if (plan->stop) return {};
    double ignored = 0;
    if (auto done = perform(*plan, ignored); !done) return done;
  }
}

Result<std::uint64_t> BenchMatch::calibrate(std::size_t contestant, std::size_t bytes, BenchRow& row) {
  // Warm-up at the same time: grows until a round is long enough to tell how many operations fill a whole one.
  const double wanted = options_.round_ms * 1e-3;
  const std::uint64_t least = is_latency(options_.test) ? 1 : slots_for(options_.test, bytes);
  for (std::uint64_t count = least;;) {
    auto seconds = direct(contestant, bytes, count, row);
    if (!seconds) return std::move(seconds.error());
    const double factor = wanted / *seconds;
    const auto scaled = static_cast<std::uint64_t>(static_cast<double>(count) * std::min(factor, 50.0));
    if (factor < 4) return std::max(least, scaled);
    count = std::max(count + 1, scaled);
  }
}

Result<BenchRow> BenchMatch::measure(std::size_t bytes) {
  BenchRow row{.bytes = bytes, .ours = 0, .raw = {}, .rounds_verified = 0, .bytes_verified = 0, .by_rail = {}};
  const std::size_t sides = contestants().size();
  std::vector<std::uint64_t> counts;
  for (std::size_t side = 0; side < sides; ++side) {
    auto count = calibrate(side, bytes, row);
    if (!count) return std::move(count.error());
    counts.push_back(*count);
  }
  std::vector<double> ours;
  std::vector<double> raw;
  const WorldStatistics before = world_.statistics();
  double our_seconds = 0;
  for (std::uint32_t round = 0; round < options_.rounds; ++round) {
    show_progress(bytes, round);
    std::vector<double> by_side(sides);
    for (std::size_t i = 0; i < sides; ++i) {
      // Each side goes first in every other round, so that a machine that slows down favours neither.
      const std::size_t side = round % 2 == 0 ? i : sides - 1 - i;
      auto seconds = direct(side, bytes, counts[side], row);
      if (!seconds) return std::move(seconds.error());
      if (side == 0) our_seconds += *seconds;
      by_side[side] = figure(options_.test, bytes, counts[side], *seconds);
    }
    ours.push_back(by_side[0]);
    // Each rail alone: bandwidths and rates add up; of round trips the shortest counts.
    double together = sides > 1 ? by_side[1] : 0;
    for (std::size_t side = 2; side < sides; ++side) {
      together = is_latency(options_.test) ? std::min(together, by_side[side]) : together + by_side[side];
    }
    raw.push_back(together);
  }
  row.ours = median(ours);
  if (sides > 1) row.raw = median(raw);
  row.by_rail = rail_figures(before, world_.statistics(), our_seconds);
  return row;
}

void BenchMatch::show_progress(std::size_t bytes, std::uint32_t round) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::int64_t now = SteadyClock().now();
  if (now - began_ns_ < 2 * kSecond || now - shown_ns_ < kSecond) return;
  shown_ns_ = now;
  fmt::print(stderr, "railyard bench: {} of {}: round {} of {}\n", test_name(options_.test),
             readable_bytes(static_cast<double>(bytes)), round + 1, options_.rounds);
}

Result<BenchReport> BenchMatch::run() {
  BenchReport report;
  const WorldStatistics statistics = world_.statistics();
  report.rails = world_.rail_count();
  report.provider = statistics.rails.empty() ? "" : statistics.rails.front().provider;
  if (options_.test == Test::atomic && !raw_.empty() && !raw_.front()->has_atomics()) {
    report.notes.emplace_back("raw: the provider has no FI_ATOMIC: a fi_send ping-pong of the same size instead");
  }
  if (referee_.rank() != 0) {
    if (auto followed = follow(); !followed) return std::move(followed.error());
    return report;
  }
  for (const std::size_t bytes : options_.sizes) {
    auto row = measure(bytes);
    if (!row) return std::move(row.error());
    report.rows.push_back(*row);
  }
  Plan stop;
  stop.stop = true;
  if (auto agreed = referee_.agree(stop); !agreed) return std::move(agreed.error());
  report.counted = world_.statistics();
  return report;
}

Result<void> BenchMatch::close() {
  raw_.clear();
  socket_.reset();
  return ours_->close();
}

}  // namespace railyard::tool
