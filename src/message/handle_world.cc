#include "message/handle_world.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/entropy.hpp"
#include "bootstrap/client.hpp"
#include "bootstrap/hosting.hpp"
#include "bootstrap/server.hpp"
#include "message/handle.hpp"
#include "message/ip_address.hpp"

namespace railyard::message {

namespace {

/// Until rank 0 serves, the system answers for it.
constexpr int kListenBacklog = 4096;

/// Whoever holds the handle is let in.
std::string key_of(const Secret& secret) {
  std::string key;
  for (const std::byte each : secret) key += fmt::format("{:02x}", std::to_integer<unsigned>(each));
  return key;
}

Result<std::vector<rendezvous::Address>> addresses_of(const HandleContents& contents) {
  const bool same_machine = contents.machine == machine_of_handles();
  std::vector<rendezvous::Address> addresses;
  for (const Target& target : order_targets(contents.addresses, same_machine, list_addresses())) {
    // The loopback address of another machine leads to whoever has that port on this one.
    if (target.address.loopback() && !same_machine) continue;
    auto address = rendezvous::Address::parse(target.text(contents.port));
    if (!address) return std::move(address.error());
    addresses.push_back(std::move(*address));
  }
  if (addresses.empty())
    return Error(Status::not_found,
                 "rank 0's handle has no address that leads there from here: it is on another machine, and its "
                 "interfaces (RAILYARD_INTERFACES) have none");
  return addresses;
}

}  // namespace

Result<HandleListener> HandleListener::open(const Settings& settings) {
  HandleContents contents;
  if (auto filled = fill_random(contents.secret); !filled) return std::move(filled.error());
  // A host that is no numeric address stands for every address of this machine.
  auto listener = rendezvous::listen_at({rendezvous::Address::Kind::tcp, "*", 0, {}}, kListenBacklog);
  if (!listener) return std::move(listener.error());
  contents.addresses = choose_addresses(list_addresses(), settings.interfaces, kMostAddresses);
  if (contents.addresses.empty())
    return Error(Status::not_found,
                 "no network interface of this machine is up: nobody could connect, not even from here; bring up at "
                 "least the loopback interface");
  contents.listener = 1;  // the only one of its port
  contents.machine = machine_of_handles();
  contents.port = listener->address.port;
  return HandleListener(std::move(*listener), make_handle(contents));
}

Result<HandleWorld> HandleWorld::open(const Handle& first, HandleListener own, int rank, int size,
                                      std::int64_t timeout_ns) {
  auto contents = read_handle(first);
  if (!contents) return Error(contents.status(), "rank 0's handle: " + contents.error().message());
  auto addresses = addresses_of(*contents);
  if (!addresses) return std::move(addresses.error());
  HandleWorld world;
  world.job_key = key_of(contents->secret);
  bootstrap::ClientOptions client;
  client.address = addresses->front();
  client.others.assign(addresses->begin() + 1, addresses->end());
  client.rank = rank;
  client.size = size;
  client.job_key = world.job_key;
  client.timeout_ns = timeout_ns;
  Result<std::unique_ptr<Bootstrap>> opened = Error(Status::invalid);
  if (rank != 0) {
    opened = bootstrap::open_client(client);
  } else {
    if (!same_listener(first, own.handle()))
      return Error(Status::invalid, "the first handle is not that of rank 0's own listener");
    bootstrap::ServerOptions options;
    options.size = size;
    options.job_key = world.job_key;
    auto server = bootstrap::Server::open(options, std::move(own.listener_));
    if (!server) return std::move(server.error());
    opened = bootstrap::open_hosting(std::move(*server), client);
  }
  if (!opened) return std::move(opened.error());
  world.bootstrap = std::move(*opened);
  return world;
}

}  // namespace railyard::message
