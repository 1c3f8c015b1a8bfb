/// Inbound links: peers' links that use a connection, which epochs of them are let in, and how they are shut out.
#include <cerrno>

#include "fabric/tcp/rail.hpp"

namespace railyard::fabric::tcp {

bool TcpRail::welcome(const LinkTag& tag) const {
  const auto epochs = epochs_.find(tag.id);
  if (epochs == epochs_.end()) return true;
  return tag.epoch >= epochs->second.newest && (!epochs->second.fenced || tag.epoch > *epochs->second.fenced);
}

void TcpRail::seat_inbound(Connection& connection, const LinkTag& tag) {
  // The sender has given up the epochs before this one, and the connection that it had in this one.
  if (tag.epoch != 0) close_inbound(tag.id, tag.epoch - 1, true);
  for (auto& other : connections_) {
    if (other.get() == &connection || !other->inbound || other->peer != connection.peer) continue;
    if (other->inbound->id != tag.id) continue;
    other->inbound.reset();
    if (other->link == nullptr) end_connection(*other, 0, false);
  }
  connection.inbound = tag;
  epochs_[tag.id].newest = tag.epoch;
}

void TcpRail::close_inbound(const LinkId& id, std::uint32_t epoch, bool report) {
  for (auto& connection : connections_)
    if (connection->inbound && connection->inbound->id == id && connection->inbound->epoch <= epoch)
      end_connection(*connection, kPeerClosed, report);
}

/// Nothing lands but inside `poll`: with the connections closed, what has landed is in `pending_` already. What GPUs
/// are still copying is not told of, and is over before this says so.
bool TcpRail::fence(LinkTag tag) {
  Epochs& epochs = epochs_[tag.id];
  if (!epochs.fenced || *epochs.fenced < tag.epoch) {
    epochs.fenced = tag.epoch;
    close_inbound(tag.id, tag.epoch, false);
    epochs.fence_mark = pending_.mark();
  }
  return pending_.past(epochs.fence_mark) && (device_ == nullptr || !copies_of(tag));
}

void TcpRail::take_bind(Connection& connection) {
  const LinkTag tag = parse_tag(std::span(connection.small).first<kTagBytes>());
  const bool taken = welcome(tag) && (!connection.inbound || connection.inbound->id == tag.id);
  if (taken) seat_inbound(connection, tag);
  if (!connection.standing()) return;
  Frame bound;
  bound.kind = FrameKind::bound;
  bound.number = tag.epoch;
  bound.word = taken ? 0 : 1;
  connection.control.push_back(bound);
  mark_dirty(connection);
}

void TcpRail::take_bound(Connection& connection) {
  // The answer to an attempt that was given up is of no interest.
  if (!connection.binding || connection.frame.number != connection.link->tag.epoch) return;
  connection.binding = false;
  TcpLink& link = *connection.link;
  if (connection.frame.word == 0) return link_stands(link, connection);
  connection.link = nullptr;
  link.connection = nullptr;
  lose(link, EACCES);
}

void TcpRail::take_unbind(Connection& connection) {
  if (!connection.inbound) return;
  pending_.push_left(*connection.inbound);
  connection.inbound.reset();
  if (connection.link == nullptr) close_in_order(connection);
}

}  // namespace railyard::fabric::tcp
