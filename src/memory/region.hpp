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
  /// Registers on all rails or on none. `memory` must stay mapped as long as the region.
  static Result<std::shared_ptr<Region>> open(std::span<fabric::Rail* const> rails, std::span<std::byte> memory,
                                              fabric::Access access);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::span<std::byte> memory() const noexcept { return memory_; }
  const fabric::Registration& on(std::size_t rail) const noexcept { return registrations_[rail]; }

 private:
  Region(std::span<fabric::Rail* const> rails, std::span<std::byte> memory);

  std::span<std::byte> memory_;
  std::vector<fabric::Rail*> rails_;
  std::vector<fabric::Registration> registrations_;  ///< by rail; as many as succeeded
};

}  // namespace railyard::memory
