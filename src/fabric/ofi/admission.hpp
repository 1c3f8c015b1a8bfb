/// Admission to a connected rail: makes the requests that prove a peer's secret, and knows those that prove ours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "fabric/ofi/replay_window.hpp"
#include "fabric/ofi/request.hpp"

namespace railyard::fabric::ofi {

class Admission {
 public:
  /// Makes up the rail's name and secret.
  Result<void> open(std::span<const std::byte> job_key);

  const RailName& rail() const { return rail_; }
  const Secret& secret() const { return secret_; }

  std::array<std::byte, LinkRequest::kBytes> request(const OfiRailAddress& peer, Lane lane, const LinkTag& tag);
  /// Nothing: its sender does not know the secret, or it has been here before.
  std::optional<LinkRequest> admit(std::span<const std::byte> request);
  std::uint64_t rejected() const { return rejected_; }

 private:
  RailName rail_{};
  Secret secret_{};
  Secret key_{};
  std::vector<std::byte> job_key_;
  std::map<RailName, std::uint32_t> made_;  ///< requests to each peer's rail
  /// Of each peer's rail that has proven the secret. They stay: links are forgotten sooner, recorded requests are not.
  std::map<RailName, ReplayWindow> seen_;
  std::uint64_t rejected_ = 0;
};

}  // namespace railyard::fabric::ofi
