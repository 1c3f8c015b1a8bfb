/// Two processes of one machine that measure together: what they share, and the channels between them.
#pragma once

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "railyard/channel.hpp"
#include "railyard/context.hpp"

namespace railyard::bench {

inline constexpr std::size_t kMostChannels = 512;

struct Options {
  std::string test;
  std::uint32_t channels = 1;
  bool all = false;   ///< every channel carries traffic, not only the first
  bool ring = false;  ///< a round trip goes there on one channel and comes back on the next
  std::size_t bytes = 8;
  std::uint32_t depth = 8;  ///< messages of a stream under way on one channel
  std::uint32_t streams = 1;
  bool thread = false;  ///< the bulk channel has a thread of its own
  std::string over = "memory";
  std::uint32_t rails = 1;
  std::vector<std::string> settings;
  std::vector<int> cpus;
  int priority = 0;
  std::uint32_t rounds = 5;
  std::uint32_t round_ms = 150;
  unsigned patience = 60;
};

/// What both processes have from the start.
struct Shared {
  std::array<std::atomic<std::uint32_t>, 2> arrivals{};  ///< at barriers
  Handle handle;
  std::atomic<std::uint32_t> accepted{0};
  std::atomic<bool> over{false};                                 ///< of the phase under way
  std::array<std::atomic<std::uint64_t>, kMostChannels> sent{};  ///< messages of rank 0, since the beginning
  alignas(128) std::atomic<std::uint64_t> line{0};
};

[[noreturn]] void fail(const std::string& text);
template <typename T>
T must(Result<T> result) {
  if (!result) fail(result.error().text());
  return std::move(result).value();
}
inline void must(Result<void> result) {
  if (!result) fail(result.error().text());
}

std::int64_t now();

/// What a process has open at libfabric. Counted where the library makes its objects: fabric_objects.cc.
struct FabricObjects {
  std::int64_t endpoints = 0;
  std::int64_t listeners = 0;
  std::int64_t queues = 0;
};
FabricObjects fabric_objects();
/// Has them counted from now on.
void count_fabric_objects();

/// One of the two processes.
class Side {
 public:
  Side(const Options& options, Shared& shared, int rank);
  int rank() const { return rank_; }
  const Options& options() const { return options_; }
  Shared& shared() { return shared_; }

  /// Returns when the other one is here too.
  void meet();
  /// Nanoseconds of a cache line from one core to the other, one way. Both sides call it.
  double line();

  void open_context();
  /// Connects all channels; microseconds of one, the median.
  double connect();
  Channel& channel(std::size_t index) { return *channels_[index]; }
  std::size_t channels() const { return channels_.size(); }
  /// Microseconds until all channels are closed.
  double close_channels();
  /// Waits until the context has no route left.
  void wait_for_end();
  Context& context() { return *context_; }
  void close_context() { context_.reset(); }

 private:
  std::unique_ptr<Channel> connect_one();
  std::unique_ptr<Channel> accept_one(Listener& listener);

  const Options& options_;
  Shared& shared_;
  const int rank_;
  std::uint32_t barriers_ = 0;
  std::uint64_t lines_ = 0;
  std::unique_ptr<Context> context_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

Settings settings_of(const Options& options);

}  // namespace railyard::bench
