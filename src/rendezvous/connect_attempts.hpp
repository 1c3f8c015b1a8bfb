/// Which address of a listener is tried next, for how long, and what came of those before. No sockets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "railyard/result.hpp"
#include "rendezvous/address.hpp"

namespace railyard::rendezvous {

/// How sure it is that another try of the same address would end the same way.
enum class Finality : std::uint8_t {
  certain,    ///< nobody listens there, or somebody else
  uncertain,  ///< it may have been overloaded: no answer in time, a connection cut before its answer
};

/// Goes through the addresses, first to last, and through all of them again while one of them might still answer.
class ConnectAttempts {
 public:
  static constexpr std::int64_t kFirstPatienceNs = 1'000'000'000;

  /// Before the first round and between any two: what to try, at least one endpoint.
  void begin_round(std::vector<Endpoint> endpoints);

  const Endpoint& endpoint() const { return attempts_[current_].endpoint; }
  /// How long a connection attempt may take; longer with each round.
  std::int64_t patience_ns() const { return kFirstPatienceNs << std::min<std::uint32_t>(round_, 3); }

  enum class Next : std::uint8_t {
    endpoint,  ///< another address is at hand
    round,     ///< all were tried; after a pause again from the first
    none,      ///< none of them will do
  };
  /// The current address did not do. Moves on.
  Next failed(Finality finality, Status status, std::string why);
  /// Before the next round; longer with each.
  std::int64_t pause_ns() const;
  /// What the current address is waiting for, for `story`.
  void note(std::string what) { attempts_[current_].outcome = std::move(what); }

  /// Every address with what came of it: "192.0.2.1:4711: Connection refused; 127.0.0.1:4711: not tried".
  std::string story() const;
  /// Of all failures the one that says most.
  Status status() const { return status_; }

 private:
  struct Attempt {
    Endpoint endpoint;
    std::string outcome = "not tried";
  };
  std::vector<Attempt> attempts_;
  std::size_t current_ = 0;
  std::uint32_t round_ = 0;
  bool hope_ = false;  ///< one of this round might still answer
  Status status_ = Status::io;
};

}  // namespace railyard::rendezvous
