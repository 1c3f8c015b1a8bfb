/// The event queue of a connected rail: requests, connections that stand, connections that end.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "fabric/ofi/connected.hpp"

namespace railyard::fabric::ofi {

void ConnectedRail::look_at_connections() {
  read_connections();
  if (unmarked_sockets_) mark_sockets();
}

/// Whoever makes many connections, or tries to, takes a share of the rail's time and no more.
void ConnectedRail::read_connections() {
  more_connection_events_ = true;
  for (int i = 0; i < kMostConnectionEvents && more_connection_events_; ++i)
    more_connection_events_ = read_connection_event();
}

/// A queue knows the sockets of its new connections once it was read to its end. One that peers fill all the time may
/// not get there at once; the next look goes on.
void ConnectedRail::mark_sockets() {
  unmarked_sockets_ = false;
  for (const QueueName name : {kMessages, kInboundLinkData, kLinkData}) {
    int batches = 0;
    while (batches < kMostBatches && take_batch(name)) ++batches;
    if (batches == kMostBatches) unmarked_sockets_ = true;
    close_on_exec(*queues_[name]);
  }
}

bool ConnectedRail::read_connection_event() {
  // An event, and behind it what the peer sent along.
  alignas(fi_eq_cm_entry) std::array<std::byte, sizeof(fi_eq_cm_entry) + kMostRequestBytes> room{};
  std::uint32_t kind = 0;
  // libfabric's tcp provider (1.17) tells a connection that its peer closed half-way from one that has nothing to
  // read yet by errno alone, which a read at the end of a stream leaves as it was: an old EAGAIN would be taken for
  // "later" for ever.
  errno = 0;
  const ssize_t bytes = fi_eq_read(events_.get(), &kind, room.data(), room.size(), 0);
  if (bytes == -FI_EAVAIL) return read_connection_error();
  if (bytes < static_cast<ssize_t>(sizeof(fi_eq_cm_entry))) return false;
  const auto& event = *reinterpret_cast<const fi_eq_cm_entry*>(room.data());
  switch (kind) {
    case FI_CONNREQ: {
      const Info info(event.info);
      admit(*info, std::span(room).first(static_cast<std::size_t>(bytes)).subspan(sizeof(fi_eq_cm_entry)));
      break;
    }
    case FI_CONNECTED:
      unmarked_sockets_ = true;
      if (const auto end = end_names_.find(event.fid); end != end_names_.end()) end_stands(end->second);
      if (const auto one = accepted_.find(event.fid); one != accepted_.end()) accepted_stands(one->second);
      break;
    case FI_SHUTDOWN:
      connection_ended(event.fid, FI_ESHUTDOWN, false);
      break;
    default:
      break;
  }
  return true;
}

bool ConnectedRail::read_connection_error() {
  std::array<std::byte, kMostRequestBytes> data{};
  fi_eq_err_entry entry{};
  entry.err_data = data.data();
  entry.err_data_size = data.size();
  if (fi_eq_readerr(events_.get(), &entry, 0) < 0) return false;
  const std::size_t bytes = std::min(entry.err_data_size, data.size());
  const bool unwanted = bytes != 0 && is_refusal({static_cast<const std::byte*>(entry.err_data), bytes});
  log_debug(in_log(), "a connection failed: {}{}", library().strerror(entry.err),
            unwanted ? ", the peer shut it out" : "");
  connection_ended(entry.fid, unwanted ? FI_EACCES : entry.err, !unwanted && entry.err == FI_ECONNREFUSED);
  return true;
}

void ConnectedRail::connection_ended(fid* endpoint, int error, bool refused) {
  if (const auto end = end_names_.find(endpoint); end != end_names_.end()) {
    OfiLink& link = *links_[end->second.remote];
    link.ends[index_of(end->second.lane)].ended = true;
    lose(link, error, refused);
  } else if (const auto one = accepted_.find(endpoint); one != accepted_.end()) {
    close_accepted(one->second);
  }
}

}  // namespace railyard::fabric::ofi
