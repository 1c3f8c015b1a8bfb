/// Receiver: the half of a channel that receives. Grants slots to the peer, and finds messages that came ahead of
/// their receive a slot by the rule that the sender follows too.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "fabric/device_copies.hpp"
#include "message/regions.hpp"
#include "message/request.hpp"
#include "message/wire.hpp"
#include "transport/engine.hpp"

namespace railyard::message {

class Receiver {
 public:
  explicit Receiver(transport::Engine& engine) : engine_(engine) {}

  void post(Request* request);
  /// Tells the peer what it must know. False: there was no room on the flow.
  bool advance(transport::Flow& flow);

  // Arrivals: false for what no honest peer says.
  bool on_eager(const OfMessage& about, std::span<const std::byte> body);
  bool on_done(const OfMessage& about, const Done& done);
  /// The peer has given that message up; its last word will follow. What it sent before and after is good.
  bool on_given_up(const OfMessage& about, const Done& done);

  /// No message may come into a receive of ours any more.
  bool idle() const { return open_ == 0; }
  /// Nothing more will come: receives that are not filled have failed. What has arrived whole stays for later ones.
  /// `exposed`: the peer may not know it; receives that it was told of keep their memory until this is called again.
  void settle(bool exposed);
  void forget_arrived();
  /// Whether a receive waits for a message into that region.
  bool uses(const memory::Region& region) const;
  void collect(std::vector<std::shared_ptr<memory::Region>>& regions) const;
  /// Before a region in memory of that GPU is added.
  Result<void> prepare_copies(int device) { return copies_.prepare(device); }
  std::uint32_t add_region(const std::shared_ptr<memory::Region>& region) { return regions_.take(region); }
  /// Takes back one `add_region`. The peer, if it knows of the region and nobody uses it any more, is told.
  void drop_region(std::uint32_t region);

  std::optional<Overflow> overflow;
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  std::uint64_t unexpected = 0;

 private:
  bool is_next(const OfMessage& about);
  void store(const Request::Slot& target, std::uint64_t at, std::span<const std::byte> bytes);
  Request* written(const OfMessage& about, const Done& done);
  /// A message that came ahead of its receive.
  struct Unexpected {
    int tag = 0;
    std::uint64_t arrived = 0;
    std::vector<std::byte> message;
  };
  /// A message that is arriving in chunks: into a slot or into what waits.
  struct Stream {
    bool on = false;
    std::uint64_t bytes = 0;
    std::uint64_t arrived = 0;
    Request* request = nullptr;  ///< null: the newest unexpected one
    std::uint8_t slot = 0;
  };
  struct Found {
    Request* request = nullptr;
    std::uint8_t slot = 0;
  };

  Request* group(std::uint32_t number) const;
  Found find_slot(int tag) const;
  void take(Request& request, std::uint8_t slot);
  void place_unexpected(Request& request);
  bool begin(int tag, const EagerHead& head);
  void end_stream();
  void fill(Request& request, std::uint8_t slot, std::uint64_t size);
  void release(Request::Slot& target);
  bool grant(transport::Flow& flow, Request& request);
  bool grant_slot(transport::Flow& flow, Request& request, std::uint8_t slot);
  bool announce(transport::Flow& flow, std::uint32_t id);
  bool tell_withdrawn(transport::Flow& flow);

  transport::Engine& engine_;
  OwnRegions regions_;
  std::array<Request*, Channel::kMostRequests> groups_{};  ///< by the request's index; those with an unfilled slot
  Request* oldest_ = nullptr;                              ///< of those with a slot that no message has begun to fill
  Request* newest_ = nullptr;
  std::uint32_t open_ = 0;
  std::deque<Request*> granting_;
  std::deque<Unexpected> waiting_;
  std::uint64_t waiting_bytes_ = 0;
  Stream stream_;
  std::uint64_t next_message_ = 0;  ///< the peer counts what it begins
  std::deque<std::uint32_t> withdrawn_;
  fabric::DeviceCopies copies_{1};
  bool copy_failed_ = false;  ///< by a GPU: what came for its memory is not there
};

}  // namespace railyard::message
