/// The way out: posts become frames, as many as fit in one system call, and nothing is copied.
///
/// Order. A message keeps its place behind the data posted before it as long as that is no more than one fragment, so
/// that a small put and its signal travel in the order in which they were posted; more data than that it overtakes,
/// also where that is settled to go out next: at the border of a frame.
///
/// Length. A system call of a megabyte costs half as much a byte as four of a quarter: as much goes into one as there
/// is, and while the peer has enough to read, short ones wait until there is more.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "fabric/tcp/rail.hpp"

namespace railyard::fabric::tcp {

namespace {

constexpr std::size_t kMostFrames = 32;  ///< of one system call
constexpr std::size_t kMostVectors = 2 * kMostFrames;
constexpr std::size_t kCommitted = 4 * kFragmentBytes;  ///< bytes whose order is settled: what makes a long system call
constexpr std::size_t kFlushBudget = std::size_t{1} << 20U;
/// While the peer has so much to land, data waits until there are so many bytes of it.
constexpr std::size_t kEnoughToLand = std::size_t{1} << 20U;
constexpr std::size_t kLongCall = std::size_t{512} << 10U;
constexpr std::size_t kShortCall = 512;  ///< so much is copied: send(2) costs less than sendmsg(2)

}  // namespace

[[gnu::hot]] void TcpRail::add_frame(Connection& connection, const Frame& frame, const std::byte* payload,
                                     PostContext* context, std::uint64_t key) {
  add_frame_at(connection, connection.out.size(), frame, payload, context, key);
}

[[gnu::hot]] void TcpRail::add_frame_at(Connection& connection, std::size_t at, const Frame& frame,
                                        const std::byte* payload, PostContext* context, std::uint64_t key) {
  OutgoingFrame& out = *connection.out.emplace(connection.out.begin() + static_cast<std::ptrdiff_t>(at));
  frame.pack(out.header);
  out.payload = payload;
  out.bytes = frame.length;
  out.context = context;
  out.key = key;
  connection.out_bytes += Frame::kBytes + frame.length;
}

[[gnu::hot]] void TcpRail::add_message(Connection& connection, TcpLink& link) {
  PostContext* const context = link.messages.pop();
  const Posted& posted = posted_of(context);
  Frame frame;
  frame.kind = FrameKind::message;
  frame.last = true;
  frame.length = posted.bytes;
  std::size_t at = connection.out_head;
  for (std::size_t before = 0; at < connection.out.size(); ++at) {
    before += connection.out[at].left();
    if (before > kFragmentBytes + Frame::kBytes && connection.out[at].sent == 0 && at >= connection.urgent) break;
  }
  add_frame_at(connection, at, frame, posted.address, context, 0);
  connection.urgent = at + 1;
}

/// The next fragment of the oldest write, or the request of a read.
void TcpRail::add_write(Connection& connection, TcpLink& link) {
  PostContext* const context = link.bulk.front();
  Posted& posted = posted_of(context);
  Frame frame;
  frame.kind = posted.kind;
  frame.key = posted.key;
  if (posted.started == 0) posted.number = connection.next_number++;
  frame.number = posted.number;
  frame.offset = posted.offset + posted.started;
  if (posted.kind == FrameKind::read) {
    frame.last = true;
    frame.word = posted.bytes;
    link.bulk.pop();
    return add_frame(connection, frame, nullptr, context);
  }
  const std::uint32_t rest = posted.bytes - posted.started;
  frame.length = std::min(rest, static_cast<std::uint32_t>(kFragmentBytes));
  frame.last = frame.length == rest;
  frame.immediate = frame.last && posted.with_immediate;
  frame.patient = posted.patient;
  frame.word = frame.last ? posted.immediate : rest - frame.length;
  std::byte* const bounce = posted.on_device() ? take_fetched(link.fetches) : nullptr;
  const std::byte* const from = bounce != nullptr ? bounce : posted.address + posted.started;
  posted.started += frame.length;
  link.bulk_started += frame.length;
  if (frame.last) link.bulk.pop();
  add_frame(connection, frame, from, frame.last ? context : nullptr);
  connection.out.back().bounce = bounce;
}

void TcpRail::refuse(Connection& connection, std::uint32_t number, Refused what) {
  Frame refusal;
  refusal.kind = FrameKind::refuse;
  refusal.number = number;
  refusal.word = static_cast<std::uint32_t>(what);
  connection.control.push_back(refusal);
  mark_dirty(connection);
}

void TcpRail::add_read_data(Connection& connection) {
  ServedRead& read = connection.served.front();
  Frame frame;
  frame.number = read.number;
  if (read.refused) {
    frame.kind = FrameKind::refuse;
    frame.word = static_cast<std::uint32_t>(read.device_failed ? Refused::read_by_device : Refused::read);
    add_frame(connection, frame, nullptr, nullptr);
    connection.served.pop_front();
    return;
  }
  const std::uint32_t rest = read.bytes - read.done;
  frame.kind = FrameKind::read_data;
  frame.length = std::min(rest, static_cast<std::uint32_t>(kFragmentBytes));
  frame.last = frame.length == rest;
  frame.word = rest - frame.length;
  if (read.on_device()) {
    std::byte* const bounce = take_fetched(connection.served_fetches);
    add_frame(connection, frame, bounce, nullptr);
    connection.out.back().bounce = bounce;
  } else {
    add_frame(connection, frame, read.from + read.done, nullptr, read.key);
  }
  read.done += frame.length;
  one_sided_.read += frame.length;
  if (frame.last) connection.served.pop_front();
}

[[gnu::hot]] bool TcpRail::add_due_message(Connection& connection) {
  TcpLink* const link = connection.binding ? nullptr : connection.link;
  if (link == nullptr || link->messages.empty()) return false;
  const bool first = link->bulk_started >= posted_of(link->messages.front()).after || link->bulk.empty() ||
                     state_of_write(*link) == DeviceCopies::State::under_way;
  if (first) add_message(connection, *link);
  return first;
}

[[gnu::hot]] bool TcpRail::add_bulk(Connection& connection) {
  using State = DeviceCopies::State;
  TcpLink* const link = connection.binding ? nullptr : connection.link;
  const State write = link == nullptr || link->bulk.empty() ? State::under_way : state_of_write(*link);
  const bool writes = write != State::under_way;
  const State answer = connection.served.empty() ? State::under_way : state_of_answer(connection);
  const bool serves = answer != State::under_way;
  if (writes && !(serves && connection.serves_next)) {
    if (write == State::failed) return give_up_write(connection, *link);
    add_write(connection, *link);
  } else if (serves) {
    if (answer == State::failed) give_up_answer(connection);
    add_read_data(connection);
  } else {
    return false;
  }
  connection.serves_next = !connection.serves_next;
  return true;
}

[[gnu::hot]] void TcpRail::fill(Connection& connection) {
  if (connection.out_empty()) {
    connection.out.clear();
    connection.out_head = connection.out_bytes = connection.urgent = 0;
    connection.copies.clear();
  } else if (connection.out_head >= kMostFrames) {
    connection.out.erase(connection.out.begin(),
                         connection.out.begin() + static_cast<std::ptrdiff_t>(connection.out_head));
    connection.urgent -= std::min(connection.urgent, connection.out_head);
    connection.out_head = 0;
  }
  for (const Frame& frame : connection.control) add_frame(connection, frame, nullptr, nullptr);
  connection.control.clear();
  if (connection.landed_count != 0) {
    Frame frame;
    frame.kind = FrameKind::acknowledge;
    frame.number = connection.landed;
    connection.landed_count = connection.landed_bytes = 0;
    connection.awaited = false;
    add_frame(connection, frame, nullptr, nullptr);
  }
  if (connection.sends_tag) {
    connection.sends_tag = false;
    Frame frame;
    frame.kind = FrameKind::bind;
    frame.length = kTagBytes;
    add_frame(connection, frame, connection.tag_bytes.data(), nullptr);
  }
  if (device_ != nullptr) fetch_ahead(connection);
  while (connection.out.size() - connection.out_head < kMostFrames)
    if (!add_due_message(connection) && (connection.out_bytes >= kCommitted || !add_bulk(connection))) break;
  if (device_ != nullptr && connection.standing()) fetch_ahead(connection);
}

/// Data that would make a short system call, while what was sent before keeps the peer busy. What is in flight will be
/// acknowledged, so somebody comes back.
[[gnu::hot]] bool TcpRail::waits_for_company(const Connection& connection) {
  const TcpLink* const link = connection.binding ? nullptr : connection.link;
  return link != nullptr && !link->bulk.empty() && !link->written.empty() && link->messages.empty() &&
         connection.out_empty() && connection.control.empty() && connection.landed_count == 0 &&
         connection.served.empty() && link->bulk_posted - link->bulk_started < kLongCall &&
         link->bulk_started - link->bulk_landed >= kEnoughToLand;
}

[[gnu::hot]] void TcpRail::flush(Connection& connection, bool at_once) {
  connection.dirty = false;
  if (!connection.standing() || connection.blocked) return;
  if (!at_once && waits_for_company(connection)) return mark_dirty(connection);
  for (std::size_t budget = kFlushBudget; budget != 0;) {
    fill(connection);
    if (!connection.standing() || connection.out_empty()) return;
    std::array<iovec, kMostVectors> vectors;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
    std::size_t count = 0;
    bool messages = true;
    for (std::size_t i = connection.out_head; i < connection.out.size() && count + 2 <= vectors.size(); ++i) {
      OutgoingFrame& frame = connection.out[i];
      messages &= frame.bytes == 0 || (frame.context != nullptr && posted_of(frame.context).kind == FrameKind::message);
      std::size_t skip = frame.sent;
      if (skip < Frame::kBytes) vectors[count++] = {frame.header.data() + skip, Frame::kBytes - skip};
      skip -= std::min(skip, Frame::kBytes);
      if (frame.bytes > skip) vectors[count++] = {const_cast<std::byte*>(frame.payload) + skip, frame.bytes - skip};
    }
    const ssize_t sent = send_vectors(connection, std::span(vectors).first(count), messages);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) {
        connection.blocked = true;
        ++blocked_;
        return;
      }
      if (errno == EFAULT) return unreadable_source(connection);
      return end_connection(connection, errno);
    }
    if (connection.leaves_host) unaccounted_ += static_cast<std::size_t>(sent);
    sent_bytes(connection, static_cast<std::size_t>(sent));
    budget -= std::min(budget, static_cast<std::size_t>(sent));
  }
  mark_dirty(connection);
}

/// `messages`: there is nothing among them that only the kernel may touch because it may not be there.
[[gnu::hot]] ssize_t TcpRail::send_vectors(const Connection& connection, std::span<iovec> vectors, bool messages) {
  if (messages && connection.out_bytes <= kShortCall) {
    std::array<std::byte, kShortCall> bytes;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
    std::size_t length = 0;
    for (const iovec& part : vectors) {
      std::memcpy(bytes.data() + length, part.iov_base, part.iov_len);
      length += part.iov_len;
    }
    return ::send(connection.socket.get(), bytes.data(), length, MSG_NOSIGNAL);
  }
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = vectors.size();
  return ::sendmsg(connection.socket.get(), &message, MSG_NOSIGNAL);
}

[[gnu::hot]] void TcpRail::sent_bytes(Connection& connection, std::size_t bytes) {
  connection.out_bytes -= bytes;
  while (bytes != 0) {
    OutgoingFrame& frame = connection.out[connection.out_head];
    const std::size_t part = std::min(bytes, frame.left());
    frame.sent += part;
    bytes -= part;
    if (frame.left() != 0) return;
    if (frame.bounce != nullptr) device_->to_host.give_bounce(std::exchange(frame.bounce, nullptr));
    frame_sent(connection, frame);
    ++connection.out_head;
  }
}

[[gnu::hot]] void TcpRail::frame_sent(Connection& connection, const OutgoingFrame& frame) {
  if (frame.context == nullptr) return;
  TcpLink& link = *connection.link;
  const Posted& posted = posted_of(frame.context);
  switch (posted.kind) {
    case FrameKind::message:
      return give_back(frame.context, Event::Kind::sent, posted.bytes);
    case FrameKind::write:
      return link.written.push(frame.context);
    default:
      return link.reading.push(frame.context);
  }
}

/// The target waits for bytes that cannot be had: its connection has to end, and the operation is to blame.
void TcpRail::unreadable_source(Connection& connection) {
  PostContext* context = connection.out[connection.out_head].context;
  if (context == nullptr && connection.link != nullptr) context = connection.link->bulk.front();
  if (context != nullptr && posted_of(context).on_device()) context = nullptr;  // no socket reads that memory
  if (context != nullptr) {
    if (connection.link->bulk.front() == context) connection.link->bulk.pop();
    fail_operation(context, EFAULT, Blame::operation);
  }
  end_connection(connection, EFAULT);
}

[[gnu::hot]] void TcpRail::flush_dirty(bool at_once) {
  // A connection may get dirty again while its turn is.
  const std::size_t count = dirty_.size();
  for (std::size_t i = 0; i < count; ++i) flush(*dirty_[i], at_once);
  dirty_.erase(dirty_.begin(), dirty_.begin() + static_cast<std::ptrdiff_t>(count));
  if (unaccounted_ >= DeviceAccount::kWindowBytes) look_at_device_account();
}

void TcpRail::flush_owing(bool all) {
  std::erase_if(owing_, [&](Connection* connection) {
    const bool owes = connection->landed_count != 0;
    if (owes && !all && !connection->awaited) return false;
    connection->owes = false;
    if (owes) mark_dirty(*connection);
    return true;
  });
}

}  // namespace railyard::fabric::tcp
