#include "sim/channel_model.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace railyard::sim {

namespace {

/// What the user fills memory with that it has back; and what a source holds then.
constexpr std::byte kUsedAgain{0x55};
constexpr std::byte kSourceUsedAgain{0xdd};

}  // namespace

bool ChannelModel::Receive::full() const {
  return std::ranges::all_of(slots, [](const Slot& slot) { return slot.message.has_value(); });
}

void ChannelModel::add(Message message) {
  messages_.push_back(std::move(message));
  unplaced_.push_back(messages_.size() - 1);
  assign();
}

void ChannelModel::add(Receive receive) {
  receives_.push_back(std::move(receive));
  assign();
}

void ChannelModel::assign() {
  std::erase_if(unplaced_, [this](std::size_t number) {
    Slot* const slot = free_slot(messages_[number].tag);
    if (slot == nullptr) return false;
    slot->message = number;
    messages_[number].placed = true;
    return true;
  });
}

ChannelModel::Slot* ChannelModel::free_slot(int tag) {
  for (Receive& receive : receives_) {
    for (Slot& slot : receive.slots) {
      if (!slot.message && slot.tag == tag) return &slot;
    }
  }
  return nullptr;
}

std::optional<int> ChannelModel::wanted() const {
  for (const Receive& receive : receives_) {
    for (const Slot& slot : receive.slots) {
      if (!slot.message) return slot.tag;
    }
  }
  return std::nullopt;
}

std::optional<int> ChannelModel::unplaced(bool done_only) const {
  for (const std::size_t number : unplaced_) {
    if (!done_only || messages_[number].done) return messages_[number].tag;
  }
  return std::nullopt;
}

bool ChannelModel::done_messages_received() const {
  return std::ranges::all_of(messages_, [](const Message& message) { return !message.done || message.received; });
}

bool ChannelModel::all_done(const Receive& receive) const {
  return std::ranges::all_of(receive.slots,
                             [this](const Slot& slot) { return slot.message && messages_[*slot.message].done; });
}

void ChannelModel::sent(Message& message, std::uint64_t size, std::uint32_t eager_bytes) {
  message.request = nullptr;
  message.done = true;
  if (size != message.bytes.size()) {
    find(Finding::corrupt, fmt::format("a send of {} bytes is said to have {}", message.bytes.size(), size));
  }
  if (message.bytes.size() > eager_bytes && !message.placed) {
    find(Finding::early, "a large send was done before its receive was there");
  }
  // The source is the user's again: whoever still reads it brings this.
  std::ranges::fill(message.bytes, kSourceUsedAgain);
}

void ChannelModel::received(Receive& receive, std::span<const std::uint64_t> sizes) {
  receive.request = nullptr;
  if (!receive.full()) {
    find(Finding::early, "a receive was done before its messages were sent, or with one of another tag");
    return_memory(receive);
    return;
  }
  check(receive, sizes);
}

void ChannelModel::check_optional() {
  for (Receive& receive : receives_) {
    if (receive.completion_optional && !receive.returned && receive.full()) check(receive, {});
  }
}

void ChannelModel::check(Receive& receive, std::span<const std::uint64_t> sizes) {
  for (std::size_t i = 0; i < receive.slots.size(); ++i) {
    const Slot& slot = receive.slots[i];
    Message& message = messages_[*slot.message];
    const std::size_t bytes = message.bytes.size();
    message.received = true;
    if (!sizes.empty() && sizes[i] != bytes) {
      find(Finding::corrupt, fmt::format("message {} of {} bytes (tag {}) is said to have {} in slot {} of {}",
                                         *slot.message, bytes, message.tag, sizes[i], i, receive.slots.size()));
    }
    if (!message.pattern.matches(std::span(slot.memory).first(bytes))) {
      find(Finding::corrupt, fmt::format("message {} of {} bytes (tag {}, slot {} of {}) has other bytes",
                                         *slot.message, bytes, message.tag, i, receive.slots.size()));
    }
    if (std::ranges::any_of(std::span(slot.memory).subspan(bytes),
                            [](std::byte byte) { return byte != ChannelModel::kUnused; })) {
      find(Finding::corrupt, fmt::format("message {} of {} bytes wrote past its end", *slot.message, bytes));
    }
  }
  return_memory(receive);
}

void ChannelModel::return_memory(Receive& receive) {
  receive.returned = true;
  for (Slot& slot : receive.slots) std::ranges::fill(slot.memory, kUsedAgain);
}

void ChannelModel::return_all_memory() {
  for (Receive& receive : receives_) {
    if (!receive.returned) return_memory(receive);  // filled once: what changed since then must be seen
  }
}

void ChannelModel::check_ghosts() {
  for (const Receive& receive : receives_) {
    if (!receive.returned) continue;
    for (const Slot& slot : receive.slots) {
      if (std::ranges::all_of(slot.memory, [](std::byte byte) { return byte == kUsedAgain; })) continue;
      return find(Finding::ghost, "something was written into memory that the user had back");
    }
  }
}

void ChannelModel::find(Finding finding, const std::string& what) {
  findings_->add(finding, fmt::format("{}: {}", name_, what));
}

}  // namespace railyard::sim
