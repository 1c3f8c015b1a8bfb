#include "fabric/tcp/address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.hpp"

namespace railyard::fabric::tcp {

namespace {

constexpr std::uint32_t kAddressMagic = 0x54415952;  // "RYAT"
constexpr std::uint16_t kAddressVersion = 3;         // with every change of what travels, too

socklen_t length_of(int family) {
  if (family == AF_INET) return sizeof(sockaddr_in);
  return family == AF_INET6 ? sizeof(sockaddr_in6) : 0;
}

}  // namespace

Endpoint Endpoint::from(const sockaddr& address) {
  Endpoint endpoint;
  endpoint.length = length_of(address.sa_family);
  std::memcpy(&endpoint.storage, &address, endpoint.length);
  return endpoint;
}

void Endpoint::set_port(std::uint16_t port) {
  if (family() == AF_INET6)
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
  else
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
}

void Endpoint::reach_from(const Endpoint& own) {
  if (family() != AF_INET6 || own.family() != AF_INET6) return;
  auto& six = reinterpret_cast<sockaddr_in6&>(storage);
  if (IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr))
    six.sin6_scope_id = reinterpret_cast<const sockaddr_in6&>(own.storage).sin6_scope_id;
}

std::string Endpoint::text() const {
  std::array<char, INET6_ADDRSTRLEN> room{};
  const void* const from = family() == AF_INET6
                               ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr)
                               : static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr);
  return ::inet_ntop(family(), from, room.data(), room.size()) == nullptr ? std::string() : std::string(room.data());
}

std::string Endpoint::text_with_port() const {
  const in_port_t port = family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                                              : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port;
  return fmt::format("{} port {}", text(), ntohs(port));
}

std::vector<std::byte> TcpRailAddress::pack() const {
  ByteWriter writer;
  writer.u32(kAddressMagic);
  writer.u16(kAddressVersion);
  writer.u16(0);
  writer.raw(name);
  writer.raw(secret);
  writer.raw(endpoint.bytes());
  return writer.take();
}

Result<TcpRailAddress> TcpRailAddress::parse(std::span<const std::byte> bytes, const std::string& rail) {
  ByteReader reader(bytes);
  if (reader.u32() != kAddressMagic)
    return Error(Status::invalid, fmt::format("{}: a peer's rail address is no address of the tcp driver: set "
                                              "RAILYARD_DRIVER alike on all ranks",
                                              rail));
  if (const auto version = reader.u16(); version != kAddressVersion)
    return Error(Status::version_mismatch,
                 fmt::format("{}: a peer's rail address has version {}, this library speaks {}: use the same release "
                             "on all ranks",
                             rail, version, kAddressVersion));
  TcpRailAddress address;
  (void)reader.u16();
  const auto name = reader.raw(address.name.size());
  std::copy(name.begin(), name.end(), address.name.begin());
  const auto secret = reader.raw(address.secret.size());
  std::copy(secret.begin(), secret.end(), address.secret.begin());
  const auto where = reader.raw(reader.remaining());
  if (reader.ok() && where.size() >= sizeof(sa_family_t)) {
    sa_family_t family = 0;
    std::memcpy(&family, where.data(), sizeof family);
    address.endpoint.length = length_of(family);
  }
  if (address.endpoint.length == 0 || where.size() != address.endpoint.length)
    return Error(Status::invalid, fmt::format("{}: a peer's rail address is malformed", rail));
  std::memcpy(&address.endpoint.storage, where.data(), where.size());
  return address;
}

}  // namespace railyard::fabric::tcp
