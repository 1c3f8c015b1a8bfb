/// What travels between engines: frames of records on the control lane, and the 32-bit immediate of a chunk write.
/// Fixed width, little-endian, versioned; region ids and offsets, never pointers (promise 9).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>

#include "railyard/operations.hpp"

namespace railyard::transport::wire {

static_assert(std::endian::native == std::endian::little, "wire structs are stored as they lie in memory");

inline constexpr std::uint8_t kMagic = 0x52;
inline constexpr std::uint8_t kVersion = 3;
/// The longest frame. Receive buffers have this size.
inline constexpr std::size_t kFrameBytes = 4096;

enum class FrameKind : std::uint8_t {
  sequenced = 1,    ///< records that take effect in sequence
  acknowledge = 2,  ///< the header alone; outside the sequence, may be lost
  notice = 3,       ///< one record about the links between the two; outside the sequence, may be lost or come twice
};

struct FrameHeader {
  std::uint8_t magic = kMagic;
  std::uint8_t version = kVersion;
  FrameKind kind = FrameKind::sequenced;
  std::uint8_t reserved = 0;
  std::uint16_t flow = 0;  ///< the receiver's id of this flow
  std::uint16_t records = 0;
  std::uint64_t session = 0;  ///< what both ends agreed on: neither a restarted peer nor a guess matches
  std::uint32_t sequence = 0;
  std::uint32_t acknowledged = 0;  ///< every segment below this has taken effect at the sender of this frame
  std::uint32_t limit = 0;         ///< the receiver of this frame may send segments below this
  std::uint32_t bytes = 0;         ///< of the frame, header included
};
static_assert(sizeof(FrameHeader) == 32);
/// Records start on an 8-byte boundary.
inline constexpr std::size_t kRecordsAt = sizeof(FrameHeader);

enum class RecordKind : std::uint8_t {
  put = 1,
  signal = 2,
  atomic = 3,
  reply = 4,
  // In notices only.
  ping = 5,    ///< answer me: sent on the link it is about
  pong = 6,    ///< the answer, on any link
  fence = 7,   ///< shut out this link's epoch and all before it
  fenced = 8,  ///< done; what has arrived is in the body
  leave = 9,   ///< this process closes its world
  lost = 10,   ///< a third process seems to be gone: see for yourself
  // In sequenced frames again.
  message = 11,  ///< for whoever uses the flow
  // In notices.
  refused = 12,    ///< operations that the sender of this has refused to apply, oldest first: RefusedRecords
  confirmed = 13,  ///< the answer: known up to and including that one
  // In sequenced frames.
  nothing = 14,  ///< in place of what failed at its origin
};
/// Set in a record's kind: it belongs to the same operation as the record before it.
inline constexpr std::uint8_t kJoined = 0x80;

/// `detail`, `number` and `word` mean something else for each kind. Nobody reads or writes them here: each kind has a
/// struct below (Put, Signal, ...; a message's are its user's, message/wire.hpp), which knows what stands where.
struct RecordHeader {
  RecordKind kind = RecordKind::put;
  std::uint8_t detail = 0;
  std::uint16_t length = 0;  ///< of the body that follows, before padding to 8
  std::uint32_t number = 0;
  std::uint64_t word = 0;
};
static_assert(sizeof(RecordHeader) == 16);
constexpr RecordHeader joined(RecordHeader record, bool joined = true) {
  if (joined) record.kind = static_cast<RecordKind>(static_cast<std::uint8_t>(record.kind) | kJoined);
  return record;
}

/// Which link a notice is about, in the terms of the side that sends on it.
struct LinkEnds {
  std::uint16_t link = 0;         ///< its index at the sender
  std::uint16_t rail = 0;         ///< the sender's rail
  std::uint16_t remote_rail = 0;  ///< the target's rail

  constexpr std::uint64_t pack() const {
    return link | (std::uint64_t{rail} << 16U) | (std::uint64_t{remote_rail} << 32U);
  }
  static constexpr LinkEnds unpack(std::uint64_t word) {
    return {static_cast<std::uint16_t>(word), static_cast<std::uint16_t>(word >> 16U),
            static_cast<std::uint16_t>(word >> 32U)};
  }
};

// What a record's header says, kind by kind. `header` writes it, `of` reads it.

struct Put {
  std::uint32_t exposed_region = 0;
  std::uint64_t offset = 0;

  constexpr RecordHeader header(std::size_t length) const {
    return {RecordKind::put, 0, static_cast<std::uint16_t>(length), exposed_region, offset};
  }
  static constexpr Put of(const RecordHeader& record) { return {record.number, record.word}; }
};

struct Signal {
  std::uint32_t exposed_region = 0;
  std::uint64_t index = 0;
  SignalOp op = SignalOp::add;  ///< from the wire: any value

  constexpr RecordHeader header() const {
    return {RecordKind::signal, static_cast<std::uint8_t>(op), sizeof(std::uint64_t), exposed_region, index};
  }
  static constexpr Signal of(const RecordHeader& record) {
    return {record.number, record.word, static_cast<SignalOp>(record.detail)};
  }
};

struct Atomic {
  std::uint32_t exposed_region = 0;
  std::uint64_t offset = 0;
  std::uint8_t code = 0;  ///< atomic_code

  constexpr RecordHeader header(std::size_t length) const {
    return {RecordKind::atomic, code, static_cast<std::uint16_t>(length), exposed_region, offset};
  }
  static constexpr Atomic of(const RecordHeader& record) { return {record.number, record.word, record.detail}; }
};

struct Answer {  ///< to a fetch
  std::uint32_t request = 0;
  std::uint8_t cause = 0;  ///< a FailureCause

  constexpr RecordHeader header() const { return {RecordKind::reply, cause, sizeof(std::uint64_t), request, 0}; }
  static constexpr Answer of(const RecordHeader& record) { return {record.number, record.detail}; }
};

struct Ping {
  std::uint32_t round = 0;
  LinkEnds ends;
  bool in_reply = false;  ///< it came about because of a ping
  bool thorough = false;  ///< to be answered when all that came before it has been read

  constexpr RecordHeader header() const {
    const int flags = (in_reply ? kInReply : 0) | (thorough ? kThorough : 0);
    return {RecordKind::ping, static_cast<std::uint8_t>(flags), 0, round, ends.pack()};
  }
  static constexpr Ping of(const RecordHeader& record) {
    return {record.number, LinkEnds::unpack(record.word), (record.detail & kInReply) != 0,
            (record.detail & kThorough) != 0};
  }

 private:
  static constexpr int kInReply = 1;
  static constexpr int kThorough = 2;
};

struct Pong {
  std::uint32_t round = 0;
  LinkEnds ends;  ///< the ping's

  constexpr RecordHeader header() const { return {RecordKind::pong, 0, 0, round, ends.pack()}; }
  static constexpr Pong of(const RecordHeader& record) { return {record.number, LinkEnds::unpack(record.word)}; }
};

struct Fence {
  std::uint32_t epoch = 0;
  LinkEnds ends;
  std::uint8_t cause = 0;  ///< a LossCause

  constexpr RecordHeader header() const { return {RecordKind::fence, cause, 0, epoch, ends.pack()}; }
  static constexpr Fence of(const RecordHeader& record) {
    return {record.number, LinkEnds::unpack(record.word), record.detail};
  }
};

struct Fenced {
  std::uint32_t epoch = 0;
  LinkEnds ends;

  constexpr RecordHeader header(std::size_t length) const {
    return {RecordKind::fenced, 0, static_cast<std::uint16_t>(length), epoch, ends.pack()};
  }
  static constexpr Fenced of(const RecordHeader& record) { return {record.number, LinkEnds::unpack(record.word)}; }
};

struct Leave {
  bool answer = false;  ///< the peer's goodbye was heard

  constexpr RecordHeader header() const { return {RecordKind::leave, static_cast<std::uint8_t>(answer), 0, 0, 0}; }
  static constexpr Leave of(const RecordHeader& record) { return {record.detail != 0}; }
};

struct Lost {
  std::uint64_t rank = 0;

  constexpr RecordHeader header() const { return {RecordKind::lost, 0, 0, 0, rank}; }
  static constexpr Lost of(const RecordHeader& record) { return {record.word}; }
};

struct Refused {
  static constexpr RecordHeader header(std::size_t length) {
    return {RecordKind::refused, 0, static_cast<std::uint16_t>(length), 0, 0};
  }
};

struct Confirmed {
  std::uint64_t known = 0;  ///< RefusedRecords::pack of the last

  constexpr RecordHeader header() const { return {RecordKind::confirmed, 0, 0, 0, known}; }
  static constexpr Confirmed of(const RecordHeader& record) { return {record.word}; }
};

/// In place of what failed at its origin.
struct Nothing {
  bool and_first = false;  ///< the first operation of frame `sequence` has failed too
  std::uint32_t sequence = 0;

  constexpr RecordHeader header() const {
    return {RecordKind::nothing, 0, 0, static_cast<std::uint32_t>(and_first), sequence};
  }
  static constexpr Nothing of(const RecordHeader& record) {
    return {record.number != 0, static_cast<std::uint32_t>(record.word)};
  }
};

/// For the flow's Inbox. `failed`: the write that it follows has failed at its origin; it counts, and says nothing
/// else.
struct Message {
  std::uint8_t kind = 0;
  std::uint32_t number = 0;
  std::uint64_t word = 0;
  bool failed = false;

  constexpr RecordHeader header(std::size_t length) const {
    return {RecordKind::message, static_cast<std::uint8_t>(kind | (failed ? kFailed : 0)),
            static_cast<std::uint16_t>(length), number, word};
  }
  static constexpr Message of(const RecordHeader& record) {
    return {static_cast<std::uint8_t>(record.detail & ~kFailed), record.number, record.word,
            (record.detail & kFailed) != 0};
  }
  static constexpr void fail(RecordHeader& record) { record.detail |= kFailed; }

 private:
  static constexpr std::uint8_t kFailed = 0x80;
};

/// Body of a `fenced` record: which segments have arrived, after the fence.
struct FencedBody {
  std::uint32_t next = 0;   ///< every segment below this has taken effect
  std::uint32_t words = 0;  ///< that follow, 64 segments each, the lowest bit of the first is `next`
};
static_assert(sizeof(FencedBody) == 8);

/// Part of the body of a `refused` record: a run of records of one frame.
struct RefusedRecords {
  std::uint32_t sequence = 0;  ///< of the frame
  std::uint16_t first = 0;     ///< record in the frame
  std::uint16_t count = 0;
  std::uint8_t cause = 0;  ///< a FailureCause
  std::uint8_t reserved[3] = {};

  constexpr std::uint64_t pack() const { return sequence | (std::uint64_t{first} << 32U); }
};
static_assert(sizeof(RefusedRecords) == 12);

/// How an atomic reads its word.
enum class WordKind : std::uint8_t { bits = 0, signed_integer = 1, floating = 2 };
/// Detail of an atomic: the AtomicOp in the low half, the WordKind in the high one. There is one code for each thing
/// that can be done: what does not depend on how the word is read has `bits`.
constexpr std::uint8_t atomic_code(std::uint8_t op, WordKind kind) {
  return static_cast<std::uint8_t>(op | (static_cast<unsigned>(kind) << 4U));
}

struct AtomicBody {
  std::uint64_t operand = 0;
  std::uint64_t compare = 0;
  std::uint32_t request = 0;  ///< 0: no reply wanted
  std::uint32_t width = 0;    ///< 4 or 8
};
static_assert(sizeof(AtomicBody) == 24);

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7U) & ~std::size_t{7}; }
constexpr std::size_t record_bytes(std::size_t body) { return sizeof(RecordHeader) + padded(body); }

/// The 32-bit immediate of a chunk write: kind 3 | flow 16 | sequence 13.
struct Immediate {
  static constexpr unsigned kSequenceBits = 13;
  static constexpr std::uint32_t kSequenceMask = (1U << kSequenceBits) - 1U;
  static constexpr std::uint32_t kChunk = 1;

  std::uint32_t kind = kChunk;
  std::uint16_t flow = 0;
  std::uint32_t sequence = 0;  ///< the low 13 bits

  constexpr std::uint32_t pack() const {
    return (kind << 29U) | (std::uint32_t{flow} << kSequenceBits) | (sequence & kSequenceMask);
  }
  static constexpr Immediate unpack(std::uint32_t word) {
    return {word >> 29U, static_cast<std::uint16_t>(word >> kSequenceBits), word & kSequenceMask};
  }
};
/// Half the sequence space of an immediate: more segments than this are never outstanding on a flow.
inline constexpr std::uint32_t kMaxWindow = 1U << (Immediate::kSequenceBits - 1U);

/// The longest notice: a whole window's arrivals.
inline constexpr std::size_t kNoticeBytes = kRecordsAt + record_bytes(sizeof(FencedBody) + kMaxWindow / 8U);

/// The header of the frame that `bytes` hold, where it lies; null: they do not hold a whole, well-formed frame of our
/// version. They begin on an 8-byte boundary.
inline const FrameHeader* parse_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kRecordsAt) return nullptr;
  const auto* const header = reinterpret_cast<const FrameHeader*>(bytes.data());
  if (header->magic != kMagic || header->version != kVersion || header->reserved != 0) return nullptr;
  if (header->bytes < kRecordsAt || header->bytes > bytes.size() || header->bytes > kFrameBytes) return nullptr;
  // One after the other, the most frequent first: a switch asks in an order of its own.
  if (header->kind == FrameKind::sequenced) return header->records > 0 ? header : nullptr;
  if (header->kind == FrameKind::acknowledge) return header->records == 0 ? header : nullptr;
  return header->kind == FrameKind::notice && header->records == 1 ? header : nullptr;
}

/// Walks the records of a frame whose header passed. Never reads outside the frame, whatever it holds.
class RecordReader {
 public:
  explicit RecordReader(const FrameHeader& header)
      : at_(reinterpret_cast<const std::byte*>(&header) + kRecordsAt),
        bytes_(header.bytes - kRecordsAt),
        left_(header.records) {}
  /// From the record of that index on, which another reader has found there.
  RecordReader(const FrameHeader& header, const std::byte* at, std::uint32_t index)
      : at_(at),
        bytes_(header.bytes - static_cast<std::size_t>(at - reinterpret_cast<const std::byte*>(&header))),
        left_(header.records - index) {}

  struct Record {
    RecordHeader header;
    std::span<const std::byte> body;
    bool joined = false;  ///< to the record before
  };
  /// The next record. False: at the end, or at the first malformed one (then `ok` is false).
  bool next(Record& record) {
    if (left_ == 0) return false;
    if (bytes_ < sizeof(RecordHeader)) return end();
    // Field by field, so that a record which is applied at once is never written down.
    const auto& header = *reinterpret_cast<const RecordHeader*>(at_);
    const std::uint16_t length = header.length;
    const std::size_t whole = record_bytes(length);
    if (bytes_ < whole) return end();
    const auto kind = static_cast<std::uint8_t>(header.kind);
    record.header.kind = static_cast<RecordKind>(kind & ~kJoined);
    record.header.detail = header.detail;
    record.header.length = length;
    record.header.number = header.number;
    record.header.word = header.word;
    record.joined = (kind & kJoined) != 0;
    record.body = {at_ + sizeof(RecordHeader), length};
    at_ += whole;
    bytes_ -= whole;
    --left_;
    return true;
  }
  bool ok() const { return ok_; }
  /// Where the next record begins, and how many there are from it on.
  const std::byte* at() const { return at_; }
  std::uint32_t left() const { return left_; }

 private:
  bool end() {
    ok_ = false;
    left_ = 0;
    return false;
  }

  const std::byte* at_;
  std::size_t bytes_;
  std::uint32_t left_;
  bool ok_ = true;
};

/// Most bodies are one word, which needs no call.
inline void copy_body(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == sizeof(std::uint64_t)) {
    std::memcpy(to, from, sizeof(std::uint64_t));
  } else {
    std::memcpy(to, from, bytes);
  }
}

/// Appends records to a frame under construction. The caller checks `room` first.
class FrameWriter {
 public:
  static void begin(std::byte* frame) {
    const FrameHeader header{};
    std::memcpy(frame, &header, sizeof header);
  }
  /// Adds a record and returns where its body goes.
  static std::byte* append(std::byte* frame, std::uint32_t& used, const RecordHeader& record) {
    std::byte* at = frame + used;
    ::new (static_cast<void*>(at)) RecordHeader(record);
    const std::size_t body = padded(record.length);
    if (body != record.length) std::memset(at + sizeof record + body - 8, 0, 8);  // no stale bytes in the padding
    used += static_cast<std::uint32_t>(sizeof record + body);
    return at + sizeof record;
  }
};

}  // namespace railyard::transport::wire
