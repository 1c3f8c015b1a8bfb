/// Verified traffic of every kind between this rank and one other, both ways. The caller steps it until it is done.
#pragma once

#include <chrono>

#include "stream.hpp"
#include "words.hpp"

namespace railyard::soak {

/// A rank's window: one shelf that never changes, then one part for each source.
class Layout {
 public:
  static constexpr std::size_t kShelf = 1 << 20;
  static constexpr std::size_t kSignalsPerSource = 4;

  Layout(int ranks, StreamShape shape)
      : ranks_(static_cast<std::size_t>(ranks)), part_(64 + shape.slots * shape.most) {}

  std::size_t bytes() const { return kShelf + ranks_ * part_; }
  std::size_t signals() const { return ranks_ * kSignalsPerSource; }
  std::size_t part_of(int source) const { return kShelf + static_cast<std::size_t>(source) * part_; }

  Lane lane(int source, int target) const {
    return {source, target, part_of(source) + 64, signal(source, 0), signal(target, 1)};
  }
  WordOffsets words(int source, int target) const {
    return {source, target, part_of(source), signal(source, 2), 0, kShelf};
  }
  /// The signal at the target that says that the source has said all.
  static std::size_t last(int source) { return signal(source, 3); }

 private:
  static std::size_t signal(int other, std::size_t which) {
    return static_cast<std::size_t>(other) * kSignalsPerSource + which;
  }
  std::size_t ranks_;
  std::size_t part_;
};

struct PairOptions {
  StreamShape out;
  StreamShape in;
  std::chrono::nanoseconds side_gap{0};  ///< between two rounds of atomics, signals and gets; 0: as fast as they go
};

class Pair {
 public:
  Pair(World& world, Window& window, const Layout& layout, int peer, const PairOptions& options)
      : window_(window),
        layout_(layout),
        rank_(world.rank()),
        peer_(peer),
        side_gap_(options.side_gap),
        sender_(window, layout.lane(rank_, peer), options.out),
        receiver_(world, window, layout.lane(peer, rank_), options.in, findings_),
        fetches_(window, layout.words(rank_, peer), findings_),
        adds_(window, layout.words(rank_, peer)),
        gets_(window, layout.words(rank_, peer), findings_) {}

  /// One small step of everything. `go_on`: new operations may begin. True: something moved.
  Result<bool> step(bool go_on) {
    auto moved = receiver_.step();
    if (!moved) return moved;
    bool any = *moved;
    auto fetched = fetches_.step();
    if (!fetched) return fetched;
    auto got = gets_.step();
    if (!got) return got;
    any |= *fetched || *got;
    if (go_on) {
      auto sent = sender_.step();
      if (!sent) return sent;
      any |= *sent;
      if (auto begun = begin_side(); !begun) return std::move(begun.error());
    } else if (!said_) {
      if (auto told = say_totals(); !told) return std::move(told.error());
    }
    if (!heard_ && window_.read_signal(Layout::last(peer_)) != 0) {
      if (auto heard = hear_totals(); !heard) return std::move(heard.error());
      any = true;
    }
    return any;
  }

  /// Both sides have said all and everything they said was checked.
  bool done() const { return said_ && heard_ && fetches_.idle() && gets_.idle(); }
  /// After a barrier: nothing may have come since the totals were compared.
  void check_again() {
    if (heard_) compare();
  }

  int peer() const { return peer_; }
  const Findings& findings() const { return findings_; }
  std::uint64_t sent() const { return sender_.sent(); }
  std::uint64_t received() const { return receiver_.received(); }
  std::uint64_t verified_bytes() const { return receiver_.verified_bytes() + gets_.verified_bytes(); }
  std::uint64_t fetched() const { return fetches_.asked(); }
  std::uint64_t got() const { return gets_.asked(); }

 private:
  Result<void> begin_side() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_side_) return {};
    next_side_ = now + side_gap_;
    if (auto begun = fetches_.begin(); !begun) return begun;
    if (auto begun = adds_.begin(); !begun) return begun;
    return gets_.begin();
  }

  Result<void> say_totals() {
    totals_ = {0, 0, sender_.sent(), fetches_.asked(), adds_.sum(), adds_.signal_sum()};
    constexpr std::size_t kFirst = offsetof(Words, messages);
    auto told = window_.put_signal(peer_, layout_.part_of(rank_) + kFirst, &totals_.messages, sizeof(Words) - kFirst,
                                   {Layout::last(rank_), 1});
    if (!told) return std::move(told.error());
    said_ = true;
    return {};
  }

  Words words() const {
    Words words;
    std::memcpy(&words, window_.local().data() + layout_.part_of(peer_), sizeof words);
    return words;
  }

  Result<void> hear_totals() {
    heard_ = true;
    if (auto finished = receiver_.finish(words().messages); !finished) return finished;
    compare();
    return {};
  }

  void compare() {
    const Words words = this->words();
    const auto exact = [&](const char* what, std::uint64_t held, std::uint64_t expected) {
      if (held == expected) return;
      ++(held < expected ? findings_.lost : findings_.doubled);
      fmt::print(stderr, "rank {}: {} of rank {}: {}, expected {}\n", rank_, what, peer_, held, expected);
    };
    exact("messages", window_.read_signal(layout_.lane(peer_, rank_).arrived), words.messages);
    exact("fetching additions", words.fetched, words.fetches);
    exact("sum of additions", words.summed, words.sum);
    exact("sum of signals", window_.read_signal(layout_.words(peer_, rank_).signal), words.signal_sum);
    exact("last signal", window_.read_signal(Layout::last(peer_)), 1);
  }

  Window& window_;
  const Layout& layout_;
  int rank_;
  int peer_;
  std::chrono::nanoseconds side_gap_;
  Findings findings_;
  StreamSender sender_;
  StreamReceiver receiver_;
  FetchingAdds fetches_;
  PlainAdds adds_;
  CheckedGets gets_;
  std::chrono::steady_clock::time_point next_side_;
  Words totals_{};
  bool said_ = false;
  bool heard_ = false;
};

}  // namespace railyard::soak
