// One of two PEs of a real NVSHMEM job: every operation from the host and from kernels, checked; the order of puts and
// signals; latencies. `run` beside this file builds it, sets NVSHMEM up and starts both.
//
//   pe RANK ID-FILE [operations] [order] [latency] [forever SECONDS]
//
// Rank 0 writes NVSHMEM's unique id into ID-FILE, rank 1 reads it there. Exits with 0 only if everything was right.
#include <nvshmem.h>
#include <nvshmemx.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Word = unsigned long long;

constexpr int kPes = 2;
constexpr std::size_t kMostBytes = std::size_t{8} << 20;
constexpr int kThreads = 256;

int me = -1;
int peer = -1;
int failures = 0;

void check_cuda(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "PE %d: %s: %s\n", me, what, cudaGetErrorString(result));
  std::exit(2);
}
#define CUDA(call) check_cuda((call), #call)

void expect(bool right, const std::string& what) {
  if (right) return;
  ++failures;
  std::printf("PE %d: WRONG: %s\n", me, what.c_str());
}

__host__ __device__ std::uint8_t pattern(std::size_t index, unsigned round) {
  return static_cast<std::uint8_t>(index * 7 + index / 251 + round * 13);
}

__global__ void fill(std::uint8_t* memory, std::size_t bytes, unsigned round) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += std::size_t{gridDim.x} * blockDim.x)
    memory[i] = pattern(i, round);
}

__global__ void count_wrong(const std::uint8_t* memory, std::size_t bytes, unsigned round, Word* wrong) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += std::size_t{gridDim.x} * blockDim.x)
    if (memory[i] != pattern(i, round)) atomicAdd(wrong, 1ULL);
}

/// What the test works on, the same on both PEs.
struct Heap {
  std::uint8_t* source = static_cast<std::uint8_t*>(nvshmem_malloc(kMostBytes));
  std::uint8_t* target = static_cast<std::uint8_t*>(nvshmem_malloc(kMostBytes));
  Word* words = static_cast<Word*>(nvshmem_calloc(64, sizeof(Word)));
  unsigned* halves = static_cast<unsigned*>(nvshmem_calloc(64, sizeof(unsigned)));
  std::uint64_t* signals = static_cast<std::uint64_t*>(nvshmem_calloc(16, sizeof(std::uint64_t)));
  Word* results = nullptr;  ///< of kernels; not symmetric
  cudaStream_t stream{};

  Heap() {
    if (source == nullptr || target == nullptr || words == nullptr || halves == nullptr || signals == nullptr) {
      std::fprintf(stderr, "PE %d: no symmetric memory\n", me);
      std::exit(2);
    }
    CUDA(cudaMalloc(&results, 64 * sizeof(Word)));
    CUDA(cudaMemset(results, 0, 64 * sizeof(Word)));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaDeviceSynchronize());
  }

  Word wrong(const std::uint8_t* memory, std::size_t bytes, unsigned round) const {
    CUDA(cudaMemsetAsync(results, 0, sizeof(Word), stream));
    count_wrong<<<64, kThreads, 0, stream>>>(memory, bytes, round, results);
    return result(0);
  }
  Word result(int index) const {
    Word value = 0;
    CUDA(cudaMemcpyAsync(&value, results + index, sizeof(value), cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    return value;
  }
  void fill_source(std::size_t bytes, unsigned round) const {
    fill<<<64, kThreads, 0, stream>>>(source, bytes, round);
    CUDA(cudaStreamSynchronize(stream));
  }
};

// ---- Every operation ----

/// What a kernel asks of its peer: puts, gets, single values, and every atomic in both sizes.
__global__ void device_operations(Heap heap, int me, int peer, std::size_t bytes, Word* results) {
  nvshmemx_putmem_block(heap.target, heap.source, bytes, peer);
  if (threadIdx.x != 0) return;
  nvshmem_quiet();
  nvshmem_ulonglong_p(heap.words + 0, 41 + me, peer);
  nvshmem_quiet();
  results[1] = nvshmem_ulonglong_g(heap.words + 0, peer);

  nvshmem_ulonglong_atomic_set(heap.words + 1, 100, peer);
  nvshmem_ulonglong_atomic_inc(heap.words + 1, peer);
  nvshmem_ulonglong_atomic_add(heap.words + 1, 9, peer);
  nvshmem_ulonglong_atomic_or(heap.words + 2, 0xff, peer);
  nvshmem_ulonglong_atomic_and(heap.words + 2, 0x3c, peer);
  nvshmem_ulonglong_atomic_xor(heap.words + 2, 0x0f, peer);
  nvshmem_quiet();
  results[2] = nvshmem_ulonglong_atomic_fetch(heap.words + 1, peer);
  results[3] = nvshmem_ulonglong_atomic_fetch_add(heap.words + 1, 5, peer);
  results[4] = nvshmem_ulonglong_atomic_fetch_inc(heap.words + 1, peer);
  results[5] = nvshmem_ulonglong_atomic_swap(heap.words + 1, 7, peer);
  results[6] = nvshmem_ulonglong_atomic_compare_swap(heap.words + 1, 7, 8, peer);
  results[7] = nvshmem_ulonglong_atomic_compare_swap(heap.words + 1, 7, 9, peer);
  results[8] = nvshmem_ulonglong_atomic_fetch(heap.words + 1, peer);
  results[9] = nvshmem_ulonglong_atomic_fetch_or(heap.words + 2, 0x100, peer);
  results[10] = nvshmem_ulonglong_atomic_fetch_and(heap.words + 2, 0x101, peer);
  results[11] = nvshmem_ulonglong_atomic_fetch_xor(heap.words + 2, 0x1, peer);

  nvshmem_uint_atomic_set(heap.halves + 0, 50, peer);
  nvshmem_uint_atomic_add(heap.halves + 0, 6, peer);
  nvshmem_uint_atomic_inc(heap.halves + 0, peer);
  nvshmem_quiet();
  results[12] = nvshmem_uint_atomic_fetch_add(heap.halves + 0, 1, peer);
  results[13] = nvshmem_uint_atomic_compare_swap(heap.halves + 0, 58, 60, peer);
  results[14] = nvshmem_uint_atomic_fetch(heap.halves + 0, peer);
}

/// Puts the source with a signal and waits for the same from the peer.
__global__ void exchange_signal(Heap heap, int peer, std::size_t bytes, std::uint64_t round) {
  nvshmemx_putmem_signal_block(heap.target, heap.source, bytes, heap.signals, round, NVSHMEM_SIGNAL_SET, peer);
  if (threadIdx.x == 0) nvshmem_signal_wait_until(heap.signals, NVSHMEM_CMP_GE, round);
}

__global__ void get_back(Heap heap, int peer, std::size_t bytes) {
  nvshmemx_getmem_block(heap.target, heap.source, bytes, peer);
}

void try_operations(Heap& heap) {
  const std::vector<std::size_t> sizes = {1, 8, 13, 4096, 65537, std::size_t{1} << 20, kMostBytes};
  unsigned round = 0;
  for (const std::size_t bytes : sizes) {
    ++round;
    heap.fill_source(bytes, round + static_cast<unsigned>(me));
    nvshmem_barrier_all();
    const unsigned theirs = round + static_cast<unsigned>(peer);
    const std::string size = std::to_string(bytes) + " B";

    nvshmem_putmem(heap.target, heap.source, bytes, peer);
    nvshmem_barrier_all();
    expect(heap.wrong(heap.target, bytes, theirs) == 0, "host put of " + size);
    CUDA(cudaMemset(heap.target, 0, bytes));
    nvshmem_barrier_all();

    nvshmem_getmem(heap.target, heap.source, bytes, peer);
    expect(heap.wrong(heap.target, bytes, theirs) == 0, "host get of " + size);
    CUDA(cudaMemset(heap.target, 0, bytes));
    nvshmem_barrier_all();

    nvshmemx_putmem_signal_on_stream(heap.target, heap.source, bytes, heap.signals + 1, round, NVSHMEM_SIGNAL_SET, peer,
                                     heap.stream);
    nvshmemx_signal_wait_until_on_stream(heap.signals + 1, NVSHMEM_CMP_GE, round, heap.stream);
    expect(heap.wrong(heap.target, bytes, theirs) == 0, "put_signal on a stream of " + size);
    nvshmem_barrier_all();
    CUDA(cudaMemset(heap.target, 0, bytes));
    nvshmem_barrier_all();

    exchange_signal<<<1, kThreads, 0, heap.stream>>>(heap, peer, bytes, round);
    expect(heap.wrong(heap.target, bytes, theirs) == 0, "put_signal in a kernel of " + size);
    nvshmem_barrier_all();
    CUDA(cudaMemset(heap.target, 0, bytes));
    nvshmem_barrier_all();

    get_back<<<1, kThreads, 0, heap.stream>>>(heap, peer, bytes);
    expect(heap.wrong(heap.target, bytes, theirs) == 0, "get in a kernel of " + size);
    nvshmem_barrier_all();
  }
  const std::size_t bytes = 4096;
  heap.fill_source(bytes, 77 + static_cast<unsigned>(me));
  nvshmem_barrier_all();
  device_operations<<<1, kThreads, 0, heap.stream>>>(heap, me, peer, bytes, heap.results);
  const std::vector<Word> right = {
      static_cast<Word>(41 + me), 110, 110, 115, 116, 7, 8, 8, 0x33, 0x133, 0x101, 57, 58, 60};
  for (std::size_t i = 0; i < right.size(); ++i) {
    const Word got = heap.result(static_cast<int>(i) + 1);
    expect(got == right[i], "kernel operation " + std::to_string(i + 1) + ": " + std::to_string(got) + " instead of " +
                                std::to_string(right[i]));
  }
  nvshmem_barrier_all();
  expect(heap.wrong(heap.target, bytes, 77 + static_cast<unsigned>(peer)) == 0, "put by a block");
  nvshmem_barrier_all();
}

/// With MPS only: on one GPU without it NVSHMEM ends the process here.
void try_collectives(Heap& heap) {
  const std::size_t each = 64 << 10;
  heap.fill_source(kPes * each, 5);
  nvshmem_barrier_all();
  nvshmemx_alltoallmem_on_stream(NVSHMEM_TEAM_WORLD, heap.target, heap.source, each, heap.stream);
  CUDA(cudaStreamSynchronize(heap.stream));
  std::vector<std::uint8_t> got(kPes * each);
  CUDA(cudaMemcpy(got.data(), heap.target, got.size(), cudaMemcpyDeviceToHost));
  bool right = true;
  for (std::size_t i = 0; i < got.size(); ++i) right = right && got[i] == pattern(i % each + std::size_t(me) * each, 5);
  expect(right, "alltoall");
  nvshmem_barrier_all();
  nvshmemx_broadcastmem_on_stream(NVSHMEM_TEAM_WORLD, heap.target, heap.source, each, 1, heap.stream);
  CUDA(cudaStreamSynchronize(heap.stream));
  expect(heap.wrong(heap.target, each, 5) == 0, "broadcast");
  nvshmem_barrier_all();
  nvshmemx_fcollectmem_on_stream(NVSHMEM_TEAM_WORLD, heap.target, heap.source, each, heap.stream);
  CUDA(cudaStreamSynchronize(heap.stream));
  expect(heap.wrong(heap.target, each, 5) == 0 && heap.wrong(heap.target + each, each, 5) == 0, "fcollect");
  nvshmem_barrier_all();
  nvshmem_sync_all();
}

// ---- Order ----

/// The consumer looks at the data the moment the flag shows, in the same kernel.
__global__ void consume(Heap heap, std::size_t bytes, std::uint64_t round, Word* wrong) {
  __shared__ bool seen;
  if (threadIdx.x == 0) {
    nvshmem_signal_wait_until(heap.signals + 2, NVSHMEM_CMP_GE, round);
    seen = true;
  }
  __syncthreads();
  if (!seen) return;
  const volatile std::uint8_t* const target = heap.target;
  Word bad = 0;
  for (std::size_t i = threadIdx.x; i < bytes; i += blockDim.x)
    if (target[i] != pattern(i, static_cast<unsigned>(round))) ++bad;
  if (bad != 0) atomicAdd(wrong, 1ULL);
}

/// nvshmemx_putmem_signal_nbi_on_stream: NVSHMEM launches a put and a separate atomic, with no fence between them.
void try_order(Heap& heap, int rounds) {
  std::uint64_t round = 0;
  for (std::size_t bytes = 256 << 10; bytes <= kMostBytes; bytes *= 2) {
    Word early = 0;
    for (int i = 0; i < rounds; ++i) {
      ++round;
      if (me == 0) {
        fill<<<64, kThreads, 0, heap.stream>>>(heap.source, bytes, static_cast<unsigned>(round));
        nvshmemx_putmem_signal_nbi_on_stream(heap.target, heap.source, bytes, heap.signals + 2, round,
                                             NVSHMEM_SIGNAL_SET, 1, heap.stream);
        nvshmemx_quiet_on_stream(heap.stream);
        // The consumer's word that it has looked: the next round overwrites what it looked at.
        nvshmemx_signal_wait_until_on_stream(heap.signals + 3, NVSHMEM_CMP_GE, round, heap.stream);
      } else {
        CUDA(cudaMemsetAsync(heap.results, 0, sizeof(Word), heap.stream));
        consume<<<1, 1024, 0, heap.stream>>>(heap, bytes, round, heap.results);
        nvshmemx_signal_op_on_stream(heap.signals + 3, round, NVSHMEM_SIGNAL_SET, 0, heap.stream);
        early += heap.result(0) != 0 ? 1 : 0;
      }
      CUDA(cudaStreamSynchronize(heap.stream));
    }
    if (me == 1)
      std::printf("order      %8zu B  %d puts with a signal, %llu seen before their data\n", bytes, rounds, early);
    expect(early == 0, "signals before their data");
    std::fflush(stdout);
  }
}

// ---- Latency ----

__global__ void ping_pong(Heap heap, int me, int peer, std::size_t bytes, int rounds, std::uint64_t base) {
  for (int i = 1; i <= rounds; ++i) {
    const std::uint64_t round = base + static_cast<std::uint64_t>(i);
    if (me == 0)
      nvshmemx_putmem_signal_nbi_block(heap.target, heap.source, bytes, heap.signals + 4, round, NVSHMEM_SIGNAL_SET,
                                       peer);
    if (threadIdx.x == 0) nvshmem_signal_wait_until(heap.signals + 4, NVSHMEM_CMP_GE, round);
    __syncthreads();
    if (me == 1)
      nvshmemx_putmem_signal_nbi_block(heap.target, heap.source, bytes, heap.signals + 4, round, NVSHMEM_SIGNAL_SET,
                                       peer);
    __syncthreads();
  }
  if (threadIdx.x == 0) nvshmem_quiet();
}

__global__ void fetch_add(Heap heap, int peer, int rounds) {
  for (int i = 0; i < rounds; ++i) heap.results[20] += nvshmem_ulonglong_atomic_fetch_add(heap.words + 8, 1, peer);
}

__global__ void stream_puts(Heap heap, int peer, std::size_t bytes, int rounds) {
  for (int i = 0; i < rounds; ++i) nvshmemx_putmem_nbi_block(heap.target, heap.source, bytes, peer);
  if (threadIdx.x == 0) nvshmem_quiet();
}

template <typename Work>
double median_us(int rounds, Work&& work) {
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work(i);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() /
                    rounds);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void measure(Heap& heap) {
  std::uint64_t base = 0;
  for (const std::size_t bytes :
       {std::size_t{8}, std::size_t{4096}, std::size_t{65536}, std::size_t{1} << 20, kMostBytes}) {
    const int rounds = bytes > 65536 ? 20 : 200;
    nvshmem_barrier_all();
    const double both_ways = median_us(rounds, [&](int) {
      ping_pong<<<1, kThreads, 0, heap.stream>>>(heap, me, peer, bytes, rounds, base);
      CUDA(cudaStreamSynchronize(heap.stream));
      base += static_cast<std::uint64_t>(rounds);
    });
    nvshmem_barrier_all();
    double each = 0;
    if (me == 0)
      each = median_us(rounds, [&](int) {
        stream_puts<<<1, kThreads, 0, heap.stream>>>(heap, peer, bytes, rounds);
        CUDA(cudaStreamSynchronize(heap.stream));
      });
    nvshmem_barrier_all();
    if (me == 0)
      std::printf("latency    %8zu B  put_signal there and back %9.2f us   puts %9.3f GB/s\n", bytes, both_ways,
                  static_cast<double>(bytes) / each / 1e3);
  }
  nvshmem_barrier_all();
  if (me == 0) {
    const double each = median_us(200, [&](int) {
      fetch_add<<<1, 1, 0, heap.stream>>>(heap, peer, 200);
      CUDA(cudaStreamSynchronize(heap.stream));
    });
    std::printf("latency    fetch_add %.2f us\n", each);
  }
  nvshmem_barrier_all();
  std::fflush(stdout);
}

/// Traffic for as long as something is done to a rail: every byte is looked at, and each second has its rate.
void keep_going(Heap& heap, int seconds) {
  const std::size_t bytes = std::size_t{1} << 20;
  std::uint64_t round = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto end = start + std::chrono::seconds(seconds);
  std::vector<int> rates(static_cast<std::size_t>(seconds) + 60);  ///< by second
  std::uint64_t* const more = heap.signals + 8;
  for (;;) {
    ++round;
    // Rank 0 says whether there is a next round, so that both stop after the same one.
    if (me == 0) {
      const bool go_on = std::chrono::steady_clock::now() < end;
      nvshmemx_signal_op_on_stream(more, go_on ? 2 * round : 2 * round + 1, NVSHMEM_SIGNAL_SET, 1, heap.stream);
      CUDA(cudaStreamSynchronize(heap.stream));
      if (!go_on) break;
    } else {
      nvshmemx_signal_wait_until_on_stream(more, NVSHMEM_CMP_GE, 2 * round, heap.stream);
      std::uint64_t said = 0;
      CUDA(cudaMemcpyAsync(&said, more, sizeof(said), cudaMemcpyDeviceToHost, heap.stream));
      CUDA(cudaStreamSynchronize(heap.stream));
      if (said == 2 * round + 1) break;
    }
    heap.fill_source(bytes, static_cast<unsigned>(round) + static_cast<unsigned>(me));
    exchange_signal<<<1, kThreads, 0, heap.stream>>>(heap, peer, bytes, 1'000'000 + round);
    expect(heap.wrong(heap.target, bytes, static_cast<unsigned>(round) + static_cast<unsigned>(peer)) == 0,
           "a put of traffic");
    nvshmem_barrier_all();
    const auto second = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start);
    ++rates[std::min(static_cast<std::size_t>(second.count()), rates.size() - 1)];
  }
  if (me != 0) return;
  std::printf("forever    %llu exchanges of 1 MiB; in each second:", static_cast<Word>(round - 1));
  for (int i = 0; i < seconds; ++i) std::printf(" %d", rates[static_cast<std::size_t>(i)]);
  std::printf("\n");
}

nvshmemx_uniqueid_t agree_on_id(const char* path) {
  nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
  const std::string part = std::string(path) + ".part";
  if (me == 0) {
    nvshmemx_get_uniqueid(&id);
    std::FILE* const file = std::fopen(part.c_str(), "wb");
    if (file == nullptr || std::fwrite(&id, sizeof(id), 1, file) != 1 || std::fclose(file) != 0 ||
        std::rename(part.c_str(), path) != 0) {
      std::perror(path);
      std::exit(2);
    }
    return id;
  }
  for (int i = 0; i < 6000; ++i) {
    if (std::FILE* const file = std::fopen(path, "rb")) {
      const bool whole = std::fread(&id, sizeof(id), 1, file) == 1;
      std::fclose(file);
      if (whole) return id;
    }
    usleep(10'000);
  }
  std::fprintf(stderr, "PE 1: no unique id in %s after 60 s\n", path);
  std::exit(2);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3 || (std::strcmp(arguments[1], "0") != 0 && std::strcmp(arguments[1], "1") != 0)) {
    std::fprintf(stderr, "usage: pe 0|1 ID-FILE [operations] [collectives] [order] [latency] [forever SECONDS]\n");
    return 64;
  }
  me = std::atoi(arguments[1]);
  peer = 1 - me;
  CUDA(cudaSetDevice(0));
  nvshmemx_uniqueid_t id = agree_on_id(arguments[2]);
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  nvshmemx_set_attr_uniqueid_args(me, kPes, &id, &attributes);
  if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) != 0) {
    std::fprintf(stderr, "PE %d: NVSHMEM did not start\n", me);
    return 2;
  }
  {
    Heap heap;
    for (int i = 3; i < count; ++i) {
      const std::string_view what = arguments[i];
      if (what == "operations") {
        try_operations(heap);
      } else if (what == "collectives") {
        try_collectives(heap);
      } else if (what == "order") {
        const char* const rounds = std::getenv("ORDER_ROUNDS");
        try_order(heap, rounds != nullptr ? std::atoi(rounds) : 2000);
      } else if (what == "latency") {
        measure(heap);
      } else if (what == "forever" && i + 1 < count) {
        keep_going(heap, std::atoi(arguments[++i]));
      } else {
        std::fprintf(stderr, "pe: unknown argument '%s'\n", arguments[i]);
        return 64;
      }
      nvshmem_barrier_all();
      if (me == 0) std::printf("%.*s: done\n", static_cast<int>(what.size()), what.data());
      std::fflush(stdout);
    }
  }
  std::printf("PE %d: %s\n", me, failures == 0 ? "everything was right" : "something was wrong");
  std::fflush(stdout);
  nvshmem_finalize();
  return failures == 0 ? 0 : 1;
}
