/// What one source's signals to one target must look like there: every value seen is one that its signals, applied in
/// order and once each, make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/findings.hpp"
#include "sim/flow_model.hpp"

namespace railyard::sim {

/// A word that only one source changes, by signals in order.
class SignalModel {
 public:
  SignalModel(FlowModel& flow, const char* name) : flow_(&flow), name_(name) {}

  /// A signal was submitted after which the word holds `value`, a value never held before.
  void submitted(std::uint64_t value, FlowModel::Position position) { steps_.push_back({value, position}); }
  std::uint64_t newest() const { return steps_.empty() ? 0 : steps_.back().value; }
  /// The target has seen `value`. True when it is news.
  bool observe(std::uint64_t value, Findings& findings);
  /// All is over: `value` must be the newest, unless the source died and not `all` of its signals had to arrive.
  void finish(std::uint64_t value, bool all, Findings& findings);

 private:
  struct Step {
    std::uint64_t value;
    FlowModel::Position position;
  };
  FlowModel* flow_;
  const char* name_;
  std::vector<Step> steps_;
  std::size_t seen_ = 0;  ///< steps up to here have been seen
  std::uint64_t last_ = 0;
  bool broken_ = false;  ///< a wrong value was seen and reported: what follows from it is not reported again
};

}  // namespace railyard::sim
