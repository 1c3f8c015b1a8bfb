/// Directory: who the ranks of a world are and where their rails are, from what each contributed at the start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/identity.hpp"
#include "fabric/rail.hpp"
#include "railyard/result.hpp"
#include "transport/engine.hpp"

namespace railyard {

/// One block of bytes for all ranks: a peer that is never talked to costs its contribution and nothing else.
class Directory {
 public:
  /// What this rank tells the others.
  static std::vector<std::byte> contribution(const Identity& identity, std::span<fabric::Rail* const> rails,
                                             const transport::WorldEntry& entry = {});
  /// Checks every rank's contribution; an error names the rank whose is wrong.
  static Result<Directory> open(std::span<const std::vector<std::byte>> contributions);

  Result<transport::PeerAddress> find(int rank) const;

 private:
  std::vector<std::byte> bytes_;
  std::vector<std::uint32_t> starts_;
};

/// Reads one contribution. Exposed for the fuzzer.
Result<transport::PeerAddress> parse_contribution(std::span<const std::byte> bytes);

}  // namespace railyard
