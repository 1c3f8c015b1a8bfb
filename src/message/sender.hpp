/// Sender: the half of a channel that sends. Finds each message its slot and puts it on the flow.
///
/// A message that has a grant goes straight into place: small ones inside a record, others as a direct write with a
/// record behind it. One that has none may go ahead of its receive if it is small; else it waits.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "message/regions.hpp"
#include "message/request.hpp"
#include "message/wire.hpp"
#include "transport/engine.hpp"

namespace railyard::message {

class Sender {
 public:
  Sender(transport::Engine& engine, std::uint32_t eager_bytes) : engine_(engine), eager_bytes_(eager_bytes) {}

  void post(Request* request) {
    mixed_ = mixed_ || (!waiting_.empty() && waiting_.front()->tag != request->tag);
    waiting_.push_back(request);
  }
  /// Starts what can start. False: there was no room on the flow for something; an overflow is left in `overflow`.
  bool advance(transport::Flow& flow);
  /// The flow's operations up to this one are complete.
  void on_completed(std::uint64_t operation);
  /// That operation has failed alone, and will be complete.
  void on_refused(std::uint64_t operation);

  // Arrivals: false for what no honest peer says.
  bool on_region(const OfRegion& news, std::span<const std::byte> body, std::size_t rails) {
    return regions_.announce(news.region, news.bytes, body, rails);
  }
  void on_withdraw(std::uint32_t id) { regions_.withdraw(id); }
  bool on_grant(const InRegion& where, const Grant& grant);

  /// Nothing waits and nothing is under way.
  bool idle() const { return waiting_.empty() && in_flight_.empty(); }
  /// What has not begun never will.
  void forget_waiting();
  /// Nor will what has begun be told of.
  void give_up();
  /// Whether a message in that region waits or is under way.
  bool uses(const memory::Region& region) const;
  /// Messages whose sends are done may not have reached the peer.
  bool owes(const transport::Flow& flow) const { return unacknowledged(flow, kFew - 1); }

  std::optional<Overflow> overflow;
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  std::uint64_t eager = 0;

 private:
  struct Slot {
    int tag = 0;
    bool taken = false;
    bool on_device = false;
    std::uint64_t room = 0;
    std::uint64_t offset = 0;
    std::shared_ptr<const PeerRegion> region;
  };
  /// A receive of the peer's.
  struct Group {
    std::uint32_t number = 0;
    std::uint8_t count = 0;
    std::uint8_t granted = 0;
    std::uint8_t open = 0;
    std::array<Slot, Channel::kMostSlots> slots;
    std::span<const Slot> known_slots() const { return std::span(slots).first(granted); }
  };
  using Groups = std::list<Group>;
  struct Found {
    Groups::iterator group;
    std::uint8_t slot = 0;
  };
  /// A message that went ahead of its receive.
  struct Ahead {
    int tag = 0;
    std::uint64_t bytes = 0;
  };
  enum class Start : std::uint8_t { started, waits, no_room };

  Start start(transport::Flow& flow, Request& request);
  Start start_matched(transport::Flow& flow, Request& request, const Found& found);
  Start start_ahead(transport::Flow& flow, Request& request);
  bool send_eager(transport::Flow& flow, Request& request, const EagerHead& head);
  bool write(transport::Flow& flow, Request& request, const Slot& slot, const Done& done);
  bool may_be_eager(const transport::Flow& flow, const Request& request, bool to_device) const;
  /// Whether so much is under way that this is a stream.
  bool busy(const transport::Flow& flow) const {
    return !in_flight_.empty() || ahead_.size() >= kFew || unacknowledged(flow, 0);
  }
  /// Of the last few that were done when they were copied; 0: the oldest.
  bool unacknowledged(const transport::Flow& flow, std::size_t which) const {
    return copied_[(next_copied_ + which) % kFew] > flow.completed.load(std::memory_order_relaxed);
  }
  void took(const Request& request);
  Group& add_group();
  /// The first free slot of that tag that the peer has told of.
  std::optional<Found> find_slot(int tag);
  void occupy(const Found& found);
  bool claimed_ahead(int tag);

  transport::Engine& engine_;
  const std::uint32_t eager_bytes_;
  bool receives_on_device_ = false;  ///< the peer's last one is: the next will be
  PeerRegions regions_;
  Groups groups_;        ///< in order; those with a free slot
  Groups spare_groups_;  ///< to be used again: a receive of the peer's allocates nothing
  std::deque<Request*> waiting_;
  bool mixed_ = false;              ///< not all that wait are of one tag
  std::vector<int> stalled_;        ///< tags whose oldest message waits; a member so that it keeps its room
  std::deque<Request*> in_flight_;  ///< direct writes, in the order of their operations
  std::deque<Ahead> ahead_;
  std::uint64_t ahead_bytes_ = 0;
  std::uint64_t next_message_ = 0;
  static constexpr std::size_t kFew = 4;
  /// The flow's operations that end the last messages which were done when they were copied, the oldest at
  /// `next_copied_`.
  std::array<std::uint64_t, kFew> copied_{};
  std::size_t next_copied_ = 0;
  Request* streamed_ = nullptr;  ///< the message that is going out in chunks, of which some wait for room
  EagerHead streaming_;          ///< what its chunks say
};

}  // namespace railyard::message
