/// How the CM messages of a rail travel: one datagram queue pair, on the rail's own completion queue. A CM message may
/// get lost, come twice or late; whoever writes one repeats it until it is answered. admission.hpp says which count.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "fabric/verbs/address.hpp"
#include "fabric/verbs/handles.hpp"
#include "fabric/verbs/port.hpp"

namespace railyard::fabric::verbs {

/// A rail that CM messages go to.
struct Peer {
  CmAddress address;
  Address handle;
};

class ConnectionManager {
 public:
  static constexpr std::uint32_t kReceives = 128;
  static constexpr std::uint32_t kSends = 32;
  /// What it may have in the completion queue.
  static constexpr std::uint32_t kCompletions = kReceives + kSends;
  /// In a wr_id: of a CM message that arrives, or of one that leaves; below it, its number.
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

  Result<std::shared_ptr<Peer>> peer(const CmAddress& address, const std::string& rail);
  /// False: it is dropped, for want of room.
  bool send(const Peer& to, std::span<const std::byte> message);
  /// A completion of this queue pair: the datagram in it, if one arrived.
  std::optional<std::vector<std::byte>> take(const ibv_wc& completion);
  /// A CM message that could not leave, for a port that was down, breaks the queue pair: it is brought up again, under
  /// the same number. CM messages on their way are lost, as they may be.
  bool broken() const { return broken_; }
  void revive();

  /// The way to a rail, for queue pairs.
  ibv_ah_attr way_to(const CmAddress& address) const;

 private:
  static constexpr std::size_t kHeader = 40;  ///< before every datagram that arrives
  static constexpr std::size_t kRoom = kHeader + CmMessage::kMostBytes;

  std::byte* slot(std::size_t number) { return memory_.data() + number * kRoom; }
  int bring_up(const char*& step);
  int offer(std::uint32_t number);
  /// In a wr_id, above the number: which generation of the queue pair it is of.
  std::uint64_t generation_bits() const { return std::uint64_t{generation_} << kGenerationShift; }

  static constexpr int kGenerationShift = 32;

  Parts parts_;
  std::uint32_t sends_ = 0;
  std::uint32_t receives_ = 0;
  std::uint16_t generation_ = 0;
  bool broken_ = false;
  std::uint32_t queue_key_ = 0;
  std::vector<std::byte> memory_;
  MemoryRegion registration_;
  QueuePair pair_;
  std::vector<std::uint32_t> free_;  ///< slots that CM messages leave from
  std::map<std::uint64_t, std::weak_ptr<Peer>> peers_;
};

}  // namespace railyard::fabric::verbs
