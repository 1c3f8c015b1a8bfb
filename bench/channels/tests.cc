#include "tests.hpp"

#include <sched.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "traffic.hpp"

namespace railyard::bench {
namespace {

constexpr std::size_t kLatencyBytes = 8;
constexpr std::uint32_t kExchanges = 2000;  ///< of a round

double at(std::vector<std::int64_t>& times, double part) {
  if (times.empty()) return 0;
  const auto place = times.begin() + static_cast<std::ptrdiff_t>(part * static_cast<double>(times.size() - 1));
  std::nth_element(times.begin(), place, times.end());
  return static_cast<double>(*place);
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}
double megabytes(std::uint64_t messages, std::size_t bytes, std::int64_t nanoseconds) {
  return static_cast<double>(messages * bytes) * 1e3 / static_cast<double>(nanoseconds);
}

/// One phase of a test: rank 0 goes on for a while, then both until everything that was begun has arrived.
class Phase {
 public:
  explicit Phase(Side& side) : side_(side) {
    side_.meet();
    if (side_.rank() == 0) side_.shared().over.store(false);
    side_.meet();
    begun_ = now();
    until_ = begun_ + std::int64_t{side.options().round_ms} * 1'000'000;
  }
  bool on() const { return now() < until_; }
  std::int64_t taken() const { return now() - begun_; }

  /// Rank 0: so many messages were sent on each channel since the beginning.
  template <typename Sent>
  void end(std::size_t channels, Sent&& sent) {
    for (std::size_t i = 0; i < channels; ++i) side_.shared().sent[i].store(sent(i), std::memory_order_relaxed);
    // Release: whoever sees the end sees the counts.
    side_.shared().over.store(true, std::memory_order_release);
  }
  /// Rank 1: whether all has arrived.
  template <typename Arrived>
  bool over(std::size_t channels, Arrived&& arrived) const {
    if (!side_.shared().over.load(std::memory_order_acquire)) return false;
    for (std::size_t i = 0; i < channels; ++i) {
      if (arrived(i) != side_.shared().sent[i].load(std::memory_order_relaxed)) return false;
    }
    return true;
  }

 private:
  Side& side_;
  std::int64_t begun_ = 0;
  std::int64_t until_ = 0;
};

template <typename T>
using Each = std::vector<std::unique_ptr<T>>;

template <typename T, typename... Arguments>
Each<T> on_channels(Side& side, std::size_t count, Arguments... arguments) {
  Each<T> each;
  for (std::size_t i = 0; i < count; ++i) each.push_back(std::make_unique<T>(side.channel(i), arguments...));
  return each;
}

/// Round trips of `Pinger` or `Echo`: on one channel each, or there on one and back on the next.
template <typename T>
Each<T> trips_on(Side& side, std::size_t count) {
  const std::size_t step = side.options().ring ? 2 : 1;
  Each<T> each;
  for (std::size_t i = 0; i + step <= count; i += step) {
    each.push_back(std::make_unique<T>(side.channel(i), side.channel(i + step - 1), side.options().bytes));
  }
  return each;
}

void echo_phase(Phase& phase, Each<Echo>& echoes) {
  const auto trips = [&](std::size_t i) { return echoes[i]->trips(); };
  while (!phase.over(echoes.size(), trips)) {
    for (auto& echo : echoes) echo->step();
  }
}

void ping_phase(Phase& phase, Each<Pinger>& pingers) {
  while (phase.on()) {
    for (auto& pinger : pingers) pinger->step(true);
  }
  for (auto& pinger : pingers) {
    while (!pinger->step(false)) {
    }
  }
  phase.end(pingers.size(), [&](std::size_t i) { return pingers[i]->trips(); });
}

std::uint64_t total(const Each<Stream>& streams) {
  std::uint64_t sum = 0;
  for (const auto& stream : streams) sum += stream->done();
  return sum;
}

void sink_phase(Phase& phase, Each<Stream>& streams) {
  const auto done = [&](std::size_t i) { return streams[i]->done(); };
  while (!phase.over(streams.size(), done)) {
    for (auto& stream : streams) stream->step(true);
  }
}

/// Nanoseconds until the last message was done.
std::int64_t source_phase(Phase& phase, Each<Stream>& streams) {
  while (phase.on()) {
    for (auto& stream : streams) stream->step(true);
  }
  for (auto& stream : streams) {
    while (stream->done() < stream->begun()) stream->step(false);
  }
  const std::int64_t taken = phase.taken();
  phase.end(streams.size(), [&](std::size_t i) { return streams[i]->done(); });
  return taken;
}

}  // namespace

Figures measure_latency(Side& side) {
  const Options& options = side.options();
  const std::size_t count = options.all ? side.channels() : options.streams;
  if (side.rank() == 1) {
    auto echoes = trips_on<Echo>(side, count);
    for (std::uint32_t round = 0; round <= options.rounds; ++round) {
      Phase phase(side);
      echo_phase(phase, echoes);
    }
    side.meet();
    return {};
  }
  auto pingers = trips_on<Pinger>(side, count);
  std::vector<double> p50;
  std::vector<double> p99;
  std::vector<double> each;
  for (std::uint32_t round = 0; round <= options.rounds; ++round) {
    Phase phase(side);
    ping_phase(phase, pingers);
    const std::int64_t taken = phase.taken();
    std::vector<std::int64_t> times;
    for (auto& pinger : pingers) {
      times.insert(times.end(), pinger->times().begin(), pinger->times().end());
      pinger->times().clear();
    }
    if (round == 0) continue;  // to warm up
    p50.push_back(at(times, 0.5));
    p99.push_back(at(times, 0.99));
    each.push_back(static_cast<double>(taken) / static_cast<double>(times.size()));
  }
  side.meet();
  return {{"ns", median(p50) / 2}, {"p99_ns", median(p99) / 2}, {"each_ns", median(each)}};
}

Figures measure_exchange(Side& side) {
  const Options& options = side.options();
  const bool first = side.rank() == 0;
  Exchange exchange(side.channel(first ? 0 : 1), side.channel(first ? 1 : 0), options.bytes);
  std::vector<double> p50;
  std::vector<double> p99;
  for (std::uint32_t round = 0; round <= options.rounds; ++round) {
    side.meet();
    std::vector<std::int64_t> times;
    for (std::uint32_t i = 0; i < kExchanges; ++i) times.push_back(exchange.run());
    if (round == 0) continue;  // to warm up
    p50.push_back(at(times, 0.5));
    p99.push_back(at(times, 0.99));
  }
  side.meet();
  return {{"ns", median(p50)}, {"p99_ns", median(p99)}};
}

Figures measure_stream(Side& side) {
  const Options& options = side.options();
  const std::size_t count = options.all ? side.channels() : options.streams;
  auto streams = on_channels<Stream>(side, count, options.bytes, options.depth, side.rank() == 0);
  std::vector<double> rates;
  for (std::uint32_t round = 0; round <= options.rounds; ++round) {
    Phase phase(side);
    if (side.rank() == 1) {
      sink_phase(phase, streams);
      continue;
    }
    const std::uint64_t before = total(streams);
    const std::int64_t taken = source_phase(phase, streams);
    if (round > 0) rates.push_back(megabytes(total(streams) - before, options.bytes, taken));
  }
  side.meet();
  return {{"mb_s", median(rates)}};
}

Figures measure_fairness(Side& side) {
  const Options& options = side.options();
  auto streams = on_channels<Stream>(side, options.streams, options.bytes, options.depth, side.rank() == 0);
  std::vector<double> indices;
  std::vector<double> rates;
  for (std::uint32_t round = 0; round <= options.rounds; ++round) {
    Phase phase(side);
    if (side.rank() == 1) {
      sink_phase(phase, streams);
      continue;
    }
    std::vector<std::uint64_t> before;
    for (auto& stream : streams) before.push_back(stream->done());
    while (phase.on()) {
      for (auto& stream : streams) stream->step(true);
    }
    double sum = 0;
    double squares = 0;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      const auto done = static_cast<double>(streams[i]->done() - before[i]);
      sum += done;
      squares += done * done;
    }
    source_phase(phase, streams);
    if (round == 0) continue;
    indices.push_back(sum * sum / (static_cast<double>(streams.size()) * squares));
    rates.push_back(sum * static_cast<double>(options.bytes) * 1e-3 / options.round_ms);
  }
  side.meet();
  std::sort(indices.begin(), indices.end());
  return {{"jain", median(indices)}, {"worst_jain", indices.empty() ? 0 : indices.front()}, {"mb_s", median(rates)}};
}

namespace {

/// The bulk stream of an interference test: driven by the thread of the latency-sensitive channel, or by its own.
class BulkStream {
 public:
  explicit BulkStream(Side& side)
      : stream_(side.channel(1), side.options().bytes, side.options().depth, side.rank() == 0),
        own_thread_(side.options().thread) {}
  ~BulkStream() { stop(); }

  void start() {
    if (!own_thread_) return;
    stop_.store(false);
    thread_ = std::thread([this] {
      while (!stop_.load(std::memory_order_relaxed)) stream_.step(true);
    });
  }
  void stop() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  void step() {
    if (!own_thread_) stream_.step(true);
  }
  /// After `stop`.
  Stream& stream() { return stream_; }

 private:
  Stream stream_;
  const bool own_thread_;
  std::atomic<bool> stop_{true};
  std::thread thread_;
};

void echo_beside_bulk(Side& side, Echo& echo, BulkStream& bulk, bool beside) {
  Phase phase(side);
  if (beside) bulk.start();
  while (!side.shared().over.load(std::memory_order_acquire)) {
    echo.step();
    if (beside) bulk.step();
  }
  bulk.stop();
  const auto arrived = [&](std::size_t i) { return i == 0 ? echo.trips() : bulk.stream().done(); };
  while (!phase.over(2, arrived)) {
    echo.step();
    bulk.stream().step(true);
  }
}

/// Megabytes per second of the bulk channel.
double ping_beside_bulk(Side& side, Pinger& pinger, BulkStream& bulk, bool beside) {
  Phase phase(side);
  const std::uint64_t before = bulk.stream().done();
  if (beside) bulk.start();
  while (phase.on()) {
    pinger.step(true);
    if (beside) bulk.step();
  }
  bulk.stop();
  const double rate = megabytes(bulk.stream().done() - before, side.options().bytes, phase.taken());
  while (!pinger.step(false) || bulk.stream().done() < bulk.stream().begun()) bulk.stream().step(false);
  phase.end(2, [&](std::size_t i) { return i == 0 ? pinger.trips() : bulk.stream().done(); });
  return rate;
}

}  // namespace

Figures measure_interference(Side& side) {
  const Options& options = side.options();
  if (side.channels() < 2) fail("an interference test takes two channels: --channels 2");
  BulkStream bulk(side);
  if (side.rank() == 1) {
    Echo echo(side.channel(0), side.channel(0), kLatencyBytes);
    for (std::uint32_t round = 0; round <= 2 * options.rounds; ++round)
      echo_beside_bulk(side, echo, bulk, round % 2 == 0);
    side.meet();
    return {};
  }
  Pinger pinger(side.channel(0), side.channel(0), kLatencyBytes);
  std::vector<std::int64_t> times[2];
  std::vector<double> rates;
  for (std::uint32_t round = 0; round <= 2 * options.rounds; ++round) {
    const double rate = ping_beside_bulk(side, pinger, bulk, round % 2 == 0);
    auto& into = times[round % 2];
    if (round > 0) into.insert(into.end(), pinger.times().begin(), pinger.times().end());
    if (round > 0 && round % 2 == 0) rates.push_back(rate);
    pinger.times().clear();
  }
  side.meet();
  Figures figures{{"mb_s", median(rates)}};
  for (const bool alone : {false, true}) {
    const std::string who = alone ? "alone_" : "beside_";
    figures[who + "p50_ns"] = at(times[alone], 0.5) / 2;
    figures[who + "p99_ns"] = at(times[alone], 0.99) / 2;
    figures[who + "trips"] = static_cast<double>(times[alone].size());
  }
  figures["p50_ratio"] = figures["beside_p50_ns"] / figures["alone_p50_ns"];
  figures["p99_ratio"] = figures["beside_p99_ns"] / figures["alone_p99_ns"];
  return figures;
}

}  // namespace railyard::bench
