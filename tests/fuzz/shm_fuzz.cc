/// A peer that writes whatever the fuzzer makes up: records with any kind, flags, lengths, handles, offsets and keys,
/// and any bytes in the rings, the table of owners and the header, while the provider has operations under way that
/// such a peer could answer. Nothing may crash, read or write outside what is registered or posted, or hang.
#include <fuzzer/FuzzedDataProvider.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "domain.hpp"
#include "info.hpp"
#include "protocol.hpp"
#include "shm/endpoint.hpp"

namespace {

using namespace railyard::shm;  // NOLINT(google-build-using-namespace)
namespace provider = railyard::provider;

void require(bool good) {
  if (!good) std::abort();
}

constexpr std::size_t kInputBytes = 2048;

struct Ignore final : Listener {
  void left(Inbound&, bool) override {}
  void lost(Outbound&) override {}
};

/// An endpoint of the provider, by its own calls: no libfabric in between.
class Victim {
 public:
  Victim() {
    fi_info* info = nullptr;
    require(provider::get_info(FI_VERSION(1, 17), nullptr, nullptr, 0, nullptr, &info) == 0);
    info->caps |= FI_MULTI_RECV | FI_SOURCE;
    info->domain_attr->threading = FI_THREAD_DOMAIN;
    info->domain_attr->mr_mode = FI_MR_PROV_KEY;
    require(provider::open_fabric(info->fabric_attr, &fabric_, nullptr) == 0);
    require(fi_domain(fabric_, info, &domain_, nullptr) == 0);
    fi_av_attr addresses{};
    require(fi_av_open(domain_, &addresses, &addresses_, nullptr) == 0);
    fi_cq_attr queue{};
    queue.format = FI_CQ_FORMAT_TAGGED;
    require(fi_cq_open(domain_, &queue, &queue_, nullptr) == 0);
    require(fi_endpoint(domain_, info, &endpoint_, nullptr) == 0);
    require(fi_ep_bind(endpoint_, &addresses_->fid, 0) == 0);
    require(fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV) == 0);
    require(fi_enable(endpoint_) == 0);
    free_info(info);
    memory_.fill(std::byte{0x5a});
    require(fi_mr_reg(domain_, memory_.data() + kGuard, kRegistered, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0,
                      &region_, nullptr) == 0);
  }
  ~Victim() {
    require(fi_close(&endpoint_->fid) == 0);
    require(fi_close(&region_->fid) == 0);
    require(fi_close(&queue_->fid) == 0);
    require(fi_close(&addresses_->fid) == 0);
    require(fi_close(&domain_->fid) == 0);
    require(fi_close(&fabric_->fid) == 0);
    for (std::size_t at = 0; at < kGuard; ++at)
      require(memory_[at] == std::byte{0x5a} && memory_[kGuard + kRegistered + at] == std::byte{0x5a});
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  std::string name() const {
    char text[64];
    std::size_t bytes = sizeof text;
    require(fi_getname(&endpoint_->fid, text, &bytes) == 0);
    return text;
  }
  std::uint64_t key() const { return fi_mr_key(region_); }
  void know(const std::string& peer) { require(fi_av_insert(addresses_, peer.c_str(), 1, &peer_, 0, nullptr) == 1); }
  /// Operations that a peer may answer, or not.
  void act(std::uint8_t what) {
    auto& bytes = *buffers_.emplace_back(std::make_unique<std::array<std::byte, 20'000>>());
    std::uint64_t word = 1;
    switch (what % 8) {
      case 0:
        fi_trecv(endpoint_, bytes.data(), 100, nullptr, FI_ADDR_UNSPEC, what / 8U % 4, 0, nullptr);
        break;
      case 1:
        fi_recv(endpoint_, bytes.data(), bytes.size(), nullptr, FI_ADDR_UNSPEC, nullptr);
        break;
      case 2:
        fi_read(endpoint_, bytes.data(), 5000, nullptr, peer_, 0, 1, nullptr);
        break;
      case 3:
        fi_fetch_atomic(endpoint_, &word, 1, nullptr, bytes.data(), nullptr, peer_, 0, 1, FI_UINT64, FI_SUM, nullptr);
        break;
      case 4: {
        const iovec iov{bytes.data(), bytes.size()};
        fi_msg message{};
        message.msg_iov = &iov;
        message.iov_count = 1;
        message.addr = what < 128 ? peer_ : FI_ADDR_UNSPEC;
        if (what < 128) {
          fi_sendmsg(endpoint_, &message, FI_DELIVERY_COMPLETE);
        } else {
          fi_recvmsg(endpoint_, &message, FI_MULTI_RECV);
        }
        break;
      }
      case 5:
        fi_write(endpoint_, bytes.data(), bytes.size(), nullptr, peer_, 0, 1, nullptr);
        break;
      case 6: {
        fi_msg_tagged message{};
        message.addr = FI_ADDR_UNSPEC;
        message.ignore = what < 128 ? ~std::uint64_t{0} : 0;
        fi_trecvmsg(endpoint_, &message, what % 16 < 8 ? FI_PEEK | FI_DISCARD : FI_PEEK | FI_CLAIM);
        break;
      }
      default:
        fi_tsend(endpoint_, long_message().data(), long_message().size(), nullptr, peer_, what, nullptr);
    }
  }
  /// Enough of them: the rest of the input is for the peer.
  bool full() const { return buffers_.size() > 64; }
  void progress() {
    for (int pass = 0; pass < 4; ++pass) {
      std::array<fi_cq_tagged_entry, 8> entries;
      if (fi_cq_read(queue_, entries.data(), entries.size()) != -FI_EAVAIL) continue;
      fi_cq_err_entry error{};
      require(fi_cq_readerr(queue_, &error, 0) == 1 && error.err != 0);
    }
  }

 private:
  static constexpr std::size_t kGuard = 4096;
  static constexpr std::size_t kRegistered = 16 * 1024;

  static const std::vector<std::byte>& long_message() {
    static const std::vector<std::byte> bytes(200'000);
    return bytes;
  }
  static void free_info(fi_info* info) {
    std::free(info->domain_attr->name);
    std::free(info->fabric_attr->name);
    for (void* part :
         {static_cast<void*>(info->tx_attr), static_cast<void*>(info->rx_attr), static_cast<void*>(info->ep_attr),
          static_cast<void*>(info->domain_attr), static_cast<void*>(info->fabric_attr), info->src_addr, info->dest_addr,
          static_cast<void*>(info)})
      std::free(part);
  }

  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_cq* queue_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fid_mr* region_ = nullptr;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::array<std::byte, 2 * kGuard + kRegistered> memory_;
  std::vector<std::unique_ptr<std::array<std::byte, 20'000>>> buffers_;
};

/// Numbers that mean something there: small ones, handles, sizes around limits, or anything.
std::uint64_t number(FuzzedDataProvider& data, std::uint64_t key) {
  switch (data.ConsumeIntegralInRange(0, 5)) {
    case 0:
      return data.ConsumeIntegralInRange<std::uint64_t>(0, 16);
    case 1:
      return data.ConsumeIntegralInRange<std::uint64_t>(1, 6) << 32 | data.ConsumeIntegralInRange<std::uint64_t>(0, 8);
    case 2:
      return key;
    case 3:
      return data.ConsumeIntegralInRange<std::uint64_t>(0, 70'000);
    case 4:
      return ~std::uint64_t{0} - data.ConsumeIntegralInRange<std::uint64_t>(0, 8);
    default:
      return data.ConsumeIntegral<std::uint64_t>();
  }
}

void send_record(FuzzedDataProvider& data, Outbound& out, std::uint64_t key) {
  const bool in_first = data.ConsumeBool();
  const auto bytes = data.ConsumeIntegralInRange<std::uint32_t>(
      0, in_first ? static_cast<std::uint32_t>(Record::kShort) : static_cast<std::uint32_t>(out.most_payload()));
  Reservation reservation;
  if (in_first) {
    reservation.record = out.reserve_line();
  } else {
    reservation = out.reserve(bytes);
  }
  if (reservation.record == nullptr) return;
  for (std::uint64_t& argument : reservation.record->arguments) argument = number(data, key);
  for (std::uint64_t& more : reservation.record->more) more = number(data, key);
  const std::vector<std::uint8_t> payload = data.ConsumeBytes<std::uint8_t>(std::min<std::size_t>(bytes, 64));
  std::byte* const to = in_first ? reservation.record->payload.data() : reservation.payload;
  // Where the payload lies in the line, `more` does too: sometimes the one, sometimes the other.
  if (!payload.empty() && (!in_first || data.ConsumeBool())) std::memcpy(to, payload.data(), payload.size());
  std::uint32_t said = bytes;
  if (data.ConsumeIntegralInRange(0, 31) == 0) said = data.ConsumeIntegral<std::uint32_t>();
  out.publish({.bytes = said,
               .kind = data.ConsumeIntegralInRange<std::uint8_t>(0, 12),
               .flags = static_cast<std::uint8_t>((in_first ? Word::kInFirst : 0) |
                                                  data.ConsumeIntegralInRange<std::uint8_t>(0, 0x7f))});
}

/// Any bytes where a peer can write: rings, the control of a ring, owners, header.
void poke(FuzzedDataProvider& data, const PeerObject& object, const Mapping& ring) {
  const std::vector<std::uint8_t> bytes =
      data.ConsumeBytes<std::uint8_t>(data.ConsumeIntegralInRange<std::size_t>(1, 32));
  if (bytes.empty()) return;
  std::byte* to = nullptr;
  switch (data.ConsumeIntegralInRange(0, 4)) {
    case 0:
      to = ring.data() + data.ConsumeIntegralInRange<std::size_t>(0, 1024);
      break;
    case 1:
      to = ring.data() + data.ConsumeIntegralInRange<std::size_t>(0, ring.size() - bytes.size());
      break;
    case 2:
      to = reinterpret_cast<std::byte*>(object.controls()) +
           data.ConsumeIntegralInRange<std::size_t>(0, 2 * sizeof(RingControl));
      break;
    case 3:
      to = reinterpret_cast<std::byte*>(object.owners()) + data.ConsumeIntegralInRange<std::size_t>(0, 64);
      break;
    default:
      to = reinterpret_cast<std::byte*>(&object.header()) + data.ConsumeIntegralInRange<std::size_t>(0, 512);
  }
  std::memcpy(to, bytes.data(), bytes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  // What the input begins a generator goes on with: short inputs say a lot from the first second on.
  std::vector<std::uint8_t> input(bytes, bytes + size);
  std::minstd_rand more(static_cast<std::uint32_t>(
      std::hash<std::string_view>{}(std::string_view(reinterpret_cast<const char*>(bytes), size))));
  while (input.size() < kInputBytes) input.push_back(static_cast<std::uint8_t>(more() >> 8));
  FuzzedDataProvider data(input.data(), input.size());
  Victim victim;
  Ignore ignore;
  auto peer = Endpoint::open({}, ignore);
  require(peer.ok());
  const std::string address = victim.name();
  railyard::Identity identity;
  for (std::size_t index = 0; index < identity.bytes.size(); ++index)
    identity.bytes[index] = static_cast<std::uint8_t>(
        std::strtoul(address.substr(address.size() - 32 + index * 2, 2).c_str(), nullptr, 16));
  auto out = (*peer)->connect_identity(identity);
  auto object = PeerObject::open_identity(kDefaultDirectory, identity);
  require(out.ok() && object.ok());
  auto ring = object->map_ring(0);
  require(ring.ok());
  victim.know("fi_railyard://" + (*peer)->identity().text());
  const bool pokes = data.ConsumeBool();
  for (int step = 0; step < 64 && data.remaining_bytes() > 0; ++step) {
    const int what = data.ConsumeIntegralInRange(0, 9);
    if (what < 6) {
      if (!(*out)->gone()) send_record(data, **out, victim.key());
    } else if (what < 8) {
      if (!victim.full()) victim.act(data.ConsumeIntegral<std::uint8_t>());
    } else if (what == 8 && pokes) {
      poke(data, *object, *ring);
    } else {
      (*peer)->poll([](Inbound&, const Arrival&) { return true; });
    }
    victim.progress();
    if ((*out)->gone()) break;
  }
  victim.progress();
  return 0;
}
