/// The ranks of a job that meet, from the first join to the last leave: who is there, which collective call they
/// are in, and what they are told. No sockets, no clock of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bootstrap/protocol.hpp"
#include "railyard/result.hpp"

namespace railyard::bootstrap {

/// What is known of a job outside its rank groups.
struct Job {
  std::int32_t size = 0;
  std::string where;               ///< the rendezvous's address
  std::vector<std::string> ended;  ///< by rank: how its process ended, as the launcher saw it; empty: it lives
  std::vector<std::int32_t> ended_in_order;  ///< the ranks of `ended`, the first to end first
  std::vector<bool> refused;                 ///< by rank: somebody with this rank and a wrong key was turned away
  std::optional<rendezvous::Complaint>
      wrong_key;  ///< a claim without the job key that ends the job; `peer`: which rank
};

class RankGroup {
 public:
  enum class Seat : std::uint8_t {
    empty,  ///< not arrived yet
    taken,
    left,  ///< said good-bye
    lost,  ///< its connection broke
  };

  /// A frame for some ranks. No recipients: nothing to tell.
  struct Outcome {
    std::vector<std::int32_t> recipients;
    rendezvous::OutgoingFrame frame;
  };

  static constexpr std::int64_t kNever = INT64_MAX;

  /// `job` must outlive the rank group.
  explicit RankGroup(const Job& job);

  Seat seat(std::int32_t rank) const { return members_[index(rank)].seat; }
  /// How the rank calls itself: "pid 12 on node7".
  const std::string& name(std::int32_t rank) const { return members_[index(rank)].name; }
  void take_seat(std::int32_t rank, std::string peer_address);

  /// `rank` makes a collective call. The rank must have its seat taken.
  Outcome enter(std::int32_t rank, Enter enter, std::int64_t now_ns);
  /// Whether `rank` waits in a call: it may not make another then.
  bool waits(std::int32_t rank) const { return members_[index(rank)].waits; }
  Outcome leave(std::int32_t rank);
  /// The rank's connection broke; `why` completes "is gone: ".
  Outcome lose(std::int32_t rank, std::string_view why);
  /// The launcher says that a process ended (`job.ended` is set already).
  Outcome process_ended(std::int32_t rank);
  /// Ends a call whose time is up.
  Outcome tick(std::int64_t now_ns);
  /// When `tick` is next due.
  std::int64_t deadline() const { return waiting_ == 0 ? kNever : deadline_ns_; }
  /// Nobody is there any more and nobody may still come: a new rank group can begin.
  bool over() const;

 private:
  struct Member {
    Seat seat = Seat::empty;
    bool waits = false;
    std::string name;
    std::vector<std::byte> contribution;
  };

  static std::size_t index(std::int32_t rank) { return static_cast<std::size_t>(rank); }
  std::string full_name(std::int32_t rank) const;
  std::vector<std::int32_t> waiting_ranks() const;
  std::vector<std::int32_t> missing_ranks() const;
  /// What makes the current call impossible already, if anything does.
  std::optional<rendezvous::Complaint> obstacle() const;
  std::string timeout_text() const;
  Outcome complete();
  /// Tells everybody who waits; everybody who calls later is told the same.
  Outcome fail(rendezvous::Complaint complaint);
  void forget_call();

  const Job& job_;
  std::vector<Member> members_;
  std::optional<rendezvous::Complaint> failure_;
  std::int32_t seated_ = 0;

  // The call under way.
  std::uint64_t sequence_ = 0;
  Call call_ = Call::join;
  std::int32_t first_ = -1;
  std::int32_t waiting_ = 0;
  std::size_t gathered_bytes_ = 0;
  std::int64_t deadline_ns_ = kNever;
  std::uint64_t timeout_ns_ = 0;
};

}  // namespace railyard::bootstrap
