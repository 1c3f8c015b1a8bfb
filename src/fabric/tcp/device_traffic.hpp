/// Memory of GPUs on a tcp rail. The processor never touches it, and the kernel's sockets cannot: bytes pass through
/// pinned buffers at both ends, and a GPU copies between these and its memory while polls go on.
///
/// The two directions have a queue and buffers each. Buffers for what arrives are always given back, since a copy to
/// the GPU needs nobody else; those for what leaves wait for the peer to read. Shared, two rails that send to each
/// other could hold all of them and wait for ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fabric/device_copies.hpp"
#include "fabric/rail.hpp"

namespace railyard::fabric::tcp {

struct Connection;

/// A copy between device memory and a pinned buffer.
struct DeviceCopy {
  DeviceCopies::Ticket ticket;
  std::byte* bounce = nullptr;     ///< null: there is nothing to copy, or the GPU took no copy
  std::uint64_t key = 0;           ///< the region that a peer reads or writes
  PostContext* context = nullptr;  ///< of our own write or read
  LinkTag link = {};               ///< of the peer's write
};

/// A fragment that is copied ahead of its turn on the wire.
struct Fetch : DeviceCopy {
  std::uint32_t bytes = 0;
  std::uint32_t number = 0;  ///< of the peer's read
};

/// A write that has arrived whole, as its sender and the engine are told.
struct ArrivedWrite {
  std::uint32_t number = 0;
  std::uint32_t word = 0;
  std::size_t last_bytes = 0;  ///< of the frame that completed it
  std::size_t bytes = 0;
  bool immediate = false;
  bool patient = false;
};

/// Bytes that have arrived and are not told of yet: they, or some before them, are on their way into device memory.
struct Landing : DeviceCopy {
  bool copies = false;  ///< to device memory; false: it only waits for those before it
  bool last = true;     ///< of the operation
  ArrivedWrite write;   ///< where `context` is null
};

/// What a rail that has to do with device memory keeps for it; others have none.
struct DeviceTraffic {
  static constexpr std::size_t kMostBounces = 16;  ///< in each direction
  static constexpr std::size_t kMostDevices = 128;

  DeviceCopies to_host{kMostBounces};
  DeviceCopies to_device{kMostBounces};
  std::vector<Connection*> fetching;  ///< those with fetches, and those that would have some
  std::vector<Connection*> landing;   ///< those with landings
  /// Under way while nobody waits for what they bring: their connection is gone. Their memory is still being touched.
  std::vector<std::pair<DeviceCopies*, DeviceCopy>> draining;
  std::size_t landing_copies = 0;  ///< under way to device memory, or not yet known to be done
  std::uint64_t buffers_taken = 0;
};

/// How `LocalChunk::descriptor` says which GPU's memory it is; null: the host's.
inline void* device_descriptor(int device) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(device) + 1);  // NOLINT(performance-no-int-to-ptr)
}
inline int device_of_descriptor(const void* descriptor) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(descriptor)) - 1;
}

}  // namespace railyard::fabric::tcp
