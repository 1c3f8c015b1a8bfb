// A ring of ranks that stream blocks to the next rank through two slots. Credits say how far a rank may run ahead, a
// counter says when a source may be filled again, and every wait has a deadline and a peer. docs/guide/tutorial.md
// builds this program step by step.
//
//   railyard launch -n 3 -- example-06-ring-with-credits
//   railyard launch -n 3 -- example-06-ring-with-credits no-credits    reads wrong data, and says how much
//   railyard launch -n 3 -- example-06-ring-with-credits lose-one      rank 1 ends half-way, the others say so
//   railyard launch -n 2 -- example-06-ring-with-credits busy          how long a put to a rank that computes takes

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "railyard/window.hpp"
#include "railyard/world.hpp"

using railyard::Comparison;
using railyard::Deadline;
using railyard::Status;
using std::chrono::steady_clock;

namespace {

constexpr std::uint64_t kBlocks = 200;
constexpr std::size_t kWords = 8192;  // of one block: 64 KiB
constexpr std::size_t kBlockBytes = kWords * sizeof(std::uint64_t);
constexpr std::uint64_t kSlots = 2;

// Signals of a rank, and the counter of its own puts.
constexpr std::size_t kArrived = 0;   // blocks that the previous rank has put here
constexpr std::size_t kConsumed = 1;  // credits: blocks that the next rank has consumed
constexpr std::size_t kSent = 0;

// A neighbour may compute for a while; one that says nothing for so long is worth an error.
constexpr Deadline kPatience = Deadline::in(std::chrono::seconds(20));

using Block = std::vector<std::uint64_t>;

std::uint64_t word(int rank, std::uint64_t block, std::size_t i) {
  return (static_cast<std::uint64_t>(rank) << 56) + (block << 24) + i;
}

struct Ring {
  railyard::World& world;
  railyard::Window& window;
  int next;
  int previous;
  bool credits = true;
  std::array<Block, kSlots> sources{Block(kWords), Block(kWords)};
  std::uint64_t wrong_blocks = 0;
  steady_clock::duration waited{};

  Status status = Status::ok;

  bool failed(const char* what, const railyard::Error& error) {
    std::printf("rank %d: %s: %s\n", world.rank(), what, error.text().c_str());
    status = error.status();
    return false;
  }

  bool wait_for(const char* what, std::size_t signal, std::uint64_t value, int from) {
    const auto start = steady_clock::now();
    auto met = window.wait_signal(signal, Comparison::greater_equal, value, kPatience, from);
    waited += steady_clock::now() - start;
    return met ? true : failed(what, met.error());
  }

  /// Puts one block into its slot at the next rank.
  bool send(std::uint64_t block) {
    // The slot still holds block - kSlots until the next rank has consumed that one.
    if (credits && block >= kSlots && !wait_for("credit", kConsumed, block - kSlots + 1, next)) return false;

    // The source still belongs to the put of block - kSlots until that has left it.
    Block& source = sources[block % kSlots];
    if (block >= kSlots) {
      auto left = window.wait_counter(kSent, block - kSlots + 1, kPatience);
      if (!left) return failed("source", left.error());
    }
    for (std::size_t i = 0; i < kWords; ++i) source[i] = word(world.rank(), block, i);

    auto put = window.put_signal_counter(next, block % kSlots * kBlockBytes, source.data(), kBlockBytes,
                                         {.index = kArrived}, {.index = kSent});
    return put ? true : failed("put", put.error());
  }

  /// Uses the previous rank's block where it lies, then gives the slot back.
  bool consume(std::uint64_t block) {
    if (!wait_for("block", kArrived, block + 1, previous)) return false;
    const auto* words = reinterpret_cast<const std::uint64_t*>(window.local().data() + block % kSlots * kBlockBytes);
    const int passes = world.rank() % 2 == 1 ? 8 : 1;  // odd ranks have more to do with each block
    bool right = true;
    for (int pass = 0; pass < passes; ++pass) {
      for (std::size_t i = 0; i < kWords; ++i) right = right && words[i] == word(previous, block, i);
      world.progress();
    }
    wrong_blocks += right ? 0 : 1;

    auto credit = window.signal(previous, {.index = kConsumed});
    return credit ? true : failed("give credit", credit.error());
  }

  bool run(std::uint64_t stop_after) {
    for (std::uint64_t block = 0; block < kSlots; ++block) {
      if (!send(block)) return false;
    }
    for (std::uint64_t block = 0; block < kBlocks; ++block) {
      if (block == stop_after) std::_Exit(0);  // like a crash: no goodbye, nothing closed
      if (!consume(block)) return false;
      if (block + kSlots < kBlocks && !send(block + kSlots)) return false;
    }
    return true;
  }
};

bool failed(const char* what, const railyard::Error& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.text().c_str());
  return false;
}

/// Rank 0 puts to rank 1 and waits until the bytes are there; rank 1 computes for 100 ms without a call.
bool put_to_a_busy_rank(railyard::World& world, railyard::Window& window) {
  const std::uint64_t value = 1;
  const auto start = steady_clock::now();
  if (world.rank() == 0) {
    auto put = window.put_signal(1, 0, &value, sizeof(value), {.index = kArrived});
    if (!put) return failed("put", put.error());
    if (auto there = window.wait(*put); !there) return failed("wait", there.error());
    const std::chrono::duration<double, std::milli> took = steady_clock::now() - start;
    std::printf("complete at rank 1 after %.1f ms\n", took.count());
  } else {
    while (steady_clock::now() - start < std::chrono::milliseconds(100)) continue;
  }
  auto closed = window.close(kPatience);
  return closed ? true : failed("close", closed.error());
}

bool run(std::string_view mode) {
  auto world = railyard::World::open();
  if (!world) return failed("no world", world.error());
  auto window = railyard::Window::allocate(*world, kSlots * kBlockBytes);
  if (!window) return failed("no window", window.error());
  const int rank = world->rank();
  const int ranks = world->size();
  if (mode == "busy") {
    // The first message makes the connection. Then both ranks start at the same time.
    if (auto ready = window->barrier(kPatience); !ready) return failed("barrier", ready.error());
    return ranks < 2 || put_to_a_busy_rank(*world, *window);
  }

  Ring ring{*world, *window, (rank + 1) % ranks, (rank + ranks - 1) % ranks};
  ring.credits = mode != "no-credits";
  const bool lose_one = mode == "lose-one";
  const bool finished = ring.run(lose_one && rank == 1 ? kBlocks / 2 : kBlocks);
  if (lose_one) return ring.status == Status::peer_lost || ranks < 2;  // all others must have noticed
  if (!finished) return false;

  if (auto closed = window->close(kPatience); !closed) return failed("close", closed.error());
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(ring.waited).count();
  std::printf("rank %d of %d: %llu blocks, %llu of them wrong, waited %lld ms\n", rank, ranks,
              static_cast<unsigned long long>(kBlocks), static_cast<unsigned long long>(ring.wrong_blocks),
              static_cast<long long>(waited));
  return ring.wrong_blocks == 0 || !ring.credits;
}

}  // namespace

int main(int count, char** arguments) { return run(count > 1 ? arguments[1] : "") ? 0 : 1; }
