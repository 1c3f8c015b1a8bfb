// Dispatch and combine, as a mixture of experts does it, without the host: every rank's kernel sends a block of tokens
// to every rank, waits for one signal from each, works on what came, and sends it back. One process for each rank:
//
//     railyard launch -n 2 ./example-05-all-to-all-in-kernels
#include "../cuda_program.cuh"

namespace {

using railyard::device::Comparison;
using railyard::device::Scope;
using railyard::device::Status;

constexpr std::uint64_t kTokens = 4096;  // from each rank to each
constexpr std::uint64_t kBlockBytes = kTokens * sizeof(float);
constexpr std::uint64_t kDispatched = 0;  // signals
constexpr std::uint64_t kCombined = 1;

/// Where a rank's window keeps what `from` dispatched to it, and what came back from it.
__host__ __device__ std::uint64_t inbox(std::uint64_t from) { return from * kBlockBytes; }
__host__ __device__ std::uint64_t outbox(std::uint64_t ranks, std::uint64_t from) {
  return (ranks + from) * kBlockBytes;
}

/// One block for each rank that it sends to. `round` counts from one: signals only grow.
__global__ void layer(railyard::device::Window window, const float* tokens, float* results, std::uint64_t round,
                      Status* ended) {
  const auto ranks = static_cast<std::uint64_t>(window.size());
  const auto me = static_cast<std::uint64_t>(window.rank());
  const std::uint64_t other = blockIdx.x;
  // Dispatch: the signal comes after the tokens, on whatever rail these went.
  window.put_signal<Scope::block>(static_cast<int>(other), inbox(me), tokens + other * kTokens, kBlockBytes,
                                  {kDispatched});
  Status status = window.wait_signal<Scope::block>(kDispatched, Comparison::greater_equal, round * ranks);
  // The expert of this rank doubles what came from `other`.
  const auto* const came = reinterpret_cast<const float*>(window.local() + inbox(other));
  float* const mine = results + other * kTokens;
  if (status == Status::ok) {
    for (std::uint64_t token = threadIdx.x; token < kTokens; token += blockDim.x) mine[token] = 2 * came[token];
    // Combine.
    window.put_signal<Scope::block>(static_cast<int>(other), outbox(ranks, me), mine, kBlockBytes, {kCombined});
    status = window.wait_signal<Scope::block>(kCombined, Comparison::greater_equal, round * ranks);
  }
  // Nobody overwrites a source or an inbox before all are done with it.
  if (status == Status::ok) status = window.quiet<Scope::block>();
  if (status != Status::ok && threadIdx.x == 0) *ended = status;
}

float token_of(std::uint64_t from, std::uint64_t to, std::uint64_t index, std::uint64_t round) {
  return static_cast<float>(from * 1000 + to * 100 + index % 97 + round);
}

}  // namespace

int main() {
  auto world = must(railyard::World::open());
  const auto ranks = static_cast<std::uint64_t>(world.size());
  const auto me = static_cast<std::uint64_t>(world.rank());
  auto window = must(railyard::Window::allocate(world, 2 * ranks * kBlockBytes));

  CUDA(cudaSetDevice(0));
  float* tokens = nullptr;
  float* results = nullptr;
  Status* ended = nullptr;
  CUDA(cudaMallocHost(&tokens, ranks * kBlockBytes));
  CUDA(cudaMallocHost(&results, ranks * kBlockBytes));
  CUDA(cudaMallocHost(&ended, sizeof *ended));
  *ended = Status::ok;

  railyard::DeviceOptions options;
  options.device = 0;
  give_memory(options, window);
  std::uint64_t wrong = 0;
  {
    auto proxy = must(railyard::DeviceProxy::open(window, options));
    for (std::uint64_t round = 1; round <= 10; ++round) {
      for (std::uint64_t to = 0; to < ranks; ++to) {
        for (std::uint64_t i = 0; i < kTokens; ++i) tokens[to * kTokens + i] = token_of(me, to, i, round);
      }
      must(window.barrier());
      proxy.wake();
      layer<<<static_cast<unsigned>(ranks), 256>>>(proxy.handle(), tokens, results, round, ended);
      CUDA(cudaDeviceSynchronize());
      if (*ended != Status::ok) must(proxy.status());
      const auto* const back = reinterpret_cast<const float*>(window.local().data() + outbox(ranks, 0));
      for (std::uint64_t from = 0; from < ranks; ++from) {
        for (std::uint64_t i = 0; i < kTokens; ++i)
          wrong += back[from * kTokens + i] != 2 * token_of(me, from, i, round);
      }
      must(window.barrier());
    }
    must(proxy.close());
  }
  must(window.close());
  std::printf("rank %d: 10 rounds of %llu tokens to each of %d ranks and back, %llu wrong\n", world.rank(),
              static_cast<unsigned long long>(kTokens), world.size(), static_cast<unsigned long long>(wrong));
  return wrong == 0 ? 0 : 1;
}
