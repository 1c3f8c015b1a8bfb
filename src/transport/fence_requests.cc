#include "transport/fence_requests.hpp"

#include <algorithm>
#include <array>

namespace railyard::transport {

void FenceRequests::add(Flow& flow, wire::LinkEnds ends, std::uint32_t epoch) {
  const auto known = std::ranges::find_if(
      requests_, [&](const Request& request) { return request.flow == &flow && request.ends.link == ends.link; });
  Request& request = known != requests_.end() ? *known : requests_.emplace_back();
  request.flow = &flow;
  if (request.epoch != epoch || request.not_before == 0) {
    const auto& capabilities = core_.rails[ends.remote_rail].capabilities();
    // The sender disconnected before it asked: what it had under way is at most this old when the time is up.
    const bool timed = capabilities.fencing == fabric::Fencing::timed;
    request.not_before = core_.health_clock + (timed ? capabilities.packet_lifetime : 0);
  }
  request.ends = ends;
  request.epoch = epoch;
  core_.has_chores = true;
}

bool FenceRequests::any(const Route& route) const {
  return std::ranges::any_of(requests_, [&](const Request& request) { return request.flow->route == &route; });
}

bool FenceRequests::answer() {
  return std::erase_if(requests_, [this](const Request& request) { return answer(request); }) != 0;
}

/// Whether the request is dealt with. The report is taken after the fence: what it lacks will never arrive.
bool FenceRequests::answer(const Request& request) {
  Flow& flow = *request.flow;
  if (flow.failed.load(std::memory_order_relaxed)) return true;
  const fabric::LinkName id = RouteName::of_link(flow.route->name.in, request.ends.link);
  if (!core_.rails.fence(request.ends.remote_rail, {id, request.epoch}) || core_.health_clock < request.not_before)
    return false;

  struct {
    wire::FencedBody report;
    std::array<std::uint64_t, wire::kMaxWindow / 64U> words{};
  } body;
  body.report = {flow.receiver.next(), flow.receiver.arrived_ahead(body.words)};
  const std::size_t bytes = sizeof body.report + body.report.words * sizeof(std::uint64_t);
  const bool told = reports_.send_notice(flow, wire::Fenced{request.epoch, request.ends}.header(bytes),
                                         std::as_bytes(std::span(&body, 1)).first(bytes));
  if (told) core_.trace.event({EngineTrace::Kind::fence, flow.peer, request.ends.remote_rail, 0, body.report.next});
  return told;
}

}  // namespace railyard::transport
