/// Refusals: operations that their target does not apply fail alone. The target says which of them, and why, again and
/// again until the origin confirms it; the ticket fails with the cause, and the flow goes on (docs/protocol.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/completions.hpp"
#include "transport/core.hpp"
#include "transport/exposed_region.hpp"
#include "transport/reports.hpp"
#include "transport/watch_list.hpp"

namespace railyard::transport {

class Refusals {
 public:
  Refusals(Core& core, Completions& completions, WatchList& watched, Reports& reports)
      : core_(core), completions_(completions), watched_(watched), reports_(reports) {}

  // ---- At the target ----

  /// Records of a frame are not applied. Its segment is not acknowledged before the origin knows.
  void refuse(Flow& flow, std::uint32_t sequence, std::uint32_t record, std::uint32_t count, FailureCause cause);
  /// Why that region cannot take it; null: there is no such region.
  static FailureCause cause_of(const ExposedRegion* exposed_region, const wire::RecordReader::Record& record);
  /// The origin knows of those up to this.
  void on_confirmed(Flow& flow, std::uint64_t known);

  // ---- At the origin ----

  void on_refused(Flow& flow, std::span<const std::byte> body);

  // ---- Both ----

  bool any() const { return !telling_.empty(); }
  /// Tells peers what was refused, and confirms what they have refused. Whether anything left.
  bool tell();
  /// The flow goes.
  void forget(Flow& flow);

 private:
  void tend(Flow& flow);
  void fail_records(Flow& flow, const Segment& segment, const wire::RefusedRecords& refused);

  Core& core_;
  Completions& completions_;
  WatchList& watched_;
  Reports& reports_;
  std::vector<Flow*> telling_;
};

}  // namespace railyard::transport
