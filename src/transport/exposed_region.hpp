/// Exposed region: what a peer's messages may touch in this process. The target checks every access against it (promise
/// 9).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "railyard/operations.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

class MirroredWords;
struct Ranks;

struct ExposedRegion {
  std::span<std::byte> memory;
  std::span<std::uint64_t> signals;
  int device = -1;                    ///< the GPU that `memory` is of; -1: the host
  MirroredWords* mirrored = nullptr;  ///< the signals lie on a GPU, and `signals` is what the host sees of them
  const Ranks* world = nullptr;       ///< whose ranks alone may touch it; null: any peer
};

/// Copies into the exposed region. False: outside it, or memory of a GPU, which no frame brings bytes for.
inline bool apply_put(const ExposedRegion& exposed_region, std::uint64_t offset, std::span<const std::byte> bytes) {
  const std::size_t size = exposed_region.memory.size();
  if (exposed_region.device >= 0 || offset > size || bytes.size() > size - offset) return false;
  if (!bytes.empty()) wire::copy_body(exposed_region.memory.data() + offset, bytes.data(), bytes.size());
  return true;
}
/// Changes a signal word with release order: what was applied before is visible to whoever reads it. False: no such
/// word. Other processes may change the word at the same time.
[[gnu::always_inline]] inline bool apply_signal(std::span<std::uint64_t> signals, std::uint64_t index, SignalOp op,
                                                std::uint64_t value) {
  if (index >= signals.size()) return false;
  const std::atomic_ref<std::uint64_t> word(signals[index]);
  switch (op) {
    case SignalOp::add:
      word.fetch_add(value, std::memory_order_release);
      return true;
    case SignalOp::set:
      word.store(value, std::memory_order_release);
      return true;
  }
  return false;
}
[[gnu::always_inline]] inline bool apply_signal(const ExposedRegion& exposed_region, std::uint64_t index, SignalOp op,
                                                std::uint64_t value) {
  return apply_signal(exposed_region.signals, index, op, value);
}
/// The word that an atomic of this width names; null: it is outside, misaligned, or of no possible width.
std::byte* find_word(const ExposedRegion& exposed_region, std::uint64_t offset, std::uint32_t width);
/// Changes a word that `find_word` found and returns what it held. False: no such operation (wire::atomic_code).
bool change_word(std::byte* word, std::uint8_t code, const wire::AtomicBody& body, std::uint64_t& before);
/// Both, for memory of the host. Atomic against every processor of this host that does the same, or uses locked
/// instructions.
bool apply_atomic(const ExposedRegion& exposed_region, std::uint64_t offset, std::uint8_t code,
                  const wire::AtomicBody& body, std::uint64_t& before);

}  // namespace railyard::transport
