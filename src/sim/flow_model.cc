#include "sim/flow_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace railyard::sim {

namespace {

bool all_equal(std::span<const std::byte> bytes, std::byte value) {
  // The first equals `value` and each equals its successor.
  return bytes.empty() || (bytes[0] == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

}  // namespace

FlowModel::FlowModel(int source, int target, const Layout& layout, std::span<std::byte> memory, Findings& findings)
    : source_(source),
      target_(target),
      layout_(layout),
      memory_(memory),
      findings_(findings),
      slots_(layout.slots_per_source()) {
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    const std::size_t offset = slot_offset(slot);
    std::ranges::fill(memory_.subspan(offset - kGuard, kGuard), kGuardByte);
    std::ranges::fill(memory_.subspan(offset + layout_.slot_bytes(slot), kGuard), kGuardByte);
  }
}

std::string FlowModel::name() const { return fmt::format("rank {} to {}", source_, target_); }

std::string FlowModel::name(const Put& put) const {
  return fmt::format("{}: operation {} ({}, {} bytes, slot {})", name(), put.operation, put.what, put.bytes, put.slot);
}

std::uint32_t FlowModel::take_slot(std::size_t bytes, Random& random) {
  std::uint32_t chosen = kNone;
  // The smallest that fits, from a random start, so that neighbours differ from run to run.
  const auto start = static_cast<std::uint32_t>(random.below(slots_.size()));
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    const auto slot = static_cast<std::uint32_t>((start + i) % slots_.size());
    if (layout_.slot_bytes(slot) < bytes || slots_[slot].state == Slot::State::due ||
        slots_[slot].state == Slot::State::wrong || slots_[slot].readers > 0)
      continue;
    if (chosen == kNone || layout_.slot_bytes(slot) < layout_.slot_bytes(chosen)) chosen = slot;
  }
  if (chosen == kNone) return kNone;
  check_unused(chosen);
  Slot& slot = slots_[chosen];
  if (slot.state == Slot::State::visible) fill(chosen, static_cast<std::byte>(random.next()));
  if (bytes > slot.used) {
    // What was zero until now gets the old bytes that the put is to replace.
    std::ranges::fill(slot_memory(chosen).subspan(slot.used, bytes - slot.used), slot.fill);
    slot.used = bytes;
  }
  return chosen;
}

/// Nothing may have touched the slot since it was last seen.
void FlowModel::check_unused(std::uint32_t index) {
  const Slot& slot = slots_[index];
  const auto memory = slot_memory(index);
  bool intact = all_equal(memory.subspan(slot.used), std::byte{0});
  if (slot.state == Slot::State::filled) {
    intact = intact && all_equal(memory.first(slot.used), slot.fill);
  } else if (slot.state == Slot::State::visible) {
    const Put& put = puts_[slot.newest];
    intact = intact && put.pattern.matches(memory.first(put.bytes)) &&
             all_equal(memory.subspan(put.bytes, slot.used - put.bytes), put.before);
  }
  if (!intact) {
    findings_.add(Finding::ghost,
                  fmt::format("{}: slot {} changed after {} was over", name(), index,
                              slot.newest == kNone ? std::string("nothing") : name(puts_[slot.newest])));
  }
}

void FlowModel::fill(std::uint32_t index, std::byte with) {
  Slot& slot = slots_[index];
  slot.fill = with;
  std::ranges::fill(slot_memory(index).first(slot.used), slot.fill);
  slot.state = Slot::State::filled;
}

FlowModel::PutId FlowModel::put(std::uint32_t index, std::size_t bytes, const Pattern& pattern, bool relaxed,
                                std::string_view what, std::uint64_t operation) {
  Slot& slot = slots_[index];
  const auto id = static_cast<PutId>(puts_.size());
  Put added;
  added.slot = index;
  added.bytes = bytes;
  added.pattern = pattern;
  added.relaxed = relaxed;
  added.what = what;
  added.operation = operation;
  added.before = slot.fill;
  if (cut_) {
    added.visible = true;
    ++visible_;
    puts_.push_back(added);
    log_.push_back({Entry::Kind::put, id});
    return id;
  }
  if (slot.state == Slot::State::due && slot.newest != kNone) {
    added.over = slot.newest;
    puts_[slot.newest].under = id;
  }
  slot.state = Slot::State::due;
  slot.newest = id;
  puts_.push_back(added);
  log_.push_back({Entry::Kind::put, id});
  if (relaxed) {
    relaxed_.push_back(id);
    relaxed_at_.push_back(static_cast<Position>(log_.size() - 1));
  }
  return id;
}

void FlowModel::confirm(Position position, std::string_view evidence) {
  for (; confirmed_ <= position; ++confirmed_) {
    const Entry& entry = log_[confirmed_];
    if (entry.kind == Entry::Kind::put && !puts_[entry.put].relaxed) see(entry.put, evidence);
    if (entry.kind == Entry::Kind::fence && confirmed_ < position) see_relaxed(confirmed_, evidence);
  }
}

void FlowModel::confirm_put(PutId put, std::string_view evidence) { see(put, evidence); }

void FlowModel::confirm_all(std::string_view evidence) {
  if (!log_.empty()) confirm(static_cast<Position>(log_.size() - 1), evidence);
  see_relaxed(static_cast<Position>(log_.size()), evidence);
}

void FlowModel::see_relaxed(Position before, std::string_view evidence) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < relaxed_.size(); ++i) {
    if (relaxed_at_[i] < before) {
      see(relaxed_[i], evidence);
    } else {
      relaxed_[kept] = relaxed_[i];
      relaxed_at_[kept++] = relaxed_at_[i];
    }
  }
  relaxed_.resize(kept);
  relaxed_at_.resize(kept);
}

void FlowModel::see(PutId id, std::string_view evidence) {
  Put& put = puts_[id];
  if (put.visible) return;
  put.visible = true;
  ++visible_;
  if (put.over != kNone && !puts_[put.over].visible) {
    // What a fence put before this one is over too, and its bytes are gone.
    puts_[put.over].visible = true;
    ++visible_;
  }
  Slot& slot = slots_[put.slot];
  if (!compare(put, slot_memory(put.slot).first(put.bytes), evidence)) slot.state = Slot::State::wrong;
  check_guards(put.slot);
  if (slot.newest != id || slot.state != Slot::State::due) return;
  slot.state = Slot::State::visible;
  // Most targets do something with the place as soon as they may; one in four leaves it until it is used again.
  if (slot.readers == 0 && put.operation % 4 != 0) fill(put.slot, static_cast<std::byte>(put.operation * 89 + 7));
}

void FlowModel::check_read(PutId put, std::span<const std::byte> bytes, std::string_view evidence) {
  compare(puts_[put], bytes, evidence);
}

/// `bytes` must be what the put brought, or, where a later put to the same place has been submitted, what that brought.
bool FlowModel::compare(const Put& put, std::span<const std::byte> bytes, std::string_view evidence) {
  if (put.pattern.matches(bytes)) return true;
  const Put* later = put.under == kNone ? nullptr : &puts_[put.under];
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == put.pattern.at(i)) continue;
    if (later != nullptr && i < later->bytes && bytes[i] == later->pattern.at(i)) continue;
    const bool old = put.over == kNone ? bytes[i] == put.before : bytes[i] == puts_[put.over].pattern.at(i);
    findings_.add(old ? Finding::early : Finding::corrupt,
                  fmt::format("{}: byte {} is {} at the evidence of {}", name(put), i,
                              old ? "still the old one" : "wrong", evidence));
    return false;
  }
  return true;
}

void FlowModel::cut() {
  cut_ = true;
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) fill(slot, std::byte{0x66});
  for (Put& put : puts_) put.visible = true;
  visible_ = puts_.size();
}

void FlowModel::check_guards(std::uint32_t slot) {
  const std::size_t offset = slot_offset(slot);
  if (!all_equal(memory_.subspan(offset - kGuard, kGuard), kGuardByte) ||
      !all_equal(memory_.subspan(offset + layout_.slot_bytes(slot), kGuard), kGuardByte)) {
    findings_.add(Finding::corrupt, fmt::format("{}: bytes beside slot {} were changed", name(), slot));
  }
}

void FlowModel::finish(bool all) {
  for (const Put& put : puts_) {
    if (all && !put.visible) findings_.add(Finding::lost, fmt::format("{}: never seen", name(put)));
  }
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    check_guards(slot);
    if (slots_[slot].state == Slot::State::filled || slots_[slot].state == Slot::State::visible) check_unused(slot);
  }
}

}  // namespace railyard::sim
