#include "sim/memory_use.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <vector>

#include "sim/stage.hpp"

namespace railyard::sim {

namespace {

constexpr std::size_t kWindowBytes = 16 * 1024;
constexpr std::size_t kSmall = 64;
constexpr std::size_t kLarge = 4 * 1024;
/// A ring, and somebody outside it to talk to.
constexpr std::uint32_t kLeastRanks = 4;
/// Nothing here takes so long in virtual time unless it is stuck.
constexpr std::int64_t kPatience = 60'000'000'000;

/// Bytes that the allocator has handed out and not got back.
std::size_t allocated() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

double resident() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t pages = 0;
  if (!(file >> total >> pages)) return 0;
  return static_cast<double>(pages) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

/// Heap in use that is not the simulator's.
double used(const Cluster& cluster) {
  return static_cast<double>(allocated()) - static_cast<double>(cluster.fabric.memory_bytes());
}

/// Lets two ranks move on until `done`, which is asked for both of them.
template <typename Done>
bool move_until(Cluster& cluster, std::size_t a, std::size_t b, Done&& done) {
  const std::int64_t start = cluster.fabric.now();
  while (!done()) {
    cluster.worlds[a].progress();
    cluster.worlds[b].progress();
    if (!cluster.fabric.anything_ready() && !cluster.fabric.step()) cluster.fabric.advance(1'000);
    if (cluster.fabric.now() - start > kPatience) return false;
  }
  return true;
}

/// One small and one large put with a signal from `from` to `to`.
Result<void> exchange(Cluster& cluster, std::size_t from, std::size_t to, const std::vector<std::byte>& source) {
  Window& window = cluster.windows[from];
  const auto target = static_cast<int>(to);
  for (const std::size_t bytes : {kSmall, kLarge}) {
    auto ticket = window.put_signal(target, 0, source.data(), bytes, SignalUpdate{0, 1, SignalOp::add});
    if (!ticket) return std::move(ticket.error());
    const auto quiet = [&] { return window.quiet(target, Deadline::in(std::chrono::nanoseconds(0))).ok(); };
    if (!move_until(cluster, from, to, quiet)) {
      return Error(Status::timeout,
                   fmt::format("a put of {} bytes from rank {} to {} did not complete", bytes, from, to));
    }
  }
  return {};
}

/// Bytes per rank of a world that only knows its peers.
Result<double> known_bytes(const Plan& plan, std::unique_ptr<Cluster>& cluster) {
  WindowOptions options;
  options.signals = 1;
  const std::size_t before = allocated();
  auto opened = Cluster::open(plan, kWindowBytes, options);
  if (!opened) return std::move(opened.error());
  cluster = std::move(*opened);
  if (allocated() <= before) {
    return Error(
        Status::unsupported,
        "the allocator of this build does not count what it hands out (a sanitizer replaces it): use a plain build");
  }
  return (used(*cluster) - static_cast<double>(before)) / plan.ranks;
}

}  // namespace

Result<MemoryUse> measure_memory(std::uint32_t ranks, std::uint32_t rails) {
  if (ranks < kLeastRanks || rails == 0) {
    return Error(Status::out_of_range,
                 fmt::format("{} ranks with {} rails: at least {} ranks and 1 rail", ranks, rails, kLeastRanks));
  }
  MemoryUse use;
  use.ranks = ranks;
  use.rails = rails;
  std::unique_ptr<Cluster> cluster;
  const auto two = known_bytes(orderly_plan(2, rails), cluster);
  if (!two) return two.error().copy();
  cluster.reset();
  const auto all = known_bytes(orderly_plan(ranks, rails), cluster);
  if (!all) return all.error().copy();
  use.per_known_peer = (*all - *two) / (ranks - 2);
  use.per_rank = *two - use.per_known_peer;

  // What a rank allocates with its first traffic, whoever it is with, is no cost of a peer: once round the ring first.
  const std::vector<std::byte> source(kLarge);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t next = (rank + 1) % ranks;
    if (auto there = exchange(*cluster, rank, next, source); !there) return std::move(there.error());
    if (auto back = exchange(*cluster, next, rank, source); !back) return std::move(back.error());
  }
  const double before = used(*cluster);
  for (std::size_t peer = 2; peer + 1 < ranks; ++peer) {
    if (auto there = exchange(*cluster, 0, peer, source); !there) return std::move(there.error());
    if (auto back = exchange(*cluster, peer, 0, source); !back) return std::move(back.error());
  }
  const double grown = used(*cluster) - before;
  // Both ends of every pair have grown.
  use.per_active_peer = grown / 2 / (ranks - 3);
  use.resident = resident();
  return use;
}

}  // namespace railyard::sim
