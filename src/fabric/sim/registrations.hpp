/// The registered memory of one simulated rail. Every access is checked against it, as a NIC would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fabric/rail.hpp"

namespace railyard::fabric::sim {

/// Why an access was refused; zero is no error. These are the `error` codes of failed events.
enum Fault : int {
  kFaultNone = 0,
  kFaultBadKey,         ///< no registration has this key
  kFaultDeregistered,   ///< one had it, but is gone
  kFaultOutOfBounds,    ///< outside the registration
  kFaultNotRemote,      ///< registered for local access only
  kFaultBadDescriptor,  ///< local memory without the descriptor that this lane of this rail demands
  kFaultTooLong,        ///< more than max_message or max_write
  kFaultTruncated,      ///< a message longer than the receive that took it
  kFaultUnreachable,    ///< the remote rail is closed
  kFaultDown,           ///< a rail on the way could not carry it
  kFaultDisconnected,   ///< its link was ended before it was done
};
inline constexpr int kFaults = kFaultDisconnected + 1;

/// Whether only a user of the rails that breaks their contract can cause it.
inline bool is_violation(int fault) { return fault > kFaultNone && fault < kFaultUnreachable; }

/// What an operation that ends so blames. A link that ended, or a target's receive, has nothing to do with what was
/// asked for.
inline Blame blame_of(int fault) {
  return fault >= kFaultBadKey && fault <= kFaultTooLong ? Blame::operation : Blame::link;
}

const char* fault_text(int fault);

class Registrations {
 public:
  struct Terms {
    bool binds = false;              ///< a descriptor is good for its own lane only
    bool virtual_addresses = false;  ///< remote addresses are pointers
    std::uint64_t salt = 0;          ///< keys of one rail mean nothing on another
  };
  struct Access {
    std::byte* memory = nullptr;
    int fault = kFaultNone;
  };

  explicit Registrations(Terms terms) : terms_(terms) {}

  Registration add(std::span<std::byte> memory, bool remote);
  /// False: there is no such registration (any more).
  bool remove(const Registration& registration);
  std::size_t live() const { return live_; }
  std::size_t capacity_bytes() const { return entries_.capacity() * sizeof(Entry); }

  /// What a remote access to `bytes` at `address` under `key` reaches.
  Access remote(std::uint64_t key, std::uint64_t address, std::size_t bytes) const;
  /// Whether the descriptor covers this local memory on this lane.
  int local(const void* descriptor, Lane lane, const void* address, std::size_t bytes) const;

 private:
  struct Entry {
    std::span<std::byte> memory;
    std::uint32_t generation = 1;
    bool live = false;
    bool remote = false;
  };
  const Entry* find(std::uint64_t name, int& fault) const;

  Terms terms_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
  std::size_t live_ = 0;
};

}  // namespace railyard::fabric::sim
