#include "transport/exposed_region.hpp"

#include <atomic>
#include <cstring>

namespace railyard::transport {
namespace {

bool inside(std::size_t size, std::uint64_t offset, std::size_t bytes) {
  return offset <= size && bytes <= size - offset;
}

template <typename Word>
bool change_word(std::byte* address, AtomicOp op, Word operand, Word compare, std::uint64_t& before) {
  // Release: a reader that sees the new value sees every earlier put. Acquire: a fetching sender's later ops come
  // after.
  constexpr auto kOrder = std::memory_order_acq_rel;
  const std::atomic_ref<Word> word(*reinterpret_cast<Word*>(address));
  switch (op) {
    case AtomicOp::add:
      before = word.fetch_add(operand, kOrder);
      return true;
    case AtomicOp::increment:
      before = word.fetch_add(1, kOrder);
      return true;
    case AtomicOp::bit_and:
      before = word.fetch_and(operand, kOrder);
      return true;
    case AtomicOp::bit_or:
      before = word.fetch_or(operand, kOrder);
      return true;
    case AtomicOp::bit_xor:
      before = word.fetch_xor(operand, kOrder);
      return true;
    case AtomicOp::set:
    case AtomicOp::swap:
      before = word.exchange(operand, kOrder);
      return true;
    case AtomicOp::compare_swap:
      word.compare_exchange_strong(compare, operand, kOrder, std::memory_order_acquire);
      before = compare;
      return true;
    case AtomicOp::fetch:
      before = word.load(std::memory_order_acquire);
      return true;
  }
  return false;
}

}  // namespace

bool apply_put(const ExposedRegion& exposed_region, std::uint64_t offset, std::span<const std::byte> bytes) {
  if (!inside(exposed_region.memory.size(), offset, bytes.size())) return false;
  if (!bytes.empty()) std::memcpy(exposed_region.memory.data() + offset, bytes.data(), bytes.size());
  return true;
}

bool apply_atomic(const ExposedRegion& exposed_region, std::uint64_t offset, AtomicOp op, const wire::AtomicBody& body,
                  std::uint64_t& before) {
  if (body.width != 4 && body.width != 8) return false;
  if (!inside(exposed_region.memory.size(), offset, body.width)) return false;
  std::byte* address = exposed_region.memory.data() + offset;
  if (reinterpret_cast<std::uintptr_t>(address) % body.width != 0) return false;
  if (body.width == 4) {
    return change_word<std::uint32_t>(address, op, static_cast<std::uint32_t>(body.operand),
                                      static_cast<std::uint32_t>(body.compare), before);
  }
  return change_word<std::uint64_t>(address, op, body.operand, body.compare, before);
}

}  // namespace railyard::transport
