// Two kernels, each in a process of its own, send each other blocks of GPU memory. The one that waits looks at every
// byte the moment the signal shows, changes it, and sends it back: the hosts only start the kernels.
//
//     railyard launch -n 2 ./example-08-ping-pong-in-kernels
#include <algorithm>
#include <vector>

#include "../cuda_program.cuh"

namespace {

using railyard::device::Comparison;
using railyard::device::Scope;
using railyard::device::Status;

constexpr std::uint64_t kBytes = 64 * 1024;
constexpr unsigned kRounds = 200;
constexpr unsigned kThreads = 256;

struct Outcome {
  Status status;
  unsigned wrong;           ///< bytes
  unsigned times[kRounds];  ///< of rank 0, there and back, nanoseconds
};

__device__ unsigned char byte_of(std::uint64_t at, unsigned round) {
  return static_cast<unsigned char>(at * 31 + round * 7);
}

/// One block. `ball`: what is sent; what comes is in the window.
__global__ void play(railyard::device::Window window, unsigned char* ball, Outcome* outcome) {
  const int peer = 1 - window.rank();
  const auto* const came = reinterpret_cast<const volatile unsigned char*>(window.local());
  for (unsigned round = 1; round <= 2 * kRounds; ++round) {
    const bool mine = round % 2 == (window.rank() == 0 ? 1 : 0);
    Status status;
    if (mine) {
      for (std::uint64_t at = threadIdx.x; at < kBytes; at += kThreads) ball[at] = byte_of(at, round);
      const std::uint64_t start = railyard::device::detail::now();
      if (threadIdx.x == 0 && window.rank() == 0) outcome->times[round / 2] = static_cast<unsigned>(start);
      status = window.put_signal<Scope::block>(peer, 0, ball, kBytes, {0}).status();
    } else {
      // One signal for each block that came. Before the next one is filled, this one has been answered: nobody
      // overwrites what is still to be read.
      status = window.wait_signal<Scope::block>(0, Comparison::greater_equal, (round + window.rank()) / 2, peer);
      if (threadIdx.x == 0 && window.rank() == 0)
        outcome->times[round / 2 - 1] =
            static_cast<unsigned>(railyard::device::detail::now()) - outcome->times[round / 2 - 1];
      for (std::uint64_t at = threadIdx.x; at < kBytes && status == Status::ok; at += kThreads)
        if (came[at] != byte_of(at, round)) atomicAdd(&outcome->wrong, 1U);
    }
    // What was sent must stay as it is until it has arrived: the answer says that it has.
    if (status != Status::ok) {
      if (threadIdx.x == 0) outcome->status = status;
      return;
    }
  }
  const Status status = window.quiet<Scope::block>();
  if (status != Status::ok && threadIdx.x == 0) outcome->status = status;
}

}  // namespace

int main() {
  auto world = must(railyard::World::open());
  if (world.size() != 2) return std::fprintf(stderr, "two ranks, please\n"), 64;
  CUDA(cudaSetDevice(0));
  std::byte* memory = nullptr;
  unsigned char* ball = nullptr;
  Outcome* outcome = nullptr;
  CUDA(cudaMalloc(&memory, kBytes));
  CUDA(cudaMalloc(&ball, kBytes));
  CUDA(cudaMallocHost(&outcome, sizeof *outcome));
  *outcome = {};
  auto window = must(railyard::Window::adopt(world, {memory, kBytes}));
  // Nothing may be made for a source while kernels wait: it is made here.
  must(world.remember({reinterpret_cast<const std::byte*>(ball), kBytes}));
  railyard::DeviceOptions options;
  options.device = 0;
  give_memory(options, window);
  {
    auto proxy = must(railyard::DeviceProxy::open(window, options));
    must(window.barrier());
    play<<<1, kThreads>>>(proxy.handle(), ball, outcome);
    CUDA(cudaDeviceSynchronize());
    if (outcome->status != Status::ok) must(proxy.status());
    must(window.barrier());
    must(proxy.close());
  }
  must(window.close());
  std::sort(outcome->times, outcome->times + kRounds);
  if (world.rank() == 0)
    std::printf("%u blocks of %llu bytes there and back: median %.1f us\n", kRounds,
                static_cast<unsigned long long>(kBytes), outcome->times[kRounds / 2] / 1e3);
  std::printf("rank %d: %u bytes wrong\n", world.rank(), outcome->wrong);
  return outcome->wrong == 0 && outcome->status == Status::ok ? 0 : 1;
}
