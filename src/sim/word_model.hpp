/// What atomics must have made of the words they changed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "railyard/window.hpp"
#include "sim/findings.hpp"
#include "sim/layout.hpp"

namespace railyard::sim {

/// A word that one source alone changes, in order: every value is known when the operation is submitted.
struct OwnWord {
  std::uint64_t value = 0;
  std::size_t width = 8;
  std::vector<std::uint64_t> history = {};  ///< what it held before

  bool ever_held(std::uint64_t what) const {
    return what == value || std::ranges::find(history, what) != history.end();
  }
  /// Applies the operation and returns what the word held before.
  std::uint64_t apply(AtomicOp op, std::uint64_t operand, std::uint64_t compare);
};

/// A word that all sources add to, each in order.
class SumModel {
 public:
  explicit SumModel(std::size_t ranks) : added_(ranks) {}
  void submitted(int source, std::uint64_t value) {
    added_[static_cast<std::size_t>(source)].push_back(value);
    total_ += value;
  }
  std::uint64_t total() const { return total_; }
  /// All is over: the word holds everything, but of the rank `dead` (-1: none is) what it added up to some point.
  void finish(std::uint64_t found, std::uint64_t mask, int dead, const std::string& name, Findings& findings) const;

 private:
  std::vector<std::vector<std::uint64_t>> added_;  ///< by source
  std::uint64_t total_ = 0;
};

/// The words of one target that all sources change at the same time. Their order is not known, but what was fetched
/// must fit some order in which each operation happened once.
class SharedWords {
 public:
  SharedWords(int target, std::size_t ranks) : target_(target), adds_(ranks), sums_(ranks), fetched_(ranks) {}

  // The add word: every operation adds one.
  void submitted_add(int source) { adds_.submitted(source, 1); }
  /// `order` is the operation's place among those of its source.
  void fetched_add(int source, std::uint64_t order, std::uint64_t before) {
    fetched_[static_cast<std::size_t>(source)].push_back({order, before});
  }
  // The sum word, 32 bits: any values.
  void submitted_sum(int source, std::uint32_t value) { sums_.submitted(source, value); }
  // The swap word: every operation brings a value of its own.
  void submitted_swap(std::uint64_t value) { swapped_in_.push_back(value); }
  void fetched_swap(std::uint64_t before) { swapped_out_.push_back(before); }
  // The compare word: the same, for what its condition lets through.
  void submitted_compare(std::uint64_t value) { offered_.push_back(value); }
  void fetched_compare(std::uint64_t compare, std::uint64_t value, std::uint64_t before) {
    compared_.push_back({compare, value, before});
  }

  /// All is over: `memory` is the target's window. Of the rank `dead` (-1: none is) some operations may be missing, and
  /// nobody knows what its last ones fetched.
  void finish(const Layout& layout, std::span<const std::byte> memory, int dead, Findings& findings);

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
  void finish_fetched(Findings& findings);
  void finish_swap(std::uint64_t word, bool all, Findings& findings);
  void finish_compare(std::uint64_t word, bool all, Findings& findings);

  int target_;
  SumModel adds_;
  SumModel sums_;
  std::vector<std::vector<Fetched>> fetched_;  ///< by source
  std::vector<std::uint64_t> swapped_in_;
  std::vector<std::uint64_t> swapped_out_;
  std::vector<Compared> compared_;
  std::vector<std::uint64_t> offered_;
};

}  // namespace railyard::sim
