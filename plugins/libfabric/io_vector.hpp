/// A buffer of up to four entries.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "info.hpp"
#include "shm/copy.hpp"

namespace railyard::provider {

struct IoVector {
  std::array<iovec, kMostIov> list;  ///< the first `count`; the others are never looked at
  std::size_t count = 0;
  std::size_t bytes = 0;

  /// The first only: a short message is felt to take the others along.
  IoVector() { list[0] = {}; }
  IoVector(const IoVector& other) { *this = other; }
  IoVector& operator=(const IoVector& other) {
    count = other.count;
    bytes = other.bytes;
    list[0] = other.list[0];
    for (std::size_t index = 1; index < count; ++index) list[index] = other.list[index];
    return *this;
  }
  IoVector(const void* memory, std::size_t length) : count(1), bytes(length) {
    list[0] = {const_cast<void*>(memory), length};
  }
  IoVector(const iovec* iov, std::size_t iov_count) : count(std::min(iov_count, kMostIov)) {
    for (std::size_t index = 0; index < count; ++index) {
      list[index] = iov[index];
      bytes += iov[index].iov_len;
    }
  }

  /// [offset, offset + length) of these, which hold it.
  IoVector slice(std::size_t offset, std::size_t length) const {
    IoVector part;
    walk(offset, length, [&part](std::byte* entry, std::size_t bytes) {
      part.list[part.count++] = {entry, bytes};
      part.bytes += bytes;
    });
    return part;
  }
  void* front() const { return count != 0 ? list[0].iov_base : nullptr; }

  /// Copies [offset, offset + length) out of the entries.
  void gather(std::size_t offset, std::byte* to, std::size_t length) const {
    walk(offset, length, [&to](std::byte* entry, std::size_t part) {
      shm::copy_bytes(to, entry, part);
      to += part;
    });
  }
  /// Copies into [offset, offset + length); what lies beyond the entries is dropped.
  void scatter(std::size_t offset, const std::byte* from, std::size_t length) const {
    walk(offset, length, [&from](std::byte* entry, std::size_t part) {
      shm::copy_bytes(entry, from, part);
      from += part;
    });
  }

  /// Calls `each(address, bytes)` for the parts of [offset, offset + length).
  template <typename Each>
  void walk(std::size_t offset, std::size_t length, Each&& each) const {
    for (std::size_t index = 0; index < count && length != 0; ++index) {
      const iovec& entry = list[index];
      if (offset >= entry.iov_len) {
        offset -= entry.iov_len;
        continue;
      }
      const std::size_t part = std::min(length, entry.iov_len - offset);
      each(static_cast<std::byte*>(entry.iov_base) + offset, part);
      length -= part;
      offset = 0;
    }
  }
};

}  // namespace railyard::provider
