/// WindowUse: what this process did by way of one window, over rails and past them.
#pragma once

#include <cstdint>
#include <memory>

#include "railyard/world.hpp"
#include "telemetry/store.hpp"
#include "transport/submitter.hpp"
#include "window/direct_use.hpp"

namespace railyard {

class WindowUse {
 public:
  /// Which window of its world it is, from 1 on: given once, before anything is counted.
  void set_number(std::uint64_t number) { submitter_.number = number; }
  std::uint64_t number() const { return submitter_.number; }

  /// What the engine counts of it.
  transport::Submitter& submitter() { return submitter_; }
  /// Memory of a peer is mapped: from now on there is something to count past the engine.
  void expect_direct() {
    if (direct_ == nullptr) direct_ = std::make_unique<DirectUse>();
  }
  /// Only where some is expected.
  DirectUse& direct() { return *direct_; }

  // ---- With the progress lock held ----

  void add_direct(WorldStatistics& statistics) const {
    if (direct_ != nullptr) direct_->add_to(statistics);
  }
  /// Brings its record up to date. One that was never used has none.
  void publish(telemetry::Store& store, const std::string& context);
  void end_publishing();
  std::uint64_t bytes = 0;  ///< of this rank's part

 private:
  transport::Submitter submitter_;
  std::unique_ptr<DirectUse> direct_;
  telemetry::Record record_;
};

}  // namespace railyard
