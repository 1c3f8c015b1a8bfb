/// Those who connect, without their sockets: bytes of connections in, bytes for connections out. One thread at a time.
///
/// Nobody is trusted before the proof of the key: an unauthenticated peer gets a frame of at most `kMostHandshake`
/// bytes, a few seconds, and a slot among a bounded number of unauthenticated peers. Where the slots are full, a
/// newcomer replaces the oldest that has not said hello. One that has keeps its slot for longer than a handshake takes,
/// and newcomers wait in the system's queue: if they pushed each other out, a flood would let no proof arrive in time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "railyard/result.hpp"
#include "rendezvous/handshake.hpp"

namespace railyard::rendezvous {

using ConnectionId = std::uint64_t;

/// What an acceptor asks and tells the protocol that is spoken through it. Any of these may call the acceptor.
class AcceptingProtocol {
 public:
  virtual ~AcceptingProtocol() = default;
  /// The key of what the connection claims; an error is what it is told instead.
  virtual Result<std::string> key_of(ConnectionId id, Bytes claim) = 0;
  /// It does not know that key: what it is told.
  virtual Complaint wrong_key(ConnectionId id) = 0;
  /// It knows the key. A complaint: it is not let in all the same.
  virtual std::optional<Complaint> proven(ConnectionId id) = 0;
  /// A frame of one that was let in.
  virtual void received(ConnectionId id, Frame& frame) = 0;
  /// The time of one that was let in, set by `set_deadline`, is up.
  virtual void late(ConnectionId id) = 0;
  /// One whose claim was heard has gone, or was turned away for what it sent; not after `refuse`, `close` or `drop`.
  /// `why` completes "is gone: ".
  virtual void lost(ConnectionId id, std::string_view why) = 0;
};

struct AcceptorOptions {
  Protocol protocol = Protocol::job;
  std::string who;             ///< "the rendezvous at 192.0.2.1:4711", for the log
  std::size_t most_frame = 0;  ///< the longest one of the protocol
  std::size_t most_unauthenticated = 1024;
  std::int64_t handshake_timeout_ns = 10'000'000'000;
  std::function<Result<Nonce>()> make_nonce;  ///< empty: from the system
};

/// What an acceptor counted of those who connected. A connection that is at fault is closed, no other is touched.
struct AcceptorCounts {
  std::uint64_t malformed = 0;  ///< sent what is no message of Railyard, or of another version
  std::uint64_t unknown = 0;    ///< claimed what is not there
  std::uint64_t forged = 0;     ///< did not know the key, or sent a frame with a wrong seal
  std::uint64_t late = 0;       ///< did not prove themselves in time, or made room for others
};

class Acceptor {
 public:
  static constexpr std::int64_t kNever = INT64_MAX;
  /// A challenged peer has so long for its proof before it makes room for another.
  static constexpr std::int64_t kLeastStayNs = 1'000'000'000;

  /// `protocol` and `clock` must outlive it.
  Acceptor(AcceptorOptions options, AcceptingProtocol& protocol, const Clock& clock);

  // ---- Of the sockets ----

  /// Whether `connected` may be called: a slot is free, or somebody makes room.
  bool has_room() const;
  /// Somebody connected. `id` grows from call to call; `peer` is an address for messages.
  void connected(ConnectionId id, const std::string& peer);
  void received(ConnectionId id, Bytes bytes);
  /// The peer closed the connection, or it broke. The id is gone then.
  void closed(ConnectionId id, std::string_view why);
  /// Gives up an unauthenticated connection, however young; false when there is none.
  bool drop_unauthenticated();
  /// Whose time is up, and handling that.
  std::vector<ConnectionId> late() const;
  void tick();
  /// When `tick` is next due; kNever: not by itself.
  std::int64_t deadline() const { return deadlines_.empty() ? kNever : deadlines_.begin()->first; }
  std::int64_t deadline_of(ConnectionId id) const;
  /// What is said on a connection; null: it is gone.
  Conversation* conversation(ConnectionId id);
  /// Nothing more will be sent: once nothing is outgoing, shut the sending side down.
  bool finished(ConnectionId id) const;
  /// Connections with something new outgoing, or finished, since the last call.
  std::vector<ConnectionId> take_touched();
  /// Connections to close now without further ado. Their ids are gone.
  std::vector<ConnectionId> take_dropped() { return std::exchange(dropped_, {}); }

  // ---- Of the protocol ----

  void send(ConnectionId id, const OutgoingFrame& frame);
  void send(ConnectionId id, FrameType type, Bytes payload) { send(id, make_frame(type, payload)); }
  /// Frames that the other end has not taken yet.
  std::size_t unsent(ConnectionId id) const;
  /// Of one that was let in: when `late` is called; kNever: it has all the time.
  void set_deadline(ConnectionId id, std::int64_t due_ns);
  /// What waits still goes out, then the connection ends.
  void close(ConnectionId id);
  /// The same, with a last word.
  void refuse(ConnectionId id, const Complaint& complaint);
  /// It sent what makes no sense: the log tells, and it is told and closed.
  void turn_away(ConnectionId id, std::string_view what);
  /// Ends it now.
  void drop(ConnectionId id);
  const std::string& peer(ConnectionId id) const { return connections_.at(id).peer; }

  std::size_t connections() const { return connections_.size(); }
  bool anything_outgoing() const;
  const AcceptorCounts& counts() const { return counts_; }

 private:
  enum class Phase : std::uint8_t { hello, proof, open, closing };
  struct Connection {
    Connection(std::string from, Protocol protocol, std::size_t most_frame, std::int64_t now_ns)
        : peer(std::move(from)), end(protocol, most_frame), since_ns(now_ns) {}
    const std::string peer;
    AcceptingEnd end;
    const std::int64_t since_ns;
    Phase phase = Phase::hello;
    bool claimed = false;  ///< the protocol knows of it
    std::int64_t deadline_ns = kNever;
  };

  Connection* find(ConnectionId id);
  const Connection* find(ConnectionId id) const { return const_cast<Acceptor*>(this)->find(id); }
  void said_hello(ConnectionId id, Connection& connection);
  void was_proven(ConnectionId id, Connection& connection);
  void at_fault(ConnectionId id, Connection& connection);
  void turn_away(ConnectionId id, Connection& connection, const Complaint& complaint, std::string_view why);
  void set_deadline(ConnectionId id, Connection& connection, std::int64_t due_ns);
  /// The connection that makes room for another: one that was challenged only after it had that long.
  std::optional<ConnectionId> who_makes_room(std::int64_t least_stay_ns) const;
  void make_room(ConnectionId id);
  void tell_lost(ConnectionId id, Connection& connection, std::string_view why);
  void forget(ConnectionId id);

  const AcceptorOptions options_;
  AcceptingProtocol& protocol_;
  const Clock& clock_;
  std::map<ConnectionId, Connection> connections_;
  // Those that count against the limit, oldest first.
  std::set<ConnectionId> expendable_;  ///< they have not said hello, or are being closed
  std::set<ConnectionId> challenged_;  ///< their proof is to come
  std::set<std::pair<std::int64_t, ConnectionId>> deadlines_;
  std::set<ConnectionId> touched_;
  std::vector<ConnectionId> dropped_;
  AcceptorCounts counts_;
  LogLimit complaints_;
};

}  // namespace railyard::rendezvous
