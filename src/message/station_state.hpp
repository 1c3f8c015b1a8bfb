/// What a Station holds: its contexts, the porter that lets strangers in, and the threads that move both on.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "message/context.hpp"
#include "message/porter.hpp"
#include "railyard/channel.hpp"
#include "transport/progress_thread.hpp"

namespace railyard {

class StationState {
 public:
  static Result<std::unique_ptr<StationState>> open(const Settings& settings);
  ~StationState();

  Result<std::unique_ptr<Listener>> listen();
  Result<std::unique_ptr<Channel>> connect(Handle& handle, const ConnectOptions& options);
  void abandon(Handle& handle);
  const Settings& settings() const { return settings_; }
  StationStatistics statistics();
  std::string report();

  message::Porter& porter() { return *porter_; }
  /// The context that a peer's channel from its context of that number comes to: the same for all of them.
  message::Context& context_for(std::uint32_t place) { return *contexts_[place % contexts_.size()]; }
  static std::unique_ptr<Channel> wrap(std::shared_ptr<ChannelState> channel) {
    return std::unique_ptr<Channel>(new Channel(std::move(channel)));
  }

 private:
  /// A channel that was asked for and is not there yet.
  struct Attempt {
    message::Context* context = nullptr;
    message::Joining joining;
  };

  explicit StationState(const Settings& settings) : settings_(settings) {}
  Result<void> start();
  message::Context& least_used();
  Result<void> begin(Handle& handle, Attempt attempt);
  Result<std::shared_ptr<ChannelState>> conclude(Attempt& attempt, std::span<const std::byte> welcome);

  Settings settings_;
  std::unique_ptr<message::Porter> porter_;
  std::vector<std::shared_ptr<message::Context>> contexts_;
  std::mutex mutex_;                           ///< of the attempts
  std::map<std::uint64_t, Attempt> attempts_;  ///< by the id that the porter keeps in the handle
  std::atomic<std::uint32_t> next_context_{0};
  std::vector<std::unique_ptr<transport::ProgressThread>> threads_;
};

/// Those who knock at one listener.
class ListenerState final : public message::Host {
 public:
  explicit ListenerState(StationState& station) : station_(station) {}
  ~ListenerState() override;

  Result<void> start();
  const Handle& handle() const { return handle_; }
  Result<std::unique_ptr<Channel>> accept();

  Result<std::vector<std::byte>> on_hello(std::uint64_t meeting, std::span<const std::byte> bytes) override;
  void on_ready(std::uint64_t meeting, std::span<const std::byte> ready) override;
  void on_gone(std::uint64_t meeting) override;

 private:
  struct Guest {
    message::Context* context = nullptr;
    std::shared_ptr<ChannelState> channel;
  };
  static void turn_away(Guest guest);

  StationState& station_;
  Handle handle_;
  bool open_ = false;
  std::mutex mutex_;
  std::map<std::uint64_t, Guest> guests_;  ///< whose connector is not ready yet
  std::deque<Guest> arrived_;
};

}  // namespace railyard
