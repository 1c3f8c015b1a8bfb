/// Exposed region: what a peer's messages may touch in this process. The target checks every access against it (promise
/// 9).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "railyard/window.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

struct ExposedRegion {
  std::span<std::byte> memory;
  std::span<std::uint64_t> signals;
};

/// Copies into the exposed region. False: outside it.
bool apply_put(const ExposedRegion& exposed_region, std::uint64_t offset, std::span<const std::byte> bytes);
/// Changes a signal word with release order: what was applied before is visible to whoever reads it. False: no such
/// word. Other processes may change the word at the same time.
inline bool apply_signal(const ExposedRegion& exposed_region, std::uint64_t index, SignalOp op, std::uint64_t value) {
  if (index >= exposed_region.signals.size()) return false;
  const std::atomic_ref<std::uint64_t> word(exposed_region.signals[index]);
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
/// Changes a word of the exposed region and returns what it held. False: outside, misaligned, or no such operation
/// (wire::atomic_code). Atomic against every processor of this host that does the same, or uses locked instructions.
bool apply_atomic(const ExposedRegion& exposed_region, std::uint64_t offset, std::uint8_t code,
                  const wire::AtomicBody& body, std::uint64_t& before);

}  // namespace railyard::transport
