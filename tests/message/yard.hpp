/// Yard: workers of several processes on one simulated network. One thread plays all of them and carries their
/// set-up messages.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "fabric/sim/fabric.hpp"
#include "message/worker.hpp"

namespace railyard::message {

/// The two ends of a channel.
struct Ends {
  std::shared_ptr<ChannelState> out;  ///< of the process that connected
  std::shared_ptr<ChannelState> in;
  explicit operator bool() const { return out != nullptr && in != nullptr; }
};

class Yard {
 public:
  /// One worker for each of `settings`, on the rails that name its process.
  Yard(const fabric::sim::FabricOptions& options, std::span<const Settings> settings) : fabric(options) {
    Random random(options.seed ^ 0x9e3779b97f4a7c15ULL);
    for (std::size_t process = 0; process < settings.size(); ++process) {
      clocks_.push_back(std::make_unique<ProcessClock>(*this, process));
      asleep_until_.push_back(0);
      WorkerParts parts;
      parts.settings = settings[process];
      parts.settings.threads = "single";
      parts.clock = clocks_.back().get();
      for (std::size_t i = 0; i < options.rails.size(); ++i) {
        if (options.rails[i].process == static_cast<int>(process)) {
          parts.rails.push_back(std::move(fabric.open_rail(i)).value());
        }
      }
      for (auto& byte : parts.identity.bytes) byte = static_cast<std::uint8_t>(random.next());
      parts.seed = random.next();
      auto worker = Worker::open(std::move(parts));
      EXPECT_TRUE(worker) << worker.error().text();
      workers_.push_back(std::move(*worker));
    }
  }
  ~Yard() {
    for (auto& worker : workers_) {
      if (worker != nullptr) worker->close();
    }
  }
  Yard(const Yard&) = delete;
  Yard& operator=(const Yard&) = delete;

  Worker& at(std::size_t process) { return *workers_[process]; }
  std::size_t size() const { return workers_.size(); }
  bool alive(std::size_t process) const { return fabric.alive(static_cast<int>(process)); }

  /// The channel that `from` asks `to` for; both null where it is refused, and `why` says so.
  Ends join(std::size_t from, std::size_t to, std::uint32_t service_class = 0, bool shared = true) {
    auto joining = at(from).begin(service_class, shared);
    EXPECT_TRUE(joining) << joining.error().text();
    if (!joining) return {};
    for (int attempt = 0; attempt < 100; ++attempt) {
      auto answer = at(to).answer(*read_hello(at(from).hello(*joining)));
      if (!answer) {
        why = answer.error().text();
        break;
      }
      auto channel = at(from).conclude(*joining, answer->welcome);
      if (channel && *channel != nullptr) return {std::move(*channel), std::move(answer->channel)};
      answer->channel->end_at_once("its connector did not come");
      if (!channel) {
        why = channel.error().text();
        break;
      }
    }
    at(from).abandon(*joining);
    return {};
  }

  /// Everybody makes a pass; then time goes on to the next thing that happens.
  void round() {
    for (std::size_t process = 0; process < workers_.size(); ++process) pass(process);
    let_time_pass();
  }
  /// Rounds until `done`; false where that takes longer than so much virtual time.
  bool until(const std::function<bool()>& done, std::int64_t nanoseconds = 10'000'000'000) {
    for (const std::int64_t end = fabric.now() + nanoseconds; fabric.now() < end; round()) {
      if (done()) return true;
    }
    return done();
  }
  void pass(std::size_t process) {
    if (fabric.now() < asleep_until_[process]) return;
    if (workers_[process] != nullptr && alive(process)) workers_[process]->pass();
  }
  void let_time_pass() {
    if (fabric.anything_ready()) return fabric.advance(300);
    if (fabric.step_within(idle_)) {
      idle_ = kFirstIdle;
      return;
    }
    fabric.advance(idle_);
    idle_ = std::min(idle_ * 2, kMostIdle);
  }
  /// As the user of that process would: everybody else goes on meanwhile.
  void close(std::size_t process, ChannelState& channel) {
    act_as(process, [&] { channel.close(); });
  }
  /// The same for anything that may wait.
  template <typename Act>
  void act_as(std::size_t process, Act&& act) {
    waits_ = process;
    act();
    waits_ = kNobody;
  }
  void close(const Ends& ends, std::size_t from, std::size_t to) {
    close(from, *ends.out);
    close(to, *ends.in);
  }

  std::size_t routes(std::size_t process) { return at(process).engine().peers().registry().size(); }
  std::size_t flows(std::size_t process) { return at(process).engine().peers().flows().all().size(); }
  bool empty() {
    for (std::size_t i = 0; i < size(); ++i) {
      if (alive(i) && (routes(i) != 0 || flows(i) != 0 || at(i).channels() != 0)) return false;
    }
    return true;
  }
  /// A process that does nothing for so long.
  void sleep(std::size_t process, std::int64_t nanoseconds) { asleep_until_[process] = fabric.now() + nanoseconds; }
  /// Takes a process down, as the end of its context does.
  void end(std::size_t process) {
    workers_[process]->close();
    workers_[process].reset();
  }

  fabric::sim::SimFabric fabric;
  std::string why;

 private:
  static constexpr std::size_t kNobody = SIZE_MAX;
  static constexpr std::int64_t kFirstIdle = 10'000;
  static constexpr std::int64_t kMostIdle = 10'000'000;

  /// While its process waits for something, every look at the time lets the rest of the world go on.
  class ProcessClock final : public Clock {
   public:
    ProcessClock(Yard& yard, std::size_t process) : yard_(yard), process_(process) {}
    std::int64_t now() const override {
      if (yard_.waits_ == process_) yard_.let_others_go_on(process_);
      return yard_.fabric.now();
    }
    void idle() override {}

   private:
    Yard& yard_;
    std::size_t process_;
  };

  void let_others_go_on(std::size_t process) {
    waits_ = kNobody;
    for (std::size_t other = 0; other < workers_.size(); ++other) {
      if (other != process) pass(other);
    }
    let_time_pass();
    waits_ = process;
  }

  std::vector<std::unique_ptr<ProcessClock>> clocks_;
  std::vector<std::shared_ptr<Worker>> workers_;
  std::vector<std::int64_t> asleep_until_;
  std::size_t waits_ = kNobody;
  std::int64_t idle_ = kFirstIdle;
};

/// Processes with so many rails each, on a network where nothing goes wrong.
inline fabric::sim::FabricOptions orderly(std::span<const std::uint32_t> rails, std::uint64_t seed = 1) {
  fabric::sim::FabricOptions options;
  options.seed = seed;
  for (std::size_t process = 0; process < rails.size(); ++process) {
    for (std::uint32_t number = 0; number < rails[process]; ++number) {
      fabric::sim::RailOptions rail;
      rail.process = static_cast<int>(process);
      rail.number = static_cast<int>(number);
      options.rails.push_back(rail);
    }
  }
  return options;
}
inline Settings quiet_settings() {
  Settings settings;
  settings.driver = "sim";
  settings.log = "error";
  return settings;
}

}  // namespace railyard::message
