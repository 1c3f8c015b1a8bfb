#include "message/sender.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "message/matching.hpp"

namespace railyard::message {
namespace {

/// Receives that a peer may have open.
constexpr std::size_t kMostGroups = Channel::kMostRequests;
constexpr std::size_t kMostEagerInMemory = 2 * kMostEagerChunk;

}  // namespace

bool Sender::on_grant(const InRegion& where, const Grant& grant) {
  if (grant.slot == 0) {
    const bool whole = groups_.empty() || groups_.back().granted == groups_.back().count;
    if (!whole || groups_.size() >= kMostGroups) return false;
    if (grant.slots == 0 || grant.slots > Channel::kMostSlots) return false;
    Group& group = add_group();
    group.number = grant.group;
    group.count = group.open = grant.slots;
  }
  if (groups_.empty()) return false;
  Group& group = groups_.back();
  if (grant.group != group.number || grant.slots != group.count || grant.slot != group.granted) return false;
  Slot& slot = group.slots[grant.slot];
  if (where.region != 0) {
    slot.region = regions_.find(where.region);
    if (slot.region == nullptr || where.offset > slot.region->bytes || grant.room > slot.region->bytes - where.offset) {
      return false;
    }
  }
  slot.tag = grant.tag;
  slot.room = grant.room;
  slot.on_device = receives_on_device_ = grant.on_device != 0;
  slot.offset = where.offset;
  ++group.granted;
  // What went ahead has the first claim on every new slot of its tag: the receiver gives it the same one.
  if (claimed_ahead(slot.tag)) {
    occupy({std::prev(groups_.end()), grant.slot});
    return true;
  }
  // A slot without memory to write to is one that a message which went ahead is in already.
  return slot.room == 0 || slot.region != nullptr;
}

Sender::Group& Sender::add_group() {
  if (spare_groups_.empty()) return groups_.emplace_back();
  groups_.splice(groups_.end(), spare_groups_, spare_groups_.begin());
  return groups_.back();
}

std::optional<Sender::Found> Sender::find_slot(int tag) {
  for (auto group = groups_.begin(); group != groups_.end(); ++group) {
    if (const auto slot = free_slot(group->known_slots(), tag)) return Found{group, *slot};
  }
  return std::nullopt;
}

/// With its last slot a group leaves at once, for the peer may put another receive in its place as soon as it has the
/// message.
void Sender::occupy(const Found& found) {
  Group& group = *found.group;
  group.slots[found.slot].taken = true;
  if (--group.open != 0) return;
  group = {};
  spare_groups_.splice(spare_groups_.begin(), groups_, found.group);
}

/// Whether a message of that tag has gone ahead of its receive. The oldest has its slot now.
bool Sender::claimed_ahead(int tag) {
  const auto message = std::ranges::find(ahead_, tag, &Ahead::tag);
  if (message == ahead_.end()) return false;
  ahead_bytes_ -= message->bytes;
  ahead_.erase(message);
  return true;
}

/// The messages of one tag leave in the order in which they were posted; those of another pass them by.
bool Sender::advance(transport::Flow& flow) {
  if (streamed_ != nullptr) {
    // A message in chunks is whole before the next one begins: the chunks say only that they are further ones.
    if (!send_eager(flow, *streamed_, streaming_)) return false;
    std::erase(waiting_, std::exchange(streamed_, nullptr));
  }
  stalled_.clear();
  for (auto request = waiting_.begin(); request != waiting_.end() && !overflow;) {
    const int tag = (*request)->tag;
    if (!stalled_.empty() && std::ranges::find(stalled_, tag) != stalled_.end()) {
      ++request;
      continue;
    }
    switch (start(flow, **request)) {
      case Start::started:
        request = waiting_.erase(request);
        break;
      case Start::waits:
        if (!mixed_) return true;
        stalled_.push_back(tag);
        ++request;
        break;
      case Start::no_room:
        return false;
    }
  }
  if (waiting_.empty()) mixed_ = false;
  return true;
}

Sender::Start Sender::start(transport::Flow& flow, Request& request) {
  const auto found = find_slot(request.tag);
  return found ? start_matched(flow, request, *found) : start_ahead(flow, request);
}

Sender::Start Sender::start_ahead(transport::Flow& flow, Request& request) {
  const std::uint64_t size = request.message.size();
  if (!may_be_eager(flow, request, receives_on_device_) || eager_bytes_ == 0) return Start::waits;
  if (ahead_.size() >= kMostUnexpected || ahead_bytes_ + size > kMostUnexpectedBytes) return Start::waits;
  const EagerHead head{size, 0, 0, 0, 0};
  const int tag = request.tag;
  const bool whole = send_eager(flow, request, head);  // then it is the user's again
  if (!whole && request.started == 0) return Start::no_room;
  ahead_.push_back({tag, size});
  ahead_bytes_ += size;
  return whole ? Start::started : Start::no_room;
}

Sender::Start Sender::start_matched(transport::Flow& flow, Request& request, const Found& found) {
  const Slot& target = found.group->slots[found.slot];
  const std::uint64_t size = request.message.size();
  if (size > target.room) {
    overflow = Overflow{size, target.room};
    return Start::waits;
  }
  if (size != 0 && may_be_eager(flow, request, target.on_device)) {
    const EagerHead head{size, found.group->number, found.slot, EagerHead::kMatched, 0};
    const bool whole = send_eager(flow, request, head);  // then it is the user's again
    if (!whole && request.started == 0) return Start::no_room;
    occupy(found);
    return whole ? Start::started : Start::no_room;
  }
  if (!write(flow, request, target, {size, found.group->number, found.slot, {}})) return Start::no_room;
  occupy(found);
  return Start::started;
}

/// Eager bytes pass through the processor's hands, which cannot touch the memory of GPUs. Memory that was not
/// registered has no other way. A message of several frames is copied where it is alone: then it waits for no grant,
/// and its send for no acknowledgement. Through memory both are quick, so less is copied; in a stream nobody waits for
/// them.
bool Sender::may_be_eager(const transport::Flow& flow, const Request& request, bool to_device) const {
  const std::size_t size = request.message.size();
  if (size > eager_bytes_) return false;
  if (request.region == nullptr) return true;
  if (request.region->device() >= 0 || to_device) return false;
  const std::size_t most = flow.route->in_memory ? kMostEagerInMemory : eager_bytes_;
  return size <= kMostEagerChunk || (size <= most && !busy(flow));
}

void Sender::took(const Request& request) {
  ++messages;
  bytes += request.message.size();
  ++next_message_;
}

/// Copies the message, or what is left of it, into records. False: some of it did not find room yet. True: the request
/// is done, and may hold the user's next message already.
bool Sender::send_eager(transport::Flow& flow, Request& request, const EagerHead& head) {
  streaming_ = head;
  for (;;) {
    const auto chunk = request.message.subspan(request.started)
                           .first(std::min(request.message.size() - request.started, kMostEagerChunk));
    if (request.started != 0) streaming_.flags |= EagerHead::kFurther;
    const bool last = request.started + chunk.size() == request.message.size();
    transport::MessageRecord record = OfMessage{request.tag, next_message_}.record(Kind::eager, bytes_of(streaming_));
    record.more = chunk;
    record.goes_on = !last;
    record.ends = last && request.started != 0;
    std::uint64_t operation = 0;
    if (!engine_.submissions().try_message(flow, record, operation)) {
      if (request.started != 0) streamed_ = &request;
      return false;
    }
    request.started += chunk.size();
    if (request.started < request.message.size()) continue;
    took(request);
    ++eager;
    copied_[next_copied_] = operation;
    next_copied_ = (next_copied_ + 1) % kFew;
    engine_.note_small(flow);
    request.region.reset();
    request.sizes[0] = request.message.size();
    request.finish();
    return true;
  }
}

bool Sender::write(transport::Flow& flow, Request& request, const Slot& slot, const Done& done) {
  const auto record = OfMessage{request.tag, next_message_}.record(Kind::done, bytes_of(done));
  if (done.bytes == 0) {
    if (!engine_.submissions().try_message(flow, record, request.operation)) return false;
  } else {
    transport::Bulk bulk;
    // The engine only reads from a write's source.
    bulk.local = const_cast<std::byte*>(request.message.data());
    bulk.bytes = done.bytes;
    bulk.remote_offset = slot.offset;
    bulk.remote.keys = slot.region->keys;
    bulk.remote.on_device = slot.on_device;
    bulk.region = request.region;
    bulk.keep = slot.region;
    if (!engine_.submissions().try_write(flow, bulk, record, request.operation)) return false;
  }
  took(request);
  in_flight_.push_back(&request);
  return true;
}

void Sender::on_completed(std::uint64_t operation) {
  while (!in_flight_.empty() && in_flight_.front()->operation <= operation) {
    Request& request = *in_flight_.front();
    in_flight_.pop_front();
    request.region.reset();
    request.sizes[0] = request.message.size();
    request.finish();
  }
}

void Sender::on_refused(std::uint64_t operation) {
  const auto found = std::ranges::find(in_flight_, operation, &Request::operation);
  if (found == in_flight_.end()) return;
  (*found)->region.reset();
  (*found)->fail();
  in_flight_.erase(found);
}

void Sender::forget_waiting() {
  for (Request* request : waiting_) request->region.reset();
  waiting_.clear();
  mixed_ = false;
  streamed_ = nullptr;
}

void Sender::give_up() {
  forget_waiting();
  for (Request* request : in_flight_) request->region.reset();
  in_flight_.clear();
}

bool Sender::uses(const memory::Region& region) const {
  const auto lies_in = [&](const Request* request) { return request->region.get() == &region; };
  return std::ranges::any_of(waiting_, lies_in) || std::ranges::any_of(in_flight_, lies_in);
}

}  // namespace railyard::message
