/// The letters of a rail: one datagram queue pair, on the rail's own completion queue. A letter may get lost, come
/// twice or late; whoever writes one repeats it until it is answered.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "fabric/verbs/address.hpp"
#include "fabric/verbs/handles.hpp"
#include "fabric/verbs/port.hpp"

namespace railyard::fabric::verbs {

/// A rail that letters go to.
struct Peer {
  RailAddress address;
  Address handle;
};

class Office {
 public:
  static constexpr std::uint32_t kReceives = 128;
  static constexpr std::uint32_t kSends = 32;
  /// What it may have in the completion queue.
  static constexpr std::uint32_t kCompletions = kReceives + kSends;
  /// In a wr_id: of a letter that arrives, or of one that leaves; below it, its number.
  static constexpr std::uint64_t kArrives = std::uint64_t{3} << 62;
  static constexpr std::uint64_t kLeaves = kArrives | std::uint64_t{1} << 61;

  struct Parts {
    const Library* library = nullptr;
    ibv_pd* domain = nullptr;
    ibv_cq* queue = nullptr;
    const Port* port = nullptr;
    const ibv_device_attr* limits = nullptr;
    std::uint8_t traffic_class = 0;
    std::uint8_t service_level = 0;
  };

  /// An errno; `step` says of what, `limit` how many of that the device can have.
  int open(const Parts& parts, const char*& step, int& limit);
  void close();

  std::uint32_t queue_pair() const { return pair_->qp_num; }
  std::uint32_t queue_key() const { return queue_key_; }

  Result<std::shared_ptr<Peer>> peer(const RailAddress& address, const std::string& rail);
  /// False: it is dropped, for want of room.
  bool send(const Peer& to, const Letter& letter);
  /// A completion of this queue pair: the letter in it, if one arrived.
  std::optional<Letter> take(const ibv_wc& completion);
  /// A letter that could not leave, for a port that was down, breaks the queue pair: it is brought up again, under the
  /// same number. Letters on their way are lost, as they may be.
  bool broken() const { return broken_; }
  void revive();

  /// The way to a rail, for queue pairs.
  ibv_ah_attr way_to(const RailAddress& address) const;

 private:
  static constexpr std::size_t kHeader = 40;  ///< before every datagram that arrives
  static constexpr std::size_t kRoom = kHeader + Letter::kMostBytes;

  std::byte* place(std::size_t number) { return memory_.data() + number * kRoom; }
  int bring_up(const char*& step);
  int offer(std::uint32_t number);
  /// In a wr_id, above the number: which life of the queue pair it is of.
  std::uint64_t life() const { return std::uint64_t{lives_} << kLifeShift; }

  static constexpr int kLifeShift = 32;

  Parts parts_;
  std::uint32_t sends_ = 0;
  std::uint32_t receives_ = 0;
  std::uint16_t lives_ = 0;
  bool broken_ = false;
  std::uint32_t queue_key_ = 0;
  std::vector<std::byte> memory_;
  Memory registration_;
  QueuePair pair_;
  std::vector<std::uint32_t> free_;  ///< places that letters leave from
  std::map<std::uint64_t, std::weak_ptr<Peer>> peers_;
};

}  // namespace railyard::fabric::verbs
