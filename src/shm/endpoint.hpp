/// Endpoint: sends and receives records through shared memory. It knows rings, peers, life and death; what a record
/// means is its user's: the rail and the libfabric provider put their own protocols on top.
///
/// Calls come from one thread at a time. Nothing blocks.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shm/object.hpp"
#include "shm/ring.hpp"

namespace railyard::shm {

/// This endpoint's ring in a peer's object.
class Outbound {
 public:
  /// Room for a record (see Producer), null when there is none now.
  Record* reserve_line() { return producer_.reserve_line(); }
  Reservation reserve(std::size_t bytes) { return producer_.reserve(bytes); }
  void publish(Word word) {
    producer_.publish(word, back_claim_, back_ != nullptr ? back_->freed() : 0);
    if (peer_sleeps_) wake();
  }
  void write(std::byte* to, const std::byte* from, std::size_t bytes) { producer_.write(to, from, bytes); }
  std::size_t most_payload() const { return producer_.most_payload(); }
  std::size_t chunk_bytes(std::size_t total) const { return producer_.chunk_bytes(total); }

  /// The peer has closed or its ring is broken: nothing sent now arrives. A look at a line that never changes else.
  bool gone() const { return lost_ || peer_.closed() || producer_.broken(); }
  /// The peer's own counters cannot be: nothing sent now arrives, though it may live.
  bool broken() const { return producer_.broken(); }
  const Identity& identity() const { return peer_.identity(); }
  const PeerObject& peer() const { return peer_; }

  /// Rings the peer's bell if it sleeps. After a record, or another store that the peer's wait depends on: no fence,
  /// see `fall_asleep`.
  void wake() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (peer_.header().sleeping.load(std::memory_order_relaxed) != 0) [[unlikely]]
      ring_bell();
  }

  void* user = nullptr;  ///< its user's own

 private:
  friend class Endpoint;
  Outbound(PeerObject peer, std::string bell) : peer_(std::move(peer)), bell_path_(std::move(bell)) {}
  [[gnu::hot]] void ring_bell();

  PeerObject peer_;
  Mapping memory_;
  Producer producer_;
  std::uint32_t claim_ = 0;         ///< our number for this ring
  const Consumer* back_ = nullptr;  ///< the peer's ring here: what was freed of it goes out with every record
  std::uint32_t back_claim_ = 0;
  RingControl* control_ = nullptr;
  bool peer_sleeps_ = false;
  bool lost_ = false;
  std::string bell_path_;
  Fd bell_;
};

/// A peer's ring in this endpoint's object.
class Inbound {
 public:
  const Identity& sender() const { return sender_; }
  /// The name the sender goes by: empty if it has only its identity.
  const std::string& name() const { return name_; }

  void* user = nullptr;  ///< its user's own

 private:
  friend class Endpoint;
  std::uint32_t ring_ = 0;
  Identity sender_;
  std::string name_;
  std::optional<PeerObject> object_;  ///< to see whether the sender lives; empty if it had gone when it was accepted
  Consumer consumer_;
  std::uint32_t claim_ = 0;   ///< the sender's number for this ring
  Outbound* back_ = nullptr;  ///< our ring there: what the peer freed of it comes in with every record
  bool finished_ = false;     ///< reported as ended; the ring waits for its owner's end
};

/// What an endpoint tells its user, from inside `poll`.
class Listener {
 public:
  virtual ~Listener() = default;
  /// All that the sender ever sent has been handled; `died`: it did not say goodbye.
  virtual void left(Inbound& from, bool died) = 0;
  /// Nothing sent there arrives any more, and all that came from there has been handled. The Outbound ends after this.
  virtual void lost(Outbound& to) = 0;
};

class Endpoint {
 public:
  struct Options {
    std::string directory = kDefaultDirectory;
    std::string name;
    bool can_sleep = false;
  };
  static Result<std::unique_ptr<Endpoint>> open(const Options& options, Listener& listener);
  ~Endpoint();

  const Identity& identity() const { return object_.identity(); }

  /// The way to a peer, made at the first call. `not_found`: nobody there now. `busy`: the peer has no ring left.
  Result<Outbound*> connect_name(std::string_view name);
  Result<Outbound*> connect_identity(const Identity& identity);
  void disconnect(Outbound& to);

  /// Hands records to `handler(Inbound&, const Arrival&)`, which answers whether it took the record; one that it did
  /// not take stays, and its sender waits. Returns how many were taken.
  template <typename Handler>
  std::size_t poll(Handler&& handler) {
    std::size_t taken = 0;
    const std::size_t watched = std::min(senders_.size(), kWatched);
    for (std::size_t index = 0; index < watched; ++index)
      if (!senders_[index]->consumer_.quiet()) taken += drain(*senders_[index], handler);
    if (senders_.size() > kWatched) [[unlikely]]
      taken += visit_others(handler);
    if (++passes_ % kPassesPerLook == 0 || object_.header().news.load(std::memory_order_acquire) != seen_news_)
        [[unlikely]]
      look_around();
    return taken;
  }

  /// Says that this endpoint's thread will sleep on `bell()`. False: there is something to do first.
  bool fall_asleep();
  /// `look`: whether peers live, in the next poll. Not for those who do so before they sleep.
  void wake_up(bool look = true);
  /// True: the next poll looks whether peers live, which it has not done for a while.
  bool look_is_due();
  /// Readable when a sender woke us; -1 where the endpoint cannot sleep.
  int bell() const { return bell_.get(); }

  std::size_t sender_count() const { return senders_.size(); }

 private:
  /// Rings looked at in every pass; of the others as many in turn, and one that has something changes places.
  static constexpr std::size_t kWatched = 16;
  static constexpr std::size_t kRecordsPerVisit = 32;
  static constexpr std::uint32_t kPassesPerLook = 1024;
  static constexpr std::size_t kChecksPerLook = 8;

  Endpoint(OwnObject object, Options options, Listener& listener)
      : object_(std::move(object)), options_(std::move(options)), listener_(listener) {}

  template <typename Handler>
  static std::size_t drain(Inbound& from, Handler& handler) {
    Arrival arrival;
    std::size_t taken = 0;
    while (taken < kRecordsPerVisit && from.consumer_.peek(arrival)) {
      if (from.back_ != nullptr && Extent::claim_of(arrival.record->extent) == from.back_->claim_)
        from.back_->producer_.told(arrival.record->freed);
      if (!handler(from, arrival)) break;
      from.consumer_.pop();
      ++taken;
    }
    return taken;
  }
  template <typename Handler>
  std::size_t visit_others(Handler& handler) {
    std::size_t taken = 0;
    for (std::size_t visits = 0; visits < kWatched; ++visits) {
      if (++next_visit_ >= senders_.size()) next_visit_ = kWatched;
      const std::size_t got = drain(*senders_[next_visit_], handler);
      if (got != 0) std::swap(senders_[next_visit_], senders_[next_promotion_++ % kWatched]);
      taken += got;
    }
    return taken;
  }

  Result<Outbound*> connect(PeerObject peer);
  Result<void> claim(Outbound& to);
  static void announce(Outbound& to);
  void pair(Outbound& to);
  void unpair(const Outbound& to);
  void unpair(const Inbound& from);
  void look_around();
  void accept_new();
  void accept(std::uint32_t ring, const Owner& owner);
  void check_senders(bool ask_system);
  void check_receivers(bool ask_system);
  bool has_sender(const Identity& identity) const;
  bool ended(const Inbound& from, bool ask_system, bool& died);
  void release(std::uint32_t ring);

  OwnObject object_;
  Options options_;
  Listener& listener_;
  Fd bell_;
  std::vector<std::unique_ptr<Inbound>> senders_;
  std::map<std::array<std::uint8_t, 16>, std::unique_ptr<Outbound>> receivers_;  ///< by identity
  std::uint32_t claims_ = 0;
  std::vector<bool> accepted_ = std::vector<bool>(kRings);
  std::uint32_t seen_news_ = 0;
  std::uint32_t passes_ = 0;
  std::size_t next_visit_ = 0;
  std::size_t next_promotion_ = 0;
  std::size_t next_check_ = 0;
  std::chrono::steady_clock::time_point last_check_{};
};

}  // namespace railyard::shm
