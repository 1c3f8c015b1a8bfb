/// Set-up of channels: lets two processes that know nothing of each other meet. Carries three short set-up messages for
/// each channel: hello (connector to listener), welcome (back), ready (to the listener). Knows nothing of what they
/// say. Whoever holds the handle may connect: both ends prove that they know its secret, which never travels. A
/// protocol on src/rendezvous.
///
/// Owns no thread and never blocks: `progress` moves every handshake on. Any thread may call anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "railyard/channel.hpp"
#include "railyard/result.hpp"
#include "railyard/settings.hpp"
#include "rendezvous/acceptor.hpp"

namespace railyard::message {

/// The longest set-up message.
inline constexpr std::size_t kMostSetupMessage = 256 * 1024;

/// What a listener does with those who connect. Called from `progress`, one call at a time, without the set-up's
/// lock being needed by the callee (it may call the set-up).
class Host {
 public:
  virtual ~Host() = default;
  /// A hello arrived. The welcome, or an error whose text the connector is told. `handshake` names this handshake
  /// later.
  virtual Result<std::vector<std::byte>> on_hello(std::uint64_t handshake, std::span<const std::byte> hello) = 0;
  /// The connector is ready: the handshake is over.
  virtual void on_ready(std::uint64_t handshake, std::span<const std::byte> ready) = 0;
  /// The connector went away, or took too long, between its hello and being ready: the handshake is over.
  virtual void on_gone(std::uint64_t handshake) = 0;
};

/// What a set-up counted of those who connected.
struct SetupCounts : rendezvous::AcceptorCounts {
  std::uint64_t handshakes = 0;  ///< that came to their end
};

class ChannelSetup {
 public:
  /// `clock` must outlive it.
  static Result<std::unique_ptr<ChannelSetup>> open(const Settings& settings, Clock& clock);
  /// Gives last set-up messages that are still on their way out up to 100 ms. Hosts are not called.
  ~ChannelSetup();
  ChannelSetup(const ChannelSetup&) = delete;
  ChannelSetup& operator=(const ChannelSetup&) = delete;

  // ---- Listening ----

  /// From now on who holds the handle may connect. `host` must outlive the listener.
  Result<Handle> open_listener(Host& host);
  /// Nobody is let in any more; `host` is not called again once this returns. Waits for a call of the host that another
  /// thread is in the middle of, so the caller holds no lock that the host needs. SetupConnectors whose handshake is
  /// not over are told so; of those the host gets no `on_gone`.
  void close_listener(const Handle& handle);

  // ---- Connecting ----

  /// Whether a handshake has been begun with this copy of the handle, here. A copy that was made of it afterwards names
  /// the same handshake in this set-up, and none in any other: there it begins its own.
  bool begun(const Handle& handle) const;
  /// Begins a handshake, or goes on with it; its progress is kept in the handle's copy (a checked id, never a pointer).
  /// Tries the handle's addresses in turn; fails at once only for what is no handle or too long a set-up message.
  Result<void> begin(Handle& handle, std::vector<std::byte> hello);
  /// The listener's welcome, once; nothing: not yet. An error ends the handshake (and names address and reason; the
  /// text of the host's refusal where there is one); the handle's copy is as new afterwards. It comes within
  /// RAILYARD_BOOTSTRAP_TIMEOUT_MS, or at once when no address of the listener can answer any more.
  Result<std::optional<std::vector<std::byte>>> welcome(Handle& handle);
  /// Sends the last set-up message and ends the handshake for the connector: its bytes go out even if the caller does
  /// nothing more than call `progress`. An error: the listener was lost meanwhile. The handle's copy is as new
  /// afterwards.
  Result<void> finish(Handle& handle, std::vector<std::byte> ready);
  /// Gives a handshake up.
  void abandon(Handle& handle);

  /// Moves all handshakes on. Returns whether anything happened. One relaxed load where there is neither a listener nor
  /// a handshake; otherwise one system call where nothing is to be done.
  bool progress();

  /// Readable when `progress` has something to do.
  int descriptor() const;

  SetupCounts counts() const;

 private:
  class State;
  explicit ChannelSetup(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace railyard::message
