/// What travels over a connection once it is admitted: a header of fixed size, and for some kinds a payload.
///
/// Both directions of a connection are alike. An operation longer than `kFragmentBytes` is cut into several frames, so
/// that a message posted meanwhile waits for one of them at most. Numbers are those of the side that asked.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace railyard::fabric::tcp {

inline constexpr std::size_t kMostMessageBytes = std::size_t{64} << 10U;
inline constexpr std::size_t kMostWriteBytes = std::size_t{1} << 30U;
inline constexpr std::size_t kFragmentBytes = std::size_t{256} << 10U;
inline constexpr std::size_t kMostControlBytes = 64;

enum class FrameKind : std::uint8_t {
  message = 1,  ///< payload: goes into a posted receive
  write,        ///< payload: goes to `offset` of the region `key`
  read,         ///< asks for `word` bytes at `offset` of the region `key`
  read_data,    ///< payload: the next bytes of the read `number`
  acknowledge,  ///< all writes up to `number` have landed, those refused aside
  refuse,       ///< the write or read `number` was refused: `word` says which it is, and why (a Refused)
  bind,         ///< payload: the tag of a link that uses this connection from now on
  bound,        ///< the answer to it: `word` is 0, or 1 for no
  unbind,       ///< the sender's link uses it no longer
};

/// No such key or range; or a GPU of the target did not make the copy.
enum class Refused : std::uint32_t { write, read, write_by_device, read_by_device };

struct Frame {
  FrameKind kind = FrameKind::message;
  bool last = false;       ///< of the frames of one operation
  bool immediate = false;  ///< with the last frame of a write: `word` is its immediate
  bool patient = false;    ///< of a write: its acknowledgement may wait for something to ride on
  std::uint32_t length = 0;
  std::uint32_t number = 0;
  std::uint32_t word = 0;  ///< of a fragment that is not the last: how many bytes follow it
  std::uint64_t key = 0;
  std::uint64_t offset = 0;

  static constexpr std::size_t kBytes = 32;

  void pack(std::span<std::byte, kBytes> bytes) const;
  /// Nothing: no frame that this library would write. The connection is not to be trusted any further.
  static std::optional<Frame> parse(std::span<const std::byte, kBytes> bytes);
  /// Bytes of the operation in this frame and behind it.
  std::uint64_t rest() const { return last ? length : std::uint64_t{length} + word; }
};

}  // namespace railyard::fabric::tcp
