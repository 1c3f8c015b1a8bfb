/// Atomics, bare signals and gets from one rank to another, with every value checked.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <vector>

#include "pattern.hpp"
#include "railyard/window.hpp"

namespace railyard::soak {

/// Words in the target's window that one source changes, and what it says at the end.
struct Words {
  std::uint64_t fetched;   ///< fetch-add 1
  std::uint64_t summed;    ///< add of many values
  std::uint64_t messages;  ///< what the source did in all: written once, at the end
  std::uint64_t fetches;
  std::uint64_t sum;
  std::uint64_t signal_sum;
};

/// Where one source's words and the target's shelf (bytes that never change, for gets) are.
struct WordOffsets {
  int source = 0;
  int target = 0;
  std::size_t words = 0;        ///< offset of Words in the target's window
  std::size_t signal = 0;       ///< signal at the target that the source adds to
  std::size_t shelf = 0;        ///< offset in the target's window
  std::size_t shelf_bytes = 0;  ///< a multiple of 8
};

/// Fetching additions of 1: nobody else changes the word, so the values must be 0, 1, 2, ... in order of submission.
class FetchingAdds {
 public:
  FetchingAdds(Window& window, WordOffsets offsets, Findings& findings)
      : window_(window), offsets_(offsets), findings_(findings) {
    before_.fill(kPoison);
  }

  Result<bool> step() {
    if (answered_ == asked_) return false;
    auto complete = window_.test(tickets_[answered_ % kDepth]);
    if (!complete || !*complete) return complete;
    check(before_[answered_ % kDepth]);
    return true;
  }
  /// Asks once more, if there is room.
  Result<void> begin() {
    if (asked_ - answered_ == kDepth) return {};
    std::uint64_t& before = before_[asked_ % kDepth];
    if (before != kPoison) ++findings_.ghost;  // an answer to an operation that was complete
    auto ticket = window_.fetch_atomic<std::uint64_t>(offsets_.target, offsets_.words + offsetof(Words, fetched),
                                                      AtomicOp::add, &before, 1);
    if (!ticket) return std::move(ticket.error());
    tickets_[asked_++ % kDepth] = *ticket;
    return {};
  }
  std::uint64_t asked() const { return asked_; }
  bool idle() const { return answered_ == asked_; }

 private:
  static constexpr std::size_t kDepth = 8;
  static constexpr std::uint64_t kPoison = ~0ULL;

  void check(std::uint64_t& before) {
    if (before != answered_) {
      ++(before == kPoison ? findings_.early : before > answered_ ? findings_.doubled : findings_.lost);
      fmt::print(stderr, "rank {}: fetch {} from rank {} answered {:#x}\n", offsets_.source, answered_, offsets_.target,
                 before);
    }
    before = kPoison;
    ++answered_;
  }

  Window& window_;
  WordOffsets offsets_;
  Findings& findings_;
  std::array<std::uint64_t, kDepth> before_{};
  std::array<Ticket, kDepth> tickets_{};
  std::uint64_t asked_ = 0;
  std::uint64_t answered_ = 0;
};

/// Additions without an answer, to a word and to a signal: only the sums tell.
class PlainAdds {
 public:
  PlainAdds(Window& window, WordOffsets offsets) : window_(window), offsets_(offsets) {}

  Result<void> begin() {
    const std::uint64_t value = 1 + key_of(Use::value, offsets_.source, offsets_.target, count_++) % 1000;
    auto added =
        window_.atomic<std::uint64_t>(offsets_.target, offsets_.words + offsetof(Words, summed), AtomicOp::add, value);
    if (!added) return std::move(added.error());
    sum_ += value;
    auto signalled = window_.signal(offsets_.target, {offsets_.signal, value + 1});
    if (!signalled) return std::move(signalled.error());
    signal_sum_ += value + 1;
    return {};
  }
  std::uint64_t sum() const { return sum_; }
  std::uint64_t signal_sum() const { return signal_sum_; }

 private:
  Window& window_;
  WordOffsets offsets_;
  std::uint64_t count_ = 0;
  std::uint64_t sum_ = 0;
  std::uint64_t signal_sum_ = 0;
};

/// Gets from the target's shelf. A destination is poisoned before and after: bytes that come without a get are ghosts.
class CheckedGets {
 public:
  CheckedGets(Window& window, WordOffsets offsets, Findings& findings)
      : window_(window), offsets_(offsets), findings_(findings), memory_(kDepth * kMost) {
    for (std::uint64_t i = 0; i < kDepth; ++i) fill(destination(i, kMost), poison(i));
  }

  Result<bool> step() {
    if (answered_ == asked_) return false;
    auto complete = window_.test(tickets_[answered_ % kDepth]);
    if (!complete || !*complete) return complete;
    check(answered_);
    ++answered_;
    return true;
  }
  Result<void> begin() {
    if (asked_ - answered_ == kDepth) return {};
    const auto [at, bytes] = chunk(asked_);
    const auto memory = destination(asked_, bytes);
    if (!holds(memory, poison(asked_))) {
      ++findings_.ghost;
      fmt::print(stderr, "rank {}: bytes came into the destination of a get that was complete\n", offsets_.source);
    }
    auto ticket = window_.get(offsets_.target, offsets_.shelf + at, memory.data(), bytes);
    if (!ticket) return std::move(ticket.error());
    tickets_[asked_++ % kDepth] = *ticket;
    return {};
  }
  std::uint64_t verified_bytes() const { return verified_bytes_; }
  bool idle() const { return answered_ == asked_; }
  std::uint64_t asked() const { return asked_; }

 private:
  static constexpr std::size_t kDepth = 4;
  static constexpr std::size_t kMost = 64 * 1024;

  /// Where on the shelf and how much, of the get of this number.
  std::pair<std::size_t, std::size_t> chunk(std::uint64_t number) const {
    Random random(key_of(Use::size, offsets_.target, offsets_.source, number));
    const std::size_t bytes = 1 + random.below(std::size_t{64} << 2 * random.below(6));
    return {random.below((offsets_.shelf_bytes - bytes) / 8) * 8, bytes};
  }
  std::span<std::byte> destination(std::uint64_t number, std::size_t bytes) {
    return std::span(memory_).subspan(number % kDepth * kMost, bytes);
  }
  std::uint64_t poison(std::uint64_t number) const {
    return key_of(Use::poison, offsets_.source, offsets_.target, number % kDepth);
  }

  void check(std::uint64_t number) {
    const auto [at, bytes] = chunk(number);
    const auto memory = destination(number, bytes);
    if (holds(memory, key_of(Use::shelf, offsets_.target, 0, 0), at)) {
      verified_bytes_ += bytes;
    } else {
      const bool untouched = holds(memory, poison(number));
      ++(untouched ? findings_.early : findings_.corrupt);
      fmt::print(stderr, "rank {}: get {} of {} bytes from rank {}: {}\n", offsets_.source, number, bytes,
                 offsets_.target, untouched ? "early" : "corrupt");
    }
    fill(memory, poison(number));
  }

  Window& window_;
  WordOffsets offsets_;
  Findings& findings_;
  std::vector<std::byte> memory_;
  std::array<Ticket, kDepth> tickets_{};
  std::uint64_t asked_ = 0;
  std::uint64_t answered_ = 0;
  std::uint64_t verified_bytes_ = 0;
};

}  // namespace railyard::soak
