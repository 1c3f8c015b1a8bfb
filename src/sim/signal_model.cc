#include "sim/signal_model.hpp"

#include <fmt/format.h>

namespace railyard::sim {

bool SignalModel::observe(std::uint64_t value, Findings& findings) {
  if (value == last_ || broken_) return false;
  last_ = value;
  for (std::size_t step = seen_; step < steps_.size(); ++step) {
    if (steps_[step].value != value) continue;
    seen_ = step + 1;
    flow_->confirm(steps_[step].position, name_);
    return true;
  }
  broken_ = true;
  // Beyond what was sent or behind what was seen: something was applied again. In between: something was left out.
  const bool beyond = value > newest() || (seen_ > 0 && value < steps_[seen_ - 1].value);
  findings.add(
      beyond ? Finding::doubled : Finding::lost,
      fmt::format("rank {} to {}: {} holds {}, which no signal makes; {} of {} signals seen before, the newest "
                  "makes {}",
                  flow_->source(), flow_->target(), name_, value, seen_, steps_.size(), newest()));
  return true;
}

void SignalModel::finish(std::uint64_t value, bool all, Findings& findings) {
  observe(value, findings);
  if (!all || broken_ || seen_ == steps_.size()) return;
  findings.add(Finding::lost, fmt::format("rank {} to {}: {} of {} signals to {} were applied", flow_->source(),
                                          flow_->target(), seen_, steps_.size(), name_));
}

}  // namespace railyard::sim
