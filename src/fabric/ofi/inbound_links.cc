/// Inbound links: endpoints that a connected rail has accepted, who may become one, and how they are shut out.
#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "fabric/ofi/connected.hpp"

namespace railyard::fabric::ofi {

void ConnectedRail::admit(fi_info& info, std::span<const std::byte> data) {
  const auto request = admission_.admit(data);
  if (!request) {
    if (rejections_told_.allow(SteadyClock().now()))
      log_debug(in_log(), "{} connection requests so far were replayed or made without the secret",
                admission_.rejected());
    return reject(info, {});
  }
  if (stopped_ || !inbound_.welcome(request->tag)) return reject(info, pack_refusal());
  auto accepted = accept(info, *request);
  if (!accepted) {
    log_warn(in_log(), "a peer's connection was not accepted: {}", accepted.error().text());
    return reject(info, pack_refusal());
  }
  inbound_.seat(**accepted, request->tag, [this](Accepted& other) { close_accepted(other); });
}

Result<ConnectedRail::Accepted*> ConnectedRail::accept(fi_info& info, const LinkRequest& request) {
  auto endpoint = open_endpoint(info, request.lane, true);
  if (!endpoint) return std::move(endpoint.error());
  if (int code = fi_accept(endpoint->get(), nullptr, 0); code != 0) return set_up_error("accept a connection", code);
  Accepted& one = accepted_[&(*endpoint)->fid];
  one.endpoint = std::move(*endpoint);
  one.lane = static_cast<std::uint8_t>(request.lane);
  one.from = request.from;
  ++setting_up_;
  return &one;
}

void ConnectedRail::reject(const fi_info& info, std::span<const std::byte> word) {
  (void)fi_reject(listener_.get(), info.handle, word.data(), word.size());
}

void ConnectedRail::accepted_stands(Accepted& one) {
  if (one.stands) return;
  one.stands = true;
  --setting_up_;
  if (!one.carries(Lane::control)) return;
  refusals_.stood(one.from);
  links_.each([&](OfiLink& link) {
    if (link.up() && link.peer.rail == one.from) choose_message_way(link);
  });
}

/// With the endpoint closed nothing of it lands any more; what did is in the queues.
void ConnectedRail::close_accepted(Accepted& one) {
  if (!one.stands) --setting_up_;
  links_.each([&](OfiLink& link) {
    if (link.message_way != one.endpoint.get()) return;
    link.message_way = nullptr;
    lose(link, FI_ESHUTDOWN, false);
  });
  fid* const name = &one.endpoint->fid;
  one.endpoint.reset();
  drain(kMessages);
  drain(kInboundLinkData);
  inbound_.left(one);
  accepted_.erase(name);
}

/// A software provider reads the rest of a write straight to its place, also after its registration was closed, and so
/// sends the rest of a read. Only the end of the connection stops it. The peers' links are lost with it and come back.
void ConnectedRail::cut_off_peers() {
  std::vector<Accepted*> writers;
  for (auto& [name, one] : accepted_)
    if (one.carries(Lane::data)) writers.push_back(&one);
  for (Accepted* const one : writers) close_accepted(*one);
}

bool ConnectedRail::fence(LinkTag tag) {
  return inbound_.fence(tag, [this](Accepted& one) { close_accepted(one); });
}

}  // namespace railyard::fabric::ofi
