#include "sim/channel_pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "message/wire.hpp"

namespace railyard::sim {

namespace {

constexpr std::byte kAbortedSource{0x33};
/// A question makes a pass of its own: now and then only.
constexpr std::uint64_t kLooksPerQuestion = 8;
/// Requests beyond what is usual, to end what waits.
constexpr std::size_t kMoreAtEnd = 8;

}  // namespace

ChannelPair::ChannelPair(ChannelProcesses& processes, ChannelEnds ends, std::size_t from, std::size_t to,
                         const ChannelBehaviour& behaviour, const std::string& name, Findings& findings)
    : processes_(processes),
      behaviour_(behaviour),
      halves_{Half{ends.out.get(), ends.in.get(), ChannelModel(name + ", there", findings)},
              Half{ends.in.get(), ends.out.get(), ChannelModel(name + ", back", findings)}},
      ends_{std::move(ends.out), std::move(ends.in)},
      owners_{from, to},
      seed_(std::hash<std::string>()(name)) {}

bool ChannelPair::act(Random& random) {
  const std::size_t end = random.below(2);
  if (random.chance(0.5)) return may_send(end, 0) && send(end, random, std::nullopt);
  // From an end that has closed, only what is known to have been sent is asked for: see `wind_up`.
  return !closed(1 - end) && may_receive(end, 0) && receive(end, random, std::nullopt);
}

bool ChannelPair::wind_up(Random& random) {
  bool missing = false;
  for (std::size_t end = 0; end < 2; ++end) {
    ChannelModel& model = halves_[end].model;
    const std::size_t receiver = 1 - end;
    // From an end that has closed, what it had sent.
    const auto unplaced = model.unplaced(!healthy());
    if (unplaced && (healthy() || (!gone(receiver) && owes_messages(end)))) {
      missing = true;
      if (may_receive(receiver, kMoreAtEnd)) receive(receiver, random, *unplaced);
    }
    if (!healthy()) continue;
    if (loss_allowed_) ask_after_loss(receiver, random);
    const auto wanted = model.wanted();
    if (wanted) missing = true;
    if (wanted && may_send(end, kMoreAtEnd)) send(end, random, *wanted);
  }
  return missing;
}

/// Where the two may have given each other up and nothing is under way, no request tells: messages whose sends are done
/// may be lost on their way to receives whose completion says nothing. One more receive finds out, or brings one of
/// them, and then the next one does.
void ChannelPair::ask_after_loss(std::size_t end, Random& random) {
  const Half& half = halves_[1 - end];
  const std::uint64_t received = half.receiver->statistics().messages_received;
  if (asked_after_loss_[end] == received || receives(end) != 0 || !may_receive(end, kMoreAtEnd)) return;
  if (received == half.model.messages().size()) return;
  asked_after_loss_[end] = received;
  receive(end, random, 0, true);
}

bool ChannelPair::look() {
  bool news = false;
  asks_ = ++looks_ % kLooksPerQuestion == 0;
  for (std::size_t end = 0; end < 2; ++end) {
    if (!able(end)) continue;
    news |= look_at_sends(end);
    news |= look_at_receives(end);
  }
  return news;
}

bool ChannelPair::settled() {
  for (std::size_t end = 0; end < 2; ++end) {
    if (gone(end)) continue;
    if (sends(end) + receives(end) != 0) return false;
  }
  for (std::size_t end = 0; end < 2; ++end) {
    ChannelModel& model = halves_[end].model;
    if (healthy()) {
      if (halves_[end].receiver->statistics().messages_received != model.messages().size()) return false;
      model.check_optional();
    } else if (!gone(1 - end) && owes_messages(end) && model.unplaced(true)) {
      return false;
    }
  }
  return true;
}

void ChannelPair::close(std::size_t end) {
  if (closed(end)) return;
  closed_[end] = true;
  processes_.as_user(owners_[end], [&] { ends_[end]->close(); });
  halves_[1 - end].model.return_all_memory();
  forget_memory(end);
}

void ChannelPair::take_memory_back(std::size_t end, bool all, Random& random) {
  if (!able(end)) return;
  std::vector<ChannelModel::Message*> sources;
  std::vector<ChannelModel::Receive*> targets;
  for (auto& message : halves_[end].model.messages()) {
    if (message.request != nullptr && message.memory != nullptr) sources.push_back(&message);
  }
  for (auto& receive : halves_[1 - end].model.receives()) {
    const bool registered =
        std::ranges::all_of(receive.slots, [](const auto& slot) { return slot.registered != nullptr; });
    if (receive.request != nullptr && registered) targets.push_back(&receive);
  }
  if (!all) {
    // One request's, a receive's if there is one.
    if (sources.size() + targets.size() == 0) return;
    if (!targets.empty()) {
      targets = {targets[random.below(targets.size())]};
      sources.clear();
    } else {
      sources = {sources[random.below(sources.size())]};
    }
  }
  aborted_[end] = true;
  for (ChannelModel::Receive* receive : targets) {
    for (auto& slot : receive->slots) processes_.as_user(owners_[end], [&] { slot.registered.reset(); });
    ChannelModel::return_memory(*receive);
  }
  for (ChannelModel::Message* message : sources) {
    processes_.as_user(owners_[end], [&] { message->memory.reset(); });
    std::ranges::fill(message->bytes, kAbortedSource);
  }
}

bool ChannelPair::may_send(std::size_t end, std::size_t more) const {
  return able(end) && !unheard_[end] && sends(end) < behaviour_.most_outstanding + more;
}

bool ChannelPair::may_receive(std::size_t end, std::size_t more) const {
  return able(end) && receives(end) < behaviour_.most_outstanding + more;
}

std::size_t ChannelPair::sends(std::size_t end) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(halves_[end].model.messages(), [](const auto& each) { return each.request != nullptr; }));
}

std::size_t ChannelPair::receives(std::size_t end) const {
  return static_cast<std::size_t>(std::ranges::count_if(halves_[1 - end].model.receives(),
                                                        [](const auto& each) { return each.request != nullptr; }));
}

/// A process that has died, or was given up, takes with it what nobody had yet.
bool ChannelPair::owes_messages(std::size_t end) const {
  return processes_.alive(owners_[end]) && !loss_allowed_ && !failed_[1 - end];
}

std::uint64_t ChannelPair::draw_size(Random& random) const {
  const std::uint64_t most = behaviour_.most_bytes;
  switch (random.below(6)) {
    case 0:
      return std::min(random.below(3), most);
    case 1: {
      const std::uint64_t edge = std::uint64_t{1} << random.below(17);
      return std::min(edge + random.below(3) - (edge > 1 ? 1 : 0), most);
    }
    case 2:
      return std::min<std::uint64_t>(message::kMostEagerChunk - 2 + random.below(5), most);
    case 3:
      return std::min<std::uint64_t>(behaviour_.eager_bytes + random.below(3), most);
    case 4:
      return random.below(most + 1);
    default:
      return random.below(std::min<std::uint64_t>(most, 600) + 1);
  }
}

std::unique_ptr<Memory> ChannelPair::perhaps_register(std::size_t end, std::span<std::byte> memory, Random& random) {
  if (memory.empty() || !random.chance(behaviour_.registered_percent / 100.0)) return nullptr;
  auto registered = ends_[end]->register_memory(memory);
  return registered ? std::move(*registered) : nullptr;
}

bool ChannelPair::send(std::size_t end, Random& random, std::optional<int> tag) {
  Half& half = halves_[end];
  ChannelModel::Message message;
  message.tag = tag ? *tag : static_cast<int>(random.below(behaviour_.tags));
  message.pattern = Pattern(seed_, end, ++drawn_);
  message.bytes.resize(draw_size(random));
  message.pattern.fill(message.bytes);
  message.memory = perhaps_register(end, message.bytes, random);
  // What the model moves is the vector, not its bytes.
  auto request = half.sender->send(message.bytes, message.tag, message.memory.get());
  if (!request) return end_of_sends(end, "send", request.error());
  if (*request == nullptr) return false;
  message.request = *request;
  half.model.add(std::move(message));
  return true;
}

bool ChannelPair::receive(std::size_t end, Random& random, std::optional<int> tag, bool tells) {
  Half& half = halves_[1 - end];
  ChannelModel::Receive receive;
  const bool group = !tag && random.chance(behaviour_.group_percent / 100.0);
  receive.slots.resize(group ? 1 + random.below(Channel::kMostSlots) : 1);
  receive.completion_optional = random.chance(behaviour_.optional_percent / 100.0) && !tells;
  std::vector<ReceiveSlot> slots;
  for (auto& slot : receive.slots) {
    slot.tag = tag ? *tag : static_cast<int>(random.below(behaviour_.tags));
    slot.memory.assign(behaviour_.most_bytes, ChannelModel::kUnused);
    slot.registered = perhaps_register(end, slot.memory, random);
    slots.push_back({slot.memory, slot.tag, slot.registered.get()});
  }
  auto request = half.receiver->receive(slots, receive.completion_optional);
  if (!request) {
    // Of random tags, it may ask for what was never sent; then what was can still be had.
    if (!tag && closed(1 - end) && request.status() == Status::peer_lost) return false;
    return end_of_calls(end, "receive", request.error());
  }
  if (*request == nullptr) return false;
  receive.request = *request;
  half.model.add(std::move(receive));
  return true;
}

bool ChannelPair::look_at_sends(std::size_t end) {
  bool news = false;
  bool asks = asks_;
  Half& half = halves_[end];
  for (auto& message : half.model.messages()) {
    if (message.request == nullptr || failed_[end] || unheard_[end]) continue;
    if (!message.request->finished() && !std::exchange(asks, false)) continue;
    std::array<std::uint64_t, 1> size{};
    const auto done = half.sender->test(message.request, size);
    if (!done) return end_of_sends(end, "test of a send", done.error()), true;
    if (!*done) continue;
    half.model.sent(message, size[0], behaviour_.eager_bytes);
    processes_.as_user(owners_[end], [&] { message.memory.reset(); });
    news = true;
  }
  return news;
}

bool ChannelPair::look_at_receives(std::size_t end) {
  bool news = false;
  bool asks = asks_;
  Half& half = halves_[1 - end];
  for (auto& receive : half.model.receives()) {
    if (receive.request == nullptr || failed_[end]) continue;
    if (!receive.request->finished() && !std::exchange(asks, false)) continue;
    std::array<std::uint64_t, Channel::kMostSlots> sizes{};
    const auto done = half.receiver->test(receive.request, sizes);
    if (!done) {
      // Of what its peer had sent before it closed, nothing may be missing.
      if (closed(1 - end) && !gone(end) && owes_messages(1 - end) && half.model.all_done(receive)) {
        half.model.find(Finding::lost,
                        "a message whose send was done is lost with its sender's end: " + done.error().text());
      }
      if (closed(1 - end) && done.status() == Status::peer_lost && half.model.unplaced(true)) {
        receive.request = nullptr;  // nothing comes for it any more; something does for others
        news = true;
        continue;
      }
      return end_of_calls(end, "test of a receive", done.error()), true;
    }
    if (!*done) continue;
    if (receive.completion_optional) {
      receive.request = nullptr;  // says nothing of the bytes: `check_optional` looks
    } else {
      half.model.received(receive, sizes);
      for (auto& slot : receive.slots) processes_.as_user(owners_[end], [&] { slot.registered.reset(); });
    }
    news = true;
  }
  return news;
}

/// A send that failed: right only where the other end is gone. What that one had sent can still be received.
bool ChannelPair::end_of_sends(std::size_t end, const char* call, const Error& error) {
  const bool peer_gone = gone(1 - end);
  if (!(peer_gone || loss_allowed_) || error.status() != Status::peer_lost) {
    halves_[end].model.find(Finding::lost, fmt::format("a {} failed: {}", call, error.text()));
    failed_[end] = true;
  }
  unheard_[end] = true;
  for (auto& message : halves_[end].model.messages()) message.request = nullptr;
  return false;
}

/// A call that ended with an error: right only where the other end is gone, and what it had sent has been received.
bool ChannelPair::end_of_calls(std::size_t end, const char* call, const Error& error) {
  ChannelModel& model = halves_[1 - end].model;
  const bool peer_gone = gone(1 - end);
  if (!(peer_gone || loss_allowed_) || error.status() != Status::peer_lost) {
    model.find(Finding::lost, fmt::format("a {} failed: {}", call, error.text()));
  } else if (closed(1 - end) && owes_messages(1 - end) && model.unplaced(true)) {
    model.find(Finding::lost, fmt::format("a {} failed before all messages whose sends were done were received: {}",
                                          call, error.text()));
  }
  failed_[end] = true;
  return false;
}

void ChannelPair::forget_memory(std::size_t end) {
  for (auto& message : halves_[end].model.messages()) message.memory.reset();
  for (auto& receive : halves_[1 - end].model.receives()) {
    for (auto& slot : receive.slots) slot.registered.reset();
  }
}

void ChannelPair::check_ghosts() {
  for (Half& half : halves_) half.model.check_ghosts();
}

std::string ChannelPair::describe() const {
  std::string text;
  for (std::size_t end = 0; end < 2; ++end) {
    text += fmt::format(" end {} ({}{}{}{}): {} sends, {} receives under way;", end, closed_[end] ? "closed " : "",
                        failed_[end] ? "failed " : "", aborted_[end] ? "aborted " : "",
                        processes_.alive(owners_[end]) ? "" : "dead ", sends(end), receives(end));
  }
  return text;
}

}  // namespace railyard::sim
