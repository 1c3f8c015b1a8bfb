#include "message/sender.hpp"

#include <algorithm>
#include <utility>

#include "message/matching.hpp"

namespace railyard::message {
namespace {

/// Receives that a peer may have open.
constexpr std::size_t kMostGroups = Channel::kMostRequests;

}  // namespace

bool Sender::on_grant(const transport::wire::RecordHeader& header, const Grant& grant) {
  if (grant.slot == 0) {
    const bool whole = groups_.empty() || groups_.back().granted == groups_.back().slots;
    if (!whole || grant.group != next_group_ || groups_.size() >= kMostGroups) return false;
    if (grant.slots == 0 || grant.slots > Channel::kMostSlots) return false;
    ++next_group_;
    Group& group = add_group();
    group.number = grant.group;
    group.slots = group.open = grant.slots;
  }
  if (groups_.empty()) return false;
  Group& group = groups_.back();
  if (grant.group != group.number || grant.slots != group.slots || grant.slot != group.granted) return false;
  Slot& slot = group.places[grant.slot];
  if (header.exposure != 0) {
    slot.region = regions_.find(header.exposure);
    if (slot.region == nullptr || header.offset > slot.region->bytes ||
        grant.room > slot.region->bytes - header.offset) {
      return false;
    }
  }
  slot.tag = grant.tag;
  slot.room = grant.room;
  slot.offset = header.offset;
  ++group.granted;
  if (group.granted != group.slots) return true;
  place_ahead();
  return no_slot_is_unreachable();
}

/// A slot without memory to write to is one that a message which went ahead is in already.
bool Sender::no_slot_is_unreachable() const {
  if (groups_.empty()) return true;
  const Group& newest = groups_.back();
  return std::ranges::none_of(newest.known_places(),
                              [](const Slot& slot) { return slot.room != 0 && slot.region == nullptr && !slot.taken; });
}

Sender::Group& Sender::add_group() {
  if (spare_groups_.empty()) return groups_.emplace_back();
  groups_.splice(groups_.end(), spare_groups_, spare_groups_.begin());
  return groups_.back();
}

const Sender::Group* Sender::open_group() const {
  if (groups_.empty() || groups_.front().granted != groups_.front().slots) return nullptr;
  return &groups_.front();
}

/// Of the open group. With its last slot it leaves at once, for the peer may put another receive in its place as soon
/// as it has the message. Returns whether that was so.
bool Sender::occupy(std::uint8_t slot) {
  Group& group = groups_.front();
  group.places[slot].taken = true;
  if (--group.open != 0) return false;
  group = {};
  spare_groups_.splice(spare_groups_.begin(), groups_, groups_.begin());
  return true;
}

/// The next group is open to what went ahead before anything else.
void Sender::take(std::uint8_t slot) {
  if (occupy(slot)) place_ahead();
}

/// What went ahead has the first claim on every new place: the receiver gives it the same one.
void Sender::place_ahead() {
  for (auto message = ahead_.begin(); message != ahead_.end();) {
    const Group* const group = open_group();
    if (group == nullptr) return;
    const auto slot = slot_for(group->known_places(), message->tag, message == ahead_.begin());
    if (!slot) {
      ++message;
      continue;
    }
    occupy(*slot);
    ahead_bytes_ -= message->bytes;
    ahead_.erase(message);
    message = ahead_.begin();
  }
}

bool Sender::advance(transport::Flow& flow) {
  if (streamed_ != nullptr) {
    // A message in pieces is whole before the next one begins: the pieces say only that they are further ones.
    if (!send_eager(flow, *streamed_, streaming_)) return false;
    std::erase(waiting_, std::exchange(streamed_, nullptr));
  }
  for (auto request = waiting_.begin(); request != waiting_.end() && !overflow;) {
    switch (start(flow, **request, request == waiting_.begin())) {
      case Start::started:
        waiting_.erase(request);
        // The next receive may be open now, to those that were passed over.
        request = waiting_.begin();
        break;
      case Start::waits: {
        // Only a grouped receive can take a message out of its turn.
        const Group* const group = open_group();
        if (group == nullptr || group->slots == 1) return true;
        ++request;
        break;
      }
      case Start::no_room:
        return false;
    }
  }
  return true;
}

Sender::Start Sender::start(transport::Flow& flow, Request& request, bool first) {
  if (const Group* const group = open_group()) {
    if (const auto slot = slot_for(group->known_places(), request.tag, first))
      return start_matched(flow, request, *group, *slot);
  }
  return first ? start_ahead(flow, request) : Start::waits;
}

Sender::Start Sender::start_ahead(transport::Flow& flow, Request& request) {
  const std::uint64_t size = request.message.size();
  if (size > eager_bytes_ || eager_bytes_ == 0) return Start::waits;
  if (ahead_.size() >= kMostUnexpected || ahead_bytes_ + size > kMostUnexpectedBytes) return Start::waits;
  const EagerHead head{size, 0, 0, 0, 0};
  const int tag = request.tag;
  const bool whole = send_eager(flow, request, head);  // then it is the user's again
  if (!whole && request.started == 0) return Start::no_room;
  ahead_.push_back({tag, size});
  ahead_bytes_ += size;
  return whole ? Start::started : Start::no_room;
}

Sender::Start Sender::start_matched(transport::Flow& flow, Request& request, const Group& group, std::uint8_t slot) {
  const Slot& place = group.places[slot];
  const std::uint64_t size = request.message.size();
  if (size > place.room) {
    overflow = Overflow{size, place.room};
    return Start::waits;
  }
  if (size != 0 && size <= eager_bytes_) {
    const EagerHead head{size, group.number, slot, EagerHead::kMatched, 0};
    const bool whole = send_eager(flow, request, head);  // then it is the user's again
    if (!whole && request.started == 0) return Start::no_room;
    take(slot);
    return whole ? Start::started : Start::no_room;
  }
  if (!write(flow, request, place, {size, group.number, slot, {}})) return Start::no_room;
  take(slot);
  return Start::started;
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
    const auto piece = request.message.subspan(request.started)
                           .first(std::min(request.message.size() - request.started, kMostEagerPiece));
    if (request.started != 0) streaming_.flags |= EagerHead::kFurther;
    const transport::MessageRecord record{static_cast<std::uint8_t>(Kind::eager),
                                          static_cast<std::uint32_t>(request.tag), next_message_, bytes_of(streaming_),
                                          piece};
    std::uint64_t operation = 0;
    if (!engine_.try_message(flow, record, operation)) {
      if (request.started != 0) streamed_ = &request;
      return false;
    }
    request.started += piece.size();
    if (request.started < request.message.size()) continue;
    took(request);
    ++eager;
    engine_.note_small(flow);
    request.region.reset();
    request.sizes[0] = request.message.size();
    request.finish();
    return true;
  }
}

bool Sender::write(transport::Flow& flow, Request& request, const Slot& slot, const Done& done) {
  const transport::MessageRecord record{static_cast<std::uint8_t>(Kind::done), static_cast<std::uint32_t>(request.tag),
                                        next_message_, bytes_of(done)};
  if (done.bytes == 0) {
    if (!engine_.try_message(flow, record, request.operation)) return false;
  } else {
    transport::Bulk bulk;
    // The engine only reads from a write's source.
    bulk.local = const_cast<std::byte*>(request.message.data());
    bulk.bytes = done.bytes;
    bulk.remote_offset = slot.offset;
    bulk.remote.keys = slot.region->keys;
    bulk.region = request.region;
    bulk.keep = slot.region;
    if (!engine_.try_write(flow, bulk, record, request.operation)) return false;
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

void Sender::forget_waiting() {
  for (Request* request : waiting_) request->region.reset();
  waiting_.clear();
  streamed_ = nullptr;
}

void Sender::give_up() {
  forget_waiting();
  for (Request* request : in_flight_) request->region.reset();
  in_flight_.clear();
  groups_.clear();
}

}  // namespace railyard::message
