#include "transport/core.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace railyard::transport {
namespace {

constexpr std::size_t kMostReceives = 16384;  // held

std::size_t held_for(std::size_t flows) { return std::max(kMostReceives, 2 * kFirstGrant * flows); }

}  // namespace

Core::Core(EngineParts parts, std::function<Waiting::Agenda()> agenda)
    : settings(std::move(parts.settings)),
      clock(parts.clock),
      identity(parts.identity),
      most_flows(parts.most_flows != 0 ? parts.most_flows
                 : parts.size > 0      ? static_cast<std::size_t>(parts.size)
                                       : EngineParts::kMostFlows),
      find_peer(std::move(parts.find_peer)),
      failover(settings.failover != "off"),
      deadline_floor(std::int64_t{settings.ack_deadline_ms} * 1'000'000),
      peer_timeout(std::int64_t{settings.peer_timeout_ms} * 1'000'000),
      rails(std::move(parts.rails)),
      progress_lock(settings.threads != "single" || settings.progress == "thread"),
      waiting(*clock, progress_lock, rails.views(), settings.wait, std::move(agenda)) {
  const std::size_t overhead = wire::kRecordsAt + wire::record_bytes(0) + wire::record_bytes(sizeof(std::uint64_t));
  // At least a value: `put_value` takes it at the call, so it must travel inside.
  inline_bytes = std::clamp<std::size_t>(settings.inline_bytes, sizeof(std::uint64_t), wire::kFrameBytes - overhead);
  window = std::clamp<std::uint32_t>(settings.window, kFirstGrant, wire::kMaxWindow);
}

Result<void> Core::open() {
  std::size_t frame_bytes = wire::kFrameBytes;
  for (const auto* rail : rails.views()) frame_bytes = std::min(frame_bytes, rail->capabilities().max_message);
  if (frame_bytes < wire::kFrameBytes) {
    return Error(Status::unsupported, fmt::format("a rail carries messages of {} bytes at most; {} are needed",
                                                  frame_bytes, wire::kFrameBytes));
  }
  if (auto opened = pools.open(rails.views()); !opened) return opened;
  expect_flows(most_flows);
  if (auto opened = rails.open(settings.batch, held_for(most_flows)); !opened) return opened;
  cache = std::make_unique<memory::RegionCache>(rails.views(), fabric::Access{.bulk = true});
  return {};
}

void Core::expect_flows(std::size_t flows) { grants.open(static_cast<std::uint32_t>(held_for(flows)), window); }

void Core::note_stuck(const Segment& segment) {
  rails.state(segment.operation->flow->route->links[segment.link].rail()).stuck = true;
  rails_stuck = has_chores = true;
}

void Core::note_stuck(const Route& route) {
  pools.for_each_segment_and_frame([&](const Segment& segment) {
    if (segment.posted && segment.operation->flow->route == &route) note_stuck(segment);
  });
}

}  // namespace railyard::transport
