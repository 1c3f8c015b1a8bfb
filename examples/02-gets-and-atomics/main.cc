// A shared list of work. Rank 0 holds the items and a counter; every rank takes the next item with a fetching addition,
// reads it with a get that is cut over all rails, and adds what it computed to a total with another atomic.
//
//   RAILYARD_RAILS=4 railyard launch -n 2 -- example-02-gets-and-atomics

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "railyard/window.hpp"
#include "railyard/world.hpp"

using railyard::AtomicOp;

namespace {

constexpr std::uint64_t kItems = 32;
constexpr std::size_t kWordsPerItem = 128 * 1024;  // 1 MiB
constexpr std::size_t kItemBytes = kWordsPerItem * sizeof(std::uint64_t);

// Rank 0's window: the counter, the total, then the items.
constexpr std::size_t kNextItem = 0;
constexpr std::size_t kTotal = 8;
constexpr std::size_t kFirstItem = 4096;

bool failed(const char* what, const railyard::Error& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.text().c_str());
  return false;
}

std::uint64_t word_of(std::uint64_t item, std::size_t index) { return item * 1'000'003 + index; }

void fill_items(std::span<std::byte> memory) {
  for (std::uint64_t item = 0; item < kItems; ++item) {
    for (std::size_t i = 0; i < kWordsPerItem; ++i) {
      const std::uint64_t word = word_of(item, i);
      std::memcpy(memory.data() + kFirstItem + item * kItemBytes + i * sizeof(word), &word, sizeof(word));
    }
  }
}

// Takes items until there are none left.
bool work(railyard::Window& window, std::uint64_t& taken) {
  std::vector<std::uint64_t> words(kWordsPerItem);
  for (;;) {
    std::uint64_t item = 0;
    auto ticket = window.fetch_atomic(0, kNextItem, AtomicOp::add, &item, std::uint64_t{1});
    if (!ticket) return failed("fetch", ticket.error());
    if (auto done = window.wait(*ticket); !done) return failed("fetch", done.error());
    if (item >= kItems) return true;

    auto get = window.get(0, kFirstItem + item * kItemBytes, words.data(), kItemBytes);
    if (!get) return failed("get", get.error());
    if (auto done = window.wait(*get); !done) return failed("get", done.error());
    const std::uint64_t sum = std::accumulate(words.begin(), words.end(), std::uint64_t{0});
    if (auto add = window.atomic(0, kTotal, AtomicOp::add, sum); !add) return failed("add", add.error());
    ++taken;
  }
}

bool run() {
  auto world = railyard::World::open();
  if (!world) return failed("no world", world.error());
  auto window = railyard::Window::allocate(*world, kFirstItem + kItems * kItemBytes);
  if (!window) return failed("no window", window.error());
  if (world->rank() == 0) fill_items(window->local());
  if (auto met = window->barrier(); !met) return failed("barrier", met.error());

  std::uint64_t taken = 0;
  if (!work(*window, taken)) return false;
  // The barrier completes every rank's additions first; after it the total is whole.
  if (auto met = window->barrier(); !met) return failed("barrier", met.error());
  std::printf("rank %d took %llu items\n", world->rank(), static_cast<unsigned long long>(taken));

  bool right = true;
  if (world->rank() == 0) {
    std::uint64_t expected = 0;
    for (std::uint64_t item = 0; item < kItems; ++item) {
      for (std::size_t i = 0; i < kWordsPerItem; ++i) expected += word_of(item, i);
    }
    std::uint64_t total = 0;
    std::memcpy(&total, window->local().data() + kTotal, sizeof(total));
    right = total == expected;
    std::printf("%llu items, total %s\n", static_cast<unsigned long long>(kItems), right ? "right" : "WRONG");
  } else {
    for (const auto& rail : world->statistics().rails) {
      std::printf("rank %d, rail %s: %llu reads\n", world->rank(), rail.name.c_str(),
                  static_cast<unsigned long long>(rail.reads_sent));
    }
  }
  if (auto closed = window->close(); !closed) return failed("close", closed.error());
  return right;
}

}  // namespace

int main() { return run() ? 0 : 1; }
