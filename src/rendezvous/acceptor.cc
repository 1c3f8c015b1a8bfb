#include "rendezvous/acceptor.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/entropy.hpp"

namespace railyard::rendezvous {

namespace {

Result<Nonce> nonce_of_the_system() {
  Nonce nonce;
  if (auto filled = fill_random(nonce); !filled) return std::move(filled.error());
  return nonce;
}

Complaint complaint_of(const Error& error) {
  return {error.status(), error.where().peer, std::string(error.message())};
}

}  // namespace

Acceptor::Acceptor(AcceptorOptions options, AcceptingProtocol& protocol, const Clock& clock)
    : options_([&] {
        if (!options.make_nonce) options.make_nonce = nonce_of_the_system;
        return std::move(options);
      }()),
      protocol_(protocol),
      clock_(clock) {}

Acceptor::Connection* Acceptor::find(ConnectionId id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : &found->second;
}

// ---- Slots ----

bool Acceptor::has_room() const {
  return expendable_.size() + challenged_.size() < options_.most_unauthenticated ||
         who_makes_room(kLeastStayNs).has_value();
}

void Acceptor::connected(ConnectionId id, const std::string& peer) {
  if (expendable_.size() + challenged_.size() >= options_.most_unauthenticated) {
    if (const auto oldest = who_makes_room(kLeastStayNs)) make_room(*oldest);
  }
  const std::int64_t now = clock_.now();
  Connection& connection =
      connections_.try_emplace(id, peer, options_.protocol, options_.most_frame, now).first->second;
  set_deadline(id, connection, now + options_.handshake_timeout_ns);
  expendable_.insert(id);
}

std::optional<ConnectionId> Acceptor::who_makes_room(std::int64_t least_stay_ns) const {
  if (!expendable_.empty()) return *expendable_.begin();
  if (challenged_.empty()) return std::nullopt;
  const ConnectionId oldest = *challenged_.begin();
  if (clock_.now() - connections_.at(oldest).since_ns < least_stay_ns) return std::nullopt;
  return oldest;
}

void Acceptor::make_room(ConnectionId id) {
  Connection& connection = connections_.at(id);
  if (connection.phase != Phase::closing) ++counts_.late;
  tell_lost(id, connection, "it made room for others before its proof");
  drop(id);
}

bool Acceptor::drop_unauthenticated() {
  const auto oldest = who_makes_room(INT64_MIN);
  if (oldest) make_room(*oldest);
  return oldest.has_value();
}

// ---- What arrives ----

void Acceptor::received(ConnectionId id, Bytes bytes) {
  Connection* connection = find(id);
  if (connection == nullptr || connection->phase == Phase::closing) return;
  connection->end.feed(bytes);
  Frame frame;
  // Whatever the protocol does may end the connection.
  while ((connection = find(id)) != nullptr && connection->phase != Phase::closing) {
    switch (connection->end.next(frame)) {
      case AcceptingEnd::News::nothing:
        return;
      case AcceptingEnd::News::hello:
        said_hello(id, *connection);
        break;
      case AcceptingEnd::News::proven:
        was_proven(id, *connection);
        break;
      case AcceptingEnd::News::frame:
        protocol_.received(id, frame);
        break;
      case AcceptingEnd::News::fault:
        at_fault(id, *connection);
        break;
    }
  }
}

void Acceptor::said_hello(ConnectionId id, Connection& connection) {
  auto key = protocol_.key_of(id, connection.end.claim());
  if (!key) {
    ++counts_.unknown;
    return turn_away(id, connection, complaint_of(key.error()), {});
  }
  connection.claimed = true;
  auto nonce = options_.make_nonce();
  if (!nonce) return turn_away(id, connection, complaint_of(nonce.error()), "no random bytes to challenge it with");
  connection.phase = Phase::proof;
  expendable_.erase(id);
  challenged_.insert(id);
  connection.end.challenge(std::move(*key), *nonce);
  touched_.insert(id);
}

void Acceptor::was_proven(ConnectionId id, Connection& connection) {
  challenged_.erase(id);
  set_deadline(id, connection, kNever);
  if (const auto complaint = protocol_.proven(id)) {
    connection.claimed = false;
    return turn_away(id, connection, *complaint, {});
  }
  connection.phase = Phase::open;
  connection.end.let_in();
  touched_.insert(id);
}

void Acceptor::at_fault(ConnectionId id, Connection& connection) {
  const AcceptingEnd::Fault fault = connection.end.fault();
  const bool forged = fault == AcceptingEnd::Fault::wrong_key || fault == AcceptingEnd::Fault::forged;
  ++(forged ? counts_.forged : counts_.malformed);
  const bool wrong_key = fault == AcceptingEnd::Fault::wrong_key;
  const Complaint complaint = wrong_key ? protocol_.wrong_key(id) : connection.end.complaint();
  turn_away(id, connection, complaint, fmt::format("it sent {}", connection.end.what()));
}

void Acceptor::turn_away(ConnectionId id, std::string_view what) {
  Connection* const connection = find(id);
  if (connection == nullptr || connection->phase == Phase::closing) return;
  ++counts_.malformed;
  turn_away(id, *connection, {Status::invalid, -1, fmt::format("received {}", what)}, fmt::format("it sent {}", what));
}

void Acceptor::turn_away(ConnectionId id, Connection& connection, const Complaint& complaint, std::string_view why) {
  if (log_enabled(LogLevel::warn) && complaints_.allow(clock_.now())) {
    log_warn("{} turned {} away: {} ({} more not shown)", options_.who, connection.peer, complaint.text,
             complaints_.take_suppressed());
  }
  const bool known = connection.claimed;
  refuse(id, complaint);
  if (known) protocol_.lost(id, why);
}

void Acceptor::tell_lost(ConnectionId id, Connection& connection, std::string_view why) {
  if (std::exchange(connection.claimed, false)) protocol_.lost(id, why);
}

void Acceptor::closed(ConnectionId id, std::string_view why) {
  Connection* const connection = find(id);
  if (connection == nullptr) return;
  const bool known = connection->claimed;
  forget(id);
  if (known) protocol_.lost(id, why);
}

// ---- What goes out ----

void Acceptor::send(ConnectionId id, const OutgoingFrame& frame) {
  Connection* const connection = find(id);
  if (connection == nullptr || connection->phase != Phase::open) return;
  connection->end.send(frame);
  touched_.insert(id);
}

std::size_t Acceptor::unsent(ConnectionId id) const {
  const Connection* const connection = find(id);
  return connection == nullptr ? 0 : connection->end.unsent();
}

void Acceptor::close(ConnectionId id) {
  Connection* const connection = find(id);
  if (connection == nullptr || connection->phase == Phase::closing) return;
  connection->phase = Phase::closing;
  connection->claimed = false;
  set_deadline(id, *connection, clock_.now() + kLingerNs);
  challenged_.erase(id);
  expendable_.insert(id);
  touched_.insert(id);
}

void Acceptor::refuse(ConnectionId id, const Complaint& complaint) {
  Connection* const connection = find(id);
  if (connection == nullptr || connection->phase == Phase::closing) return;
  connection->end.refuse(complaint);
  close(id);
}

void Acceptor::drop(ConnectionId id) {
  if (find(id) == nullptr) return;
  forget(id);
  dropped_.push_back(id);
}

void Acceptor::forget(ConnectionId id) {
  set_deadline(id, kNever);
  expendable_.erase(id);
  challenged_.erase(id);
  touched_.erase(id);
  connections_.erase(id);
}

Conversation* Acceptor::conversation(ConnectionId id) {
  Connection* const connection = find(id);
  return connection == nullptr ? nullptr : &connection->end;
}

bool Acceptor::finished(ConnectionId id) const {
  const Connection* const connection = find(id);
  return connection != nullptr && connection->phase == Phase::closing;
}

std::vector<ConnectionId> Acceptor::take_touched() {
  std::vector<ConnectionId> ids(touched_.begin(), touched_.end());
  touched_.clear();
  return ids;
}

bool Acceptor::anything_outgoing() const {
  return std::ranges::any_of(connections_, [](const auto& entry) { return !entry.second.end.outgoing().empty(); });
}

// ---- Time ----

void Acceptor::set_deadline(ConnectionId id, std::int64_t due_ns) {
  if (Connection* const connection = find(id)) set_deadline(id, *connection, due_ns);
}

void Acceptor::set_deadline(ConnectionId id, Connection& connection, std::int64_t due_ns) {
  if (connection.deadline_ns != kNever) deadlines_.erase({connection.deadline_ns, id});
  connection.deadline_ns = due_ns;
  if (due_ns != kNever) deadlines_.insert({due_ns, id});
}

std::int64_t Acceptor::deadline_of(ConnectionId id) const {
  const Connection* const connection = find(id);
  return connection == nullptr ? kNever : connection->deadline_ns;
}

std::vector<ConnectionId> Acceptor::late() const {
  std::vector<ConnectionId> ids;
  const std::int64_t now = clock_.now();
  for (const auto& [due, id] : deadlines_) {
    if (due > now) break;
    ids.push_back(id);
  }
  return ids;
}

void Acceptor::tick() {
  for (const ConnectionId id : late()) {
    Connection* const connection = find(id);
    if (connection == nullptr || connection->deadline_ns > clock_.now()) continue;
    set_deadline(id, *connection, kNever);
    switch (connection->phase) {
      case Phase::open:
        protocol_.late(id);
        break;
      case Phase::hello:
      case Phase::proof:
        ++counts_.late;
        tell_lost(id, *connection, "it did not prove itself in time");
        drop(id);
        break;
      case Phase::closing:
        drop(id);
        break;
    }
  }
}

}  // namespace railyard::rendezvous
