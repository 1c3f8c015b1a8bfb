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

Post DatagramRail::refuse_post(const char* operation) {
  return fail(operation, broken_ != 0 ? broken_ : FI_EADDRNOTAVAIL);
}

Post DatagramRail::send(RemoteId remote, const LocalChunk& message, PostContext* context) {
  const DatagramLink* const link = ready(remote);
  if (link == nullptr) return refuse_post("send");
  LaneParts& lane = part(Lane::control);
  if (lane.outstanding >= depth_) return Post::busy;
  return settle(lane,
                fi_send(lane.endpoint.get(), message.address, message.bytes, message.descriptor,
                        link->lane[index_of(Lane::control)], context),
                "send");
}

Post DatagramRail::receive(const LocalChunk& buffer, PostContext* context) {
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

Post DatagramRail::write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context) {
  const DatagramLink* const link = ready(to.remote);
  if (link == nullptr) return refuse_post("write");
  LaneParts& lane = part(Lane::data);
  if (lane.outstanding >= depth_) return Post::busy;
  if (options.delivery_complete && !capabilities_.delivery_complete)
    return fail("write with delivery completion", FI_EOPNOTSUPP);
  const fi_addr_t peer = link->lane[index_of(Lane::data)];
  return settle(lane, post_write(lane.endpoint.get(), peer, to, from, options, context), "write");
}

Post DatagramRail::read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) {
  const DatagramLink* const link = ready(from.remote);
  if (link == nullptr) return refuse_post("read");
  LaneParts& lane = part(Lane::data);
  if (lane.outstanding >= depth_) return Post::busy;
  return settle(lane,
                fi_read(lane.endpoint.get(), to.address, to.bytes, to.descriptor, link->lane[index_of(Lane::data)],
                        from.address, from.key, context),
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
  return read_completions(
      *lane.queue, events, [&](const fi_cq_data_entry& entry, Event& event) { return read_entry(lane, entry, event); },
      [&](Event& event) { return read_failure(lane, event); });
}

bool DatagramRail::read_entry(LaneParts& lane, const fi_cq_data_entry& entry, Event& event) {
  if (!is_own(entry.flags)) return read_arrival(entry, event);
  event.kind = own_kind(entry.flags);
  event.context = static_cast<PostContext*>(entry.op_context);
  event.bytes = entry.len;
  --lane.outstanding;
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
  event.blame = blame_for(entry.err);
  return true;
}

}  // namespace railyard::fabric::ofi
