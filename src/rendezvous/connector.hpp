/// Reaches an acceptor: tries its addresses, proves the key, then passes the protocol's frames. Its owner calls `serve`
/// and `ring` for what its id gets of the epoll set. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.hpp"
#include "railyard/result.hpp"
#include "rendezvous/address.hpp"
#include "rendezvous/connect_attempts.hpp"
#include "rendezvous/epoll_set.hpp"
#include "rendezvous/handshake.hpp"

namespace railyard::rendezvous {

struct ConnectorOptions {
  Protocol protocol = Protocol::job;
  std::vector<std::byte> claim;
  std::string key;
  std::size_t most_frame = 0;  ///< the longest one of the protocol
  /// Where to try, asked before each round.
  std::function<Result<std::vector<Endpoint>>()> endpoints;
  /// The first frame of a connection, asked for with each.
  std::function<OutgoingFrame()> first;
  /// A frame of the protocol arrived. May call the connector, may not destroy it.
  std::function<void(Frame& frame)> on_frame;
  std::int64_t deadline_ns = kNever;  ///< by when the owner must have called it established
  std::int64_t grace_ns = 0;          ///< and so much more once the acceptor has proven itself: it watches the time too
  std::int64_t proof_ns = kNever;     ///< how long a connection may take until the acceptor has proven itself
  bool patient = false;  ///< the acceptor may not be there yet: only its own word ends this before the deadline
};

class Connector {
 public:
  Connector(EpollSet& set, std::uint64_t id, ConnectorOptions options);
  ~Connector() { set_.set_alarm(id_, kNever); }
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  void start();
  /// Its socket has something to do.
  void serve();
  /// Its alarm has come.
  void ring();

  /// The owner has what it came for: from here on the end of the connection is a loss and not a reason to try again.
  void establish();
  bool established() const { return established_; }
  void send(FrameType type, Bytes payload);
  bool anything_outgoing() const { return end_ && !end_->outgoing().empty(); }
  /// Nothing more is to be said: what waits goes out, by `by_ns` at the latest, then the other end closes the
  /// connection, or a little time passes.
  void finish(std::int64_t by_ns);
  /// Ends it now.
  void close();
  bool over() const { return state_ == State::over; }

  /// The acceptor has proven itself: what is said is sealed.
  bool proven() const { return end_ && end_->proven(); }
  /// Why nothing more will come of it. Where the acceptor told it, the connection stands until the owner ends it, who
  /// may have a last word.
  const std::optional<Failure>& failure() const { return failure_; }
  /// The current address.
  const std::string& where() const { return attempts_.endpoint().text; }
  /// Every address with what came of it.
  std::string story() const { return attempts_.story(); }

 private:
  enum class State : std::uint8_t {
    connecting,  ///< to the current address
    pausing,     ///< before another round
    talking,
    leaving,  ///< what is queued goes out
    over,
  };

  void start_round();
  void connect();
  /// One attempt at the current address. False: it failed at once, and is noted.
  bool try_address(ConnectAttempts::Next& next);
  void move_on(Finality finality, Status status, std::string why);
  void settle(ConnectAttempts::Next next);
  void start_talking();
  void hear();
  void leave();
  void proved();
  void lose(std::string_view why);
  void at_failure(const Failure& failure);
  void fail(Failure::Kind kind, Status status, std::string text, std::int32_t peer = -1);

  EpollSet& set_;
  const std::uint64_t id_;
  const ConnectorOptions options_;
  Random jitter_;
  ConnectAttempts attempts_;
  std::int64_t deadline_ns_;
  State state_ = State::pausing;
  bool established_ = false;
  std::optional<ConnectingEnd> end_;
  Socket socket_;
  std::optional<Failure> failure_;
};

}  // namespace railyard::rendezvous
