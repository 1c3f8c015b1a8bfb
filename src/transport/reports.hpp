/// Reports: what leaves outside the sequence: acknowledgements, where no frame came along to carry them, and notices.
/// Their buffers are a pool of their own that never waits for data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "memory/slab.hpp"
#include "transport/core.hpp"
#include "transport/flow.hpp"
#include "transport/poster.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

class Reports {
 public:
  Reports(Core& core, Poster& poster) : core_(core), poster_(poster) {}
  /// `flows`: as many as there can be.
  Result<void> open(std::size_t flows);

  // ---- Acknowledgements ----

  /// The peer is owed one.
  void owe(Flow& flow) {
    if (!flow.in_reporting) [[unlikely]]  // a flow that is has been heard
      begin(flow);
    due_ |= flow.receiver.report_due();
  }
  bool any_owed() const { return !owing_.empty(); }
  /// One of them should not wait for a pass that finds nothing.
  bool due() const { return due_; }
  enum class When : std::uint8_t {
    busy,  ///< only those that are due: more is arriving
    idle,  ///< those that a peer waits for, or that no frame came for in time
    now,   ///< all that are owed
  };
  /// Whether any left.
  [[gnu::hot]] bool send(When when);
  /// Sends that of one flow now. False: no link takes it.
  bool acknowledge(Flow& flow);

  // ---- Notices ----

  bool send_notice(Flow& flow, Link& link, const wire::RecordHeader& record, std::span<const std::byte> body = {});
  /// Over the best link that takes it.
  bool send_notice(Flow& flow, const wire::RecordHeader& record, std::span<const std::byte> body = {});

  /// The rail is done with a report, with whatever success: a later one says more.
  void over(memory::Buffer* buffer);
  /// The flow goes.
  void forget(Flow& flow);

 private:
  void begin(Flow& flow);
  bool may_wait(const Flow& flow) const;
  bool post(Flow& flow, Link& link, memory::Buffer* buffer);

  Core& core_;
  Poster& poster_;
  std::optional<memory::Slab> buffers_;
  std::vector<Flow*> owing_;
  bool due_ = false;
};

}  // namespace railyard::transport
