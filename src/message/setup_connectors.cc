#include "message/setup_connectors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bootstrap/protocol.hpp"
#include "message/setup_wire.hpp"

namespace railyard::message {

using rendezvous::Failure;

namespace {

constexpr Error::Where kWhere{.operation = "connect"};

Error no_handshake() {
  return Error(Status::invalid, "no handshake was begun with this copy of the handle, or it is over", kWhere);
}

Result<void> check_setup_message(std::span<const std::byte> setup_message) {
  if (setup_message.size() <= kMostSetupMessage) return {};
  return Error(Status::out_of_range,
               fmt::format("a set-up message of {} bytes: the longest has {}", setup_message.size(), kMostSetupMessage),
               kWhere);
}

}  // namespace

// ---- What callers ask ----

const SetupConnectors::Handshake* SetupConnectors::find(const Handle& handle) const {
  const auto found = handshakes_.find(handshake_of(handle));
  if (found == handshakes_.end() || found->second->leaving) return nullptr;
  // The id may be of a handle that lay in the same place before.
  return same_listener(handle, found->second->handle) ? found->second.get() : nullptr;
}

Result<void> SetupConnectors::begin(Handle& handle, std::vector<std::byte> hello) {
  if (begun(handle)) return {};
  auto contents = read_handle(handle);
  if (!contents) return std::move(contents.error());
  if (auto checked = check_setup_message(hello); !checked) return checked;
  const bool links = std::ranges::any_of(contents->addresses, &IpAddress::link_local);
  const auto targets = order_targets(contents->addresses, contents->machine == machine_,
                                     links ? list_addresses() : std::vector<InterfaceAddress>());
  if (targets.empty()) {
    return Error(Status::not_found,
                 "none of the handle's addresses can be used here: they are link-local ones, and no interface here is "
                 "on such a link; RAILYARD_INTERFACES of the listener chooses others",
                 kWhere);
  }
  const std::uint64_t id = set_.new_id();
  Handshake& handshake = *handshakes_.emplace(id, std::make_unique<Handshake>()).first->second;
  handshake.handle = handle;
  handshake.hello = std::make_shared<const std::vector<std::byte>>(std::move(hello));
  rendezvous::ConnectorOptions options;
  options.protocol = rendezvous::Protocol::channel;
  options.claim = claim_of_listener(contents->listener);
  options.key = key_of_listener(contents->secret);
  options.most_frame = kMostSetupMessageFrame;
  options.endpoints = [targets, port = contents->port]() -> Result<std::vector<rendezvous::Endpoint>> {
    std::vector<rendezvous::Endpoint> endpoints;
    endpoints.reserve(targets.size());
    for (const Target& target : targets) endpoints.push_back(target.endpoint(port));
    return endpoints;
  };
  options.first = [&handshake] { return rendezvous::make_frame(kHello, *handshake.hello); };
  options.on_frame = [&handshake](rendezvous::Frame& frame) { hear(handshake, frame); };
  options.deadline_ns = set_.now() + timeout_ns_;
  handshake.connector.emplace(set_, id, std::move(options));
  set_handshake(handle, id);
  handshake.connector->start();
  look(id, handshake);
  return {};
}

Result<std::optional<std::vector<std::byte>>> SetupConnectors::welcome(Handle& handle) {
  Handshake* const handshake = find(handle);
  if (handshake == nullptr) return no_handshake();
  if (handshake->error) {
    Error error = std::move(*handshake->error);
    abandon(handle);
    return error;
  }
  if (handshake->welcome_taken)
    return Error(Status::invalid, "the welcome of this handshake was taken already", kWhere);
  if (!handshake->welcome) return std::optional<std::vector<std::byte>>();
  handshake->welcome_taken = true;
  return std::exchange(handshake->welcome, std::nullopt);
}

Result<void> SetupConnectors::finish(Handle& handle, std::vector<std::byte> ready) {
  Handshake* const handshake = find(handle);
  if (handshake == nullptr) return no_handshake();
  if (auto checked = check_setup_message(ready); !checked) return checked;
  if (handshake->error) {
    Error error = std::move(*handshake->error);
    abandon(handle);
    return error;
  }
  if (!handshake->welcome_taken)
    return Error(Status::invalid, "a handshake ends after its welcome, not before", kWhere);
  set_handshake(handle, 0);
  handshake->leaving = true;
  handshake->connector->send(kReady, ready);
  handshake->connector->finish(set_.now() + timeout_ns_);
  return {};
}

void SetupConnectors::abandon(Handle& handle) {
  const bool known = find(handle) != nullptr;
  const std::uint64_t id = handshake_of(handle);
  set_handshake(handle, 0);
  if (known) handshakes_.erase(id);
}

// ---- What happens ----

bool SetupConnectors::serve(std::uint64_t id) {
  const auto found = handshakes_.find(id);
  if (found == handshakes_.end()) return false;
  found->second->connector->serve();
  look(id, *found->second);
  return true;
}

bool SetupConnectors::ring(std::uint64_t id) {
  const auto found = handshakes_.find(id);
  if (found == handshakes_.end()) return false;
  found->second->connector->ring();
  look(id, *found->second);
  return true;
}

void SetupConnectors::hear(Handshake& handshake, rendezvous::Frame& frame) {
  // After its welcome a listener has nothing to say but that it gave up.
  if (frame.type != kWelcome || handshake.connector->established()) {
    if (!handshake.error) {
      handshake.error = Error(Status::io,
                              fmt::format("the listener at {} sent a message that makes no sense at this point",
                                          handshake.connector->where()),
                              kWhere);
    }
    return;
  }
  handshake.welcome = std::move(frame.payload);
  handshake.hello.reset();
  handshake.connector->establish();  // from here on the listener's patience counts
}

void SetupConnectors::look(std::uint64_t id, Handshake& handshake) {
  if (handshake.leaving) {
    if (handshake.connector->over()) handshakes_.erase(id);
    return;
  }
  if (handshake.connector->failure() && !handshake.error) handshake.error = error_of(*handshake.connector);
  if (!handshake.error) return;
  // The rest of the handshake stays until the caller asks.
  handshake.connector->close();
  handshake.hello.reset();
}

Error SetupConnectors::error_of(const rendezvous::Connector& connector) const {
  const Failure& failure = *connector.failure();
  const auto& [status, peer, text] = failure.complaint;
  switch (failure.kind) {
    case Failure::Kind::unreachable:
      return Error(status, fmt::format("cannot meet the listener: {}", text), kWhere);
    case Failure::Kind::late:
      return Error(status,
                   fmt::format("no handshake with the listener within {} (RAILYARD_BOOTSTRAP_TIMEOUT_MS): {}",
                               bootstrap::show_duration(static_cast<std::uint64_t>(timeout_ns_)), text),
                   kWhere);
    case Failure::Kind::lost:
      return Error(status,
                   fmt::format("lost the listener at {} before the handshake was over: {}", connector.where(), text),
                   kWhere);
    default:
      return Error(status, fmt::format("the listener at {} refused: {}", connector.where(), text), kWhere);
  }
}

bool SetupConnectors::anything_outgoing() const {
  return std::ranges::any_of(handshakes_, [](const auto& entry) {
    return entry.second->leaving && entry.second->connector->anything_outgoing();
  });
}

}  // namespace railyard::message
