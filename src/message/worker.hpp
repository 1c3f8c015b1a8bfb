/// Worker: one engine without ranks, the channels on it, and the set-up messages by which two workers join in a
/// channel. Owns no thread and no socket: whoever calls `pass` moves it on, whoever carries the set-up messages
/// connects it. So it also runs on simulated rails.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/identity.hpp"
#include "base/random.hpp"
#include "message/channel_state.hpp"
#include "message/patience.hpp"
#include "message/run_queue.hpp"
#include "message/setup_messages.hpp"
#include "railyard/settings.hpp"
#include "transport/directory.hpp"
#include "transport/engine.hpp"

namespace railyard::message {

struct WorkerParts {
  Settings settings;
  Clock* clock = nullptr;
  std::vector<std::unique_ptr<fabric::Rail>> rails;
  Identity identity;               ///< of the context
  std::uint32_t worker_index = 0;  ///< which of its workers this is
  std::uint64_t seed = 0;          ///< of the names it makes up
  Patience* patience = nullptr;    ///< shared with other workers of the same clock; null: its own
};

/// A channel that this side has asked for.
struct Joining {
  static constexpr std::uint16_t kNoFlow = UINT16_MAX;
  Hello hello;
  std::uint32_t attempts = 0;
};

class Worker : public std::enable_shared_from_this<Worker> {
 public:
  static Result<std::shared_ptr<Worker>> open(WorkerParts parts);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  transport::Engine& engine() { return *engine_; }

  // ---- Set-up messages: with the progress lock held ----

  /// Begins to ask for a channel. `shared`: on links that others use too, if the peer agrees.
  Result<Joining> begin(std::uint32_t service_class, bool shared);
  std::vector<std::byte> hello(const Joining& joining) const { return write_setup_message(joining.hello); }
  struct Answer {
    std::vector<std::byte> welcome;
    std::shared_ptr<ChannelState> channel;
  };
  Result<Answer> answer(const Hello& hello);
  /// The channel; null: the two ends do not agree on the links they would share. Then `joining` is changed so that its
  /// next hello will do.
  Result<std::shared_ptr<ChannelState>> conclude(Joining& joining, std::span<const std::byte> setup_message);
  void abandon(const Joining& joining) {
    if (joining.hello.flow != Joining::kNoFlow) engine_->peers().flows().release(joining.hello.flow);
  }

  // ---- Moving on ----

  /// One bounded pass, with the progress lock held. Returns whether anything happened.
  bool pass();
  /// The same, if nobody else is at it.
  bool try_pass();
  /// Any thread: the channel's user has put something into its ring.
  void call(ChannelState& channel);
  /// With the progress lock held: the channel has news.
  void touch(ChannelState& channel);
  /// With the progress lock held: the channel is to go on a little later, news or not.
  void linger(ChannelState& channel);
  /// With the progress lock held: lets the channels that have news or were called go on. Returns whether there were
  /// any.
  bool serve();
  /// Ends every channel, whatever it has under way: before the last reference goes.
  void close();

  std::size_t channels() const { return channels_.size(); }
  /// Publishes what the engine and the channels count, until `close`.
  void begin_publishing(const Settings& settings, std::shared_ptr<telemetry::Store> store);
  /// Any thread: channels that were closed have not parted from their peers yet.
  bool leaving() const { return leaving_.load(std::memory_order_relaxed) != 0; }
  void note_leaving(int change) { leaving_.fetch_add(change, std::memory_order_relaxed); }
  /// Any thread: a channel that was closed has messages to deliver whose sends are done.
  bool owes();
  /// Any thread: how long an end may wait for its peer to let go of memory by itself (patience.hpp).
  std::int64_t patience();
  void spend_patience(std::int64_t nanoseconds);
  std::uint64_t channels_opened() const { return channels_opened_; }
  std::uint64_t routes_opened() const { return routes_opened_; }
  std::uint64_t joins_refused() const { return joins_refused_; }

 private:
  explicit Worker(const WorkerParts& parts);
  Result<void> start(WorkerParts parts);
  struct Peer {
    Identity identity;
    std::uint32_t worker_index = 0;
    std::vector<std::byte> contribution;
  };
  Result<int> meet(const Identity& identity, std::uint32_t worker_index, std::span<const std::byte> contribution);
  Result<transport::PeerAddress> find_peer(int peer) const;
  Result<transport::Route*> open_route(int peer, const transport::RouteKey& key, std::uint64_t instance);
  Result<transport::Route*> route_for(const Hello& hello, int peer, transport::RouteKey& key);
  static std::shared_ptr<ChannelState> ask_again(Joining& joining, const transport::Route* mine);
  std::uint64_t digest(const transport::Route& route) const;
  std::shared_ptr<ChannelState> open_channel(transport::Route& route, std::uint16_t flow, std::uint64_t session_in,
                                             std::uint16_t remote_flow, std::uint64_t session_out);
  std::uint32_t links_shared(std::uint32_t theirs) const;
  void publish_channels();
  void take_calls();
  void touch_lingering();
  void ask_after_peers();

  Settings settings_;
  Identity identity_;
  std::uint32_t worker_index_;
  Random random_;
  std::vector<std::byte> contribution_;
  std::map<int, Peer> peers_;
  int last_peer_ = -1;
  std::unique_ptr<transport::Engine> engine_;
  std::map<ChannelState*, std::shared_ptr<ChannelState>> channels_;
  RunQueue ready_;
  std::vector<ChannelState*> lingering_;
  std::int64_t lingering_seen_ = 0;
  std::int64_t asked_at_ = 0;
  std::uint32_t passes_ = 0;
  std::atomic<ChannelState*> called_{nullptr};
  std::atomic<int> leaving_{0};
  Patience own_patience_;
  Patience* patience_;
  std::uint64_t channels_opened_ = 0;
  std::uint64_t routes_opened_ = 0;
  std::uint64_t joins_refused_ = 0;
  struct Published {
    std::uint64_t session = 0;  ///< of the channel's flow
    telemetry::Record record;
  };
  std::map<const ChannelState*, Published> published_;
};

}  // namespace railyard::message
