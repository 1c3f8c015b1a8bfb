/// The connecting side of a rendezvous: handshakes that this process began. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "message/connect_attempts.hpp"
#include "message/handle.hpp"
#include "message/rendezvous_line.hpp"
#include "message/rendezvous_wire.hpp"
#include "railyard/result.hpp"

namespace railyard::message {

class Connectors {
 public:
  /// `machine`: the hash that handles of this machine carry.
  Connectors(EpollSet& watch, std::uint64_t machine, std::int64_t timeout_ns)
      : watch_(watch), machine_(machine), timeout_ns_(timeout_ns) {}

  bool begun(const Handle& handle) const;
  Result<void> begin(Handle& handle, std::vector<std::byte> hello);
  Result<std::optional<std::vector<std::byte>>> welcome(Handle& handle);
  Result<void> finish(Handle& handle, std::vector<std::byte> ready);
  void abandon(Handle& handle);

  /// The socket of that id has something to do. False: the id is none of these.
  bool serve(std::uint64_t id);
  /// Its alarm has come.
  bool ring(std::uint64_t id);

  std::size_t size() const { return connectors_.size(); }
  /// Whether a last set-up message is still on its way out.
  bool anything_outgoing() const;

 private:
  enum class Stage : std::uint8_t {
    connecting,  ///< to the current address
    pausing,     ///< before another round
    talking,     ///< up to the welcome
    welcomed,    ///< the caller has it, or may fetch it
    leaving,     ///< the caller is done; the last set-up message goes out
    failed,      ///< until the caller asks
  };
  struct Connector {
    Connector(std::uint64_t name, const Handle& of, ConnectAttempts way)
        : id(name), handle(of), attempts(std::move(way)) {}
    const std::uint64_t id;
    const Handle handle;
    Secret secret{};
    std::uint64_t listener = 0;
    ConnectAttempts attempts;
    bootstrap::SharedBytes hello;  ///< kept until the welcome: another address needs it again
    std::int64_t deadline_ns = kNever;
    Stage stage = Stage::connecting;
    bool welcome_taken = false;
    Line line;
    std::optional<ConnectorHandshake> talk;
    std::optional<Error> error;
  };

  Connector* find(const Handle& handle);
  const Connector* find(const Handle& handle) const { return const_cast<Connectors*>(this)->find(handle); }
  void erase(std::uint64_t id);
  void start_connect(Connector& connector);
  /// One attempt at the current address. False: it failed at once, and is noted.
  bool try_address(Connector& connector, ConnectAttempts::Next& next);
  void move_on(Connector& connector, Finality finality, Status status, std::string why);
  void settle(Connector& connector, ConnectAttempts::Next next);
  void check_connected(Connector& connector);
  void start_talking(Connector& connector);
  void listen(Connector& connector);
  void talk_advanced(Connector& connector);
  void line_lost(Connector& connector, std::string_view why);
  void leave(Connector& connector);
  void fail(Connector& connector, Error error);
  void fail_at_deadline(Connector& connector);

  EpollSet& watch_;
  const std::uint64_t machine_;
  const std::int64_t timeout_ns_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Connector>> connectors_;
};

}  // namespace railyard::message
