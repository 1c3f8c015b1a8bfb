/// One way to do a bench test: Railyard itself, or bare libfabric calls. The bench runs them in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "railyard/result.hpp"

namespace railyard::bench {

enum class Test : std::uint8_t { put, get, put_signal, atomic, rate };

/// One measured part of a test, known to both ranks before it starts. Operation `i` works on slot `i % slots`.
struct Round {
  Test test = Test::put;
  std::size_t bytes = 0;     ///< of one operation
  std::size_t slots = 1;     ///< places that the operations go to in turn
  std::size_t depth = 1;     ///< operations kept in flight
  std::uint64_t count = 0;   ///< operations (round trips for put_signal and atomic)
  std::uint64_t serial = 0;  ///< counts the rounds of this contestant, from 1
};

/// Two ranks hold one each: rank 0 is the source of every test and measures, rank 1 is the target.
class Contestant {
 public:
  virtual ~Contestant() = default;

  /// "ours", "raw tcp lo"
  virtual std::string name() const = 0;
  /// Memory that the peer reads and writes.
  virtual std::span<std::byte> exposed() = 0;
  /// Memory of this rank that its own operations read from or write to.
  virtual std::span<std::byte> buffer() = 0;

  /// Whether the atomic test really changes words at the target (or only stands in for it).
  virtual bool changes_words() const { return true; }

  /// Rank 0: does the round; returns the seconds from the first call until the last operation is known complete at
  /// the target.
  virtual Result<double> run_source(const Round& round) = 0;
  /// Rank 1: does its part of the round, and returns once rank 0 needs nothing more from it.
  virtual Result<void> run_target(const Round& round) = 0;
};

}  // namespace railyard::bench
