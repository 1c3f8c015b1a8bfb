#include "message/setup_listeners.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/bytes.hpp"
#include "base/entropy.hpp"
#include "message/setup_wire.hpp"
#include "rendezvous/address.hpp"

namespace railyard::message {

namespace {

/// While this process makes no progress the system answers for it: as many as it lets wait.
constexpr int kBacklog = 4096;
constexpr const char* kWho = "a listener of channels";

rendezvous::AcceptorOptions acceptor_options() {
  rendezvous::AcceptorOptions options;
  options.protocol = rendezvous::Protocol::channel;
  options.who = kWho;
  options.most_frame = kMostSetupMessageFrame;
  options.most_unauthenticated = SetupListeners::kMostUnauthenticated;
  return options;
}

}  // namespace

SetupListeners::SetupListeners(rendezvous::EpollSet& set, const Clock& clock, std::uint64_t machine,
                               std::string interfaces, std::string ports, std::int64_t timeout_ns)
    : machine_(machine),
      interfaces_(std::move(interfaces)),
      ports_(std::move(ports)),
      timeout_ns_(timeout_ns),
      clock_(clock),
      set_(set),
      acceptor_(acceptor_options(), *this, clock),
      sockets_(set, acceptor_, kWho) {}

// ---- Listeners ----

Result<Handle> SetupListeners::open_listener(Host& host) {
  if (!sockets_.listening()) {
    if (auto opened = open_listen_socket(); !opened) return std::move(opened.error());
  }
  ListenerEntry listener{&host};
  const std::uint64_t id = set_.new_id();
  if (auto filled = fill_random(listener.secret); !filled) {
    if (listeners_.empty()) sockets_.stop_listening();
    return std::move(filled.error());
  }
  listeners_.emplace(id, listener);
  return make_handle({listener.secret, id, machine_, port_, addresses_});
}

Result<void> SetupListeners::open_listen_socket() {
  auto ports = PortRange::parse(ports_);
  if (!ports) return std::move(ports.error());
  // A host that is no numeric address stands for every address of this machine, IPv4 and IPv6.
  auto listener = rendezvous::listen_at({rendezvous::Address::Kind::tcp, "*", 0, {}}, kBacklog, *ports);
  if (!listener) return std::move(listener.error());
  addresses_ = choose_addresses(list_addresses(), interfaces_, kMostAddresses);
  if (addresses_.empty()) {
    return Error(Status::not_found,
                 "no network interface of this machine is up: nobody could connect, not even from "
                 "here; bring up at least the loopback interface");
  }
  port_ = listener->address.port;
  return sockets_.listen(std::move(listener->socket));
}

Host* SetupListeners::close_listener(const Handle& handle) {
  const auto contents = read_handle(handle);
  const auto found = contents ? listeners_.find(contents->listener) : listeners_.end();
  if (found == listeners_.end() || !equal_in_constant_time(found->second.secret, contents->secret)) return nullptr;
  Host* const host = found->second.host;
  listeners_.erase(found);
  std::erase_if(calls_, [&](const HostCall& call) { return call.listener == contents->listener; });
  for (auto entry = handshakes_.begin(); entry != handshakes_.end();) {
    const auto& [id, handshake] = *entry;
    if (handshake.listener != contents->listener) {
      ++entry;
      continue;
    }
    acceptor_.refuse(id, {Status::peer_lost, -1, "the listener was closed"});
    entry = handshakes_.erase(entry);
  }
  if (listeners_.empty()) sockets_.stop_listening();
  return host;
}

// ---- Those who connect ----

Result<std::string> SetupListeners::key_of(std::uint64_t id, rendezvous::Bytes claim) {
  const auto listener = parse_listener(claim);
  const auto found = listener ? listeners_.find(*listener) : listeners_.end();
  if (found == listeners_.end()) {
    return Error(Status::not_found,
                 "there is no such listener here: it was closed, or the handle is of another process");
  }
  handshakes_[id].listener = *listener;
  return key_of_listener(found->second.secret);
}

rendezvous::Complaint SetupListeners::wrong_key(std::uint64_t) {
  return {Status::refused, -1, "the handle's secret is not the listener's"};
}

std::optional<rendezvous::Complaint> SetupListeners::proven(std::uint64_t id) {
  handshakes_.at(id).stage = Stage::let_in;
  acceptor_.set_deadline(id, clock_.now() + timeout_ns_);
  return std::nullopt;
}

void SetupListeners::received(std::uint64_t id, rendezvous::Frame& frame) {
  Handshake& handshake = handshakes_.at(id);
  if (handshake.stage == Stage::let_in && frame.type == kHello) {
    handshake.stage = Stage::waiting;
    acceptor_.set_deadline(id, clock_.now() + timeout_ns_);
    return call(HostCall::Kind::hello, id, std::move(frame.payload));
  }
  if (handshake.stage == Stage::accepted && frame.type == kReady) {
    ++completed_;
    call(HostCall::Kind::ready, id, std::move(frame.payload));
    handshakes_.erase(id);
    return acceptor_.drop(id);
  }
  acceptor_.turn_away(id, "a message that makes no sense at this point");
}

void SetupListeners::late(std::uint64_t id) {
  acceptor_.refuse(id, {Status::timeout, -1, "the connector took too long"});
  lost(id, {});
}

void SetupListeners::lost(std::uint64_t id, std::string_view) {
  Handshake& handshake = handshakes_.at(id);
  if (handshake.stage == Stage::in_call) {
    handshake.lost = true;  // `answered` knows whether the host must be told
    return;
  }
  if (handshake.stage == Stage::accepted) call(HostCall::Kind::gone, id);
  handshakes_.erase(id);
}

// ---- Hosts ----

void SetupListeners::call(HostCall::Kind kind, std::uint64_t id, std::vector<std::byte> setup_message) {
  const auto listener = listeners_.find(handshakes_.at(id).listener);
  if (listener == listeners_.end()) return;
  calls_.push_back({kind, listener->second.host, listener->first, id, std::move(setup_message)});
}

std::optional<HostCall> SetupListeners::take_call() {
  while (!calls_.empty()) {
    HostCall call = std::move(calls_.front());
    calls_.pop_front();
    if (call.kind != HostCall::Kind::hello) return call;
    // An inbound connection that went away before the host heard of it never was there.
    const auto found = handshakes_.find(call.handshake);
    if (found == handshakes_.end() || found->second.stage != Stage::waiting) continue;
    found->second.stage = Stage::in_call;
    return call;
  }
  return std::nullopt;
}

void SetupListeners::answered(std::uint64_t handshake, const Result<std::vector<std::byte>>& answer) {
  const auto found = handshakes_.find(handshake);
  if (found == handshakes_.end() || found->second.stage != Stage::in_call) return;
  if (found->second.lost) {
    if (answer) call(HostCall::Kind::gone, handshake);
    handshakes_.erase(found);
    return;
  }
  if (answer && answer->size() <= kMostSetupMessage) {
    found->second.stage = Stage::accepted;
    return acceptor_.send(handshake, kWelcome, *answer);
  }
  if (answer) {
    acceptor_.refuse(handshake, {Status::out_of_range, -1,
                                 fmt::format("its welcome has {} bytes, the longest set-up message {}", answer->size(),
                                             kMostSetupMessage)});
    call(HostCall::Kind::gone, handshake);
  } else {
    acceptor_.refuse(handshake, {answer.status(), -1, std::string(answer.error().message())});
  }
  handshakes_.erase(found);
}

SetupCounts SetupListeners::counts() const { return {acceptor_.counts(), completed_}; }

}  // namespace railyard::message
