/// Inbound links: endpoints that a connected rail has accepted, who may become one, and how they are shut out.
#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "fabric/ofi/connected.hpp"

namespace railyard::fabric::ofi {

void ConnectedRail::admit(fi_info& info, std::span<const std::byte> data) {
  const auto request = LinkRequest::parse(data);
  if (stopped_ || !request || !welcome(request->tag)) {
    refuse(info);
    return;
  }
  // The sender has given up the epochs before this one.
  if (request->tag.epoch != 0) close_inbound_links(request->tag.id, request->tag.epoch - 1, true);
  if (auto accepted = accept(info, *request); !accepted) {
    log_warn(in_log(), "a peer's connection was not accepted: {}", accepted.error().text());
    refuse(info);
    return;
  }
  epochs_[request->tag.id].newest = request->tag.epoch;
}

bool ConnectedRail::welcome(const LinkTag& tag) const {
  const auto epochs = epochs_.find(tag.id);
  if (epochs == epochs_.end()) return true;
  return tag.epoch >= epochs->second.newest && (!epochs->second.fenced || tag.epoch > *epochs->second.fenced);
}

Result<void> ConnectedRail::accept(fi_info& info, const LinkRequest& request) {
  auto endpoint = open_endpoint(info, request.lane, true);
  if (!endpoint) return std::move(endpoint.error());
  if (int code = fi_accept(endpoint->get(), nullptr, 0); code != 0) return set_up_error("accept a connection", code);
  fid* const name = &(*endpoint)->fid;
  inbound_links_.emplace(name, OfiInboundLink{std::move(*endpoint), request.lane, request.tag, request.from});
  ++setting_up_;
  return {};
}

void ConnectedRail::refuse(const fi_info& info) {
  const auto refusal = pack_refusal();
  (void)fi_reject(listener_.get(), info.handle, refusal.data(), refusal.size());
}

void ConnectedRail::inbound_link_stands(OfiInboundLink& inbound_link) {
  if (inbound_link.stands) return;
  inbound_link.stands = true;
  --setting_up_;
  if (inbound_link.lane != Lane::control) return;
  refusals_.stood(inbound_link.from);
  for (auto& link : links_)
    if (link->state == OfiLink::State::up && link->peer == inbound_link.from) choose_message_way(*link);
}

void ConnectedRail::lose_riders(const fid_ep* endpoint) {
  for (RemoteId remote = 0; remote < links_.size(); ++remote) {
    if (links_[remote]->message_way != endpoint) continue;
    links_[remote]->message_way = nullptr;
    lose(remote, FI_ESHUTDOWN, false);
  }
}

void ConnectedRail::inbound_link_left(fid* endpoint) {
  const auto inbound_link = inbound_links_.find(endpoint);
  const LinkTag tag = inbound_link->second.tag;
  if (!inbound_link->second.stands) --setting_up_;
  lose_riders(inbound_link->second.endpoint.get());
  inbound_links_.erase(inbound_link);
  for (const auto& [other, one] : inbound_links_)
    if (one.tag.id == tag.id && one.tag.epoch == tag.epoch) return;  // its other lane may still have bytes to read
  report_left(tag);
}

/// After what the link delivered.
void ConnectedRail::report_left(const LinkTag& tag) {
  drain(kMessages);
  drain(kInboundLinkData);
  pending_.push_left(tag);
}

void ConnectedRail::close_inbound_links(LinkName id, std::uint32_t epoch, bool report) {
  std::map<std::uint32_t, LinkTag> closed;
  for (auto inbound_link = inbound_links_.begin(); inbound_link != inbound_links_.end();) {
    const LinkTag tag = inbound_link->second.tag;
    if (tag.id != id || tag.epoch > epoch) {
      ++inbound_link;
      continue;
    }
    if (!inbound_link->second.stands) --setting_up_;
    lose_riders(inbound_link->second.endpoint.get());
    inbound_link = inbound_links_.erase(inbound_link);
    closed[tag.epoch] = tag;
  }
  if (report)
    for (const auto& [epoch, tag] : closed) report_left(tag);
}

/// A software provider reads the rest of a write straight to its place, also after its registration was closed, and so
/// sends the rest of a read. Only the end of the connection stops it. The peers' links are lost with it and come back.
void ConnectedRail::cut_off_peers() {
  for (auto inbound_link = inbound_links_.begin(); inbound_link != inbound_links_.end();) {
    if (inbound_link->second.lane != Lane::data) {
      ++inbound_link;
      continue;
    }
    if (!inbound_link->second.stands) --setting_up_;
    const LinkTag tag = inbound_link->second.tag;
    inbound_link = inbound_links_.erase(inbound_link);
    const auto same = [&](const auto& other) {
      return other.second.tag.id == tag.id && other.second.tag.epoch == tag.epoch;
    };
    if (std::ranges::none_of(inbound_links_, same)) report_left(tag);
  }
  drain(kInboundLinkData);  // what landed before is told as ever
}

bool ConnectedRail::fence(LinkTag tag) {
  InboundEpochs& epochs = epochs_[tag.id];
  if (!epochs.fenced || *epochs.fenced < tag.epoch) {
    epochs.fenced = tag.epoch;
    close_inbound_links(tag.id, tag.epoch, false);
    // Their endpoints are closed, so nothing of theirs lands from here on; what did is in these queues.
    drain(kMessages);
    drain(kInboundLinkData);
    epochs.fence_mark = pending_.mark();
  }
  return pending_.past(epochs.fence_mark);
}

}  // namespace railyard::fabric::ofi
