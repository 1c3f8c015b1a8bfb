// One of two ranks of a real NCCL job whose kernels use GIN, NCCL's device-side network API, over the plugin: an
// all-to-all from 8 B to 16 MiB, puts that only a later signal covers, counters, flush and the GIN barrier. Every byte
// is looked at by the kernel that waited, the moment its wait is over.
//
//   gin RANK ID-FILE [ROUNDS]
//
// Rank 0 writes NCCL's unique id into ID-FILE, rank 1 reads it there. Exits with 0 only if everything was right.
// Both ranks share one GPU: NCCL_HOSTID must differ, and MPS must run (bench/nccl/README.md). For NCCL 2.28.9.
#include <nccl.h>
#include <nccl_device.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

using Word = unsigned long long;

constexpr int kRanks = 2;
constexpr std::size_t kMostBytes = std::size_t{16} << 20;
constexpr int kThreads = 512;
constexpr int kPutsPerSignal = 8;
constexpr unsigned kAllToAll = 0;  // signals
constexpr unsigned kStrong = 1;
constexpr unsigned kCounter = 0;

int me = -1;

#define CUDA(call)                                                                      \
  do {                                                                                  \
    if (const cudaError_t result = (call); result != cudaSuccess) {                     \
      std::fprintf(stderr, "rank %d: %s: %s\n", me, #call, cudaGetErrorString(result)); \
      std::exit(2);                                                                     \
    }                                                                                   \
  } while (false)
#define NCCL(call)                                                                      \
  do {                                                                                  \
    if (const ncclResult_t result = (call); result != ncclSuccess) {                    \
      std::fprintf(stderr, "rank %d: %s: %s\n", me, #call, ncclGetErrorString(result)); \
      std::exit(2);                                                                     \
    }                                                                                   \
  } while (false)

__device__ std::uint8_t pattern(std::size_t index, int from, int to, unsigned round) {
  return static_cast<std::uint8_t>(index * 11 + index / 253 + static_cast<unsigned>(from) * 101 +
                                   static_cast<unsigned>(to) * 37 + round * 17);
}

struct Job {
  ncclDevComm comm;
  ncclWindow_t send_window;
  ncclWindow_t receive_window;
  std::uint8_t* send;
  const volatile std::uint8_t* receive;
  Word* wrong;
};

/// Threads of the block count the bytes that are not what `from` sent.
__device__ Word wrong_bytes(const Job& job, std::size_t offset, std::size_t bytes, int from, unsigned round) {
  Word bad = 0;
  for (std::size_t i = threadIdx.x; i < bytes; i += blockDim.x)
    if (job.receive[offset + i] != pattern(i, from, job.comm.rank, round)) ++bad;
  return bad;
}

__device__ void fill(const Job& job, std::size_t bytes, unsigned round) {
  for (int to = 0; to < job.comm.nRanks; ++to)
    for (std::size_t i = threadIdx.x; i < bytes; i += blockDim.x)
      job.send[static_cast<std::size_t>(to) * bytes + i] = pattern(i, job.comm.rank, to, round);
  __syncthreads();
}

/// Each rank puts a part to every rank, itself too, with a signal and a counter.
__global__ void all_to_all(Job job, std::size_t bytes, unsigned round) {
  ncclGin gin{job.comm, 0};
  const std::uint64_t signals = gin.readSignal(kAllToAll);
  const std::uint64_t counted = gin.readCounter(kCounter);
  ncclGinBarrierSession<ncclCoopCta> barrier{ncclCoopCta(), gin, ncclTeamWorld(job.comm), job.comm.railGinBarrier, 0};
  fill(job, bytes, round);
  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
  if (threadIdx.x < static_cast<unsigned>(job.comm.nRanks)) {
    const int to = static_cast<int>(threadIdx.x);
    gin.put(ncclTeamWorld(job.comm), to, job.receive_window, static_cast<std::size_t>(job.comm.rank) * bytes,
            job.send_window, static_cast<std::size_t>(to) * bytes, bytes, ncclGin_SignalInc{kAllToAll},
            ncclGin_CounterInc{kCounter});
  }
  gin.waitSignal(ncclCoopCta(), kAllToAll, signals + static_cast<std::uint64_t>(job.comm.nRanks));
  Word bad = 0;
  for (int from = 0; from < job.comm.nRanks; ++from)
    bad += wrong_bytes(job, static_cast<std::size_t>(from) * bytes, bytes, from, round);
  gin.waitCounter(ncclCoopCta(), kCounter, counted + static_cast<std::uint64_t>(job.comm.nRanks));
  gin.flush(ncclCoopCta());
  if (bad != 0) atomicAdd(job.wrong, bad);
}

/// Puts without a signal, then a signal alone: it covers all of them.
__global__ void strong_signal(Job job, std::size_t bytes, unsigned round) {
  ncclGin gin{job.comm, 0};
  const std::uint64_t signals = gin.readSignal(kStrong);
  ncclGinBarrierSession<ncclCoopCta> barrier{ncclCoopCta(), gin, ncclTeamWorld(job.comm), job.comm.railGinBarrier, 0};
  fill(job, bytes, round);
  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
  const int peer = 1 - job.comm.rank;
  const std::size_t part = bytes / kPutsPerSignal;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kPutsPerSignal; ++i)
      gin.put(ncclTeamWorld(job.comm), peer, job.receive_window, static_cast<std::size_t>(i) * part, job.send_window,
              static_cast<std::size_t>(peer) * bytes + static_cast<std::size_t>(i) * part, part);
    gin.signal(ncclTeamWorld(job.comm), peer, ncclGin_SignalInc{kStrong});
  }
  gin.waitSignal(ncclCoopCta(), kStrong, signals + 1);
  const Word bad = wrong_bytes(job, 0, part * kPutsPerSignal, peer, round);
  gin.flush(ncclCoopCta());
  if (bad != 0) atomicAdd(job.wrong, 1ULL);
}

ncclUniqueId agree_on_id(const char* path) {
  ncclUniqueId id;
  const std::string part = std::string(path) + ".part";
  if (me == 0) {
    NCCL(ncclGetUniqueId(&id));
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
  std::fprintf(stderr, "rank 1: no unique id in %s after 60 s\n", path);
  std::exit(2);
}

Word read_wrong(const Job& job, cudaStream_t stream) {
  Word value = 0;
  CUDA(cudaMemcpyAsync(&value, job.wrong, sizeof(value), cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  return value;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3 || (std::strcmp(arguments[1], "0") != 0 && std::strcmp(arguments[1], "1") != 0)) {
    std::fprintf(stderr, "usage: gin 0|1 ID-FILE [ROUNDS]\n");
    return 64;
  }
  me = std::atoi(arguments[1]);
  const unsigned rounds = count > 3 ? static_cast<unsigned>(std::atoi(arguments[3])) : 1000;
  CUDA(cudaSetDevice(0));
  ncclComm_t comm;
  NCCL(ncclCommInitRank(&comm, kRanks, agree_on_id(arguments[2]), me));

  Job job{};
  void* send = nullptr;
  void* receive = nullptr;
  NCCL(ncclMemAlloc(&send, kRanks * kMostBytes));
  NCCL(ncclMemAlloc(&receive, kRanks * kMostBytes));
  NCCL(ncclCommWindowRegister(comm, send, kRanks * kMostBytes, &job.send_window, NCCL_WIN_COLL_SYMMETRIC));
  NCCL(ncclCommWindowRegister(comm, receive, kRanks * kMostBytes, &job.receive_window, NCCL_WIN_COLL_SYMMETRIC));
  job.send = static_cast<std::uint8_t*>(send);
  job.receive = static_cast<const volatile std::uint8_t*>(receive);
  CUDA(cudaMalloc(&job.wrong, sizeof(Word)));
  CUDA(cudaMemset(job.wrong, 0, sizeof(Word)));
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  ncclDevCommRequirements needs;
  std::memset(&needs, 0, sizeof(needs));
  needs.railGinBarrierCount = 1;
  needs.ginSignalCount = 2;
  needs.ginCounterCount = 1;
  NCCL(ncclDevCommCreate(comm, &needs, &job.comm));

  bool right = true;
  unsigned round = 0;
  for (std::size_t bytes = 8; bytes <= kMostBytes; bytes *= 8) {
    const unsigned some = bytes > (std::size_t{1} << 20) ? rounds / 10 + 1 : rounds;
    for (unsigned i = 0; i < some; ++i) all_to_all<<<1, kThreads, 0, stream>>>(job, bytes, ++round);
    const Word bad = read_wrong(job, stream);
    std::printf("rank %d: all-to-all of %zu B, %u times: %llu bytes wrong\n", me, bytes, some, bad);
    std::fflush(stdout);
    right = right && bad == 0;
  }
  for (std::size_t bytes = 64; bytes <= (std::size_t{4} << 20); bytes *= 16) {
    for (unsigned i = 0; i < rounds; ++i) strong_signal<<<1, kThreads, 0, stream>>>(job, bytes, ++round);
    const Word bad = read_wrong(job, stream);
    std::printf("rank %d: %d puts of %zu B, then a signal, %u times: %llu early\n", me, kPutsPerSignal,
                bytes / kPutsPerSignal, rounds, bad);
    std::fflush(stdout);
    right = right && bad == 0;
  }

  NCCL(ncclDevCommDestroy(comm, &job.comm));
  NCCL(ncclCommWindowDeregister(comm, job.send_window));
  NCCL(ncclCommWindowDeregister(comm, job.receive_window));
  NCCL(ncclMemFree(send));
  NCCL(ncclMemFree(receive));
  NCCL(ncclCommFinalize(comm));
  NCCL(ncclCommDestroy(comm));
  std::printf("rank %d: %s\n", me, right ? "everything was right" : "something was wrong");
  return right ? 0 : 1;
}
