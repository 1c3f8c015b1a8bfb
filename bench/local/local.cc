/// Our window API between two processes of one machine beside a bare copy through shared memory, in one run: README.md.
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "railyard/window.hpp"
#include "shm/copy.hpp"

namespace {

using railyard::Comparison;
using railyard::Result;
using railyard::Window;
using railyard::World;

constexpr std::size_t kLongest = 1U << 20U;
constexpr std::size_t kStream = 64;  ///< messages of one round of a stream
constexpr std::size_t kSpan = kLongest * 4;
constexpr double kSameDistance = 1.3;  ///< two lines that differ by more were not taken at one distance
constexpr double kFar = 120;           ///< nanoseconds of a line that came from far away

struct Options {
  std::vector<int> cpus{0, 1};
  int priority = 0;
  std::vector<std::size_t> sizes{8, 64, 256, 1024, 4096, 16384, 65536, 1U << 20U};
  int repeats = 5;
  std::uint64_t trips = 2000;
  bool json = false;
};

/// One direction of the floor.
struct alignas(128) Slot {
  std::atomic<std::uint64_t> flag{0};
  std::byte beside[kSpan];
  alignas(128) std::atomic<std::uint64_t> flag_apart{0};
};

/// What both processes have from the start: the floor's memory, and where the two ranks meet.
struct Shared {
  std::array<Slot, 2> slots;
  struct Exchange {
    std::atomic<std::uint32_t> rounds[2];
    std::size_t used[2][2];
    std::byte bytes[2][2][32768];
  } exchange;
};

class Meet final : public railyard::Bootstrap {
 public:
  Meet(Shared& shared, int rank) : exchange_(shared.exchange), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, railyard::Deadline) override {
    const auto me = static_cast<std::size_t>(rank_);
    const std::uint32_t round = exchange_.rounds[me].load() + 1;
    std::memcpy(exchange_.bytes[round % 2][me], mine.data(), mine.size());
    exchange_.used[round % 2][me] = mine.size();
    exchange_.rounds[me].store(round);
    while (exchange_.rounds[1 - me].load() < round) sched_yield();
    std::vector<std::vector<std::byte>> all;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const std::byte* bytes = exchange_.bytes[round % 2][rank];
      all.emplace_back(bytes, bytes + exchange_.used[round % 2][rank]);
    }
    return all;
  }
  Result<void> barrier(railyard::Deadline deadline) override {
    auto met = allgather({}, deadline);
    return met ? Result<void>() : Result<void>(std::move(met.error()));
  }
  std::string describe() const override { return "two processes of a bench"; }

 private:
  Shared::Exchange& exchange_;
  int rank_;
};

/// The floor's copies: not memcpy, which is several times slower at some distances of source and destination.
void bare_copy(std::byte* to, const std::byte* from, std::size_t bytes) { railyard::shm::copy_bytes(to, from, bytes); }

[[noreturn]] void fail(const std::string& text) {
  fmt::print(stderr, "local: {}\n", text);
  std::exit(1);
}
template <typename T>
T must(Result<T> result) {
  if (!result) fail(result.error().text());
  return std::move(result).value();
}
void must(Result<void> result) {
  if (!result) fail(result.error().text());
}

/// One side of every exchange. Both sides make the same calls; numbers only ever grow, so nothing is reset.
class Side {
 public:
  Side(Shared& shared, Window& window, int rank)
      : shared_(shared), window_(window), rank_(rank), message_(kLongest, std::byte{1}) {}

  /// `trips` exchanges, begun by rank 0; nanoseconds of one exchange.
  template <typename Exchange>
  double run(std::uint64_t trips, Exchange&& exchange) {
    for (std::uint64_t i = 0; i < trips / 4 + 1; ++i) exchange();
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t i = 0; i < trips; ++i) exchange();
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
    return taken.count() / static_cast<double>(trips);
  }

  void floor_exchange(std::size_t bytes, bool apart) {
    const auto send = [&](Slot& slot, std::uint64_t number) {
      bare_copy(slot.beside, message_.data(), bytes);
      (apart ? slot.flag_apart : slot.flag).store(number, std::memory_order_release);
    };
    const auto receive = [&](Slot& slot, std::uint64_t number) {
      const auto& flag = apart ? slot.flag_apart : slot.flag;
      while (flag.load(std::memory_order_acquire) < number) {
      }
      bare_copy(message_.data(), slot.beside, bytes);
    };
    const std::uint64_t number = ++(apart ? apart_ : beside_);
    if (rank_ == 0) send(shared_.slots[0], number);
    receive(shared_.slots[static_cast<std::size_t>(1 - rank_)], number);
    if (rank_ == 1) send(shared_.slots[1], number);
  }

  void our_exchange(std::size_t bytes, bool read) {
    const std::uint64_t number = ++ours_;
    const auto send = [&] { must(window_.put_signal(1 - rank_, 0, message_.data(), bytes, {0, 1})); };
    if (rank_ == 0) send();
    must(window_.wait_signal(0, Comparison::greater_equal, number));
    if (read) bare_copy(message_.data(), window_.local().data(), bytes);
    if (rank_ == 1) send();
  }

  void floor_stream(std::size_t bytes) {
    const std::uint64_t number = ++apart_;
    if (rank_ == 0) {
      for (std::size_t i = 0; i < kStream; ++i) {
        bare_copy(shared_.slots[0].beside + i * bytes, message_.data(), bytes);
      }
      shared_.slots[0].flag_apart.store(number, std::memory_order_release);
    }
    wait_for(shared_.slots[static_cast<std::size_t>(1 - rank_)].flag_apart, number);
    if (rank_ == 1) {
      copy_all_out(shared_.slots[0].beside, bytes);
      shared_.slots[1].flag_apart.store(number, std::memory_order_release);
    }
  }

  void our_stream(std::size_t bytes) {
    const std::uint64_t number = ++ours_;
    if (rank_ == 0) {
      for (std::size_t i = 0; i + 1 < kStream; ++i) must(window_.put(1, i * bytes, message_.data(), bytes));
      must(window_.put_signal(1, (kStream - 1) * bytes, message_.data(), bytes, {0, 1}));
    }
    must(window_.wait_signal(0, Comparison::greater_equal, number));
    if (rank_ == 1) {
      copy_all_out(window_.local().data(), bytes);
      must(window_.signal(0, {0, 1}));
    }
  }

  /// A flag or signal with every message, so that the other side copies out while the next ones come.
  void floor_pipeline(std::size_t bytes) {
    if (rank_ == 0) {
      for (std::size_t i = 0; i < in_flight(bytes); ++i) {
        bare_copy(shared_.slots[0].beside + i * bytes, message_.data(), bytes);
        shared_.slots[0].flag_apart.store(apart_ + i + 1, std::memory_order_release);
      }
      wait_for(shared_.slots[1].flag_apart, apart_ + in_flight(bytes));
    } else {
      for (std::size_t i = 0; i < in_flight(bytes); ++i) {
        wait_for(shared_.slots[0].flag_apart, apart_ + i + 1);
        bare_copy(message_.data(), shared_.slots[0].beside + i * bytes, bytes);
      }
      shared_.slots[1].flag_apart.store(apart_ + in_flight(bytes), std::memory_order_release);
    }
    apart_ += in_flight(bytes);
  }

  void our_pipeline(std::size_t bytes) {
    ++rounds_;
    if (rank_ == 0) {
      for (std::size_t i = 0; i < in_flight(bytes); ++i) {
        must(window_.put_signal(1, i * bytes, message_.data(), bytes, {1, 1}));
      }
      must(window_.wait_signal(1, Comparison::greater_equal, rounds_));
    } else {
      for (std::size_t i = 0; i < in_flight(bytes); ++i) {
        must(window_.wait_signal(1, Comparison::greater_equal, ++pipelined_));
        bare_copy(message_.data(), window_.local().data() + i * bytes, bytes);
      }
      must(window_.signal(0, {1, 1}));
    }
  }

  /// Always to the same place, and nobody looks: what other libraries call put bandwidth.
  void our_puts(std::size_t bytes) {
    if (rank_ == 1) return;
    for (std::size_t i = 0; i < kStream; ++i) must(window_.put(1, 0, message_.data(), bytes));
    must(window_.quiet(1));
  }

  static std::size_t in_flight(std::size_t bytes) { return std::min(kStream, kSpan / bytes); }

  void floor_get(std::size_t bytes) {
    const std::uint64_t number = ++apart_;
    if (rank_ == 1) {
      std::memset(shared_.slots[1].beside, static_cast<int>(number), bytes);
      shared_.slots[1].flag_apart.store(number, std::memory_order_release);
      wait_for(shared_.slots[0].flag_apart, number);
    } else {
      wait_for(shared_.slots[1].flag_apart, number);
      bare_copy(message_.data(), shared_.slots[1].beside, bytes);
      shared_.slots[0].flag_apart.store(number, std::memory_order_release);
    }
  }

  void our_get(std::size_t bytes) {
    const std::uint64_t number = ++ours_;
    if (rank_ == 1) {
      std::memset(window_.local().data(), static_cast<int>(number), bytes);
      must(window_.signal(0, {0, 1}));
      must(window_.wait_signal(0, Comparison::greater_equal, number));
    } else {
      must(window_.wait_signal(0, Comparison::greater_equal, number));
      must(window_.wait(must(window_.get(1, 0, message_.data(), bytes))));
      must(window_.signal(1, {0, 1}));
    }
  }

 private:
  void copy_all_out(const std::byte* from, std::size_t bytes) {
    for (std::size_t i = 0; i < kStream; ++i) bare_copy(message_.data(), from + i * bytes, bytes);
  }
  static void wait_for(const std::atomic<std::uint64_t>& flag, std::uint64_t number) {
    while (flag.load(std::memory_order_acquire) < number) {
    }
  }

  Shared& shared_;
  Window& window_;
  int rank_;
  std::vector<std::byte> message_;
  std::uint64_t beside_ = 0;
  std::uint64_t apart_ = 0;
  std::uint64_t ours_ = 0;
  std::uint64_t rounds_ = 0;
  std::uint64_t pipelined_ = 0;
};

struct Sample {
  const char* what;
  const char* who;
  std::size_t bytes;
  double nanoseconds;
  double line_before;
  double line_after;
};

std::vector<Sample> measure(const Options& options, Side& side) {
  std::vector<Sample> samples;
  const auto line = [&] { return side.run(options.trips, [&] { side.floor_exchange(0, false); }) / 2; };
  double before = line();
  const auto take = [&](const char* what, const char* who, std::size_t bytes, double share, auto&& exchange) {
    const std::uint64_t trips = std::max<std::uint64_t>(options.trips * 512 / (512 + bytes), 20);
    const double taken = side.run(trips, exchange) * share;
    const double after = line();
    samples.push_back({what, who, bytes, taken, before, after});
    before = after;
  };
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (const std::size_t bytes : options.sizes) {
      take("latency", "floor", bytes, 0.5, [&] { side.floor_exchange(bytes, false); });
      take("latency", "railyard", bytes, 0.5, [&] { side.our_exchange(bytes, true); });
      take("unread", "railyard", bytes, 0.5, [&] { side.our_exchange(bytes, false); });
      take("apart", "floor", bytes, 0.5, [&] { side.floor_exchange(bytes, true); });
      take("get", "floor", bytes, 1, [&] { side.floor_get(bytes); });
      take("get", "railyard", bytes, 1, [&] { side.our_get(bytes); });
      const double messages = 1.0 / static_cast<double>(Side::in_flight(bytes));
      take("pipeline", "floor", bytes, messages, [&] { side.floor_pipeline(bytes); });
      take("pipeline", "railyard", bytes, messages, [&] { side.our_pipeline(bytes); });
      take("puts", "railyard", bytes, 1.0 / kStream, [&] { side.our_puts(bytes); });
      if (bytes > kSpan / kStream) continue;
      take("stream", "floor", bytes, 1.0 / kStream, [&] { side.floor_stream(bytes); });
      take("stream", "railyard", bytes, 1.0 / kStream, [&] { side.our_stream(bytes); });
    }
  }
  return samples;
}

void print_json(const Options& options, const std::vector<Sample>& samples) {
  fmt::print("{{\"cpus\": [{}, {}], \"samples\": [", options.cpus[0], options.cpus[1]);
  const char* comma = "\n";
  for (const Sample& sample : samples) {
    fmt::print(
        "{}{{\"what\": \"{}\", \"who\": \"{}\", \"bytes\": {}, \"ns\": {:.1f}, \"line_before\": {:.1f}, "
        "\"line_after\": {:.1f}}}",
        comma, sample.what, sample.who, sample.bytes, sample.nanoseconds, sample.line_before, sample.line_after);
    comma = ",\n";
  }
  fmt::print("\n]}}\n");
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print_table(const std::vector<Sample>& samples) {
  using Row = std::tuple<std::string, std::string, std::size_t>;
  std::map<Row, std::map<std::string, std::vector<double>>> rows;
  for (const Sample& sample : samples) {
    const auto [least, most] = std::minmax(sample.line_before, sample.line_after);
    if (most > kSameDistance * least) continue;
    rows[{sample.what, most > kFar ? "far" : "near", sample.bytes}][sample.who].push_back(sample.nanoseconds);
  }
  fmt::print("{:8} {:5} {:>8} {:>12} {:>12} {:>7} {:>8}\n", "what", "cores", "bytes", "floor ns", "railyard ns",
             "ratio", "samples");
  for (const auto& [row, by_who] : rows) {
    const auto& [what, cores, bytes] = row;
    const auto floor = by_who.find("floor");
    const auto ours = by_who.find("railyard");
    const bool both = floor != by_who.end() && ours != by_who.end();
    fmt::print("{:8} {:5} {:>8} {:>12} {:>12} {:>7} {:>8}\n", what, cores, bytes,
               floor == by_who.end() ? "" : fmt::format("{:.1f}", median(floor->second)),
               ours == by_who.end() ? "" : fmt::format("{:.1f}", median(ours->second)),
               both ? fmt::format("{:.2f}", median(ours->second) / median(floor->second)) : "",
               ours == by_who.end() ? floor->second.size() : ours->second.size());
  }
}

/// One rank from start to end; rank 0 returns what it measured.
std::vector<Sample> run_rank(const Options& options, Shared& shared, int rank) {
  Meet meet(shared, rank);
  railyard::WorldOptions world_options;
  world_options.bootstrap = &meet;
  auto world = must(World::open(world_options));
  auto window = must(Window::allocate(world, kSpan));
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(options.cpus[static_cast<std::size_t>(rank)]), &set);
  const sched_param parameters{.sched_priority = options.priority};
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("no such processor");
  if (options.priority != 0 && sched_setscheduler(0, SCHED_FIFO, &parameters) != 0) fail("the priority is not allowed");
  must(meet.barrier({}));
  Side side(shared, window, rank);
  auto samples = measure(options, side);
  if (rank == 0 && world.statistics().direct_puts == 0) fail("the window was not reached directly");
  must(window.close());
  return samples;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  unsigned patience = 120;
  CLI::App app("Our window API beside a bare copy through shared memory: bench/local/README.md");
  app.add_option("--cpus", options.cpus, "where the two processes run")->delimiter(',')->expected(2);
  app.add_option("--priority", options.priority, "real-time priority; 0: none")->check(CLI::Range(0, 99));
  app.add_option("--sizes", options.sizes, "bytes of a message")->delimiter(',')->check(CLI::Range(1U, 1U << 20U));
  app.add_option("--repeats", options.repeats, "samples of each kind");
  app.add_option("--trips", options.trips, "round trips of a sample of short messages");
  app.add_option("--patience", patience, "seconds after which it gives up");
  app.add_flag("--json", options.json, "every sample, for a program to read");
  CLI11_PARSE(app, argc, argv);
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory");
  auto& shared = *new (memory) Shared{};
  // Two that spin at real-time priority and wait for each other in vain would take the machine with them.
  alarm(patience);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    alarm(patience);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
    run_rank(options, shared, 1);
    _exit(0);
  }
  const auto samples = run_rank(options, shared, 0);
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) fail("the other process failed");
  options.json ? print_json(options, samples) : print_table(samples);
  return 0;
}
