#include "message/rendezvous_connectors.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/entropy.hpp"
#include "bootstrap/address.hpp"
#include "message/rendezvous.hpp"

namespace railyard::message {

namespace {

/// How long a connection whose last set-up message is out stays open for the listener to close it.
constexpr std::int64_t kLingerNs = 2'000'000'000;

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

/// The system is out of something, or the network was not there for a moment: worth another try.
Finality finality_of(int code) {
  switch (code) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
    case EADDRNOTAVAIL:  // no local port is free
    case EAGAIN:
    case ETIMEDOUT:
    case ECONNRESET:
      return Finality::uncertain;
    default:
      return Finality::certain;
  }
}

}  // namespace

// ---- What callers ask ----

Connectors::Connector* Connectors::find(const Handle& handle) {
  const auto found = connectors_.find(handshake_of(handle));
  if (found == connectors_.end() || found->second->stage == Stage::leaving) return nullptr;
  // The id may be of a handle that lay in the same place before.
  return same_listener(handle, found->second->handle) ? found->second.get() : nullptr;
}

bool Connectors::begun(const Handle& handle) const { return find(handle) != nullptr; }

Result<void> Connectors::begin(Handle& handle, std::vector<std::byte> hello) {
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
  const std::uint64_t id = watch_.new_id();
  auto connector = std::make_unique<Connector>(id, handle, ConnectAttempts(targets, contents->port));
  connector->secret = contents->secret;
  connector->listener = contents->listener;
  connector->hello = std::make_shared<const std::vector<std::byte>>(std::move(hello));
  connector->deadline_ns = watch_.now() + timeout_ns_;
  Connector& begun = *connectors_.emplace(id, std::move(connector)).first->second;
  set_handshake(handle, id);
  start_connect(begun);
  return {};
}

Result<std::optional<std::vector<std::byte>>> Connectors::welcome(Handle& handle) {
  Connector* const connector = find(handle);
  if (connector == nullptr) return no_handshake();
  if (connector->stage == Stage::failed) {
    Error error = std::move(*connector->error);
    erase(connector->id);
    set_handshake(handle, 0);
    return error;
  }
  if (connector->welcome_taken)
    return Error(Status::invalid, "the welcome of this handshake was taken already", kWhere);
  if (connector->stage != Stage::welcomed) return std::optional<std::vector<std::byte>>();
  connector->welcome_taken = true;
  return connector->talk->take_welcome();
}

Result<void> Connectors::finish(Handle& handle, std::vector<std::byte> ready) {
  Connector* const connector = find(handle);
  if (connector == nullptr) return no_handshake();
  if (auto checked = check_setup_message(ready); !checked) return checked;
  if (connector->stage != Stage::failed && !connector->welcome_taken) {
    return Error(Status::invalid, "a handshake ends after its welcome, not before", kWhere);
  }
  set_handshake(handle, 0);
  if (connector->stage == Stage::failed) {
    Error error = std::move(*connector->error);
    erase(connector->id);
    return error;
  }
  connector->talk->send_ready(ready);
  connector->stage = Stage::leaving;
  watch_.set_alarm(connector->id, watch_.now() + timeout_ns_);
  leave(*connector);
  return {};
}

void Connectors::abandon(Handle& handle) {
  const Connector* const connector = find(handle);
  set_handshake(handle, 0);
  if (connector != nullptr) erase(connector->id);
}

void Connectors::erase(std::uint64_t id) {
  watch_.set_alarm(id, kNever);
  connectors_.erase(id);
}

// ---- Reaching the listener ----

void Connectors::start_connect(Connector& connector) {
  ConnectAttempts::Next next = ConnectAttempts::Next::target;
  while (next == ConnectAttempts::Next::target) {
    if (try_address(connector, next)) return;
  }
  settle(connector, next);
}

bool Connectors::try_address(Connector& connector, ConnectAttempts::Next& next) {
  sockaddr_storage name;
  const socklen_t length = connector.attempts.target().name(connector.attempts.port(), name);
  Fd socket(::socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int code = socket ? 0 : errno;
  if (socket && ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) code = errno;
  // EINTR: goes on by itself, as after EINPROGRESS.
  if (code != 0 && code != EINPROGRESS && code != EINTR) {
    next = connector.attempts.failed(finality_of(code), Status::io, std::strerror(code));
    return false;
  }
  bootstrap::tune_tcp(socket.get());
  connector.line = Line(watch_, std::move(socket), connector.id, true);
  connector.stage = Stage::connecting;
  connector.attempts.note("no answer to the connection request");
  watch_.set_alarm(connector.id, std::min(watch_.now() + connector.attempts.patience_ns(), connector.deadline_ns));
  return true;
}

void Connectors::move_on(Connector& connector, Finality finality, Status status, std::string why) {
  connector.talk.reset();
  connector.line.close();
  const ConnectAttempts::Next next = connector.attempts.failed(finality, status, std::move(why));
  if (next == ConnectAttempts::Next::target) return start_connect(connector);
  settle(connector, next);
}

/// There is no other address in this round.
void Connectors::settle(Connector& connector, ConnectAttempts::Next next) {
  if (next == ConnectAttempts::Next::none) {
    return fail(connector, Error(connector.attempts.status(),
                                 fmt::format("cannot meet the listener: {}", connector.attempts.story()), kWhere));
  }
  connector.stage = Stage::pausing;
  watch_.set_alarm(connector.id, std::min(watch_.now() + connector.attempts.pause_ns(), connector.deadline_ns));
}

void Connectors::check_connected(Connector& connector) {
  const auto code = connector.line.connected();
  if (!code) return;
  if (*code != 0) return move_on(connector, finality_of(*code), Status::io, std::strerror(*code));
  start_talking(connector);
}

void Connectors::start_talking(Connector& connector) {
  bootstrap::Nonce nonce;
  if (auto filled = fill_random(nonce); !filled) return fail(connector, std::move(filled.error()));
  connector.talk.emplace(connector.secret, connector.listener, nonce, connector.hello);
  connector.stage = Stage::talking;
  connector.attempts.note("connected, but its process does not answer: does it make progress?");
  watch_.set_alarm(connector.id, connector.deadline_ns);
  connector.line.flush(*connector.talk);
}

// ---- Talking to it ----

bool Connectors::serve(std::uint64_t id) {
  const auto found = connectors_.find(id);
  if (found == connectors_.end()) return false;
  Connector& connector = *found->second;
  switch (connector.stage) {
    case Stage::connecting:
      check_connected(connector);
      break;
    case Stage::talking:
    case Stage::welcomed:
      listen(connector);
      break;
    case Stage::leaving:
      leave(connector);
      break;
    case Stage::pausing:
    case Stage::failed:
      break;
  }
  return true;
}

void Connectors::listen(Connector& connector) {
  const Line::Read got = connector.line.read();
  switch (got.state) {
    case Line::Read::State::some:
      connector.talk->feed(got.bytes);
      connector.talk->advance();
      return talk_advanced(connector);
    case Line::Read::State::nothing:
      return connector.line.flush(*connector.talk);
    case Line::Read::State::ended:
      return line_lost(connector, "it closed the connection");
    case Line::Read::State::broken:
      return line_lost(connector, fmt::format("the connection broke: {}", std::strerror(got.code)));
  }
}

void Connectors::talk_advanced(Connector& connector) {
  if (const auto& failure = connector.talk->failure()) {
    const std::string text = failure->message();
    const Status status = failure->status();
    if (connector.talk->refused_by_host() || connector.stage == Stage::welcomed) {
      return fail(
          connector,
          Error(status, fmt::format("the listener at {} refused: {}", connector.attempts.where(), text), kWhere));
    }
    // It may be somebody else's process: addresses of one machine's inside exist on others too.
    return move_on(connector, Finality::certain, status, text);
  }
  connector.line.flush(*connector.talk);
  if (connector.stage == Stage::talking && connector.talk->has_welcome()) {
    connector.stage = Stage::welcomed;
    connector.hello.reset();
    watch_.set_alarm(connector.id, kNever);  // from here on the listener's patience counts
  }
}

void Connectors::line_lost(Connector& connector, std::string_view why) {
  if (connector.stage == Stage::talking) {
    return move_on(connector, Finality::uncertain, Status::io, fmt::format("{} before it answered", why));
  }
  fail(connector,
       Error(Status::peer_lost,
             fmt::format("lost the listener at {} before the handshake was over: {}", connector.attempts.where(), why),
             kWhere));
}

/// The last set-up message goes out; then the listener closes the connection, or a little time passes.
void Connectors::leave(Connector& connector) {
  const bool had_more = !connector.talk->outgoing().empty();
  connector.line.flush(*connector.talk);
  if (had_more && connector.talk->outgoing().empty()) {
    connector.line.shut_down();
    watch_.set_alarm(connector.id, watch_.now() + kLingerNs);
  }
  const Line::Read::State got = connector.line.read().state;
  if (got == Line::Read::State::ended || got == Line::Read::State::broken) erase(connector.id);
}

void Connectors::fail(Connector& connector, Error error) {
  connector.talk.reset();
  connector.line.close();
  connector.hello.reset();
  connector.stage = Stage::failed;
  connector.error = std::move(error);
  watch_.set_alarm(connector.id, kNever);
}

// ---- Time ----

bool Connectors::ring(std::uint64_t id) {
  // What has arrived counts, however late this process looks.
  for (int i = 0; i < kLastReads && !watch_.has_alarm(id) && serve(id); ++i) {
  }
  const auto found = connectors_.find(id);
  if (found == connectors_.end() || watch_.has_alarm(id)) return found != connectors_.end();
  Connector& connector = *found->second;
  switch (connector.stage) {
    case Stage::connecting:
      if (watch_.now() >= connector.deadline_ns) return fail_at_deadline(connector), true;
      move_on(connector, Finality::uncertain, Status::timeout, "no answer to the connection request");
      break;
    case Stage::pausing:
      if (watch_.now() >= connector.deadline_ns) return fail_at_deadline(connector), true;
      start_connect(connector);
      break;
    case Stage::talking:
      fail_at_deadline(connector);
      break;
    case Stage::leaving:
      erase(id);
      break;
    case Stage::welcomed:
    case Stage::failed:
      break;
  }
  return true;
}

void Connectors::fail_at_deadline(Connector& connector) {
  fail(connector,
       Error(Status::timeout,
             fmt::format("no handshake with the listener within {} (RAILYARD_BOOTSTRAP_TIMEOUT_MS): {}",
                         bootstrap::show_duration(static_cast<std::uint64_t>(timeout_ns_)), connector.attempts.story()),
             kWhere));
}

bool Connectors::anything_outgoing() const {
  return std::ranges::any_of(connectors_, [](const auto& entry) {
    return entry.second->stage == Stage::leaving && !entry.second->talk->outgoing().empty();
  });
}

}  // namespace railyard::message
