/// Copying bytes through shared memory. Not memcpy: above 2 KiB that becomes `rep movsb` here, which is many times
/// slower when source and destination lie a few bytes apart modulo 4096, as a malloc block and a page-aligned ring do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace railyard::shm {

/// Any length; the areas do not overlap. Vector loads and stores, never past the cache.
void copy_long(std::byte* to, const std::byte* from, std::size_t bytes);

/// The same with stores that go past the cache to memory. For cores far from each other: a line
/// that is dirty in a far core's cache costs its reader several times what one in memory does.
void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes);

/// Up to 64 bytes, by moves between registers and memory.
[[gnu::always_inline]] inline void copy_short(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes <= 16) {
    if (bytes >= 8) {
      std::uint64_t first;
      std::uint64_t last;
      std::memcpy(&first, from, 8);
      std::memcpy(&last, from + bytes - 8, 8);
      std::memcpy(to, &first, 8);
      std::memcpy(to + bytes - 8, &last, 8);
    } else if (bytes >= 4) {
      std::uint32_t first;
      std::uint32_t last;
      std::memcpy(&first, from, 4);
      std::memcpy(&last, from + bytes - 4, 4);
      std::memcpy(to, &first, 4);
      std::memcpy(to + bytes - 4, &last, 4);
    } else if (bytes != 0) {
      const std::byte middle = from[bytes / 2];
      const std::byte last = from[bytes - 1];
      to[0] = from[0];
      to[bytes / 2] = middle;
      to[bytes - 1] = last;
    }
    return;
  }
#if defined(__SSE2__)
  const auto load = [from](std::size_t at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)); };
  const auto store = [to](std::size_t at, __m128i value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at), value);
  };
  const __m128i first = load(0);
  const __m128i last = load(bytes - 16);
  if (bytes > 32) {
    const __m128i second = load(16);
    const __m128i third = load(bytes - 32);
    store(16, second);
    store(bytes - 32, third);
  }
  store(0, first);
  store(bytes - 16, last);
#else
  std::memcpy(to, from, bytes);
#endif
}

/// Any length.
[[gnu::always_inline]] inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes <= 64) return copy_short(to, from, bytes);
  copy_long(to, from, bytes);
}

/// Asks for the lines of [from, from + bytes), all at once: they come from another core's cache.
inline void prefetch_for_reading(const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 3);
}

/// The processor's clock, read after all earlier loads are done. 0 where there is none to read cheaply.
inline std::uint64_t ticks() {
#if defined(__SSE2__)
  _mm_lfence();
  return __builtin_ia32_rdtsc();
#else
  return 0;
#endif
}

}  // namespace railyard::shm
