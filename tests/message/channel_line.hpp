/// ChannelLine: one channel of a schedule, its two ends played at random and everything that they see checked.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "railyard/settings.hpp"
#include "stream_model.hpp"
#include "yard.hpp"

namespace railyard::message {

struct LineBehaviour {
  std::uint64_t most_bytes = 64 * 1024;
  std::uint32_t eager_bytes = Settings{}.eager_bytes;
  std::size_t most_outstanding = 24;
  std::uint32_t tags = 4;
  std::uint32_t group_percent = 40;
  std::uint32_t registered_percent = 30;
  std::uint32_t optional_percent = 10;
};

class ChannelLine {
 public:
  ChannelLine(Yard& yard, Ends ends, std::size_t from, std::size_t to, const LineBehaviour& behaviour,
              const std::string& name)
      : yard_(yard),
        behaviour_(behaviour),
        halves_{Half{ends.out.get(), ends.in.get(), StreamModel(name + ", there")},
                Half{ends.in.get(), ends.out.get(), StreamModel(name + ", back")}},
        ends_{std::move(ends.out), std::move(ends.in)},
        processes_{from, to} {}

  ChannelLine(const ChannelLine&) = delete;
  ChannelLine& operator=(const ChannelLine&) = delete;
  ~ChannelLine() {
    for (std::size_t end = 0; end < 2; ++end) forget_memory(end);
  }

  /// One random act of one end. Returns whether something was begun.
  bool act(Random& random) {
    const std::size_t end = random.below(2);
    if (random.chance(0.5)) return may_send(end, 0) && send(end, random, std::nullopt);
    return may_receive(end, 0) && receive(end, random, std::nullopt);
  }
  /// What is missing so that everything that was begun can end. Returns whether there was anything.
  bool wind_up(Random& random) {
    bool missing = false;
    for (std::size_t end = 0; end < 2; ++end) {
      Half& half = halves_[end];
      const auto tag = half.model.wanted();
      if (tag) missing = true;
      // Beyond what is usual: what fills the usual may be what waits.
      if (tag && may_send(end, 8)) send(end, random, *tag);
      const auto unplaced = half.model.unplaced();
      if (unplaced) missing = true;
      if (unplaced && may_receive(1 - end, 8)) receive(1 - end, random, *unplaced);
    }
    return missing;
  }
  /// Asks after everything that is under way. Returns whether anything ended.
  bool look() {
    bool news = false;
    // A question makes a pass of its own: now and then only, and only after the oldest one.
    asks_ = ++looks_ % 8 == 0;
    for (std::size_t end = 0; end < 2; ++end) {
      if (closed_[end] || !yard_.alive(processes_[end])) continue;
      news |= look_at_sends(end);
      news |= look_at_receives(end);
    }
    return news;
  }
  bool idle() const {
    for (std::size_t end = 0; end < 2; ++end) {
      if (closed_[end] || failed_[end] || !yard_.alive(processes_[end])) continue;
      if (outstanding(end) != 0) return false;
    }
    return true;
  }
  /// An end whose peer has closed or died while it has something under way: it must hear of it.
  bool hears_the_end() const {
    for (std::size_t end = 0; end < 2; ++end) {
      if (closed_[end] || failed_[end] || !yard_.alive(processes_[end])) continue;
      if (gone(1 - end) && outstanding(end) != 0) return false;
    }
    return true;
  }
  void close(std::size_t end) {
    if (closed_[end] || !yard_.alive(processes_[end])) return;
    closed_[end] = true;
    yard_.close(processes_[end], *ends_[end]);
    halves_[1 - end].model.closed();
    forget_memory(end);
  }
  /// As NCCL ends what it aborts: memory is deregistered with messages under way and used for something else, then the
  /// channel is closed.
  void abort(std::size_t end, Random& random) {
    if (closed_[end] || !yard_.alive(processes_[end])) return;
    std::vector<std::vector<std::byte>*> taken;
    for (auto& receive : halves_[1 - end].model.receives()) {
      for (auto& slot : receive.slots) {
        if (slot.registered != nullptr) taken.push_back(&slot.memory);
      }
    }
    std::vector<std::vector<std::byte>*> sources;
    for (auto& message : halves_[end].model.messages()) {
      if (message.memory != nullptr) sources.push_back(&message.bytes);
    }
    forget_memory(end);
    for (auto* memory : sources) std::ranges::fill(*memory, std::byte{0xdd});
    for (auto* memory : taken) std::ranges::fill(*memory, std::byte{0x55});
    for (std::uint64_t rounds = random.below(50); rounds > 0; --rounds) yard_.round();
    for (const auto* memory : taken) {
      if (std::ranges::any_of(*memory, [](std::byte byte) { return byte != std::byte{0x55}; }))
        halves_[1 - end].model.find("something was written into memory that was deregistered");
    }
    close(end);
  }
  bool closed(std::size_t end) const { return closed_[end] || !yard_.alive(processes_[end]); }
  bool over() const { return closed(0) && closed(1); }
  bool healthy() const { return !gone(0) && !gone(1); }
  /// Whether everything that was sent has arrived. Then receives whose completion says nothing are looked at too.
  bool arrived() {
    for (Half& half : halves_) {
      if (half.receiver->statistics().messages_received != half.model.messages().size()) return false;
    }
    for (Half& half : halves_) half.model.check_optional();
    return true;
  }
  void report(std::vector<std::string>& findings) {
    for (Half& half : halves_) {
      half.model.check_ghosts();
      findings.insert(findings.end(), half.model.findings.begin(), half.model.findings.end());
    }
  }
  std::size_t messages() { return halves_[0].model.messages().size() + halves_[1].model.messages().size(); }
  /// Where it hangs, for a stuck run.
  std::string describe() {
    std::string text;
    for (std::size_t end = 0; end < 2; ++end) {
      text += fmt::format(" end {} ({}{}{}): {} sends, {} receives under way;", end, closed_[end] ? "closed " : "",
                          failed_[end] ? "failed " : "", yard_.alive(processes_[end]) ? "" : "dead ", sends(end),
                          receives(end));
    }
    return text;
  }

 private:
  struct Half {
    ChannelState* sender;
    ChannelState* receiver;
    StreamModel model;
  };

  bool gone(std::size_t end) const { return closed_[end] || !yard_.alive(processes_[end]); }
  bool able(std::size_t end) const { return !closed_[end] && !failed_[end] && yard_.alive(processes_[end]); }
  bool may_send(std::size_t end, std::size_t more) const {
    return able(end) && sends(end) < behaviour_.most_outstanding + more;
  }
  bool may_receive(std::size_t end, std::size_t more) const {
    return able(end) && receives(end) < behaviour_.most_outstanding + more;
  }
  std::size_t sends(std::size_t end) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(halves_[end].model.messages(), [](const auto& each) { return each.request != nullptr; }));
  }
  std::size_t receives(std::size_t end) const {
    return static_cast<std::size_t>(std::ranges::count_if(halves_[1 - end].model.receives(),
                                                          [](const auto& each) { return each.request != nullptr; }));
  }
  std::size_t outstanding(std::size_t end) const { return sends(end) + receives(end); }

  std::uint64_t draw_size(Random& random) const {
    const std::uint64_t most = behaviour_.most_bytes;
    switch (random.below(6)) {
      case 0:
        return random.below(3);
      case 1: {
        const std::uint64_t edge = std::uint64_t{1} << random.below(17);
        return std::min(edge + random.below(3) - (edge > 1 ? 1 : 0), most);
      }
      case 2:
        return std::min<std::uint64_t>(kMostEagerChunk - 2 + random.below(5), most);
      case 3:
        return std::min<std::uint64_t>(behaviour_.eager_bytes + random.below(3), most);
      case 4:
        return random.below(most + 1);
      default:
        return random.below(std::min<std::uint64_t>(most, 600) + 1);
    }
  }

  std::unique_ptr<Memory> perhaps_register(std::size_t end, std::span<std::byte> memory, Random& random) {
    if (memory.empty() || !random.chance(behaviour_.registered_percent / 100.0)) return nullptr;
    auto registered = ends_[end]->register_memory(memory);
    return registered ? std::move(*registered) : nullptr;
  }

  bool send(std::size_t end, Random& random, std::optional<int> tag) {
    Half& half = halves_[end];
    StreamModel::Message message;
    message.tag = tag ? *tag : static_cast<int>(random.below(behaviour_.tags));
    message.seed = static_cast<std::uint32_t>(random.next());
    message.bytes = pattern(draw_size(random), message.seed);
    message.memory = perhaps_register(end, message.bytes, random);
    // What the model moves is the vector, not its bytes.
    auto request = half.sender->send(message.bytes, message.tag, message.memory.get());
    if (!request) return end_of_calls(end, request.error());
    if (*request == nullptr) return false;
    message.request = *request;
    half.model.add(std::move(message));
    return true;
  }

  /// `tag`: of its only slot; nothing: as chance will have it.
  bool receive(std::size_t end, Random& random, std::optional<int> tag) {
    Half& half = halves_[1 - end];
    StreamModel::Receive receive;
    const bool group = !tag && random.chance(behaviour_.group_percent / 100.0);
    receive.slots.resize(group ? 1 + random.below(Channel::kMostSlots) : 1);
    receive.completion_optional = random.chance(behaviour_.optional_percent / 100.0);
    std::vector<ReceiveSlot> slots;
    for (auto& slot : receive.slots) {
      slot.tag = tag ? *tag : static_cast<int>(random.below(behaviour_.tags));
      slot.memory.assign(behaviour_.most_bytes, std::byte{0xee});
      slot.registered = perhaps_register(end, slot.memory, random);
      slots.push_back({slot.memory, slot.tag, slot.registered.get()});
    }
    auto request = half.receiver->receive(slots, receive.completion_optional);
    if (!request) return end_of_calls(end, request.error());
    if (*request == nullptr) return false;
    receive.request = *request;
    half.model.add(std::move(receive));
    return true;
  }

  bool look_at_sends(std::size_t end) {
    bool news = false;
    bool asks = asks_;
    Half& half = halves_[end];
    for (auto& message : half.model.messages()) {
      if (message.request == nullptr || failed_[end]) continue;
      if (!message.request->finished() && !std::exchange(asks, false)) continue;
      std::array<std::uint64_t, 1> size{};
      const auto done = half.sender->test(message.request, size);
      if (!done) return end_of_calls(end, done.error()), true;
      if (!*done) continue;
      half.model.sent(message, size[0], behaviour_.eager_bytes);
      message.memory.reset();
      news = true;
    }
    return news;
  }
  bool look_at_receives(std::size_t end) {
    bool news = false;
    bool asks = asks_;
    Half& half = halves_[1 - end];
    for (auto& receive : half.model.receives()) {
      if (receive.request == nullptr || failed_[end]) continue;
      if (!receive.request->finished() && !std::exchange(asks, false)) continue;
      std::array<std::uint64_t, Channel::kMostSlots> sizes{};
      const auto done = half.receiver->test(receive.request, sizes);
      if (!done) return end_of_calls(end, done.error()), true;
      if (!*done) continue;
      if (receive.completion_optional) {
        receive.request = nullptr;  // says nothing of the bytes: `check_optional` looks
      } else {
        half.model.received(receive, sizes);
        for (auto& slot : receive.slots) slot.registered.reset();
      }
      news = true;
    }
    return news;
  }

  /// A call that ended with an error: right only where the other end is gone.
  bool end_of_calls(std::size_t end, const Error& error) {
    failed_[end] = true;
    if (!gone(1 - end) || error.status() != Status::peer_lost) halves_[end].model.find("an error: " + error.text());
    return false;
  }
  /// Deregisters all that one end has registered, whatever is under way.
  void forget_memory(std::size_t end) {
    yard_.act_as(processes_[end], [&] {
      for (auto& message : halves_[end].model.messages()) message.memory.reset();
      for (auto& receive : halves_[1 - end].model.receives()) {
        for (auto& slot : receive.slots) slot.registered.reset();
      }
    });
  }

  Yard& yard_;
  LineBehaviour behaviour_;
  std::array<Half, 2> halves_;  ///< by the end that sends
  std::array<std::shared_ptr<ChannelState>, 2> ends_;
  std::array<std::size_t, 2> processes_;
  std::array<bool, 2> closed_{};
  std::array<bool, 2> failed_{};
  std::uint64_t looks_ = 0;
  bool asks_ = false;
};

}  // namespace railyard::message
