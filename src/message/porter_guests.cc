#include "message/porter_guests.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/entropy.hpp"
#include "bootstrap/address.hpp"

namespace railyard::message {

namespace {

/// While this process makes no progress the system answers for it: as many as it lets wait.
constexpr int kBacklog = 4096;
constexpr int kAcceptsPerPass = 64;
/// How long one that was turned away gets to read why.
constexpr std::int64_t kLingerNs = 2'000'000'000;
constexpr std::string_view kClosed = "the listener was closed";

std::string describe_peer(const sockaddr_storage& name) {
  const auto address = IpAddress::of(reinterpret_cast<const sockaddr&>(name));
  if (!address) return "an unknown address";
  const bool four = name.ss_family == AF_INET;
  return Target{*address}.text(ntohs(four ? reinterpret_cast<const sockaddr_in&>(name).sin_port
                                          : reinterpret_cast<const sockaddr_in6&>(name).sin6_port));
}

}  // namespace

// ---- Doors ----

Result<Handle> Guests::open_door(Host& host) {
  if (!listener_) {
    if (auto opened = open_listener(); !opened) return std::move(opened.error());
  }
  Door door{&host};
  const std::uint64_t id = watch_.new_id();
  if (auto filled = fill_random(door.secret); !filled) {
    if (doors_.empty()) listener_.reset();
    return std::move(filled.error());
  }
  doors_.emplace(id, door);
  return make_handle({door.secret, id, machine_, port_, addresses_});
}

Result<void> Guests::open_listener() {
  // A host that is no numeric address stands for every address of this machine, IPv4 and IPv6.
  auto listener = bootstrap::listen_at({bootstrap::Address::Kind::tcp, "*", 0, {}}, kBacklog);
  if (!listener) return std::move(listener.error());
  addresses_ = choose_addresses(list_addresses(), interfaces_, kMostAddresses);
  if (addresses_.empty()) {
    return Error(Status::not_found,
                 "no network interface of this machine is up: nobody could connect, not even from "
                 "here; bring up at least the loopback interface");
  }
  listener_id_ = watch_.new_id();
  if (!watch_.set(listener->socket.get(), listener_id_, EPOLLIN, EPOLL_CTL_ADD)) {
    return Error(Status::io, fmt::format("cannot watch the listening socket: {}", std::strerror(errno)));
  }
  listener_ = std::move(listener->socket);
  port_ = listener->address.port;
  return {};
}

Host* Guests::close_door(const Handle& handle) {
  const auto contents = read_handle(handle);
  const auto found = contents ? doors_.find(contents->door) : doors_.end();
  if (found == doors_.end() || !equal_in_constant_time(found->second.secret, contents->secret)) return nullptr;
  Host* const host = found->second.host;
  doors_.erase(found);
  std::erase_if(calls_, [&](const HostCall& call) { return call.door == contents->door; });
  std::vector<Guest*> theirs;
  for (const auto& [id, guest] : guests_) {
    if (guest->talk.door() == contents->door && guest->standing != Standing::closing) theirs.push_back(guest.get());
  }
  for (Guest* const guest : theirs) {
    if (guest->lost) {
      erase(guest->id);
      continue;
    }
    guest->talk.refuse(Status::peer_lost, kClosed);
    begin_closing(*guest);
  }
  // Who still waits to be let in learns it from the system.
  if (doors_.empty()) listener_.reset();
  return host;
}

// ---- Strangers ----

void Guests::accept_some() {
  for (int i = 0; i < kAcceptsPerPass; ++i) {
    const std::int64_t now = watch_.now();
    // Full of newcomers: the next one waits in the system's queue.
    if (strangers_.size() >= kMostStrangers && !make_room(now, kLeastStayNs)) return;
    sockaddr_storage name{};
    socklen_t length = sizeof(name);
    Fd socket(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&name), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      admit(std::move(socket), describe_peer(name));
      continue;
    }
    const int code = errno;
    if (code == EINTR || code == ECONNABORTED) continue;
    if (code != EMFILE && code != ENFILE && code != ENOBUFS && code != ENOMEM) return;
    if (!make_room(now, 0)) {
      if (complaints_.allow(now)) {
        log_warn("cannot take more connections: {}; raise the limit of open files (ulimit -n)", std::strerror(code));
      }
      return;
    }
  }
}

/// Drops the oldest stranger if it has stayed that long.
bool Guests::make_room(std::int64_t now_ns, std::int64_t least_stay_ns) {
  if (strangers_.empty()) return false;
  const Guest& oldest = *guests_.at(*strangers_.begin());
  if (now_ns - oldest.since_ns < least_stay_ns) return false;
  if (oldest.standing == Standing::stranger) ++counts_.late;
  erase(oldest.id);
  return true;
}

void Guests::admit(Fd socket, const std::string& peer) {
  bootstrap::Nonce nonce;
  if (!fill_random(nonce)) return;
  bootstrap::tune_tcp(socket.get());
  const std::uint64_t id = watch_.new_id();
  auto guest = std::make_unique<Guest>(id, peer, nonce, watch_.now());
  guest->line = Line(watch_, std::move(socket), id, false);
  guests_.emplace(id, std::move(guest));
  strangers_.insert(id);
  watch_.set_alarm(id, watch_.now() + kStrangerNs);
}

// ---- Talking to guests ----

bool Guests::serve(std::uint64_t id) {
  if (id == listener_id_) {
    if (listener_) accept_some();
    return true;
  }
  const auto found = guests_.find(id);
  if (found == guests_.end()) return false;
  Guest& guest = *found->second;
  if (!guest.line.open()) return true;
  if (guest.standing == Standing::closing) {
    finish_closing(guest);
  } else {
    listen(guest);
  }
  return true;
}

void Guests::listen(Guest& guest) {
  const Line::Read got = guest.line.read();
  switch (got.state) {
    case Line::Read::State::some:
      guest.talk.feed(got.bytes);
      return hear(guest);
    case Line::Read::State::nothing:
      return guest.line.flush(guest.talk);
    case Line::Read::State::ended:
    case Line::Read::State::broken:
      return lose(guest);
  }
}

void Guests::hear(Guest& guest) {
  const auto find_door = [this](std::uint64_t id) -> const Secret* {
    const auto found = doors_.find(id);
    return found == doors_.end() ? nullptr : &found->second.secret;
  };
  for (;;) {
    switch (guest.talk.next(find_door)) {
      case GuestTalk::News::nothing:
        return guest.line.flush(guest.talk);
      case GuestTalk::News::hello:
        strangers_.erase(guest.id);
        guest.standing = Standing::waiting;
        watch_.set_alarm(guest.id, watch_.now() + timeout_ns_);
        call(HostCall::Kind::hello, guest, guest.talk.take_letter());
        break;
      case GuestTalk::News::ready:
        ++counts_.meetings;
        call(HostCall::Kind::ready, guest, guest.talk.take_letter());
        return erase(guest.id);
      case GuestTalk::News::fault:
        return turn_away(guest);
    }
  }
}

void Guests::turn_away(Guest& guest) {
  count(guest.talk.fault());
  if (log_enabled(LogLevel::warn) && complaints_.allow(watch_.now())) {
    log_warn("turned {} away: {} ({} more not shown)", guest.peer, guest.talk.fault_text(),
             complaints_.take_suppressed());
  }
  if (guest.standing == Standing::in_call) return lose(guest);
  if (guest.standing == Standing::accepted) call(HostCall::Kind::gone, guest);
  begin_closing(guest);
}

void Guests::begin_closing(Guest& guest) {
  guest.standing = Standing::closing;
  strangers_.insert(guest.id);
  watch_.set_alarm(guest.id, watch_.now() + kLingerNs);
  // At least once: the end of what is sent must be seen even where all of it went out already.
  guest.line.flush(guest.talk);
  if (guest.talk.outgoing().empty()) guest.line.shut_down();
}

/// Everything is said and read, or thrown away: closing earlier would take the reason from the other end again.
void Guests::finish_closing(Guest& guest) {
  if (!guest.talk.outgoing().empty()) {
    guest.line.flush(guest.talk);
    if (guest.talk.outgoing().empty()) guest.line.shut_down();
  }
  const Line::Read::State got = guest.line.read().state;
  if (got == Line::Read::State::ended || got == Line::Read::State::broken) erase(guest.id);
}

void Guests::lose(Guest& guest) {
  switch (guest.standing) {
    case Standing::in_call:  // `answered` knows whether the host must be told
      guest.lost = true;
      guest.line.close();
      return;
    case Standing::accepted:
      call(HostCall::Kind::gone, guest);
      break;
    case Standing::stranger:
    case Standing::waiting:
    case Standing::closing:
      break;
  }
  erase(guest.id);
}

void Guests::erase(std::uint64_t id) {
  watch_.set_alarm(id, kNever);
  strangers_.erase(id);
  guests_.erase(id);
}

// ---- Hosts ----

void Guests::call(HostCall::Kind kind, const Guest& guest, std::vector<std::byte> letter) {
  const auto door = doors_.find(guest.talk.door());
  if (door == doors_.end()) return;
  calls_.push_back({kind, door->second.host, door->first, guest.id, std::move(letter)});
}

std::optional<HostCall> Guests::take_call() {
  while (!calls_.empty()) {
    HostCall call = std::move(calls_.front());
    calls_.pop_front();
    if (call.kind != HostCall::Kind::hello) return call;
    // A guest that went away before the host heard of it never was there.
    const auto found = guests_.find(call.meeting);
    if (found == guests_.end() || found->second->standing != Standing::waiting) continue;
    found->second->standing = Standing::in_call;
    return call;
  }
  return std::nullopt;
}

void Guests::answered(std::uint64_t meeting, const Result<std::vector<std::byte>>& answer) {
  const auto found = guests_.find(meeting);
  if (found == guests_.end() || found->second->standing != Standing::in_call) return;
  Guest& guest = *found->second;
  if (guest.lost) {
    if (answer) call(HostCall::Kind::gone, guest);
    return erase(meeting);
  }
  if (!answer) {
    guest.talk.refuse(answer.status(), answer.error().message());
    return begin_closing(guest);
  }
  guest.standing = Standing::accepted;
  if (answer->size() > kMostLetter) {
    guest.talk.refuse(Status::out_of_range,
                      fmt::format("its welcome has {} bytes, the longest letter {}", answer->size(), kMostLetter));
    call(HostCall::Kind::gone, guest);
    return begin_closing(guest);
  }
  guest.talk.answer(*answer);
  guest.line.flush(guest.talk);
}

// ---- Time ----

bool Guests::ring(std::uint64_t id) {
  // What has arrived counts, however late this process looks.
  for (int i = 0; i < kLastReads && !watch_.has_alarm(id) && serve(id); ++i) {
  }
  const auto found = guests_.find(id);
  if (found == guests_.end() || watch_.has_alarm(id)) return found != guests_.end();
  Guest& guest = *found->second;
  switch (guest.standing) {
    case Standing::stranger:
      ++counts_.late;
      lose(guest);
      break;
    case Standing::waiting:
    case Standing::accepted:
      guest.talk.refuse(Status::timeout, "the connector took too long");
      if (guest.standing == Standing::accepted) call(HostCall::Kind::gone, guest);
      begin_closing(guest);
      break;
    case Standing::in_call:
    case Standing::closing:
      lose(guest);
      break;
  }
  return true;
}

void Guests::count(GuestTalk::Fault fault) {
  switch (fault) {
    case GuestTalk::Fault::none:
      break;
    case GuestTalk::Fault::malformed:
    case GuestTalk::Fault::version:
      ++counts_.malformed;
      break;
    case GuestTalk::Fault::unknown_door:
      ++counts_.unknown;
      break;
    case GuestTalk::Fault::forged:
      ++counts_.forged;
      break;
  }
}

bool Guests::anything_outgoing() const {
  return std::ranges::any_of(guests_, [](const auto& entry) { return !entry.second->talk.outgoing().empty(); });
}

}  // namespace railyard::message
