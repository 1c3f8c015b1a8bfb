/// Datagrams: no answer, no order, no promise; each brings the sender's address in front of it.
#include <algorithm>
#include <cstring>

#include "doubles/verbs/core.hpp"

namespace railyard::verbs_double {

namespace {

constexpr std::size_t kHeaderBytes = 40;
constexpr std::uint32_t kOwnQueueKey = 0x80000000;
/// One that waits to be overtaken goes after this long in any case.
constexpr auto kOvertakeTime = std::chrono::milliseconds(10);

std::size_t bytes_of(ibv_mtu mtu) { return std::size_t{128} << static_cast<unsigned>(mtu); }

/// The global route header; over IPv4 only its last 20 bytes are defined, and hold the IPv4 header.
std::array<std::byte, kHeaderBytes> header(const Datagram& datagram) {
  std::array<std::byte, kHeaderBytes> bytes{};
  const ibv_gid& from = datagram.source.gid;
  const ibv_gid& to = datagram.to.grh.dgid;
  const bool ipv4 = datagram.source.type == IBV_GID_TYPE_ROCE_V2 && from.raw[10] == 0xff && from.raw[11] == 0xff;
  if (ipv4) {
    bytes.fill(std::byte{0xa5});
    bytes[20] = std::byte{0x45};
    std::memcpy(&bytes[32], &from.raw[12], 4);
    std::memcpy(&bytes[36], &to.raw[12], 4);
  } else if (datagram.to.is_global != 0) {
    bytes[0] = std::byte{0x60};
    std::memcpy(&bytes[8], from.raw, sizeof from.raw);
    std::memcpy(&bytes[24], to.raw, sizeof to.raw);
  } else {
    bytes.fill(std::byte{0xa5});
  }
  return bytes;
}

}  // namespace

Core::Verdict Core::launch(QueuePair& pair, WorkRequest& request) {
  Device& device = *pair.owner;
  const auto* const handle = reinterpret_cast<const AddressHandle*>(request.remote_address);
  if (!living.contains(handle) || handle->pd != pair.pd) {
    violation("a datagram to an address handle that is not there, or of another domain");
    return {Verdict::Kind::failed, IBV_WC_LOC_QP_OP_ERR};
  }
  if (request.length > bytes_of(device.options.active_mtu)) return {Verdict::Kind::failed, IBV_WC_LOC_LEN_ERR};
  const std::byte* source = request.inline_bytes();
  if ((request.flags & IBV_SEND_INLINE) == 0 && request.length != 0) {
    source = local(pair, request.lkey, request.address, request.length, false).memory;
    if (source == nullptr) return {Verdict::Kind::failed, IBV_WC_LOC_PROT_ERR};
  }
  Datagram datagram;
  datagram.from = &device;
  const Port& port = device.ports[pair.settings.port_num - 1u];
  datagram.source = port.gids[handle->attributes.is_global != 0 ? handle->attributes.grh.sgid_index : 0u];
  datagram.source_lid = port.lid;
  datagram.source_qp = pair.qp_num;
  datagram.to = handle->attributes;
  datagram.qp_num = request.rkey;
  datagram.queue_key = static_cast<std::uint32_t>(request.compare_add);
  if ((datagram.queue_key & kOwnQueueKey) != 0) datagram.queue_key = pair.settings.qkey;
  datagram.with_immediate = request.opcode == IBV_WR_SEND_WITH_IMM;
  datagram.immediate = request.immediate;
  datagram.bytes.assign(source, source + request.length);

  DatagramFaults& faults = device.faults;
  ++device.traffic.datagrams_sent;
  if (faults.record) faults.recorded.push_back(datagram.bytes);
  bool lost = false;
  if (faults.lose_next > 0) {
    --faults.lose_next;
    lost = true;
  } else if (faults.lose_every > 0 && ++faults.since_lost >= faults.lose_every) {
    faults.since_lost = 0;
    lost = true;
  }
  if (lost) {
    ++device.traffic.datagrams_lost;
    return {Verdict::Kind::done};
  }
  datagram.due = faults.delay.count() == 0 ? Clock::time_point{} : Clock::now() + faults.delay;
  if (faults.swap_next > 0) {
    --faults.swap_next;
    datagram.overtaken = true;
    datagram.due = Clock::now() + kOvertakeTime;
  } else {
    // This one overtakes whoever waits for it.
    const auto waits =
        std::find_if(flying.begin(), flying.end(), [&](const Datagram& other) { return other.overtaken; });
    if (waits != flying.end()) {
      Datagram late = std::move(*waits);
      flying.erase(waits);
      late.overtaken = false;
      late.due = datagram.due;
      flying.push_back(std::move(datagram));
      flying.push_back(std::move(late));
      waiting.fetch_add(1, std::memory_order_relaxed);
      return {Verdict::Kind::done};
    }
  }
  const bool twice = faults.duplicate_next > 0;
  if (twice) {
    --faults.duplicate_next;
    flying.push_back(datagram);
    waiting.fetch_add(1, std::memory_order_relaxed);
  }
  flying.push_back(std::move(datagram));
  waiting.fetch_add(1, std::memory_order_relaxed);
  return {Verdict::Kind::done};
}

void Core::land_datagrams() {
  if (flying.empty()) return;
  const Clock::time_point now = Clock::now();
  for (auto datagram = flying.begin(); datagram != flying.end();) {
    const Destination destination = find(datagram->to, *datagram->from);
    if (datagram->due > now || (destination.device != nullptr && destination.device->frozen)) {
      ++datagram;
      continue;
    }
    land(*datagram);
    datagram = flying.erase(datagram);
    waiting.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Core::land(const Datagram& datagram) {
  const Destination destination = find(datagram.to, *datagram.from);
  if (!path_open(*datagram.from, datagram.to.port_num, destination)) return;
  Traffic& traffic = destination.device->traffic;
  const auto found = destination.device->pairs.find(datagram.qp_num);
  QueuePair* const pair = found == destination.device->pairs.end() ? nullptr : found->second;
  const bool hears = pair != nullptr && !pair->connected() && (pair->now == IBV_QPS_RTR || pair->now == IBV_QPS_RTS) &&
                     destination.device->port(pair->settings.port_num) == destination.port;
  const ReceiveRequest* const receive =
      hears && pair->settings.qkey == datagram.queue_key ? pair->receive_queue().oldest() : nullptr;
  const std::size_t bytes = kHeaderBytes + datagram.bytes.size();
  if (receive == nullptr || receive->length < bytes) {
    ++traffic.datagrams_refused;
    return;
  }
  Completion completion{};
  completion.opcode = IBV_WC_RECV;
  std::byte* const target = local(*pair, receive->lkey, receive->address, receive->length, true).memory;
  if (target == nullptr) {
    completion.status = IBV_WC_LOC_PROT_ERR;
    complete_receive(*pair, *receive, completion);
    to_error(*pair);
    return;
  }
  const auto head = header(datagram);
  std::memcpy(target, head.data(), head.size());
  std::memcpy(target + kHeaderBytes, datagram.bytes.data(), datagram.bytes.size());
  completion.bytes = static_cast<std::uint32_t>(bytes);
  completion.source_qp = datagram.source_qp;
  completion.source_lid = datagram.source_lid;
  if (datagram.to.is_global != 0) completion.flags = IBV_WC_GRH;
  if (datagram.with_immediate) {
    completion.flags |= IBV_WC_WITH_IMM;
    completion.immediate = datagram.immediate;
  }
  ++traffic.datagrams_received;
  complete_receive(*pair, *receive, completion);
}

}  // namespace railyard::verbs_double
