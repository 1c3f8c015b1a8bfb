#include "bootstrap/server_core.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/entropy.hpp"

namespace railyard::bootstrap {

namespace {

/// A closed rank group, the one under way and one or two whose first ranks are ahead of the others.
constexpr std::size_t kMostGroups = 4;
/// How long one that was refused gets to read why.
constexpr std::int64_t kLingerNs = 2'000'000'000;
/// Frames that a rank may leave unread.
constexpr std::size_t kMostUnread = 8;

Result<Nonce> nonce_of_the_system() {
  Nonce nonce;
  if (auto filled = fill_random(nonce); !filled) return std::move(filled.error());
  return nonce;
}

}  // namespace

ServerCore::ServerCore(ServerCoreOptions options) : options_(std::move(options)) {
  if (options_.most_unauthenticated == 0)
    options_.most_unauthenticated = 64 + 2 * static_cast<std::size_t>(options_.size);
  if (!options_.make_nonce) options_.make_nonce = nonce_of_the_system;
  job_.size = options_.size;
  job_.where = options_.where;
  job_.ended.resize(static_cast<std::size_t>(options_.size));
  job_.refused.resize(static_cast<std::size_t>(options_.size));
}

bool ServerCore::has_room(std::int64_t now_ns) const {
  return with_deadline() < options_.most_unauthenticated || who_makes_room(now_ns, kLeastStayNs).has_value();
}

ConnectionId ServerCore::connected(const std::string& peer, std::int64_t now_ns) {
  if (with_deadline() >= options_.most_unauthenticated) {
    if (const auto dropped = who_makes_room(now_ns, kLeastStayNs)) drop(*dropped);
  }
  const ConnectionId id = ++last_id_;
  Connection& connection = connections_.try_emplace(id, peer).first->second;
  connection.since_ns = now_ns;
  connection.deadline_ns = now_ns + options_.handshake_timeout_ns;
  expendable_.insert(id);
  return id;
}

std::optional<ConnectionId> ServerCore::who_makes_room(std::int64_t now_ns, std::int64_t least_stay_ns) const {
  if (!expendable_.empty()) return *expendable_.begin();
  if (challenged_.empty()) return std::nullopt;
  const ConnectionId oldest = *challenged_.begin();
  if (now_ns - connections_.at(oldest).since_ns < least_stay_ns) return std::nullopt;
  return oldest;
}

bool ServerCore::drop_unauthenticated() {
  const auto dropped = who_makes_room(0, INT64_MIN);
  if (dropped) drop(*dropped);
  return dropped.has_value();
}

void ServerCore::drop(ConnectionId id) {
  forget(id);
  dropped_.push_back(id);
}

void ServerCore::forget(ConnectionId id) {
  expendable_.erase(id);
  challenged_.erase(id);
  touched_.erase(id);
  connections_.erase(id);
}

void ServerCore::received(ConnectionId id, std::span<const std::byte> bytes, std::int64_t now_ns) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.phase == Phase::closing) return;
  Connection& connection = found->second;
  connection.reader.feed(bytes);
  Frame frame;
  for (;;) {
    switch (connection.reader.next(frame)) {
      case FrameReader::State::more:
        return;
      case FrameReader::State::oversize:
        return protocol_error(id, connection, "a frame of a length that nobody may send", now_ns);
      case FrameReader::State::forged:
        return protocol_error(id, connection, "a frame whose seal does not fit", now_ns);
      case FrameReader::State::frame:
        if (!handle(id, connection, frame, now_ns)) return;
    }
  }
}

bool ServerCore::handle(ConnectionId id, Connection& connection, Frame& frame, std::int64_t now_ns) {
  switch (connection.phase) {
    case Phase::hello:
      return handle_hello(id, connection, frame, now_ns);
    case Phase::proof:
      return handle_proof(id, connection, frame, now_ns);
    case Phase::member:
      return handle_member(id, connection, frame, now_ns);
    case Phase::closing:
      break;
  }
  return false;
}

bool ServerCore::handle_hello(ConnectionId id, Connection& connection, const Frame& frame, std::int64_t now_ns) {
  const auto hello = frame.type == FrameType::hello ? parse_hello(frame.payload) : std::nullopt;
  if (!hello) {
    protocol_error(id, connection, "something that is no hello of Railyard", now_ns);
    return false;
  }
  if (hello->version != kWireVersion) {
    refuse(id, connection,
           {Status::version_mismatch, -1,
            fmt::format("wire version {} does not fit the rendezvous's version {}: run the same release of Railyard "
                        "everywhere",
                        hello->version, kWireVersion)},
           now_ns);
    return false;
  }
  auto nonce = options_.make_nonce();
  if (!nonce) {
    refuse(id, connection, {Status::io, -1, nonce.error().message()}, now_ns);
    return false;
  }
  connection.handshake = {hello->rank, hello->size, hello->nonce, *nonce};
  connection.phase = Phase::proof;
  expendable_.erase(id);
  challenged_.insert(id);
  send(id, connection, make_frame(FrameType::challenge, encode(Challenge{kWireVersion, *nonce})));
  return true;
}

bool ServerCore::handle_proof(ConnectionId id, Connection& connection, const Frame& frame, std::int64_t now_ns) {
  const auto proof = frame.type == FrameType::proof ? parse_proof(frame.payload) : std::nullopt;
  if (!proof) {
    protocol_error(id, connection, "something that is no proof of the job key", now_ns);
    return false;
  }
  if (!equal_in_constant_time(*proof, proof_of(options_.job_key, connection.handshake, Side::client))) {
    wrong_key(id, connection, now_ns);
    return false;
  }
  return welcome(id, connection, now_ns);
}

/// A wrong proof shows that somebody lacks the key, not who it is: unless the user says otherwise, the job waits on for
/// the real rank, or anybody who reaches this port could end it. The log names the address at once either way.
void ServerCore::wrong_key(ConnectionId id, Connection& connection, std::int64_t now_ns) {
  const std::int32_t rank = connection.handshake.rank;
  refuse(id, connection,
         {Status::refused, -1,
          fmt::format("the job key of rank {} is not the one of the rendezvous: set RAILYARD_JOB_KEY to the same "
                      "secret on every rank",
                      rank)},
         now_ns);
  if (rank >= job_.size) return;
  job_.refused[static_cast<std::size_t>(rank)] = true;
  if (!options_.wrong_key_ends) return;
  job_.wrong_key = {Status::refused, rank,
                    fmt::format("a process at {} that called itself rank {} has another RAILYARD_JOB_KEY than the "
                                "rendezvous: set it to the same secret on every rank",
                                connection.peer, rank)};
  for (const auto& group : groups_) deliver(group, group->process_ended(rank));
}

bool ServerCore::welcome(ConnectionId id, Connection& connection, std::int64_t now_ns) {
  const Handshake& handshake = connection.handshake;
  if (handshake.size != job_.size) {
    refuse(id, connection,
           {Status::invalid, -1,
            fmt::format("rank {} was told that the job has {} ranks, the rendezvous that it has {}: set RAILYARD_SIZE "
                        "to the same number on every rank",
                        handshake.rank, handshake.size, job_.size)},
           now_ns);
    return false;
  }
  Complaint complaint;
  connection.group = find_group(handshake.rank, complaint);
  if (!connection.group) {
    refuse(id, connection, std::move(complaint), now_ns);
    return false;
  }
  connection.group->take_seat(handshake.rank, connection.peer);
  members_[{connection.group.get(), handshake.rank}] = id;
  job_.refused[static_cast<std::size_t>(handshake.rank)] = false;
  send(id, connection, make_frame(FrameType::welcome, encode(proof_of(options_.job_key, handshake, Side::server))));
  connection.phase = Phase::member;
  connection.reader.set_most(kMostFrameToServer);
  connection.reader.expect_seal(Seal(options_.job_key, handshake, Side::client));
  connection.seal.emplace(options_.job_key, handshake, Side::server);
  challenged_.erase(id);
  return true;
}

std::shared_ptr<RankGroup> ServerCore::find_group(std::int32_t rank, Complaint& complaint) {
  end_old_groups();
  for (const auto& group : groups_) {
    switch (group->seat(rank)) {
      case RankGroup::Seat::empty:
        return group;
      case RankGroup::Seat::taken:
        complaint = {Status::refused, rank,
                     fmt::format("rank {} is here already ({}): two processes have RAILYARD_RANK={}, or one has two "
                                 "worlds open at a time",
                                 rank, group->name(rank), rank)};
        return nullptr;
      case RankGroup::Seat::lost:
        complaint = {
            Status::peer_lost, rank,
            fmt::format("rank {} was here and is gone; wait until every other rank has closed its bootstrap", rank)};
        return nullptr;
      case RankGroup::Seat::left:
        break;  // ahead of the others: it belongs to the next group
    }
  }
  if (groups_.size() >= kMostGroups) {
    complaint = {Status::refused, rank, fmt::format("rank {} has come and gone too often for the other ranks", rank)};
    return nullptr;
  }
  return groups_.emplace_back(std::make_shared<RankGroup>(job_));
}

void ServerCore::end_old_groups() {
  while (!groups_.empty() && groups_.front()->over()) groups_.pop_front();
}

bool ServerCore::handle_member(ConnectionId id, Connection& connection, Frame& frame, std::int64_t now_ns) {
  const std::int32_t rank = connection.handshake.rank;
  const auto group = connection.group;
  if (frame.type == FrameType::leave && frame.payload.empty()) {
    members_.erase({group.get(), rank});
    connection.group.reset();
    begin_closing(id, connection, now_ns);
    deliver(group, group->leave(rank));
    return false;
  }
  auto enter = frame.type == FrameType::enter ? parse_enter(frame.payload) : std::nullopt;
  if (!enter || group->waits(rank) || connection.queue.size() > 2 * kMostUnread) {
    protocol_error(id, connection, "a message that makes no sense at this point", now_ns);
    return false;
  }
  deliver(group, group->enter(rank, std::move(*enter), now_ns));
  return true;
}

void ServerCore::deliver(const std::shared_ptr<RankGroup>& group, const RankGroup::Outcome& outcome) {
  for (const std::int32_t rank : outcome.recipients) {
    const auto member = members_.find({group.get(), rank});
    if (member == members_.end()) continue;
    send(member->second, connections_.at(member->second), outcome.frame);
  }
}

void ServerCore::send(ConnectionId id, Connection& connection, const OutgoingFrame& frame) {
  connection.queue.push_back(frame.bytes);
  if (connection.seal) {
    connection.queue.push_back(
        std::make_shared<const std::vector<std::byte>>(encode(connection.seal->next(frame.digest))));
  }
  touched_.insert(id);
}

void ServerCore::refuse(ConnectionId id, Connection& connection, Complaint complaint, std::int64_t now_ns) {
  if (log_enabled(LogLevel::warn) && complaints_.allow(now_ns)) {
    log_warn("the rendezvous at {} refused {}: {}", job_.where, connection.peer, complaint.text);
  }
  send(id, connection, make_frame(FrameType::refusal, encode(complaint, kMostRefusalText)));
  begin_closing(id, connection, now_ns);
}

void ServerCore::protocol_error(ConnectionId id, Connection& connection, std::string_view what, std::int64_t now_ns) {
  if (connection.phase != Phase::member) {
    refuse(id, connection, {Status::invalid, -1, fmt::format("received {}", what)}, now_ns);
    return;
  }
  const std::int32_t rank = connection.handshake.rank;
  const auto group = std::exchange(connection.group, nullptr);
  members_.erase({group.get(), rank});
  log_warn("the rendezvous at {} closes the connection of rank {}: it sent {}", job_.where, rank, what);
  send(id, connection,
       make_frame(FrameType::failure,
                  encode(Complaint{Status::invalid, rank, fmt::format("received {}", what)}, kMostText)));
  begin_closing(id, connection, now_ns);
  deliver(group, group->lose(rank, fmt::format("it sent {}", what)));
}

void ServerCore::begin_closing(ConnectionId id, Connection& connection, std::int64_t now_ns) {
  connection.phase = Phase::closing;
  connection.deadline_ns = now_ns + kLingerNs;
  challenged_.erase(id);
  expendable_.insert(id);
  touched_.insert(id);
}

void ServerCore::closed(ConnectionId id, std::string_view why) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const auto group = found->second.group;
  const std::int32_t rank = found->second.handshake.rank;
  forget(id);
  if (!group) return;
  members_.erase({group.get(), rank});
  deliver(group, group->lose(rank, why));
}

void ServerCore::process_ended(std::int32_t rank, std::string how) {
  if (rank < 0 || rank >= job_.size || !job_.ended[static_cast<std::size_t>(rank)].empty()) return;
  job_.ended[static_cast<std::size_t>(rank)] = std::move(how);
  job_.ended_in_order.push_back(rank);
  for (const auto& group : groups_) deliver(group, group->process_ended(rank));
}

template <typename Visit>
void ServerCore::visit_with_deadline(Visit visit) const {
  for (const auto* ids : {&expendable_, &challenged_}) {
    for (const ConnectionId id : *ids) visit(id, connections_.at(id).deadline_ns);
  }
}

void ServerCore::tick(std::int64_t now_ns) {
  std::vector<ConnectionId> late;
  visit_with_deadline([&](ConnectionId id, std::int64_t deadline) {
    if (deadline <= now_ns) late.push_back(id);
  });
  for (const ConnectionId id : late) drop(id);
  for (const auto& group : groups_) deliver(group, group->tick(now_ns));
}

std::int64_t ServerCore::deadline() const {
  std::int64_t earliest = RankGroup::kNever;
  visit_with_deadline([&](ConnectionId, std::int64_t deadline) { earliest = std::min(earliest, deadline); });
  for (const auto& group : groups_) earliest = std::min(earliest, group->deadline());
  return earliest;
}

std::span<const std::byte> ServerCore::outgoing(ConnectionId id) const {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.queue.empty()) return {};
  return std::span<const std::byte>(*found->second.queue.front()).subspan(found->second.queue_offset);
}

void ServerCore::sent(ConnectionId id, std::size_t bytes) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  while (bytes > 0 && !connection.queue.empty()) {
    const std::size_t chunk = std::min(bytes, connection.queue.front()->size() - connection.queue_offset);
    connection.queue_offset += chunk;
    bytes -= chunk;
    if (connection.queue_offset == connection.queue.front()->size()) {
      connection.queue.pop_front();
      connection.queue_offset = 0;
    }
  }
}

bool ServerCore::finished(ConnectionId id) const {
  const auto found = connections_.find(id);
  return found != connections_.end() && found->second.phase == Phase::closing;
}

std::vector<ConnectionId> ServerCore::take_touched() {
  std::vector<ConnectionId> ids(touched_.begin(), touched_.end());
  touched_.clear();
  return ids;
}

std::vector<ConnectionId> ServerCore::take_dropped() { return std::exchange(dropped_, {}); }

bool ServerCore::anything_outgoing() const {
  return std::ranges::any_of(connections_, [](const auto& entry) { return !entry.second.queue.empty(); });
}

}  // namespace railyard::bootstrap
