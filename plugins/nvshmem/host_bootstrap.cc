#include "host_bootstrap.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstring>

namespace railyard::nvshmem {
namespace {

Error host_failed(const char* call, int code) {
  return {Status::io, fmt::format("NVSHMEM's bootstrap: {} answers {}", call, code), {.operation = call}};
}

}  // namespace

Result<std::unique_ptr<HostBootstrap>> HostBootstrap::open(abi::Bootstrap* host) {
  if (host == nullptr || host->allgather == nullptr || host->barrier == nullptr) {
    return Error(Status::invalid, "the host gave no bootstrap: no allgather or no barrier");
  }
  if (host->size < 1 || host->rank < 0 || host->rank >= host->size) {
    return Error(Status::invalid, fmt::format("the host's bootstrap says PE {} of {}", host->rank, host->size));
  }
  return std::unique_ptr<HostBootstrap>(new HostBootstrap(host));
}

Result<std::vector<std::byte>> HostBootstrap::gather(std::span<const std::byte> mine) {
  std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(size()));
  const int code = host_->allgather(mine.data(), all.data(), static_cast<int>(mine.size()), host_);
  if (code != 0) return host_failed("allgather", code);
  return all;
}

Result<std::vector<std::vector<std::byte>>> HostBootstrap::allgather(std::span<const std::byte> mine, Deadline) {
  const std::uint64_t length = mine.size();
  const auto gathered = gather(std::as_bytes(std::span(&length, 1)));
  if (!gathered) return gathered.error().copy();
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(size()));
  std::memcpy(lengths.data(), gathered->data(), gathered->size());
  const std::uint64_t longest = *std::ranges::max_element(lengths);
  std::vector<std::vector<std::byte>> all(lengths.size());
  if (longest == 0) return all;
  if (longest > INT_MAX) return Error(Status::out_of_range, fmt::format("a contribution of {} bytes", longest));
  std::vector<std::byte> padded(longest);
  std::ranges::copy(mine, padded.begin());
  const auto bytes = gather(padded);
  if (!bytes) return bytes.error().copy();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto from = bytes->begin() + static_cast<std::ptrdiff_t>(rank * longest);
    all[rank].assign(from, from + static_cast<std::ptrdiff_t>(lengths[rank]));
  }
  return all;
}

Result<void> HostBootstrap::barrier(Deadline) {
  const int code = host_->barrier(host_);
  if (code != 0) return host_failed("barrier", code);
  return {};
}

}  // namespace railyard::nvshmem
