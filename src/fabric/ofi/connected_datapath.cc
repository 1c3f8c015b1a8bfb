/// Post and poll of a connected rail. Nothing here allocates, locks or waits while links stand.
#include <algorithm>
#include <utility>

#include "fabric/ofi/connected.hpp"
#include "fabric/ofi/transfer.hpp"

namespace railyard::fabric::ofi {

/// Why a link takes no posts now.
Post ConnectedRail::refuse_post(const char* operation, RemoteId remote) {
  if (broken_ != 0) return fail(operation, broken_);
  return BaseRail::refuse_post(operation, links_.find(remote), {FI_ESHUTDOWN, FI_EADDRNOTAVAIL, FI_ENOTCONN});
}

Post ConnectedRail::settle(OfiLink& link, Lane lane, ssize_t code, const char* operation, PostContext* context) {
  if (code == 0) {
    context->link = link.remote;
    link.in_flight.add(context);
    ++link.ends[index_of(lane)].outstanding;
    ++outstanding_[index_of(lane)];
    return Post::posted;
  }
  return code == -FI_EAGAIN ? Post::busy : fail(operation, static_cast<int>(-code));
}

Post ConnectedRail::send(RemoteId remote, const LocalChunk& message, PostContext* context) {
  OfiLink* const link = ready(remote);
  if (link == nullptr) return refuse_post("send", remote);
  End& end = link->ends[index_of(Lane::control)];
  if (message.bytes <= capabilities_.inject_bytes && end.injected < kMostInjected)
    return inject(*link, message, context);
  if (end.outstanding >= depth_) return Post::busy;
  end.injected = 0;
  return settle(*link, Lane::control,
                fi_send(link->message_way, message.address, message.bytes, message.descriptor, FI_ADDR_UNSPEC, context),
                "send", context);
}

/// A short message is copied at once: the provider makes no completion for it, which saves it three system calls over
/// tcp.
Post ConnectedRail::inject(OfiLink& link, const LocalChunk& message, PostContext* context) {
  if (injected_.size() == injected_.capacity()) return Post::busy;
  const ssize_t code = fi_inject(link.message_way, message.address, message.bytes, FI_ADDR_UNSPEC);
  if (code == -FI_EAGAIN) return Post::busy;
  if (code != 0) return fail("send", static_cast<int>(-code));
  ++link.ends[index_of(Lane::control)].injected;
  injected_.push_back(context);
  return Post::posted;
}

std::size_t ConnectedRail::take_injected(std::span<Event> events) {
  const std::size_t count = std::min(events.size(), injected_.size());
  for (std::size_t i = 0; i < count; ++i) {
    events[i].kind = Event::Kind::sent;
    events[i].context = injected_[i];
  }
  injected_.erase(injected_.begin(), injected_.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

Post ConnectedRail::receive(const LocalChunk& buffer, PostContext* context) {
  if (broken_ != 0) return fail("receive", broken_);
  if (receives_ >= depth_) return Post::busy;
  context->link = kReceive;
  const ssize_t code = fi_recv(shared_receives_[index_of(Lane::control)].get(), buffer.address, buffer.bytes,
                               buffer.descriptor, FI_ADDR_UNSPEC, context);
  if (code == 0) {
    ++receives_;
    return Post::posted;
  }
  return code == -FI_EAGAIN ? Post::busy : fail("receive", static_cast<int>(-code));
}

Post ConnectedRail::write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context) {
  OfiLink* const link = ready(to.remote);
  if (link == nullptr) return refuse_post("write", to.remote);
  const End& end = link->ends[index_of(Lane::data)];
  if (end.outstanding >= depth_) return Post::busy;
  if (options.delivery_complete && !capabilities_.delivery_complete)
    return fail("write with delivery completion", FI_EOPNOTSUPP);
  return settle(*link, Lane::data, post_write(end.endpoint.get(), FI_ADDR_UNSPEC, to, from, options, context), "write",
                context);
}

Post ConnectedRail::read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) {
  OfiLink* const link = ready(from.remote);
  if (link == nullptr) return refuse_post("read", from.remote);
  const End& end = link->ends[index_of(Lane::data)];
  if (end.outstanding >= depth_) return Post::busy;
  return settle(
      *link, Lane::data,
      fi_read(end.endpoint.get(), to.address, to.bytes, to.descriptor, FI_ADDR_UNSPEC, from.address, from.key, context),
      "read", context);
}

std::size_t ConnectedRail::poll(std::span<Event> events) {
  if (stopped_ || events.empty()) return 0;
  ++turn_;
  if (turn_ % kSlowLook == 0) look_at_interface();
  if (turn_ % kSlowLook == 0 || more_connection_events_ || unmarked_sockets_ ||
      (setting_up_ + links_.connecting() != 0 && turn_ % kSetUpLook == 0))
    look_at_connections();
  if (!running_out_.empty()) run_out();
  std::size_t count = pending_.empty() ? 0 : pending_.take(events);
  if (!injected_.empty()) count += take_injected(events.subspan(count));
  // No queue starves another: one that found no room is first the next time, and is looked at in any case.
  const std::size_t first = std::exchange(first_queue_, 0);
  for (std::size_t i = 0; i < kQueues; ++i) {
    const auto name = static_cast<QueueName>((first + i) % kQueues);
    if (!wants_look(name) && (i != 0 || first == 0)) continue;
    if (count == events.size()) {
      first_queue_ = name;
      break;
    }
    const std::size_t found = read_queue(name, events.subspan(count));
    if (name == kInboundLinkData && found != 0) warm_ = kWarmLooks;
    count += found;
  }
  if (landing_.waiting()) landing_.post();
  return count;
}

bool ConnectedRail::wants_look(QueueName name) {
  switch (name) {
    case kMessages:
      return !accepted_.empty() || !end_names_.empty();
    case kInboundLinkData:
      if (accepted_.empty()) return false;
      if (warm_ != 0) {
        --warm_;
        return true;
      }
      return turn_ % kIdleLook == 0;
    default:
      return outstanding_[index_of(Lane::data)] != 0 || turn_ % kSlowLook == 0;
  }
}

std::size_t ConnectedRail::read_queue(QueueName name, std::span<Event> events) {
  return read_completions(
      *queues_[name], events,
      [&](const fi_cq_data_entry& entry, Event& event) { return read_entry(name, entry, event); },
      [&](Event& event) { return read_failure(name, event); });
}

void ConnectedRail::give_back(PostContext* context, Lane lane) {
  InFlight::remove(context);
  --links_[context->link]->ends[index_of(lane)].outstanding;
  --outstanding_[index_of(lane)];
}

bool ConnectedRail::read_entry(QueueName name, const fi_cq_data_entry& entry, Event& event) {
  if (!is_own(entry.flags)) return read_arrival(entry, event);
  event.kind = own_kind(entry.flags);
  event.context = static_cast<PostContext*>(entry.op_context);
  event.bytes = entry.len;
  give_back(event.context, name == kMessages ? Lane::control : Lane::data);
  return true;
}

/// The one way out for every error of the rail.
bool ConnectedRail::read_failure(QueueName name, Event& event) {
  fi_cq_err_entry entry;
  if (!read_error(*queues_[name], entry)) return false;
  if (entry.op_context == nullptr) return false;  // of a peer, which hears of it
  if (landing_.take_back(entry.op_context)) return false;
  event = {};
  event.context = static_cast<PostContext*>(entry.op_context);
  event.error = entry.err;
  const RemoteId remote = event.context->link;
  if (remote == kReceive) {
    --receives_;
  } else {
    give_back(event.context, name == kMessages ? Lane::control : Lane::data);
    event.blame = blame_for(entry.err);
    lose(*links_[remote], entry.err, false);  // a connection does not survive a failed operation
  }
  return true;
}

bool ConnectedRail::take_batch(QueueName name) {
  std::array<Event, kReadBatch> found;
  const std::size_t count = read_queue(name, found);
  for (std::size_t i = 0; i < count; ++i) pending_.push(found[i]);
  return count != 0;
}

void ConnectedRail::drain(QueueName name) {
  while (take_batch(name)) {  // to the very end: a read stops short where a failure stands in the queue
  }
}

}  // namespace railyard::fabric::ofi
