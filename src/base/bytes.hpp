/// Set-up messages as bytes: little-endian, fixed-width, bounds-checked. Every set-up message is made and read by
/// these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard {

class ByteWriter {
 public:
  void u8(std::uint8_t value) { bytes_.push_back(std::byte{value}); }
  void u16(std::uint16_t value) { little_endian(value, 2); }
  void u32(std::uint32_t value) { little_endian(value, 4); }
  void u64(std::uint64_t value) { little_endian(value, 8); }
  void i32(std::int32_t value) { u32(static_cast<std::uint32_t>(value)); }
  void i64(std::int64_t value) { u64(static_cast<std::uint64_t>(value)); }
  /// The bytes alone: the reader must know how many.
  void raw(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  /// A 32-bit length and the bytes.
  void blob(std::span<const std::byte> bytes) {
    u32(static_cast<std::uint32_t>(bytes.size()));
    raw(bytes);
  }
  void text(std::string_view text) { blob(std::as_bytes(std::span(text.data(), text.size()))); }

  std::size_t size() const noexcept { return bytes_.size(); }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  /// The bytes written so far; leaves the writer empty.
  std::vector<std::byte> take() { return std::exchange(bytes_, {}); }

 private:
  void little_endian(std::uint64_t value, int width) {
    for (int i = 0; i < width; ++i) u8(static_cast<std::uint8_t>(value >> (8 * i)));
  }

  std::vector<std::byte> bytes_;
};

/// Reads what ByteWriter wrote. Never reads past its end: from the first read that would, `ok()` is false and every
/// value is zero or empty, so a parser may read a whole message and check once. Returned spans refer to the memory read
/// from.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  std::uint8_t u8() { return static_cast<std::uint8_t>(little_endian(1)); }
  std::uint16_t u16() { return static_cast<std::uint16_t>(little_endian(2)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(little_endian(4)); }
  std::uint64_t u64() { return little_endian(8); }
  std::int32_t i32() { return static_cast<std::int32_t>(u32()); }
  std::int64_t i64() { return static_cast<std::int64_t>(u64()); }

  std::span<const std::byte> raw(std::size_t count) {
    if (!ok_ || count > rest_.size()) {
      fail();
      return {};
    }
    const auto bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return bytes;
  }
  /// A length and that many bytes; a length over `most` is a failure.
  std::span<const std::byte> blob(std::size_t most = SIZE_MAX) {
    const std::size_t count = u32();
    if (count > most) {
      fail();
      return {};
    }
    return raw(count);
  }
  std::string text(std::size_t most = SIZE_MAX) {
    const auto bytes = blob(most);
    return bytes.empty() ? std::string() : std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  /// False from the first read that found too little.
  bool ok() const noexcept { return ok_; }
  std::size_t remaining() const noexcept { return rest_.size(); }
  /// Everything was read and nothing was missing: what a parser asks at the end of a message.
  bool done() const noexcept { return ok_ && rest_.empty(); }
  /// Lets a parser that finds a senseless value fail the whole message.
  void fail() noexcept {
    ok_ = false;
    rest_ = {};
  }

 private:
  std::uint64_t little_endian(std::size_t width) {
    std::uint64_t value = 0;
    const auto bytes = raw(width);
    for (std::size_t i = 0; i < bytes.size(); ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    return value;
  }

  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace railyard
