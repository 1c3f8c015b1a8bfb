/// How the ranks of a world find each other. Implement this to run Railyard inside a job that already has a way.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "railyard/deadline.hpp"
#include "railyard/result.hpp"

namespace railyard {

/// Collective calls over all ranks, used at set-up only (opening a world, making a window): never on the data path.
/// Every rank makes the same calls in the same order.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Gives every rank the contribution of every rank, by rank. Contributions may differ in length.
  /// On `timeout` the error names the ranks that did not arrive.
  virtual Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, Deadline deadline) = 0;

  /// Returns once every rank has entered.
  virtual Result<void> barrier(Deadline deadline) = 0;

  /// One line for `railyard info` and error messages: "tcp 10.0.0.1:7777", "pmix", "launcher".
  virtual std::string describe() const = 0;
};

}  // namespace railyard
