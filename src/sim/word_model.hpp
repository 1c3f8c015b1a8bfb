/// What atomics must have made of the words they changed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "railyard/window.hpp"
#include "sim/findings.hpp"
#include "sim/layout.hpp"

namespace railyard::sim {

/// A word that one source alone changes, in order: every value is known when the operation is submitted.
struct OwnWord {
  std::uint64_t value = 0;
  std::size_t width = 8;

  /// Applies the operation and returns what the word held before.
  std::uint64_t apply(AtomicOp op, std::uint64_t operand, std::uint64_t compare);
};

/// The words of one target that all sources change at the same time. Their order is not known, but what was fetched
/// must fit some order in which each operation happened once.
class SharedWords {
 public:
  SharedWords(int target, std::size_t ranks) : target_(target), fetched_(ranks) {}

  // The add word: every operation adds one.
  void submitted_add() { ++adds_; }
  /// `order` is the operation's place among those of its source.
  void fetched_add(int source, std::uint64_t order, std::uint64_t before) {
    fetched_[static_cast<std::size_t>(source)].push_back({order, before});
  }
  // The sum word, 32 bits: any values.
  void submitted_sum(std::uint32_t value) { sum_ += value; }
  // The swap word: every operation brings a value of its own.
  void submitted_swap(std::uint64_t value) { swapped_in_.push_back(value); }
  void fetched_swap(std::uint64_t before) { swapped_out_.push_back(before); }
  // The compare word: the same, for what its condition lets through.
  void fetched_compare(std::uint64_t compare, std::uint64_t value, std::uint64_t before) {
    compared_.push_back({compare, value, before});
  }

  /// All is over: `memory` is the target's window.
  void finish(const Layout& layout, std::span<const std::byte> memory, Findings& findings);

 private:
  struct Fetched {
    std::uint64_t order;
    std::uint64_t before;
  };
  struct Compared {
    std::uint64_t compare;
    std::uint64_t value;
    std::uint64_t before;
  };
  void finish_add(std::uint64_t word, Findings& findings);
  void finish_swap(std::uint64_t word, Findings& findings);
  void finish_compare(std::uint64_t word, Findings& findings);

  int target_;
  std::uint64_t adds_ = 0;
  std::uint32_t sum_ = 0;
  std::vector<std::vector<Fetched>> fetched_;  ///< by source
  std::vector<std::uint64_t> swapped_in_;
  std::vector<std::uint64_t> swapped_out_;
  std::vector<Compared> compared_;
};

}  // namespace railyard::sim
