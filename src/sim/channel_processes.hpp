/// ChannelProcesses: processes with channels on one simulated network. One thread plays all of them and carries their
/// connection requests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "fabric/sim/fabric.hpp"
#include "message/worker.hpp"

namespace railyard::sim {

/// The two ends of a channel.
struct ChannelEnds {
  std::shared_ptr<ChannelState> out;  ///< of the process that connected
  std::shared_ptr<ChannelState> in;
  explicit operator bool() const { return out != nullptr && in != nullptr; }
};

class ChannelProcesses {
 public:
  /// A worker for each of `settings`, on the rails that name its process.
  static Result<std::unique_ptr<ChannelProcesses>> open(const fabric::sim::FabricOptions& options,
                                                        std::span<const Settings> settings);
  ~ChannelProcesses();
  ChannelProcesses(const ChannelProcesses&) = delete;
  ChannelProcesses& operator=(const ChannelProcesses&) = delete;

  message::Worker& at(std::size_t process) { return *workers_[process]; }
  std::size_t size() const { return workers_.size(); }
  bool alive(std::size_t process) const { return fabric.alive(static_cast<int>(process)); }
  /// It may make calls now.
  bool able(std::size_t process) const { return alive(process) && !fabric.paused(static_cast<int>(process)); }

  /// The channel that `from` asks `to` for; both null where it is refused, and `why` says so.
  ChannelEnds join(std::size_t from, std::size_t to, std::uint32_t service_class, bool shared);
  /// Everybody makes a pass; then time goes on to the next thing that happens.
  void round();
  /// Rounds until `done`; false where that takes longer than so much virtual time.
  bool until(const std::function<bool()>& done, std::int64_t nanoseconds);
  /// A call of that process's user that may wait: everybody else goes on meanwhile.
  template <typename Call>
  void as_user(std::size_t process, Call&& call) {
    const std::size_t before = std::exchange(waits_, process);
    call();
    waits_ = before;
  }
  /// Nothing is left of any channel in any process that lives.
  bool empty();
  /// Takes a process down, as the end of its context does.
  void end(std::size_t process);

  fabric::sim::SimFabric fabric;
  std::string why;

 private:
  static constexpr std::size_t kNobody = SIZE_MAX;

  /// While its process waits for something, every look at the time lets the rest of the world go on.
  class ProcessClock final : public Clock {
   public:
    ProcessClock(ChannelProcesses& processes, std::size_t process) : processes_(processes), process_(process) {}
    std::int64_t now() const override;
    void idle() override {}

   private:
    static constexpr std::uint32_t kLooksOfAWait = 2'000;
    ChannelProcesses& processes_;
    std::size_t process_;
    mutable std::int64_t last_ = -1;
    mutable std::uint32_t looks_ = 0;  ///< at the same time
  };

  explicit ChannelProcesses(const fabric::sim::FabricOptions& options) : fabric(options) {}
  void pass(std::size_t process);
  void let_time_pass();
  void let_others_go_on(std::size_t process);

  std::vector<std::unique_ptr<ProcessClock>> clocks_;
  std::vector<std::shared_ptr<message::Worker>> workers_;
  std::size_t waits_ = kNobody;
  std::int64_t idle_ = 0;
};

}  // namespace railyard::sim
