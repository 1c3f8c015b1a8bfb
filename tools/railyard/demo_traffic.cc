#include "demo_traffic.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "base/bytes.hpp"
#include "base/clock.hpp"
#include "bench/pattern.hpp"

namespace railyard::tool {

namespace {

// A rank's window: a shelf that others read from, a word for atomics, then one inbox for each source.
constexpr std::size_t kShelfBytes = 1024 * 1024;
constexpr std::size_t kWordOffset = kShelfBytes;
constexpr std::size_t kInboxesOffset = kShelfBytes + 4096;
constexpr std::size_t kInboxBytes = 1024 * 1024;
constexpr std::size_t kBlockBytes = kInboxBytes;  ///< of the all-to-all, to each rank

/// Steps between two questions whether the phase is over.
constexpr std::uint64_t kStepsPerBatch = 32;

constexpr std::uint64_t kShelfSeed = 0x5e1f;
constexpr std::uint64_t kBlockSeed = 0xb10c;

/// Classes of put+signal sizes, each with latencies of its own.
struct SizeClass {
  const char* name;
  std::size_t most;
};
constexpr SizeClass kClasses[] = {
    {"put+signal to 1 KiB", 1024}, {"put+signal to 64 KiB", 64 * 1024}, {"put+signal to 1 MiB", 1024 * 1024}};
constexpr std::size_t kGetPhase = std::size(kClasses);
constexpr std::size_t kAtomicPhase = kGetPhase + 1;
constexpr std::size_t kBulkPhase = kGetPhase + 2;
constexpr std::size_t kPhases = kGetPhase + 3;

std::int64_t now_ns() { return SteadyClock().now(); }

/// What `source` sends to `target` in its `step`-th message.
std::uint64_t message_seed(int source, int target, std::uint64_t step) {
  return step * 65536 + static_cast<std::uint64_t>(source) * 256 + static_cast<std::uint64_t>(target);
}

/// Any size of the class, the same on all ranks.
std::size_t message_bytes(std::size_t size_class, std::uint64_t step) {
  const std::size_t least = size_class == 0 ? 1 : kClasses[size_class - 1].most + 1;
  return least + Random(step).below(kClasses[size_class].most - least + 1);
}

}  // namespace

DemoTraffic::DemoTraffic(World& world, Bootstrap& bootstrap, Window window, double seconds)
    : world_(&world),
      bootstrap_(&bootstrap),
      window_(std::move(window)),
      rank_(world.rank()),
      size_(world.size()),
      phase_ns_(static_cast<std::int64_t>(seconds * 1e9)),
      random_(static_cast<std::uint64_t>(world.rank()) + 1),
      buffer_(kInboxBytes * static_cast<std::size_t>(world.size())),
      sent_(static_cast<std::size_t>(world.size())),
      expected_(static_cast<std::size_t>(world.size())) {
  result_.phases.resize(kPhases);
  for (std::size_t i = 0; i < std::size(kClasses); ++i) result_.phases[i].name = kClasses[i].name;
  result_.phases[kGetPhase].name = "get 8 B to 1 MiB";
  result_.phases[kAtomicPhase].name = "fetch-add";
  result_.phases[kBulkPhase].name = "all-to-all round";
}

Result<DemoTraffic> DemoTraffic::open(World& world, Bootstrap& bootstrap, double seconds) {
  const auto ranks = static_cast<std::size_t>(world.size());
  // Signals: a message from each source, a receipt from each target, a block from each source.
  auto window = Window::allocate(world, kInboxesOffset + kInboxBytes * ranks, {.signals = 3 * ranks});
  if (!window) return std::move(window.error());
  bench::fill_pattern(window->local().first(kShelfBytes), kShelfSeed + static_cast<std::uint64_t>(world.rank()));
  DemoTraffic traffic(world, bootstrap, std::move(*window), seconds);
  if (auto met = world.barrier(); !met) return std::move(met.error());
  return traffic;
}

std::size_t DemoTraffic::inbox(int source) const {
  return kInboxesOffset + kInboxBytes * static_cast<std::size_t>(source);
}

std::byte* DemoTraffic::outbox(int target) { return buffer_.data() + kInboxBytes * static_cast<std::size_t>(target); }

void DemoTraffic::note_failure(std::string what) {
  if (result_.failure.empty()) result_.failure = fmt::format("rank {}: {}", rank_, what);
}

void DemoTraffic::expect_pattern(const char* phase, int source, std::span<const std::byte> memory, std::uint64_t seed,
                                 std::uint64_t word) {
  if (const auto wrong = bench::find_difference(memory, seed, word)) {
    note_failure(fmt::format("{}: byte {} of {} from rank {} is wrong", phase, *wrong, memory.size(), source));
  }
  result_.bytes_checked += memory.size();
}

Result<bool> DemoTraffic::enough(std::int64_t began) {
  // The window's barrier first: it keeps serving the peers' operations while it waits, the bootstrap does not.
  if (auto met = window_.barrier(); !met) return std::move(met.error());
  const std::byte mine{now_ns() - began > phase_ns_ ? std::uint8_t{1} : std::uint8_t{0}};
  auto all = bootstrap_->allgather(std::span(&mine, 1), {});
  if (!all) return std::move(all.error());
  return std::any_of(all->begin(), all->end(),
                     [](const std::vector<std::byte>& one) { return one.size() != 1 || one[0] != std::byte{0}; });
}

Result<void> DemoTraffic::put_signal_step(std::size_t size_class, std::uint64_t step) {
  const int distance = 1 + static_cast<int>(step % static_cast<std::uint64_t>(size_ - 1));
  const int to = (rank_ + distance) % size_;
  const int from = (rank_ - distance + size_) % size_;
  const std::size_t bytes = message_bytes(size_class, step);
  const auto to_index = static_cast<std::size_t>(to);
  const auto from_index = static_cast<std::size_t>(from);
  const auto ranks = static_cast<std::size_t>(size_);
  std::byte* message = outbox(to);
  bench::fill_pattern({message, bytes}, message_seed(rank_, to, step));

  // The inbox over there may be used again once its owner has read the message before.
  auto read = window_.wait_signal(ranks + to_index, Comparison::greater_equal, sent_[to_index]);
  if (!read) return std::move(read.error());
  const std::int64_t begin = now_ns();
  auto ticket = window_.put_signal(to, inbox(rank_), message, bytes, {.index = static_cast<std::size_t>(rank_)});
  if (!ticket) return std::move(ticket.error());
  if (auto done = window_.wait(*ticket); !done) return done;
  const std::int64_t took = now_ns() - begin;
  ++sent_[to_index];
  DemoPhase& phase = result_.phases[size_class];
  phase.latency.add(static_cast<std::uint64_t>(took));
  phase.seconds += static_cast<double>(took) * 1e-9;
  phase.bytes += bytes;
  ++phase.operations;

  auto arrived = window_.wait_signal(from_index, Comparison::greater_equal, ++expected_[from_index]);
  if (!arrived) return std::move(arrived.error());
  if (*arrived != expected_[from_index]) {
    note_failure(
        fmt::format("put+signal: {} signals from rank {}, {} were sent", *arrived, from, expected_[from_index]));
  }
  ++result_.signals_checked;
  expect_pattern("put+signal", from, window_.local().subspan(inbox(from), bytes), message_seed(from, rank_, step), 0);
  auto receipt = window_.signal(from, {.index = ranks + static_cast<std::size_t>(rank_)});
  if (!receipt) return std::move(receipt.error());
  return {};
}

Result<void> DemoTraffic::put_signals() {
  // Class by class: a rank that checks a large message answers a small one late.
  std::uint64_t step = 0;
  for (std::size_t size_class = 0; size_class < std::size(kClasses); ++size_class) {
    const std::int64_t began = now_ns() - phase_ns_ * 2 / 3;
    for (bool over = false; !over;) {
      for (std::uint64_t i = 0; i < kStepsPerBatch; ++i) {
        if (auto done = put_signal_step(size_class, step++); !done) return done;
      }
      auto asked = enough(began);
      if (!asked) return std::move(asked.error());
      over = *asked;
    }
  }
  return {};
}

Result<void> DemoTraffic::get_step() {
  const int from = (rank_ + 1 + static_cast<int>(random_.below(static_cast<std::uint64_t>(size_ - 1)))) % size_;
  const std::size_t bytes = std::size_t{8} << random_.below(18);
  const std::size_t word = random_.below((kShelfBytes - bytes) / 8 + 1);
  DemoPhase& phase = result_.phases[kGetPhase];
  const std::int64_t begin = now_ns();
  auto ticket = window_.get(from, word * 8, buffer_.data(), bytes);
  if (!ticket) return std::move(ticket.error());
  if (auto done = window_.wait(*ticket); !done) return done;
  const std::int64_t took = now_ns() - begin;
  phase.latency.add(static_cast<std::uint64_t>(took));
  phase.seconds += static_cast<double>(took) * 1e-9;
  phase.bytes += bytes;
  ++phase.operations;
  expect_pattern("get", from, std::span(buffer_).first(bytes), kShelfSeed + static_cast<std::uint64_t>(from), word);
  return {};
}

Result<void> DemoTraffic::gets() {
  for (const std::int64_t began = now_ns();;) {
    for (std::uint64_t i = 0; i < kStepsPerBatch; ++i) {
      if (auto done = get_step(); !done) return done;
    }
    auto over = enough(began);
    if (!over) return std::move(over.error());
    if (*over) return {};
  }
}

Result<void> DemoTraffic::atomics() {
  DemoPhase& phase = result_.phases[kAtomicPhase];
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(size_));
  for (const std::int64_t began = now_ns();;) {
    for (std::uint64_t i = 0; i < kStepsPerBatch; ++i) {
      const int owner =
          (rank_ + 1 + static_cast<int>(phase.operations % static_cast<std::uint64_t>(size_ - 1))) % size_;
      std::uint64_t before = 0;
      const std::int64_t begin = now_ns();
      auto ticket = window_.fetch_atomic(owner, kWordOffset, AtomicOp::add, &before, std::uint64_t{1});
      if (!ticket) return std::move(ticket.error());
      if (auto done = window_.wait(*ticket); !done) return done;
      const std::int64_t took = now_ns() - begin;
      phase.latency.add(static_cast<std::uint64_t>(took));
      phase.seconds += static_cast<double>(took) * 1e-9;
      phase.bytes += sizeof(before);
      ++phase.operations;
      sums[static_cast<std::size_t>(owner)] += before;
    }
    auto over = enough(began);
    if (!over) return std::move(over.error());
    if (*over) return check_sums(sums, phase.operations);
  }
}

Result<void> DemoTraffic::check_sums(std::span<const std::uint64_t> fetched_sums, std::uint64_t operations) {
  ByteWriter mine;
  for (const std::uint64_t sum : fetched_sums) mine.u64(sum);
  auto all = bootstrap_->allgather(mine.bytes(), {});
  if (!all) return std::move(all.error());
  // The others take turns with their owners: together they added as often to my word as each of them did in all. Each
  // value from 0 on must have been handed out exactly once.
  const std::uint64_t total = operations;
  std::uint64_t word = 0;
  std::memcpy(&word, window_.local().data() + kWordOffset, sizeof(word));
  std::uint64_t fetched = 0;
  for (const auto& one : *all) {
    ByteReader in(one);
    in.raw(static_cast<std::size_t>(rank_) * sizeof(std::uint64_t));
    fetched += in.u64();
  }
  if (word != total) note_failure(fmt::format("fetch-add: the word holds {} after {} additions", word, total));
  if (fetched != total * (total - 1) / 2) note_failure("fetch-add: a value was handed out twice or not at all");
  result_.atomics_checked += total;
  return {};
}

Result<void> DemoTraffic::all_to_all_step(std::uint64_t step) {
  const auto ranks = static_cast<std::size_t>(size_);
  DemoPhase& phase = result_.phases[kBulkPhase];
  for (int to = 0; to < size_; ++to) {
    bench::fill_pattern({outbox(to), kBlockBytes}, kBlockSeed + message_seed(rank_, to, step));
  }
  // All start together, and nobody's blocks overwrite what is still being checked.
  if (auto met = window_.barrier(); !met) return met;
  const std::int64_t begin = now_ns();
  for (int distance = 1; distance <= size_; ++distance) {
    const int to = (rank_ + distance) % size_;
    auto ticket = window_.put_signal(to, inbox(rank_), outbox(to), kBlockBytes,
                                     {.index = 2 * ranks + static_cast<std::size_t>(rank_)});
    if (!ticket) return std::move(ticket.error());
  }
  for (std::size_t source = 0; source < ranks; ++source) {
    auto arrived = window_.wait_signal(2 * ranks + source, Comparison::greater_equal, step + 1);
    if (!arrived) return std::move(arrived.error());
    if (*arrived != step + 1) note_failure(fmt::format("all-to-all: a signal of rank {} came twice", source));
    ++result_.signals_checked;
  }
  if (auto done = window_.quiet(); !done) return done;
  const std::int64_t took = now_ns() - begin;
  phase.latency.add(static_cast<std::uint64_t>(took));
  phase.seconds += static_cast<double>(took) * 1e-9;
  phase.bytes += kBlockBytes * (ranks - 1);  // the block to oneself takes no rail
  ++phase.operations;
  for (int from = 0; from < size_; ++from) {
    expect_pattern("all-to-all", from, window_.local().subspan(inbox(from), kBlockBytes),
                   kBlockSeed + message_seed(from, rank_, step), 0);
  }
  return {};
}

Result<void> DemoTraffic::all_to_all() {
  std::uint64_t step = 0;
  for (const std::int64_t began = now_ns();;) {
    for (std::uint64_t i = 0; i < kStepsPerBatch / 4; ++i) {
      if (auto done = all_to_all_step(step++); !done) return done;
    }
    auto over = enough(began);
    if (!over) return std::move(over.error());
    if (*over) return {};
  }
}

Result<void> DemoTraffic::warm_up() {
  // Connections are made by the first operations on each rail: that is not what the demo measures.
  for (int round = 0; round < 2; ++round) {
    for (int distance = 1; distance < size_; ++distance) {
      const int to = (rank_ + distance) % size_;
      auto ticket = window_.put(to, inbox(rank_), outbox(to), kInboxBytes);
      if (!ticket) return std::move(ticket.error());
    }
    if (auto met = window_.barrier(); !met) return met;
  }
  return {};
}

Result<DemoResult> DemoTraffic::run() {
  if (auto done = warm_up(); !done) return std::move(done.error());
  if (auto done = put_signals(); !done) return std::move(done.error());
  if (auto done = gets(); !done) return std::move(done.error());
  if (auto done = atomics(); !done) return std::move(done.error());
  const WorldStatistics before = world_->statistics();
  if (auto done = all_to_all(); !done) return std::move(done.error());
  const WorldStatistics after = world_->statistics();
  for (std::size_t i = 0; i < after.rails.size(); ++i) {
    const RailStatistics& rail = after.rails[i];
    result_.provider = rail.provider;
    result_.rails.push_back({rail.name, rail.bytes_sent, rail.bytes_sent - before.rails[i].bytes_sent});
  }
  result_.bulk_seconds = result_.phases[kBulkPhase].seconds;
  return std::move(result_);
}

}  // namespace railyard::tool
