#include "transport/device_words.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/log.hpp"
#include "transport/exposed_region.hpp"

namespace railyard::transport {
namespace {

/// Changes under way at a time. The rest wait here rather than in the GPU's queue.
constexpr std::size_t kMostBegun = 256;
/// So many of those that wait are looked at in one pass.
constexpr std::size_t kMostLooked = 1024;
/// A look at what kernels have added takes so many words: it takes no longer than one of a single word.
constexpr std::size_t kWordsPerLook = 64;
constexpr std::size_t kMostLooks = 64;  ///< of so many windows at a time
constexpr std::size_t kPinnedStride = 64;
static_assert(kMostBegun * kPinnedStride + kMostLooks * kWordsPerLook * sizeof(std::uint64_t) <=
              fabric::DeviceCopies::kBounceBytes);
/// While the engine's own words are under way in the same queue, looks leave it so many times as long as one takes.
constexpr std::int64_t kLooksYield = 4;
/// With nothing new, the next look comes after this part of the time that nothing was, at most kLongestLook.
constexpr std::int64_t kIdlePart = 16;
constexpr std::int64_t kLongestLook = 50'000;
constexpr std::int64_t kNewWait = 1'000'000;  ///< nobody has wanted a look for so long: the next wait is another one

/// Nobody asks for what was there, so nothing needs to be read.
bool overwrites(std::uint8_t code, const wire::AtomicBody& body) {
  return code == wire::atomic_code(static_cast<std::uint8_t>(AtomicOp::set), wire::WordKind::bits) && body.request == 0;
}

std::byte* take(std::vector<std::byte*>& from) {
  if (from.empty()) return nullptr;
  std::byte* const taken = from.back();
  from.pop_back();
  return taken;
}

bool overlaps(const std::byte* word, std::span<const std::byte> memory) {
  const auto at = reinterpret_cast<std::uintptr_t>(word);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  return at >= begin && at < begin + memory.size();
}

}  // namespace

bool MirroredWords::apply(std::uint64_t index, SignalOp op, std::uint64_t value) {
  if (!apply_signal(latest_, index, op, value)) return false;
  if (op == SignalOp::set && !set_.empty()) set_[index] = true;
  return true;
}

bool MirroredWords::learn(std::size_t index, std::uint64_t added, bool setting) {
  const bool news = std::exchange(added_[index], added) != added;
  if (setting) {
    base_[index] = added;
  } else {
    show(index, written_[index]);
  }
  return news;
}

MirroredWords::Range MirroredWords::take_wanted(std::size_t most) {
  if (!any_wanted_.exchange(false, std::memory_order_relaxed)) return {};
  Range range;
  const std::size_t size = wanted_.size();
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t index = (looked_up_to_ + i) % size;
    if (!wanted_[index].load(std::memory_order_relaxed)) continue;
    if (range.words == 0) {
      range = {index, std::min(most, size - index)};
    } else if (index < range.first || index >= range.first + range.words) {
      any_wanted_.store(true, std::memory_order_relaxed);  // the next call's
      break;
    }
    wanted_[index].store(false, std::memory_order_relaxed);
  }
  looked_up_to_ = range.first + range.words;
  return range;
}

Result<void> DeviceWords::prepare(int device) {
  prepared_ = true;
  if (auto ready = copies_.prepare(device); !ready) return ready;
  if (!pinned_.empty() || !begun_.empty()) return {};
  // Now: while a kernel runs, cuMemHostAlloc may wait for it, and the kernel for a word.
  std::byte* const block = copies_.take_bounce();
  if (block == nullptr) return Error(Status::no_memory, "there is no pinned memory for words of GPUs");
  for (std::size_t i = 0; i < kMostBegun; ++i) pinned_.push_back(block + i * kPinnedStride);
  std::byte* const looks = block + kMostBegun * kPinnedStride;
  for (std::size_t i = 0; i < kMostLooks; ++i)
    pinned_looks_.push_back(looks + i * kWordsPerLook * sizeof(std::uint64_t));
  return {};
}

void DeviceWords::change(std::byte* word, int device, std::uint8_t code, const wire::AtomicBody& body, Waiter waiter) {
  Change& change = waiting_.emplace_back();
  change.device = device;
  change.word = word;
  change.code = code;
  change.body = body;
  change.waiters.push_back(std::move(waiter));
  begin_waiting();
}

bool DeviceWords::store_ahead(std::byte* to, int device, std::uint64_t value) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(to) % sizeof value == 0;
  if (!aligned || !waiting_.empty() || begun_.size() >= kMostBegun || busy_.contains(line_of(to))) return false;
  Change change;
  change.device = device;
  change.word = to;
  change.body.width = sizeof value;
  if (!begin_write(change, value, true)) return false;
  busy_.insert(line_of(to));
  begun_.push_back(std::move(change));
  return true;
}

void DeviceWords::write(MirroredWords& words, std::size_t index, Waiter waiter) {
  auto* const word = reinterpret_cast<std::byte*>(words.words().data() + index);
  if (const auto known = writes_.find(word); known != writes_.end()) {
    // It has not begun, and takes the latest value when it does.
    known->second->waiters.push_back(std::move(waiter));
    return;
  }
  Change& change = waiting_.emplace_back();
  change.device = words.device();
  change.word = word;
  change.mirrored = &words;
  change.index = index;
  change.body.width = sizeof(std::uint64_t);
  change.waiters.push_back(std::move(waiter));
  writes_.emplace(word, &change);
  begin_waiting();
}

void DeviceWords::read(MirroredWords& words, std::size_t index, Waiter waiter) {
  Change& change = waiting_.emplace_back();
  change.refresh = true;
  change.device = words.device();
  change.word = reinterpret_cast<std::byte*>(words.adds().data() + index);
  change.mirrored = &words;
  change.index = index;
  change.body.width = sizeof(std::uint64_t);
  change.waiters.push_back(std::move(waiter));
  begin_waiting();
}

/// For threads that wait: all at once, and not in the way of words. (A look that has not ended answers those who come
/// meanwhile with the next one.)
void DeviceWords::begin_look(MirroredWords& words) {
  if (words.looks.under_way || now_ < words.looks.next || pinned_looks_.empty()) return;
  const MirroredWords::Range wanted = words.take_wanted(kWordsPerLook);
  if (wanted.words == 0) return;
  if (now_ - words.looks.next > kNewWait) words.looks.idle_since = now_;
  words.looks.under_way = true;
  words.looks.began = now_;
  words.looks.words_done = words_done_;
  Change& change = begun_.emplace_back();
  change.refresh = true;
  change.look = true;
  change.device = words.device();
  change.word = reinterpret_cast<std::byte*>(words.adds().data() + wanted.first);
  change.mirrored = &words;
  change.index = wanted.first;
  change.words = wanted.words;
  change.body.width = sizeof(std::uint64_t);
  if (begin_read(change)) return;
  end(change, Outcome::failed);
  begun_.pop_back();
}

void DeviceWords::end_look(MirroredWords& words, bool news) {
  MirroredWords::Looks& looks = words.looks;
  looks.under_way = false;
  if (news) looks.idle_since = now_;
  const bool shared = words_done_ != looks.words_done || !waiting_.empty();
  looks.next = now_ + std::max(shared ? kLooksYield * (now_ - looks.began) : 0,
                               std::min((now_ - looks.idle_since) / kIdlePart, kLongestLook));
}

/// Begins those whose word nobody else is changing. Changes of one word keep their order: the first that waits for it
/// finds it free.
void DeviceWords::begin_waiting() {
  std::size_t looked = 0;
  for (auto at = waiting_.begin(); at != waiting_.end() && begun_.size() < kMostBegun && looked < kMostLooked;
       ++looked) {
    const auto next = std::next(at);
    if (busy_.insert(line_of(at->word)).second) {
      if (at->mirrored != nullptr && !at->refresh) writes_.erase(at->word);
      begun_.splice(begun_.end(), waiting_, at);
      if (!begin(begun_.back())) {
        end(begun_.back(), Outcome::failed);
        begun_.pop_back();
      }
    }
    at = next;
  }
}

bool DeviceWords::begin(Change& change) {
  if (MirroredWords* const words = change.mirrored; words != nullptr) {
    return change.refresh || words->take_set(change.index) ? begin_read(change)
                                                           : begin_write(change, words->half(change.index));
  }
  if (overwrites(change.code, change.body)) return begin_write(change, change.body.operand);
  return begin_read(change);
}

/// Of a word that kernels add to, what they have added.
bool DeviceWords::begin_read(Change& change) {
  const std::byte* const word = change.mirrored == nullptr
                                    ? change.word
                                    : reinterpret_cast<const std::byte*>(change.mirrored->adds().data() + change.index);
  if (change.pinned == nullptr) change.pinned = take(change.look ? pinned_looks_ : pinned_);
  if (change.pinned == nullptr) {
    log_warn("a word of GPU {} cannot be changed: there is no pinned memory", change.device);
    return false;
  }
  const auto ticket = copies_.copy(change.device, change.pinned, word, change.words * change.body.width);
  if (!ticket) {
    log_warn("a word of GPU {} cannot be read: {}", change.device, ticket.error().text());
    return false;
  }
  change.step = Step::reading;
  change.ticket = *ticket;
  return true;
}

/// As one write: nobody sees half of a word. Four bytes are copied, so that their neighbours stay as they are; so is a
/// put of eight that is not aligned.
bool DeviceWords::begin_write(Change& change, std::uint64_t value, bool with_next) {
  change.value = value;
  Result<fabric::DeviceCopies::Ticket> ticket = Error(Status::no_memory, "there is no pinned memory");
  if (change.body.width == sizeof value && reinterpret_cast<std::uintptr_t>(change.word) % sizeof value == 0) {
    ticket = copies_.store(change.device, change.word, value, with_next);
  } else {
    if (change.pinned == nullptr) change.pinned = take(pinned_);
    if (change.pinned != nullptr) {
      std::memcpy(change.pinned, &value, change.body.width);  // little-endian: the low bytes come first
      ticket = copies_.copy(change.device, change.word, change.pinned, change.body.width);
    }
  }
  if (!ticket) {
    log_warn("a word of GPU {} cannot be written: {}", change.device, ticket.error().text());
    return false;
  }
  change.step = Step::writing;
  change.ticket = *ticket;
  return true;
}

bool DeviceWords::step(Change& change, Outcome& outcome) {
  const auto state = copies_.state(change.ticket);
  if (state == fabric::DeviceCopies::State::under_way) return false;
  outcome = state == fabric::DeviceCopies::State::done ? Outcome::done : Outcome::failed;
  if (outcome == Outcome::failed || change.step == Step::writing) return true;
  if (change.look) {
    bool news = false;
    for (std::size_t i = 0; i < change.words; ++i) {
      std::uint64_t added = 0;
      std::memcpy(&added, change.pinned + i * sizeof added, sizeof added);
      news |= change.mirrored->learn(change.index + i, added, false);
    }
    end_look(*change.mirrored, news);
    return true;
  }
  // Read: the low bytes of the word are the first.
  std::uint64_t word = 0;
  std::memcpy(&word, change.pinned, change.body.width);
  const std::uint64_t held = word;
  if (change.mirrored != nullptr) {
    // Reads end in the order in which they began: what is learnt is never older than what was known.
    change.mirrored->learn(change.index, word, !change.refresh);
    if (change.refresh) return true;
    // Set once more meanwhile: what kernels had added by then is more.
    const bool again = change.mirrored->take_set(change.index);
    if (again ? begin_read(change) : begin_write(change, change.mirrored->half(change.index))) return false;
    outcome = Outcome::failed;
    return true;
  }
  if (!change_word(reinterpret_cast<std::byte*>(&word), change.code, change.body, change.before)) {
    outcome = Outcome::unknown_code;
    return true;
  }
  if (word == held) return true;  // a fetch, or what compares as it should not: nothing to write
  if (begin_write(change, word)) return false;
  outcome = Outcome::failed;
  return true;
}

void DeviceWords::end(Change& change, Outcome outcome) {
  if (change.look) {
    change.mirrored->looks.under_way = false;
  } else {
    busy_.erase(line_of(change.word));
    ++words_done_;
  }
  if (change.pinned != nullptr) (change.look ? pinned_looks_ : pinned_).push_back(change.pinned);
  if (change.refresh && outcome != Outcome::done) unwatch(*change.mirrored);  // the GPU is lost: asked no more
  if (change.mirrored != nullptr && !change.refresh && outcome == Outcome::done)
    change.mirrored->show(change.index, change.value);
  for (Waiter& waiter : change.waiters)
    if (waiter.flow != nullptr || waiter.own != nullptr) ended_.push_back({std::move(waiter), outcome, change.before});
}

void DeviceWords::advance(std::int64_t now) {
  now_ = now;
  for (auto at = begun_.begin(); at != begun_.end();) {
    Outcome outcome = Outcome::done;
    if (step(*at, outcome)) {
      end(*at, outcome);
      at = begun_.erase(at);
    } else {
      ++at;
    }
  }
  if (!waiting_.empty()) begin_waiting();
  // By number: a look that fails takes its words off the list.
  for (std::size_t i = 0; i < watched_.size(); ++i) begin_look(*watched_[i]);
}

void DeviceWords::settle(std::span<const std::byte> memory) {
  const auto touches = [memory](const Changes& changes) {
    for (const Change& change : changes)
      if (overlaps(change.word, memory)) return true;
    return false;
  };
  while (touches(begun_) || touches(waiting_)) {
    advance(now_);
    std::this_thread::yield();
  }
}

void DeviceWords::forget(const Flow& flow) {
  const auto drop = [&flow](Waiter& waiter) {
    if (waiter.flow == &flow) waiter.flow = nullptr;
  };
  for (Changes* changes : {&waiting_, &begun_})
    for (Change& change : *changes)
      for (Waiter& waiter : change.waiters) drop(waiter);
  for (End& end : ended_) drop(end.waiter);
}

}  // namespace railyard::transport
