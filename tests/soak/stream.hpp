/// A stream of put_signals from one rank to another, with every byte checked.
///
/// The receiver checks a message when its signal is seen, writes a guard over it and keeps the slot for a while: nobody
/// may write there, so a change is a ghost. Then it tells the sender, by a signal, that the slot is free again.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "pattern.hpp"
#include "railyard/window.hpp"

namespace railyard::soak {

struct StreamShape {
  std::size_t slots = 64;
  std::size_t held = 48;       ///< slots under guard; the others are for messages on their way
  std::size_t most = 1 << 20;  ///< largest message
  bool large = false;          ///< seven of eight messages are of the largest size
};

/// Who sends to whom, and where that is in the target's window.
struct Lane {
  int source = 0;
  int target = 0;
  std::size_t offset = 0;   ///< of the slots in the target's window
  std::size_t arrived = 0;  ///< signal at the target: messages so far
  std::size_t freed = 0;    ///< signal at the source: slots given back so far
};

/// Sizes of every order of magnitude from 8 B on.
inline std::size_t size_of(const StreamShape& shape, const Lane& lane, std::uint64_t message) {
  Random random(key_of(Use::size, lane.source, lane.target, message));
  if (shape.large && random.below(8) != 0) return shape.most;
  std::size_t most = 64;
  while (most < shape.most && random.below(2) == 0) most *= 4;
  most = std::min(most, shape.most);
  return 8 + random.below(most - 7);
}

class StreamSender {
 public:
  StreamSender(Window& window, Lane lane, StreamShape shape)
      : window_(window), lane_(lane), shape_(shape), sources_((shape.slots - shape.held) * shape.most) {
    tickets_.resize(shape.slots - shape.held);
  }

  /// Sends the next message if a slot is free for it. True: it did.
  Result<bool> step() {
    const std::size_t depth = tickets_.size();
    if (sent_ >= window_.read_signal(lane_.freed) + shape_.slots) return false;
    if (sent_ >= depth) {
      // The source of an earlier message: ours again only when that one is complete.
      auto complete = window_.test(tickets_[sent_ % depth], Completion::local);
      if (!complete || !*complete) return complete;
    }
    const std::size_t bytes = size_of(shape_, lane_, sent_);
    const std::span<std::byte> source(sources_.data() + sent_ % depth * shape_.most, bytes);
    fill(source, key_of(Use::message, lane_.source, lane_.target, sent_));
    auto ticket = window_.put_signal(lane_.target, lane_.offset + sent_ % shape_.slots * shape_.most, source.data(),
                                     bytes, {lane_.arrived, 1});
    if (!ticket) return std::move(ticket.error());
    tickets_[sent_ % depth] = *ticket;
    ++sent_;
    return true;
  }

  std::uint64_t sent() const { return sent_; }

 private:
  Window& window_;
  Lane lane_;
  StreamShape shape_;
  std::vector<std::byte> sources_;
  std::vector<Ticket> tickets_;
  std::uint64_t sent_ = 0;
};

class StreamReceiver {
 public:
  StreamReceiver(World& world, Window& window, Lane lane, StreamShape shape, Findings& findings)
      : world_(world), window_(window), lane_(lane), shape_(shape), findings_(findings) {
    for (std::uint64_t i = 0; i < shape_.slots; ++i) fill(slot(i), guard(i));
  }

  /// Checks what has arrived, at most a few messages. True: there was something.
  Result<bool> step() {
    constexpr int kBatch = 4;
    const std::uint64_t seen = window_.read_signal(lane_.arrived);
    if (seen > freed_ + shape_.slots) {
      // No sender is this far ahead of what it was given: the signal counts a message twice.
      if (!beyond_) findings_.doubled += seen - freed_ - shape_.slots;
      beyond_ = true;
      return false;
    }
    int done = 0;
    for (; received_ < seen && done < kBatch; ++done) {
      check(received_);
      ++received_;
    }
    if (done > 0 && received_ - freed_ > shape_.held) {
      if (auto freed = free_slots(received_ - freed_ - shape_.held); !freed) return std::move(freed.error());
    }
    return done > 0;
  }

  /// The sender says how many it sent. Its flow is in order: all of them must be here, and no more.
  Result<void> finish(std::uint64_t sent) {
    for (auto more = step(); !more || *more; more = step()) {
      if (!more) return std::move(more.error());
    }
    if (received_ < sent) findings_.lost += sent - received_;
    if (received_ > sent) findings_.doubled += received_ - sent;
    if (auto freed = free_slots(received_ - freed_); !freed) return freed;
    for (std::uint64_t i = 0; i < shape_.slots; ++i) check_guard(i, slot(i));
    return {};
  }

  std::uint64_t received() const { return received_; }
  std::uint64_t verified_bytes() const { return verified_bytes_; }

 private:
  std::span<std::byte> slot(std::uint64_t message) const {
    return window_.local().subspan(lane_.offset + message % shape_.slots * shape_.most, shape_.most);
  }
  std::span<std::byte> place(std::uint64_t message) const {
    return slot(message).first(size_of(shape_, lane_, message));
  }
  std::uint64_t key(std::uint64_t message) const { return key_of(Use::message, lane_.source, lane_.target, message); }
  /// One for each slot, whatever message was there: so a slot is under guard as a whole, also beyond a short message.
  std::uint64_t guard(std::uint64_t message) const {
    return key_of(Use::guard, lane_.source, lane_.target, message % shape_.slots);
  }

  void check(std::uint64_t message) {
    const auto memory = place(message);
    if (holds(memory, key(message))) {
      verified_bytes_ += memory.size();
    } else {
      judge(message);
    }
    fill(memory, guard(message));
  }

  /// Wrong bytes: late ones come while we wait; the guard itself says that nothing came.
  void judge(std::uint64_t message) {
    const auto memory = place(message);
    const bool untouched = holds(memory, guard(message));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    bool came = false;
    while (!came && std::chrono::steady_clock::now() < until) {
      world_.progress();
      came = holds(memory, key(message));
    }
    ++(came ? findings_.early : untouched ? findings_.lost : findings_.corrupt);
    fmt::print(stderr, "rank {}: message {} of {} bytes from rank {}: {}\n", lane_.target, message, memory.size(),
               lane_.source,
               came        ? "early"
               : untouched ? "lost"
                           : "corrupt");
  }

  void check_guard(std::uint64_t message, std::span<const std::byte> memory) {
    if (holds(memory, guard(message))) return;
    ++findings_.ghost;
    fmt::print(stderr, "rank {}: the guard over message {} from rank {} was written to\n", lane_.target, message,
               lane_.source);
  }

  Result<void> free_slots(std::uint64_t count) {
    constexpr std::uint64_t kWhole = 16;  // of so many short messages one has its slot checked beyond its end too
    for (; count > 0; --count, ++freed_) {
      check_guard(freed_, freed_ % kWhole == 0 ? slot(freed_) : place(freed_));
      if (auto told = window_.signal(lane_.source, {lane_.freed, 1}); !told) return std::move(told.error());
    }
    return {};
  }

  World& world_;
  Window& window_;
  Lane lane_;
  StreamShape shape_;
  Findings& findings_;
  std::uint64_t received_ = 0;
  std::uint64_t freed_ = 0;
  std::uint64_t verified_bytes_ = 0;
  bool beyond_ = false;
};

}  // namespace railyard::soak
