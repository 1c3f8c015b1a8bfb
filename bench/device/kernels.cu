// What kernels get from a window: latencies and bandwidth of two ranks on one GPU, over the whole curve of sizes,
// beside the floor of the same run; and many put_signals from many blocks, each checked. docs/device.md has the lines
// that build it.
//
//   railyard launch -n 2 -- kernels [own|gpu] [gpu-signals] [exact COUNT]
//
// `own`: the window allocates GPU memory, with its signals and counters: kernels store there themselves. `gpu`: the
// window is GPU memory that the program brings. `gpu-signals`: so are signals and counters. `exact`: that many
// put_signals instead of the table. Rails are as the environment has them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "../../examples/cuda_program.cuh"

namespace {

using railyard::device::Comparison;
using railyard::device::Scope;
using railyard::device::Status;
using railyard::device::Window;

constexpr std::uint64_t kMost = std::uint64_t{64} << 20;
constexpr unsigned kThreads = 256;
constexpr unsigned kWideThreads = 1024;
constexpr std::uint64_t kPing = 1, kDone = 3, kThreadPing = 4, kUnread = 5;  // signals; 8 and on: those of blocks
constexpr std::uint64_t kCounter = 1;

struct Found {
  int line;
  int status;
};

#define CHECK(expression)                                                                       \
  do {                                                                                          \
    const Status status_ = (expression);                                                        \
    if (status_ != Status::ok) {                                                                \
      if (atomicCAS(&found->line, 0, __LINE__) == 0) found->status = static_cast<int>(status_); \
      return;                                                                                   \
    }                                                                                           \
  } while (false)

/// There and back: the first thread's clock, nanoseconds of each round.
__global__ void ping_pong(Window window, unsigned char* source, std::uint64_t bytes, std::uint64_t base,
                          unsigned rounds, unsigned* times, Found* found) {
  const int peer = 1 - window.rank();
  for (unsigned i = 1; i <= rounds; ++i) {
    const std::uint64_t start = railyard::device::detail::now();
    if (window.rank() == 0)
      CHECK(window.put_signal_counter<Scope::block>(peer, 0, source, bytes, {kPing}, {kCounter}).status());
    CHECK(window.wait_signal<Scope::block>(kPing, Comparison::greater_equal, base + i, peer));
    if (window.rank() == 1)
      CHECK(window.put_signal_counter<Scope::block>(peer, 0, source, bytes, {kPing}, {kCounter}).status());
    if (threadIdx.x == 0) times[i - 1] = static_cast<unsigned>(railyard::device::detail::now() - start);
  }
}

/// Eight bytes there and back by one thread, with nothing but a signal.
__global__ void ping_thread(Window window, std::uint64_t base, unsigned rounds, unsigned* times, Found* found) {
  const int peer = 1 - window.rank();
  for (std::uint64_t i = 1; i <= rounds; ++i) {
    const std::uint64_t start = railyard::device::detail::now();
    if (window.rank() == 0) CHECK(window.put_signal(peer, 0, &i, sizeof i, {kThreadPing}).status());
    CHECK(window.wait_signal(kThreadPing, Comparison::greater_equal, base + i, peer));
    if (window.rank() == 1) CHECK(window.put_signal(peer, 0, &i, sizeof i, {kThreadPing}).status());
    times[i - 1] = static_cast<unsigned>(railyard::device::detail::now() - start);
  }
}
/// The floor of that: a plain store, and a plain look.
__global__ void ping_bare(bool first, volatile std::uint64_t* there, volatile std::uint64_t* here, unsigned rounds,
                          unsigned* times) {
  for (std::uint64_t i = 1; i <= rounds; ++i) {
    const std::uint64_t start = railyard::device::detail::now();
    if (first) *there = i;
    while (*here < i) {
    }
    if (!first) *there = i;
    times[i - 1] = static_cast<unsigned>(railyard::device::detail::now() - start);
  }
}
/// The origin's part alone: what a call takes, and of that a fence that follows a store, for everybody and for this
/// GPU. Nanoseconds of all rounds.
__global__ void origin_only(Window window, std::uint64_t* there, unsigned rounds, unsigned* times, Found* found) {
  std::uint64_t start = railyard::device::detail::now();
  for (std::uint64_t i = 0; i < rounds; ++i) CHECK(window.put_signal(1, 0, &i, sizeof i, {kUnread}).status());
  times[0] = static_cast<unsigned>(railyard::device::detail::now() - start);
  start = railyard::device::detail::now();
  for (std::uint64_t i = 0; i < rounds; ++i) {
    *reinterpret_cast<volatile std::uint64_t*>(there) = i;
    railyard::device::detail::release_system();
  }
  times[1] = static_cast<unsigned>(railyard::device::detail::now() - start);
  start = railyard::device::detail::now();
  for (std::uint64_t i = 0; i < rounds; ++i) CHECK(window.put(1, 0, &i, sizeof i).status());
  times[2] = static_cast<unsigned>(railyard::device::detail::now() - start);
  start = railyard::device::detail::now();
  for (std::uint64_t i = 0; i < rounds; ++i) {
    *reinterpret_cast<volatile std::uint64_t*>(there) = i;
    railyard::device::detail::release_local();
  }
  times[3] = static_cast<unsigned>(railyard::device::detail::now() - start);
}
/// Every block puts its share. With the bounds, as many threads have registers enough to be launched.
__global__ void __launch_bounds__(kWideThreads)
    stream_wide(Window window, unsigned char* source, std::uint64_t bytes, unsigned puts, Found* found) {
  const std::uint64_t share = ((bytes + gridDim.x - 1) / gridDim.x + 127) / 128 * 128;
  const std::uint64_t at = blockIdx.x * share;
  if (at >= bytes) return;
  const std::uint64_t mine = bytes - at < share ? bytes - at : share;
  for (unsigned i = 0; i < puts; ++i) CHECK(window.put<Scope::block>(1, at, source + at, mine).status());
  CHECK(window.quiet<Scope::block>());
}

/// How many bytes of the peer's memory are not those of the source.
__global__ void compare(const unsigned char* there, const unsigned char* source, std::uint64_t bytes,
                        unsigned long long* wrong) {
  unsigned long long mine = 0;
  for (std::uint64_t at = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; at < bytes;
       at += std::uint64_t{gridDim.x} * blockDim.x)
    mine += there[at] != source[at] ? 1 : 0;
  if (mine != 0) atomicAdd(wrong, mine);
}

/// A put and the wait for its end.
__global__ void put_and_quiet(Window window, unsigned char* source, std::uint64_t bytes, unsigned rounds,
                              unsigned* times, Found* found) {
  for (unsigned i = 0; i < rounds; ++i) {
    const std::uint64_t start = railyard::device::detail::now();
    CHECK(window.put<Scope::block>(1, 0, source, bytes).status());
    CHECK(window.quiet<Scope::block>());
    if (threadIdx.x == 0) times[i] = static_cast<unsigned>(railyard::device::detail::now() - start);
  }
}

__global__ void stream(Window window, unsigned char* source, std::uint64_t bytes, unsigned puts, unsigned* times,
                       Found* found) {
  const std::uint64_t start = railyard::device::detail::now();
  for (unsigned i = 0; i < puts; ++i) CHECK(window.put<Scope::block>(1, 0, source, bytes).status());
  CHECK(window.quiet<Scope::block>());
  if (threadIdx.x == 0) times[0] = static_cast<unsigned>(railyard::device::detail::now() - start);
}

/// Each block puts its number into a slot of its own, round by round, and signals. The peer's kernel sees the count of
/// signals grow; a signal that is there before its slot is early.
__global__ void exact_send(Window window, std::uint64_t* source, std::uint64_t each, Found* found) {
  const std::uint64_t block = blockIdx.x;
  for (std::uint64_t i = 1; i <= each; ++i) {
    if (threadIdx.x == 0) source[block] = i;
    __syncthreads();
    CHECK(window.put_signal<Scope::block>(1, block * 64, source + block, 8, {8 + block}).status());
    // The source is used again.
    CHECK(window.quiet<Scope::block>());
  }
  CHECK(window.signal<Scope::block>(1, {kDone}).status());
}
__global__ void exact_look(Window window, std::uint64_t each, unsigned long long* early, Found* found) {
  const std::uint64_t block = blockIdx.x;
  const auto* const slot = reinterpret_cast<const volatile std::uint64_t*>(window.local() + block * 64);
  if (threadIdx.x != 0) return;
  for (std::uint64_t i = 1; i <= each;) {
    std::uint64_t held = 0;
    CHECK(window.wait_signal(8 + block, Comparison::greater_equal, i, 0, &held));
    if (*slot < held) atomicAdd(early, 1ULL);
    i = held + 1;
  }
}

__global__ void answer(volatile std::uint64_t* asked, volatile std::uint64_t* answered, unsigned rounds,
                       unsigned* times) {
  for (unsigned i = 1; i <= rounds; ++i) {
    const std::uint64_t start = railyard::device::detail::now();
    *asked = i;
    while (*answered < i) {
    }
    times[i - 1] = static_cast<unsigned>(railyard::device::detail::now() - start);
  }
}

struct Times {
  double median;
  double late;  ///< the 99th of a hundred
};
Times sorted(unsigned* times, unsigned count) {
  std::sort(times, times + count);
  return {times[count / 2] / 1e3, times[count * 99 / 100] / 1e3};
}

bool good = true;
void end_kernel(const char* what, Found* found, const railyard::DeviceProxy& proxy) {
  CUDA(cudaGetLastError());  // of the launch
  CUDA(cudaDeviceSynchronize());
  if (found->line == 0) return;
  const auto status = proxy.status();
  std::printf("%s: line %d, status %d: %s\n", what, found->line, found->status,
              status ? "the proxy has nothing to say" : status.error().text().c_str());
  *found = {};
  good = false;
}

/// The floor: a kernel asks by a store into pinned memory, a host thread answers there.
void print_floor(unsigned* times) {
  std::uint64_t* words = nullptr;
  CUDA(cudaMallocHost(&words, 256));
  std::memset(words, 0, 256);
  constexpr unsigned kRounds = 2000;
  std::atomic<bool> over{false};
  std::thread host([&] {
    while (!over.load()) {
      const std::uint64_t asked = std::atomic_ref<std::uint64_t>(words[0]).load(std::memory_order_acquire);
      std::atomic_ref<std::uint64_t>(words[16]).store(asked, std::memory_order_release);
    }
  });
  answer<<<1, 1>>>(words, words + 16, kRounds, times);
  CUDA(cudaGetLastError());
  CUDA(cudaDeviceSynchronize());
  over = true;
  host.join();
  const Times floor = sorted(times, kRounds);
  std::printf("floor: a flag in pinned memory, kernel to host and back: %.2f us (99 %%: %.2f)\n", floor.median,
              floor.late);
  CUDA(cudaFreeHost(words));
}

/// What both measurements work on.
struct Bed {
  railyard::Window& window;
  railyard::DeviceProxy& proxy;
  bool first;   ///< rank 0
  bool on_gpu;  ///< the window's memory
  bool own;     ///< and it is the window's own
  unsigned char* source;
  unsigned* times;
  Found* found;
};

/// Copies within the GPU, as many as `puts` under way.
double copy_rate(void* to, const void* from, std::uint64_t bytes, unsigned puts) {
  std::vector<double> rates;
  for (int turn = 0; turn < 7; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < puts; ++i) CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr));
    CUDA(cudaStreamSynchronize(nullptr));
    const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
    rates.push_back(static_cast<double>(bytes) * puts / us / 1e3);
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

/// Where the peer's memory is in this process, of a window of its own.
std::byte* memory_of(const Bed& bed, int rank) {
  std::vector<railyard::device::detail::Peer> peers(2);
  CUDA(cudaMemcpy(peers.data(), bed.proxy.handle().handle().peers, sizeof peers[0] * 2, cudaMemcpyDefault));
  return peers[rank].data;
}

/// Other bytes than last time, so that what was not put is seen.
void renew_source(const Bed& bed, std::uint64_t bytes) {
  static int mark = 0;
  mark = mark % 255 + 1;
  CUDA(cudaMemset(bed.source, mark, bytes));
  CUDA(cudaDeviceSynchronize());
}
void check_bytes(const char* what, const Bed& bed, std::uint64_t bytes) {
  unsigned long long* wrong = nullptr;
  CUDA(cudaMallocHost(&wrong, sizeof *wrong));
  *wrong = 0;
  compare<<<128, kThreads>>>(reinterpret_cast<unsigned char*>(memory_of(bed, 1)), bed.source, bytes, wrong);
  end_kernel("compare", bed.found, bed.proxy);
  if (*wrong != 0)
    std::printf("%s: %llu of %llu bytes are wrong\n", what, *wrong, static_cast<unsigned long long>(bytes));
  good = good && *wrong == 0;
  CUDA(cudaFreeHost(wrong));
}

/// Puts of every multiprocessor together, by the host's clock.
double wide_rate(const Bed& bed, std::uint64_t bytes, unsigned puts) {
  int processors = 0;
  CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  std::vector<double> rates;
  for (int turn = 0; turn < 7; ++turn) {
    renew_source(bed, bytes);
    const auto start = std::chrono::steady_clock::now();
    stream_wide<<<static_cast<unsigned>(processors), kWideThreads>>>(bed.proxy.handle(), bed.source, bytes, puts,
                                                                     bed.found);
    end_kernel("stream_wide", bed.found, bed.proxy);
    const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
    check_bytes("stream_wide", bed, bytes);
    rates.push_back(static_cast<double>(bytes) * puts / us / 1e3);
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

/// Where the time of eight bytes goes that a kernel stores into the peer's GPU memory itself.
void print_steps(const Bed& bed) {
  const auto& [window, proxy, first, on_gpu, own, source, times, found] = bed;
  constexpr unsigned kRounds = 2000;
  auto* const there = reinterpret_cast<std::uint64_t*>(memory_of(bed, first ? 1 : 0) + 4096);
  auto* const here = reinterpret_cast<std::uint64_t*>(window.local().data() + 4096);
  must(window.barrier());
  ping_bare<<<1, 1>>>(first, there, here, kRounds, times);
  end_kernel("ping_bare", found, proxy);
  const Times bare = sorted(times, kRounds);
  must(window.barrier());
  ping_thread<<<1, 1>>>(proxy.handle(), 0, kRounds, times, found);
  end_kernel("ping_thread", found, proxy);
  const Times thread = sorted(times, kRounds);
  must(window.barrier());
  if (!first) return;
  std::printf("floor: a plain store into the peer's memory, one way: %.2f us (99 %%: %.2f)\n", bare.median / 2,
              bare.late / 2);
  std::printf("8 B put_signal by one thread, kernel to kernel, one way: %.2f us (99 %%: %.2f)\n", thread.median / 2,
              thread.late / 2);
  origin_only<<<1, 1>>>(proxy.handle(), there, kRounds, times, found);
  end_kernel("origin_only", found, proxy);
  std::printf(
      "at the origin: put_signal %.0f ns, a store and its fence %.0f ns (within this GPU %.0f), put %.0f ns; "
      "%llu commands\n",
      times[0] / double{kRounds}, times[1] / double{kRounds}, times[3] / double{kRounds}, times[2] / double{kRounds},
      static_cast<unsigned long long>(proxy.commands()));
}

void print_table(const Bed& bed) {
  const auto& [window, proxy, first, on_gpu, own, source, times, found] = bed;
  if (own) print_steps(bed);
  void* other = nullptr;
  if (first) {
    print_floor(times);
    if (on_gpu) CUDA(cudaMalloc(&other, kMost));
    std::printf("%10s %34s %26s %12s %18s %14s\n", "bytes", "put_signal_counter, one way, us", "put and quiet, us",
                "puts, GB/s", "by all blocks", "cudaMemcpy");
  }
  std::uint64_t base = 0;
  for (const std::uint64_t bytes :
       {8ULL, 64ULL, 512ULL, 4096ULL, 32768ULL, 262144ULL, 1048576ULL, 8388608ULL, 67108864ULL}) {
    const unsigned rounds = bytes > 1048576 ? 40 : bytes > 32768 ? 200 : 1000;
    must(window.barrier());
    proxy.wake();
    ping_pong<<<1, kThreads>>>(proxy.handle(), source, bytes, base, rounds, times, found);
    end_kernel("ping_pong", found, proxy);
    base += rounds;
    const Times both = sorted(times, rounds);
    must(window.barrier());
    if (!first) continue;
    put_and_quiet<<<1, kThreads>>>(proxy.handle(), source, bytes, rounds, times, found);
    end_kernel("put_and_quiet", found, proxy);
    const Times quiet = sorted(times, rounds);
    const unsigned puts = bytes > 1048576 ? 8 : 64;
    std::vector<double> rates;
    for (int turn = 0; turn < 7; ++turn) {
      if (own) renew_source(bed, bytes);
      stream<<<1, kThreads>>>(proxy.handle(), source, bytes, puts, times, found);
      end_kernel("stream", found, proxy);
      if (own) check_bytes("stream", bed, bytes);
      rates.push_back(static_cast<double>(bytes) * puts / times[0]);
    }
    std::sort(rates.begin(), rates.end());
    std::printf("%10llu %16.2f (99 %%: %7.2f) %14.2f (99 %%: %7.2f) %10.3f", static_cast<unsigned long long>(bytes),
                both.median / 2, both.late / 2, quiet.median, quiet.late, rates[rates.size() / 2]);
    if (own) std::printf(" %18.3f", wide_rate(bed, bytes, puts));
    if (on_gpu) std::printf(" %14.3f", copy_rate(other, source, bytes, puts));
    std::printf("\n");
    std::fflush(stdout);
  }
  if (other != nullptr) CUDA(cudaFree(other));
}

/// `count` put_signals of many blocks at once; the other rank's blocks look at each slot the moment its signal shows.
void put_exactly(const Bed& bed, std::uint64_t count) {
  const auto& [window, proxy, first, on_gpu, own, source, times, found] = bed;
  constexpr unsigned kBlocks = 32;
  const std::uint64_t each = count / kBlocks;
  must(window.barrier());
  unsigned long long* early = nullptr;
  CUDA(cudaMallocHost(&early, sizeof *early));
  *early = 0;
  const std::vector<std::byte> zeros(kBlocks * 64);
  if (!first) CUDA(cudaMemcpy(window.local().data(), zeros.data(), zeros.size(), cudaMemcpyDefault));
  CUDA(cudaDeviceSynchronize());
  must(window.barrier());
  const auto start = std::chrono::steady_clock::now();
  const Window patient = proxy.handle().with_budget(std::uint64_t{200} * 1000 * 1000 * 1000);
  if (first) {
    exact_send<<<kBlocks, 32>>>(patient, reinterpret_cast<std::uint64_t*>(source), each, found);
    end_kernel("exact_send", found, proxy);
  } else {
    exact_look<<<kBlocks, 32>>>(patient, each, early, found);
    end_kernel("exact_look", found, proxy);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  must(window.barrier());
  if (!first) {
    unsigned wrong = 0;
    for (unsigned block = 0; block < kBlocks; ++block) wrong += window.read_signal(8 + block) == each ? 0 : 1;
    std::printf("exact: %llu put_signals from %u blocks in %.1f s: %llu early, %u of %u signals with a wrong count\n",
                static_cast<unsigned long long>(each * kBlocks), kBlocks, seconds, *early, wrong, kBlocks);
    good = good && wrong == 0 && *early == 0;
  }
}

}  // namespace

int main(int count, char** arguments) {
  bool on_gpu = false, signals_on_gpu = false, own = false;
  std::uint64_t exact = 0;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(arguments[i], "own") == 0) {
      own = on_gpu = signals_on_gpu = true;
    } else if (std::strcmp(arguments[i], "gpu") == 0) {
      on_gpu = true;
    } else if (std::strcmp(arguments[i], "gpu-signals") == 0) {
      signals_on_gpu = true;
    } else if (std::strcmp(arguments[i], "exact") == 0 && i + 1 < count) {
      exact = std::strtoull(arguments[++i], nullptr, 10);
    } else {
      return std::fprintf(stderr, "usage: kernels [own|gpu] [gpu-signals] [exact COUNT]\n"), 64;
    }
  }
  auto world = must(railyard::World::open());
  if (world.size() != 2) return std::fprintf(stderr, "kernels: two ranks, please\n"), 64;
  CUDA(cudaSetDevice(0));
  void* memory = nullptr;
  unsigned char* source = nullptr;
  std::uint64_t* words = nullptr;
  if (on_gpu && !own) CUDA(cudaMalloc(&memory, kMost));
  CUDA(cudaMalloc(&source, kMost));
  CUDA(cudaMalloc(&words, 128 * sizeof *words));
  CUDA(cudaMemset(source, 7, kMost));
  CUDA(cudaDeviceSynchronize());
  railyard::WindowOptions window_options;
  if (own) {
    window_options.device = 0;
  } else if (signals_on_gpu) {
    window_options.signal_memory = {words, 64};
    window_options.counter_memory = {words + 64, 64};
  }
  auto window = on_gpu && !own
                    ? must(railyard::Window::adopt(world, {static_cast<std::byte*>(memory), kMost}, window_options))
                    : must(railyard::Window::allocate(world, kMost, window_options));
  must(world.remember({reinterpret_cast<const std::byte*>(source), kMost}));
  must(window.barrier());
  railyard::DeviceOptions options;
  options.device = 0;
  give_memory(options, window);
  Found* found = nullptr;
  CUDA(cudaMallocHost(&found, sizeof *found));
  *found = {};
  unsigned* times = nullptr;
  CUDA(cudaMallocHost(&times, 4096 * sizeof *times));
  {
    auto proxy = must(railyard::DeviceProxy::open(window, options));
    must(window.barrier());
    const bool first = world.rank() == 0;
    if (first)
      std::printf("window in %s memory%s, signals in %s memory\n", on_gpu ? "GPU" : "host", own ? " of its own" : "",
                  signals_on_gpu ? "GPU" : "host");
    const Bed bed{window, proxy, first, on_gpu, own, source, times, found};
    exact > 0 ? put_exactly(bed, exact) : print_table(bed);
    must(window.barrier());
    must(proxy.close());
  }
  must(window.close());
  return good ? 0 : 1;
}
