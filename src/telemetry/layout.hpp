/// The telemetry file: one per process, mapped by its owner, read by anybody of the same user at any time, also after
/// the owner was killed.
///
///     Header | groups | fields | records | values
///
/// A group is a kind of thing (a rail, a link) with the same fields for each; a record is one such thing: its labels,
/// and where its values begin. Every value is one aligned 64-bit word with one writer, stored whole, so that nothing
/// needs a lock; a histogram is a row of such words. The file describes itself: a reader takes the names, kinds and
/// places of the fields from it, so one of another version shows what it finds.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace railyard::telemetry {

inline constexpr std::array<char, 8> kMagic{'R', 'Y', 'T', 'E', 'L', 'E', 'M', '\n'};
/// Changes with the structures below, not with what is in them.
inline constexpr std::uint32_t kVersion = 1;

inline constexpr std::uint32_t kMostGroups = 16;
inline constexpr std::uint32_t kMostFields = 128;
inline constexpr std::uint32_t kMostRecords = 1024;
inline constexpr std::uint32_t kMostWords = 64 * 1024;

enum class Kind : std::uint8_t {
  counter = 1,    ///< only grows
  gauge = 2,      ///< a whole number, perhaps negative
  real = 3,       ///< a gauge: the bits of a double
  histogram = 4,  ///< count, sum, then buckets: those of `Buckets` or, by their number, of `Octaves`
};

struct Header {
  std::array<char, 8> magic{};  ///< written last: a file without it is not whole
  std::uint32_t version = 0;
  std::uint32_t bytes = 0;  ///< of the whole file
  std::uint32_t pid = 0;
  std::uint32_t reserved = 0;
  std::uint64_t started = 0;  ///< the kernel's start time of the process, in ticks since boot: pids come again
  std::int64_t opened = 0;    ///< wall clock, nanoseconds since 1970
  std::atomic<std::int64_t> published{0};  ///< wall clock of the last publish
  std::atomic<std::uint32_t> dropped{0};   ///< records that found no room
  std::atomic<std::int32_t> rank{-1};      ///< in its world; -1: none
  std::atomic<std::int32_t> size{0};
  std::uint32_t groups = 0;
  std::uint32_t fields = 0;
  std::uint32_t most_records = 0;
  std::uint32_t words = 0;
  std::uint32_t groups_at = 0;  ///< offsets in bytes
  std::uint32_t fields_at = 0;
  std::uint32_t records_at = 0;
  std::uint32_t values_at = 0;
  std::uint32_t record_bytes = 0;  ///< so that a later version may make entries longer
  std::uint32_t field_bytes = 0;
  std::uint32_t group_bytes = 0;
  std::array<char, 64> host{};
  std::array<char, 64> command{};
};

struct GroupEntry {
  std::array<char, 24> name{};
  std::uint32_t words = 0;
  std::uint32_t reserved = 0;
};

struct FieldEntry {
  std::array<char, 32> name{};
  std::array<char, 16> unit{};
  std::array<char, 96> help{};
  std::uint16_t group = 0;
  std::uint16_t word = 0;   ///< of the record's values
  std::uint16_t words = 0;  ///< 1, or those of a histogram
  Kind kind = Kind::counter;
  std::uint8_t reserved = 0;
};

struct RecordEntry {
  std::atomic<std::uint32_t> used{0};
  /// Changes when the entry is given to another thing: first `changed`, at the end this. A reader that copied entries
  /// while one was rewritten sees two different numbers, and leaves it out.
  std::atomic<std::uint32_t> generation{0};
  std::uint32_t group = 0;
  std::uint32_t at = 0;            ///< its first word among the values
  std::array<char, 172> labels{};  ///< "rail=0\tdevice=tcp eth0"
  std::atomic<std::uint32_t> changed{0};
};

static_assert(sizeof(GroupEntry) == 32 && sizeof(FieldEntry) == 152 && sizeof(RecordEntry) == 192);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(std::atomic<std::uint64_t>) == 8);

/// Buckets of a histogram: so many for each power of two.
template <std::uint32_t SubBits>
struct BucketsOf {
  static constexpr std::uint32_t kSubBits = SubBits;
  static constexpr std::uint32_t kSub = 1U << kSubBits;
  static constexpr std::uint32_t kMostBits = 40;  ///< 18 minutes in nanoseconds; more is counted in the last bucket
  static constexpr std::uint32_t kCount = (kMostBits - kSubBits + 1) * kSub;
  static constexpr std::uint32_t kWords = kCount + 2;  ///< with count and sum

  static constexpr std::uint32_t of(std::uint64_t value) {
    if (value < kSub) return static_cast<std::uint32_t>(value);
    const auto exponent = static_cast<std::uint32_t>(std::bit_width(value)) - 1U;
    if (exponent >= kMostBits) return kCount - 1;
    return (exponent - kSubBits + 1) * kSub + static_cast<std::uint32_t>(value >> (exponent - kSubBits)) - kSub;
  }
  /// The least value that is beyond the bucket.
  static constexpr std::uint64_t end_of(std::uint32_t bucket) {
    if (bucket < kSub) return bucket + 1U;
    const std::uint32_t exponent = bucket / kSub - 1 + kSubBits;
    return (std::uint64_t{bucket % kSub + kSub + 1}) << (exponent - kSubBits);
  }
};
/// A value is known to a quarter.
using Buckets = BucketsOf<2>;
/// Of what there may be hundreds of: a value is known to its power of two.
using Octaves = BucketsOf<0>;

}  // namespace railyard::telemetry
