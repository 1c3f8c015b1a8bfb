/// The way out: posts become frames, as many as fit in one system call, and nothing is copied.
///
/// Order. What the driver itself has to say goes first. A message keeps its place behind the data posted before it as
/// long as that is no more than one fragment, so that a small put and its signal travel in the order in which they were
/// posted; behind more data than that it does not wait.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "fabric/tcp/rail.hpp"

namespace railyard::fabric::tcp {

namespace {

constexpr std::size_t kMostFrames = 32;  ///< of one system call
constexpr std::size_t kMostVectors = 2 * kMostFrames;
/// Bytes whose order is settled: one fragment while messages are around, else what makes long system calls.
constexpr std::size_t kCommittedTalking = kFragmentBytes;
constexpr std::size_t kCommittedBulk = 4 * kFragmentBytes;
constexpr unsigned kTalkingFor = 32;  ///< fragments after a message
constexpr std::size_t kFlushBudget = std::size_t{1} << 20U;

}  // namespace

[[gnu::hot]] void TcpRail::add_frame(Connection& connection, const Frame& frame, const std::byte* payload,
                                     PostContext* context, std::uint64_t key) {
  OutgoingFrame& out = connection.out.emplace_back();
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
  connection.talks = kTalkingFor;
  add_frame(connection, frame, posted.address, context);
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
  frame.word = frame.last ? posted.immediate : rest - frame.length;
  std::byte* const bounce = posted.on_device() ? take_fetched(link.fetches) : nullptr;
  const std::byte* const from = bounce != nullptr ? bounce : posted.address + posted.started;
  posted.started += frame.length;
  link.bulk_started += frame.length;
  if (frame.last) link.bulk.pop();
  if (connection.talks != 0) --connection.talks;
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

[[gnu::hot]] bool TcpRail::fill_from_queues(Connection& connection) {
  using State = DeviceCopies::State;
  TcpLink* const link = connection.binding ? nullptr : connection.link;
  const State write = link == nullptr || link->bulk.empty() ? State::under_way : state_of_write(*link);
  const bool writes = write != State::under_way;
  if (link != nullptr && !link->messages.empty() &&
      (!writes || link->bulk_started >= posted_of(link->messages.front()).after)) {
    add_message(connection, *link);
    return true;
  }
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
    connection.out_head = connection.out_bytes = 0;
    connection.copies.clear();
  } else if (connection.out_head >= kMostFrames) {
    connection.out.erase(connection.out.begin(),
                         connection.out.begin() + static_cast<std::ptrdiff_t>(connection.out_head));
    connection.out_head = 0;
  }
  for (const Frame& frame : connection.control) add_frame(connection, frame, nullptr, nullptr);
  connection.control.clear();
  if (connection.landed_count != 0) {
    Frame frame;
    frame.kind = FrameKind::acknowledge;
    frame.number = connection.landed;
    connection.landed_count = connection.landed_bytes = 0;
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
  const std::size_t committed = connection.talks != 0 ? kCommittedTalking : kCommittedBulk;
  while (connection.out.size() - connection.out_head < kMostFrames && connection.out_bytes < committed)
    if (!fill_from_queues(connection)) break;
  if (device_ != nullptr && connection.standing()) fetch_ahead(connection);
}

[[gnu::hot]] void TcpRail::flush(Connection& connection) {
  connection.dirty = false;
  if (!connection.standing() || connection.blocked) return;
  for (std::size_t budget = kFlushBudget; budget != 0;) {
    fill(connection);
    if (!connection.standing() || connection.out_empty()) return;
    std::array<iovec, kMostVectors> vectors;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
    std::size_t count = 0;
    for (std::size_t i = connection.out_head; i < connection.out.size() && count + 2 <= vectors.size(); ++i) {
      OutgoingFrame& frame = connection.out[i];
      std::size_t skip = frame.sent;
      if (skip < Frame::kBytes) vectors[count++] = {frame.header.data() + skip, Frame::kBytes - skip};
      skip -= std::min(skip, Frame::kBytes);
      if (frame.bytes > skip) vectors[count++] = {const_cast<std::byte*>(frame.payload) + skip, frame.bytes - skip};
    }
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(connection.socket.get(), &message, MSG_NOSIGNAL);
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

[[gnu::hot]] void TcpRail::flush_dirty() {
  // A connection may get dirty again while its turn is.
  const std::size_t count = dirty_.size();
  for (std::size_t i = 0; i < count; ++i) flush(*dirty_[i]);
  dirty_.erase(dirty_.begin(), dirty_.begin() + static_cast<std::ptrdiff_t>(count));
  if (unaccounted_ >= DeviceAccount::kWindowBytes) look_at_device_account();
}

void TcpRail::flush_owing() {
  for (Connection* const connection : owing_) {
    connection->owes = false;
    if (connection->landed_count != 0) mark_dirty(*connection);
  }
  owing_.clear();
}

}  // namespace railyard::fabric::tcp
