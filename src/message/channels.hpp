/// Channels: what a context has for its channels: workers, the set-up that connects processes that know nothing of each
/// other, and the threads that move both on.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "context/context_state.hpp"
#include "message/channel_setup.hpp"
#include "message/worker.hpp"
#include "railyard/channel.hpp"
#include "railyard/context.hpp"
#include "transport/progress_thread.hpp"

namespace railyard {

class Channels {
 public:
  static Result<std::shared_ptr<Channels>> open(const ContextState& context);
  /// A context's: opened when it first listens or connects.
  static Result<std::shared_ptr<Channels>> of(ContextState& context);
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;
  ~Channels();

  Result<std::unique_ptr<Listener>> listen();
  Result<std::unique_ptr<Channel>> connect(Handle& handle, const ConnectOptions& options);
  void abandon(Handle& handle);
  void add_to(ContextStatistics& statistics);
  std::string report();

  message::ChannelSetup& setup() { return *setup_; }
  /// The worker that a peer's channel from its worker of that number comes to: the same for all of them.
  message::Worker& worker_for(std::uint32_t worker_index) { return *workers_[worker_index % workers_.size()]; }
  static std::unique_ptr<Channel> wrap(std::shared_ptr<ChannelState> channel) {
    return std::unique_ptr<Channel>(new Channel(std::move(channel)));
  }

 private:
  /// A channel that was asked for and is not there yet.
  struct Attempt {
    message::Worker* worker = nullptr;
    message::Joining joining;
  };

  explicit Channels(const Settings& settings) : settings_(settings) {}
  Result<void> start(const Identity& identity);
  message::Worker& least_used();
  Result<void> begin(Handle& handle, Attempt attempt);
  Result<std::shared_ptr<ChannelState>> conclude(Attempt& attempt, std::span<const std::byte> welcome);

  Settings settings_;
  std::unique_ptr<message::ChannelSetup> setup_;
  std::vector<std::shared_ptr<message::Worker>> workers_;
  std::mutex mutex_;                           ///< of the attempts
  std::map<std::uint64_t, Attempt> attempts_;  ///< by the id that the set-up keeps in the handle
  std::atomic<std::uint32_t> next_worker_{0};
  std::vector<std::unique_ptr<transport::ProgressThread>> threads_;
};

/// Those who connect to one listener.
class ListenerState final : public message::Host {
 public:
  explicit ListenerState(Channels& context) : context_(context) {}
  ~ListenerState() override;

  Result<void> start();
  const Handle& handle() const { return handle_; }
  Result<std::unique_ptr<Channel>> accept();

  Result<std::vector<std::byte>> on_hello(std::uint64_t handshake, std::span<const std::byte> bytes) override;
  void on_ready(std::uint64_t handshake, std::span<const std::byte> ready) override;
  void on_gone(std::uint64_t handshake) override;

 private:
  struct InboundChannel {
    message::Worker* worker = nullptr;
    std::shared_ptr<ChannelState> channel;
  };
  static void turn_away(InboundChannel inbound);

  Channels& context_;
  Handle handle_;
  bool open_ = false;
  std::mutex mutex_;
  std::map<std::uint64_t, InboundChannel> inbound_;  ///< whose connector is not ready yet
  std::deque<InboundChannel> arrived_;
};

}  // namespace railyard
