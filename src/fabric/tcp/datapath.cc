/// Post and poll of a tcp rail. Nothing here allocates, locks or waits while links stand.
#include <algorithm>
#include <cerrno>

#include "base/coarse_ticks.hpp"
#include "base/touch.hpp"
#include "fabric/tcp/rail.hpp"
#include "fabric/tcp/socket.hpp"

namespace railyard::fabric::tcp {

namespace {

constexpr unsigned kSetUpLook = 8;          ///< polls between two looks at what has to be tried again
constexpr std::size_t kMostQuietened = 64;  ///< connections whose acknowledgements are settled before a sleep
constexpr std::size_t kWarmBytes = 192;     ///< of a small message
constexpr unsigned kSlowLook = 4096;        ///< and at those who have come and say nothing

}  // namespace

/// Why a link takes no posts now.
Post TcpRail::refuse_post(const char* operation, RemoteId remote) {
  return BaseRail::refuse_post(operation, links_.find(remote), {ESHUTDOWN, EADDRNOTAVAIL, ENOTCONN});
}

[[gnu::hot]] void TcpRail::post(TcpLink& link, PostContext* context, bool message) {
  context->link = link.remote;
  link.in_flight.add(context);
  ++(message ? link.messages_out : link.data_out);
  (message ? link.messages : link.bulk).push(context);
  mark_dirty(*link.connection);
}

[[gnu::hot]] Post TcpRail::send(RemoteId remote, const LocalChunk& message, PostContext* context) {
  TcpLink* const link = links_.ready(remote);
  if (link == nullptr) return refuse_post("send", remote);
  if (link->messages_out >= kDepth) return Post::busy;
  if (message.bytes > kMostMessageBytes) return fail("send", EMSGSIZE);
  Posted& posted = make_posted(context);
  posted.kind = FrameKind::message;
  posted.address = static_cast<std::byte*>(message.address);
  posted.bytes = static_cast<std::uint32_t>(message.bytes);
  const std::size_t settled = std::min(link->connection->out_bytes, kFragmentBytes);
  posted.after = std::min(link->bulk_posted, link->bulk_started + kFragmentBytes - settled);
  post(*link, context, true);
  return Post::posted;
}

[[gnu::hot]] Post TcpRail::receive(const LocalChunk& buffer, PostContext* context) {
  if (stopped_) return fail("receive", ESHUTDOWN);
  if (receive_count_ >= kDepth) return Post::busy;
  Posted& posted = make_posted(context);
  posted.address = static_cast<std::byte*>(buffer.address);
  posted.bytes = static_cast<std::uint32_t>(std::min<std::size_t>(buffer.bytes, kMostMessageBytes));
  receives_.push(context);
  ++receive_count_;
  return Post::posted;
}

Post TcpRail::write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context) {
  TcpLink* const link = links_.ready(to.remote);
  if (link == nullptr) return refuse_post("write", to.remote);
  if (link->data_out >= kDepth) return Post::busy;
  if (from.bytes > kMostWriteBytes) return fail("write", EMSGSIZE);
  Posted& posted = make_posted(context);
  posted.kind = FrameKind::write;
  posted.address = static_cast<std::byte*>(from.address);
  posted.bytes = static_cast<std::uint32_t>(from.bytes);
  posted.key = to.key;
  posted.offset = to.address;
  posted.device = static_cast<std::int8_t>(device_of_descriptor(from.descriptor));
  posted.with_immediate = options.with_immediate;
  posted.patient = !options.delivery_complete;
  posted.immediate = options.immediate;
  link->bulk_posted += from.bytes;
  post(*link, context, false);
  return Post::posted;
}

Post TcpRail::read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) {
  TcpLink* const link = links_.ready(from.remote);
  if (link == nullptr) return refuse_post("read", from.remote);
  if (link->data_out >= kDepth) return Post::busy;
  if (to.bytes > kMostWriteBytes) return fail("read", EMSGSIZE);
  Posted& posted = make_posted(context);
  posted.kind = FrameKind::read;
  posted.device = static_cast<std::int8_t>(device_of_descriptor(to.descriptor));
  posted.address = static_cast<std::byte*>(to.address);
  posted.bytes = static_cast<std::uint32_t>(to.bytes);
  posted.key = from.key;
  posted.offset = from.address;
  post(*link, context, false);
  return Post::posted;
}

[[gnu::hot]] void TcpRail::give_back(PostContext* context, Event::Kind kind, std::size_t bytes) {
  TcpLink& link = *links_[context->link];
  InFlight::remove(context);
  --(kind == Event::Kind::sent ? link.messages_out : link.data_out);
  if (kind == Event::Kind::written) link.bulk_landed += bytes;
  Event event;
  event.kind = kind;
  event.context = context;
  event.bytes = bytes;
  pending_.push(event);
}

void TcpRail::fail_operation(PostContext* context, int error, Blame blame) {
  TcpLink& link = *links_[context->link];
  InFlight::remove(context);
  --(posted_of(context).kind == FrameKind::message ? link.messages_out : link.data_out);
  pending_.push_failed(context, error, blame);
}

[[gnu::hot]] void TcpRail::ring() {
  if (!dirty_.empty()) flush_dirty();
}

[[gnu::hot]] std::size_t TcpRail::poll(std::span<Event> events) {
  if (stopped_ || events.empty()) return 0;
  ++turn_;
  if (device_ != nullptr) look_at_device();
  if (!dirty_.empty()) flush_dirty();
  if (pending_.size() < events.size()) look(events.size());
  if (sweeps_ || lingering_ != 0) sweep();
  return pending_.empty() ? 0 : pending_.take(events);
}

/// Where nothing is expected, another rail has the traffic: it is not to pay for a system call in every pass.
[[gnu::hot]] bool TcpRail::epoll_is_due() {
  if (blocked_ != 0 || active_.size() > kMostActive) return true;
  if (!active_.empty()) return turn_ % kEpollEvery == 0;
  const std::uint64_t now = coarse_ticks();
  if (now - epoll_looked_ < epoll_gap_) return false;
  epoll_looked_ = now;
  epoll_gap_ = std::min(2 * epoll_gap_ + 1, connections_.empty() ? kMostRareGap : kMostIdleGap);
  return true;
}

[[gnu::hot]] void TcpRail::look(std::size_t room) {
  if (!stalled_.empty() && (!receives_.empty() || buffers_may_be_had())) resume_stalled();
  // Few are read from on the off-chance; among many, epoll says which.
  bool found = read_active(room);
  const bool none = active_.empty();
  if (epoll_is_due()) look_at_epoll();
  // Who was woken by what has come needs no second poll to read it.
  if (none && !active_.empty()) found = read_active(room);
  if (!attempting_.empty() && turn_ % kSetUpLook == 0) look_at_attempts();
  if ((admission_waits_ && turn_ % kEpollEvery == 0) || (!unproven_.empty() && turn_ % kSlowLook == 0))
    look_at_admissions();
  // At once when nothing else comes, and soon where something always does.
  // They leave with what the pass has to send itself.
  if (!owing_.empty() && (!found || turn_ % kOwedTurns == 0)) flush_owing(turn_ % kPatientTurns == 0);
  if (found) found_ = turn_;
}

[[gnu::hot]] bool TcpRail::quiet() const {
  return turn_ - found_ > kQuietAfter && pending_.empty() && dirty_.empty() && owing_.empty() && blocked_ == 0 &&
         attempting_.empty() && device_ == nullptr;
}

[[gnu::hot]] bool TcpRail::read_active(std::size_t room) {
  bool found = false;
  const bool all = active_.size() <= kMostActive;
  for (std::size_t i = 0; i < active_.size();) {
    Connection& connection = *active_[i];
    if ((all || connection.unread) && pending_.size() < room) {
      const bool heard = read_from(connection, room);
      found |= heard;
      connection.heat = heard ? kHeat : connection.heat - 1;
    }
    const bool rests = connection.heat == 0 || (!all && !connection.unread);
    if (connection.phase != Connection::Phase::closed && !rests) {
      ++i;
      continue;
    }
    connection.active = false;
    active_[i] = active_.back();
    active_.pop_back();
  }
  // None is always the first.
  if (active_.size() > 1) std::rotate(active_.begin(), active_.begin() + 1, active_.end());
  return found;
}

/// What wakes us is to be read at once. Left alone, the kernel would send the acknowledgements that it still owes 40 ms
/// later and conclude that nothing is answered here: it would then acknowledge the next message before the answer,
/// while the message waits.
void TcpRail::quieten() {
  const std::size_t count = std::min(heard_.size(), kMostQuietened);
  for (std::size_t i = 0; i < count; ++i) {
    Connection& connection = *heard_[heard_.size() - 1 - i];
    connection.heard = false;
    if (connection.standing()) acknowledge_later(connection.socket.get());
  }
  heard_.resize(heard_.size() - count);
}

bool TcpRail::arm() {
  if (stopped_) return true;
  flush_owing(true);
  flush_dirty(true);
  look_at_epoll();
  epoll_gap_ = 0;  // who has slept looks at once
  const bool unread = std::ranges::any_of(active_, [](const Connection* connection) { return connection->unread; });
  const bool waits = std::ranges::any_of(attempting_, [](const TcpLink* link) { return link->retry_at != 0; });
  const bool rests = !unread && !waits && pending_.empty() && dirty_.empty() && !admission_waits_ && !sweeps_ &&
                     (stalled_.empty() || receives_.empty()) && (device_ == nullptr || !device_is_busy());
  if (rests) quieten();
  return rests;
}

void TcpRail::warm_up(RemoteId remote) const {
  touch(*this);
  if (!receives_.empty()) touch(posted_of(receives_.front()).address, kWarmBytes);
  const TcpLink* const link = links_.ready(remote);
  if (link == nullptr) return;
  touch(*link);
  touch(*link->connection);
  touch(link->connection->out.data(), sizeof(OutgoingFrame));
  touch(staging_.get(), kWarmBytes);
}

}  // namespace railyard::fabric::tcp
