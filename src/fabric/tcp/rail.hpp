/// A rail over TCP sockets of one network interface. docs/tcp.md tells the whole story.
///
/// Links have one direction, connections have two. A link of ours and the peer's link back over the same two rails
/// (LinkTag::facing) share one connection, in which messages and data of both travel as frames; a link that faces
/// nobody has one to itself. Whoever closes a connection ends both links.
///
/// Everything happens inside `poll` and `ring`: nothing blocks, there is no thread. Connections that had traffic lately
/// are read from directly; the others, and whatever seldom happens, are found through epoll.
#pragma once

#include <unordered_map>

#include "fabric/base_rail.hpp"
#include "fabric/refusals.hpp"
#include "fabric/tcp/connection.hpp"
#include "fabric/tcp/device_account.hpp"
#include "fabric/tcp/device_traffic.hpp"
#include "fabric/tcp/interface.hpp"
#include "fabric/tcp/socket.hpp"

namespace railyard::fabric::tcp {

/// Why a link was lost or an operation failed, beyond what errno says.
enum Fault : int {
  kPeerClosed = 1000,  ///< the peer ended the connection
  kNoSuchRegion,       ///< the target has no such key or range
  kBadFrame,           ///< the peer sent what this library would not
  kNotThePeer,         ///< somebody else listens there
  kOtherDevice,        ///< bytes would travel by another NIC than the rail's
  kMisrouted,          ///< the peer's process lives, and packets for its rail arrive at another NIC of its host
  kGpuFailed,          ///< a GPU of this process did not make a copy
  kTargetGpuFailed,    ///< a GPU of the target did not
};

class TcpRail final : public BaseRail {
 public:
  static Result<std::unique_ptr<Rail>> open(const RailOffer& offer, const Interface& interface,
                                            const Settings& settings);
  ~TcpRail() override;
  TcpRail(const TcpRail&) = delete;
  TcpRail& operator=(const TcpRail&) = delete;

  std::vector<std::byte> address() const override { return own_.pack(); }
  std::string describe_address(std::span<const std::byte> address) const override;
  Result<RemoteId> connect(std::span<const std::byte> address, LinkTag tag) override;
  void disconnect(RemoteId remote) override;
  bool fence(LinkTag tag) override;
  void forget(LinkId link) override { inbound_.forget(link); }

  Result<Registration> register_memory(std::span<std::byte> memory, Access access) override;
  void revoke(const Registration& registration) override;

  Post send(RemoteId remote, const LocalChunk& message, PostContext* context) override;
  Post receive(const LocalChunk& buffer, PostContext* context) override;
  Post write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context) override;
  Post read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) override;
  void ring() override;
  std::size_t poll(std::span<Event> events) override;
  bool quiet() const override;
  int descriptor() const override { return epoll_.get(); }
  bool arm() override;
  void warm_up(RemoteId remote) const override;
  Liveness liveness(RemoteId remote) override;
  std::optional<Delivery> delivery(RemoteId remote) override;
  OneSided one_sided() const override { return one_sided_; }
  void stop() override;

  std::string describe_error(int error) const override;

 private:
  static constexpr std::size_t kDepth = 1024;
  static constexpr unsigned kOwedTurns = 8;  ///< passes after which an acknowledgement leaves that waits for company
  static constexpr unsigned kPatientTurns = 256;  ///< and one that nobody waits for
  static constexpr unsigned kQuietAfter = 64;     ///< passes without anything until other rails go first
  static constexpr unsigned kEpollEvery = 16;     ///< passes between two looks at epoll while connections are active
  static constexpr std::uint64_t kMostIdleGap = 40'000;   ///< ticks between two looks at epoll while none is active
  static constexpr std::uint64_t kMostRareGap = 400'000;  ///< and while there is none
  static constexpr unsigned kHeat = 1024;                 ///< idle passes after which a connection is left to epoll
  static constexpr std::size_t kMostActive = 8;           ///< with more, epoll says which of them to read from
  static constexpr std::size_t kStaging = std::size_t{64} << 10U;
  static constexpr std::size_t kMostUnproven = 32;

  struct Region {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    int device = -1;  ///< whose memory it is; -1: the host's
  };
  /// A connection that was accepted and has proven nothing yet.
  struct Unproven {
    Fd socket;
    bool greeted = false;    ///< its HELLO was right: it waits for the PROOF
    bool misrouted = false;  ///< it arrived at another NIC than the rail's
    std::array<std::byte, kMostHandshakeBytes> in{};
    std::size_t have = 0;
    Transcript transcript;
    std::int64_t since = 0;
  };

  TcpRail() = default;
  Result<void> open_parts(const Settings& settings);
  Result<void> open_listener(const Settings& settings);
  Error set_up_error(const char* step) const;
  Post refuse_post(const char* operation, RemoteId remote);

  // links.cc: what this rail connects to
  /// Binds to the connection of the facing link where there is one, else connects.
  void begin(TcpLink& link);
  bool bind_to_facing(TcpLink& link);
  void start_connecting(TcpLink& link);
  /// An attempt met nobody who would hear it: it is made again in a while. `least_pause`: it was refused.
  void try_again(TcpLink& link, std::int64_t least_pause = 0);
  void leave_connection(TcpLink& link);
  void look_at_attempts();
  void connecting_done(Connection& connection);
  void read_handshake(Connection& connection);
  void take_verdict(Connection& connection);
  void link_stands(TcpLink& link, Connection& connection);
  void lose(TcpLink& link, int error);
  /// Somebody has refused the attempt.
  void turned_away(TcpLink& link, int error);
  void return_contexts(TcpLink& link);
  bool leaves_by_own_device(const Endpoint& target);
  bool leaves_host(int socket) const;
  void log_connection(int socket) const;

  // connections.cc
  Connection& add_connection(Fd socket, Connection::Phase phase);
  /// What it carried is over. `error`: why our link is lost.
  void end_connection(Connection& connection, int error);
  /// Says the end in good order: what was sent before arrives.
  void close_in_order(Connection& connection);
  void let_go_of_receive(Connection& connection);
  void sweep();
  void activate(Connection& connection);
  bool epoll_is_due();
  void look_at_epoll();

  // admission.cc: who may become an inbound connection
  void look_at_admissions();
  void accept_from(int listener, bool misrouted);
  void read_unproven(Unproven& one);
  void drop(Unproven& one);
  bool make_room_for_unproven();
  /// Whether somebody with the same nonce is there: every genuine attempt has one of its own.
  bool recorded(const Hello& hello) const;
  Verdict judge(const Hello& hello, bool misrouted);
  TcpLink* facing(const Hello& hello) const;
  void admit(Unproven& one);

  // inbound.cc: what peers' links may do
  bool seat_inbound(Connection& connection, const LinkTag& tag);
  void take_bind(Connection& connection);
  void take_bound(Connection& connection);
  void take_unbind(Connection& connection);

  // transmit.cc
  void mark_dirty(Connection& connection) {
    if (connection.dirty) return;
    connection.dirty = true;
    dirty_.push_back(&connection);
  }
  void flush(Connection& connection, bool at_once);
  /// `at_once`: nothing waits for company.
  void flush_dirty(bool at_once = false);
  static bool waits_for_company(const Connection& connection);
  /// `all`: also those that nobody waits for.
  void flush_owing(bool all);
  void fill(Connection& connection);
  bool add_due_message(Connection& connection);
  bool add_bulk(Connection& connection);
  void add_frame(Connection& connection, const Frame& frame, const std::byte* payload, PostContext* context,
                 std::uint64_t key = 0);
  void add_frame_at(Connection& connection, std::size_t at, const Frame& frame, const std::byte* payload,
                    PostContext* context, std::uint64_t key);
  void add_message(Connection& connection, TcpLink& link);
  void add_write(Connection& connection, TcpLink& link);
  void add_read_data(Connection& connection);
  void refuse(Connection& connection, std::uint32_t number, Refused what);
  static ssize_t send_vectors(const Connection& connection, std::span<iovec> vectors, bool messages);
  void sent_bytes(Connection& connection, std::size_t bytes);
  void frame_sent(Connection& connection, const OutgoingFrame& frame);
  void unreadable_source(Connection& connection);

  // receive.cc
  bool read_from(Connection& connection, std::size_t room);
  void throw_away_input(Connection& connection);
  void parse(Connection& connection, std::span<const std::byte> bytes);
  /// False: no more can be done with this connection for now.
  bool begin_frame(Connection& connection);
  bool begin_read_data(Connection& connection);
  void finish_frame(Connection& connection);
  void finish_write(Connection& connection, std::byte* bounce);
  void land(Connection& connection, const ArrivedWrite& write);
  bool stall(Connection& connection);
  void serve_read(Connection& connection);
  void take_acknowledgement(Connection& connection);
  void take_refusal(Connection& connection);
  void resume_stalled();
  const Region* find_region(std::uint64_t key, std::uint64_t offset, std::uint64_t bytes) const;

  // device_fetch.cc: device memory on its way out
  Result<void> open_device(int device);
  bool fetch(Connection& connection, std::vector<Fetch>& queue, int device, const std::byte* from, Fetch wanted);
  void fetch_ahead(Connection& connection);
  void fetch_writes(Connection& connection, TcpLink& link);
  void fetch_answers(Connection& connection);
  DeviceCopies::State state_of(const Fetch& fetch);
  DeviceCopies::State state_of_first(const std::vector<Fetch>& queue);
  /// Of the next fragment of the oldest write, or read that is answered: done for those of the host.
  DeviceCopies::State state_of_write(TcpLink& link) {
    const Posted& posted = posted_of(link.bulk.front());
    if (!posted.on_device() || posted.kind != FrameKind::write) [[likely]]
      return DeviceCopies::State::done;
    return state_of_first(link.fetches);
  }
  DeviceCopies::State state_of_answer(Connection& connection) {
    const ServedRead& read = connection.served.front();
    if (!read.on_device() || read.refused) [[likely]]
      return DeviceCopies::State::done;
    return state_of_first(connection.served_fetches);
  }
  static std::byte* take_fetched(std::vector<Fetch>& queue);
  bool give_up_write(Connection& connection, TcpLink& link);
  void give_up_answer(Connection& connection);
  void look_at_fetches();
  void free_outgoing_buffers();

  // device_land.cc: device memory that bytes arrive for
  bool take_buffer(Connection& connection, int device, std::byte* to);
  void cut_oldest();
  bool buffers_may_be_had() const;
  void begin_landing(Connection& connection, std::byte* bounce, std::size_t bytes, Landing landing);
  void finish_device_read(Connection& connection, std::byte* bounce, PostContext* context);
  void look_at_landings();
  void finish_landing(Connection& connection, Landing& landing, bool good);
  void look_at_device();
  void look_at_draining();
  void drain(DeviceCopies& copies, const DeviceCopy& copy);
  void let_go_of_device(Connection& connection);
  void let_go_of_fetches(std::vector<Fetch>& fetches);
  bool ends_after_copies(PostContext* context);
  void wait_for_copies(std::uint64_t key);
  bool copies_of(const LinkTag& tag) const;
  bool device_is_busy();

  // datapath.cc
  void post(TcpLink& link, PostContext* context, bool message);
  void give_back(PostContext* context, Event::Kind kind, std::size_t bytes);
  void fail_operation(PostContext* context, int error, Blame blame);
  void look(std::size_t room);
  bool read_active(std::size_t room);
  void quieten();
  void look_at_own_interface();
  void look_at_device_account();

  Interface interface_;
  bool bound_ = false;  ///< the kernel holds its sockets to the device
  TcpRailAddress own_;
  std::vector<std::byte> job_key_;
  Secret admission_key_{};
  SocketOptions socket_options_;
  unsigned turn_ = 0;
  unsigned found_ = 0;              ///< the last turn that something came in
  std::uint64_t epoll_looked_ = 0;  ///< ticks
  std::uint64_t epoll_gap_ = 0;

  Fd epoll_;
  Fd admission_set_;  ///< an epoll set of the listener and of the unproven
  Fd listener_;
  Fd misrouted_listener_;  ///< the same port on the host's other NICs: a process that lives refuses nobody
  std::unique_ptr<std::byte[]> staging_;

  Links<TcpLink> links_{pending_};
  InboundLinks<Connection> inbound_{pending_};
  std::vector<TcpLink*> attempting_;  ///< links that do not stand yet
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> active_;
  std::vector<Connection*> dirty_;
  std::vector<Connection*> owing_;
  std::vector<Connection*> heard_;  ///< since somebody last slept
  std::vector<Connection*> stalled_;
  std::size_t blocked_ = 0;
  std::size_t lingering_ = 0;
  bool sweeps_ = false;  ///< some connection is closed and can go

  std::vector<std::unique_ptr<Unproven>> unproven_;
  bool admission_waits_ = false;  ///< somebody asks, or may ask, for admission
  std::int64_t admission_opens_at_ =
      0;                     ///< not looked at before: those without the secret get a small share of the time
  std::int64_t wasted_ = 0;  ///< nanoseconds spent on them since somebody had it

  Refusals<RailName> refusals_;
  std::unordered_map<std::uint64_t, Region> regions_;
  PostQueue receives_;
  std::size_t receive_count_ = 0;
  OneSided one_sided_;

  std::unique_ptr<DeviceTraffic> device_;  ///< null: no memory of a GPU was ever registered

  std::shared_ptr<DeviceAccount> device_account_;  ///< null on loopback
  std::uint64_t unaccounted_ = 0;                  ///< bytes sent through the device that it does not know of yet
};

/// The machine's monotonic clock, in nanoseconds.
std::int64_t now_ns();

}  // namespace railyard::fabric::tcp
