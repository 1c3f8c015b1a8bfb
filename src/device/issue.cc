#include "device/issue.hpp"

#include <fmt/format.h>

#include <cstring>

namespace railyard::device_detail {

using device::Operation;

static_assert(static_cast<int>(device::Comparison::greater_equal) == static_cast<int>(Comparison::greater_equal));
static_assert(static_cast<int>(device::SignalOp::set) == static_cast<int>(SignalOp::set));
static_assert(static_cast<int>(device::AtomicOp::max) == static_cast<int>(AtomicOp::max));
static_assert(static_cast<int>(device::WordType::float64) == static_cast<int>(WordType::float64));

const char* to_string(Operation operation) {
  static constexpr const char* kNames[] = {
      "none", "put",    "put_signal",   "put_counter", "put_signal_counter", "put_value", "signal", "fence",
      "get",  "atomic", "fetch_atomic", "wait_signal", "wait_counter",       "wait",      "quiet",  "barrier"};
  const auto index = static_cast<std::size_t>(operation);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

Result<void> check(const Command& command) {
  const char* const name = to_string(command.operation);
  const auto wrong = [&](std::string what) {
    return Error(Status::invalid, std::move(what), {.peer = static_cast<int>(command.rank), .operation = name});
  };
  const Operation operation = command.operation;
  if (operation == Operation::none || operation > Operation::fetch_atomic) {
    return wrong(fmt::format("a command with the unknown operation {}", static_cast<int>(operation)));
  }
  const bool signals = operation == Operation::put_signal || operation == Operation::put_signal_counter ||
                       operation == Operation::signal;
  const bool counts = operation == Operation::put_counter || operation == Operation::put_signal_counter;
  if (command.has_signal != signals || command.has_counter != counts) {
    return wrong(fmt::format("a command {} {} a signal and {} a counter", name, command.has_signal ? "with" : "without",
                             command.has_counter ? "with" : "without"));
  }
  if (command.is_inline && command.inline_bytes > device::detail::kInlineBytes) {
    return wrong(
        fmt::format("a command with {} bytes inside; {} fit", command.inline_bytes, device::detail::kInlineBytes));
  }
  if (operation == Operation::put_value && (!command.is_inline || command.inline_bytes > 8)) {
    return wrong("a put_value with no value of 1 to 8 bytes");
  }
  if (operation == Operation::fetch_atomic && command.signal_index >= device::detail::kMostFetches) {
    return wrong(fmt::format("a fetch_atomic with its result at {}; there are {}", command.signal_index,
                             device::detail::kMostFetches));
  }
  return {};
}

namespace {

Result<Ticket> issue_atomic(Window& window, const Command& command, Word* before) {
  const auto op = static_cast<AtomicOp>(command.counter_index & 0xff);
  const auto type = static_cast<WordType>(command.counter_index >> 8 & 0xff);
  if (before != nullptr) *before = 0;  // of a word of four bytes half is written
  return window.atomic_word(static_cast<int>(command.rank), command.offset, op, type, command.signal_value,
                            command.counter_value, before);
}

}  // namespace

Result<Ticket> issue(Window& window, const SharedMemory& memory, std::uint32_t ring, const Command& command,
                     Payload& payload) {
  if (auto checked = check(command); !checked) return std::move(checked.error());
  const auto rank = static_cast<int>(command.rank);
  if (command.operation == Operation::fence) {
    auto fenced = command.rank == device::detail::kEveryRank ? window.fence() : window.fence(rank);
    return fenced ? Result<Ticket>(Ticket{}) : Result<Ticket>(std::move(fenced.error()));
  }
  std::size_t bytes = command.bytes;
  const std::byte* source = nullptr;
  if (command.is_inline) {
    std::memcpy(payload.data(), command.payload, payload.size());
    source = payload.data();
    bytes = command.inline_bytes;
  } else if (command.source != 0) {
    source = memory.host_address(command.source);
  }
  const SignalUpdate signal{command.signal_index, command.signal_value, static_cast<SignalOp>(command.signal_op)};
  const CounterUpdate counter{command.counter_index, command.counter_value};
  switch (command.operation) {
    case Operation::put:
      return window.put(rank, command.offset, source, bytes);
    case Operation::get:
      return window.get(rank, command.offset, memory.host_address(command.source), bytes);
    case Operation::atomic:
      return issue_atomic(window, command, nullptr);
    case Operation::fetch_atomic:
      return issue_atomic(window, command, memory.fetched(ring, command.signal_index));
    case Operation::put_value:
      return window.put_value(rank, command.offset, source, bytes);
    case Operation::put_signal:
      return window.put_signal(rank, command.offset, source, bytes, signal);
    case Operation::put_counter:
      return window.put_counter(rank, command.offset, source, bytes, counter);
    case Operation::put_signal_counter:
      return window.put_signal_counter(rank, command.offset, source, bytes, signal, counter);
    default:
      return window.signal(rank, signal);
  }
}

}  // namespace railyard::device_detail
