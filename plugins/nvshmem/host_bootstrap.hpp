/// The host's bootstrap as a world's: its ranks have met already.
#pragma once

#include "abi.hpp"
#include "railyard/bootstrap.hpp"

namespace railyard::nvshmem {

/// The host's calls have no deadline of their own: those of the world are not kept here.
class HostBootstrap final : public Bootstrap {
 public:
  /// `host` outlives it.
  static Result<std::unique_ptr<HostBootstrap>> open(abi::Bootstrap* host);

  int rank() const override { return host_->rank; }
  int size() const override { return host_->size; }
  Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, Deadline deadline) override;
  Result<void> barrier(Deadline deadline) override;
  std::string describe() const override { return "nvshmem"; }

 private:
  explicit HostBootstrap(abi::Bootstrap* host) : host_(host) {}
  /// The host's own: equal lengths, one after the other.
  Result<std::vector<std::byte>> gather(std::span<const std::byte> mine);

  abi::Bootstrap* host_;
};

}  // namespace railyard::nvshmem
