#include "transport/route_name.hpp"

#include <cstring>
#include <span>

#include "base/sha256.hpp"

namespace railyard::transport {
namespace {

fabric::LinkName name_one_way(const Identity& from, const Identity& to, std::uint64_t instance, std::uint16_t label) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(from.bytes)));
  hash.update(std::as_bytes(std::span(to.bytes)));
  hash.update(std::as_bytes(std::span(&instance, 1)));
  hash.update(std::as_bytes(std::span(&label, 1)));
  const Digest digest = hash.finish();
  fabric::LinkName name;
  std::memcpy(&name.high, digest.data(), sizeof name.high);
  std::memcpy(&name.low, digest.data() + sizeof name.high, sizeof name.low);
  return RouteName::of_route(name);
}

}  // namespace

RouteName RouteName::make(const Identity& own, const Identity& peer, std::uint64_t instance, std::uint16_t label_out,
                          std::uint16_t label_in) {
  return {name_one_way(own, peer, instance, label_out), name_one_way(peer, own, instance, label_in)};
}

}  // namespace railyard::transport
