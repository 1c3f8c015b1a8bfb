#include "bootstrap/job_server.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace railyard::bootstrap {

using rendezvous::Complaint;
using rendezvous::Frame;

namespace {

/// A closed rank group, the one under way and one or two whose first ranks are ahead of the others.
constexpr std::size_t kMostGroups = 4;
/// Frames that a rank may leave unread.
constexpr std::size_t kMostUnread = 8;

rendezvous::AcceptorOptions acceptor_options(const JobServerOptions& options) {
  rendezvous::AcceptorOptions acceptor;
  acceptor.protocol = rendezvous::Protocol::job;
  acceptor.who = fmt::format("the rendezvous at {}", options.where);
  acceptor.most_frame = kMostFrameToServer;
  acceptor.most_unauthenticated = options.most_unauthenticated != 0 ? options.most_unauthenticated
                                                                    : 64 + 2 * static_cast<std::size_t>(options.size);
  acceptor.handshake_timeout_ns = options.handshake_timeout_ns;
  acceptor.make_nonce = options.make_nonce;
  return acceptor;
}

}  // namespace

JobServer::JobServer(JobServerOptions options, const Clock& clock)
    : options_(std::move(options)), clock_(clock), acceptor_(acceptor_options(options_), *this, clock) {
  job_.size = options_.size;
  job_.where = options_.where;
  job_.ended.resize(static_cast<std::size_t>(options_.size));
  job_.refused.resize(static_cast<std::size_t>(options_.size));
}

// ---- Who may take part ----

Result<std::string> JobServer::key_of(ConnectionId id, rendezvous::Bytes claim) {
  const auto parsed = parse_claim(claim);
  if (!parsed) return Error(Status::invalid, "received a hello that is not of a rank of a job");
  ranks_[id] = {*parsed, nullptr};
  return options_.job_key;
}

/// A wrong proof shows that somebody lacks the key, not who it is: unless the user says otherwise, the job waits on for
/// the real rank, or anybody who reaches this port could end it. The log names the address at once either way.
Complaint JobServer::wrong_key(ConnectionId id) {
  const std::int32_t rank = ranks_.at(id).claim.rank;
  Complaint complaint{
      Status::refused, -1,
      fmt::format("the job key of rank {} is not the one of the rendezvous: set RAILYARD_JOB_KEY to the same "
                  "secret on every rank",
                  rank)};
  if (rank >= job_.size) return complaint;
  job_.refused[static_cast<std::size_t>(rank)] = true;
  if (!options_.wrong_key_ends) return complaint;
  job_.wrong_key = {Status::refused, rank,
                    fmt::format("a process at {} that called itself rank {} has another RAILYARD_JOB_KEY than the "
                                "rendezvous: set it to the same secret on every rank",
                                acceptor_.peer(id), rank)};
  for (const auto& group : groups_) deliver(group, group->process_ended(rank));
  return complaint;
}

std::optional<Complaint> JobServer::proven(ConnectionId id) {
  auto complaint = seat(id, ranks_.at(id));
  if (complaint) ranks_.erase(id);
  return complaint;
}

std::optional<Complaint> JobServer::seat(ConnectionId id, Rank& rank) {
  const auto [number, size] = rank.claim;
  if (size != job_.size) {
    return Complaint{
        Status::invalid, -1,
        fmt::format("rank {} was told that the job has {} ranks, the rendezvous that it has {}: set RAILYARD_SIZE "
                    "to the same number on every rank",
                    number, size, job_.size)};
  }
  Complaint complaint;
  rank.group = find_group(number, complaint);
  if (!rank.group) return complaint;
  rank.group->take_seat(number, acceptor_.peer(id));
  members_[{rank.group.get(), number}] = id;
  job_.refused[static_cast<std::size_t>(number)] = false;
  return std::nullopt;
}

std::shared_ptr<RankGroup> JobServer::find_group(std::int32_t rank, Complaint& complaint) {
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

void JobServer::end_old_groups() {
  while (!groups_.empty() && groups_.front()->over()) groups_.pop_front();
}

// ---- What they say ----

void JobServer::received(ConnectionId id, Frame& frame) {
  Rank& rank = ranks_.at(id);
  const std::int32_t number = rank.claim.rank;
  const auto group = rank.group;
  if (frame.type == kLeave && frame.payload.empty()) {
    members_.erase({group.get(), number});
    ranks_.erase(id);
    acceptor_.close(id);
    return deliver(group, group->leave(number));
  }
  auto enter = frame.type == kEnter ? parse_enter(frame.payload) : std::nullopt;
  if (!enter || group->waits(number) || acceptor_.unsent(id) > kMostUnread) {
    return acceptor_.turn_away(id, "a message that makes no sense at this point");
  }
  deliver(group, group->enter(number, std::move(*enter), clock_.now()));
}

void JobServer::lost(ConnectionId id, std::string_view why) {
  const auto found = ranks_.find(id);
  if (found == ranks_.end()) return;
  const Rank rank = std::move(found->second);
  ranks_.erase(found);
  if (!rank.group) return;
  members_.erase({rank.group.get(), rank.claim.rank});
  deliver(rank.group, rank.group->lose(rank.claim.rank, why));
}

void JobServer::deliver(const std::shared_ptr<RankGroup>& group, const RankGroup::Outcome& outcome) {
  for (const std::int32_t rank : outcome.recipients) {
    const auto member = members_.find({group.get(), rank});
    if (member != members_.end()) acceptor_.send(member->second, outcome.frame);
  }
}

void JobServer::process_ended(std::int32_t rank, std::string how) {
  if (rank < 0 || rank >= job_.size || !job_.ended[static_cast<std::size_t>(rank)].empty()) return;
  job_.ended[static_cast<std::size_t>(rank)] = std::move(how);
  job_.ended_in_order.push_back(rank);
  for (const auto& group : groups_) deliver(group, group->process_ended(rank));
}

void JobServer::tick() {
  for (const auto& group : groups_) deliver(group, group->tick(clock_.now()));
}

std::int64_t JobServer::deadline() const {
  std::int64_t earliest = RankGroup::kNever;
  for (const auto& group : groups_) earliest = std::min(earliest, group->deadline());
  return earliest;
}

}  // namespace railyard::bootstrap
