/// Admission: who connects has to prove the secret before it becomes a connection. Until then it has one of a few slots
/// for a few seconds, and those who cannot prove it get a small share of the rail's time, all of them together.
///
/// Whoever has greeted keeps its slot: its PROOF is a round trip away, and a crowd of peers that come at the same
/// moment would otherwise push each other out before any of them gets there. Those for whom there is no slot wait in
/// the kernel's queue. Without the secret nobody greets, and a recorded HELLO holds one slot however often it is sent.
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>

#include "base/entropy.hpp"
#include "fabric/tcp/poll_set.hpp"
#include "fabric/tcp/rail.hpp"
#include "fabric/tcp/socket.hpp"

namespace railyard::fabric::tcp {

namespace {

constexpr std::int64_t kProveWithin = 2'000'000'000;
constexpr int kAcceptsAtOnce = 8;
/// Admission may cost one part in so many of the time, once nobody with the secret has come for `kFreely`.
constexpr std::int64_t kShare = 25;
constexpr std::int64_t kFreely = 2'000'000;
constexpr std::int64_t kMostClosed = 5'000'000;  ///< and so is never closed for longer

/// Processor time of this thread: on a busy machine the clock on the wall says nothing of what admission costs.
std::int64_t cpu_ns() {
  timespec spent{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return std::int64_t{spent.tv_sec} * 1'000'000'000 + spent.tv_nsec;
}

}  // namespace

void TcpRail::look_at_admissions() {
  const std::int64_t began = now_ns();
  if (began < admission_opens_at_) return;
  const std::int64_t cpu_began = cpu_ns();
  admission_waits_ = false;
  // Room for all there can be: nobody's time runs out over what it has sent and we have not read.
  std::array<epoll_event, kMostUnproven + 2> events;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
  const int count = ::epoll_wait(admission_set_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool asked = false;
  bool asked_elsewhere = false;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t mark = events[static_cast<std::size_t>(i)].data.u64;
    if (mark == kListenerMark) {
      asked = true;
    } else if (mark == kMisroutedMark) {
      asked_elsewhere = true;
    } else {
      auto* const one = reinterpret_cast<Unproven*>(mark);
      const auto found = std::ranges::find(unproven_, one, &std::unique_ptr<Unproven>::get);
      if (found != unproven_.end()) read_unproven(*one);
    }
  }
  while (!unproven_.empty() && began - unproven_.front()->since > kProveWithin) drop(*unproven_.front());
  // Last: what was proven, or dropped, has made room.
  if (asked) accept_from(listener_.get(), false);
  if (asked_elsewhere) accept_from(misrouted_listener_.get(), true);
  // The edge of the admission set is used up: as long as something was found there may be more.
  if (count > 0) admission_waits_ = true;
  const std::int64_t spent = cpu_ns() - cpu_began;
  wasted_ += spent;
  if (wasted_ > kFreely) admission_opens_at_ = began + std::min(kShare * spent, kMostClosed);
}

void TcpRail::accept_from(int listener, bool misrouted) {
  for (int i = 0; i < kAcceptsAtOnce && make_room_for_unproven(); ++i) {
    Fd socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    Unproven& one = *unproven_.emplace_back(std::make_unique<Unproven>());
    one.socket = std::move(socket);
    one.misrouted = misrouted;
    one.since = now_ns();
    if (!watch_fd(admission_set_.get(), one.socket.get(), EPOLLIN | EPOLLRDHUP,
                  reinterpret_cast<std::uintptr_t>(&one))) {
      drop(one);
      continue;
    }
    // Whoever was accepted has mostly sent its HELLO by then.
    read_unproven(one);
  }
}

/// Where all slots are taken, the oldest goes that has not even greeted. False: all of them have.
bool TcpRail::make_room_for_unproven() {
  if (unproven_.size() < kMostUnproven) return true;
  const auto mute = std::ranges::find_if(unproven_, [](const auto& one) { return !one->greeted; });
  if (mute == unproven_.end()) return false;
  unproven_.erase(mute);
  return true;
}

bool TcpRail::recorded(const Hello& hello) const {
  return std::ranges::any_of(
      unproven_, [&](const auto& one) { return one->greeted && one->transcript.hello.nonce == hello.nonce; });
}

void TcpRail::drop(Unproven& one) {
  std::erase_if(unproven_, [&](const auto& other) { return other.get() == &one; });
}

void TcpRail::read_unproven(Unproven& one) {
  const std::size_t wanted = one.greeted ? kProofBytes : kHelloBytes;
  const ssize_t got = ::recv(one.socket.get(), one.in.data() + one.have, wanted - one.have, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return drop(one);
  one.have += static_cast<std::size_t>(got);
  if (one.have < wanted) return;
  one.have = 0;
  if (one.greeted) {
    if (!one.transcript.proves(std::span(one.in).first<kProofBytes>(), admission_key_)) return drop(one);
    wasted_ = 0;
    return admit(one);
  }
  const auto hello = Hello::parse(std::span(one.in).first<kHelloBytes>(), admission_key_);
  if (!hello || recorded(*hello) || !fill_random(one.transcript.challenge)) {
    const auto rejection = pack_rejection();
    (void)::send(one.socket.get(), rejection.data(), rejection.size(), MSG_NOSIGNAL);
    return drop(one);
  }
  one.transcript.hello = *hello;
  one.greeted = true;
  const auto challenge = pack_challenge(one.transcript.challenge);
  if (::send(one.socket.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(challenge.size()))
    drop(one);
}

/// Two rails that connect to each other at the same time end up with one connection: that of the rail with the smaller
/// name.
Verdict TcpRail::judge(const Hello& hello, bool misrouted) {
  if (!inbound_.welcome(hello.tag)) return Verdict::fenced;
  if (misrouted) return Verdict::misrouted;
  if (hello.insists || hello.from == own_.name) return Verdict::accepted;
  const TcpLink* const link = facing(hello);
  if (link == nullptr) return Verdict::accepted;
  // One that stands carries the peer's link as well as ours, unless it has ended without our knowing.
  if (link->up()) return link->connection->inbound ? Verdict::accepted : Verdict::crossed;
  const bool connecting = link->connection != nullptr && !link->connection->standing();
  return connecting && own_.name < hello.from ? Verdict::crossed : Verdict::accepted;
}

TcpLink* TcpRail::facing(const Hello& hello) const {
  return links_.facing(hello.tag, [&](const TcpLink& link) { return link.peer.name == hello.from; });
}

void TcpRail::admit(Unproven& one) {
  const Hello hello = one.transcript.hello;
  const Verdict verdict = judge(hello, one.misrouted);
  const auto answer = one.transcript.verdict(verdict, admission_key_);
  const bool told =
      ::send(one.socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(answer.size());
  Fd socket = std::move(one.socket);
  (void)::epoll_ctl(admission_set_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
  drop(one);
  if (verdict != Verdict::accepted || !told) return;
  if (bound_) (void)bind_to_device(socket.get(), interface_.device);  // as its listener is
  tune(socket.get(), socket_options_, hello.tag.traffic_class);
  Connection& connection = add_connection(std::move(socket), Connection::Phase::standing);
  connection.peer = hello.from;
  refusals_.stood(hello.from);
  connection.leaves_host = leaves_host(connection.socket.get());
  seat_inbound(connection, hello.tag);
  activate(connection);
  // A link of ours that faces it need not connect any longer.
  TcpLink* const link = facing(hello);
  if (link == nullptr || !link->connecting()) return;
  Connection* const attempt = link->connection;
  if (attempt != nullptr && (attempt->standing() || attempt->phase == Connection::Phase::proving)) return;
  if (attempt != nullptr) {
    attempt->link = nullptr;
    link->connection = nullptr;
    end_connection(*attempt, 0);
  }
  begin(*link);
}

}  // namespace railyard::fabric::tcp
