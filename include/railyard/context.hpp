/// Context: what a process opens once. Worlds (WorldOptions::context), listeners and channels attach to it, and share
/// its settings, rails, engines and threads. Any number of worlds at a time, of the same processes or of others. What
/// is done with listeners and channels is in channel.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "railyard/result.hpp"
#include "railyard/settings.hpp"
#include "railyard/statistics.hpp"

namespace railyard {

// channel.hpp
class Channel;
class Listener;
struct Handle;

class ContextState;

struct ConnectOptions {
  /// Channels of different classes never share a link. One from 4 to 255 is also the traffic class (DSCP times 4) of
  /// its packets over tcp rails; others have RAILYARD_TRAFFIC_CLASS.
  std::uint32_t service_class = 0;
};

/// What a context counted since it opened.
struct ContextStatistics {
  std::uint32_t channels = 0;        ///< open now
  std::uint32_t routes = 0;          ///< sets of links to peers, alive now
  std::uint32_t private_routes = 0;  ///< of them, those of one channel alone
  std::uint64_t channels_opened = 0;
  std::uint64_t routes_opened = 0;
  std::uint64_t joins_refused = 0;       ///< shared links that the two ends did not agree on
  std::vector<WorldStatistics> engines;  ///< those of channels, then that of worlds, as far as they are there
};

class Context {
 public:
  /// Rails and engines open, as the settings say, when their first user comes: one set for all worlds, one for all
  /// channels, so that whoever waits for a signal holds up no message.
  static Result<std::unique_ptr<Context>> open(const Settings& settings);
  /// Channels end with it. Worlds need not be closed before: what they share lives until the last of them ends.
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Result<std::unique_ptr<Listener>> listen();
  /// Null: the listener has not answered yet; call again with the same handle.
  Result<std::unique_ptr<Channel>> connect(Handle& handle, const ConnectOptions& options = {});
  /// Gives up a connect that will not be called again.
  void abandon(Handle& handle);

  const Settings& settings() const noexcept;
  ContextStatistics statistics() const;
  /// Which channels share which links now, and how those are: a few lines for a person.
  std::string report() const;

 private:
  friend class ContextState;
  explicit Context(std::unique_ptr<ContextState> state);
  std::unique_ptr<ContextState> state_;
};

}  // namespace railyard
