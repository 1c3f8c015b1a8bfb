/// Region: registered memory, with one registration per rail.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "fabric/rail.hpp"
#include "railyard/result.hpp"

namespace railyard::memory {

/// Memory registered on every rail. Shared by reference; deregistered when the last reference goes, which must be
/// before the rails go and, as with every call of a rail, one thread at a time.
class Region {
 public:
  /// Registers on all rails or on none; a rail whose device is gone for good is no obstacle, and for memory of a GPU
  /// neither is one that cannot reach it. `memory` must stay mapped as long as the region.
  static Result<std::shared_ptr<Region>> open(std::span<fabric::Rail* const> rails, std::span<std::byte> memory,
                                              fabric::Access access);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::span<std::byte> memory() const noexcept { return memory_; }
  const fabric::Registration& on(std::size_t rail) const noexcept { return registrations_[rail]; }
  /// Whose memory it is: a GPU's number, or -1.
  int device() const noexcept { return device_; }
  /// Whether this rail can reach it.
  bool reached_by(std::size_t rail) const noexcept { return rails_[rail] != nullptr; }
  /// Takes the memory back on every rail: when this returns, no peer reads or writes it. No post of our own that names
  /// it may be in flight (`Revocation::revoke` sees to that). The second call finds nothing left to do.
  void revoke();
  bool revoked() const noexcept { return revoked_; }
  /// Says that no peer has anything under way to it, because all that its users allowed has happened: taking it back
  /// then costs no link. Who says so speaks for all users.
  void settle() noexcept { settled_ = true; }
  /// Made by `RegionCache::expose` for one user alone.
  bool single_use() const noexcept { return single_use_; }

 private:
  friend class RegionCache;
  Region(std::span<fabric::Rail* const> rails, std::span<std::byte> memory);

  std::span<std::byte> memory_;
  std::vector<fabric::Rail*> rails_;                 ///< null: gone for good, or no way to this memory
  std::vector<fabric::Registration> registrations_;  ///< by rail; as many as succeeded
  int device_ = -1;
  bool revoked_ = false;
  bool settled_ = false;
  bool single_use_ = false;
};

}  // namespace railyard::memory
