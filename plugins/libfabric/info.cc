#include "info.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "addresses.hpp"
#include "domain.hpp"
#include "log.hpp"

namespace railyard::provider {

namespace {

constexpr std::uint64_t kTransmitCaps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE;
constexpr std::uint64_t kReceiveCaps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_RECV | FI_REMOTE_READ |
                                       FI_REMOTE_WRITE | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_RMA_EVENT;
constexpr std::uint64_t kDomainCaps = FI_LOCAL_COMM | FI_REMOTE_COMM;
constexpr std::uint64_t kCaps = kTransmitCaps | kReceiveCaps | kDomainCaps;
/// What a program gets only if it asks: each costs a little.
constexpr std::uint64_t kOnRequest = FI_DIRECTED_RECV | FI_SOURCE | FI_RMA_EVENT | FI_MULTI_RECV;

constexpr std::uint64_t kOrders = FI_ORDER_SAS | FI_ORDER_SAW | FI_ORDER_SAR | FI_ORDER_RAS | FI_ORDER_RAW |
                                  FI_ORDER_RAR | FI_ORDER_WAS | FI_ORDER_WAW | FI_ORDER_WAR | FI_ORDER_RMA_RAW |
                                  FI_ORDER_RMA_WAW | FI_ORDER_RMA_WAR | FI_ORDER_RMA_RAR | FI_ORDER_ATOMIC_RAW |
                                  FI_ORDER_ATOMIC_WAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_RAR;
constexpr std::uint64_t kTransmitFlags =
    FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;
constexpr std::uint64_t kReceiveFlags = FI_COMPLETION | FI_MULTI_RECV;
constexpr int kRegistrationModes = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_RMA_EVENT;
/// Tags of 64 bits without structure.
constexpr std::uint64_t kAnyTag = 0xaaaa'aaaa'aaaa'aaaa;
// Values that programs of an older interface use; newer headers complain about their names.
constexpr int kModeBasic = 1;
constexpr int kModeScalable = 2;
constexpr std::uint64_t kNoOrder = 0;
constexpr std::size_t kManyObjects = 1024;
constexpr std::size_t kReceives = 65536;

/// Room beyond today's fields: a newer libfabric looks at fields that these headers do not know.
template <typename Attributes>
Attributes* allocate() {
  constexpr std::size_t kRoom = 1024;
  static_assert(sizeof(Attributes) <= kRoom);
  return static_cast<Attributes*>(std::calloc(1, kRoom));
}

char* duplicate(const std::string& text) { return ::strdup(text.c_str()); }

bool within(std::uint64_t wanted, std::uint64_t offered) { return (wanted & ~offered) == 0; }
bool named(const char* wanted) { return wanted == nullptr || std::strcmp(wanted, kProviderName) == 0; }

/// One thing the hints ask for. Says so where it cannot be had: fi_getinfo itself only knows "no".
bool can(bool good, const char* what, std::uint64_t asked, std::uint64_t offered) {
  if (!good) tell(fmt::format("hints ask for {} {:#x}; offered is {:#x}", what, asked, offered));
  return good;
}
bool has_bits(const char* what, std::uint64_t asked, std::uint64_t offered) {
  return can(within(asked, offered), what, asked, offered);
}
bool at_most(const char* what, std::uint64_t asked, std::uint64_t offered) {
  return can(asked <= offered, what, asked, offered);
}
bool is_ours(const char* what, const char* asked) {
  if (named(asked)) return true;
  tell(fmt::format("hints ask for the {} '{}'; this is '{}'", what, asked, kProviderName));
  return false;
}

bool endpoint_fits(const fi_ep_attr* wanted) {
  if (wanted == nullptr) return true;
  return can(wanted->type == FI_EP_UNSPEC || wanted->type == FI_EP_RDM, "ep_attr->type",
             static_cast<std::uint64_t>(wanted->type), FI_EP_RDM) &&
         can(wanted->protocol == FI_PROTO_UNSPEC, "ep_attr->protocol", wanted->protocol, FI_PROTO_UNSPEC) &&
         at_most("ep_attr->protocol_version", wanted->protocol_version, 1) &&
         at_most("ep_attr->msg_prefix_size", wanted->msg_prefix_size, 0) &&
         at_most("ep_attr->tx_ctx_cnt", wanted->tx_ctx_cnt, 1) &&
         at_most("ep_attr->rx_ctx_cnt", wanted->rx_ctx_cnt, 1) &&
         at_most("ep_attr->auth_key_size", wanted->auth_key_size, 0);
}

bool transmit_fits(const fi_tx_attr* wanted) {
  if (wanted == nullptr) return true;
  return has_bits("tx_attr->caps", wanted->caps, kTransmitCaps | kDomainCaps) &&
         has_bits("tx_attr->op_flags", wanted->op_flags, kTransmitFlags) &&
         has_bits("tx_attr->msg_order", wanted->msg_order, kOrders) &&
         has_bits("tx_attr->comp_order", wanted->comp_order, kNoOrder) &&
         at_most("tx_attr->inject_size", wanted->inject_size, kInjectBytes) &&
         at_most("tx_attr->size", wanted->size, kTransmits) &&
         at_most("tx_attr->iov_limit", wanted->iov_limit, kMostIov) &&
         at_most("tx_attr->rma_iov_limit", wanted->rma_iov_limit, kMostRemoteIov);
}

bool receive_fits(const fi_rx_attr* wanted) {
  if (wanted == nullptr) return true;
  return has_bits("rx_attr->caps", wanted->caps, kReceiveCaps | kDomainCaps) &&
         has_bits("rx_attr->op_flags", wanted->op_flags, kReceiveFlags) &&
         has_bits("rx_attr->msg_order", wanted->msg_order, kOrders) &&
         has_bits("rx_attr->comp_order", wanted->comp_order, kNoOrder) &&
         at_most("rx_attr->size", wanted->size, kReceives) &&
         at_most("rx_attr->iov_limit", wanted->iov_limit, kMostIov) &&
         at_most("rx_attr->total_buffered_recv", wanted->total_buffered_recv, 0);
}

bool domain_fits(const fi_domain_attr* wanted) {
  if (wanted == nullptr) return true;
  return is_ours("domain_attr->name", wanted->name) &&
         can(wanted->data_progress != FI_PROGRESS_AUTO, "domain_attr->data_progress", FI_PROGRESS_AUTO,
             FI_PROGRESS_MANUAL) &&
         at_most("domain_attr->cq_data_size", wanted->cq_data_size, 8) &&
         at_most("domain_attr->mr_key_size", wanted->mr_key_size, 8) &&
         at_most("domain_attr->mr_iov_limit", wanted->mr_iov_limit, 1) &&
         at_most("domain_attr->cq_cnt", wanted->cq_cnt, kManyObjects) &&
         at_most("domain_attr->ep_cnt", wanted->ep_cnt, kManyObjects) &&
         at_most("domain_attr->cntr_cnt", wanted->cntr_cnt, kManyObjects) &&
         at_most("domain_attr->tx_ctx_cnt", wanted->tx_ctx_cnt, kManyObjects) &&
         at_most("domain_attr->rx_ctx_cnt", wanted->rx_ctx_cnt, kManyObjects) &&
         at_most("domain_attr->max_ep_tx_ctx", wanted->max_ep_tx_ctx, 1) &&
         at_most("domain_attr->max_ep_rx_ctx", wanted->max_ep_rx_ctx, 1) &&
         at_most("domain_attr->max_ep_stx_ctx", wanted->max_ep_stx_ctx, 0) &&
         at_most("domain_attr->max_ep_srx_ctx", wanted->max_ep_srx_ctx, 0) &&
         has_bits("domain_attr->caps", wanted->caps, kDomainCaps) &&
         at_most("domain_attr->auth_key_size", wanted->auth_key_size, 0);
}

bool fits(const fi_info* hints) {
  if (hints == nullptr) return true;
  const bool address = hints->addr_format == FI_FORMAT_UNSPEC || hints->addr_format == FI_ADDR_STR;
  const fi_fabric_attr* fabric = hints->fabric_attr;
  // Whose provider is asked for comes first: of another's hints there is nothing to say.
  return (fabric == nullptr || (named(fabric->prov_name) && is_ours("fabric_attr->name", fabric->name))) &&
         can(address, "addr_format", hints->addr_format, FI_ADDR_STR) && has_bits("caps", hints->caps, kCaps) &&
         endpoint_fits(hints->ep_attr) && transmit_fits(hints->tx_attr) && receive_fits(hints->rx_attr) &&
         domain_fits(hints->domain_attr);
}

/// What is granted of one side's capabilities: what was asked, and the directions that go with it.
std::uint64_t side_caps(std::uint64_t asked, std::uint64_t offered) {
  if (asked == 0) return offered & ~kOnRequest;
  std::uint64_t granted = asked & offered;
  const std::uint64_t directions =
      granted & (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
  if (directions == 0) {
    if ((granted & (FI_MSG | FI_TAGGED)) != 0) granted |= offered & (FI_SEND | FI_RECV);
    if ((granted & (FI_RMA | FI_ATOMIC)) != 0)
      granted |= offered & (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
  }
  return granted;
}

template <typename Number>
Number chosen(Number wanted, Number usual) {
  return wanted != 0 ? wanted : usual;
}

int registration_mode(std::uint32_t version, const fi_info* hints) {
  const int wanted = hints != nullptr && hints->domain_attr != nullptr ? hints->domain_attr->mr_mode : 0;
  if (FI_VERSION_LT(version, FI_VERSION(1, 5))) return wanted == 0 ? kModeScalable : wanted;
  if (wanted == kModeBasic || wanted == kModeScalable) return wanted;
  // Binding is asked of a program only on request: nothing here needs it, and it is there to be tested against.
  const char* const bind = std::getenv("FI_RAILYARD_MR_ENDPOINT");
  const bool binds = bind != nullptr && std::strcmp(bind, "1") == 0;
  return wanted & (kRegistrationModes | (binds ? FI_MR_ENDPOINT : 0));
}

bool allocate_all(fi_info& info) {
  info.tx_attr = allocate<fi_tx_attr>();
  info.rx_attr = allocate<fi_rx_attr>();
  info.ep_attr = allocate<fi_ep_attr>();
  info.domain_attr = allocate<fi_domain_attr>();
  info.fabric_attr = allocate<fi_fabric_attr>();
  if (info.tx_attr == nullptr || info.rx_attr == nullptr || info.ep_attr == nullptr || info.domain_attr == nullptr ||
      info.fabric_attr == nullptr)
    return false;
  info.domain_attr->name = duplicate(kProviderName);
  info.fabric_attr->name = duplicate(kProviderName);
  // libfabric itself puts the provider's name in.
  return info.domain_attr->name != nullptr && info.fabric_attr->name != nullptr;
}

void free_all(fi_info* info) {
  if (info->domain_attr != nullptr) std::free(info->domain_attr->name);
  if (info->fabric_attr != nullptr) std::free(info->fabric_attr->name);
  for (void* part : {static_cast<void*>(info->tx_attr), static_cast<void*>(info->rx_attr),
                     static_cast<void*>(info->ep_attr), static_cast<void*>(info->domain_attr),
                     static_cast<void*>(info->fabric_attr), info->src_addr, info->dest_addr, static_cast<void*>(info)})
    std::free(part);
}

void fill_caps(fi_info& info, const fi_info* hints) {
  const std::uint64_t asked = hints != nullptr ? hints->caps : 0;
  const std::uint64_t asked_transmit = hints != nullptr && hints->tx_attr != nullptr ? hints->tx_attr->caps : 0;
  const std::uint64_t asked_receive = hints != nullptr && hints->rx_attr != nullptr ? hints->rx_attr->caps : 0;
  const std::uint64_t both = asked == 0 ? asked_transmit | asked_receive : asked;
  info.tx_attr->caps = side_caps(asked_transmit != 0 ? asked_transmit : both, kTransmitCaps);
  info.rx_attr->caps = side_caps(asked_receive != 0 ? asked_receive : both, kReceiveCaps);
  // Only one direction was asked for: the other side has nothing to do.
  const std::uint64_t directions = both & (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
  if (directions != 0) {
    info.tx_attr->caps &= directions | ~std::uint64_t{FI_SEND | FI_READ | FI_WRITE};
    info.rx_attr->caps &= directions | ~std::uint64_t{FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE};
  }
  info.domain_attr->caps = kDomainCaps;
  info.caps = info.tx_attr->caps | info.rx_attr->caps | kDomainCaps;
}

void fill_transmit(fi_tx_attr& to, const fi_info* hints) {
  const fi_tx_attr wanted = hints != nullptr && hints->tx_attr != nullptr ? *hints->tx_attr : fi_tx_attr{};
  to.op_flags = wanted.op_flags;
  to.msg_order = kOrders;
  to.comp_order = kNoOrder;
  to.inject_size = chosen(wanted.inject_size, kInjectBytes);
  to.size = chosen(wanted.size, kTransmits / 4);
  to.iov_limit = kMostIov;
  to.rma_iov_limit = kMostRemoteIov;
  to.tclass = wanted.tclass;
}

void fill_receive(fi_rx_attr& to, const fi_info* hints) {
  const fi_rx_attr wanted = hints != nullptr && hints->rx_attr != nullptr ? *hints->rx_attr : fi_rx_attr{};
  to.op_flags = wanted.op_flags;
  to.msg_order = kOrders;
  to.comp_order = kNoOrder;
  to.size = chosen(wanted.size, kTransmits / 4);
  to.iov_limit = kMostIov;
}

void fill_endpoint(fi_ep_attr& to, const fi_info* hints) {
  to.type = FI_EP_RDM;
  to.protocol = FI_PROTO_UNSPEC;
  to.protocol_version = 1;
  to.max_msg_size = SIZE_MAX;
  to.max_order_raw_size = SIZE_MAX;
  to.max_order_war_size = SIZE_MAX;
  to.max_order_waw_size = SIZE_MAX;
  const std::uint64_t wanted = hints != nullptr && hints->ep_attr != nullptr ? hints->ep_attr->mem_tag_format : 0;
  to.mem_tag_format = chosen(wanted, kAnyTag);
  to.tx_ctx_cnt = 1;
  to.rx_ctx_cnt = 1;
}

void fill_domain(fi_domain_attr& to, std::uint32_t version, const fi_info* hints) {
  const fi_domain_attr wanted =
      hints != nullptr && hints->domain_attr != nullptr ? *hints->domain_attr : fi_domain_attr{};
  to.threading = wanted.threading != FI_THREAD_UNSPEC ? wanted.threading : FI_THREAD_SAFE;
  to.control_progress = wanted.control_progress != FI_PROGRESS_UNSPEC ? wanted.control_progress : FI_PROGRESS_AUTO;
  to.data_progress = FI_PROGRESS_MANUAL;
  to.resource_mgmt = FI_RM_ENABLED;
  to.av_type = wanted.av_type;
  to.mr_mode = registration_mode(version, hints);
  to.mr_key_size = 8;
  to.cq_data_size = 8;
  to.cq_cnt = kManyObjects;
  to.ep_cnt = kManyObjects;
  to.tx_ctx_cnt = kManyObjects;
  to.rx_ctx_cnt = kManyObjects;
  to.max_ep_tx_ctx = 1;
  to.max_ep_rx_ctx = 1;
  to.cntr_cnt = kManyObjects;
  to.mr_iov_limit = 1;
  to.mr_cnt = 65535;
  to.tclass = wanted.tclass;
}

bool set_address(void*& address, std::size_t& bytes, const std::string& text) {
  address = duplicate(text);
  bytes = text.size() + 1;
  return address != nullptr;
}
bool copy_address(void*& address, std::size_t& bytes, const void* from, std::size_t from_bytes) {
  if (from == nullptr || from_bytes == 0) return true;
  const char* const text = static_cast<const char*>(from);
  return set_address(address, bytes, std::string(text, ::strnlen(text, from_bytes)));
}

bool fill_addresses(fi_info& info, const char* node, const char* service, std::uint64_t flags, const fi_info* hints) {
  const bool given = node != nullptr || service != nullptr;
  const bool source = given && (flags & FI_SOURCE) != 0;
  const bool destination = given && !source;
  info.addr_format = FI_ADDR_STR;
  bool good = true;
  // Without a name an endpoint has its identity, which it gets when it is enabled. So it is with a host's address
  // alone: several endpoints may be opened with it.
  const std::string unnamed = std::string(kIdentityPrefix) + std::string(32, '0');
  const bool hinted = hints != nullptr && hints->src_addr != nullptr && hints->src_addrlen != 0;
  if (source && (service != nullptr || is_address(node))) {
    good = set_address(info.src_addr, info.src_addrlen, address_text(node, service));
  } else if (source || !hinted) {
    good = set_address(info.src_addr, info.src_addrlen, unnamed);
  }
  if (destination) good = set_address(info.dest_addr, info.dest_addrlen, address_text(node, service));
  if (hints == nullptr) return good;
  if (!source && hinted)
    good = good && copy_address(info.src_addr, info.src_addrlen, hints->src_addr, hints->src_addrlen);
  if (!destination)
    good = good && copy_address(info.dest_addr, info.dest_addrlen, hints->dest_addr, hints->dest_addrlen);
  return good;
}

}  // namespace

int plain_registration_mode(int mode) {
  if (mode == kModeBasic) return FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  return mode == kModeScalable ? 0 : mode;
}

int get_info(std::uint32_t version, const char* node, const char* service, std::uint64_t flags, const fi_info* hints,
             fi_info** result) {
  *result = nullptr;
  if (!fits(hints)) return -FI_ENODATA;
  if (node != nullptr && (flags & FI_SOURCE) == 0 && !is_here(node, service)) {
    tell(fmt::format("'{}' is no address of this host, and nobody here goes by that name", node));
    return -FI_ENODATA;
  }
  auto* info = allocate<fi_info>();
  if (info == nullptr) return -FI_ENOMEM;
  if (!allocate_all(*info) || !fill_addresses(*info, node, service, flags, hints)) {
    free_all(info);
    return -FI_ENOMEM;
  }
  fill_caps(*info, hints);
  fill_transmit(*info->tx_attr, hints);
  fill_receive(*info->rx_attr, hints);
  fill_endpoint(*info->ep_attr, hints);
  fill_domain(*info->domain_attr, version, hints);
  info->fabric_attr->api_version = version;
  info->fabric_attr->prov_version = FI_VERSION(0, 1);
  *result = info;
  return 0;
}

}  // namespace railyard::provider
