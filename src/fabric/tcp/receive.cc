/// The way in: headers and short payloads through a buffer that the whole rail shares, long payloads straight to where
/// they belong. Key and bounds are checked before the first byte of a payload is placed.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "fabric/tcp/rail.hpp"

namespace railyard::fabric::tcp {

namespace {

constexpr std::size_t kReadBudget = std::size_t{2} << 20U;  ///< of one connection in one pass
/// Where long payloads come in, little is read ahead: what belongs to the next one would have to be copied.
constexpr std::size_t kLongPayload = std::size_t{16} << 10U;
constexpr unsigned kLongSpell = 8;  ///< frames that a long payload is remembered for
constexpr std::size_t kStagingAmongLong = 4096;
constexpr std::size_t kMostServed = 4096;
constexpr std::size_t kOwedWrites = 16;
constexpr std::size_t kOwedBytes = std::size_t{1} << 20U;

}  // namespace

const TcpRail::Region* TcpRail::find_region(std::uint64_t key, std::uint64_t offset, std::uint64_t bytes) const {
  const auto found = regions_.find(key);
  if (found == regions_.end()) return nullptr;
  const Region& region = found->second;
  return offset <= region.bytes && bytes <= region.bytes - offset ? &region : nullptr;
}

[[gnu::hot]] bool TcpRail::read_from(Connection& connection, std::size_t room) {
  if (connection.phase == Connection::Phase::greeted || connection.phase == Connection::Phase::proving) {
    connection.unread = false;
    read_handshake(connection);
    return true;
  }
  if (connection.phase == Connection::Phase::lingering) {
    throw_away_input(connection);
    return false;
  }
  bool found = false;
  std::size_t budget = kReadBudget;
  while (connection.standing() && !connection.stalled && budget != 0 && pending_.size() < room) {
    std::array<iovec, 2> vectors;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
    int count = 0;
    std::size_t wanted = 0;
    const std::size_t direct = connection.to == nullptr ? 0 : connection.left;
    if (direct != 0) vectors[static_cast<std::size_t>(count++)] = {connection.to, direct};
    const std::size_t staging = connection.long_spell != 0 ? kStagingAmongLong : kStaging;
    vectors[static_cast<std::size_t>(count++)] = {staging_.get(), staging};
    wanted = direct + staging;
    const ssize_t got = direct == 0 ? ::recv(connection.socket.get(), staging_.get(), staging, 0)
                                    : ::readv(connection.socket.get(), vectors.data(), count);
    if (got < 0) {
      if (errno == EINTR) continue;
      connection.unread = false;
      if (errno != EAGAIN) end_connection(connection, errno);
      return found;
    }
    if (got == 0) {
      end_connection(connection, kPeerClosed);
      return true;
    }
    found = true;
    if (!connection.heard) [[unlikely]] {
      connection.heard = true;
      heard_.push_back(&connection);
    }
    const auto bytes = static_cast<std::size_t>(got);
    budget -= std::min(budget, bytes);
    const std::size_t placed = std::min(bytes, direct);
    if (placed != 0) {
      connection.to += placed;
      connection.left -= placed;
      if (connection.left == 0) finish_frame(connection);
    }
    if (bytes != placed) parse(connection, {staging_.get(), bytes - placed});
    if (bytes < wanted) {
      connection.unread = false;
      return true;
    }
  }
  return found;
}

void TcpRail::throw_away_input(Connection& connection) {
  for (int turn = 0; turn < 64; ++turn) {
    const ssize_t got = ::recv(connection.socket.get(), staging_.get(), kStaging, 0);
    if (got > 0) continue;
    connection.unread = false;
    const bool over = got == 0 || (errno != EAGAIN && errno != EINTR);
    if (over && connection.phase == Connection::Phase::lingering) end_connection(connection, 0);
    return;
  }
}

[[gnu::hot]] void TcpRail::parse(Connection& connection, std::span<const std::byte> bytes) {
  while (connection.standing()) {
    if (connection.left != 0) {
      const std::size_t part = std::min(connection.left, bytes.size());
      if (part == 0) return;
      if (connection.to != nullptr) {
        std::memcpy(connection.to, bytes.data(), part);
        connection.to += part;
      }
      connection.left -= part;
      bytes = bytes.subspan(part);
      if (connection.left == 0) finish_frame(connection);
      continue;
    }
    const std::size_t part = std::min(Frame::kBytes - connection.head_have, bytes.size());
    if (part == 0) return;
    std::memcpy(connection.head.data() + connection.head_have, bytes.data(), part);
    connection.head_have += part;
    bytes = bytes.subspan(part);
    if (connection.head_have < Frame::kBytes) return;
    connection.head_have = 0;
    const auto frame = Frame::parse(std::span(connection.head).first<Frame::kBytes>());
    if (!frame) return end_connection(connection, kBadFrame);
    connection.frame = *frame;
    if (begin_frame(connection)) continue;
    if (connection.stalled) connection.stash.assign(bytes.begin(), bytes.end());
    return;
  }
}

[[gnu::hot]] bool TcpRail::begin_frame(Connection& connection) {
  const Frame& frame = connection.frame;
  connection.to = nullptr;
  connection.taking = nullptr;
  connection.left = frame.length;
  if (frame.length > kLongPayload)
    connection.long_spell = kLongSpell;
  else if (connection.long_spell != 0)
    --connection.long_spell;
  switch (frame.kind) {
    case FrameKind::message: {
      if (receives_.empty()) return stall(connection);
      if (frame.length > posted_of(receives_.front()).bytes) {
        end_connection(connection, EMSGSIZE);
        return false;
      }
      connection.taking = receives_.pop();
      --receive_count_;
      connection.to = posted_of(connection.taking).address;
      break;
    }
    case FrameKind::write:
      if (const Region* const region = find_region(frame.key, frame.offset, frame.rest());
          region == nullptr || connection.refusing == frame.number)
        connection.refusing = frame.number;
      else if (region->device < 0)
        connection.to = region->base + frame.offset;
      else if (!take_buffer(connection, region->device, region->base + frame.offset))
        return false;
      break;
    case FrameKind::read_data:
      if (!begin_read_data(connection)) {
        end_connection(connection, kBadFrame);
        return false;
      }
      if (PostContext* const context = connection.taking; context != nullptr && posted_of(context).on_device()) {
        const Posted& posted = posted_of(context);
        if (!take_buffer(connection, posted.device, posted.address + posted.started)) return false;
      }
      break;
    case FrameKind::bind:
      if (frame.length != kTagBytes) {
        end_connection(connection, kBadFrame);
        return false;
      }
      connection.to = connection.small.data();
      break;
    default:
      break;
  }
  if (connection.left == 0) finish_frame(connection);
  return connection.standing();
}

/// The answer to a read whose link has gone is thrown away.
bool TcpRail::begin_read_data(Connection& connection) {
  PostContext* const context =
      connection.link == nullptr ? nullptr : connection.link->reading.find(connection.frame.number);
  if (context == nullptr) return true;
  const Posted& posted = posted_of(context);
  if (connection.frame.rest() != posted.bytes - posted.started) return false;
  connection.taking = context;
  connection.to = posted.on_device() ? nullptr : posted.address + posted.started;
  return true;
}

/// The frame waits for a receive or a buffer, and everything behind it does.
bool TcpRail::stall(Connection& connection) {
  connection.left = 0;
  connection.taking = nullptr;
  connection.stalled = true;
  stalled_.push_back(&connection);
  return false;
}

[[gnu::hot]] void TcpRail::finish_frame(Connection& connection) {
  const Frame& frame = connection.frame;
  PostContext* const context = std::exchange(connection.taking, nullptr);
  std::byte* const bounce = std::exchange(connection.bounce, nullptr);
  connection.to = nullptr;
  switch (frame.kind) {
    case FrameKind::message: {
      Event event;
      event.kind = Event::Kind::received;
      event.context = context;
      event.bytes = frame.length;
      return pending_.push(event);
    }
    case FrameKind::write:
      return finish_write(connection, bounce);
    case FrameKind::read:
      return serve_read(connection);
    case FrameKind::read_data:
      if (context == nullptr) return;
      if (posted_of(context).on_device()) return finish_device_read(connection, bounce, context);
      posted_of(context).started += frame.length;
      if (!frame.last) return;
      connection.link->reading.take(frame.number);
      return give_back(context, Event::Kind::read, posted_of(context).bytes);
    case FrameKind::acknowledge:
      return take_acknowledgement(connection);
    case FrameKind::refuse:
      return take_refusal(connection);
    case FrameKind::bind:
      return take_bind(connection);
    case FrameKind::bound:
      return take_bound(connection);
    case FrameKind::unbind:
      return take_unbind(connection);
  }
}

void TcpRail::finish_write(Connection& connection, std::byte* bounce) {
  const Frame& frame = connection.frame;
  connection.write_bytes += frame.length;
  ArrivedWrite write{frame.number, frame.word, frame.length, connection.write_bytes, frame.immediate, frame.patient};
  if (frame.last) connection.write_bytes = 0;
  if (frame.last && connection.refusing == frame.number) {
    connection.refusing.reset();
    return refuse(connection, frame.number, Refused::write);
  }
  if (bounce == nullptr && connection.landings.empty()) {
    if (frame.last) land(connection, write);
    return;
  }
  if (bounce == nullptr && !frame.last) return;
  Landing landing;
  landing.key = frame.key;
  landing.last = frame.last;
  landing.write = write;
  begin_landing(connection, bounce, frame.length, landing);
}

void TcpRail::land(Connection& connection, const ArrivedWrite& write) {
  connection.landed = write.number;
  ++connection.landed_count;
  connection.landed_bytes += write.last_bytes;
  connection.awaited |= !write.patient;
  if (connection.landed_count >= kOwedWrites || connection.landed_bytes >= kOwedBytes) {
    mark_dirty(connection);
  } else if (!connection.owes) {
    connection.owes = true;
    owing_.push_back(&connection);
  }
  if (!write.immediate) {
    one_sided_.written += write.bytes;
    return;
  }
  Event event;
  event.kind = Event::Kind::landed;
  event.immediate = write.word;
  event.bytes = write.bytes;
  pending_.push(event);
}

void TcpRail::serve_read(Connection& connection) {
  const Frame& frame = connection.frame;
  if (connection.served.size() >= kMostServed) return end_connection(connection, kBadFrame);
  ServedRead read;
  read.key = frame.key;
  read.bytes = frame.word;
  read.number = frame.number;
  const Region* const region = find_region(frame.key, frame.offset, frame.word);
  read.refused = region == nullptr;
  if (region != nullptr) {
    read.from = region->base + frame.offset;
    read.device = region->device;
  }
  connection.served.push_back(read);
  mark_dirty(connection);
}

void TcpRail::take_acknowledgement(Connection& connection) {
  if (connection.link == nullptr) return;
  PostQueue& written = connection.link->written;
  while (!written.empty() &&
         static_cast<std::int32_t>(connection.frame.number - posted_of(written.front()).number) >= 0) {
    PostContext* const context = written.pop();
    give_back(context, Event::Kind::written, posted_of(context).bytes);
  }
}

void TcpRail::take_refusal(Connection& connection) {
  if (connection.link == nullptr) return;
  const auto what = static_cast<Refused>(connection.frame.word);
  const bool read = what == Refused::read || what == Refused::read_by_device;
  const bool by_device = what == Refused::write_by_device || what == Refused::read_by_device;
  const int error = by_device ? kTargetGpuFailed : kNoSuchRegion;
  PostQueue& queue = read ? connection.link->reading : connection.link->written;
  PostContext* const context = queue.take(connection.frame.number);
  if (context == nullptr) return;
  if (!read) connection.link->bulk_landed += posted_of(context).bytes;
  if (!read || !posted_of(context).on_device()) return fail_operation(context, error, Blame::operation);
  // Some of its bytes may be on their way into device memory.
  posted_of(context).fate = CopyFate::failed;
  posted_of(context).immediate = static_cast<std::uint32_t>(error);
  Landing landing;
  landing.context = context;
  begin_landing(connection, nullptr, 0, landing);
}

void TcpRail::resume_stalled() {
  std::vector<Connection*> waiting;
  waiting.swap(stalled_);
  for (Connection* const connection : waiting) {
    if (!connection->standing()) continue;
    connection->stalled = connection->wants_bounce = false;
    std::vector<std::byte> rest = std::move(connection->stash);
    connection->stash.clear();
    if (begin_frame(*connection)) {
      parse(*connection, rest);
    } else if (connection->stalled) {
      connection->stash = std::move(rest);
    }
    if (connection->standing() && !connection->stalled) activate(*connection);
  }
}

}  // namespace railyard::fabric::tcp
