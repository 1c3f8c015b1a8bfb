#include "bootstrap/rank_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace railyard::bootstrap {

using rendezvous::Complaint;
using rendezvous::FrameType;
using rendezvous::kMostText;
using rendezvous::make_frame;
using rendezvous::printable;

namespace {

constexpr std::size_t kMostName = 128;

std::int64_t deadline_after(std::int64_t now_ns, std::uint64_t timeout_ns) {
  const auto room = static_cast<std::uint64_t>(RankGroup::kNever - now_ns);
  return timeout_ns >= room ? RankGroup::kNever : now_ns + static_cast<std::int64_t>(timeout_ns);
}

std::string text_of(const std::vector<std::byte>& bytes) {
  const std::size_t length = std::min(bytes.size(), kMostName);
  return length == 0 ? "" : printable({reinterpret_cast<const char*>(bytes.data()), length});
}

}  // namespace

RankGroup::RankGroup(const Job& job) : job_(job), members_(index(job.size)) {}

std::string RankGroup::full_name(std::int32_t rank) const {
  const std::string& name = members_[index(rank)].name;
  return name.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, name);
}

void RankGroup::take_seat(std::int32_t rank, std::string peer_address) {
  members_[index(rank)].seat = Seat::taken;
  members_[index(rank)].name = std::move(peer_address);
  ++seated_;
}

std::vector<std::int32_t> RankGroup::waiting_ranks() const {
  std::vector<std::int32_t> ranks;
  for (std::int32_t rank = 0; rank < job_.size; ++rank) {
    if (members_[index(rank)].waits) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<std::int32_t> RankGroup::missing_ranks() const {
  std::vector<std::int32_t> ranks;
  for (std::int32_t rank = 0; rank < job_.size; ++rank) {
    if (!members_[index(rank)].waits) ranks.push_back(rank);
  }
  return ranks;
}

std::optional<Complaint> RankGroup::obstacle() const {
  for (std::int32_t rank = 0; rank < job_.size; ++rank) {
    if (members_[index(rank)].seat != Seat::left) continue;
    return Complaint{Status::peer_lost, rank,
                     fmt::format("{} has closed its bootstrap: no {} of all {} ranks can complete", full_name(rank),
                                 to_string(call_), job_.size)};
  }
  if (job_.wrong_key && members_[index(job_.wrong_key->peer)].seat == Seat::empty) return job_.wrong_key;
  // The first to end is the cause; others may have ended because of it.
  for (const std::int32_t rank : job_.ended_in_order) {
    if (members_[index(rank)].seat != Seat::empty) continue;
    return Complaint{
        Status::peer_lost, rank,
        fmt::format("rank {} ended before it arrived at {}: {}", rank, job_.where, job_.ended[index(rank)])};
  }
  return std::nullopt;
}

RankGroup::Outcome RankGroup::enter(std::int32_t rank, Enter enter, std::int64_t now_ns) {
  Member& member = members_[index(rank)];
  member.waits = true;
  ++waiting_;
  if (failure_) return fail(*failure_);
  if (waiting_ == 1) {
    call_ = enter.call;
    first_ = rank;
  }
  if (enter.sequence != sequence_ || enter.call != call_) {
    return fail({Status::invalid, rank,
                 fmt::format("{} made {} as its call number {}, {} made {} as number {}: every rank must make the same "
                             "collective calls in the same order",
                             full_name(rank), to_string(enter.call), enter.sequence, full_name(first_),
                             to_string(call_), sequence_)});
  }
  if (call_ == Call::join) {
    if (const std::string name = text_of(enter.contribution); !name.empty()) member.name = name;
  } else if (call_ == Call::allgather) {
    member.contribution = std::move(enter.contribution);
    gathered_bytes_ += member.contribution.size();
    if (gathered_bytes_ > kMostGathered) {
      return fail(
          {Status::out_of_range, -1,
           fmt::format("the contributions to allgather {} are over {} bytes together", sequence_, kMostGathered)});
    }
  }
  if (const std::int64_t own = deadline_after(now_ns, enter.timeout_ns); own < deadline_ns_) {
    deadline_ns_ = own;
    timeout_ns_ = enter.timeout_ns;
  }
  if (auto blocked = obstacle()) return fail(std::move(*blocked));
  if (waiting_ == job_.size) return complete();
  return {};
}

RankGroup::Outcome RankGroup::complete() {
  std::vector<std::vector<std::byte>> contributions;
  if (call_ == Call::allgather) {
    for (Member& member : members_) contributions.push_back(std::move(member.contribution));
  }
  Outcome outcome{waiting_ranks(), make_frame(kResult, encode_result(call_, sequence_, contributions))};
  forget_call();
  ++sequence_;
  return outcome;
}

RankGroup::Outcome RankGroup::fail(Complaint complaint) {
  Outcome outcome{waiting_ranks(), make_frame(FrameType::failure, encode(complaint, kMostText))};
  forget_call();
  failure_ = std::move(complaint);
  return outcome;
}

void RankGroup::forget_call() {
  for (Member& member : members_) {
    member.waits = false;
    member.contribution = {};
  }
  waiting_ = 0;
  first_ = -1;
  gathered_bytes_ = 0;
  deadline_ns_ = kNever;
  timeout_ns_ = 0;
}

RankGroup::Outcome RankGroup::leave(std::int32_t rank) {
  Member& member = members_[index(rank)];
  member.seat = Seat::left;
  --seated_;
  if (std::exchange(member.waits, false)) --waiting_;
  if (waiting_ == 0 || failure_) return {};
  return fail({Status::peer_lost, rank,
               fmt::format("{} closed its bootstrap while {} waited for it in {} {}", full_name(rank),
                           list_ranks(waiting_ranks()), to_string(call_), sequence_)});
}

RankGroup::Outcome RankGroup::lose(std::int32_t rank, std::string_view why) {
  Member& member = members_[index(rank)];
  member.seat = Seat::lost;
  --seated_;
  if (std::exchange(member.waits, false)) --waiting_;
  if (failure_) return {};
  return fail({Status::peer_lost, rank, fmt::format("{} is gone: {}", full_name(rank), why)});
}

RankGroup::Outcome RankGroup::process_ended(std::int32_t rank) {
  if (waiting_ == 0 || failure_ || members_[index(rank)].seat != Seat::empty) return {};
  return fail(*obstacle());
}

std::string RankGroup::timeout_text() const {
  const auto missing = missing_ranks();
  const char* they = missing.size() == 1 ? "it" : "they";
  std::string text;
  if (call_ != Call::join) {
    text = fmt::format("{} of {} did not enter {} {} within {}", list_ranks(missing), job_.size, to_string(call_),
                       sequence_, show_duration(timeout_ns_));
    if (missing.size() == 1) text += fmt::format("; it is still connected: {}", full_name(missing.front()));
    return text;
  }
  text = fmt::format("{} of {} did not arrive within {} at {}; check that {} {} started and can reach that address",
                     list_ranks(missing), job_.size, show_duration(timeout_ns_), job_.where, they,
                     missing.size() == 1 ? "was" : "were");
  std::vector<std::int32_t> refused;
  std::ranges::copy_if(missing, std::back_inserter(refused),
                       [this](std::int32_t rank) { return job_.refused[index(rank)]; });
  if (!refused.empty()) {
    text += fmt::format(" (a process that called itself {} was turned away: its RAILYARD_JOB_KEY differs)",
                        list_ranks(refused));
  }
  return text;
}

RankGroup::Outcome RankGroup::tick(std::int64_t now_ns) {
  if (waiting_ == 0 || now_ns < deadline_ns_) return {};
  const auto missing = missing_ranks();
  return fail({Status::timeout, missing.empty() ? -1 : missing.front(), timeout_text()});
}

bool RankGroup::over() const {
  if (seated_ > 0) return false;
  return failure_ || std::ranges::none_of(members_, [](const Member& member) { return member.seat == Seat::empty; });
}

}  // namespace railyard::bootstrap
