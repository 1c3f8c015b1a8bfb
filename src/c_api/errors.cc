/// Status codes and the last error of each thread.
#include <cstdio>

#include "c_api/handles.hpp"
#include "railyard/channel.hpp"

namespace {

/// A fixed place, so that reporting a lack of memory needs none.
constexpr std::size_t kLongestError = 1024;
thread_local char last_error[kLongestError] = "";

template <typename Ours, typename Theirs>
constexpr bool same(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

using railyard::AtomicOp;
using railyard::Comparison;
using railyard::Completion;
using railyard::MemoryUse;
using railyard::Order;
using railyard::SignalOp;
using railyard::Status;
using railyard::WordType;

// The numbers of the C enumerations are the C++ ones: the calls cast between them.
static_assert(same(Status::ok, RY_OK) && same(Status::busy, RY_BUSY) && same(Status::timeout, RY_TIMEOUT) &&
              same(Status::invalid, RY_INVALID) && same(Status::out_of_range, RY_OUT_OF_RANGE) &&
              same(Status::not_found, RY_NOT_FOUND) && same(Status::unsupported, RY_UNSUPPORTED) &&
              same(Status::refused, RY_REFUSED) && same(Status::version_mismatch, RY_VERSION_MISMATCH) &&
              same(Status::peer_lost, RY_PEER_LOST) && same(Status::rail_failed, RY_RAIL_FAILED) &&
              same(Status::io, RY_IO) && same(Status::no_memory, RY_NO_MEMORY));
static_assert(same(Order::ordered, RY_ORDERED) && same(Order::relaxed, RY_RELAXED));
static_assert(same(Comparison::equal, RY_EQUAL) && same(Comparison::not_equal, RY_NOT_EQUAL) &&
              same(Comparison::less, RY_LESS) && same(Comparison::less_equal, RY_LESS_EQUAL) &&
              same(Comparison::greater, RY_GREATER) && same(Comparison::greater_equal, RY_GREATER_EQUAL));
static_assert(same(AtomicOp::add, RY_ADD) && same(AtomicOp::increment, RY_INCREMENT) &&
              same(AtomicOp::bit_and, RY_AND) && same(AtomicOp::bit_or, RY_OR) && same(AtomicOp::bit_xor, RY_XOR) &&
              same(AtomicOp::set, RY_SET) && same(AtomicOp::swap, RY_SWAP) &&
              same(AtomicOp::compare_swap, RY_COMPARE_SWAP) && same(AtomicOp::fetch, RY_FETCH) &&
              same(AtomicOp::min, RY_MIN) && same(AtomicOp::max, RY_MAX));
static_assert(same(WordType::int32, RY_INT32) && same(WordType::uint32, RY_UINT32) && same(WordType::int64, RY_INT64) &&
              same(WordType::uint64, RY_UINT64) && same(WordType::float32, RY_FLOAT) &&
              same(WordType::float64, RY_DOUBLE));
static_assert(same(SignalOp::add, RY_SIGNAL_ADD) && same(SignalOp::set, RY_SIGNAL_SET));
static_assert(same(Completion::local, RY_LOCAL) && same(Completion::remote, RY_REMOTE));
static_assert(same(MemoryUse::any, RY_FOR_ANY) && same(MemoryUse::sends, RY_FOR_SENDS));

}  // namespace

namespace railyard::c_api {

ry_status fail(const Error& error) noexcept {
  try {
    std::snprintf(last_error, sizeof(last_error), "%s", error.text().c_str());
  } catch (const std::exception&) {
    // No memory for the whole line: the word alone.
    std::snprintf(last_error, sizeof(last_error), "%s", to_string(error.status()));
  }
  return static_cast<ry_status>(error.status());
}

ry_status fail_invalid(const char* call, const char* what) noexcept {
  std::snprintf(last_error, sizeof(last_error), "%s: %s", call, what);
  return RY_INVALID;
}

ry_status fail_value(const char* call, const char* what, int value, const char* known) noexcept {
  std::snprintf(last_error, sizeof(last_error), "%s: there is no %s %d; there are %s", call, what, value, known);
  return RY_INVALID;
}

bool to_deadline(int64_t milliseconds, Deadline& deadline) noexcept {
  constexpr std::int64_t kMost = INT64_MAX / 1'000'000;
  if (milliseconds == RY_DEFAULT) {
    deadline = Deadline{};
  } else if (milliseconds == RY_NEVER || milliseconds > kMost) {
    deadline = Deadline::never();
  } else if (milliseconds >= 0) {
    deadline = Deadline::in(std::chrono::milliseconds(milliseconds));
  } else {
    return false;
  }
  return true;
}

}  // namespace railyard::c_api

extern "C" {

const char* ry_status_text(ry_status status) {
  if (status < RY_OK || status > RY_NO_MEMORY) return "unknown status";
  return railyard::to_string(static_cast<railyard::Status>(status));
}

const char* ry_error_text(void) { return last_error; }

const char* ry_version(void) { return RAILYARD_VERSION; }

}  // extern "C"
