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

RAILYARD_DEVICE Word load_system(const Word* at) {
#if defined(__CUDA_ARCH__)
  Word value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
#else
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

RAILYARD_DEVICE void store_system(Word* at, Word value) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

RAILYARD_DEVICE void add_system(Word* at, Word value) {
#if defined(__CUDA_ARCH__)
  asm volatile("red.release.sys.add.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
  __atomic_fetch_add(at, value, __ATOMIC_RELEASE);
#endif
}

/// One of several words that follow `release_system`, in any order. On the host each carries the release itself: there
/// it costs nothing, and the thread sanitizer knows no fences.
RAILYARD_DEVICE void store_after_release(Word* at, Word value) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
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

RAILYARD_DEVICE Word load_local(const Word* at) {
#if defined(__CUDA_ARCH__)
  Word value;
  asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
#else
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

/// True: the word held `expected`, and holds `value` now.
RAILYARD_DEVICE bool exchange_local(Word* at, Word expected, Word value) {
#if defined(__CUDA_ARCH__)
  Word held;
  asm volatile("atom.relaxed.gpu.cas.b64 %0, [%1], %2, %3;"
               : "=l"(held)
               : "l"(at), "l"(expected), "l"(value)
               : "memory");
  return held == expected;
#else
  return __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
#endif
}

/// The word becomes `value` unless it is more.
RAILYARD_DEVICE void raise_local(Word* at, Word value) {
#if defined(__CUDA_ARCH__)
  asm volatile("red.relaxed.gpu.max.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
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
    } else if (bits % 4 == 0) {
      done = copy_as<unsigned>(target, source, bytes);
    }
    for (std::uint64_t at = done + rank(); at < bytes; at += size()) target[at] = source[at];
#else
    if (bytes > 0) std::memmove(to, from, bytes);
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
    for (; at + 3 * stride < items; at += 4 * stride) {
      const Item a = source[at], b = source[at + stride], c = source[at + 2 * stride], d = source[at + 3 * stride];
      target[at] = a;
      target[at + stride] = b;
      target[at + 2 * stride] = c;
      target[at + 3 * stride] = d;
    }
    for (; at < items; at += stride) target[at] = source[at];
    return items * sizeof(Item);
  }
#endif
};

}  // namespace detail
}  // namespace railyard::device
