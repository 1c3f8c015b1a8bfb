/// What a Channel holds: its flow, the two halves of its protocol, and how it ends.
///
/// The user's thread fills requests and puts them into a ring; whoever holds the engine's progress lock takes them from
/// there. So no call of the user's waits for another thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/ring.hpp"
#include "message/receiver.hpp"
#include "message/request_pool.hpp"
#include "message/sender.hpp"
#include "railyard/channel.hpp"
#include "transport/engine.hpp"

namespace railyard {

namespace message {
class Worker;
}

class ChannelState final : public transport::Inbox, public std::enable_shared_from_this<ChannelState> {
 public:
  ChannelState(std::shared_ptr<message::Worker> worker, std::size_t peer_rails);
  ~ChannelState() override;

  // ---- The user's threads ----

  Result<std::unique_ptr<Memory>> register_memory(std::span<std::byte> memory, DmaBufRange dma_buf = {},
                                                  MemoryUse use = MemoryUse::any);
  void deregister(std::shared_ptr<memory::Region> region, std::uint32_t id);
  Result<Request*> send(std::span<const std::byte> message, int tag, const Memory* registered);
  Result<Request*> receive(std::span<const ReceiveSlot> slots, bool completion_optional);
  Result<bool> test(Request* request, std::span<std::uint64_t> sizes);
  Result<void> wait(Request* request, std::span<std::uint64_t> sizes, Deadline deadline);
  ChannelStatistics statistics();
  void close();

  // ---- With the progress lock held ----

  void attach(transport::Flow& flow) { flow_ = &flow; }
  ChannelStatistics counts() const;
  transport::Flow* flow() const { return flow_; }
  /// Takes what the user has called for and moves it on. False: something found no room; call again.
  bool advance();
  /// The user has closed it, and the peer knows: nothing is left to do.
  bool over() const { return flow_ == nullptr && closed_by_user_; }
  void end_at_once(const std::string& why);
  /// If something is waited for.
  void ask_after_peer();
  /// The user has closed it, and messages whose sends were done may not have reached the peer.
  bool owes() const;

  // Inbox
  bool on_message(const transport::wire::Message& message, std::span<const std::byte> body) override;
  void on_completed() override;
  void on_refused(std::uint64_t number) override;
  void on_failed() override;

  // The worker's own.
  ChannelState* next_call = nullptr;  ///< in the list of channels that were called
  std::atomic<bool> called{false};
  ChannelState* next_ready = nullptr;  ///< in the worker's run queue
  bool ready = false;
  bool lingers = false;

 private:
  bool reaches(const memory::Region& region) const;
  void hand_over(Request* request);
  static constexpr std::uint32_t kTestsPerLook = 256;
  void watch_pending(Request& request);
  std::string describe_wait(const Request& request);
  void post(Request* request);
  Error failure() const {
    if (failed_.load(std::memory_order_acquire)) return error_.copy();
    return (cut_off_.load(std::memory_order_acquire) ? cut_error_ : refusal_).copy();
  }
  bool sends_end() const {
    return cut_off_.load(std::memory_order_acquire) || refused_.load(std::memory_order_acquire);
  }

  // channel_protocol.cc
  void take_calls();
  bool prepare(Request& request);
  bool dispatch(const transport::wire::Message& message, std::span<const std::byte> body);
  void fail(Error error);
  void overflowed(const message::Overflow& overflow);
  bool tell_overflow();
  bool tend_refusal();

  // channel_end.cc
  bool ended() const { return over_here_ || closed_by_user_.load(std::memory_order_relaxed); }
  void end_here(Error error);
  void cut_off(Error error, bool exposed);
  bool harmless() const;
  template <typename Done>
  void have_memory_back(Done&& done);
  void take_memory_back();
  void take_from_rails(const std::shared_ptr<memory::Region>& region);
  bool held(const std::shared_ptr<memory::Region>& region) const;
  bool tend_closing();
  bool may_leave();
  void drop_flow();

  const std::shared_ptr<message::Worker> worker_;
  transport::Engine& engine_;
  transport::Flow* flow_ = nullptr;
  const std::size_t peer_rails_;
  message::Sender sender_;
  message::Receiver receiver_;
  std::size_t registrations_ = 0;

  // The user's thread.
  message::RequestPool sends_{true};
  message::RequestPool receives_{false};
  Ring<Request*> calls_;

  // Failure. Written with the progress lock held, read by anyone: the flags are stored last, with release.
  std::atomic<bool> failed_{false};  ///< nothing works any more
  Error error_;
  /// The peer has closed its end or is lost: nothing can be sent; what has arrived can be received.
  std::atomic<bool> cut_off_{false};
  Error cut_error_;
  std::atomic<bool> refused_{false};  ///< the peer takes no more messages; what it sent may still be on its way
  Error refusal_;
  std::int64_t refused_at_ = 0;
  std::optional<message::Overflow> overflow_;
  bool overflow_told_ = false;

  // The end.
  std::atomic<bool> closed_by_user_{false};
  bool over_here_ = false;  ///< this end has given the channel up, though its user has not closed it
  int leaving_ = 0;         ///< what the worker was told of it
  bool detach_said_ = false;
  std::uint64_t detach_ = 0;      ///< the flow's operation that says it
  bool peer_left_ = false;        ///< it has said its last word: nothing of its will land any more
  std::int64_t heard_since_ = 0;  ///< when this end found that the peer has heard its last word; 0: not yet
  std::int64_t both_spoke_at_ = 0;
};

class MemoryState {
 public:
  std::shared_ptr<ChannelState> channel;
  std::shared_ptr<memory::Region> region;
  std::uint32_t id = 0;  ///< among those that messages may be received into; 0: it is for sends only
};

}  // namespace railyard
