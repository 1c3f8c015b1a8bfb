// What reaches a rail although no process of the world has sent it.
#include <algorithm>
#include <array>
#include <cstring>

#include "fabric/sim/fabric.hpp"

namespace railyard::fabric::sim {

namespace {

/// Where a frame says which session it belongs to: an intruder who has heard one does not know another's.
constexpr std::size_t kSessionAt = 8;
constexpr std::size_t kSessionBytes = 8;
/// Flows of the largest simulated world have numbers below this.
constexpr std::uint32_t kFirstUnknownFlow = 0xf000;
constexpr unsigned kFlowShift = 13;

}  // namespace

void SimFabric::intrude(const Intrusion& intrusion) {
  Port& port = ports_[intrusion.rail];
  if (!port.open || port.state.in != Carry::everything) return;
  switch (intrusion.kind) {
    case Intrusion::Kind::garbage:
      return intrude_message(intrusion.rail, false);
    case Intrusion::Kind::wrong_session:
      return intrude_message(intrusion.rail, true);
    case Intrusion::Kind::immediate: {
      PostedReceive taken;
      const bool takes = options(intrusion.rail).immediate_takes_receive;
      if (takes && !take_receive(intrusion.rail, taken)) return;
      Event event;
      event.kind = Event::Kind::landed;
      event.context = takes ? taken.context : nullptr;
      const auto flow = kFirstUnknownFlow + static_cast<std::uint32_t>(draw(0xfff));
      event.immediate = (1U << 29U) | (flow << kFlowShift) | static_cast<std::uint32_t>(draw((1 << kFlowShift) - 1));
      if (random_.chance(0.3)) event.immediate = (2U << 29U) | static_cast<std::uint32_t>(draw((1 << 29) - 1));
      event.bytes = random_.below(4096);
      ++statistics_.intrusions;
      deliver(intrusion.rail, event, kNone);
      return;
    }
    case Intrusion::Kind::connection: {
      Event event;
      event.kind = Event::Kind::left;
      event.link.id = random_.next();
      event.link.epoch = static_cast<std::uint32_t>(random_.below(4));
      ++statistics_.intrusions;
      deliver(intrusion.rail, event, kNone);
      return;
    }
  }
}

void SimFabric::intrude_message(std::uint32_t port_index, bool overheard) {
  Port& port = ports_[port_index];
  PostedReceive taken;
  if ((overheard && port.overheard.empty()) || !take_receive(port_index, taken)) return;
  std::vector<std::byte> message;
  if (overheard) {
    const auto change = [this](std::byte& byte) { byte ^= static_cast<std::byte>(1 + random_.below(255)); };
    message = port.overheard;
    message.resize(std::max(message.size(), kSessionAt + kSessionBytes));
    std::array<std::byte, kSessionBytes> session;
    std::memcpy(session.data(), message.data() + kSessionAt, kSessionBytes);
    if (random_.chance(0.5)) change(message[random_.below(message.size())]);
    // Most of it may be right, but never all.
    const std::size_t wrong = random_.below(kSessionBytes);
    for (std::size_t i = 0; i < kSessionBytes; ++i) {
      message[kSessionAt + i] = session[i];
      if (i == wrong || random_.chance(0.5)) change(message[kSessionAt + i]);
    }
  } else {
    message.resize(random_.below(std::min<std::size_t>(taken.buffer.bytes, 4096) + 1));
    for (std::byte& byte : message) byte = static_cast<std::byte>(random_.next());
  }
  message.resize(std::min(message.size(), taken.buffer.bytes));
  if (!message.empty()) std::memcpy(taken.buffer.address, message.data(), message.size());
  Event event;
  event.kind = Event::Kind::received;
  event.context = taken.context;
  event.bytes = message.size();
  ++statistics_.intrusions;
  deliver(port_index, event, kNone);
}

}  // namespace railyard::fabric::sim
