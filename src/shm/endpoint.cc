#include "shm/endpoint.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/store_barrier.hpp"

namespace railyard::shm {

namespace {

/// The system is asked whether peers live this often, a few peers each time.
constexpr auto kCheckInterval = std::chrono::milliseconds(2);
constexpr std::size_t kChecksPerSweep = 64;

std::string text_of(const std::array<char, kMostNameBytes + 1>& field) {
  return std::string(field.data(), ::strnlen(field.data(), field.size()));
}

}  // namespace

void Outbound::ring_bell() {
  if (peer_.header().sleeping.exchange(0, std::memory_order_relaxed) == 0) return;  // one stroke is enough
  // For reading too: a pipe that nobody else reads would end this process with a signal.
  if (!bell_) bell_ = Fd(::open(bell_path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  const char stroke = 0;
  // A bell that is full rings already; one that is gone has nobody to wake.
  if (bell_) [[maybe_unused]]
    const ssize_t written = ::write(bell_.get(), &stroke, 1);
}

Result<std::unique_ptr<Endpoint>> Endpoint::open(const Options& options, Listener& listener) {
  allow_waiting_for_stores();
  auto object = OwnObject::create(options.directory, options.name, options.can_sleep);
  if (!object) return std::move(object.error());
  std::unique_ptr<Endpoint> endpoint(new Endpoint(std::move(*object), options, listener));
  if (options.can_sleep) {
    const std::string path = bell_path(options.directory, endpoint->identity());
    if (::mkfifo(path.c_str(), 0600) != 0) return Error(Status::io, fmt::format("{}: {}", path, std::strerror(errno)));
    // For writing too: the bell does not end when the last sender closes it.
    endpoint->bell_ = Fd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (!endpoint->bell_) return Error(Status::io, fmt::format("{}: {}", path, std::strerror(errno)));
  }
  return endpoint;
}

Endpoint::~Endpoint() {
  if (!object_.own()) return;
  while (!receivers_.empty()) disconnect(*receivers_.begin()->second);
  if (options_.can_sleep) ::unlink(bell_path(options_.directory, identity()).c_str());
}

Result<Outbound*> Endpoint::connect_name(std::string_view name) {
  auto peer = PeerObject::open_name(options_.directory, name);
  if (!peer) return std::move(peer.error());
  return connect(std::move(*peer));
}

Result<Outbound*> Endpoint::connect_identity(const Identity& identity) {
  if (const auto it = receivers_.find(identity.bytes); it != receivers_.end()) return it->second.get();
  auto peer = PeerObject::open_identity(options_.directory, identity);
  if (!peer) return std::move(peer.error());
  return connect(std::move(*peer));
}

Result<Outbound*> Endpoint::connect(PeerObject peer) {
  const Identity identity = peer.identity();
  if (const auto it = receivers_.find(identity.bytes); it != receivers_.end()) return it->second.get();
  std::string bell = bell_path(options_.directory, identity);
  std::unique_ptr<Outbound> to(new Outbound(std::move(peer), std::move(bell)));
  if (auto claimed = claim(*to); !claimed) return std::move(claimed.error());
  pair(*to);
  return (receivers_[identity.bytes] = std::move(to)).get();
}

/// The two ways between two endpoints know each other.
void Endpoint::pair(Outbound& to) {
  for (const auto& from : senders_) {
    if (from->sender_.bytes != to.identity().bytes || from->finished_) continue;
    to.back_ = &from->consumer_;
    to.back_claim_ = from->claim_;
    from->back_ = &to;
  }
}
void Endpoint::unpair(const Outbound& to) {
  for (const auto& from : senders_)
    if (from->back_ == &to) from->back_ = nullptr;
}
void Endpoint::unpair(const Inbound& from) {
  for (const auto& [identity, to] : receivers_) {
    if (to->back_ != &from.consumer_) continue;
    to->back_ = nullptr;
    to->back_claim_ = 0;
  }
}

Result<void> Endpoint::claim(Outbound& to) {
  const Owner me = owner_of(identity());
  std::uint32_t ring = 0;
  while (ring < kRings && !exchange_owner(to.peer_.owners()[ring], Owner{}, me).free()) ++ring;
  if (ring == kRings) return Error(Status::busy, "the peer has as many senders as it can have");
  auto memory = to.peer_.map_ring(ring);
  if (!memory) {
    exchange_owner(to.peer_.owners()[ring], me, Owner{});
    return std::move(memory.error());
  }
  to.memory_ = std::move(*memory);
  to.control_ = to.peer_.controls() + ring;
  to.producer_ = Producer(to.memory_.data(), ring_extent(ring).bytes, to.control_);
  to.peer_sleeps_ = to.peer_.header().can_sleep != 0;
  to.claim_ = 1 + claims_++ % (Extent::kClaims - 1);
  RingControl& control = *to.control_;
  control.claim = to.claim_;
  control.pid = ::getpid();
  control.pid_namespace = own_pid_namespace();
  control.name = {};
  std::memcpy(control.name.data(), options_.name.data(), options_.name.size());
  control.ready.store(1, std::memory_order_release);
  auto& highest = to.peer_.header().highest_claim;
  std::uint32_t known = highest.load(std::memory_order_relaxed);
  while (known < ring + 1 && !highest.compare_exchange_weak(known, ring + 1, std::memory_order_release)) {
  }
  announce(to);
  return {};
}

void Endpoint::announce(Outbound& to) {
  to.peer_.header().news.fetch_add(1, std::memory_order_release);
  if (to.peer_sleeps_) to.wake();
}

void Endpoint::disconnect(Outbound& to) {
  to.control_->left.store(1, std::memory_order_release);
  announce(to);
  unpair(to);
  receivers_.erase(to.identity().bytes);
}

bool Endpoint::fall_asleep() {
  auto& sleeping = object_.header().sleeping;
  sleeping.store(1, std::memory_order_seq_cst);
  // Either the record of a sender is seen below, or it sees that this endpoint sleeps.
  wait_for_stores_of_others();
  bool idle = object_.header().news.load(std::memory_order_acquire) == seen_news_;
  for (std::size_t index = 0; idle && index < senders_.size(); ++index) idle = senders_[index]->consumer_.empty();
  if (!idle) sleeping.store(0, std::memory_order_relaxed);
  return idle;
}

void Endpoint::wake_up(bool look) {
  object_.header().sleeping.store(0, std::memory_order_relaxed);
  std::array<char, 64> strokes;
  while (::read(bell_.get(), strokes.data(), strokes.size()) == static_cast<ssize_t>(strokes.size())) {
  }
  if (look) passes_ = kPassesPerLook - 1;  // passes were few
}

bool Endpoint::look_is_due() {
  if (std::chrono::steady_clock::now() - last_check_ < kCheckInterval) return false;
  passes_ = kPassesPerLook - 1;
  return true;
}

void Endpoint::look_around() {
  const std::uint32_t news = object_.header().news.load(std::memory_order_acquire);
  const bool changed = news != seen_news_;
  const auto now = std::chrono::steady_clock::now();
  const bool ask_system = now - last_check_ >= kCheckInterval;
  if (ask_system) last_check_ = now;
  if (!changed && !ask_system) return;
  // Now and then without news: a claimer that died half-way brings none.
  if (changed || next_check_ % kChecksPerSweep == 0) accept_new();
  seen_news_ = news;
  check_senders(ask_system);
  check_receivers(ask_system);
  if (ask_system) ++next_check_;
}

void Endpoint::accept_new() {
  const std::uint32_t highest = std::min(object_.header().highest_claim.load(std::memory_order_acquire), kRings);
  for (std::uint32_t ring = 0; ring < highest; ++ring) {
    if (accepted_[ring]) continue;
    const Owner owner = exchange_owner(object_.owners()[ring], Owner{}, Owner{});
    if (!owner.free()) accept(ring, owner);
  }
}

void Endpoint::accept(std::uint32_t ring, const Owner& owner) {
  RingControl& control = object_.controls()[ring];
  if (control.ready.load(std::memory_order_acquire) == 0) {
    // Being claimed at this moment; or its claimer died half-way, then it is free again.
    if (!identity_alive(options_.directory, identity_of(owner))) release(ring);
    return;
  }
  const RingExtent extent = ring_extent(ring);
  auto from = std::make_unique<Inbound>();
  from->ring_ = ring;
  from->sender_ = identity_of(owner);
  from->name_ = text_of(control.name);
  from->claim_ = control.claim % Extent::kClaims;
  if (auto object = PeerObject::open_identity(options_.directory, from->sender_)) from->object_ = std::move(*object);
  from->consumer_ = Consumer(object_.at(extent.offset), extent.bytes, &control);
  accepted_[ring] = true;
  senders_.push_back(std::move(from));
  if (const auto it = receivers_.find(senders_.back()->sender_.bytes); it != receivers_.end()) pair(*it->second);
}

/// Empties the ring before its owner field: the next claimer finds everything as new.
void Endpoint::release(std::uint32_t ring) {
  RingControl& control = object_.controls()[ring];
  clear_ring(object_.at(ring_extent(ring).offset), ring_extent(ring).bytes);
  control.consumed.store(0, std::memory_order_relaxed);
  control.left.store(0, std::memory_order_relaxed);
  control.ready.store(0, std::memory_order_relaxed);
  Owner& owner = object_.owners()[ring];
  accepted_[ring] = false;
  exchange_owner(owner, exchange_owner(owner, Owner{}, Owner{}), Owner{});
}

bool Endpoint::ended(const Inbound& from, bool ask_system, bool& died) {
  const bool left = object_.controls()[from.ring_].left.load(std::memory_order_acquire) != 0;
  died = !left && ask_system && !(from.object_ && from.object_->alive());
  return left || died;
}

void Endpoint::check_senders(bool ask_system) {
  for (std::size_t index = 0; index < senders_.size();) {
    Inbound& from = *senders_[index];
    const bool in_turn = ask_system && (index + next_check_ * kChecksPerLook) % senders_.size() < kChecksPerLook;
    bool died = false;
    const bool over = ended(from, in_turn, died);
    // What it sent before its end counts: the ring is read to the last record first.
    const bool unread = !from.consumer_.empty() && !from.consumer_.broken();
    if (!from.finished_ && (from.consumer_.broken() || (over && !unread))) {
      from.finished_ = true;
      listener_.left(from, died || from.consumer_.broken());
    }
    if (over && from.finished_) {
      if (died) identity_alive(options_.directory, from.sender_);  // removes what it left behind
      unpair(from);
      release(from.ring_);
      std::swap(senders_[index], senders_.back());
      senders_.pop_back();
    } else {
      ++index;
    }
  }
}

bool Endpoint::has_sender(const Identity& identity) const {
  return std::any_of(senders_.begin(), senders_.end(), [&identity](const auto& from) {
    return from->sender_.bytes == identity.bytes && !from->finished_;
  });
}

void Endpoint::check_receivers(bool ask_system) {
  std::size_t index = 0;
  for (auto it = receivers_.begin(); it != receivers_.end(); ++index) {
    Outbound& to = *it->second;
    const bool in_turn = ask_system && (index + next_check_ * kChecksPerLook) % receivers_.size() < kChecksPerLook;
    if (!to.lost_ && (to.gone() || (in_turn && !to.peer_.alive()))) to.lost_ = true;
    const auto current = it++;
    // What the peer sent before its end is handled first: an answer in it may end what waits for the peer.
    if (to.lost_ && !has_sender(to.identity())) {
      listener_.lost(to);
      unpair(to);
      receivers_.erase(current);
    }
  }
}

}  // namespace railyard::shm
