/// A rail of connected endpoints (FI_EP_MSG): each link and lane has a connection of its own, so one link can break, be
/// ended or be shut out without touching the others.
///
/// Links have one direction. The side that connects posts writes and reads; the side that accepts only takes them in.
/// So a rail has *links*, which it made, and *inbound links*, endpoints that it accepted. A peer that sends both ways
/// has one of each. Connections are made inside `poll`, of both peers: nobody blocks.
///
/// Messages. Two connections that each carry messages one way cost a packet of acknowledgement for every one or two of
/// them, which is half of a short round trip over tcp. So where two rails have a link each way, the messages of both
/// take the control connection of one: the one whose rail has the smaller name. The two links then share its fate. A
/// fence need not be exact for messages: the transport drops one that comes late.
///
/// Queues. Over tcp a look at a queue is a system call: one queue for all messages, looked at every time; one for what
/// inbound links write, looked at while it lately had work, else every `kIdleLook`-th time; one for the links' own
/// writes and reads, looked at while some are out. The rest (connections, broken links that are silent, the interface)
/// is looked at every `kSlowLook`-th time.
///
/// Admission. A connection request proves the rail's secret and is good for one time (request.hpp); whoever sends
/// another one is refused before any endpoint is opened. What libfabric itself holds for a connection until its request
/// has come whole is out of our reach.
#pragma once

#include <map>

#include "base/log.hpp"
#include "fabric/in_flight.hpp"
#include "fabric/inbound.hpp"
#include "fabric/ofi/address.hpp"
#include "fabric/ofi/admission.hpp"
#include "fabric/ofi/rail.hpp"
#include "fabric/ofi/socket_of.hpp"
#include "fabric/refusals.hpp"

namespace railyard::fabric::ofi {

class ConnectedRail final : public OfiRail {
 public:
  static Result<std::unique_ptr<Rail>> open(const RailOffer& offer, const Choice& choice,
                                            std::span<const std::byte> job_key);
  ~ConnectedRail() override;

  std::vector<std::byte> address() const override;
  Result<RemoteId> connect(std::span<const std::byte> address, LinkTag tag) override;
  void disconnect(RemoteId remote) override;
  bool fence(LinkTag tag) override;
  void forget(LinkName link) override { inbound_.forget(link); }
  Liveness liveness(RemoteId remote) override;
  std::optional<Delivery> delivery(RemoteId remote) override;

  Post send(RemoteId remote, const LocalChunk& message, PostContext* context) override;
  Post receive(const LocalChunk& buffer, PostContext* context) override;
  Post write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context) override;
  Post read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) override;
  std::size_t poll(std::span<Event> events) override;
  void stop() override;

 private:
  static constexpr unsigned kIdleLook = 16;                 ///< an idle data lane is looked at every so many polls
  static constexpr unsigned kWarmLooks = 1024;              ///< polls that it counts as busy after its last event
  static constexpr int kLastLooks = 16;                     ///< at the listener before it is closed
  static constexpr std::int64_t kMostRunOut = 100'000'000;  ///< nanoseconds that a data lane has to come to its end
  static constexpr unsigned kSetUpLook = 4;  ///< polls between two looks at connections that are being made
  /// Events of connections, and batches of completions of each queue, that one such look handles: the next poll goes
  /// on.
  static constexpr int kMostConnectionEvents = 32;
  static constexpr int kMostBatches = 16;
  /// Injected messages in a row. The next one is a plain send: its completion says that all before it have gone out,
  /// so what a stalled peer leaves in the provider is bounded.
  static constexpr unsigned kMostInjected = 15;

  enum QueueName : std::size_t { kMessages, kInboundLinkData, kLinkData, kQueues };
  static constexpr RemoteId kReceive = UINT32_MAX;  ///< in a context: it belongs to a receive, not to a link

  /// One lane of a link.
  struct End {
    Fid<fid_ep> endpoint;
    bool stands = false;          ///< the peer has accepted it
    bool ended = false;           ///< the provider has said so: nothing is under way in it any more
    std::size_t outstanding = 0;  ///< transmits without their completion yet
    unsigned injected = 0;        ///< since the last plain send
  };
  struct OfiLink : Link {
    std::array<End, kLanes> ends;
    OfiRailAddress peer;             ///< the rail it leads to
    fid_ep* message_way = nullptr;   ///< where its messages go: its own control lane or an inbound link's
    std::int64_t run_out_until = 0;  ///< it was disconnected with its data lane in use
    InFlight in_flight;
  };
  struct EndName {
    RemoteId remote = 0;
    Lane lane = Lane::control;
  };
  /// An endpoint that was accepted: one lane of a peer's link.
  struct Accepted : Carrier {
    Fid<fid_ep> endpoint;
    RailName from{};
    bool stands = false;

    bool same_peer(const Accepted& other) const { return from == other.from; }
    bool carries(Lane which) const { return lane == index_of(which); }
  };

  Result<void> open_parts();
  Result<void> open_listener();
  Result<void> open_shared_receives(Lane lane, QueueName queue);
  /// An endpoint on its queue and shared receives, not yet connected.
  Result<Fid<fid_ep>> open_endpoint(fi_info& info, Lane lane, bool inbound_link);
  fid_ep* endpoint_for(Lane /*lane*/) override { return nullptr; }  // such providers are not taken: see discover.cc
  void cut_off_peers() override;
  OfiRailAddress own_address() const {
    return {capabilities_.provider, info_->addr_format, {listener_name_}, admission_.rail(), admission_.secret()};
  }

  // links.cc: what this rail connects to
  Result<void> begin_end(OfiLink& link, Lane lane);
  void end_stands(const EndName& name);
  void lose(OfiLink& link, int error, bool refused);
  bool begin_run_out(const OfiLink& link);
  void run_out();
  void close_end(End& end, QueueName queue);
  void close_last(OfiLink& link);
  bool rides_on_inbound_link(const OfiLink& link) const;
  void choose_message_way(OfiLink& link);

  // inbound_links.cc: what connects to this rail
  void admit(fi_info& info, std::span<const std::byte> data);
  Result<Accepted*> accept(fi_info& info, const LinkRequest& request);
  void reject(const fi_info& info, std::span<const std::byte> word);
  void accepted_stands(Accepted& one);
  /// Also loses the links whose messages go there.
  void close_accepted(Accepted& one);

  // connection_events.cc
  void look_at_connections();
  /// Handles a batch of events.
  void read_connections();
  /// False: there was none.
  bool read_connection_event();
  void mark_sockets();
  bool read_connection_error();
  void connection_ended(fid* endpoint, int error, bool refused);

  // connected_datapath.cc
  /// A link that takes posts; else null.
  OfiLink* ready(RemoteId remote) { return broken_ != 0 ? nullptr : links_.ready(remote); }
  Post refuse_post(const char* operation, RemoteId remote);
  Post settle(OfiLink& link, Lane lane, ssize_t code, const char* operation, PostContext* context);
  Post inject(OfiLink& link, const LocalChunk& message, PostContext* context);
  std::size_t take_injected(std::span<Event> events);
  bool wants_look(QueueName name);
  std::size_t read_queue(QueueName name, std::span<Event> events);
  bool read_entry(QueueName name, const fi_cq_data_entry& entry, Event& event);
  bool read_failure(QueueName name, Event& event);
  void give_back(PostContext* context, Lane lane);
  /// Takes some of what the queue holds into `pending_`. False: there was nothing more.
  bool take_batch(QueueName name);
  /// Takes all of it.
  void drain(QueueName name);

  unsigned warm_ = 0;
  std::size_t first_queue_ = 0;          ///< the last poll had no room left for this one
  std::size_t setting_up_ = 0;           ///< accepted endpoints that do not stand yet
  bool more_connection_events_ = false;  ///< the last look had enough of them
  bool unmarked_sockets_ = false;        ///< connections stand whose sockets a child would still get
  std::array<std::size_t, kLanes> outstanding_{};
  std::vector<PostContext*> injected_;  ///< gone out already, still to be told; never grows past its reserve

  Fid<fid_eq> events_;
  std::array<Fid<fid_cq>, kQueues> queues_;
  std::array<Fid<fid_ep>, kLanes> shared_receives_;  ///< data lane: only where immediates use up receives
  Fid<fid_pep> listener_;
  std::vector<std::byte> listener_name_;
  Admission admission_;
  LogLimit rejections_told_{1};
  Sockets leftovers_;  ///< of requests that were half here when the listener was closed
  Links<OfiLink> links_{pending_};
  std::vector<RemoteId> running_out_;  ///< links that were disconnected and whose data lane is coming to its end
  std::map<fid*, EndName> end_names_;
  InboundLinks<Accepted> inbound_{pending_};
  std::map<fid*, Accepted> accepted_;
  Refusals<RailName> refusals_;
};

}  // namespace railyard::fabric::ofi
