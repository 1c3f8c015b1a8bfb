#include "addresses.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/fd.hpp"
#include "log.hpp"
#include "shm/object.hpp"

namespace railyard::provider {

namespace {

bool of_this_host(const sockaddr* address, socklen_t bytes) {
  if (address->sa_family == AF_INET) {
    const std::uint32_t number = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
    if (number >> 24 == IN_LOOPBACKNET) return true;
  }
  // Only a host's own address can be bound.
  const Fd probe(::socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return probe && ::bind(probe.get(), address, bytes) == 0;
}

}  // namespace

bool is_address(const char* text) {
  if (text == nullptr) return false;
  const std::string_view address(text);
  return address.starts_with(kNamePrefix) || address.starts_with(kIdentityPrefix);
}

bool is_here(const char* node, const char* service) {
  if (is_address(node)) return true;
  if (shm::PeerObject::open_name(shm::kDefaultDirectory, address_text(node, service))) return true;
  addrinfo* found = nullptr;
  if (::getaddrinfo(node, nullptr, nullptr, &found) != 0) return false;
  bool here = false;
  for (const addrinfo* each = found; each != nullptr && !here; each = each->ai_next)
    here = of_this_host(each->ai_addr, each->ai_addrlen);
  ::freeaddrinfo(found);
  return here;
}

std::string address_text(const char* node, const char* service) {
  // A name that was asked for before comes back whole.
  for (const char* text : {node, service})
    if (is_address(text)) return text;
  std::string address(kNamePrefix);
  if (node != nullptr) address += node;
  if (node != nullptr && service != nullptr) address += ':';
  if (service != nullptr) address += service;
  return address;
}

fi_addr_t Addresses::insert(std::string address) {
  ++generation;
  if (const auto it = numbers.find(address); it != numbers.end()) {
    ++inserts[it->second];
    return it->second;
  }
  std::size_t number = 0;
  // The lowest free number, so that a table that is emptied and filled again looks the same.
  if (numbers.size() == entries.size()) {
    number = entries.size();
    entries.emplace_back();
    inserts.emplace_back();
  } else {
    while (!entries[number].empty()) ++number;
  }
  entries[number] = address;
  inserts[number] = 1;
  numbers.emplace(std::move(address), number);
  return number;
}

namespace {

bool valid(std::string_view address) {
  return address.starts_with(kNamePrefix) ||
         (address.starts_with(kIdentityPrefix) && address.size() == kIdentityPrefix.size() + 32);
}

int insert_addresses(fid_av* fid, const void* list, std::size_t count, fi_addr_t* numbers, std::uint64_t flags,
                     void* context) {
  auto* addresses = object_of<Addresses>(fid);
  if ((flags & ~static_cast<std::uint64_t>(FI_MORE | FI_SYNC_ERR)) != 0)
    return refuse(-FI_EBADFLAGS, fmt::format("fi_av_insert: flags {:#x} are not offered", flags));
  if (list == nullptr || ((flags & FI_SYNC_ERR) != 0 && context == nullptr))
    return refuse(-FI_EINVAL, "fi_av_insert: no addresses, or FI_SYNC_ERR without room for the answers");
  Guard guard(addresses->domain.lock);
  Guard inner(addresses->domain.tables);
  const char* text = static_cast<const char*>(list);
  int inserted = 0;
  for (std::size_t index = 0; index < count; ++index) {
    const std::string_view address(text);
    const bool good = valid(address);
    if (!good)
      refuse(0, fmt::format("'{}' is no address: one begins with {} or {}", address, kIdentityPrefix, kNamePrefix));
    const fi_addr_t number = good ? addresses->insert(std::string(address)) : FI_ADDR_NOTAVAIL;
    if (numbers != nullptr) numbers[index] = number;
    if ((flags & FI_SYNC_ERR) != 0) static_cast<int*>(context)[index] = good ? 0 : FI_EADDRNOTAVAIL;
    inserted += good ? 1 : 0;
    text += address.size() + 1;
  }
  return inserted;
}

int insert_service(fid_av* fid, const char* node, const char* service, fi_addr_t* number, std::uint64_t flags,
                   void* context) {
  if (node == nullptr && service == nullptr) return refuse(-FI_EINVAL, "fi_av_insertsvc: neither node nor service");
  return insert_addresses(fid, address_text(node, service).c_str(), 1, number, flags, context);
}

int remove_addresses(fid_av* fid, fi_addr_t* numbers, std::size_t count, std::uint64_t flags) {
  auto* addresses = object_of<Addresses>(fid);
  if (flags != 0) return refuse(-FI_EBADFLAGS, "fi_av_remove takes no flags");
  Guard guard(addresses->domain.lock);
  Guard inner(addresses->domain.tables);
  ++addresses->generation;
  int result = 0;
  for (std::size_t index = 0; index < count; ++index) {
    const fi_addr_t number = numbers[index];
    if (number >= addresses->entries.size() || addresses->entries[number].empty()) {
      result = refuse(-FI_EINVAL, fmt::format("fi_av_remove: {} is not in this address vector", number));
      continue;
    }
    if (--addresses->inserts[number] != 0) continue;
    addresses->numbers.erase(addresses->entries[number]);
    addresses->entries[number].clear();
  }
  return result;
}

int look_up(fid_av* fid, fi_addr_t number, void* address, std::size_t* bytes) {
  auto* addresses = object_of<Addresses>(fid);
  Guard guard(addresses->domain.lock);
  Guard inner(addresses->domain.tables);
  if (number >= addresses->entries.size() || addresses->entries[number].empty())
    return refuse(-FI_EINVAL, fmt::format("fi_av_lookup: {} is not in this address vector", number));
  const std::string& text = addresses->entries[number];
  std::memcpy(address, text.c_str(), std::min(*bytes, text.size() + 1));
  *bytes = text.size() + 1;
  return 0;
}

const char* to_text(fid_av*, const void* address, char* buffer, std::size_t* bytes) {
  const std::string_view text = static_cast<const char*>(address);
  if (buffer != nullptr && *bytes != 0) {
    const std::size_t fits = std::min(*bytes - 1, text.size());
    std::memcpy(buffer, text.data(), fits);
    buffer[fits] = '\0';
  }
  *bytes = text.size() + 1;
  return buffer;
}

int close_addresses(fid* fid) {
  auto* addresses = object_of<Addresses>(fid);
  if (!addresses->references.none()) return refuse(-FI_EBUSY, "fi_close: endpoints are bound to the address vector");
  addresses->domain.references.drop();
  delete addresses;
  return 0;
}

/// An event queue may be bound; inserts are synchronous all the same.
int bind_addresses(fid*, fid* to, std::uint64_t) { return to->fclass == FI_CLASS_EQ ? 0 : -FI_EINVAL; }

fi_ops addresses_fid_calls{sizeof(fi_ops),
                           close_addresses,
                           bind_addresses,
                           not_offered<&fi_ops::control>,
                           not_offered<&fi_ops::ops_open>,
                           not_offered<&fi_ops::tostr>,
                           not_offered<&fi_ops::ops_set>};
fi_ops_av addresses_calls{sizeof(fi_ops_av), insert_addresses, insert_service, not_offered<&fi_ops_av::insertsym>,
                          remove_addresses,  look_up,          to_text,        not_offered<&fi_ops_av::av_set>};

}  // namespace

int open_addresses(fid_domain* fid, fi_av_attr* attributes, fid_av** result, void* context) {
  if (attributes == nullptr) return refuse(-FI_EINVAL, "fi_av_open needs attributes");
  if (attributes->name != nullptr || (attributes->flags & (FI_READ | FI_EVENT)) != 0 || attributes->rx_ctx_bits != 0)
    return refuse(-FI_ENOSYS, "an address vector is private and synchronous, and has no receive contexts");
  Domain& domain = *object_of<Domain>(fid);
  auto addresses = std::make_unique<Addresses>(domain);
  if (attributes->type == FI_AV_UNSPEC) attributes->type = FI_AV_TABLE;
  addresses->fid.fid.fclass = FI_CLASS_AV;
  addresses->fid.fid.context = context;
  addresses->fid.fid.ops = &addresses_fid_calls;
  addresses->fid.ops = &addresses_calls;
  domain.references.add();
  *result = &addresses.release()->fid;
  return 0;
}

}  // namespace railyard::provider
