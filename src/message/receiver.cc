#include "message/receiver.hpp"

#include <algorithm>
#include <cstring>

#include "message/matching.hpp"

namespace railyard::message {

// ---- Places ----

Request* Receiver::group(std::uint32_t number) const {
  Request* const request = groups_[number % groups_.size()];
  return request != nullptr && request->group == number ? request : nullptr;
}

/// The oldest receive that has a slot which no message has begun to fill.
Request* Receiver::first_open() {
  for (; first_group_ != next_group_; ++first_group_) {
    Request* const request = group(first_group_);
    if (request == nullptr) continue;
    for (std::uint8_t i = 0; i < request->count; ++i) {
      if (!request->places[i].taken) return request;
    }
  }
  return nullptr;
}

Receiver::Found Receiver::find_place(int tag, bool first) {
  Request* const request = first_open();
  if (request == nullptr) return {};
  const auto slot = slot_for(std::span(request->places).first(request->count), tag, first);
  return slot ? Found{request, *slot} : Found{};
}

void Receiver::post(Request* request) {
  request->group = next_group_++;
  request->granted = 0;
  request->unfilled = request->count;
  request->kept.store(true, std::memory_order_relaxed);
  groups_[request->group % groups_.size()] = request;
  ++open_;
  granting_.push_back(request);
  place_unexpected();
}

/// Messages that waited take the places that there are now, oldest first.
void Receiver::place_unexpected() {
  for (auto message = waiting_.begin(); message != waiting_.end() && !overflow;) {
    const bool arriving = stream_.on && stream_.request == nullptr && &*message == &waiting_.back();
    const Found found = find_place(message->tag, message == waiting_.begin());
    if (found.request == nullptr) {
      ++message;
      continue;
    }
    Request::Place& place = found.request->places[found.slot];
    if (message->message.size() > place.memory.size()) {
      overflow = Overflow{message->message.size(), place.memory.size()};
      return;
    }
    if (message->arrived != 0) std::memcpy(place.memory.data(), message->message.data(), message->arrived);
    place.taken = true;
    const std::uint64_t size = message->message.size();
    waiting_bytes_ -= size;
    waiting_.erase(message);
    if (arriving) {
      stream_.request = found.request;
      stream_.slot = found.slot;
    } else {
      fill(*found.request, found.slot, size);
    }
    message = waiting_.begin();
  }
}

void Receiver::fill(Request& request, std::uint8_t slot, std::uint64_t size) {
  Request::Place& place = request.places[slot];
  place.taken = true;
  request.sizes[slot] = size;
  ++messages;
  bytes += size;
  if (--request.unfilled != 0) return;
  groups_[request.group % groups_.size()] = nullptr;
  --open_;
  if (!request.completion_optional) request.finish();
  if (request.granted == request.count) let_go(request);
}

void Receiver::withdraw(std::uint32_t region) {
  regions_.at(region).announced ? withdrawn_.push_back(region) : regions_.erase(region);
}

/// Filled, and the peer knows of all its slots: the user's thread may have it again.
void Receiver::let_go(Request& request) {
  for (std::uint8_t i = 0; i < request.count; ++i) {
    Request::Place& place = request.places[i];
    if (place.region != nullptr && place.region->single_use()) place.region->settle();
    place.region.reset();
    if (place.region_id != 0 && regions_.drop(place.region_id)) withdraw(place.region_id);
    place.region_id = 0;
  }
  request.kept.store(false, std::memory_order_release);
}

// ---- Arrivals ----

bool Receiver::on_eager(const transport::wire::RecordHeader& header, std::span<const std::byte> body) {
  if (body.size() < sizeof(EagerHead)) return false;
  const EagerHead head = *read<EagerHead>(body.first(sizeof(EagerHead)));
  const auto piece = body.subspan(sizeof(EagerHead));
  const bool further = (head.flags & EagerHead::kFurther) != 0;
  if (further != stream_.on) return false;
  if (!further && !begin(static_cast<int>(header.exposure), head)) return overflow.has_value();
  if (piece.size() > stream_.bytes - stream_.arrived) return false;
  std::byte* const to =
      stream_.request != nullptr ? stream_.request->places[stream_.slot].memory.data() : waiting_.back().message.data();
  if (!piece.empty()) std::memcpy(to + stream_.arrived, piece.data(), piece.size());
  stream_.arrived += piece.size();
  if (stream_.request == nullptr) waiting_.back().arrived = stream_.arrived;
  if (stream_.arrived == stream_.bytes) end_stream();
  return true;
}

/// Finds the message whose first piece is here a place, or a buffer until there is one.
bool Receiver::begin(int tag, const EagerHead& head) {
  Found found;
  if ((head.flags & EagerHead::kMatched) != 0) {
    found = {group(head.group), head.slot};
    if (found.request == nullptr || head.slot >= found.request->count || found.request->places[head.slot].taken) {
      return false;
    }
  } else {
    found = find_place(tag, waiting_.empty());
  }
  if (found.request != nullptr) {
    Request::Place& place = found.request->places[found.slot];
    if (head.bytes > place.memory.size()) {
      overflow = Overflow{head.bytes, place.memory.size()};
      return false;
    }
    place.taken = true;
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
  if (stream_.request == nullptr) return;
  fill(*stream_.request, stream_.slot, stream_.bytes);
  place_unexpected();
}

bool Receiver::on_done(const Done& done) {
  Request* const request = group(done.group);
  if (request == nullptr || done.slot >= request->count || request->places[done.slot].taken) return false;
  if (done.bytes > request->places[done.slot].memory.size()) return false;
  fill(*request, done.slot, done.bytes);
  place_unexpected();
  return true;
}

// ---- Grants ----

bool Receiver::advance(transport::Flow& flow) {
  while (!granting_.empty()) {
    Request& request = *granting_.front();
    if (!grant(flow, request)) return false;
    granting_.pop_front();
    if (request.completion_optional) request.finish();
    if (request.unfilled == 0) let_go(request);
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
  Request::Place& place = request.places[slot];
  std::uint32_t region = 0;
  std::uint64_t offset = 0;
  // What is here already needs no memory that the peer could write to. It may have come since there was no room.
  if (!place.taken && place.region != nullptr && !place.memory.empty()) {
    if (place.region_id == 0) place.region_id = regions_.take(place.region);
    region = place.region_id;
    if (!announce(flow, region)) return false;
    offset = static_cast<std::uint64_t>(place.memory.data() - place.region->memory().data());
  }
  const Grant grant{place.memory.size(), request.group, place.tag, slot, request.count, {}};
  std::uint64_t operation = 0;
  return engine_.try_message(flow, {static_cast<std::uint8_t>(Kind::grant), region, offset, bytes_of(grant)},
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
  const transport::MessageRecord record{static_cast<std::uint8_t>(Kind::region), id, entry.region->memory().size(),
                                        std::as_bytes(std::span(keys))};
  return entry.announced = engine_.try_message(flow, record, operation);
}

bool Receiver::tell_withdrawn(transport::Flow& flow) {
  for (; !withdrawn_.empty(); withdrawn_.pop_front()) {
    const std::uint32_t id = withdrawn_.front();
    if (!regions_.unused(id)) continue;  // told already, or taken into use again
    std::uint64_t operation = 0;
    const transport::MessageRecord record{static_cast<std::uint8_t>(Kind::withdraw), id, 0, {}};
    if (!engine_.try_message(flow, record, operation)) return false;
    regions_.erase(id);
  }
  return true;
}

void Receiver::give_up() {
  for (Request*& request : groups_) {
    if (request != nullptr) {
      for (Request::Place& place : request->places) place.region.reset();
    }
    request = nullptr;
  }
  granting_.clear();
  waiting_.clear();
  withdrawn_.clear();
  regions_.clear();
  open_ = 0;
}

}  // namespace railyard::message
