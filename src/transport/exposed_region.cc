#include "transport/exposed_region.hpp"

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace railyard::transport {
namespace {

bool inside(std::size_t size, std::uint64_t offset, std::size_t bytes) {
  return offset <= size && bytes <= size - offset;
}

// Release: a reader that sees the new value sees every earlier put. Acquire: a fetching sender's later ops come after.
constexpr auto kOrder = std::memory_order_acq_rel;

/// What no instruction does: read, work out, and swap in if nobody came between.
template <typename Word, typename Change>
void exchange_until(const std::atomic_ref<Word>& word, std::uint64_t& before, Change&& change) {
  Word held = word.load(std::memory_order_acquire);
  for (Word wanted = change(held); wanted != held; wanted = change(held)) {
    if (word.compare_exchange_weak(held, wanted, kOrder, std::memory_order_acquire)) break;
  }
  before = held;
}

/// The lesser and the greater as IEEE 754-2019 has minimumNumber and maximumNumber: a NaN gives way to a number, -0.0
/// is less than +0.0. So the result does not depend on the order of arrivals.
template <typename Float>
bool is_less(Float left, Float right) {
  return left < right || (left == right && std::signbit(left) && !std::signbit(right));
}

template <typename Float, typename Word>
bool change_float(const std::atomic_ref<Word>& word, AtomicOp op, Word operand, std::uint64_t& before) {
  static_assert(sizeof(Float) == sizeof(Word) && std::numeric_limits<Float>::is_iec559);
  const auto given = std::bit_cast<Float>(operand);
  switch (op) {
    case AtomicOp::add:
      exchange_until(word, before, [&](Word held) { return std::bit_cast<Word>(std::bit_cast<Float>(held) + given); });
      return true;
    case AtomicOp::min:
    case AtomicOp::max:
      exchange_until(word, before, [&](Word held) {
        const auto now = std::bit_cast<Float>(held);
        if (std::isnan(given)) return held;
        if (std::isnan(now)) return operand;
        return (op == AtomicOp::min ? is_less(given, now) : is_less(now, given)) ? operand : held;
      });
      return true;
    default:
      return false;  // what only moves bits has the code of bits
  }
}

template <typename Integer, typename Word>
bool change_extreme(const std::atomic_ref<Word>& word, AtomicOp op, Word operand, std::uint64_t& before) {
  if (op != AtomicOp::min && op != AtomicOp::max) return false;
  const auto given = static_cast<Integer>(operand);
  exchange_until(word, before, [&](Word held) {
    const auto now = static_cast<Integer>(held);
    return (op == AtomicOp::min ? given < now : now < given) ? operand : held;
  });
  return true;
}

template <typename Word>
bool change(std::byte* address, AtomicOp op, wire::WordKind kind, Word operand, Word compare, std::uint64_t& before) {
  const std::atomic_ref<Word> word(*reinterpret_cast<Word*>(address));
  if (kind == wire::WordKind::signed_integer)
    return change_extreme<std::make_signed_t<Word>>(word, op, operand, before);
  if (kind == wire::WordKind::floating)
    return change_float<std::conditional_t<sizeof(Word) == 4, float, double>>(word, op, operand, before);
  if (kind != wire::WordKind::bits) return false;
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
    case AtomicOp::min:
    case AtomicOp::max:
      return change_extreme<Word>(word, op, operand, before);
  }
  return false;
}

}  // namespace

std::byte* find_word(const ExposedRegion& exposed_region, std::uint64_t offset, std::uint32_t width) {
  if (width != 4 && width != 8) return nullptr;
  if (!inside(exposed_region.memory.size(), offset, width)) return nullptr;
  std::byte* const address = exposed_region.memory.data() + offset;
  return reinterpret_cast<std::uintptr_t>(address) % width == 0 ? address : nullptr;
}

bool change_word(std::byte* word, std::uint8_t code, const wire::AtomicBody& body, std::uint64_t& before) {
  const auto op = static_cast<AtomicOp>(code & 0xfU);
  const auto kind = static_cast<wire::WordKind>(code >> 4U);
  if (body.width == 4) {
    return change<std::uint32_t>(word, op, kind, static_cast<std::uint32_t>(body.operand),
                                 static_cast<std::uint32_t>(body.compare), before);
  }
  return change<std::uint64_t>(word, op, kind, body.operand, body.compare, before);
}

bool apply_atomic(const ExposedRegion& exposed_region, std::uint64_t offset, std::uint8_t code,
                  const wire::AtomicBody& body, std::uint64_t& before) {
  std::byte* const word = exposed_region.device < 0 ? find_word(exposed_region, offset, body.width) : nullptr;
  return word != nullptr && change_word(word, code, body, before);
}

}  // namespace railyard::transport
