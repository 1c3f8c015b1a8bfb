/// Atomic operations on typed elements.
#pragma once

#include <array>
#include <cstddef>

#include "objects.hpp"

namespace railyard::provider {

inline constexpr std::size_t kMostAtomicBytes = 2048;
/// The key of an answer that lies in no registered memory.
inline constexpr std::uint64_t kNoKey = ~std::uint64_t{0};

enum class AtomicKind : std::uint8_t { plain, fetch, compare };

/// Applies the operation to `elements` at `target`; puts what was there before into `result`.
using AtomicFunction = void (*)(std::byte* target, const std::byte* operands, const std::byte* compares,
                                std::byte* result, std::size_t elements);

/// Null where the pair is not offered.
AtomicFunction find_atomic(AtomicKind kind, fi_datatype datatype, fi_op operation);
std::size_t datatype_bytes(fi_datatype datatype);

}  // namespace railyard::provider
