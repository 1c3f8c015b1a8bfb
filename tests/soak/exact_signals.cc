/// Soak: put_signals of mixed sizes from rank 0 to rank 1, each checked byte for byte at the moment its signal is seen;
/// then every other rank adds to one signal word of rank 0, and the sum must be exact. Run under `railyard launch`,
/// with the rails of `tests/lab/rails` or on loopback. Prints what was checked; exits 1 if anything was early, lost,
/// double or corrupt.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/random.hpp"
#include "railyard/window.hpp"

namespace {

using namespace railyard;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kSlots = 32;

struct Options {
  std::uint64_t count = 1'000'000;
  std::uint64_t adds = 20'000;
  std::size_t most = 1 << 20;
  std::uint64_t seed = 1;
};

[[noreturn]] void give_up(const Error& error) {
  std::fprintf(stderr, "exact_signals: %s\n", error.text().c_str());
  std::exit(1);
}
template <typename T>
T must(Result<T> result) {
  if (!result) give_up(result.error());
  return std::move(result).value();
}
void must(Result<void> result) {
  if (!result) give_up(result.error());
}

/// Sizes from 1 B to `most`, every order of magnitude, the small ones more often.
std::size_t size_of(std::uint64_t message, const Options& options) {
  Random random(options.seed * 1'000'003 + message);
  std::size_t most = 64;
  while (most < options.most && random.below(2) == 0) most *= 4;
  return 1 + random.below(std::min(most, options.most));
}

std::uint64_t word_of(std::uint64_t message, std::size_t place) {
  return (message * 0x9e3779b97f4a7c15ULL) ^ (place * 0xbf58476d1ce4e5b9ULL);
}

void fill(std::byte* memory, std::size_t bytes, std::uint64_t message) {
  std::size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    const std::uint64_t word = word_of(message, at);
    std::memcpy(memory + at, &word, 8);
  }
  const std::uint64_t word = word_of(message, at);
  std::memcpy(memory + at, &word, bytes - at);
}

/// Bytes that are not what the message brought.
std::size_t wrong_bytes(const std::byte* memory, std::size_t bytes, std::uint64_t message) {
  std::size_t wrong = 0;
  std::size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    const std::uint64_t word = word_of(message, at);
    wrong += std::memcmp(memory + at, &word, 8) != 0 ? 8 : 0;
  }
  const std::uint64_t word = word_of(message, at);
  return wrong + (std::memcmp(memory + at, &word, bytes - at) != 0 ? bytes - at : 0);
}

void send_stream(Window& window, const Options& options) {
  std::vector<std::byte> sources(kSlots * options.most);
  std::vector<Ticket> tickets(kSlots);
  std::uint64_t bytes_sent = 0;
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t message = 0; message < options.count; ++message) {
    const std::size_t slot = message % kSlots;
    if (message >= kSlots) {
      must(
          window.wait_signal(1, Comparison::greater_equal, message - kSlots + 1));  // the receiver has checked the slot
      must(window.wait(tickets[slot], Completion::local));
    }
    const std::size_t bytes = size_of(message, options);
    std::byte* source = sources.data() + slot * options.most;
    fill(source, bytes, message);
    tickets[slot] = must(window.put_signal(1, slot * options.most, source, bytes, {0, 1}));
    bytes_sent += bytes;
    if (message % 100'000 == 99'999) {
      std::fprintf(stderr, "exact_signals: %llu of %llu\n", static_cast<unsigned long long>(message + 1),
                   static_cast<unsigned long long>(options.count));
    }
  }
  must(window.quiet());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%llu put_signals, %.2f GB, %.1f s, %.0f MB/s\n", static_cast<unsigned long long>(options.count),
              static_cast<double>(bytes_sent) / 1e9, took.count(),
              static_cast<double>(bytes_sent) / 1e6 / took.count());
}

std::uint64_t check_stream(Window& window, const Options& options) {
  std::uint64_t bad = 0;
  std::uint64_t message = 0;
  while (message < options.count) {
    const std::uint64_t seen = must(window.wait_signal(0, Comparison::greater, message));
    if (seen > message + kSlots || seen > options.count) {
      std::fprintf(stderr, "exact_signals: the signal holds %llu after %llu messages: doubled\n",
                   static_cast<unsigned long long>(seen), static_cast<unsigned long long>(message));
      return bad + 1;
    }
    // All that the signal stands for must be there now.
    for (; message < seen; ++message) {
      const std::size_t wrong =
          wrong_bytes(window.local().data() + message % kSlots * options.most, size_of(message, options), message);
      if (wrong != 0) {
        ++bad;
        std::fprintf(stderr, "exact_signals: message %llu: %zu bytes early or corrupt\n",
                     static_cast<unsigned long long>(message), wrong);
      }
      must(window.signal(0, {1, 1}));
    }
  }
  must(window.quiet());
  if (window.read_signal(0) != options.count) ++bad;
  return bad;
}

/// Every rank but 0 adds; rank 0 waits for the exact sum and watches that it never passes it.
std::uint64_t many_to_one(World& world, Window& window, const Options& options) {
  std::uint64_t expected = 0;
  for (int rank = 1; rank < world.size(); ++rank) {
    Random values(options.seed + static_cast<std::uint64_t>(rank));
    for (std::uint64_t i = 0; i < options.adds; ++i) expected += 1 + values.below(1000);
  }
  if (world.rank() != 0) {
    Random values(options.seed + static_cast<std::uint64_t>(world.rank()));
    std::vector<std::byte> source(4096);
    for (std::uint64_t i = 0; i < options.adds; ++i) {
      const std::uint64_t value = 1 + values.below(1000);
      must(window.put_signal(0, static_cast<std::size_t>(world.rank()) * 4096, source.data(), i % 4096, {2, value}));
    }
    must(window.quiet());
  } else {
    must(window.wait_signal(2, Comparison::greater_equal, expected));
  }
  must(window.barrier());
  if (world.rank() != 0) return 0;
  std::printf("%d sources x %llu adds to one signal: %llu, expected %llu\n", world.size() - 1,
              static_cast<unsigned long long>(options.adds), static_cast<unsigned long long>(window.read_signal(2)),
              static_cast<unsigned long long>(expected));
  return window.read_signal(2) == expected ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"put_signals of mixed sizes, each checked when its signal is seen"};
  app.add_option("--count", options.count, "put_signals from rank 0 to rank 1; 0: none");
  app.add_option("--adds", options.adds, "signals from every rank but 0 to one word of rank 0; 0: none");
  app.add_option("--most", options.most, "largest message");
  app.add_option("--seed", options.seed, "of sizes and values");
  CLI11_PARSE(app, argc, argv);
  auto world = must(World::open());
  std::uint64_t bad = 0;
  {
    auto window = must(Window::allocate(world, std::max<std::size_t>(kSlots * options.most, 4096 * 64)));
    if (options.count > 0 && world.rank() == 0) send_stream(window, options);
    if (options.count > 0 && world.rank() == 1) bad += check_stream(window, options);
    must(world.barrier(Deadline::in(std::chrono::minutes(30))));
    if (options.adds > 0) bad += many_to_one(world, window, options);
    must(window.close());
  }
  if (world.rank() == 0) {
    for (const auto& rail : world.statistics().rails) {
      std::printf("rail %s: %.1f MB sent\n", rail.name.c_str(), static_cast<double>(rail.bytes_sent) / 1e6);
    }
  }
  if (bad != 0) {
    std::fprintf(stderr, "exact_signals: rank %d found %llu failures\n", world.rank(),
                 static_cast<unsigned long long>(bad));
  } else if (world.rank() <= 1) {
    std::printf("rank %d: 0 early, 0 lost, 0 double, 0 corrupt\n", world.rank());
  }
  return bad == 0 ? 0 : 1;
}
