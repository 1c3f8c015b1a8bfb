/// What lines of memory cost that nobody has touched for a while, without Railyard: README.md.
#include <fmt/format.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Lines that each say where the next one is, in no order that a processor could guess.
class Chain {
 public:
  Chain(std::size_t lines, std::size_t pages) {
    const std::size_t per_page = lines / pages;
    void* const memory =
        ::mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap");
    for (std::size_t page = 0; page < pages; ++page) {
      for (std::size_t i = 0; i < per_page; ++i) {
        const std::size_t line = (page + i * (kPage / kLine / per_page)) % (kPage / kLine);
        order_.push_back(static_cast<std::byte*>(memory) + page * kPage + line * kLine);
      }
    }
    std::ranges::shuffle(order_, std::mt19937(1));
    for (std::size_t i = 0; i < order_.size(); ++i)
      *reinterpret_cast<void**>(order_[i]) = order_[(i + 1) % order_.size()];
  }
  void follow() const {
    void* at = order_.front();
    for (std::size_t i = 0; i < order_.size(); ++i) at = *static_cast<void* volatile*>(at);
  }
  void prefetch() const {
    for (const std::byte* line : order_) __builtin_prefetch(line);
  }
  void touch() const {
    for (const std::byte* line : order_) (void)*const_cast<const volatile std::byte*>(line);
  }

 private:
  std::vector<std::byte*> order_;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Microseconds of what is done after an idle time.
template <typename Work>
double measure(int idle_ms, int rounds, Work&& work) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(idle_ms));
    now();
    const std::int64_t begin = now();
    work();
    times.push_back(static_cast<double>(now() - begin) * 1e-3);
  }
  return median(std::move(times));
}

}  // namespace

int main(int argc, char** argv) {
  int idle_ms = 100;
  int rounds = 31;
  CLI::App app("What lines of memory cost that nobody has touched for a while");
  app.add_option("--idle-ms", idle_ms, "Time before each round")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds, "Rounds")->check(CLI::Range(1, 100'000));
  CLI11_PARSE(app, argc, argv);
  fmt::print("idle {} ms, medians of {}, us: one after the other; prefetched first; read first\n", idle_ms, rounds);
  for (const auto& [lines, pages] : {std::pair<std::size_t, std::size_t>{32, 1}, {32, 32}, {192, 12}, {192, 48}}) {
    const Chain chain(lines, pages);
    const double followed = measure(idle_ms, rounds, [&] { chain.follow(); });
    const double prefetched = measure(idle_ms, rounds, [&] {
      chain.prefetch();
      chain.follow();
    });
    const double touched = measure(idle_ms, rounds, [&] {
      chain.touch();
      chain.follow();
    });
    fmt::print("{:4} lines of {:2} pages {:8.2f} {:8.2f} {:8.2f}\n", lines, pages, followed, prefetched, touched);
  }
  return 0;
}
