/// The rendezvous of a job: who may take part, which rank group each rank belongs to, what they are told. No sockets.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.hpp"
#include "bootstrap/protocol.hpp"
#include "bootstrap/rank_group.hpp"
#include "rendezvous/acceptor.hpp"

namespace railyard::bootstrap {

using rendezvous::ConnectionId;

struct JobServerOptions {
  std::int32_t size = 1;
  std::string job_key;
  std::string where;  ///< the address, for messages
  std::int64_t handshake_timeout_ns = 10'000'000'000;
  bool wrong_key_ends = false;           ///< a wrong proof for a rank that is still awaited ends the job
  std::size_t most_unauthenticated = 0;  ///< 0: enough for every rank to arrive twice at once
  std::function<Result<rendezvous::Nonce>()> make_nonce;  ///< empty: from the system
};

class JobServer final : private rendezvous::AcceptingProtocol {
 public:
  /// `clock` must outlive it.
  JobServer(JobServerOptions options, const Clock& clock);

  /// Those who connect: its sockets go here.
  rendezvous::Acceptor& acceptor() { return acceptor_; }
  /// The launcher saw the process of `rank` end; `how` completes "rank 3 ended ...: ".
  void process_ended(std::int32_t rank, std::string how);
  /// Ends the calls whose time is up.
  void tick();
  /// When `tick` is next due; RankGroup::kNever: not by itself.
  std::int64_t deadline() const;

 private:
  struct Rank {
    Claim claim;
    std::shared_ptr<RankGroup> group;  ///< once it has its seat
  };

  Result<std::string> key_of(ConnectionId id, rendezvous::Bytes claim) override;
  rendezvous::Complaint wrong_key(ConnectionId id) override;
  std::optional<rendezvous::Complaint> proven(ConnectionId id) override;
  void received(ConnectionId id, rendezvous::Frame& frame) override;
  void late(ConnectionId) override {}  // ranks that were let in have all the time
  void lost(ConnectionId id, std::string_view why) override;

  /// Gives the rank its seat, or says why it gets none.
  std::optional<rendezvous::Complaint> seat(ConnectionId id, Rank& rank);
  /// Where `rank` may sit down; null with `complaint` filled in when nowhere.
  std::shared_ptr<RankGroup> find_group(std::int32_t rank, rendezvous::Complaint& complaint);
  void deliver(const std::shared_ptr<RankGroup>& group, const RankGroup::Outcome& outcome);
  void end_old_groups();

  const JobServerOptions options_;
  Job job_;
  std::deque<std::shared_ptr<RankGroup>> groups_;
  std::map<ConnectionId, Rank> ranks_;  ///< those whose claim was heard
  std::map<std::pair<const RankGroup*, std::int32_t>, ConnectionId> members_;
  const Clock& clock_;
  rendezvous::Acceptor acceptor_;
};

}  // namespace railyard::bootstrap
