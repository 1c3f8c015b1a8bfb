/// Each call of the device API at each scope, from kernels: two processes on one GPU. The lines that build and run it
/// are in docs/device.md. The kernels are C++17; the host's part needs C++20, as the library does.
#include "railyard/device.cuh"

namespace {

using railyard::device::AtomicOp;
using railyard::device::Comparison;
using railyard::device::Scope;
using railyard::device::Status;
using railyard::device::Ticket;
using railyard::device::Window;

/// What a kernel found: the first line that was not as it should be.
struct Found {
  int line;
  int status;
};

#define CHECK(condition)                               \
  do {                                                 \
    if (!(condition)) {                                \
      if (atomicCAS(&found->line, 0, __LINE__) == 0) { \
        found->status = static_cast<int>(last);        \
      }                                                \
      return false;                                    \
    }                                                  \
  } while (false)

__device__ unsigned char byte_of(std::uint64_t at, std::uint64_t seed) {
  return static_cast<unsigned char>((at * 2654435761u + seed * 97) >> 5);
}

template <Scope scope>
__device__ void fill(unsigned char* to, std::uint64_t bytes, std::uint64_t seed) {
  using Group = railyard::device::detail::Group<scope>;
  for (std::uint64_t at = Group::rank(); at < bytes; at += Group::size()) to[at] = byte_of(at, seed);
}

template <Scope scope>
__device__ bool holds(const volatile unsigned char* at, std::uint64_t bytes, std::uint64_t seed) {
  using Group = railyard::device::detail::Group<scope>;
  int good = 1;
  for (std::uint64_t i = Group::rank(); i < bytes; i += Group::size()) good &= at[i] == byte_of(i, seed);
  if (scope == Scope::warp) good = __all_sync(~0u, good);
  if (scope == Scope::block) good = __syncthreads_and(good);
  return good != 0;
}

/// Rank 0 gets what lies at rank 1 since `exchange`, and both count on words of rank 1's, a word for each scope.
template <Scope scope>
__device__ bool get_and_count(const Window& window, unsigned char* source, std::uint64_t signal, Found* found) {
  Status last = Status::ok;
  constexpr std::uint64_t kRounds = 50;
  const std::uint64_t at = 20000 + signal * 64;
  unsigned char* const to = source + 500000;
  if (window.rank() == 0) {
    const std::uint64_t sizes[] = {1, 8, 24, 1000};
    for (const std::uint64_t bytes : sizes) {
      const Ticket ticket = window.get<scope>(1, 18000, to + 3, bytes);
      CHECK((last = ticket.status()) == Status::ok);
      CHECK((last = window.wait<scope>(ticket)) == Status::ok);
      CHECK(holds<scope>(to + 3, bytes, 1));
    }
    for (std::uint64_t word = 0; word < 3; ++word)
      CHECK(window.atomic<scope>(1, at + word * 8, AtomicOp::set, std::uint64_t{0}).ok());
    CHECK((last = window.quiet<scope>()) == Status::ok);
  }
  CHECK((last = window.barrier<scope>()) == Status::ok);
  std::uint64_t held = 0, before = 0;
  for (std::uint64_t i = 0; i < kRounds; ++i) {
    CHECK((last = window.fetch_atomic<scope>(1, at, AtomicOp::add, &before, std::uint64_t{1})) == Status::ok);
    CHECK(i == 0 || before > held);
    held = before;
    CHECK(window.atomic<scope>(1, at + 8, AtomicOp::add, 0.5).ok());
    CHECK(window.atomic<scope>(1, at + 16, AtomicOp::max, static_cast<std::uint32_t>(i)).ok());
  }
  CHECK((last = window.quiet<scope>()) == Status::ok);
  CHECK((last = window.barrier<scope>()) == Status::ok);
  double sum = 0;
  std::uint32_t most = 0;
  CHECK((last = window.fetch_atomic<scope>(1, at, AtomicOp::fetch, &held)) == Status::ok);
  CHECK((last = window.fetch_atomic<scope>(1, at + 8, AtomicOp::fetch, &sum)) == Status::ok);
  CHECK((last = window.fetch_atomic<scope>(1, at + 16, AtomicOp::fetch, &most)) == Status::ok);
  CHECK(held == 2 * kRounds && sum == kRounds && most == kRounds - 1);
  return true;
}

/// Rank 0 sends, rank 1 checks and answers. `signal`: this scope's own, so that scopes do not meet.
template <Scope scope>
__device__ bool exchange(const Window& window, unsigned char* source, std::uint64_t most, std::uint64_t signal,
                         Found* found) {
  const int peer = 1 - window.rank();
  const auto* const local = reinterpret_cast<const volatile unsigned char*>(window.local());
  Status last = Status::ok;
  std::uint64_t round = 0;
  const std::uint64_t sizes[] = {1, 3, 8, 24, 25, 100, 4096, 5001, 65536, 1048576};
  for (const std::uint64_t size : sizes) {
    for (std::uint64_t shift = 0; shift < 4; shift += 3) {  // aligned, and not
      const std::uint64_t bytes = size < most ? size : most;
      ++round;
      if (window.rank() == 0) {
        fill<scope>(source + shift, bytes, round);
        const Ticket ticket = window.put_signal<scope>(peer, shift, source + shift, bytes, {signal});
        last = ticket.status();
        CHECK(ticket.ok());
        CHECK((last = window.wait<scope>(ticket)) == Status::ok);
        CHECK((last = window.wait_signal<scope>(signal, Comparison::greater_equal, round, peer)) == Status::ok);
      } else {
        CHECK((last = window.wait_signal<scope>(signal, Comparison::greater_equal, round, peer)) == Status::ok);
        CHECK(holds<scope>(local + shift, bytes, round));
        CHECK(window.signal<scope>(peer, {signal}).ok());
      }
    }
  }
  // k puts, then one signal for all; counters; values; fence and quiet.
  if (window.rank() == 0) {
    for (std::uint64_t part = 0; part < 16; ++part) {
      fill<scope>(source + part * 1000, 1000, part);
      CHECK(window.put_counter<scope>(peer, part * 1000, source + part * 1000, 1000, {signal}).ok());
    }
    CHECK(window.put<scope>(peer, 16000, source, 1000).ok());
    CHECK((last = window.fence<scope>(peer)) == Status::ok);
    CHECK(window.put_value<scope>(peer, 17008, std::uint64_t{0x1122334455667788}).ok());
    CHECK(window.put_signal_counter<scope>(peer, 18000, source + 1000, 1000, {signal}, {signal}).ok());
    CHECK((last = window.wait_counter<scope>(signal, 17)) == Status::ok);
    CHECK(window.read_counter(signal) == 17);
    CHECK((last = window.quiet<scope>()) == Status::ok);
    CHECK((last = window.wait_signal<scope>(signal, Comparison::equal, round + 1, peer)) == Status::ok);
  } else {
    std::uint64_t held = 0;
    CHECK((last = window.wait_signal<scope>(signal, Comparison::greater, round, peer, &held)) == Status::ok);
    CHECK(held == round + 1 && window.read_signal(signal) == round + 1);
    for (std::uint64_t part = 0; part < 16; ++part) CHECK(holds<scope>(local + part * 1000, 1000, part));
    CHECK(holds<scope>(local + 16000, 1000, 0));
    CHECK(*reinterpret_cast<const volatile std::uint64_t*>(local + 17008) == 0x1122334455667788);
    CHECK(holds<scope>(local + 18000, 1000, 1));
    CHECK(window.signal<scope>(peer, {signal}).ok());
  }
  CHECK((last = window.barrier<scope>()) == Status::ok);
  CHECK(get_and_count<scope>(window, source, signal, found));
  CHECK((last = window.barrier<scope>()) == Status::ok);
  const Window brief = window.with_budget(1000000);
  CHECK((last = brief.wait_signal<scope>(signal, Comparison::less, 1, peer)) == Status::timeout);
  CHECK((last = brief.wait_signal<scope>(signal, Comparison::not_equal, round + 1)) == Status::timeout);
  CHECK((last = window.wait_signal<scope>(signal, Comparison::less_equal, round + 1)) == Status::ok);
  CHECK((last = window.barrier<scope>()) == Status::ok);
  return true;
}

__global__ void by_thread(Window window, unsigned char* source, std::uint64_t most, Found* found) {
  exchange<Scope::thread>(window, source, most, 8, found);
}
__global__ void by_warp(Window window, unsigned char* source, std::uint64_t most, Found* found) {
  exchange<Scope::warp>(window, source, most, 9, found);
}
__global__ void by_block(Window window, unsigned char* source, std::uint64_t most, Found* found) {
  exchange<Scope::block>(window, source, most, 10, found);
}

/// Every thread of every block signals many times; the peer counts.
__global__ void flood(Window window, std::uint64_t each, Found* found) {
  const Status last = Status::ok;
  const auto work = [&] {
    for (std::uint64_t i = 0; i < each; ++i) CHECK(window.signal(1 - window.rank(), {16}).ok());
    return true;
  };
  work();
  window.quiet<Scope::block>();
}

/// 8 bytes there and back; nanoseconds of each round to `times`.
__global__ void ping_pong(Window window, std::uint64_t rounds, unsigned* times, Found* found) {
  const auto work = [&]() -> bool {
    Status last = Status::ok;
    const int peer = 1 - window.rank();
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      const std::uint64_t start = railyard::device::detail::now();
      if (window.rank() == 0) CHECK(window.put_signal(peer, 0, &round, sizeof round, {17}).ok());
      CHECK((last = window.wait_signal(17, Comparison::greater_equal, round, peer)) == Status::ok);
      if (window.rank() == 1) CHECK(window.put_signal(peer, 0, &round, sizeof round, {17}).ok());
      times[round - 1] = static_cast<unsigned>(railyard::device::detail::now() - start);
    }
    return true;
  };
  work();
}

}  // namespace

#if __cplusplus >= 202002L

#include <algorithm>
#include <cstring>

#include "../../examples/cuda_program.cuh"

namespace {

bool report(const char* name, Found* found, const railyard::DeviceProxy& proxy) {
  CUDA(cudaGetLastError());  // of the launch: a kernel with no registers for its block never runs
  CUDA(cudaDeviceSynchronize());
  const bool good = found->line == 0;
  std::printf("%-9s %s", name, good ? "ok\n" : "failed");
  if (!good) {
    const auto status = proxy.status();
    std::printf(" at line %d, status %d: %s\n", found->line, found->status,
                status ? "the proxy has nothing to say" : status.error().text().c_str());
  }
  *found = {};
  return good;
}

}  // namespace

/// Arguments: `device`: sources in device memory; `own`: the window in device memory that it allocates; `host-atomics`,
/// `direct-atomics`: see DeviceOptions; `no-direct`.
int main(int count, char** arguments) {
  const auto given = [&](const char* word) {
    return std::any_of(arguments + 1, arguments + count, [&](const char* one) { return std::strcmp(one, word) == 0; });
  };
  auto world = must(railyard::World::open());
  if (world.size() != 2) return std::fprintf(stderr, "two ranks, please\n"), 1;
  constexpr std::uint64_t kMost = 1 << 20;
  CUDA(cudaSetDevice(0));
  railyard::WindowOptions places;
  if (given("own")) places.device = 0;
  auto window = must(railyard::Window::allocate(world, kMost + 4096, places));
  railyard::DeviceOptions options;
  options.device = 0;
  options.barriers = 1;
  options.direct = !given("no-direct");
  options.host_atomics = given("host-atomics");
  options.direct_atomics = given("direct-atomics");
  give_memory(options, window);
  unsigned char* source = nullptr;
  if (given("device")) {
    CUDA(cudaMalloc(&source, kMost + 4096));
  } else {
    CUDA(cudaMallocHost(&source, kMost + 4096));
  }
  must(world.remember({reinterpret_cast<const std::byte*>(source), kMost + 4096}));
  must(world.barrier());
  Found* found = nullptr;
  CUDA(cudaMallocHost(&found, sizeof *found));
  *found = {};
  bool good = true;
  {
    auto proxy = must(railyard::DeviceProxy::open(window, options));
    must(world.barrier());
    by_thread<<<1, 1>>>(proxy.handle(), source, kMost, found);
    good &= report("thread", found, proxy);
    by_warp<<<1, 32>>>(proxy.handle(), source, kMost, found);
    good &= report("warp", found, proxy);
    by_block<<<1, 256>>>(proxy.handle(), source, kMost, found);
    good &= report("block", found, proxy);
    proxy.resume();  // the time-outs that were wanted

    constexpr std::uint64_t kBlocks = 32, kThreads = 64, kEach = 50;
    flood<<<kBlocks, kThreads>>>(proxy.handle(), kEach, found);
    good &= report("flood", found, proxy);
    must(window.wait_signal(16, railyard::Comparison::equal, kBlocks * kThreads * kEach));
    must(window.barrier());
    if (window.read_signal(16) != kBlocks * kThreads * kEach) good = false, std::printf("a signal too many\n");

    constexpr std::uint64_t kRounds = 2000;
    unsigned* times = nullptr;
    CUDA(cudaMallocHost(&times, kRounds * sizeof *times));
    proxy.wake();
    ping_pong<<<1, 1>>>(proxy.handle(), kRounds, times, found);
    good &= report("ping-pong", found, proxy);
    std::sort(times, times + kRounds);
    if (world.rank() == 0) {
      std::printf("8 bytes there and back: median %u ns, 99 %% %u ns; %llu commands\n", times[kRounds / 2],
                  times[kRounds * 99 / 100], static_cast<unsigned long long>(proxy.commands()));
    }
    must(window.barrier());
    must(proxy.close());
  }
  must(window.close());
  return good ? 0 : 1;
}

#endif
