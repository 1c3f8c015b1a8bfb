#include "fabric/tcp/frames.hpp"

#include <cstring>

namespace railyard::fabric::tcp {

namespace {

constexpr std::uint8_t kLast = 1;
constexpr std::uint8_t kImmediate = 2;
constexpr std::uint8_t kPatient = 4;

struct WireFrame {
  std::uint8_t kind;
  std::uint8_t flags;
  std::uint16_t zero;
  std::uint32_t length;
  std::uint32_t number;
  std::uint32_t word;
  std::uint64_t key;
  std::uint64_t offset;
};
static_assert(sizeof(WireFrame) == Frame::kBytes);
// A header is copied as it is: both ends are little-endian.
static_assert(std::endian::native == std::endian::little);

bool fragment_makes_sense(const Frame& frame) {
  return frame.length <= kFragmentBytes && frame.rest() <= kMostWriteBytes && (frame.last || frame.length != 0);
}

bool makes_sense(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::message:
      return frame.last && frame.length <= kMostMessageBytes;
    case FrameKind::write:
      return fragment_makes_sense(frame) && (frame.last || !frame.immediate);
    case FrameKind::read_data:
      return fragment_makes_sense(frame);
    case FrameKind::read:
      return frame.length == 0 && frame.word <= kMostWriteBytes;
    case FrameKind::bind:
      return frame.length != 0 && frame.length <= kMostControlBytes;
    case FrameKind::acknowledge:
    case FrameKind::unbind:
      return frame.length == 0;
    case FrameKind::refuse:
      return frame.length == 0 && frame.word <= static_cast<std::uint32_t>(Refused::read_by_device);
    case FrameKind::bound:
      return frame.length == 0 && frame.word <= 1;
  }
  return false;
}

}  // namespace

[[gnu::hot]] void Frame::pack(std::span<std::byte, kBytes> bytes) const {
  const auto flags =
      static_cast<std::uint8_t>((last ? kLast : 0) | (immediate ? kImmediate : 0) | (patient ? kPatient : 0));
  const WireFrame wire{static_cast<std::uint8_t>(kind), flags, 0, length, number, word, key, offset};
  std::memcpy(bytes.data(), &wire, sizeof wire);
}

[[gnu::hot]] std::optional<Frame> Frame::parse(std::span<const std::byte, kBytes> bytes) {
  WireFrame wire;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled in the next line
  std::memcpy(&wire, bytes.data(), sizeof wire);
  Frame frame;
  frame.kind = static_cast<FrameKind>(wire.kind);
  frame.last = (wire.flags & kLast) != 0;
  frame.immediate = (wire.flags & kImmediate) != 0;
  frame.patient = (wire.flags & kPatient) != 0;
  frame.length = wire.length;
  frame.number = wire.number;
  frame.word = wire.word;
  frame.key = wire.key;
  frame.offset = wire.offset;
  if (wire.zero != 0 || (wire.flags & ~(kLast | kImmediate | kPatient)) != 0 || !makes_sense(frame))
    return std::nullopt;
  return frame;
}

}  // namespace railyard::fabric::tcp
