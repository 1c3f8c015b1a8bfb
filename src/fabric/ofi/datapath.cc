/// Post and poll. Nothing here allocates, locks or waits.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/log.hpp"
#include "fabric/ofi/rail.hpp"

namespace railyard::fabric::ofi {

Post OfiRail::fail(const char* operation, int code) {
  failed_operation_ = operation;
  failed_code_ = code;
  return Post::failed;
}

Post OfiRail::settle(LaneParts& lane, ssize_t code, const char* operation) {
  if (code == 0) {
    ++lane.outstanding;
    return Post::posted;
  }
  return code == -FI_EAGAIN ? Post::busy : fail(operation, static_cast<int>(-code));
}

Post OfiRail::send(RemoteId remote, LocalPiece message, PostContext* context) {
  if (broken_ != 0 || !known(remote)) return fail("send", broken_ != 0 ? broken_ : FI_EADDRNOTAVAIL);
  LaneParts& lane = part(Lane::control);
  if (lane.outstanding >= depth_) return Post::busy;
  return settle(lane,
                fi_send(lane.endpoint.get(), message.address, message.bytes, message.descriptor,
                        remotes_[remote].lane[static_cast<std::size_t>(Lane::control)], context),
                "send");
}

Post OfiRail::receive(LocalPiece buffer, PostContext* context) {
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

Post OfiRail::write(RemotePiece to, LocalPiece from, WriteOptions options, PostContext* context) {
  if (broken_ != 0 || !known(to.remote)) return fail("write", broken_ != 0 ? broken_ : FI_EADDRNOTAVAIL);
  LaneParts& lane = part(Lane::data);
  if (lane.outstanding >= depth_) return Post::busy;
  const fi_addr_t peer = remotes_[to.remote].lane[static_cast<std::size_t>(Lane::data)];
  fid_ep* const endpoint = lane.endpoint.get();
  if (!options.delivery_complete) {
    const ssize_t code = options.with_immediate ? fi_writedata(endpoint, from.address, from.bytes, from.descriptor,
                                                               options.immediate, peer, to.address, to.key, context)
                                                : fi_write(endpoint, from.address, from.bytes, from.descriptor, peer,
                                                           to.address, to.key, context);
    return settle(lane, code, "write");
  }
  if (!capabilities_.delivery_complete) return fail("write with delivery completion", FI_EOPNOTSUPP);
  const iovec local{from.address, from.bytes};
  const fi_rma_iov remote{to.address, from.bytes, to.key};
  fi_msg_rma message{};
  message.msg_iov = &local;
  message.desc = &from.descriptor;
  message.iov_count = 1;
  message.addr = peer;
  message.rma_iov = &remote;
  message.rma_iov_count = 1;
  message.context = context;
  message.data = options.immediate;
  const std::uint64_t immediate = options.with_immediate ? FI_REMOTE_CQ_DATA : 0;
  return settle(lane, fi_writemsg(endpoint, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE | immediate), "write");
}

Post OfiRail::read(RemotePiece from, LocalPiece to, PostContext* context) {
  if (broken_ != 0 || !known(from.remote)) return fail("read", broken_ != 0 ? broken_ : FI_EADDRNOTAVAIL);
  LaneParts& lane = part(Lane::data);
  if (lane.outstanding >= depth_) return Post::busy;
  return settle(
      lane,
      fi_read(lane.endpoint.get(), to.address, to.bytes, to.descriptor,
              remotes_[from.remote].lane[static_cast<std::size_t>(Lane::data)], from.address, from.key, context),
      "read");
}

bool OfiRail::look_at_data_lane() {
  if (part(Lane::data).outstanding != 0 || data_first_ || !idle_landing_receives_.empty()) return true;
  if (warm_ != 0) {
    --warm_;
    return true;
  }
  if (++idle_looks_ < kIdleLook) return false;
  idle_looks_ = 0;
  return true;
}

std::size_t OfiRail::poll(std::span<Event> events) {
  if (stopped_ || events.empty()) return 0;
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
  if (!idle_landing_receives_.empty()) post_landing_receives();
  return from_first + from_second;
}

std::size_t OfiRail::read_queue(LaneParts& lane, std::span<Event> events) {
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
      if (read_error(lane, events[count])) ++count;
    } else {
      if (read != -FI_EAGAIN && read != 0 && broken_ == 0) {
        broken_ = static_cast<int>(-read);
        log_error("{}: its completion queue failed: {}", name_, fi_strerror(broken_));
      }
      break;
    }
  }
  return count;
}

/// Turns a completion into an event; false for one that means nothing to the caller.
bool OfiRail::read_entry(LaneParts& lane, const fi_cq_data_entry& entry, Event& event) {
  event.context = static_cast<PostContext*>(entry.op_context);
  event.bytes = entry.len;
  // Own operations first: some providers repeat the immediate in the completion of the write that carried it.
  const std::uint64_t own = entry.flags & (FI_SEND | FI_WRITE | FI_READ);
  if (own != 0 && (entry.flags & (FI_REMOTE_WRITE | FI_RECV)) == 0) {
    event.kind = own == FI_SEND ? Event::Kind::sent : own == FI_WRITE ? Event::Kind::written : Event::Kind::read;
    --lane.outstanding;
    return true;
  }
  if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
    event.kind = Event::Kind::landed;
    event.immediate = static_cast<std::uint32_t>(entry.data);
    event.context = nullptr;
    take_back_landing_receive(entry.op_context);
    return true;
  }
  if ((entry.flags & FI_RECV) == 0) return false;  // an event of the target side that nobody asked for
  event.kind = Event::Kind::received;
  --receives_;
  return true;
}

/// The one way out for every error of the rail.
bool OfiRail::read_error(LaneParts& lane, Event& event) {
  fi_cq_err_entry entry{};
  const ssize_t read = fi_cq_readerr(lane.queue.get(), &entry, 0);
  if (read != 1) return false;
  if (log_enabled(LogLevel::debug)) {
    std::array<char, 160> text{};
    const char* detail = fi_cq_strerror(lane.queue.get(), entry.prov_errno, entry.err_data, text.data(), text.size());
    log_debug("{}: error completion: {} ({})", name_, fi_strerror(entry.err), detail == nullptr ? "" : detail);
  }
  if (take_back_landing_receive(entry.op_context)) return false;
  if (entry.op_context == nullptr) return false;  // a peer's operation failed here; the peer hears of it
  std::size_t& in_flight = (entry.flags & FI_RECV) != 0 ? receives_ : lane.outstanding;
  if (in_flight != 0) --in_flight;
  event.kind = Event::Kind::failed;
  event.context = static_cast<PostContext*>(entry.op_context);
  event.error = entry.err;
  event.bytes = 0;
  return true;
}

bool OfiRail::take_back_landing_receive(void* context) {
  auto* const mine = static_cast<PostContext*>(context);
  const PostContext* const first = landing_receives_.data();
  if (std::less<>()(mine, first) || !std::less<>()(mine, first + landing_receives_.size())) return false;
  idle_landing_receives_.push_back(mine);
  return true;
}

void OfiRail::post_landing_receives() {
  while (!idle_landing_receives_.empty()) {
    PostContext* const context = idle_landing_receives_.back();
    if (fi_recv(part(Lane::data).endpoint.get(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, context) != 0) return;
    idle_landing_receives_.pop_back();
  }
}

std::string OfiRail::describe_error(int error) const { return fi_strerror(error); }

std::string OfiRail::failure() const {
  return fmt::format("{}: {} failed: {}", name_, failed_operation_, fi_strerror(failed_code_));
}

}  // namespace railyard::fabric::ofi
