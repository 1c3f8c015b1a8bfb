/// The rendezvous without its sockets: bytes of connections in, bytes for connections out. One thread at a time.
///
/// Nobody is trusted before the proof of the job key: an unauthenticated peer gets a frame of at most `kMostHandshake`
/// bytes, a few seconds, and a slot among a bounded number of unauthenticated peers. Where the slots are full, a
/// newcomer replaces the oldest that has not said hello. One that has keeps its slot for longer than a handshake takes,
/// and newcomers wait in the system's queue: if they pushed each other out, a flood would let no proof arrive in time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "bootstrap/protocol.hpp"
#include "bootstrap/rank_group.hpp"

namespace railyard::bootstrap {

using ConnectionId = std::uint64_t;

struct ServerCoreOptions {
  std::int32_t size = 1;
  std::string job_key;
  std::string where;  ///< the address, for messages
  std::int64_t handshake_timeout_ns = 10'000'000'000;
  bool wrong_key_ends = false;                ///< a wrong proof for a rank that is still awaited ends the job
  std::size_t most_unauthenticated = 0;       ///< 0: enough for every rank to arrive twice at once
  std::function<Result<Nonce>()> make_nonce;  ///< empty: from the system
};

class ServerCore {
 public:
  /// A challenged peer has so long for its proof before it makes room for another.
  static constexpr std::int64_t kLeastStayNs = 1'000'000'000;

  explicit ServerCore(ServerCoreOptions options);

  /// Whether `connected` may be called: a slot is free, or somebody makes room.
  bool has_room(std::int64_t now_ns) const;
  /// Somebody connected. `peer` is an address for messages.
  ConnectionId connected(const std::string& peer, std::int64_t now_ns);
  void received(ConnectionId id, std::span<const std::byte> bytes, std::int64_t now_ns);
  /// The peer closed the connection, or it broke. The id is gone then.
  void closed(ConnectionId id, std::string_view why);
  /// The launcher saw the process of `rank` end; `how` completes "rank 3 ended ...: ".
  void process_ended(std::int32_t rank, std::string how);
  /// Handles what is due.
  void tick(std::int64_t now_ns);
  /// When `tick` is next due; RankGroup::kNever: not by itself.
  std::int64_t deadline() const;

  /// What waits to be sent on a connection; empty: nothing.
  std::span<const std::byte> outgoing(ConnectionId id) const;
  void sent(ConnectionId id, std::size_t bytes);
  /// Nothing more will be sent: once `outgoing` is empty, shut the sending side down.
  bool finished(ConnectionId id) const;
  /// Connections with something new in `outgoing`, `finished` or `dropped` since the last call.
  std::vector<ConnectionId> take_touched();
  /// Connections to close now without further ado. Their ids are gone.
  std::vector<ConnectionId> take_dropped();

  /// Gives up an unauthenticated connection, however young; false when there is none.
  bool drop_unauthenticated();

  std::size_t connections() const { return connections_.size(); }
  bool anything_outgoing() const;

 private:
  enum class Phase : std::uint8_t { hello, proof, member, closing };

  struct Connection {
    explicit Connection(std::string address) : peer(std::move(address)), reader(kMostHandshake) {}
    std::string peer;
    Phase phase = Phase::hello;
    FrameReader reader;
    Handshake handshake;
    std::optional<Seal> seal;
    std::shared_ptr<RankGroup> group;
    std::int64_t since_ns = 0;
    std::int64_t deadline_ns = 0;  ///< of an unauthenticated peer, or of one that is being closed
    std::deque<SharedBytes> queue;
    std::size_t queue_offset = 0;
  };

  bool handle(ConnectionId id, Connection& connection, Frame& frame, std::int64_t now_ns);
  bool handle_hello(ConnectionId id, Connection& connection, const Frame& frame, std::int64_t now_ns);
  bool handle_proof(ConnectionId id, Connection& connection, const Frame& frame, std::int64_t now_ns);
  bool handle_member(ConnectionId id, Connection& connection, Frame& frame, std::int64_t now_ns);
  void wrong_key(ConnectionId id, Connection& connection, std::int64_t now_ns);
  bool welcome(ConnectionId id, Connection& connection, std::int64_t now_ns);
  void send(ConnectionId id, Connection& connection, const OutgoingFrame& frame);
  void refuse(ConnectionId id, Connection& connection, Complaint complaint, std::int64_t now_ns);
  void protocol_error(ConnectionId id, Connection& connection, std::string_view what, std::int64_t now_ns);
  void begin_closing(ConnectionId id, Connection& connection, std::int64_t now_ns);
  /// Where `rank` may sit down; null with `complaint` filled in when nowhere.
  std::shared_ptr<RankGroup> find_group(std::int32_t rank, Complaint& complaint);
  void deliver(const std::shared_ptr<RankGroup>& group, const RankGroup::Outcome& outcome);
  void end_old_groups();
  std::size_t with_deadline() const { return expendable_.size() + challenged_.size(); }
  template <typename Visit>
  void visit_with_deadline(Visit visit) const;
  /// The connection that makes room for another: one that was challenged only after it had that long.
  std::optional<ConnectionId> who_makes_room(std::int64_t now_ns, std::int64_t least_stay_ns) const;
  void drop(ConnectionId id);
  void forget(ConnectionId id);

  ServerCoreOptions options_;
  Job job_;
  std::deque<std::shared_ptr<RankGroup>> groups_;
  std::map<ConnectionId, Connection> connections_;
  std::map<std::pair<const RankGroup*, std::int32_t>, ConnectionId> members_;
  // Those with a deadline of their own, oldest first.
  std::set<ConnectionId> expendable_;  ///< they have not said hello, or are being closed
  std::set<ConnectionId> challenged_;  ///< their proof is to come
  std::set<ConnectionId> touched_;
  std::vector<ConnectionId> dropped_;
  ConnectionId last_id_ = 0;
  LogLimit complaints_;
};

}  // namespace railyard::bootstrap
