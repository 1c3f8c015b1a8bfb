/// A rail of queue pairs (RC) on one port of an RDMA device. docs/verbs.md tells the whole story.
///
/// Links have one direction, queue pairs have two. A link of ours and the peer's link back over the same two rails
/// (LinkTag::facing) share one `Pair`, in which both lanes of both travel; a link that faces nobody has one to itself.
/// Pairs are made by CM messages (connection_manager.hpp) inside `poll`, of both peers.
///
/// One completion queue takes everything in, one shared receive queue serves every pair: an immediate uses up a receive
/// like a message does. No post is taken that could overrun either of them, even if every queue pair broke at once.
#pragma once

#include <optional>
#include <unordered_map>

#include "fabric/base_rail.hpp"
#include "fabric/inbound.hpp"
#include "fabric/refusals.hpp"
#include "fabric/verbs/admission.hpp"
#include "fabric/verbs/connection_manager.hpp"
#include "fabric/verbs/flush.hpp"
#include "fabric/verbs/liveness_port.hpp"
#include "fabric/verbs/peer_liveness.hpp"
#include "fabric/verbs/send_queue.hpp"

namespace railyard::fabric::verbs {

/// Why a link was lost, beyond the status of a work request.
enum Fault : int {
  kPeerEnded = 1000,
  kUnwanted,
  kNoAnswer,
  kNobodyThere,
  kNoRoom,
  kDeviceGone,
  kQueuePairFault,
  kNotFlushed,
  kErrno,  ///< and above: this and an errno
};

class VerbsRail final : public BaseRail {
 public:
  static Result<std::unique_ptr<Rail>> open(const RailOffer& offer, const Settings& settings);
  ~VerbsRail() override;
  VerbsRail(const VerbsRail&) = delete;
  VerbsRail& operator=(const VerbsRail&) = delete;

  std::vector<std::byte> address() const override { return own_address_.pack(); }
  std::string describe_address(std::span<const std::byte> address) const override;
  Result<RemoteId> connect(std::span<const std::byte> address, LinkTag tag) override;
  void disconnect(RemoteId remote) override;
  bool fence(LinkTag tag) override;
  void forget(LinkName link) override { inbound_.forget(link); }
  Liveness liveness(RemoteId remote) override;

  Result<Registration> register_memory(std::span<std::byte> memory, Access access) override;
  void revoke(const Registration& registration) override;

  Post send(RemoteId remote, const LocalChunk& message, PostContext* context) override;
  Post receive(const LocalChunk& buffer, PostContext* context) override;
  Post write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context) override;
  Post read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) override;
  Post atomic(const RemoteChunk& at, AtomicRequest request, const LocalChunk& result, PostContext* context) override;
  void ring() override;
  std::size_t poll(std::span<Event> events) override;
  void stop() override;

  std::string describe_error(int error) const override;

  /// CM messages that nobody with a secret has written.
  std::uint64_t unproven_messages() const { return admission_.unproven(); }

 private:
  static constexpr int kReadBatch = 32;      ///< completions of one call
  static constexpr unsigned kSlowLook = 64;  ///< what seldom happens is looked for every so many polls
  static constexpr unsigned kSetUpLook = 4;  ///< polls between two looks at what is being set up
  static constexpr int kMostTries = 12;      ///< of one CM message
  static constexpr int kProbeEvery = 3;      ///< tries without an answer before the liveness port is asked

  /// Where polls are few: what seldom happens is looked for after so many ticks, some 10 ms.
  static constexpr std::uint64_t kLookTicks = 20'000'000;

  // A wr_id is a receive's context, or a CM message's number (connection_manager.hpp), or of a work request: this bit,
  // its pair's slot and 16 bits of its generation, and its own number.
  static constexpr std::uint64_t kSend = std::uint64_t{1} << 63;
  static constexpr int kSlotShift = SendQueue::kNameShift + 16;
  static constexpr std::uint32_t kSlotMask = (1U << 21) - 1;
  /// A descriptor is the local key, and this where the memory is a GPU's.
  static constexpr std::uintptr_t kOnDevice = std::uintptr_t{1} << 32;

  struct VerbsLink;
  /// A queue pair with whatever it is used for.
  struct Pair : Carrier {
    enum class State : std::uint8_t {
      calling,    ///< our end is known to nobody yet
      answering,  ///< theirs is ours; whether they know it is not known
      standing,
      closing,  ///< in error, until what it had under way has come out
    };
    State state = State::calling;
    QueuePair pair;
    SendQueue queue;
    std::uint32_t slot = 0;
    std::uint32_t first_packet = 0;
    std::shared_ptr<Peer> peer;
    std::uint64_t there = 0;    ///< the peer's handle of it
    VerbsLink* link = nullptr;  ///< ours that uses it
    bool bound = false;         ///< the peer has noted our link
    std::int64_t next_message = 0;
    int tries = 0;
    bool in_handshake = false;  ///< it is in `handshaking_`
    LivenessProbe liveness_probe;
    std::int64_t closing_since = 0;
    bool last_taken = false;  ///< the device says that it takes no more receives

    bool same_peer(const Pair& other) const { return peer->address.name == other.peer->address.name; }
  };
  struct VerbsLink : Link {
    Pair* pair = nullptr;
    std::uint64_t peer = 0;  ///< the name of its rail
  };
  /// A CM message that says an end, until the peer has noted it.
  struct Disconnect {
    std::shared_ptr<Peer> peer;
    CmMessage message;
    std::int64_t next = 0;
    int tries = 0;
  };
  struct Slot {
    std::unique_ptr<Pair> pair;
    std::uint32_t generation = 1;
  };

  VerbsRail() = default;
  Result<void> open_parts(const Settings& settings);
  /// `limit`: how many of the thing the device can have; -1: that is not what it is about.
  Error set_up_error(const char* step, int code, int limit = -1) const;
  Result<void> open_liveness_port(const Settings& settings);
  void set_capabilities();
  Result<void> refuse_if_gone() const;
  /// Everything of the device goes, in order.
  void close_device();

  // pairs.cc
  Result<Pair*> make_pair(std::shared_ptr<Peer> peer);
  /// The first step of a queue pair's way up; `join` takes it to the end. Both answer an errno.
  int begin_pair(ibv_qp* pair) const;
  int join(ibv_qp* pair, std::uint32_t first_packet, const EndData& theirs, const CmAddress& at);
  EndData end_of(const Pair& pair) const;
  Pair* find_pair(std::uint64_t handle);
  std::uint64_t handle_of(const Pair& pair) const;
  void close_pair(Pair& pair, bool tell);
  /// It works no more: whoever uses it hears of that.
  void pair_failed(Pair& pair, int error, bool refused);
  /// Destroys what has come to rest.
  void sweep();
  void say_over(Pair& pair);
  void forget_pair(Pair& pair);

  // memory.cc
  Result<MemoryRegion> register_on_host(std::span<std::byte> memory, Access access, int flags);
  Result<MemoryRegion> register_on_device(std::span<std::byte> memory, Access access, int flags);

  // flush.cc
  /// Makes ready what writes to the memory of this GPU will need.
  Result<void> prepare_flush(int device);
  Result<void> open_flush_buffer(FlushedGpu& gpu);
  int open_flush_pair();
  /// `poll`, where nothing is told that a GPU may not see yet.
  std::size_t poll_flushed(std::span<Event> events);
  void advance_flush();
  /// Begins to make visible what has been written. False: it cannot be.
  bool begin_flush();
  void take_flush(const ibv_wc& completion);
  /// Nobody can say that the GPU sees what was written: it is not told of, and its senders write it again.
  void flush_failed();
  void withhold();

  // links.cc
  void lose(VerbsLink& link, int error, bool refused);
  /// The peer's link with this tag uses the pair from now on. False: the pair was of an earlier epoch, and closes.
  bool seat_inbound(Pair& pair, const LinkTag& tag);
  /// What the peer's link and ours share ends for both.
  void close_inbound(Pair& pair);
  Pair* pair_of_facing(const LinkTag& tag, const Peer& peer);

  // handshakes.cc
  /// May get lost, as on the wire.
  void send_cm_message(const Peer& to, const CmMessage& message);
  void take_datagram(std::span<const std::byte> bytes);
  void write_cm_message(Pair& pair, CmMessage::Kind kind);
  void reply(const CmMessage& message, CmMessage::Kind kind, CmMessage::Reason reason = CmMessage::Reason::none);
  void write_disconnect(std::shared_ptr<Peer> peer, CmMessage message);
  void read_cm_message(const CmMessage& message);
  void take_call(const CmMessage& message);
  void answer_call(Pair& pair, const CmMessage& message);
  void take_answer(const CmMessage& message);
  void take_bind(const CmMessage& message);
  void take_unbind(const CmMessage& message);
  void take_refusal(const CmMessage& message);
  void link_stands(Pair& pair);
  void look_at_handshakes();
  void repeat(Pair& pair, std::int64_t now);
  void begin_handshake(Pair& pair, CmMessage::Kind kind);
  bool ask_inbound_links();

  // health.cc
  /// Looks for what seldom happens, each thing in its turn.
  void look_around();
  void look_at_device();
  void look_for_device();
  void take_device_event(const ibv_async_event& event);
  void device_gone();
  void tell_port(bool down);

  // datapath.cc
  /// Whether a post to it can be made at once: it goes where the last one went, and a place is granted there.
  bool prepared(RemoteId remote) const { return remote == posting_to_ && posting_->has_place(); }
  /// Makes it so by turning to it; false: that was not enough.
  bool turned_to(RemoteId remote) { return remote != posting_to_ && turn_to(remote) && posting_->has_place(); }
  /// Makes it so in any case. `depth`: how many the caller's lane may have under way.
  Post prepare(const char* operation, RemoteId remote, std::uint32_t depth);
  bool turn_to(RemoteId remote);
  void turn_away(const SendQueue& queue);
  void take_back_places();
  Post turn_and_send(RemoteId remote, const LocalChunk& message, PostContext* context);
  Post prepare_and_send(RemoteId remote, const LocalChunk& message, PostContext* context);
  Post turn_and_write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context);
  Post prepare_and_write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context);
  Post refuse_delivery();
  ibv_send_wr& next_work(const LocalChunk& chunk, ibv_wr_opcode opcode, PostContext* context, Event::Kind kind);
  Post posted(ibv_send_wr& work, const LocalChunk& chunk);
  static Post by_address(ibv_send_wr& work);
  bool holds_work() const { return posting_->holds() || to_ring_ != nullptr; }
  void ring_others();
  void not_taken(const SendQueue& queue, int code);
  Post refuse_post(const char* operation, RemoteId remote);
  std::size_t poll_pending(std::span<Event> events);
  std::size_t read_queue(std::span<Event> events);
  /// The pair whose work requests have such wr_ids; it may be another generation of it. Null: there is none.
  Pair* pair_at(std::uint64_t wr_id) const;
  Event* take_received(const ibv_wc& completion, Event* next, Event* end);
  Event* take_sent(SendQueue& queue, std::uint32_t count, Event* next, Event* end);
  Event* take_failed(Pair& pair, const ibv_wc& completion, Event* next, Event* end);
  void take_other(const ibv_wc& completion);
  /// Where an event goes: to the caller, or where he has no room, to the next poll.
  Event* put(const Event& event, Event* next, Event* end);
  /// Takes all that the queue holds into `pending_`.
  void drain();

  const Library* library_ = nullptr;
  Port port_;
  VerbsRailAddress own_address_;
  LivenessPort liveness_port_;
  PeerLiveness peer_liveness_;
  Refusals<std::uint64_t> refusals_;
  ibv_device_attr limits_{};
  std::uint32_t depth_ = 0;
  std::uint32_t data_depth_ = 0;  ///< without the work requests that the data lane leaves to messages
  std::size_t inline_bytes_ = 0;
  std::uint32_t receive_room_ = 0;
  std::uint32_t receives_ = 0;
  std::uint32_t transmit_room_ = 0;  ///< work requests that the completion queue has room for beside granted places
  bool places_idle_ = false;         ///< some may be granted that nobody uses
  std::uint8_t reads_ = 0;
  bool gone_ = false;       ///< the device is
  bool down_ = false;       ///< the port is, or the device
  bool in_system_ = false;  ///< it was in /sys when it was opened
  std::int64_t next_slow_look_ = 0;
  unsigned turn_ = 0;
  bool emptied_ = false;      ///< the last read of the completion queue left nothing there
  std::uint64_t looked_ = 0;  ///< ticks
  std::uint64_t stale_ = 0;   ///< completions of queue pairs that are no more

  // In the order in which they come; they go the other way round.
  DeviceContext context_;
  Domain domain_;
  Queue queue_;
  SharedReceives shared_receives_;
  struct Held {
    MemoryRegion region;
    int device = -1;
  };
  std::unordered_map<std::uint64_t, Held> held_;
  std::uint64_t next_held_ = 1;
  ConnectionManager connection_manager_;
  Admission admission_;
  Flush flush_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  Links<VerbsLink> links_{pending_};
  InboundLinks<Pair> inbound_{pending_};
  // Where the last post went. Posts to the same link need not look for it again.
  static constexpr std::uint64_t kNobody = ~std::uint64_t{0};  ///< no RemoteId
  std::uint64_t posting_to_ = kNobody;
  SendQueue nowhere_;  ///< takes nothing
  SendQueue* posting_ = &nowhere_;
  SendQueue* to_ring_ = nullptr;    ///< others that may hold a chain
  std::vector<Pair*> handshaking_;  ///< those that do not stand yet, or whose link the peer has not noted yet
  std::vector<Pair*> closing_;
  std::vector<Disconnect> disconnects_;
  std::array<std::shared_ptr<Peer>, 32> lately_;  ///< whom replies went to: CM messages may still be on their way out
  std::size_t next_lately_ = 0;
};

}  // namespace railyard::fabric::verbs
