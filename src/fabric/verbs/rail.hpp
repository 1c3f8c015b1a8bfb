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
#include <set>
#include <unordered_map>

#include "fabric/pending.hpp"
#include "fabric/verbs/connection_manager.hpp"
#include "fabric/verbs/liveness_port.hpp"
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
  kErrno,  ///< and above: this and an errno
};

class VerbsRail final : public Rail {
 public:
  static Result<std::unique_ptr<Rail>> open(const RailOffer& offer, const Settings& settings);
  ~VerbsRail() override;
  VerbsRail(const VerbsRail&) = delete;
  VerbsRail& operator=(const VerbsRail&) = delete;

  const Capabilities& capabilities() const override { return capabilities_; }
  std::string name() const override { return name_; }
  std::string fabric() const override { return port_.fabric; }
  std::vector<std::byte> address() const override { return own_address_.pack(); }
  Result<RemoteId> connect(std::span<const std::byte> address, LinkTag tag) override;
  void disconnect(RemoteId remote) override;
  bool fence(LinkTag tag) override;
  void forget(LinkName link) override { epochs_.erase(link); }
  Liveness liveness(RemoteId remote) override;

  Result<Registration> register_memory(std::span<std::byte> memory, Access access) override;
  void revoke(const Registration& registration) override;

  Post send(RemoteId remote, LocalChunk message, PostContext* context) override;
  Post receive(LocalChunk buffer, PostContext* context) override;
  Post write(RemoteChunk to, LocalChunk from, WriteOptions options, PostContext* context) override;
  Post read(RemoteChunk from, LocalChunk to, PostContext* context) override;
  Post atomic(RemoteChunk at, AtomicRequest request, LocalChunk result, PostContext* context) override;
  void ring() override;
  std::size_t poll(std::span<Event> events) override;
  void stop() override;

  std::string describe_error(int error) const override;
  std::string failure() const override;

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
  static constexpr int kSlotShift = 40;
  static constexpr std::uint32_t kSlotMask = (1U << 22) - 1;

  /// A queue pair with whatever it is used for.
  struct Pair {
    enum class State : std::uint8_t {
      calling,    ///< our end is known to nobody yet
      answering,  ///< theirs is ours; whether they know it is not known
      standing,
      closing,  ///< in error, until what it had under way has come out
    };
    State state = State::calling;
    QueuePair pair;
    SendQueue queue;
    Pair* rings_after = nullptr;  ///< the next of `to_ring_`
    std::uint32_t slot = 0;
    std::uint32_t first_packet = 0;
    std::shared_ptr<Peer> peer;
    std::uint64_t there = 0;              ///< the peer's handle of it
    std::optional<RemoteId> link;         ///< ours that uses it
    bool bound = false;                   ///< the peer has noted our link
    std::optional<LinkTag> inbound_link;  ///< the peer's link that uses it
    std::int64_t next_message = 0;
    int tries = 0;
    bool in_handshake = false;  ///< it is in `handshaking_`
    LivenessProbe liveness_probe;
    std::int64_t closing_since = 0;
    bool last_taken = false;           ///< the device says that it takes no more receives
    std::optional<LinkTag> leaves;     ///< to be reported when it has gone
    std::optional<LinkName> shut_out;  ///< the link whose fence waits for it
  };
  /// A cache line: a post looks at nothing else to find its pair.
  struct alignas(64) VerbsLink {
    enum class State : std::uint8_t { free, connecting, up, lost };
    State state = State::free;
    Pair* pair = nullptr;
    LinkTag tag;
  };
  /// Whether the process of a silent peer lives.
  struct Inquiry {
    std::uint64_t name = 0;  ///< of the peer's rail
    LivenessProbe liveness_probe;
  };
  /// What is known of a peer's link over all its epochs.
  struct InboundEpochs {
    std::uint32_t newest = 0;
    std::optional<std::uint32_t> fenced;  ///< up to this one they are shut out
    std::uint64_t fence_mark = 0;         ///< the events that came before the fence
    std::size_t closing = 0;              ///< queue pairs that have to be gone first
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
  void set_capabilities();
  Result<void> refuse_if_stopped() const;
  /// Everything of the device goes, in order.
  void close_device();

  // pairs.cc
  Result<Pair*> make_pair(std::shared_ptr<Peer> peer);
  int join(Pair& pair, const EndData& theirs, const VerbsRailAddress& at);
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

  // links.cc
  bool known(RemoteId remote) const { return remote < links_.size() && links_[remote].state != VerbsLink::State::free; }
  RemoteId take_slot();
  void lose(RemoteId remote, int error, bool refused);
  bool welcome(const LinkTag& tag) const;
  /// The peer's link with this tag uses the pair from now on.
  void seat_inbound_link(Pair& pair, const LinkTag& tag);
  /// Closes the pairs of a peer's link in its epochs up to this one; `fences`: they are not reported, but waited for.
  void close_inbound_links(LinkName id, std::uint32_t epoch, bool fences);
  void report_left(const LinkTag& tag);
  Pair* pair_of_facing(const LinkTag& tag, const Peer& peer);

  // handshakes.cc
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
  Pair* ready_pair(RemoteId remote) {
    if (remote >= links_.size() || links_[remote].state != VerbsLink::State::up) return nullptr;
    return links_[remote].pair;
  }
  /// `depth`: how many the caller's lane may have under way.
  bool has_room(const Pair& pair, std::uint32_t depth) const {
    return pair.queue.outstanding() < depth && transmit_room_ != 0;
  }
  ibv_send_wr& add(Pair& pair, const LocalChunk& chunk, PostContext* context, Event::Kind kind, bool copies);
  Post posted(const Pair& pair);
  void not_taken(Pair& pair, int code);
  Post refuse_post(const char* operation, RemoteId remote);
  Post fail(const char* operation, int error);
  std::size_t read_queue(std::span<Event> events, bool& emptied);
  Pair* pair_named(std::uint64_t wr_id);
  Event* take_received(const ibv_wc& completion, Event* next, Event* end);
  Event* take_sent(Pair& pair, std::uint32_t count, Event* next, Event* end);
  Event* take_failed(Pair& pair, const ibv_wc& completion, Event* next, Event* end);
  void take_other(const ibv_wc& completion);
  /// Where an event goes: to the caller, or where he has no room, to the next poll.
  Event* put(const Event& event, Event* next, Event* end);
  /// Takes all that the queue holds into `pending_`.
  void drain();

  const Library* library_ = nullptr;
  Capabilities capabilities_;
  Port port_;
  std::string name_;
  VerbsRailAddress own_address_;
  LivenessPort liveness_port_;
  std::set<std::uint64_t> reached_;  ///< peers' rails that a queue pair has stood to
  ibv_device_attr limits_{};
  std::uint32_t depth_ = 0;
  std::uint32_t data_depth_ = 0;  ///< without the work requests that the data lane leaves to messages
  std::uint32_t inline_bytes_ = 0;
  std::uint32_t receive_room_ = 0;
  std::uint32_t receives_ = 0;
  std::uint32_t transmit_room_ = 0;  ///< work requests that the completion queue still has room for
  std::uint8_t reads_ = 0;
  bool stopped_ = false;
  bool gone_ = false;       ///< the device is
  bool down_ = false;       ///< the port is, or the device
  bool in_system_ = false;  ///< it was in /sys when it was opened
  std::int64_t next_slow_look_ = 0;
  unsigned turn_ = 0;
  std::uint64_t looked_ = 0;  ///< ticks
  const char* failed_operation_ = "";
  int failed_error_ = 0;
  std::uint64_t stale_ = 0;  ///< completions of queue pairs that are no more

  // In the order in which they come; they go the other way round.
  DeviceContext context_;
  Domain domain_;
  Queue queue_;
  SharedReceives shared_receives_;
  std::unordered_map<std::uint64_t, MemoryRegion> held_;
  std::uint64_t next_held_ = 1;
  ConnectionManager connection_manager_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<VerbsLink> links_;
  std::vector<RemoteId> free_links_;
  Pair* to_ring_ = nullptr;         ///< those that hold a chain
  std::vector<Pair*> handshaking_;  ///< those that do not stand yet, or whose link the peer has not noted yet
  std::vector<Pair*> closing_;
  std::vector<Disconnect> disconnects_;
  std::array<std::shared_ptr<Peer>, 32> lately_;  ///< whom replies went to: CM messages may still be on their way out
  std::size_t next_lately_ = 0;
  std::unordered_map<LinkName, InboundEpochs, LinkNameHash> epochs_;
  std::unordered_map<RemoteId, Inquiry> inquiries_;  ///< after peers that are silent
  PendingEvents pending_;
};

}  // namespace railyard::fabric::verbs
