/// What must come of one direction of a channel: which message goes into which slot of which receive. The rule is that
/// of `Channel::receive`, written a second time and as simply as can be.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "contexts.hpp"
#include "message/channel_state.hpp"

namespace railyard::message {

class StreamModel {
 public:
  struct Message {
    int tag = 0;
    std::uint32_t seed = 0;
    std::vector<std::byte> bytes;
    std::unique_ptr<Memory> memory;
    Request* request = nullptr;  ///< null: done
    bool placed = false;
  };
  struct Slot {
    int tag = 0;
    std::vector<std::byte> memory;
    std::unique_ptr<Memory> registered;
    std::optional<std::size_t> message;
  };
  struct Receive {
    std::vector<Slot> slots;
    Request* request = nullptr;  ///< null: done
    bool completion_optional = false;
    bool checked = false;
    bool full() const {
      for (const Slot& slot : slots) {
        if (!slot.message) return false;
      }
      return true;
    }
  };

  explicit StreamModel(std::string name) : name_(std::move(name)) {}

  Message& add(Message message) {
    messages_.push_back(std::move(message));
    unplaced_.push_back(messages_.size() - 1);
    assign();
    return messages_.back();
  }
  Receive& add(Receive receive) {
    receives_.push_back(std::move(receive));
    assign();
    return receives_.back();
  }

  /// The tag that the oldest unfilled receive still waits for; nothing: there is none.
  std::optional<int> wanted() const {
    for (const Receive& receive : receives_) {
      for (const Slot& slot : receive.slots) {
        if (!slot.message) return slot.tag;
      }
    }
    return std::nullopt;
  }
  /// The tag of the oldest message that no receive has a slot for yet.
  std::optional<int> unplaced() const {
    if (unplaced_.empty()) return std::nullopt;
    return messages_[unplaced_.front()].tag;
  }

  /// A send of that message is said to be done. A large one cannot be before its receive is there.
  void sent(Message& message, std::uint64_t size, std::uint32_t eager_bytes) {
    message.request = nullptr;
    if (size != message.bytes.size())
      find(fmt::format("a send of {} bytes is said to have {}", message.bytes.size(), size));
    if (message.bytes.size() > eager_bytes && !message.placed)
      find("a large send was done before its receive was there");
    // The source is the user's again: whoever still reads it brings this.
    std::ranges::fill(message.bytes, std::byte{0xdd});
  }
  void received(Receive& receive, std::span<const std::uint64_t> sizes) {
    receive.request = nullptr;
    if (!receive.full()) return find("a receive was done before its messages were sent");
    if (!receive.completion_optional) check(receive, sizes);
  }
  /// Once everything has arrived: receives whose completion said nothing.
  void check_optional() {
    for (Receive& receive : receives_) {
      if (!receive.checked && receive.full()) check(receive, {});
    }
  }
  /// The channel is closed at the receiving end: nothing may be written any more.
  void closed() {
    for (Receive& receive : receives_) {
      for (Slot& slot : receive.slots) std::ranges::fill(slot.memory, kScribble);
      receive.checked = true;
    }
  }
  /// What was handed back to the user is as the user left it.
  void check_ghosts() {
    for (const Receive& receive : receives_) {
      for (const Slot& slot : receive.slots) {
        if (receive.checked && std::ranges::any_of(slot.memory, [](std::byte byte) { return byte != kScribble; })) {
          return find("something was written into memory that the user had back");
        }
      }
    }
  }

  std::deque<Message>& messages() { return messages_; }
  const std::deque<Message>& messages() const { return messages_; }
  std::deque<Receive>& receives() { return receives_; }
  const std::deque<Receive>& receives() const { return receives_; }
  void find(const std::string& what) { findings.push_back(fmt::format("{}: {}", name_, what)); }

  std::vector<std::string> findings;

 private:
  static constexpr std::byte kScribble{0x55};

  void assign() {
    for (auto message = unplaced_.begin(); message != unplaced_.end();) {
      Slot* const slot = slot_for(messages_[*message].tag);
      if (slot == nullptr) {
        ++message;
        continue;
      }
      slot->message = *message;
      messages_[*message].placed = true;
      message = unplaced_.erase(message);
    }
  }
  Slot* slot_for(int tag) {
    for (Receive& receive : receives_) {
      for (Slot& slot : receive.slots) {
        if (!slot.message && slot.tag == tag) return &slot;
      }
    }
    return nullptr;
  }

  void check(Receive& receive, std::span<const std::uint64_t> sizes) {
    receive.checked = true;
    for (std::size_t i = 0; i < receive.slots.size(); ++i) {
      Slot& slot = receive.slots[i];
      const std::size_t number = *slot.message;
      const auto expected = pattern(size_of(number), messages_[number].seed);
      if (!sizes.empty() && sizes[i] != expected.size()) {
        find(fmt::format("message {} of {} bytes is said to have {}", number, expected.size(), sizes[i]));
      }
      if (!same_bytes(slot.memory.data(), expected.data(), expected.size())) {
        find(fmt::format("message {} of {} bytes (tag {}, slot {} of {}) has other bytes", number, expected.size(),
                         messages_[number].tag, i, receive.slots.size()));
      }
      for (std::size_t byte = expected.size(); byte < slot.memory.size(); ++byte) {
        if (slot.memory[byte] != std::byte{0xee}) {
          find(fmt::format("message {} of {} bytes wrote past its end", number, expected.size()));
          break;
        }
      }
      std::ranges::fill(slot.memory, kScribble);
    }
  }
  std::size_t size_of(std::size_t number) const { return messages_[number].bytes.size(); }

  std::string name_;
  std::deque<Message> messages_;
  std::deque<Receive> receives_;
  std::list<std::size_t> unplaced_;
};

}  // namespace railyard::message
