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

}  // namespace railyard::transport::wire
