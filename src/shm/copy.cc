#include "shm/copy.hpp"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace railyard::shm {

namespace {

#if defined(__x86_64__)

/// More than 64 bytes. The last 64 are stored on their own, overlapping, so that the loop needs no tail.
void copy_sse2(std::byte* to, const std::byte* from, std::size_t bytes) {
  const auto load = [](const std::byte* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); };
  const auto store = [](std::byte* at, __m128i value) { _mm_storeu_si128(reinterpret_cast<__m128i*>(at), value); };
  const std::byte* const last = from + bytes - 64;
  std::byte* const last_to = to + bytes - 64;
  for (; from < last; from += 64, to += 64) {
    const __m128i a = load(from);
    const __m128i b = load(from + 16);
    const __m128i c = load(from + 32);
    const __m128i d = load(from + 48);
    store(to, a);
    store(to + 16, b);
    store(to + 32, c);
    store(to + 48, d);
  }
  store(last_to, load(last));
  store(last_to + 16, load(last + 16));
  store(last_to + 32, load(last + 32));
  store(last_to + 48, load(last + 48));
}

__attribute__((target("avx"))) void copy_avx(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::byte* const last = from + bytes - 64;
  std::byte* const last_to = to + bytes - 64;
  const __m256i end_a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(last));
  const __m256i end_b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(last + 32));
  for (; from + 64 < last; from += 128, to += 128) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 64));
    const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 96));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), b);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 64), c);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 96), d);
  }
  if (from < last) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), b);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(last_to), end_a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(last_to + 32), end_b);
  _mm256_zeroupper();
}

__attribute__((target("avx"))) void copy_past_cache_avx(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::size_t at = 0;
  for (; at + 64 <= bytes; at += 64) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + 32), b);
  }
  _mm256_zeroupper();
  copy_bytes(to + at, from + at, bytes - at);
  // Such stores are not ordered with others: the word that follows must not overtake them.
  _mm_sfence();
}

using CopyFunction = void (*)(std::byte*, const std::byte*, std::size_t);
const bool has_avx = __builtin_cpu_supports("avx") != 0;
const CopyFunction chosen = has_avx ? copy_avx : copy_sse2;

#endif

}  // namespace

void copy_long(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  if (bytes >= 64) {
    chosen(to, from, bytes);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  if (has_avx) {
    const std::size_t before_line = std::min((64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64, bytes);
    copy_bytes(to, from, before_line);
    copy_past_cache_avx(to + before_line, from + before_line, bytes - before_line);
    return;
  }
#endif
  copy_bytes(to, from, bytes);
}

}  // namespace railyard::shm
