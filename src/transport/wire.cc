#include "transport/wire.hpp"

namespace railyard::transport::wire {

std::optional<FrameHeader> parse_header(std::span<const std::byte> bytes) {
  FrameHeader header;
  if (bytes.size() < kRecordsAt) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic || header.version != kVersion || header.reserved != 0) return std::nullopt;
  if (header.bytes < kRecordsAt || header.bytes > bytes.size() || header.bytes > kFrameBytes) return std::nullopt;
  switch (header.kind) {
    case FrameKind::sequenced:
      return header.records > 0 ? std::optional(header) : std::nullopt;
    case FrameKind::acknowledge:
      return header.records == 0 ? std::optional(header) : std::nullopt;
    case FrameKind::notice:
      return header.records == 1 ? std::optional(header) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<RecordReader::Record> RecordReader::next() {
  if (left_ == 0) return std::nullopt;
  Record record;
  if (rest_.size() < sizeof record.header) {
    ok_ = false;
    left_ = 0;
    return std::nullopt;
  }
  std::memcpy(&record.header, rest_.data(), sizeof record.header);
  const std::size_t whole = record_bytes(record.header.length);
  if (rest_.size() < whole) {
    ok_ = false;
    left_ = 0;
    return std::nullopt;
  }
  const auto kind = static_cast<std::uint8_t>(record.header.kind);
  record.joined = (kind & kJoined) != 0;
  record.header.kind = static_cast<RecordKind>(kind & ~kJoined);
  record.body = rest_.subspan(sizeof record.header, record.header.length);
  rest_ = rest_.subspan(whole);
  --left_;
  return record;
}

}  // namespace railyard::transport::wire
