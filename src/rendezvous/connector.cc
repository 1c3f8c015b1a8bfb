#include "rendezvous/connector.hpp"

#include <errno.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/entropy.hpp"

namespace railyard::rendezvous {

namespace {

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

std::int64_t sum(std::int64_t time_ns, std::int64_t duration_ns) {
  return duration_ns > kNever - time_ns ? kNever : time_ns + duration_ns;
}

}  // namespace

Connector::Connector(EpollSet& set, std::uint64_t id, ConnectorOptions options)
    : set_(set), id_(id), options_(std::move(options)), jitter_(id), deadline_ns_(options_.deadline_ns) {}

// ---- Reaching the acceptor ----

void Connector::start() { start_round(); }

void Connector::start_round() {
  auto endpoints = options_.endpoints();
  if (endpoints && endpoints->empty()) endpoints = Error(Status::not_found, "no address found");
  if (!endpoints) {
    if (!options_.patient) {
      return fail(Failure::Kind::unreachable, endpoints.status(), std::string(endpoints.error().message()));
    }
    Endpoint unknown;
    unknown.text = "address";
    attempts_.begin_round({unknown});
    return settle(attempts_.failed(Finality::uncertain, endpoints.status(), std::string(endpoints.error().message())));
  }
  attempts_.begin_round(std::move(*endpoints));
  connect();
}

void Connector::connect() {
  ConnectAttempts::Next next = ConnectAttempts::Next::endpoint;
  while (next == ConnectAttempts::Next::endpoint) {
    if (try_address(next)) return;
  }
  settle(next);
}

bool Connector::try_address(ConnectAttempts::Next& next) {
  Connecting connecting = start_connecting(attempts_.endpoint());
  if (!connecting.socket) {
    const Finality finality = options_.patient ? Finality::uncertain : finality_of(connecting.code);
    next = attempts_.failed(finality, Status::io, std::strerror(connecting.code));
    return false;
  }
  socket_ = Socket(set_, std::move(connecting.socket), id_, true);
  state_ = State::connecting;
  attempts_.note("no answer to the connection request");
  set_.set_alarm(id_, std::min(sum(set_.now(), attempts_.patience_ns()), deadline_ns_));
  return true;
}

void Connector::move_on(Finality finality, Status status, std::string why) {
  end_.reset();
  socket_.close();
  const auto next = attempts_.failed(options_.patient ? Finality::uncertain : finality, status, std::move(why));
  if (next == ConnectAttempts::Next::endpoint) return connect();
  settle(next);
}

/// There is no other address in this round.
void Connector::settle(ConnectAttempts::Next next) {
  if (next == ConnectAttempts::Next::none) return fail(Failure::Kind::unreachable, attempts_.status(), story());
  state_ = State::pausing;
  // Many processes may try at a time: no two of them in step.
  const std::int64_t most = attempts_.pause_ns();
  const auto pause = most / 2 + static_cast<std::int64_t>(jitter_.below(static_cast<std::uint64_t>(most)));
  set_.set_alarm(id_, std::min(sum(set_.now(), pause), deadline_ns_));
}

void Connector::start_talking() {
  Nonce nonce;
  if (auto filled = fill_random(nonce); !filled) {
    return fail(Failure::Kind::unreachable, filled.status(), std::string(filled.error().message()));
  }
  end_.emplace(ConnectingEnd::Options{options_.protocol, options_.claim, options_.key, options_.most_frame,
                                      options_.first ? std::optional(options_.first()) : std::nullopt},
               nonce);
  state_ = State::talking;
  attempts_.note("connected, but its process does not answer: does it make progress?");
  set_.set_alarm(id_, std::min(sum(set_.now(), options_.proof_ns), deadline_ns_));
  socket_.flush(*end_);
}

// ---- Talking to it ----

void Connector::serve() {
  switch (state_) {
    case State::connecting: {
      const auto code = socket_.connected();
      if (!code) return;
      if (*code != 0) return move_on(finality_of(*code), Status::io, std::strerror(*code));
      return start_talking();
    }
    case State::talking:
      return hear();
    case State::leaving:
      return leave();
    case State::pausing:
    case State::over:
      return;
  }
}

void Connector::hear() {
  const Socket::Read got = socket_.read();
  switch (got.state) {
    case Socket::Read::State::some:
      break;
    case Socket::Read::State::nothing:
      return socket_.flush(*end_);
    case Socket::Read::State::ended:
      return lose("it closed the connection");
    case Socket::Read::State::broken:
      return lose(fmt::format("the connection broke: {}", std::strerror(got.code)));
  }
  if (failure_) return;
  end_->feed(got.bytes);
  Frame frame;
  while (state_ == State::talking) {
    const bool before = end_->proven();
    const ConnectingEnd::News news = end_->next(frame);
    if (!before && end_->proven()) proved();
    switch (news) {
      case ConnectingEnd::News::nothing:
        return socket_.flush(*end_);
      case ConnectingEnd::News::frame:
        options_.on_frame(frame);
        break;
      case ConnectingEnd::News::failure:
        return at_failure(Failure(*end_->failure()));
    }
  }
}

void Connector::proved() {
  deadline_ns_ = sum(deadline_ns_, options_.grace_ns);
  if (!established_) set_.set_alarm(id_, deadline_ns_);
}

void Connector::at_failure(const Failure& failure) {
  const auto& [status, peer, text] = failure.complaint;
  if (failure.kind == Failure::Kind::told) {
    failure_ = failure;
    return set_.set_alarm(id_, kNever);
  }
  const bool final = established_ || (options_.patient && failure.kind != Failure::Kind::nobody);
  if (final) return fail(failure.kind, status, text, peer);
  // It may be somebody else's process: addresses of one machine's inside exist on others too.
  move_on(Finality::certain, status, text);
}

void Connector::lose(std::string_view why) {
  if (failure_) return close();
  if (established_) return fail(Failure::Kind::lost, Status::peer_lost, std::string(why));
  deadline_ns_ = options_.deadline_ns;
  move_on(Finality::uncertain, Status::io, fmt::format("{} before it answered", why));
}

void Connector::establish() {
  established_ = true;
  set_.set_alarm(id_, kNever);
}

void Connector::send(FrameType type, Bytes payload) {
  if (state_ != State::talking) return;
  end_->send(type, payload);
  socket_.flush(*end_);
}

void Connector::finish(std::int64_t by_ns) {
  if (state_ != State::talking) {
    state_ = State::over;
    return;
  }
  state_ = State::leaving;
  set_.set_alarm(id_, by_ns);
  if (end_->outgoing().empty()) {
    socket_.shut_down();
    set_.set_alarm(id_, sum(set_.now(), kLingerNs));
  }
}

void Connector::leave() {
  const bool had_more = !end_->outgoing().empty();
  socket_.flush(*end_);
  if (had_more && end_->outgoing().empty()) {
    socket_.shut_down();
    set_.set_alarm(id_, sum(set_.now(), kLingerNs));
  }
  const Socket::Read::State got = socket_.read().state;
  if (got == Socket::Read::State::ended || got == Socket::Read::State::broken) state_ = State::over;
}

void Connector::close() {
  end_.reset();
  socket_.close();
  state_ = State::over;
  set_.set_alarm(id_, kNever);
}

void Connector::fail(Failure::Kind kind, Status status, std::string text, std::int32_t peer) {
  close();
  failure_ = {kind, {status, peer, std::move(text)}};
}

// ---- Time ----

void Connector::ring() {
  for (int i = 0; i < kLastReads && socket_.open() && !set_.has_alarm(id_); ++i) serve();
  if (set_.has_alarm(id_)) return;
  const bool late = set_.now() >= deadline_ns_;
  switch (state_) {
    case State::connecting:
      if (!late) return move_on(Finality::uncertain, Status::timeout, "no answer to the connection request");
      break;
    case State::pausing:
      if (!late) return start_round();
      break;
    case State::talking:
      if (established_ || failure_) return;
      if (!late) return move_on(Finality::uncertain, Status::timeout, "it accepted the connection and did not answer");
      break;
    case State::leaving:
      state_ = State::over;
      return;
    case State::over:
      return;
  }
  fail(Failure::Kind::late, Status::timeout, story());
}

}  // namespace railyard::rendezvous
