#include "fabric/verbs/connection_manager.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/entropy.hpp"

namespace railyard::fabric::verbs {

int ConnectionManager::open(const Parts& parts, const char*& step, int& limit) {
  parts_ = parts;
  const Library& library = *parts.library;
  if (!fill_random(std::as_writable_bytes(std::span(&queue_key_, 1)))) return EIO;
  queue_key_ &= 0x7fffffff;  // the upper half is the system's
  memory_.resize((kReceives + kSends) * kRoom);
  step = "register memory for CM messages";
  limit = parts.limits->max_mr;
  registration_ =
      MemoryRegion(library.reg_mr(parts.domain, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE), {&library});
  if (!registration_) return errno;

  step = "make a datagram queue pair";
  limit = parts.limits->max_qp;
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = parts.queue;
  const auto most = static_cast<std::uint32_t>(parts.limits->max_qp_wr);
  sends_ = std::min(kSends, most);
  receives_ = std::min(kReceives, most);
  wanted.cap.max_send_wr = sends_;
  wanted.cap.max_recv_wr = receives_;
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  wanted.qp_type = IBV_QPT_UD;
  pair_ = QueuePair(library.create_qp(parts.domain, &wanted), {&library});
  if (!pair_) return errno;

  limit = -1;
  return bring_up(step);
}

int ConnectionManager::bring_up(const char*& step) {
  const Library& library = *parts_.library;
  step = "bring up a datagram queue pair";
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_INIT;
  state.pkey_index = parts_.port->pkey_index;
  state.port_num = parts_.port->number;
  state.qkey = queue_key_;
  if (int code = library.modify_qp(pair_.get(), &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
    return code;
  state.qp_state = IBV_QPS_RTR;
  if (int code = library.modify_qp(pair_.get(), &state, IBV_QP_STATE)) return code;
  state.qp_state = IBV_QPS_RTS;
  if (int code = library.modify_qp(pair_.get(), &state, IBV_QP_STATE | IBV_QP_SQ_PSN)) return code;

  step = "offer receives for CM messages";
  for (std::uint32_t number = 0; number < receives_; ++number)
    if (int code = offer(number)) return code;
  free_.clear();
  for (std::uint32_t number = 0; number < sends_; ++number) free_.push_back(kReceives + number);
  return 0;
}

void ConnectionManager::revive() {
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_RESET;
  const char* step = "";
  ++generation_;
  free_.clear();
  // While the port is down this may fail: it is tried again.
  if (parts_.library->modify_qp(pair_.get(), &state, IBV_QP_STATE) == 0 && bring_up(step) == 0) broken_ = false;
}

void ConnectionManager::close() {
  pair_.reset();
  peers_.clear();
  registration_.reset();
  free_.clear();
}

int ConnectionManager::offer(std::uint32_t number) {
  ibv_sge sge{reinterpret_cast<std::uint64_t>(slot(number)), static_cast<std::uint32_t>(kRoom), registration_->lkey};
  ibv_recv_wr request{};
  request.wr_id = kArrives | generation_bits() | number;
  request.sg_list = &sge;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(pair_.get(), &request, &bad);
}

ibv_ah_attr ConnectionManager::way_to(const CmAddress& address) const {
  constexpr std::uint8_t kHops = 64;
  const Port& port = *parts_.port;
  ibv_ah_attr way{};
  way.port_num = port.number;
  way.sl = parts_.service_level;
  way.dlid = address.lid;
  // Ethernet knows addresses only; so does InfiniBand between subnets.
  way.is_global = !port.infiniband || address.gid.global.subnet_prefix != port.gid.global.subnet_prefix ? 1 : 0;
  way.grh.dgid = address.gid;
  way.grh.sgid_index = static_cast<std::uint8_t>(port.gid_index);
  way.grh.hop_limit = kHops;
  way.grh.traffic_class = parts_.traffic_class;
  return way;
}

Result<std::shared_ptr<Peer>> ConnectionManager::peer(const CmAddress& address, const std::string& rail) {
  if (const auto known = peers_.find(address.name); known != peers_.end())
    if (auto peer = known->second.lock(); peer && peer->address == address) return peer;
  std::erase_if(peers_, [](const auto& one) { return one.second.expired(); });
  ibv_ah_attr way = way_to(address);
  auto peer = std::make_shared<Peer>();
  peer->address = address;
  peer->handle = Address(parts_.library->create_ah(parts_.domain, &way), {parts_.library});
  if (!peer->handle && errno == ENOMEM)
    return Error(Status::no_memory, fmt::format("{}: the device makes no further address handle for a peer: {} (its "
                                                "limit: {}). RAILYARD_INTERFACES leaves such a device out",
                                                rail, std::strerror(errno), parts_.limits->max_ah));
  if (!peer->handle)
    return Error(Status::io, fmt::format("{}: no way to a peer's rail: {}. Do the two share a subnet or a route?", rail,
                                         std::strerror(errno)));
  peers_[address.name] = peer;
  return peer;
}

bool ConnectionManager::send(const Peer& to, std::span<const std::byte> message) {
  if (free_.empty() || message.size() > CmMessage::kMostBytes) return false;
  const std::uint32_t number = free_.back();
  std::memcpy(slot(number), message.data(), message.size());
  ibv_sge sge{reinterpret_cast<std::uint64_t>(slot(number)), static_cast<std::uint32_t>(message.size()),
              registration_->lkey};
  ibv_send_wr request{};
  request.wr_id = kLeaves | generation_bits() | number;
  request.sg_list = &sge;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.ud.ah = to.handle.get();
  request.wr.ud.remote_qpn = to.address.queue_pair;
  request.wr.ud.remote_qkey = to.address.queue_key;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(pair_.get(), &request, &bad) != 0) return false;
  free_.pop_back();
  return true;
}

std::optional<std::vector<std::byte>> ConnectionManager::take(const ibv_wc& completion) {
  if (static_cast<std::uint16_t>(completion.wr_id >> kGenerationShift) != generation_) return std::nullopt;
  const auto number = static_cast<std::uint32_t>(completion.wr_id);
  if (completion.status != IBV_WC_SUCCESS) broken_ = true;
  if ((completion.wr_id & kLeaves) == kLeaves) {
    free_.push_back(number);
    return std::nullopt;
  }
  if (completion.status != IBV_WC_SUCCESS) return std::nullopt;
  const std::size_t bytes = std::clamp<std::size_t>(completion.byte_len, kHeader, kRoom);
  std::vector<std::byte> message(slot(number) + kHeader, slot(number) + bytes);
  (void)offer(number);
  return message;
}

}  // namespace railyard::fabric::verbs
