/// The listening side of a rendezvous: its listeners, and those who connect. One thread at a time; hosts are called by
/// others, who take the calls from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/log.hpp"
#include "message/handle.hpp"
#include "message/rendezvous.hpp"
#include "message/rendezvous_line.hpp"
#include "message/rendezvous_wire.hpp"
#include "railyard/result.hpp"

namespace railyard::message {

/// A call that a host is owed.
struct HostCall {
  enum class Kind : std::uint8_t { hello, ready, gone };
  Kind kind = Kind::gone;
  Host* host = nullptr;
  std::uint64_t listener = 0;
  std::uint64_t handshake = 0;
  std::vector<std::byte> setup_message;
};

/// Nobody is trusted before the proof: an unauthenticated peer gets short frames, a few seconds, and a slot among a
/// bounded number.
class InboundConnections {
 public:
  static constexpr std::size_t kMostUnauthenticated = 1024;
  static constexpr std::int64_t kUnauthenticatedNs = 10'000'000'000;
  /// An unauthenticated peer who has had so long makes room for another when all slots are taken.
  static constexpr std::int64_t kLeastStayNs = 1'000'000'000;

  /// `interfaces`, `ports`: the settings. `timeout_ns`: from an inbound connection's hello until it is ready.
  InboundConnections(EpollSet& watch, std::uint64_t machine, std::string interfaces, std::string ports,
                     std::int64_t timeout_ns)
      : watch_(watch),
        machine_(machine),
        interfaces_(std::move(interfaces)),
        ports_(std::move(ports)),
        timeout_ns_(timeout_ns) {}

  Result<Handle> open_listener(Host& host);
  /// The host of the listener that was closed; null: there is none.
  Host* close_listener(const Handle& handle);

  /// The socket of that id has something to do. False: the id is none of these.
  bool serve(std::uint64_t id);
  /// Its alarm has come.
  bool ring(std::uint64_t id);

  /// The next call to make, if any.
  std::optional<HostCall> take_call();
  /// What the host said to a hello.
  void answered(std::uint64_t handshake, const Result<std::vector<std::byte>>& answer);

  bool idle() const { return listeners_.empty() && inbound_.empty() && calls_.empty(); }
  bool anything_outgoing() const;
  const RendezvousCounts& counts() const { return counts_; }

 private:
  struct ListenerEntry {
    Host* host = nullptr;
    Secret secret{};
  };
  enum class Standing : std::uint8_t {
    unauthenticated,  ///< its hello is not complete
    waiting,          ///< for the host to be called
    in_call,          ///< the host is deciding
    accepted,         ///< the host knows it; its last set-up message is to come
    closing,          ///< it is told why, then closed
  };
  struct InboundConnection {
    InboundConnection(std::uint64_t name, std::string from, const bootstrap::Nonce& nonce, std::int64_t now_ns)
        : id(name), peer(std::move(from)), talk(nonce), since_ns(now_ns) {}
    const std::uint64_t id;
    const std::string peer;
    Line line;
    ListenerHandshake talk;
    const std::int64_t since_ns;
    Standing standing = Standing::unauthenticated;
    bool lost = false;  ///< while the host was deciding
  };

  Result<void> open_listen_socket();
  void accept_some();
  bool make_room(std::int64_t now_ns, std::int64_t least_stay_ns);
  void admit(Fd socket, const std::string& peer);
  void listen(InboundConnection& inbound);
  void hear(InboundConnection& inbound);
  void turn_away(InboundConnection& inbound);
  void begin_closing(InboundConnection& inbound);
  void finish_closing(InboundConnection& inbound);
  void lose(InboundConnection& inbound);
  void call(HostCall::Kind kind, const InboundConnection& inbound, std::vector<std::byte> setup_message = {});
  void erase(std::uint64_t id);
  void count(ListenerHandshake::Fault fault);

  EpollSet& watch_;
  const std::uint64_t machine_;
  const std::string interfaces_;
  const std::string ports_;
  const std::int64_t timeout_ns_;

  Fd listen_socket_;  ///< open while there is a listener
  std::uint64_t listen_socket_id_ = 0;
  std::uint16_t port_ = 0;
  std::vector<IpAddress> addresses_;

  std::unordered_map<std::uint64_t, ListenerEntry> listeners_;
  std::unordered_map<std::uint64_t, std::unique_ptr<InboundConnection>> inbound_;
  std::set<std::uint64_t> unauthenticated_;  ///< and those being closed; ids grow, so the oldest is first
  std::deque<HostCall> calls_;
  RendezvousCounts counts_;
  LogLimit complaints_;
};

}  // namespace railyard::message
