/// Guests: endpoints that a connected rail has accepted, who may become one, and how they are shut out.
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
  // The sender has given up the lives before this one.
  if (request->tag.epoch != 0) close_guests(request->tag.id, request->tag.epoch - 1, true);
  if (auto accepted = accept(info, *request); !accepted) {
    log_warn(in_log(), "a peer's connection was not accepted: {}", accepted.error().text());
    refuse(info);
    return;
  }
  lives_[request->tag.id].newest = request->tag.epoch;
}

bool ConnectedRail::welcome(const LinkTag& tag) const {
  const auto lives = lives_.find(tag.id);
  if (lives == lives_.end()) return true;
  return tag.epoch >= lives->second.newest && (!lives->second.fenced || tag.epoch > *lives->second.fenced);
}

Result<void> ConnectedRail::accept(fi_info& info, const LinkRequest& request) {
  auto endpoint = open_endpoint(info, request.lane, true);
  if (!endpoint) return std::move(endpoint.error());
  if (int code = fi_accept(endpoint->get(), nullptr, 0); code != 0) return set_up_error("accept a connection", code);
  fid* const name = &(*endpoint)->fid;
  guests_.emplace(name, Guest{std::move(*endpoint), request.lane, request.tag, request.from});
  ++setting_up_;
  return {};
}

void ConnectedRail::refuse(const fi_info& info) {
  const auto refusal = pack_refusal();
  (void)fi_reject(listener_.get(), info.handle, refusal.data(), refusal.size());
}

void ConnectedRail::guest_stands(Guest& guest) {
  if (guest.stands) return;
  guest.stands = true;
  --setting_up_;
  if (guest.lane != Lane::control) return;
  for (auto& link : links_)
    if (link->state == Link::State::up && link->peer == guest.from) choose_message_way(*link);
}

void ConnectedRail::lose_riders(const fid_ep* endpoint) {
  for (RemoteId remote = 0; remote < links_.size(); ++remote) {
    if (links_[remote]->message_way != endpoint) continue;
    links_[remote]->message_way = nullptr;
    lose(remote, FI_ESHUTDOWN, false);
  }
}

void ConnectedRail::guest_left(fid* endpoint) {
  const auto guest = guests_.find(endpoint);
  const LinkTag tag = guest->second.tag;
  if (!guest->second.stands) --setting_up_;
  lose_riders(guest->second.endpoint.get());
  guests_.erase(guest);
  for (const auto& [other, one] : guests_)
    if (one.tag.id == tag.id && one.tag.epoch == tag.epoch) return;  // its other lane may still have bytes to read
  report_left(tag);
}

/// After what the link delivered.
void ConnectedRail::report_left(const LinkTag& tag) {
  drain(kMessages);
  drain(kGuestData);
  pending_.push_left(tag);
}

void ConnectedRail::close_guests(LinkName id, std::uint32_t epoch, bool report) {
  std::map<std::uint32_t, LinkTag> closed;
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const LinkTag tag = guest->second.tag;
    if (tag.id != id || tag.epoch > epoch) {
      ++guest;
      continue;
    }
    if (!guest->second.stands) --setting_up_;
    lose_riders(guest->second.endpoint.get());
    guest = guests_.erase(guest);
    closed[tag.epoch] = tag;
  }
  if (report)
    for (const auto& [life, tag] : closed) report_left(tag);
}

/// A software provider reads the rest of a write straight to its place, also after its registration was closed, and so
/// sends the rest of a read. Only the end of the connection stops it. The peers' links are lost with it and come back.
void ConnectedRail::cut_off_peers() {
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    if (guest->second.lane != Lane::data) {
      ++guest;
      continue;
    }
    if (!guest->second.stands) --setting_up_;
    const LinkTag tag = guest->second.tag;
    guest = guests_.erase(guest);
    const auto same = [&](const auto& other) {
      return other.second.tag.id == tag.id && other.second.tag.epoch == tag.epoch;
    };
    if (std::ranges::none_of(guests_, same)) report_left(tag);
  }
  drain(kGuestData);  // what landed before is told as ever
}

bool ConnectedRail::fence(LinkTag tag) {
  Lives& lives = lives_[tag.id];
  if (!lives.fenced || *lives.fenced < tag.epoch) {
    lives.fenced = tag.epoch;
    close_guests(tag.id, tag.epoch, false);
    // Their endpoints are closed, so nothing of theirs lands from here on; what did is in these queues.
    drain(kMessages);
    drain(kGuestData);
    lives.fence_mark = pending_.mark();
  }
  return pending_.past(lives.fence_mark);
}

}  // namespace railyard::fabric::ofi
