#include "message/receiver.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "message/matching.hpp"

namespace railyard::message {

// ---- Slots ----

Request* Receiver::group(std::uint32_t number) const {
  Request* const request = groups_[number % groups_.size()];
  return request != nullptr && request->group == number ? request : nullptr;
}

Receiver::Found Receiver::find_slot(int tag) const {
  for (Request* request = oldest_; request != nullptr; request = request->next_open) {
    if (const auto slot = free_slot(std::span(request->slots).first(request->count), tag)) return {request, *slot};
  }
  return {};
}

void Receiver::post(Request* request) {
  // The index says where it is found, the rest which of its uses this is.
  constexpr std::uint32_t kIndices = Channel::kMostRequests;
  request->group = (request->group / kIndices + 1) * kIndices + request->index;
  request->granted = 0;
  request->unfilled = request->untaken = request->count;
  request->kept.store(true, std::memory_order_relaxed);
  groups_[request->index] = request;
  request->next_open = nullptr;
  request->previous_open = newest_;
  (newest_ == nullptr ? oldest_ : newest_->next_open) = request;
  newest_ = request;
  ++open_;
  granting_.push_back(request);
  if (!waiting_.empty()) place_unexpected(*request);
}

/// A message is in the slot, or on its way there.
void Receiver::take(Request& request, std::uint8_t slot) {
  request.slots[slot].taken = true;
  if (--request.untaken != 0) return;
  (request.previous_open == nullptr ? oldest_ : request.previous_open->next_open) = request.next_open;
  (request.next_open == nullptr ? newest_ : request.next_open->previous_open) = request.previous_open;
}

/// Messages that waited take the new slots of their tag, oldest first. No other slot is free for them, or they would
/// not have waited.
void Receiver::place_unexpected(Request& request) {
  for (std::uint8_t slot = 0; slot < request.count; ++slot) {
    Request::Slot& target = request.slots[slot];
    const auto message = std::ranges::find(waiting_, target.tag, &Unexpected::tag);
    if (message == waiting_.end()) continue;
    if (message->message.size() > target.memory.size()) {
      overflow = Overflow{message->message.size(), target.memory.size()};
      return;
    }
    const bool arriving = stream_.on && stream_.request == nullptr && &*message == &waiting_.back();
    store(target, 0, std::span(message->message).first(message->arrived));
    if (copy_failed_) return;  // it is never filled: the next arrival ends the channel
    const std::uint64_t size = message->message.size();
    waiting_bytes_ -= size;
    waiting_.erase(message);
    if (arriving) {
      take(request, slot);
      stream_.request = &request;
      stream_.slot = slot;
    } else {
      fill(request, slot, size);
    }
  }
}

void Receiver::fill(Request& request, std::uint8_t slot, std::uint64_t size) {
  if (!request.slots[slot].taken) take(request, slot);
  Request::Slot& target = request.slots[slot];
  if (target.region != nullptr && target.region->single_use()) target.region->settle();
  release(target);
  request.sizes[slot] = size;
  ++messages;
  bytes += size;
  if (--request.unfilled != 0) return;
  groups_[request.index] = nullptr;
  --open_;
  if (!request.completion_optional) request.finish();
  // The peer knows of all its slots: the user's thread may have it again.
  if (request.granted == request.count) request.kept.store(false, std::memory_order_release);
}

/// No message will come into its memory any more.
void Receiver::release(Request::Slot& target) {
  target.region.reset();
  if (target.region_id != 0) drop_region(target.region_id);
  target.region_id = 0;
}

void Receiver::drop_region(std::uint32_t region) {
  if (!regions_.drop(region)) return;
  regions_.at(region).announced ? withdrawn_.push_back(region) : regions_.erase(region);
}

// ---- Arrivals ----

/// Messages arrive in the order in which they were begun.
bool Receiver::is_next(const OfMessage& about) { return about.message == next_message_++; }

bool Receiver::on_eager(const OfMessage& about, std::span<const std::byte> body) {
  if (body.size() < sizeof(EagerHead)) return false;
  const EagerHead head = *read<EagerHead>(body.first(sizeof(EagerHead)));
  const auto chunk = body.subspan(sizeof(EagerHead));
  const bool further = (head.flags & EagerHead::kFurther) != 0;
  if (!further && !is_next(about)) return false;
  // The slot of the one that did not fit is not for those behind it.
  if (overflow) return true;
  if (further != stream_.on) return false;
  if (!further && !begin(about.tag, head)) return overflow.has_value();
  if (chunk.size() > stream_.bytes - stream_.arrived) return false;
  if (stream_.request != nullptr)
    store(stream_.request->slots[stream_.slot], stream_.arrived, chunk);
  else if (!chunk.empty())
    std::memcpy(waiting_.back().message.data() + stream_.arrived, chunk.data(), chunk.size());
  stream_.arrived += chunk.size();
  if (stream_.request == nullptr) waiting_.back().arrived = stream_.arrived;
  if (copy_failed_) return false;
  if (stream_.arrived == stream_.bytes) end_stream();
  return true;
}

/// Bytes that came inside records. Into the memory of a GPU that is the slow way, for a first message that was sent
/// before the sender knew, and for memory that was not registered.
void Receiver::store(const Request::Slot& target, std::uint64_t at, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  std::byte* const to = target.memory.data() + at;
  if (target.region == nullptr || target.region->device() < 0) {
    std::memcpy(to, bytes.data(), bytes.size());
    return;
  }
  copy_failed_ |= !copies_.copy_now(to, target.region->device(), bytes.data(), -1, bytes.size());
}

/// Finds the message whose first chunk is here a slot, or a buffer until there is one.
bool Receiver::begin(int tag, const EagerHead& head) {
  Found found;
  if ((head.flags & EagerHead::kMatched) != 0) {
    found = {group(head.group), head.slot};
    if (found.request == nullptr || head.slot >= found.request->count) return false;
    const Request::Slot& target = found.request->slots[head.slot];
    if (target.taken || target.tag != tag) return false;
  } else {
    found = find_slot(tag);
  }
  if (found.request != nullptr) {
    Request::Slot& target = found.request->slots[found.slot];
    if (head.bytes > target.memory.size()) {
      overflow = Overflow{head.bytes, target.memory.size()};
      return false;
    }
    take(*found.request, found.slot);
  } else {
    if (waiting_.size() >= kMostUnexpected || head.bytes > kMostUnexpectedBytes - waiting_bytes_) return false;
    waiting_bytes_ += head.bytes;
    waiting_.push_back({tag, 0, std::vector<std::byte>(head.bytes)});
    ++unexpected;
  }
  stream_ = {true, head.bytes, 0, found.request, found.slot};
  return true;
}

void Receiver::end_stream() {
  stream_.on = false;
  if (stream_.request != nullptr) fill(*stream_.request, stream_.slot, stream_.bytes);
}

/// The receive that a direct write was for; null: there is none.
Request* Receiver::written(const OfMessage& about, const Done& done) {
  if (!is_next(about)) return nullptr;
  Request* const request = group(done.group);
  if (request == nullptr || done.slot >= request->count || request->slots[done.slot].taken) return nullptr;
  return done.bytes > request->slots[done.slot].memory.size() ? nullptr : request;
}

bool Receiver::on_done(const OfMessage& about, const Done& done) {
  Request* const request = written(about, done);
  if (request != nullptr) fill(*request, done.slot, done.bytes);
  return request != nullptr;
}

/// Its slot stays empty, and the receive fails when the peer has said its last word: no other message may take the
/// place of one that was sent before it.
bool Receiver::on_given_up(const OfMessage& about, const Done& done) {
  Request* const request = written(about, done);
  if (request != nullptr) take(*request, done.slot);
  return request != nullptr;
}

// ---- Grants ----

bool Receiver::advance(transport::Flow& flow) {
  while (!granting_.empty()) {
    Request& request = *granting_.front();
    if (!grant(flow, request)) return false;
    granting_.pop_front();
    if (request.completion_optional) request.finish();
    if (request.unfilled == 0) request.kept.store(false, std::memory_order_release);
  }
  return tell_withdrawn(flow);
}

bool Receiver::grant(transport::Flow& flow, Request& request) {
  for (; request.granted < request.count; ++request.granted) {
    if (!grant_slot(flow, request, request.granted)) return false;
  }
  return true;
}

bool Receiver::grant_slot(transport::Flow& flow, Request& request, std::uint8_t slot) {
  Request::Slot& target = request.slots[slot];
  std::uint32_t region = 0;
  std::uint64_t offset = 0;
  // What is here already needs no memory that the peer could write to. It may have come since there was no room.
  if (!target.taken && target.region != nullptr && !target.memory.empty()) {
    if (target.region_id == 0) target.region_id = regions_.take(target.region);
    region = target.region_id;
    if (!announce(flow, region)) return false;
    offset = static_cast<std::uint64_t>(target.memory.data() - target.region->memory().data());
  }
  const bool on_device = target.region != nullptr && target.region->device() >= 0;
  const Grant grant{target.memory.size(), request.group, target.tag, slot, request.count, std::uint8_t{on_device}, {}};
  std::uint64_t operation = 0;
  return engine_.submissions().try_message(flow, InRegion{region, offset}.record(Kind::grant, bytes_of(grant)),
                                           operation);
}

bool Receiver::announce(transport::Flow& flow, std::uint32_t id) {
  OwnRegions::Entry& entry = regions_.at(id);
  if (entry.announced) return true;
  if (regions_.too_many() && !tell_withdrawn(flow)) return false;
  std::vector<transport::RemoteKey> keys(engine_.rails().size());
  for (std::size_t rail = 0; rail < keys.size(); ++rail) {
    keys[rail] = {entry.region->on(rail).key, entry.region->on(rail).remote_base};
  }
  std::uint64_t operation = 0;
  const auto record = OfRegion{id, entry.region->memory().size()}.record(Kind::region, std::as_bytes(std::span(keys)));
  return entry.announced = engine_.submissions().try_message(flow, record, operation);
}

bool Receiver::tell_withdrawn(transport::Flow& flow) {
  for (; !withdrawn_.empty(); withdrawn_.pop_front()) {
    const std::uint32_t id = withdrawn_.front();
    if (!regions_.unused(id)) continue;  // told already, or taken into use again
    std::uint64_t operation = 0;
    const auto record = OfRegion{id}.record(Kind::withdraw, {});
    if (!engine_.submissions().try_message(flow, record, operation)) return false;
    regions_.erase(id);
  }
  return true;
}

// ---- The end ----

void Receiver::settle(bool exposed) {
  if (std::exchange(stream_.on, false) && stream_.request == nullptr) {
    waiting_bytes_ -= waiting_.back().message.size();
    waiting_.pop_back();  // the rest of it will not come
  }
  for (Request* request : granting_) {
    if (request->unfilled != 0) continue;  // below
    if (request->completion_optional) request->finish();
    request->kept.store(false, std::memory_order_release);
  }
  granting_.clear();
  oldest_ = newest_ = nullptr;
  for (Request*& request : groups_) {
    if (request == nullptr) continue;
    request->fail();
    if (exposed && request->granted != 0) continue;
    for (std::uint8_t slot = 0; slot < request->count; ++slot) release(request->slots[slot]);
    request->kept.store(false, std::memory_order_release);
    request = nullptr;
    --open_;
  }
}

void Receiver::forget_arrived() {
  if (stream_.request == nullptr) stream_.on = false;
  waiting_.clear();
  waiting_bytes_ = 0;
}

bool Receiver::uses(const memory::Region& region) const {
  return std::ranges::any_of(groups_, [&](const Request* request) {
    return request != nullptr && std::ranges::any_of(request->slots, [&](const Request::Slot& target) {
             return target.region.get() == &region;
           });
  });
}

void Receiver::collect(std::vector<std::shared_ptr<memory::Region>>& regions) const {
  for (const Request* request : groups_) {
    if (request == nullptr) continue;
    for (const Request::Slot& target : request->slots) {
      if (target.region != nullptr) regions.push_back(target.region);
    }
  }
}

}  // namespace railyard::message
