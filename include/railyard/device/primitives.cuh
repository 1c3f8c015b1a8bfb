/// What the device API does to memory, and how a group of threads acts as one. Compiled by nvcc (C++17) for kernels and
/// by any C++17 compiler for host threads, which play the kernel's part in tests: there a group is one thread.
///
/// "System": seen by other devices and by processors. "Local": among the threads of one GPU (or one process).
#pragma once

#include <cstdint>

#if !defined(__CUDA_ARCH__)
#include <sched.h>
#include <time.h>

#include <cstring>
#endif

#if defined(__CUDACC__) || defined(__CUDA__)
#define RAILYARD_DEVICE __host__ __device__ inline
#else
#define RAILYARD_DEVICE inline
#endif

namespace railyard::device {

/// Which threads make a call together. All threads of the warp or block make it, with the same arguments; one of them
/// does the work that cannot be shared out, and all return the same.
enum class Scope : std::uint8_t { thread, warp, block };

namespace detail {

using Word = std::uint64_t;
static_assert(sizeof(Word) == 8 && alignof(Word) == 8, "words are stored at once");

#if defined(__CUDA_ARCH__)
/// Words never lie in a block's shared memory, nor on a stack: their instructions need not find that out.
__device__ inline std::uint64_t in_global(const void* at) { return __cvta_generic_to_global(at); }
#endif

RAILYARD_DEVICE Word load_system(const Word* at) {
#if defined(__CUDA_ARCH__)
  Word value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(in_global(at)) : "memory");
  return value;
#else
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

RAILYARD_DEVICE void store_system(Word* at, Word value) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(in_global(at)), "l"(value) : "memory");
#else
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

RAILYARD_DEVICE void add_system(Word* at, Word value) {
#if defined(__CUDA_ARCH__)
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(in_global(at)), "l"(value) : "memory");
#else
  __atomic_fetch_add(at, value, __ATOMIC_RELEASE);
#endif
}

/// The same after `release_system` or `release_local`, which has the order already.
RAILYARD_DEVICE void add_after_release(Word* at, Word value) {
#if defined(__CUDA_ARCH__)
  asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(in_global(at)), "l"(value) : "memory");
#else
  __atomic_fetch_add(at, value, __ATOMIC_RELEASE);
#endif
}

/// One of several words that follow `release_system`, in any order. On the host each carries the release itself: there
/// it costs nothing, and the thread sanitizer knows no fences.
RAILYARD_DEVICE void store_after_release(Word* at, Word value) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(in_global(at)), "l"(value) : "memory");
#else
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

/// What this thread has written, and what it has seen of others (its group's, after `Group::sync`), is there for
/// everybody before what it stores next.
RAILYARD_DEVICE void release_system() {
#if defined(__CUDA_ARCH__)
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

/// The same for kernels of this GPU alone, and for what reads its memory.
RAILYARD_DEVICE void release_local() {
#if defined(__CUDA_ARCH__)
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

/// A word that kernels add to (`adds`) beside the one that the engine writes; without `adds` the latter alone.
RAILYARD_DEVICE Word load_sum(const Word* at, const Word* adds) {
  if (adds == nullptr) return load_system(at);
#if defined(__CUDA_ARCH__)
  // Both looks are under way together. What the engine wrote is acquired by a fence, which costs as much as a look:
  // where kernels alone signal, it has written nothing.
  Word written;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(written) : "l"(in_global(at)) : "memory");
  const Word added = load_system(adds);
  if (written != 0) release_system();
  return written + added;
#else
  return load_system(at) + load_system(adds);
#endif
}

RAILYARD_DEVICE Word load_local(const Word* at) {
#if defined(__CUDA_ARCH__)
  Word value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(in_global(at)) : "memory");
  return value;
#else
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

/// True: the word held `expected`, and holds `value` now.
RAILYARD_DEVICE bool exchange_local(Word* at, Word expected, Word value) {
#if defined(__CUDA_ARCH__)
  Word held;
  asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(held)
               : "l"(in_global(at)), "l"(expected), "l"(value)
               : "memory");
  return held == expected;
#else
  return __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
#endif
}

/// The word becomes `value` unless it is more.
RAILYARD_DEVICE void raise_local(Word* at, Word value) {
#if defined(__CUDA_ARCH__)
  asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(in_global(at)), "l"(value) : "memory");
#else
  Word held = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (held < value && !__atomic_compare_exchange_n(at, &held, value, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
  }
#endif
}

/// Nanoseconds of a clock that never goes back.
RAILYARD_DEVICE Word now() {
#if defined(__CUDA_ARCH__)
  Word value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
#else
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<Word>(time.tv_sec) * 1'000'000'000 + static_cast<Word>(time.tv_nsec);
#endif
}

/// Between two looks of a wait. A kernel's look at host memory takes long enough by itself.
RAILYARD_DEVICE void pause(std::uint32_t looks) {
#if defined(__CUDA_ARCH__)
  (void)looks;
#else
  if (looks % 64 == 0) ::sched_yield();
#endif
}

/// The threads that make a call together.
template <Scope scope>
struct Group {
#if defined(__CUDA_ARCH__)
  static __device__ inline unsigned thread_in_block() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  }
  static __device__ inline unsigned block_size() { return blockDim.x * blockDim.y * blockDim.z; }
  /// The threads of this warp: the last one of a block may have fewer.
  static __device__ inline unsigned warp_size() {
    const unsigned left = block_size() - thread_in_block() / 32 * 32;
    return left < 32 ? left : 32;
  }
  static __device__ inline unsigned warp_mask() { return warp_size() == 32 ? ~0u : (1u << warp_size()) - 1; }
#endif

  /// This thread's number in the group; the first leads.
  static RAILYARD_DEVICE unsigned rank() {
#if defined(__CUDA_ARCH__)
    if (scope == Scope::warp) return thread_in_block() % 32;
    if (scope == Scope::block) return thread_in_block();
#endif
    return 0;
  }
  static RAILYARD_DEVICE unsigned size() {
#if defined(__CUDA_ARCH__)
    if (scope == Scope::warp) return warp_size();
    if (scope == Scope::block) return block_size();
#endif
    return 1;
  }
  static RAILYARD_DEVICE bool leads() { return rank() == 0; }
  /// What any of them did before, all have seen after it.
  static RAILYARD_DEVICE void sync() {
#if defined(__CUDA_ARCH__)
    if (scope == Scope::warp) __syncwarp(warp_mask());
    if (scope == Scope::block) __syncthreads();
#endif
  }
  /// The leader's value, for all. Synchronises.
  static RAILYARD_DEVICE Word share(Word value) {
#if defined(__CUDA_ARCH__)
    if (scope == Scope::warp) {
      const Word shared = __shfl_sync(warp_mask(), static_cast<unsigned long long>(value), 0);
      __syncwarp(warp_mask());
      return shared;
    }
    if (scope == Scope::block) {
      __shared__ unsigned long long place;
      if (leads()) place = value;
      __syncthreads();
      value = place;
      __syncthreads();
    }
#endif
    return value;
  }

  /// Copies, shared out over the group; nothing of it is ordered before `sync`.
  static RAILYARD_DEVICE void copy(void* to, const void* from, std::uint64_t bytes) {
#if defined(__CUDA_ARCH__)
    auto* const target = static_cast<unsigned char*>(to);
    const auto* const source = static_cast<const unsigned char*>(from);
    const auto bits = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
    std::uint64_t done = 0;
    if (bits % 16 == 0) {
      done = copy_as<uint4>(target, source, bytes);
    } else if (bits % 8 == 0) {
      done = copy_as<unsigned long long>(target, source, bytes);
    }
    if (bits % 4 == 0) done += copy_as<unsigned>(target + done, source + done, bytes - done);
    for (std::uint64_t at = done + rank(); at < bytes; at += size()) target[at] = source[at];
#else
    if (bytes > 0) std::memmove(to, from, bytes);
#endif
  }

  /// Eight bytes, by the caller alone, from where they are aligned to anywhere.
  static RAILYARD_DEVICE Word load_word(const void* from) {
#if defined(__CUDA_ARCH__)
    return *static_cast<const Word*>(from);
#else
    Word word;
    std::memcpy(&word, from, sizeof word);
    return word;
#endif
  }
  static RAILYARD_DEVICE void store_word(void* to, Word word) {
#if defined(__CUDA_ARCH__)
    if (reinterpret_cast<std::uintptr_t>(to) % sizeof word == 0) {
      *static_cast<Word*>(to) = word;
      return;
    }
    for (unsigned at = 0; at < sizeof word; ++at)
      static_cast<unsigned char*>(to)[at] = static_cast<unsigned char>(word >> at * 8);
#else
    std::memcpy(to, &word, sizeof word);
#endif
  }

#if defined(__CUDA_ARCH__)
  template <typename Item>
  static __device__ inline std::uint64_t copy_as(unsigned char* to, const unsigned char* from, std::uint64_t bytes) {
    auto* const target = reinterpret_cast<Item*>(to);
    const auto* const source = reinterpret_cast<const Item*>(from);
    const std::uint64_t items = bytes / sizeof(Item);
    const std::uint64_t stride = size();
    std::uint64_t at = rank();
    // Several loads under way at a time.
    constexpr unsigned kTogether = 8;
    for (; at + (kTogether - 1) * stride < items; at += kTogether * stride) {
      Item held[kTogether];
#pragma unroll
      for (unsigned i = 0; i < kTogether; ++i) held[i] = source[at + i * stride];
#pragma unroll
      for (unsigned i = 0; i < kTogether; ++i) target[at + i * stride] = held[i];
    }
    for (; at < items; at += stride) target[at] = source[at];
    return items * sizeof(Item);
  }
#endif
};

}  // namespace detail
}  // namespace railyard::device
