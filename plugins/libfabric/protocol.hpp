/// What the records between two endpoints say. docs/shm.md has the table.
#pragma once

#include <cstddef>
#include <cstdint>

namespace railyard::provider {

/// Record kinds. `arguments` are named in order; `more` only where the payload begins at the second line.
enum Kind : std::uint8_t {
  kMessage = 1,  ///< arguments: 0, data. more: total, handle
  kTagged,       ///< arguments: tag, data. more: total, handle
  kMore,         ///< arguments: handle, offset: the next bytes of a message or write
  kGrant,        ///< arguments: handle: the receive is there, send the rest
  kDone,         ///< arguments: handle, error: the operation has taken effect at the target
  kWrite,        ///< arguments: address, key. more: total, handle, data
  kRead,         ///< arguments: address, key. more: bytes, handle
  kAnswer,       ///< arguments: handle, offset: bytes read, or the result of an atomic
  kAtomic,       ///< arguments: address, key. more: bytes, handle, data; datatype, operation, elements
  kRefused,      ///< arguments: handle (0: it had none), error and kind: a write or atomic that the target did not do
};

// Record flags.
inline constexpr std::uint8_t kHasData = 1;    ///< a remote completion datum comes with it
inline constexpr std::uint8_t kSeveral = 2;    ///< the first of several records: `more` holds total and handle
inline constexpr std::uint8_t kWantsDone = 4;  ///< `more` holds the handle to be named in a kDone
inline constexpr std::uint8_t kFetches = 8;    ///< an atomic whose result comes back
inline constexpr std::uint8_t kCompares = 16;  ///< an atomic with a comparand behind its operand
inline constexpr std::uint8_t kPart = 32;  ///< of a write or read to several places, all but the last: counts nothing

/// A bit of handles that name a message cut in chunks without a transfer behind it: nothing is ever answered to them.
inline constexpr std::uint64_t kCut = std::uint64_t{1} << 63;

/// The second argument of kRefused: an error number, and whether it was an atomic.
inline constexpr std::uint64_t kErrorBits = 0xffff;
inline constexpr std::uint64_t kWasAtomic = 0x1'0000;

/// The longest payload of one record. Longer ones are cut, so that the receiver copies one chunk while the next is
/// written; both fit in the nearest caches.
inline constexpr std::size_t kChunk = 8192;
/// The same for a message in one buffer.
inline constexpr std::size_t kOneBufferChunk = 2048;
/// How much of a payload is asked for at once before it is copied.
inline constexpr std::size_t kPrefetched = 2048;
/// Of a longer message this much is sent before its receive is known; it is what an unexpected one costs in memory.
inline constexpr std::size_t kEager = 64 * 1024;

}  // namespace railyard::provider
