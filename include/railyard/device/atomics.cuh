/// Atomics of device::Window: see device.cuh.
#pragma once

#include <type_traits>

#include "railyard/device/operations.cuh"

namespace railyard::device {

namespace detail {

inline constexpr Word kTaken = ~Word{0};  ///< of a place for a result: its caller waits

template <typename T>
RAILYARD_DEVICE WordType word_type() {
  static_assert((std::is_integral<T>::value || std::is_floating_point<T>::value) && (sizeof(T) == 4 || sizeof(T) == 8),
                "a word of 4 or 8 bytes");
  if (std::is_floating_point<T>::value) return sizeof(T) == 4 ? WordType::float32 : WordType::float64;
  if (sizeof(T) == 4) return std::is_signed<T>::value ? WordType::int32 : WordType::uint32;
  return std::is_signed<T>::value ? WordType::int64 : WordType::uint64;
}

/// The same bits.
template <typename To, typename From>
RAILYARD_DEVICE To bits_as(From from) {
  To to{};
  memcpy(&to, &from, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From));  // little-endian: the low bytes first
  return to;
}

RAILYARD_DEVICE bool is_float(WordType type) { return type == WordType::float32 || type == WordType::float64; }
RAILYARD_DEVICE unsigned width_of(WordType type) {
  return type == WordType::int32 || type == WordType::uint32 || type == WordType::float32 ? 4 : 8;
}

/// True: the word held `expected` and holds `value` now; else `expected` is what it holds.
template <typename Bits>
RAILYARD_DEVICE bool exchange_system(Bits* at, Bits& expected, Bits value) {
#if defined(__CUDA_ARCH__)
  Bits held;
  if (sizeof(Bits) == 4) {
    asm volatile("atom.acq_rel.sys.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(*reinterpret_cast<unsigned*>(&held))
                 : "l"(at), "r"(static_cast<unsigned>(expected)), "r"(static_cast<unsigned>(value))
                 : "memory");
  } else {
    asm volatile("atom.acq_rel.sys.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(*reinterpret_cast<unsigned long long*>(&held))
                 : "l"(at), "l"(static_cast<unsigned long long>(expected)), "l"(static_cast<unsigned long long>(value))
                 : "memory");
  }
  const bool same = held == expected;
  expected = held;
  return same;
#else
  return __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
#endif
}

/// The lesser, or the greater, as the host has it: a NaN gives way to a number, -0.0 is less than +0.0.
template <typename Value, typename Bits>
RAILYARD_DEVICE Bits extreme(Bits held, Bits operand, bool least) {
  const Value now = bits_as<Value>(held);
  const Value given = bits_as<Value>(operand);
  if (given != given) return held;
  if (now != now) return operand;
  const bool equal = given == now && std::is_floating_point<Value>::value && held != operand;
  const bool given_is_less = equal ? operand >> (sizeof(Bits) * 8 - 1) != 0 : given < now;
  const bool now_is_less = equal ? held >> (sizeof(Bits) * 8 - 1) != 0 : now < given;
  return (least ? given_is_less : now_is_less) ? operand : held;
}

/// What becomes of a word.
template <typename Bits>
RAILYARD_DEVICE Bits changed(Bits held, AtomicOp op, WordType type, Bits operand, Bits compare) {
  using Float = typename std::conditional<sizeof(Bits) == 4, float, double>::type;
  using Signed = typename std::make_signed<Bits>::type;
  const bool is_signed = type == WordType::int32 || type == WordType::int64;
  switch (op) {
    case AtomicOp::add:
      return is_float(type) ? bits_as<Bits>(static_cast<Float>(bits_as<Float>(held) + bits_as<Float>(operand)))
                            : static_cast<Bits>(held + operand);
    case AtomicOp::increment:
      return is_float(type) ? bits_as<Bits>(static_cast<Float>(bits_as<Float>(held) + Float{1}))
                            : static_cast<Bits>(held + 1);
    case AtomicOp::bit_and:
      return held & operand;
    case AtomicOp::bit_or:
      return held | operand;
    case AtomicOp::bit_xor:
      return held ^ operand;
    case AtomicOp::set:
    case AtomicOp::swap:
      return operand;
    case AtomicOp::compare_swap:
      return held == compare ? operand : held;
    case AtomicOp::fetch:
      return held;
    case AtomicOp::min:
    case AtomicOp::max:
      return is_float(type) ? extreme<Float>(held, operand, op == AtomicOp::min)
             : is_signed    ? extreme<Signed>(held, operand, op == AtomicOp::min)
                            : extreme<Bits>(held, operand, op == AtomicOp::min);
  }
  return held;
}

/// Changes a word in memory that this kernel reaches; returns what it held.
template <typename Bits>
RAILYARD_DEVICE Word change_at(void* word, AtomicOp op, WordType type, Word operand, Word compare) {
  auto* const at = static_cast<Bits*>(word);
  Bits held = 0;
  // The first exchange finds out what is there; where that is what comes out, it has changed nothing.
  for (;;) {
    const Bits wanted = changed(held, op, type, static_cast<Bits>(operand), static_cast<Bits>(compare));
    if (exchange_system(at, held, wanted)) return held;
  }
}

}  // namespace detail

/// A fetch through the proxy, by one thread: takes a place for the result, and waits for it.
RAILYARD_DEVICE Status Window::await_fetched(const detail::Command& asked, Word& before) const {
  const std::uint32_t ring = my_ring();
  const int rank = static_cast<int>(asked.rank);
  Word* const places = handle_.tails[ring].fetches;
  Patience patience{*this, Operation::fetch_atomic, rank, ring, 0, 1};
  unsigned place = detail::Group<Scope::warp>::rank();
  for (unsigned looked = 1;; ++looked, ++place) {
    place %= detail::kMostFetches;
    const Word held = detail::load_local(&places[place]);
    const bool is_free = held == 0 || (held != detail::kTaken && is_complete(ring, held));
    if (is_free && detail::exchange_local(&places[place], held, detail::kTaken)) break;
    if (looked % detail::kMostFetches != 0) continue;
    const Status status = patience.go_on(0);
    if (status != Status::ok) return status;
  }
  detail::Command command = asked;
  command.signal_index = place;
  const Ticket ticket = post(command, rank);
  Status status = ticket.status();
  if (status == Status::ok) status = await_number(ring, ticket.number(), Operation::wait, rank);
  if (status == Status::ok) {
    before = detail::load_system(&handle_.fetched[static_cast<std::uint64_t>(ring) * detail::kMostFetches + place]);
  }
  // Given up: the result may still come, so the place is another's only when the command is complete.
  const bool may_come = status != Status::ok && ticket.ok();
  detail::exchange_local(&places[place], detail::kTaken, may_come ? ticket.number() : 0);
  return status;
}

/// In memory that kernels reach, by one thread. `invalid`: the command makes no sense, and the proxy says why.
RAILYARD_DEVICE Status Window::touch_word(const detail::Peer& peer, const detail::Command& command, AtomicOp op,
                                          WordType type, Word& before) const {
  const unsigned width = detail::width_of(type);
  const bool bitwise = op == AtomicOp::bit_and || op == AtomicOp::bit_or || op == AtomicOp::bit_xor;
  if (command.offset > peer.bytes || width > peer.bytes - command.offset || command.offset % width != 0 ||
      op > AtomicOp::max || (bitwise && detail::is_float(type)) ||
      (op == AtomicOp::fetch && command.operation != Operation::fetch_atomic)) {
    return Status::invalid;
  }
  // Always here, never through the proxy: what went that way before is waited for.
  const std::uint32_t ring = my_ring();
  const int rank = static_cast<int>(command.rank);
  const Status status = await_number(ring, last_posted(ring, rank), Operation::wait, rank);
  if (status != Status::ok) return status;
  detail::release_system();
  std::byte* const word = peer.data + command.offset;
  before = width == 4 ? detail::change_at<std::uint32_t>(word, op, type, command.signal_value, command.counter_value)
                      : detail::change_at<std::uint64_t>(word, op, type, command.signal_value, command.counter_value);
  return Status::ok;
}

template <Scope scope>
RAILYARD_DEVICE Status Window::change_word(int rank, std::uint64_t offset, AtomicOp op, WordType type, Word operand,
                                           Word compare, Word* before, Ticket& ticket) const {
  using Group = detail::Group<scope>;
  Group::sync();  // what the group wrote comes first
  Word held = 0;
  Status status = Status::ok;
  if (Group::leads()) {
    detail::Command command;
    command.operation = before != nullptr ? Operation::fetch_atomic : Operation::atomic;
    command.rank = static_cast<std::uint32_t>(rank);
    command.offset = offset;
    command.signal_value = operand;
    command.counter_value = compare;
    command.counter_index = detail::atomic_code(op, type);
    const detail::Peer peer = peer_of(rank);
    const bool touches = (peer.flags & detail::Peer::kAtomics) != 0;
    status = touches ? touch_word(peer, command, op, type, held) : Status::invalid;
    if (status == Status::invalid) {
      if (before != nullptr) {
        status = await_fetched(command, held);
      } else {
        ticket = post(command, rank);
        status = ticket.status();
      }
    }
    if (status != Status::ok) ticket = Ticket::failed(status);
  }
  ticket.word = Group::share(ticket.word);
  if (before != nullptr) *before = Group::share(held);
  return ticket.status();
}

template <Scope scope, typename T>
RAILYARD_DEVICE Ticket Window::atomic(int rank, std::uint64_t offset, AtomicOp op, T operand, T compare) const {
  Ticket ticket;
  change_word<scope>(rank, offset, op, detail::word_type<T>(), detail::bits_as<Word>(operand),
                     detail::bits_as<Word>(compare), nullptr, ticket);
  return ticket;
}

template <Scope scope, typename T>
RAILYARD_DEVICE Status Window::fetch_atomic(int rank, std::uint64_t offset, AtomicOp op, T* before, T operand,
                                            T compare) const {
  Ticket ticket;
  Word held = 0;
  const Status status = change_word<scope>(rank, offset, op, detail::word_type<T>(), detail::bits_as<Word>(operand),
                                           detail::bits_as<Word>(compare), &held, ticket);
  if (status == Status::ok) *before = detail::bits_as<T>(held);
  return status;
}

}  // namespace railyard::device
