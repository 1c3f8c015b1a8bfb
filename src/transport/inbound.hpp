/// Inbound: what the rails bring: messages and landed writes become effects, in sequence, once each (promise 2), and
/// segments that are acknowledged or done with go back. Changes state only; posts nothing but the receive buffer it was
/// given (promise 7).
#pragma once

#include <cstdint>
#include <vector>

#include "transport/applier.hpp"
#include "transport/completions.hpp"
#include "transport/core.hpp"
#include "transport/exposed_memory.hpp"
#include "transport/notices.hpp"
#include "transport/peers.hpp"
#include "transport/reports.hpp"
#include "transport/transmitter.hpp"

namespace railyard::transport {

class Inbound {
 public:
  struct Parts {
    Core& core;
    Peers& peers;
    ExposedMemory& memory;
    Completions& completions;
    Reports& reports;
    Transmitter& transmitter;
    Notices& notices;
    Applier& applier;
  };
  explicit Inbound(const Parts& parts) : core_(parts.core), parts_(parts) {}

  /// A message has arrived in the buffer.
  [[gnu::hot]] void on_message(RailState& rail, memory::Buffer* buffer, std::size_t bytes);
  /// A rail is done with a segment.
  [[gnu::hot]] void on_segment_done(Segment* segment);
  /// A chunk has landed.
  void on_landed(RailState& rail, const fabric::Event& event);

  /// Held frames of some flow wait for the next pass.
  bool any_ready() const { return !ready_.empty(); }
  bool release_ready();
  /// Goes on with what waited for words in the memory of GPUs. Whether any is there.
  bool end_words();
  /// The flow goes.
  void forget(Flow& flow);

 private:
  void accept_report(Flow& flow, const wire::FrameHeader& header);
  [[gnu::noinline]] void on_other_done(Segment* segment);
  void chunk_acknowledged(Flow& flow, Segment& segment);
  void on_other_turn(Flow& flow, std::uint32_t sequence, FlowReceiver::Arrival arrival, RailState& rail,
                     memory::Buffer* buffer);
  [[gnu::hot]] void release_ready(Flow& flow);
  void end_word(Flow& flow, const DeviceWords::End& end);

  Core& core_;
  Parts parts_;
  std::vector<Flow*> ready_;  ///< have held frames whose turn has come
};

}  // namespace railyard::transport
