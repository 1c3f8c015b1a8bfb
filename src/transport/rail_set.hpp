/// RailSet: the rails of an engine and what it keeps of each: receive buffers, polls, statistics. With the progress
/// lock held, but for the views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "fabric/rail.hpp"
#include "memory/slab.hpp"
#include "railyard/statistics.hpp"

namespace railyard::transport {

/// What the engine keeps of one rail.
struct RailState {
  fabric::Rail* rail = nullptr;
  std::size_t index = 0;              ///< in the set
  memory::Buffer* to_post = nullptr;  ///< receive buffers that the rail had no room for yet
  std::uint32_t posted_receives = 0;
  std::uint32_t most_receives = 0;
  std::uint64_t emptied = 0;  ///< the last poll of all rails that left nothing in this one
  bool down = false;
  bool stuck = false;    ///< it has not given back what a link that has ended held: to be stopped
  bool stopped = false;  ///< for that reason: it touches no memory and carries nothing any more
  RailStatistics statistics;
};

class RailSet {
 public:
  explicit RailSet(std::vector<std::unique_ptr<fabric::Rail>> rails);
  /// Posts the first receives. `batch`: events that one poll of a rail takes. `held`: receive buffers beyond those that
  /// are posted.
  Result<void> open(std::uint32_t batch, std::size_t held);
  /// From here on no rail touches a buffer or a context.
  void stop();
  /// The same for one of them. What it had never comes out of its poll.
  static void stop(RailState& rail);
  /// A fence of that rail's (fabric::Rail::fence); one that is stopped has let go of everything.
  bool fence(std::size_t index, fabric::LinkTag tag) const {
    return states_[index].stopped || rails_[index]->fence(tag);
  }

  std::size_t size() const { return states_.size(); }
  fabric::Rail& operator[](std::size_t index) const { return *rails_[index]; }
  RailState& state(std::size_t index) { return states_[index]; }
  const RailState& state(std::size_t index) const { return states_[index]; }
  std::span<const RailState> states() const { return states_; }
  /// The same for their users: any thread.
  const std::vector<fabric::Rail*>& views() const { return views_; }

  /// Polls each rail once, for a batch at most. `handle(RailState&, const fabric::Event&)` is called for each event;
  /// returns how many there were. So many polls after anything came, rails that are quiet are left out of all but every
  /// `kQuietEvery`-th: a small message over one rail is not to pay for a system call on each of the others.
  template <typename Handle>
  [[gnu::always_inline]] std::size_t poll(Handle&& handle) {
    std::size_t happened = 0;
    ++polls_;
    const bool all = states_.size() == 1 || polls_ % kQuietEvery == 0 || polls_ - busy_ > kQuietAfter;
    for (RailState& rail : states_) {
      if (!all && rail.rail->quiet()) continue;
      const std::size_t count = rail.rail->poll(room_);
      if (count < room_.size()) [[likely]]
        rail.emptied = polls_;
      for (std::size_t i = 0; i < count; ++i) handle(rail, room_[i]);
      happened += count;
      if (rail.posted_receives < rail.most_receives) [[unlikely]]
        post_receives(rail);
    }
    if (happened != 0) busy_ = polls_;
    return happened;
  }
  /// Polls so far.
  std::uint64_t polls() const { return polls_; }
  /// Whether every rail has been read to its end since that poll.
  bool all_read_since(std::uint64_t poll) const;
  /// The doorbells: what was posted leaves. While they are held it stays, so that more leaves together.
  void ring() {
    for (fabric::Rail* rail : rung_) rail->ring();
  }

  void hold(bool held) {
    rung_ = held ? std::span<fabric::Rail* const>() : bells_;
    ring();
  }

  // ---- Receive buffers ----

  /// The rail has used one up: it is the caller's.
  static void took_receive(RailState& rail) { --rail.posted_receives; }
  /// It has been read and goes back to its rail: the one that is still in cache.
  void give_receive(RailState& rail, memory::Buffer* buffer) {
    if (rail.to_post == nullptr && rail.posted_receives < rail.most_receives && post_receive(rail, *buffer)) [[likely]]
      return;
    buffer->next = rail.to_post;
    rail.to_post = buffer;
  }
  /// As many as the rail should have: a buffer that was taken is kept for a while.
  void post_receives(RailState& rail);
  /// One that was kept has been read.
  void release(memory::Buffer* buffer) { receives_->give(buffer); }
  /// How often there was none to post.
  std::uint64_t exhausted() const { return exhausted_; }

  /// Touches what every poll goes through (base/touch.hpp).
  void warm_up() const;

 private:
  static constexpr std::uint64_t kQuietAfter = 64;
  static constexpr std::uint64_t kQuietEvery = 8;

  static bool post_receive(RailState& rail, memory::Buffer& buffer) {
    if (rail.rail->receive(buffer.room(rail.index), &buffer) != fabric::Post::posted) return false;
    ++rail.posted_receives;
    return true;
  }

  std::vector<std::unique_ptr<fabric::Rail>> rails_;  ///< outlive everything registered on them
  std::vector<fabric::Rail*> views_;
  std::vector<fabric::Rail*> bells_;     ///< rails that keep posts until they are rung
  std::span<fabric::Rail* const> rung_;  ///< the same, while they are not held
  std::vector<RailState> states_;
  std::vector<fabric::Event> events_;
  std::span<fabric::Event> room_;  ///< all of them
  std::optional<memory::Slab> receives_;
  std::uint64_t polls_ = 0;
  std::uint64_t busy_ = 0;  ///< the last that brought anything
  std::uint64_t exhausted_ = 0;
};

}  // namespace railyard::transport
