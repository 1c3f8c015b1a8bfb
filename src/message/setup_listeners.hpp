/// The listening side of channels' set-up: its listeners, and the handshakes of those who connect. One thread at a
/// time; hosts are called by others, who take the calls from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "message/channel_setup.hpp"
#include "message/handle.hpp"
#include "railyard/result.hpp"
#include "rendezvous/acceptor.hpp"
#include "rendezvous/inbound_sockets.hpp"

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

class SetupListeners final : private rendezvous::AcceptingProtocol {
 public:
  static constexpr std::size_t kMostUnauthenticated = 1024;

  /// `interfaces`, `ports`: the settings. `timeout_ns`: for each of an inbound connection's two set-up messages.
  SetupListeners(rendezvous::EpollSet& set, const Clock& clock, std::uint64_t machine, std::string interfaces,
                 std::string ports, std::int64_t timeout_ns);

  Result<Handle> open_listener(Host& host);
  /// The host of the listener that was closed; null: there is none.
  Host* close_listener(const Handle& handle);

  /// The socket of that id has something to do. False: the id is none of these.
  bool serve(std::uint64_t id) { return sockets_.serve(id); }
  /// Its alarm has come.
  bool ring(std::uint64_t id) { return sockets_.ring(id); }
  /// Sends what came up: after each pass, and after every other call.
  void settle() { sockets_.settle(); }

  /// The next call to make, if any.
  std::optional<HostCall> take_call();
  /// What the host said to a hello.
  void answered(std::uint64_t handshake, const Result<std::vector<std::byte>>& answer);

  bool idle() const {
    return listeners_.empty() && acceptor_.connections() == 0 && handshakes_.empty() && calls_.empty();
  }
  rendezvous::Acceptor& acceptor() { return acceptor_; }
  bool anything_outgoing() const { return acceptor_.anything_outgoing(); }
  SetupCounts counts() const;

 private:
  struct ListenerEntry {
    Host* host = nullptr;
    Secret secret{};
  };
  enum class Stage : std::uint8_t {
    claimed,   ///< its proof is to come
    let_in,    ///< its hello is to come
    waiting,   ///< for the host to be called
    in_call,   ///< the host is deciding
    accepted,  ///< the host knows it; its last set-up message is to come
  };
  struct Handshake {
    std::uint64_t listener = 0;
    Stage stage = Stage::claimed;
    bool lost = false;  ///< while the host was deciding
  };

  Result<std::string> key_of(std::uint64_t id, rendezvous::Bytes claim) override;
  rendezvous::Complaint wrong_key(std::uint64_t id) override;
  std::optional<rendezvous::Complaint> proven(std::uint64_t id) override;
  void received(std::uint64_t id, rendezvous::Frame& frame) override;
  void late(std::uint64_t id) override;
  void lost(std::uint64_t id, std::string_view why) override;

  Result<void> open_listen_socket();
  void call(HostCall::Kind kind, std::uint64_t id, std::vector<std::byte> setup_message = {});

  const std::uint64_t machine_;
  const std::string interfaces_;
  const std::string ports_;
  const std::int64_t timeout_ns_;
  const Clock& clock_;
  rendezvous::EpollSet& set_;
  rendezvous::Acceptor acceptor_;
  rendezvous::InboundSockets sockets_;  ///< listening while there is a listener

  std::uint16_t port_ = 0;
  std::vector<IpAddress> addresses_;
  std::unordered_map<std::uint64_t, ListenerEntry> listeners_;
  std::unordered_map<std::uint64_t, Handshake> handshakes_;
  std::deque<HostCall> calls_;
  std::uint64_t completed_ = 0;
};

}  // namespace railyard::message
