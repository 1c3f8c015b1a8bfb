/// What NVSHMEM's interface costs: puts, a put with a signal there and back, and fetching atomics through the transport
/// library, beside the same through windows, by turns in the same two processes, in host memory or in memory of a GPU.
///
///   build/bench/nvshmem-cost --library build/lib/railyard-nvshmem/librailyard-nvshmem-3.so [--gpu] [--json FILE]
///
/// Rails and everything else are as the environment has them. Prints medians of rounds; it judges nothing.
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

#include "gpu_memory.hpp"
#include "host_bootstrap.hpp"
#include "nvshmem/host.hpp"
#include "railyard/settings.hpp"
#include "railyard/window.hpp"
#include "window/assemble.hpp"

namespace railyard::nvshmem::test {
namespace {

using Host = Pe<abi::Transport3>;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kWindow = std::size_t{2} << 20;
constexpr std::size_t kSizes[] = {8, 256, 4096, 65536, std::size_t{1} << 20};
constexpr int kRounds = 9;

template <typename T>
T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "nvshmem-cost: %s\n", result.error().text().c_str());
    std::_Exit(2);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}
void must(int code) {
  if (code != 0) std::_Exit(2);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Microseconds of each `work`, of `count` in a row.
double time_each(int count, const std::function<void()>& work) {
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) work();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / count;
}

struct Row {
  std::string what;
  std::size_t bytes;
  double window_us;
  double transport_us;
};

/// The same, once with the window's calls and once with the transport's, by turns. PE 0 measures; the other makes
/// progress.
class Bench {
 public:
  Bench(const Start& start, bool on_gpu) : pe_(start) {
    if (on_gpu) {
      gpu_.emplace();
      heap_.emplace(*gpu_, kWindow);
      source_gpu_.emplace(*gpu_, kWindow);
    }
    if (!pe_.init() || !pe_.connect()) std::_Exit(2);
    host_heap_.resize(on_gpu ? 0 : kWindow);
    host_source_.resize(on_gpu ? 0 : kWindow);
    const std::span<std::byte> heap = on_gpu ? std::span(heap_->data(), kWindow) : std::span(host_heap_);
    source_ = on_gpu ? std::span(source_gpu_->data(), kWindow) : std::span(host_source_);
    pe_.add_chunk(heap);
    pe_.add_chunk(heap);  // `amo` looks for its words in chunk 1
    abi::MemHandle local;
    must(pe_.get_mem_handle(local, source_, true));
    bootstrap_ = must(HostBootstrap::open(pe_.transport()->bootstrap));
    world_.emplace(must(open_world(must(Settings::from_environment()), *bootstrap_)));
    window_.emplace(must(Window::adopt(*world_, heap, {.signals = 8})));
    must(world_->remember(source_));
    must(window_->barrier());
  }

  std::vector<Row> run() {
    std::vector<Row> rows;
    for (const std::size_t bytes : kSizes) {
      rows.push_back(compare(
          "put and quiet", bytes, [&] { must(window_->put(1, 0, source_.data(), bytes)), must(window_->quiet(1)); },
          [&] { must(pe_.put(1, 0, 0, source_.data(), bytes)), must(pe_.quiet(1)); }));
      rows.push_back(compare(
          "16 puts, atomic add, quiet", bytes,
          [&] {
            for (int i = 0; i < 16; ++i) must(window_->put(1, 64, source_.data(), bytes));
            must(window_->atomic<std::uint64_t>(1, 0, AtomicOp::add, 1));
            must(window_->quiet(1));
          },
          [&] {
            for (int i = 0; i < 16; ++i) must(pe_.put(1, 0, 64, source_.data(), bytes));
            must(pe_.amo(abi::AmoOp::add, {1, 0, 8}, 1));
            must(pe_.quiet(1));
          }));
      rows.push_back(compare(
          "get and quiet", bytes, [&] { must(window_->get(1, 0, source_.data(), bytes)), must(window_->quiet(1)); },
          [&] { must(pe_.get(1, 0, 0, source_.data(), bytes)), must(pe_.quiet(1)); }));
    }
    rows.push_back(compare(
        "atomic add and quiet", 8,
        [&] { must(window_->atomic<std::uint64_t>(1, 0, AtomicOp::add, 1)), must(window_->quiet(1)); },
        [&] {
          must(pe_.amo(abi::AmoOp::add, {1, 0, 8}, 1)), must(pe_.quiet(1));
        }));
    done();
    return rows;
  }

  /// The other PE's part.
  void serve() {
    while (pe_.board().notes[0].load() == 0) {
      must(pe_.progress());
      world_->progress();
    }
    done();
  }

 private:
  void done() {
    pe_.board().notes[0] = 1;
    window_.reset();
    world_.reset();
    pe_.barrier();
    pe_.end();
  }

  static Row compare(const char* what, std::size_t bytes, const std::function<void()>& by_window,
                     const std::function<void()>& by_transport) {
    const int count = bytes > 65536 ? 20 : 200;
    time_each(count, by_window);
    time_each(count, by_transport);
    std::vector<double> window;
    std::vector<double> transport;
    for (int round = 0; round < kRounds; ++round) {
      window.push_back(time_each(count, by_window));
      transport.push_back(time_each(count, by_transport));
    }
    return {what, bytes, median(window), median(transport)};
  }

  std::optional<railyard::test::Gpu> gpu_;
  std::optional<railyard::test::GpuMemory> heap_;
  std::optional<railyard::test::GpuMemory> source_gpu_;
  std::vector<std::byte> host_heap_;
  std::vector<std::byte> host_source_;
  std::span<std::byte> source_;
  Host pe_;
  std::unique_ptr<HostBootstrap> bootstrap_;
  std::optional<World> world_;
  std::optional<Window> window_;
};

void print(const std::vector<Row>& rows, const char* json) {
  std::printf("%-28s %9s %12s %12s %7s\n", "", "bytes", "window us", "transport us", "ratio");
  for (const Row& row : rows)
    std::printf("%-28s %9zu %12.2f %12.2f %7.2f\n", row.what.c_str(), row.bytes, row.window_us, row.transport_us,
                row.transport_us / row.window_us);
  if (json == nullptr) return;
  std::FILE* const file = std::fopen(json, "w");
  if (file == nullptr) {
    std::perror(json);
    std::_Exit(2);
  }
  std::fputs("[", file);
  for (const Row& row : rows)
    std::fprintf(file, "%s\n  {\"what\": \"%s\", \"bytes\": %zu, \"window_us\": %.3f, \"transport_us\": %.3f}",
                 &row == rows.data() ? "" : ",", row.what.c_str(), row.bytes, row.window_us, row.transport_us);
  std::fputs("\n]\n", file);
  std::fclose(file);
}

}  // namespace
}  // namespace railyard::nvshmem::test

int main(int count, char** words) {
  using namespace railyard::nvshmem::test;  // NOLINT(google-build-using-namespace)
  Start start;
  bool on_gpu = false;
  const char* json = nullptr;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--library" && i + 1 < count) {
      start.library = words[++i];
    } else if (word == "--gpu") {
      on_gpu = true;
    } else if (word == "--json" && i + 1 < count) {
      json = words[++i];
    } else {
      start.library.clear();
      break;
    }
  }
  if (start.library.empty()) {
    std::fputs("usage: nvshmem-cost --library librailyard-nvshmem-3.so [--gpu] [--json FILE]\n", stderr);
    return 64;
  }
  start.board = Board::make(2);
  if (start.board == nullptr) return 2;
  const pid_t other = ::fork();
  start.pe = other == 0 ? 1 : 0;
  {
    Bench bench(start, on_gpu);
    if (other == 0) {
      bench.serve();
      std::_Exit(failures == 0 ? 0 : 1);
    }
    print(bench.run(), json);
  }
  int status = 0;
  ::waitpid(other, &status, 0);
  return status == 0 && failures == 0 ? 0 : 1;
}
