/// A rank's connection to the rendezvous: the Bootstrap of jobs that have an address to meet at.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "railyard/bootstrap.hpp"
#include "rendezvous/address.hpp"

namespace railyard::bootstrap {

using rendezvous::Address;

struct ClientOptions {
  Address address;
  std::vector<Address> others;  ///< further addresses of the same rendezvous, tried in turn with the first
  std::int32_t rank = 0;
  std::int32_t size = 1;
  std::string job_key;
  std::int64_t timeout_ns = 60'000'000'000;  ///< for all ranks to arrive, and by default for each call
  std::string description;                   ///< what `describe` says; empty: "tcp" and the address
};

/// Connects, proves the job key, waits until all ranks are there. The rendezvous need not be up yet.
/// After a call failed, every later one fails with the same error: the ranks no longer agree on where they are.
Result<std::unique_ptr<Bootstrap>> open_client(const ClientOptions& options);

}  // namespace railyard::bootstrap
