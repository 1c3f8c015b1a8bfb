/// Which address of a listener is tried next, for how long, and what came of those before. No sockets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "message/ip_address.hpp"
#include "railyard/result.hpp"

namespace railyard::message {

/// How sure it is that another try of the same address would end the same way.
enum class Finality : std::uint8_t {
  certain,    ///< nobody listens there, or somebody else
  uncertain,  ///< it may have been overloaded: no answer in time, a connection cut before its answer
};

/// Goes through the addresses, first to last, and through all of them again while one of them might still answer.
class ConnectAttempts {
 public:
  static constexpr std::int64_t kFirstPatienceNs = 1'000'000'000;

  /// At least one target.
  ConnectAttempts(const std::vector<Target>& targets, std::uint16_t port);

  const Target& target() const { return attempts_[current_].target; }
  std::uint16_t port() const { return port_; }
  std::string where() const { return target().text(port_); }
  /// How long a connection attempt may take; longer with each round.
  std::int64_t patience_ns() const { return kFirstPatienceNs << std::min<std::uint32_t>(round_, 3); }

  enum class Next : std::uint8_t {
    target,  ///< another address is at hand
    round,   ///< all were tried; after a pause again from the first
    none,    ///< none of them will do
  };
  /// The current address did not do. Moves on.
  Next failed(Finality finality, Status status, std::string why);
  std::int64_t pause_ns() const;
  /// What the current address is waiting for, for `story`.
  void note(std::string what) { attempts_[current_].outcome = std::move(what); }

  /// Every address with what came of it: "192.0.2.1:4711: Connection refused; 127.0.0.1:4711: not tried".
  std::string story() const;
  /// Of all failures the one that says most.
  Status status() const { return status_; }

 private:
  struct Attempt {
    Target target;
    std::string outcome = "not tried";
  };
  std::vector<Attempt> attempts_;
  std::uint16_t port_;
  std::size_t current_ = 0;
  std::uint32_t round_ = 0;
  bool hope_ = false;  ///< one of this round might still answer
  Status status_ = Status::io;
};

}  // namespace railyard::message
