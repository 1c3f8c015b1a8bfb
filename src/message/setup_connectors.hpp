/// The connecting side of channels' set-up: handshakes that this process began. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "message/handle.hpp"
#include "railyard/result.hpp"
#include "rendezvous/connector.hpp"

namespace railyard::message {

class SetupConnectors {
 public:
  /// `machine`: the hash that handles of this machine carry.
  SetupConnectors(rendezvous::EpollSet& set, std::uint64_t machine, std::int64_t timeout_ns)
      : set_(set), machine_(machine), timeout_ns_(timeout_ns) {}

  bool begun(const Handle& handle) const { return find(handle) != nullptr; }
  Result<void> begin(Handle& handle, std::vector<std::byte> hello);
  Result<std::optional<std::vector<std::byte>>> welcome(Handle& handle);
  Result<void> finish(Handle& handle, std::vector<std::byte> ready);
  void abandon(Handle& handle);

  /// The socket of that id has something to do. False: the id is none of these.
  bool serve(std::uint64_t id);
  /// Its alarm has come.
  bool ring(std::uint64_t id);

  std::size_t size() const { return handshakes_.size(); }
  /// Whether a last set-up message is still on its way out.
  bool anything_outgoing() const;

 private:
  struct Handshake {
    Handle handle;
    rendezvous::SharedBytes hello;  ///< kept until the welcome: another address needs it again
    std::optional<std::vector<std::byte>> welcome;
    bool welcome_taken = false;
    bool leaving = false;  ///< the caller is done; the last set-up message goes out
    std::optional<Error> error;
    std::optional<rendezvous::Connector> connector;
  };

  const Handshake* find(const Handle& handle) const;
  Handshake* find(const Handle& handle) {
    return const_cast<Handshake*>(static_cast<const SetupConnectors*>(this)->find(handle));
  }
  static void hear(Handshake& handshake, rendezvous::Frame& frame);
  /// What came of it since it was last looked at.
  void look(std::uint64_t id, Handshake& handshake);
  Error error_of(const rendezvous::Connector& connector) const;

  rendezvous::EpollSet& set_;
  const std::uint64_t machine_;
  const std::int64_t timeout_ns_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Handshake>> handshakes_;
};

}  // namespace railyard::message
