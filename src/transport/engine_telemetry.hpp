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

#include "base/clock.hpp"
#include "fabric/rail.hpp"
#include "railyard/statistics.hpp"
#include "telemetry/store.hpp"
#include "transport/link.hpp"

namespace railyard::transport {

class Registry;
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

  /// What it copies.
  struct Source {
    const Clock& clock;
    const Registry& registry;
    WorldStatistics statistics;
    std::uint64_t outstanding = 0;
    std::uint64_t passes = 0;
  };
  /// Returns when it wants to be called again.
  std::int64_t publish(Source source);
  void chunk_took(const Link& link, std::uint64_t nanoseconds) {
    took(link.rail(), telemetry::rail_field::chunk_latency, link.chunk_latency, nanoseconds);
  }
  void frame_took(const Link& link, std::uint64_t nanoseconds) {
    took(link.rail(), telemetry::rail_field::frame_latency, link.frame_latency, nanoseconds);
  }
  /// What a record of the flow, or of what its user makes of it, is labelled with.
  telemetry::Labels labels_of(const Flow& flow) const;
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
  void took(std::size_t rail, std::uint32_t field, std::atomic<std::uint64_t>* of_link, std::uint64_t nanoseconds);
  void forget_gone(const Registry& registry);
  void publish_context(const Source& source, std::uint64_t queued);
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
