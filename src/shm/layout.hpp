/// What lies where in an endpoint's shared-memory object. docs/shm.md draws it and says which line moves when.
///
/// An object belongs to the endpoint that receives in it. Each sender claims one ring; from then on that ring has one
/// producer and one consumer, so no lock and no counter is shared between senders. Every field names its only writer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace railyard::shm {

inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kPage = 4096;
/// "RYSHM" and the layout's number: a peer of another layout is refused.
inline constexpr std::uint64_t kMagic = 0x0000'004d'4853'5952;
inline constexpr std::uint32_t kLayoutVersion = 3;
inline constexpr std::size_t kMostNameBytes = 191;

/// Rings by size: the first senders get long ones, a crowd gets short ones, so that thousands cost little memory.
struct RingClass {
  std::uint32_t rings;
  std::uint32_t bytes;
};
inline constexpr std::array<RingClass, 3> kRingClasses{{{32, 256 * 1024}, {96, 64 * 1024}, {3968, 16 * 1024}}};
inline constexpr std::uint32_t kRings = 4096;

struct RingExtent {
  std::size_t offset;  ///< in the object
  std::uint32_t bytes;
};

/// Two words compared and exchanged as one: a ring's owner is known whole or not at all.
struct alignas(16) Owner {
  std::array<std::uint64_t, 2> words{};
  bool operator==(const Owner&) const = default;
  bool free() const { return words[0] == 0 && words[1] == 0; }
};

enum class ObjectState : std::uint32_t { open = 1, closed = 2 };

/// The first page.
struct ObjectHeader {
  // Written once, before the object gets its name.
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t rings;
  std::uint64_t bytes;
  std::array<std::uint8_t, 16> identity;
  std::uint64_t pid_namespace;
  std::uint64_t probe_address;  ///< where the owner's own copy of its identity lies in its address space
  std::int32_t pid;
  std::uint32_t can_sleep;  ///< the owner may sleep: a sender looks at `sleeping` after each record
  // Owner, once more, when it closes.
  alignas(kLine) std::atomic<std::uint32_t> state;
  // Owner, when it falls asleep and wakes; senders take it back to 0 when they ring the bell.
  alignas(kLine) std::atomic<std::uint32_t> sleeping;
  // Senders, when they claim or leave a ring: tells the owner to look at the table.
  alignas(kLine) std::atomic<std::uint32_t> news;
  std::atomic<std::uint32_t> highest_claim;  ///< one past the highest ring that was ever claimed
  alignas(kLine) std::array<char, kMostNameBytes + 1> name;
};
static_assert(sizeof(ObjectHeader) <= kPage);

/// One ring's bookkeeping, beside the table of owners.
struct RingControl {
  // Consumer: records it has freed since the claim. Written once for many records, and when there are no more.
  alignas(kLine) std::atomic<std::uint64_t> consumed;
  // Producer, from the claim to its end.
  alignas(kLine) std::atomic<std::uint32_t> ready;  ///< the fields below are valid
  std::atomic<std::uint32_t> left;                  ///< nothing more will come
  std::uint32_t claim;                              ///< the producer's own number for this claim
  std::int32_t pid;
  std::uint64_t pid_namespace;
  alignas(kLine) std::array<char, kMostNameBytes + 1> name;  ///< the sender's own
};
static_assert(sizeof(RingControl) == 5 * kLine);

inline constexpr std::size_t kOwnersOffset = kPage;
inline constexpr std::size_t kControlsOffset = kOwnersOffset + kRings * sizeof(Owner);
inline constexpr std::size_t kRingsOffset =
    (kControlsOffset + kRings * sizeof(RingControl) + kPage - 1) / kPage * kPage;

constexpr RingExtent ring_extent(std::uint32_t ring) {
  std::size_t offset = kRingsOffset;
  for (const RingClass& size : kRingClasses) {
    if (ring < size.rings) return {offset + std::size_t{ring} * size.bytes, size.bytes};
    ring -= size.rings;
    offset += std::size_t{size.rings} * size.bytes;
  }
  return {offset, 0};
}
inline constexpr std::size_t kObjectBytes = ring_extent(kRings).offset;
static_assert(ring_extent(kRings - 1).bytes != 0 && ring_extent(kRings).bytes == 0);

/// One line: what a record says. `word` is stored last and tells the consumer that the rest is there.
struct Record {
  static constexpr std::size_t kShort = 32;  ///< payload that fits in the line

  std::uint64_t word;
  std::uint32_t extent;  ///< see Extent
  std::uint32_t freed;   ///< of the way back: the lower half of how many records its producer may reuse
  std::array<std::uint64_t, 2> arguments;
  union {
    std::array<std::byte, kShort> payload;
    std::array<std::uint64_t, 4> more;  ///< of a record whose payload lies elsewhere
  };
};
static_assert(sizeof(Record) == kLine);

/// `Record::word`: kind, flags, and the record's number, which tells it from everything that lay there before.
struct Word {
  static constexpr std::uint8_t kInFirst = 0x80;  ///< a flag: the payload lies in the record's line
  static constexpr int kNumberBits = 48;          ///< a record each 10 ns for a month
  static constexpr std::uint64_t kNumberMask = (std::uint64_t{1} << kNumberBits) - 1;

  std::uint32_t bytes = 0;
  std::uint8_t kind = 0;
  std::uint8_t flags = 0;

  bool in_first() const { return (flags & kInFirst) != 0; }
  /// What it takes of the payload area.
  std::size_t lines() const { return in_first() ? 0 : (std::size_t{bytes} + kLine - 1) / kLine * kLine; }
  constexpr std::uint64_t pack(std::uint64_t number) const {
    return (number & kNumberMask) | std::uint64_t{kind} << kNumberBits | std::uint64_t{flags} << (kNumberBits + 8);
  }
  static constexpr std::uint64_t number_of(std::uint64_t word) { return word & kNumberMask; }
  static constexpr Word unpack(std::uint64_t word, std::uint32_t bytes) {
    return {bytes, static_cast<std::uint8_t>(word >> kNumberBits),
            static_cast<std::uint8_t>(word >> (kNumberBits + 8))};
  }
};

/// `Record::extent`: the payload's bytes, and of which ring `Record::freed` tells: the number that its producer gave it
/// when it claimed it. 0: of none.
struct Extent {
  static constexpr int kByteBits = 20;
  static constexpr std::uint32_t kByteMask = (1U << kByteBits) - 1;
  static constexpr std::uint32_t kClaims = 1U << (32 - kByteBits);

  static constexpr std::uint32_t pack(std::uint32_t bytes, std::uint32_t claim) { return bytes | claim << kByteBits; }
  static constexpr std::uint32_t bytes_of(std::uint32_t extent) { return extent & kByteMask; }
  static constexpr std::uint32_t claim_of(std::uint32_t extent) { return extent >> kByteBits; }
};

/// A quarter of a ring is records, the rest their payloads.
constexpr std::size_t records_bytes(std::size_t ring_bytes) { return ring_bytes / 4; }
constexpr std::size_t record_count(std::size_t ring_bytes) { return records_bytes(ring_bytes) / kLine; }
constexpr std::size_t data_ring_bytes(std::size_t ring_bytes) { return ring_bytes - records_bytes(ring_bytes); }
constexpr std::size_t whole_lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
/// The longest payload of one record: several fit, so that one is read while the next is written.
constexpr std::size_t most_payload(std::size_t ring_bytes) { return data_ring_bytes(ring_bytes) / 3; }
static_assert(most_payload(kRingClasses[0].bytes) <= Extent::kByteMask);

}  // namespace railyard::shm
