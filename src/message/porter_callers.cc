#include "message/porter_callers.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/entropy.hpp"
#include "bootstrap/address.hpp"
#include "message/porter.hpp"

namespace railyard::message {

namespace {

/// How long a connection whose last letter is out stays open for the listener to close it.
constexpr std::int64_t kLingerNs = 2'000'000'000;

constexpr Error::Where kWhere{.operation = "connect"};

Error no_meeting() {
  return Error(Status::invalid, "no meeting was begun with this copy of the handle, or it is over", kWhere);
}

Result<void> check_letter(std::span<const std::byte> letter) {
  if (letter.size() <= kMostLetter) return {};
  return Error(Status::out_of_range,
               fmt::format("a letter of {} bytes: the longest has {}", letter.size(), kMostLetter), kWhere);
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

Callers::Caller* Callers::find(const Handle& handle) {
  const auto found = callers_.find(meeting_of(handle));
  if (found == callers_.end() || found->second->stage == Stage::leaving) return nullptr;
  // The id may be of a handle that lay in the same place before.
  return same_listener(handle, found->second->handle) ? found->second.get() : nullptr;
}

bool Callers::begun(const Handle& handle) const { return find(handle) != nullptr; }

Result<void> Callers::begin(Handle& handle, std::vector<std::byte> hello) {
  if (begun(handle)) return {};
  auto contents = read_handle(handle);
  if (!contents) return std::move(contents.error());
  if (auto checked = check_letter(hello); !checked) return checked;
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
  auto caller = std::make_unique<Caller>(id, handle, Dial(targets, contents->port));
  caller->secret = contents->secret;
  caller->door = contents->door;
  caller->hello = std::make_shared<const std::vector<std::byte>>(std::move(hello));
  caller->deadline_ns = watch_.now() + timeout_ns_;
  Caller& begun = *callers_.emplace(id, std::move(caller)).first->second;
  set_meeting(handle, id);
  dial(begun);
  return {};
}

Result<std::optional<std::vector<std::byte>>> Callers::welcome(Handle& handle) {
  Caller* const caller = find(handle);
  if (caller == nullptr) return no_meeting();
  if (caller->stage == Stage::failed) {
    Error error = std::move(*caller->error);
    erase(caller->id);
    set_meeting(handle, 0);
    return error;
  }
  if (caller->welcome_taken) return Error(Status::invalid, "the welcome of this meeting was taken already", kWhere);
  if (caller->stage != Stage::welcomed) return std::optional<std::vector<std::byte>>();
  caller->welcome_taken = true;
  return caller->talk->take_welcome();
}

Result<void> Callers::finish(Handle& handle, std::vector<std::byte> ready) {
  Caller* const caller = find(handle);
  if (caller == nullptr) return no_meeting();
  if (auto checked = check_letter(ready); !checked) return checked;
  if (caller->stage != Stage::failed && !caller->welcome_taken) {
    return Error(Status::invalid, "a meeting ends after its welcome, not before", kWhere);
  }
  set_meeting(handle, 0);
  if (caller->stage == Stage::failed) {
    Error error = std::move(*caller->error);
    erase(caller->id);
    return error;
  }
  caller->talk->send_ready(ready);
  caller->stage = Stage::leaving;
  watch_.set_alarm(caller->id, watch_.now() + timeout_ns_);
  leave(*caller);
  return {};
}

void Callers::abandon(Handle& handle) {
  const Caller* const caller = find(handle);
  set_meeting(handle, 0);
  if (caller != nullptr) erase(caller->id);
}

void Callers::erase(std::uint64_t id) {
  watch_.set_alarm(id, kNever);
  callers_.erase(id);
}

// ---- Reaching the listener ----

void Callers::dial(Caller& caller) {
  Dial::Next next = Dial::Next::target;
  while (next == Dial::Next::target) {
    if (try_address(caller, next)) return;
  }
  settle(caller, next);
}

bool Callers::try_address(Caller& caller, Dial::Next& next) {
  sockaddr_storage name;
  const socklen_t length = caller.dial.target().name(caller.dial.port(), name);
  Fd socket(::socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int code = socket ? 0 : errno;
  if (socket && ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) code = errno;
  // EINTR: goes on by itself, as after EINPROGRESS.
  if (code != 0 && code != EINPROGRESS && code != EINTR) {
    next = caller.dial.failed(finality_of(code), Status::io, std::strerror(code));
    return false;
  }
  bootstrap::tune_tcp(socket.get());
  caller.line = Line(watch_, std::move(socket), caller.id, true);
  caller.stage = Stage::connecting;
  caller.dial.note("no answer to the connection request");
  watch_.set_alarm(caller.id, std::min(watch_.now() + caller.dial.patience_ns(), caller.deadline_ns));
  return true;
}

void Callers::move_on(Caller& caller, Finality finality, Status status, std::string why) {
  caller.talk.reset();
  caller.line.close();
  const Dial::Next next = caller.dial.failed(finality, status, std::move(why));
  if (next == Dial::Next::target) return dial(caller);
  settle(caller, next);
}

/// There is no other address in this round.
void Callers::settle(Caller& caller, Dial::Next next) {
  if (next == Dial::Next::none) {
    return fail(caller,
                Error(caller.dial.status(), fmt::format("cannot meet the listener: {}", caller.dial.story()), kWhere));
  }
  caller.stage = Stage::pausing;
  watch_.set_alarm(caller.id, std::min(watch_.now() + caller.dial.pause_ns(), caller.deadline_ns));
}

void Callers::check_connected(Caller& caller) {
  const auto code = caller.line.connected();
  if (!code) return;
  if (*code != 0) return move_on(caller, finality_of(*code), Status::io, std::strerror(*code));
  start_talking(caller);
}

void Callers::start_talking(Caller& caller) {
  bootstrap::Nonce nonce;
  if (auto filled = fill_random(nonce); !filled) return fail(caller, std::move(filled.error()));
  caller.talk.emplace(caller.secret, caller.door, nonce, caller.hello);
  caller.stage = Stage::talking;
  caller.dial.note("connected, but its process does not answer: does it make progress?");
  watch_.set_alarm(caller.id, caller.deadline_ns);
  caller.line.flush(*caller.talk);
}

// ---- Talking to it ----

bool Callers::serve(std::uint64_t id) {
  const auto found = callers_.find(id);
  if (found == callers_.end()) return false;
  Caller& caller = *found->second;
  switch (caller.stage) {
    case Stage::connecting:
      check_connected(caller);
      break;
    case Stage::talking:
    case Stage::welcomed:
      listen(caller);
      break;
    case Stage::leaving:
      leave(caller);
      break;
    case Stage::pausing:
    case Stage::failed:
      break;
  }
  return true;
}

void Callers::listen(Caller& caller) {
  const Line::Read got = caller.line.read();
  switch (got.state) {
    case Line::Read::State::some:
      caller.talk->feed(got.bytes);
      caller.talk->advance();
      return talk_advanced(caller);
    case Line::Read::State::nothing:
      return caller.line.flush(*caller.talk);
    case Line::Read::State::ended:
      return line_lost(caller, "it closed the connection");
    case Line::Read::State::broken:
      return line_lost(caller, fmt::format("the connection broke: {}", std::strerror(got.code)));
  }
}

void Callers::talk_advanced(Caller& caller) {
  if (const auto& failure = caller.talk->failure()) {
    const std::string text = failure->message();
    const Status status = failure->status();
    if (caller.talk->refused_by_host() || caller.stage == Stage::welcomed) {
      return fail(caller,
                  Error(status, fmt::format("the listener at {} refused: {}", caller.dial.where(), text), kWhere));
    }
    // It may be somebody else's process: addresses of one machine's inside exist on others too.
    return move_on(caller, Finality::certain, status, text);
  }
  caller.line.flush(*caller.talk);
  if (caller.stage == Stage::talking && caller.talk->has_welcome()) {
    caller.stage = Stage::welcomed;
    caller.hello.reset();
    watch_.set_alarm(caller.id, kNever);  // from here on the listener's patience counts
  }
}

void Callers::line_lost(Caller& caller, std::string_view why) {
  if (caller.stage == Stage::talking) {
    return move_on(caller, Finality::uncertain, Status::io, fmt::format("{} before it answered", why));
  }
  fail(caller,
       Error(Status::peer_lost,
             fmt::format("lost the listener at {} before the meeting was over: {}", caller.dial.where(), why), kWhere));
}

/// The last letter goes out; then the listener closes the connection, or a little time passes.
void Callers::leave(Caller& caller) {
  const bool had_more = !caller.talk->outgoing().empty();
  caller.line.flush(*caller.talk);
  if (had_more && caller.talk->outgoing().empty()) {
    caller.line.shut_down();
    watch_.set_alarm(caller.id, watch_.now() + kLingerNs);
  }
  const Line::Read::State got = caller.line.read().state;
  if (got == Line::Read::State::ended || got == Line::Read::State::broken) erase(caller.id);
}

void Callers::fail(Caller& caller, Error error) {
  caller.talk.reset();
  caller.line.close();
  caller.hello.reset();
  caller.stage = Stage::failed;
  caller.error = std::move(error);
  watch_.set_alarm(caller.id, kNever);
}

// ---- Time ----

bool Callers::ring(std::uint64_t id) {
  // What has arrived counts, however late this process looks.
  for (int i = 0; i < kLastReads && !watch_.has_alarm(id) && serve(id); ++i) {
  }
  const auto found = callers_.find(id);
  if (found == callers_.end() || watch_.has_alarm(id)) return found != callers_.end();
  Caller& caller = *found->second;
  switch (caller.stage) {
    case Stage::connecting:
      if (watch_.now() >= caller.deadline_ns) return fail_at_deadline(caller), true;
      move_on(caller, Finality::uncertain, Status::timeout, "no answer to the connection request");
      break;
    case Stage::pausing:
      if (watch_.now() >= caller.deadline_ns) return fail_at_deadline(caller), true;
      dial(caller);
      break;
    case Stage::talking:
      fail_at_deadline(caller);
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

void Callers::fail_at_deadline(Caller& caller) {
  fail(caller,
       Error(Status::timeout,
             fmt::format("no meeting with the listener within {} (RAILYARD_BOOTSTRAP_TIMEOUT_MS): {}",
                         bootstrap::show_duration(static_cast<std::uint64_t>(timeout_ns_)), caller.dial.story()),
             kWhere));
}

bool Callers::anything_outgoing() const {
  return std::ranges::any_of(callers_, [](const auto& entry) {
    return entry.second->stage == Stage::leaving && !entry.second->talk->outgoing().empty();
  });
}

}  // namespace railyard::message
