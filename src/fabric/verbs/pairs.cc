/// Queue pairs: how they come up, break, and go.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.hpp"
#include "base/entropy.hpp"
#include "fabric/verbs/rail.hpp"

namespace railyard::fabric::verbs {

namespace {

// A link that does not acknowledge is dead after about retries x 4 us x 2^timeout, half a second: others carry on.
constexpr std::uint8_t kTimeout = 14;
constexpr std::uint8_t kRetries = 7;
constexpr std::uint8_t kForever = 7;    // tries without a receive at the target: it is late, not dead
constexpr std::uint8_t kNoReceive = 8;  // 160 us between them
constexpr std::uint32_t kPacketMask = 0xffffff;
/// A device that does not say when a broken queue pair has come to rest is given so long.
constexpr std::int64_t kRest = 1'000'000;

int remote_access(bool atomics) {
  return IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | (atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0);
}

}  // namespace

Result<VerbsRail::Pair*> VerbsRail::make_pair(std::shared_ptr<Peer> peer) {
  auto pair = std::make_unique<Pair>();
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = queue_.get();
  wanted.srq = shared_receives_.get();
  wanted.cap.max_send_wr = depth_;
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_inline_data = static_cast<std::uint32_t>(inline_bytes_);
  wanted.qp_type = IBV_QPT_RC;
  wanted.qp_context = pair.get();
  ibv_qp* made = library_->create_qp(domain_.get(), &wanted);
  // How much goes inline is not to be asked for: less and less is tried, once for the rail.
  while (made == nullptr && (errno == EINVAL || errno == ENOMEM) && inline_bytes_ != 0) {
    const auto less = static_cast<std::uint32_t>(inline_bytes_ / 2);
    wanted.cap.max_inline_data = less < 8 ? 0 : less;
    const int before = errno;
    made = library_->create_qp(domain_.get(), &wanted);
    if (made == nullptr && wanted.cap.max_inline_data == 0) {
      errno = before;
      break;
    }
    if (made != nullptr || errno == EINVAL) inline_bytes_ = wanted.cap.max_inline_data;
    if (made == nullptr && errno == ENOMEM) break;
  }
  if (made == nullptr) {
    const int code = errno;
    return Error(Status::no_memory,
                 fmt::format("{}: the device makes no further queue pair: {} (its limit: {}). RAILYARD_SHARED_LINKS=1 "
                             "lets all channels to a peer share one",
                             name_, std::strerror(code), limits_.max_qp));
  }
  pair->pair = QueuePair(made, {library_});
  pair->peer = std::move(peer);
  if (auto filled = fill_random(std::as_writable_bytes(std::span(&pair->first_packet, 1))); !filled)
    return std::move(filled.error());
  pair->first_packet &= kPacketMask;

  if (int code = begin_pair(made)) return set_up_error("bring up a queue pair", code);

  if (free_slots_.empty()) {
    if (slots_.size() > kSlotMask) return Error(Status::no_memory, fmt::format("{}: too many queue pairs", name_));
    free_slots_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  pair->slot = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[pair->slot];
  const std::uint64_t generation = slot.generation & 0xffff;
  pair->queue.open(made, depth_, kSend | std::uint64_t{pair->slot} << kSlotShift | generation << SendQueue::kNameShift);
  slot.pair = std::move(pair);
  return slot.pair.get();
}

int VerbsRail::begin_pair(ibv_qp* pair) const {
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_INIT;
  state.pkey_index = port_.pkey_index;
  state.port_num = port_.number;
  state.qp_access_flags = static_cast<unsigned>(remote_access(capabilities_.native_atomics));
  return library_->modify_qp(pair, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

std::uint64_t VerbsRail::handle_of(const Pair& pair) const {
  return std::uint64_t{slots_[pair.slot].generation} << 32 | pair.slot;
}

VerbsRail::Pair* VerbsRail::find_pair(std::uint64_t handle) {
  const auto slot = static_cast<std::uint32_t>(handle);
  if (slot >= slots_.size() || !slots_[slot].pair || slots_[slot].generation != handle >> 32) return nullptr;
  Pair* const pair = slots_[slot].pair.get();
  return pair->state == Pair::State::closing ? nullptr : pair;
}

EndData VerbsRail::end_of(const Pair& pair) const {
  EndData end;
  end.queue_pair = pair.pair->qp_num;
  end.first_packet = pair.first_packet;
  end.mtu = static_cast<std::uint8_t>(port_.mtu);
  end.reads = reads_;
  ibv_ece options{};
  if (library_->query_ece != nullptr && library_->query_ece(pair.pair.get(), &options) == 0) {
    end.ece_vendor = options.vendor_id;
    end.ece_options = options.options;
    end.ece_mask = options.comp_mask;
  }
  return end;
}

/// Joins our end to theirs. What a device wants to agree on with its like (ECE) is passed on, not looked at.
int VerbsRail::join(ibv_qp* pair, std::uint32_t first_packet, const EndData& theirs, const CmAddress& at) {
  if (library_->set_ece != nullptr && theirs.ece_vendor != 0) {
    ibv_ece options{theirs.ece_vendor, theirs.ece_options, theirs.ece_mask};
    (void)library_->set_ece(pair, &options);
  }
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_RTR;
  state.path_mtu = std::min(port_.mtu, static_cast<ibv_mtu>(theirs.mtu));
  state.dest_qp_num = theirs.queue_pair;
  state.rq_psn = theirs.first_packet;
  state.max_dest_rd_atomic = reads_;
  state.min_rnr_timer = kNoReceive;
  state.ah_attr = connection_manager_.way_to(at);
  if (int code = library_->modify_qp(pair, &state,
                                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
    return code;
  state.qp_state = IBV_QPS_RTS;
  state.timeout = kTimeout;
  state.retry_cnt = kRetries;
  state.rnr_retry = kForever;
  state.sq_psn = first_packet;
  state.max_rd_atomic =
      static_cast<std::uint8_t>(std::clamp(limits_.max_qp_init_rd_atom, 1, std::max<int>(theirs.reads, 1)));
  return library_->modify_qp(
      pair, &state,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

void VerbsRail::pair_failed(Pair& pair, int error, bool refused) {
  if (pair.state == Pair::State::closing) return;
  if (pair.link != nullptr) lose(*pair.link, error, refused);
  close_pair(pair, true);
}

/// From here on nothing lands through it; what is under way comes back, and when it has, it goes.
void VerbsRail::close_pair(Pair& pair, bool tell) {
  if (pair.state == Pair::State::closing) return;
  if (tell) say_over(pair);
  if (pair.link != nullptr) pair.link->pair = nullptr;
  pair.link = nullptr;
  inbound_.end(pair);
  pair.state = Pair::State::closing;
  pair.closing_since = SteadyClock().now();
  std::erase(handshaking_, &pair);
  turn_away(pair.queue);
  for (SendQueue** at = &to_ring_; *at != nullptr; at = &(*at)->rings_after) {
    if (*at != &pair.queue) continue;
    *at = pair.queue.rings_after;
    break;
  }
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_ERR;
  (void)library_->modify_qp(pair.pair.get(), &state, IBV_QP_STATE);
  closing_.push_back(&pair);
}

void VerbsRail::sweep() {
  const std::int64_t now = SteadyClock().now();
  std::vector<Pair*> rested;
  std::erase_if(closing_, [&](Pair* pair) {
    if (!pair->last_taken && now - pair->closing_since < kRest) return false;
    rested.push_back(pair);
    return true;
  });
  if (rested.empty()) return;
  for (Pair* pair : rested) pair->pair.reset();
  drain();            // what landed at the very end; from here on nothing does
  if (gone_) return;  // and all of them with the device
  for (Pair* pair : rested) forget_pair(*pair);
}

/// Its queue pair has gone: whoever waited for that hears of it.
void VerbsRail::forget_pair(Pair& pair) {
  turn_away(pair.queue);
  transmit_room_ += pair.queue.outstanding() + pair.queue.take_back();
  while (pair.queue.outstanding() != 0) pending_.push_failed(pair.queue.retire().context, IBV_WC_WR_FLUSH_ERR);
  inbound_.rested(pair);
  const std::uint32_t slot = pair.slot;
  slots_[slot].pair.reset();
  ++slots_[slot].generation;
  free_slots_.push_back(slot);
}

}  // namespace railyard::fabric::verbs
