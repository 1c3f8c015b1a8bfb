#include "transport/device_words.hpp"

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

/// Nobody asks for what was there, so nothing needs to be read.
bool overwrites(std::uint8_t code, const wire::AtomicBody& body) {
  return code == wire::atomic_code(static_cast<std::uint8_t>(AtomicOp::set), wire::WordKind::bits) && body.request == 0;
}

bool overlaps(const std::byte* word, std::span<const std::byte> memory) {
  const auto at = reinterpret_cast<std::uintptr_t>(word);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  return at >= begin && at < begin + memory.size();
}

}  // namespace

Result<void> DeviceWords::prepare(int device) {
  if (auto ready = copies_.prepare(device); !ready) return ready;
  if (!pinned_.empty() || !begun_.empty()) return {};
  // Now: while a kernel runs, cuMemHostAlloc may wait for it, and the kernel for a word.
  std::byte* const block = copies_.take_bounce();
  if (block == nullptr) return Error(Status::no_memory, "there is no pinned memory for words of GPUs");
  for (std::size_t i = 0; i < kMostBegun; ++i) pinned_.push_back(block + i * 64);
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

std::byte* DeviceWords::take_pinned() {
  if (pinned_.empty()) return nullptr;
  std::byte* const taken = pinned_.back();
  pinned_.pop_back();
  return taken;
}

/// Begins those whose word nobody else is changing. Changes of one word keep their order: the first that waits for it
/// finds it free.
void DeviceWords::begin_waiting() {
  std::size_t looked = 0;
  for (auto at = waiting_.begin(); at != waiting_.end() && begun_.size() < kMostBegun && looked < kMostLooked;
       ++looked) {
    const auto next = std::next(at);
    if (busy_.insert(line_of(at->word)).second) {
      if (at->mirrored != nullptr) writes_.erase(at->word);
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
  if (change.mirrored != nullptr) return begin_write(change, change.mirrored->latest()[change.index]);
  if (overwrites(change.code, change.body)) return begin_write(change, change.body.operand);
  change.pinned = take_pinned();
  if (change.pinned == nullptr) {
    log_warn("a word of GPU {} cannot be changed: there is no pinned memory", change.device);
    return false;
  }
  const auto ticket = copies_.copy(change.device, change.pinned, change.word, change.body.width);
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
    if (change.pinned == nullptr) change.pinned = take_pinned();
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
  // Read: the low bytes of the word are the first.
  std::uint64_t word = 0;
  std::memcpy(&word, change.pinned, change.body.width);
  const std::uint64_t held = word;
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
  busy_.erase(line_of(change.word));
  if (change.pinned != nullptr) pinned_.push_back(change.pinned);
  if (change.mirrored != nullptr && outcome == Outcome::done) change.mirrored->show(change.index, change.value);
  for (Waiter& waiter : change.waiters)
    if (waiter.flow != nullptr || waiter.own != nullptr) ended_.push_back({std::move(waiter), outcome, change.before});
}

void DeviceWords::advance() {
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
}

void DeviceWords::settle(std::span<const std::byte> memory) {
  const auto touches = [memory](const Changes& changes) {
    for (const Change& change : changes)
      if (overlaps(change.word, memory)) return true;
    return false;
  };
  while (touches(begun_) || touches(waiting_)) {
    advance();
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
