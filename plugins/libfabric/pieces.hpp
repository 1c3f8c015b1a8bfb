/// A buffer in up to four pieces.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "fabric/shm/copy.hpp"
#include "info.hpp"

namespace railyard::provider {

struct Pieces {
  std::array<iovec, kMostPieces> list;  ///< the first `count`; the others are never looked at
  std::size_t count = 0;
  std::size_t bytes = 0;

  /// The first only: a short message is felt to take the others along.
  Pieces() { list[0] = {}; }
  Pieces(const Pieces& other) { *this = other; }
  Pieces& operator=(const Pieces& other) {
    count = other.count;
    bytes = other.bytes;
    list[0] = other.list[0];
    for (std::size_t index = 1; index < count; ++index) list[index] = other.list[index];
    return *this;
  }
  Pieces(const void* memory, std::size_t length) : count(1), bytes(length) {
    list[0] = {const_cast<void*>(memory), length};
  }
  Pieces(const iovec* pieces, std::size_t pieces_count) : count(std::min(pieces_count, kMostPieces)) {
    for (std::size_t index = 0; index < count; ++index) {
      list[index] = pieces[index];
      bytes += pieces[index].iov_len;
    }
  }

  /// [offset, offset + length) of these, which hold it.
  Pieces slice(std::size_t offset, std::size_t length) const {
    Pieces part;
    walk(offset, length, [&part](std::byte* piece, std::size_t bytes) {
      part.list[part.count++] = {piece, bytes};
      part.bytes += bytes;
    });
    return part;
  }
  void* front() const { return count != 0 ? list[0].iov_base : nullptr; }

  /// Copies [offset, offset + length) out of the pieces.
  void gather(std::size_t offset, std::byte* to, std::size_t length) const {
    walk(offset, length, [&to](std::byte* piece, std::size_t part) {
      fabric::shm::copy_bytes(to, piece, part);
      to += part;
    });
  }
  /// Copies into [offset, offset + length); what lies beyond the pieces is dropped.
  void scatter(std::size_t offset, const std::byte* from, std::size_t length) const {
    walk(offset, length, [&from](std::byte* piece, std::size_t part) {
      fabric::shm::copy_bytes(piece, from, part);
      from += part;
    });
  }

  /// Calls `each(address, bytes)` for the parts of [offset, offset + length).
  template <typename Each>
  void walk(std::size_t offset, std::size_t length, Each&& each) const {
    for (std::size_t index = 0; index < count && length != 0; ++index) {
      const iovec& piece = list[index];
      if (offset >= piece.iov_len) {
        offset -= piece.iov_len;
        continue;
      }
      const std::size_t part = std::min(length, piece.iov_len - offset);
      each(static_cast<std::byte*>(piece.iov_base) + offset, part);
      length -= part;
      offset = 0;
    }
  }
};

}  // namespace railyard::provider
