/// EngineTelemetry: brings the process's telemetry up to date with what an engine counts. The engine's own counters
/// stay where they are; a pass copies them now and then, so that no operation pays for it, and what that costs is
/// bounded: the longer a publish takes, the rarer it is.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fabric/rail.hpp"
#include "railyard/world.hpp"
#include "telemetry/store.hpp"

namespace railyard::transport {

class Engine;
class Link;
struct Flow;
struct Route;

class EngineTelemetry {
 public:
  struct Parts {
    std::shared_ptr<telemetry::Store> store;
    std::string context;   ///< "world 0": what its records are labelled with
    bool summary = false;  ///< is written when it ends
    /// What the engine's user counts itself: added to the statistics, or published as records of its own.
    std::function<void(WorldStatistics&)> more = {};
  };
  explicit EngineTelemetry(Parts parts);
  ~EngineTelemetry();
  EngineTelemetry(const EngineTelemetry&) = delete;
  EngineTelemetry& operator=(const EngineTelemetry&) = delete;

  // ---- With the progress lock held ----

  /// Returns when it wants to be called again.
  std::int64_t publish(const Engine& engine);
  void chunk_took(const Link& link, std::uint64_t nanoseconds);
  /// Nothing has changed between the last two: whoever sleeps may sleep on.
  bool settled() const { return settled_; }
  telemetry::Record& context() { return context_; }
  const std::string& name() const { return parts_.context; }
  telemetry::Store& store() { return *parts_.store; }

  // ---- Any thread ----

  /// A wait that has taken a while already. The last one to begin is the one that is shown.
  void begin_wait(telemetry::Waiting what, int peer);
  void end_wait();
  void count_stall();

 private:
  struct OfRoute {
    fabric::LinkName name;
    std::vector<telemetry::Record> links;
    std::uint64_t seen = 0;
  };
  struct OfFlow {
    std::uint64_t session = 0;
    telemetry::Record record;
    std::uint64_t seen = 0;
  };
  void publish_context(const Engine& engine, const WorldStatistics& from, std::uint64_t queued);
  void publish_rails(const WorldStatistics& statistics, const std::vector<std::uint64_t>& in_flight);
  void publish_links(Route& route);
  void publish_flow(Flow& flow);

  Parts parts_;
  telemetry::Record context_;
  std::vector<telemetry::Record> rails_;
  std::map<const Route*, OfRoute> routes_;  ///< by address and name: an address comes again
  std::map<const Flow*, OfFlow> flows_;
  std::uint64_t publishes_ = 0;
  std::uint64_t last_sum_ = 0;
  bool settled_ = false;
};

}  // namespace railyard::transport
