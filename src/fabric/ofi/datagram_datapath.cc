/// Post and poll of a datagram rail. Nothing here allocates, locks or waits.
#include <algorithm>

#include "fabric/ofi/datagram.hpp"
#include "fabric/ofi/transfer.hpp"

namespace railyard::fabric::ofi {

Post DatagramRail::settle(LaneParts& lane, ssize_t code, const char* operation) {
  if (code == 0) {
    ++lane.outstanding;
    return Post::posted;
  }
  return code == -FI_EAGAIN ? Post::busy : fail(operation, static_cast<int>(-code));
}

Post DatagramRail::send(RemoteId remote, LocalPiece message, PostContext* context) {
  if (broken_ != 0 || !known(remote)) return fail("send", broken_ != 0 ? broken_ : FI_EADDRNOTAVAIL);
  LaneParts& lane = part(Lane::control);
  if (lane.outstanding >= depth_) return Post::busy;
  return settle(lane,
                fi_send(lane.endpoint.get(), message.address, message.bytes, message.descriptor,
                        remotes_[remote].lane[index_of(Lane::control)], context),
                "send");
}

Post DatagramRail::receive(LocalPiece buffer, PostContext* context) {
  if (broken_ != 0) return fail("receive", broken_);
  if (receives_ >= depth_) return Post::busy;
  const ssize_t code = fi_recv(part(Lane::control).endpoint.get(), buffer.address, buffer.bytes, buffer.descriptor,
                               FI_ADDR_UNSPEC, context);
  if (code == 0) {
    ++receives_;
    return Post::posted;
  }
  return code == -FI_EAGAIN ? Post::busy : fail("receive", static_cast<int>(-code));
}

Post DatagramRail::write(RemotePiece to, LocalPiece from, WriteOptions options, PostContext* context) {
  if (broken_ != 0 || !known(to.remote)) return fail("write", broken_ != 0 ? broken_ : FI_EADDRNOTAVAIL);
  LaneParts& lane = part(Lane::data);
  if (lane.outstanding >= depth_) return Post::busy;
  if (options.delivery_complete && !capabilities_.delivery_complete)
    return fail("write with delivery completion", FI_EOPNOTSUPP);
  const fi_addr_t peer = remotes_[to.remote].lane[index_of(Lane::data)];
  return settle(lane, post_write(lane.endpoint.get(), peer, to, from, options, context), "write");
}

Post DatagramRail::read(RemotePiece from, LocalPiece to, PostContext* context) {
  if (broken_ != 0 || !known(from.remote)) return fail("read", broken_ != 0 ? broken_ : FI_EADDRNOTAVAIL);
  LaneParts& lane = part(Lane::data);
  if (lane.outstanding >= depth_) return Post::busy;
  return settle(lane,
                fi_read(lane.endpoint.get(), to.address, to.bytes, to.descriptor,
                        remotes_[from.remote].lane[index_of(Lane::data)], from.address, from.key, context),
                "read");
}

bool DatagramRail::look_at_data_lane() {
  if (part(Lane::data).outstanding != 0 || data_first_ || landing_.waiting()) return true;
  if (warm_ != 0) {
    --warm_;
    return true;
  }
  if (++idle_looks_ < kIdleLook) return false;
  idle_looks_ = 0;
  return true;
}

std::size_t DatagramRail::poll(std::span<Event> events) {
  if (stopped_ || events.empty()) return 0;
  if (++turn_ % kSlowLook == 0) look_at_interface();
  if (pending_.empty()) return read_lanes(events);
  const std::size_t count = pending_.take(events);
  return count + (count < events.size() ? read_lanes(events.subspan(count)) : 0);
}

std::size_t DatagramRail::read_lanes(std::span<Event> events) {
  if (!look_at_data_lane()) return read_queue(part(Lane::control), events);
  // Neither lane starves the other: one that found no room is first the next time.
  const bool data_first = data_first_;
  data_first_ = false;
  LaneParts& first = part(data_first ? Lane::data : Lane::control);
  LaneParts& second = part(data_first ? Lane::control : Lane::data);
  const std::size_t from_first = read_queue(first, events);
  std::size_t from_second = 0;
  if (from_first < events.size())
    from_second = read_queue(second, events.subspan(from_first));
  else
    data_first_ = !data_first;
  if ((data_first ? from_first : from_second) != 0) warm_ = kWarmLooks;
  if (landing_.waiting()) landing_.post();
  return from_first + from_second;
}

std::size_t DatagramRail::read_queue(LaneParts& lane, std::span<Event> events) {
  std::array<fi_cq_data_entry, kReadBatch> entries;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
  std::size_t count = 0;
  while (count < events.size()) {
    const std::size_t room = std::min(events.size() - count, kReadBatch);
    const ssize_t read = fi_cq_read(lane.queue.get(), entries.data(), room);
    if (read > 0) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(read); ++i)
        if (read_entry(lane, entries[i], events[count])) ++count;
      if (static_cast<std::size_t>(read) < room) break;
    } else if (read == -FI_EAVAIL) {
      if (read_failure(lane, events[count])) ++count;
    } else {
      if (read != -FI_EAGAIN && read != 0) give_up(static_cast<int>(-read));
      break;
    }
  }
  return count;
}

/// Turns a completion into an event; false for one that means nothing to the caller.
bool DatagramRail::read_entry(LaneParts& lane, const fi_cq_data_entry& entry, Event& event) {
  event.context = static_cast<PostContext*>(entry.op_context);
  event.bytes = entry.len;
  // Own operations first: some providers repeat the immediate in the completion of the write that carried it.
  const std::uint64_t own = entry.flags & (FI_SEND | FI_WRITE | FI_READ);
  if (own != 0 && (entry.flags & (FI_REMOTE_WRITE | FI_RECV)) == 0) {
    event.kind = own_kind(own);
    --lane.outstanding;
    return true;
  }
  if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
    event.kind = Event::Kind::landed;
    event.immediate = static_cast<std::uint32_t>(entry.data);
    event.context = nullptr;
    landing_.take_back(entry.op_context);
    return true;
  }
  if ((entry.flags & FI_RECV) == 0) return false;  // an event of the target side that nobody asked for
  event.kind = Event::Kind::received;
  --receives_;
  return true;
}

/// The one way out for every error of the rail.
bool DatagramRail::read_failure(LaneParts& lane, Event& event) {
  fi_cq_err_entry entry;
  if (!read_error(*lane.queue, entry)) return false;
  if (landing_.take_back(entry.op_context)) return false;
  if (entry.op_context == nullptr) return false;  // a peer's operation failed here; the peer hears of it
  std::size_t& in_flight = (entry.flags & FI_RECV) != 0 ? receives_ : lane.outstanding;
  if (in_flight != 0) --in_flight;
  event = {};
  event.context = static_cast<PostContext*>(entry.op_context);
  event.error = entry.err;
  return true;
}

}  // namespace railyard::fabric::ofi
