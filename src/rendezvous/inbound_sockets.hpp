/// The sockets of an acceptor: the one that listens, and those of everybody who connected. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/fd.hpp"
#include "base/log.hpp"
#include "railyard/result.hpp"
#include "rendezvous/acceptor.hpp"
#include "rendezvous/epoll_set.hpp"

namespace railyard::rendezvous {

class InboundSockets {
 public:
  /// `who`: for the log. Set and acceptor must outlive it.
  InboundSockets(EpollSet& set, Acceptor& acceptor, std::string who)
      : set_(set), acceptor_(acceptor), who_(std::move(who)) {}

  Result<void> listen(Fd listener);
  /// Who still waits to be let in learns it from the system.
  void stop_listening();
  bool listening() const { return static_cast<bool>(listener_); }

  /// The socket of that id has something to do. False: the id is none of these.
  bool serve(std::uint64_t id);
  /// An alarm has come. False: it is none of these.
  bool ring(std::uint64_t id);
  /// Sends what came up and closes what the acceptor gave up: after each pass, and after whatever was done to the
  /// acceptor.
  void settle();

 private:
  struct Connection {
    Socket socket;
    bool shut_down = false;
  };

  void accept_some();
  void run_out(int code);
  void pause_accepting();
  void read_some(ConnectionId id);
  void flush(ConnectionId id, Connection& connection);
  void close_dropped();

  EpollSet& set_;
  Acceptor& acceptor_;
  const std::string who_;
  Fd listener_;
  std::uint64_t listener_id_ = 0;
  std::uint64_t pause_id_ = 0;  ///< the alarm that ends a pause in accepting
  std::uint64_t tick_id_ = 0;   ///< the alarm of the acceptor's next deadline
  std::int64_t tick_due_ns_ = kNever;
  std::map<ConnectionId, Connection> connections_;
  LogLimit complaints_;
};

}  // namespace railyard::rendezvous
