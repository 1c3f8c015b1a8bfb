/// Inbound links: peers' links that use a connection, which epochs of them are let in, and how they are shut out.
#include <cerrno>

#include "fabric/tcp/rail.hpp"

namespace railyard::fabric::tcp {

bool TcpRail::seat_inbound(Connection& connection, const LinkTag& tag) {
  return inbound_.seat(connection, tag, [&](Connection& other) {
    // The peer has merely gone over to another connection: ours may stay.
    const bool stays = other.ended->epoch == tag.epoch && other.link != nullptr;
    stays ? inbound_.rested(other) : end_connection(other, kPeerClosed);
  });
}

/// Nothing lands but inside `poll`: with the connections closed, what has landed is in `pending_` already. What GPUs
/// are still copying is not told of, and is over before this says so.
bool TcpRail::fence(LinkTag tag) {
  const bool closed = inbound_.fence(tag, [this](Connection& connection) { end_connection(connection, kPeerClosed); });
  return closed && (device_ == nullptr || !copies_of(tag));
}

void TcpRail::take_bind(Connection& connection) {
  const LinkTag tag = parse_tag(std::span(connection.small).first<kTagBytes>());
  const bool taken = inbound_.welcome(tag) && (!connection.inbound || connection.inbound->id == tag.id);
  if (taken && !seat_inbound(connection, tag)) return;
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
  inbound_.left(connection);
  if (connection.link == nullptr) close_in_order(connection);
}

}  // namespace railyard::fabric::tcp
