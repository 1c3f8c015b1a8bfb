/// A rail that a test plays by hand: it records what the engine posts and delivers the events the test makes up.
#pragma once

#include <cstring>
#include <deque>
#include <optional>
#include <vector>

#include "fabric/rail.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

class ScriptRail final : public fabric::Rail {
 public:
  struct Sent {
    fabric::RemoteId remote;
    std::vector<std::byte> bytes;
    fabric::PostContext* context;
    wire::FrameHeader header() const {
      wire::FrameHeader header;
      std::memcpy(&header, bytes.data(), sizeof header);
      return header;
    }
  };
  struct Written {
    fabric::RemoteChunk to;
    fabric::LocalChunk from;
    fabric::WriteOptions options;
    fabric::PostContext* context;
  };
  struct Read {
    fabric::RemoteChunk from;
    fabric::LocalChunk to;
    fabric::PostContext* context;
  };

  ScriptRail() {
    capabilities_.driver = "script";
    capabilities_.provider = "script";
    capabilities_.delivery_complete = true;
    capabilities_.max_message = 1U << 20U;
    capabilities_.max_write = 1U << 30U;
    capabilities_.depth = 1024;
    capabilities_.chains_posts = true;
  }

  const fabric::Capabilities& capabilities() const override { return capabilities_; }
  std::string name() const override { return "script"; }
  std::string fabric() const override { return "script"; }
  std::vector<std::byte> address() const override { return {std::byte{1}}; }
  Result<fabric::RemoteId> connect(std::span<const std::byte>, fabric::LinkTag tag) override {
    if (dead) return Error(Status::rail_failed, "the test says so");
    connects.push_back(tag);
    return next_remote_++;
  }
  void disconnect(fabric::RemoteId remote) override {
    ++disconnects;
    if (keeps_contexts) return;
    std::erase_if(held, [&](const Held& each) {
      if (each.remote != remote) return false;
      events.push_back({fabric::Event::Kind::failed, 0, 0, each.context, 125});
      return true;
    });
  }
  bool fence(fabric::LinkTag tag) override {
    fences.push_back(tag);
    return fence_answer;
  }
  fabric::Liveness liveness(fabric::RemoteId) override { return liveness_answer; }
  int descriptor() const override { return wake_descriptor; }
  void warm_up(fabric::RemoteId) const override { ++warmed; }
  std::optional<fabric::Delivery> delivery(fabric::RemoteId) override { return delivery_answer; }
  Result<fabric::Registration> register_memory(std::span<std::byte> memory, fabric::Access) override {
    ++registrations;
    fabric::Registration registration;
    registration.remote_base = reinterpret_cast<std::uintptr_t>(memory.data());
    return registration;
  }
  void revoke(const fabric::Registration&) override { --registrations; }

  fabric::Post send(fabric::RemoteId remote, const fabric::LocalChunk& message, fabric::PostContext* context) override {
    if (answer != fabric::Post::posted) return answer;
    const auto* data = static_cast<const std::byte*>(message.address);
    sends.push_back({remote, std::vector<std::byte>(data, data + message.bytes), context});
    end(fabric::Event::Kind::sent, remote, 0, context);
    return fabric::Post::posted;
  }
  fabric::Post receive(const fabric::LocalChunk& buffer, fabric::PostContext* context) override {
    receives.emplace_back(buffer, context);
    return fabric::Post::posted;
  }
  fabric::Post write(const fabric::RemoteChunk& to, const fabric::LocalChunk& from, fabric::WriteOptions options,
                     fabric::PostContext* context) override {
    if (answer != fabric::Post::posted) return answer;
    writes.push_back({to, from, options, context});
    end(fabric::Event::Kind::written, to.remote, from.bytes, context);
    return fabric::Post::posted;
  }
  fabric::Post read(const fabric::RemoteChunk& from, const fabric::LocalChunk& to,
                    fabric::PostContext* context) override {
    if (answer != fabric::Post::posted) return answer;
    reads.push_back({from, to, context});
    held.push_back({from.remote, context});
    return fabric::Post::posted;
  }
  std::size_t poll(std::span<fabric::Event> out) override {
    ++polls;
    std::size_t count = 0;
    while (count < out.size() && !events.empty()) {
      out[count++] = events.front();
      events.pop_front();
    }
    return count;
  }
  bool quiet() const override { return quiet_answer; }
  void stop() override { ++stops; }
  void ring() override { ++rings; }
  std::string describe_error(int error) const override { return "scripted error " + std::to_string(error); }
  std::string failure() const override { return "scripted failure"; }

  /// Puts a message into the next posted receive.
  bool deliver(std::span<const std::byte> message) {
    if (receives.empty()) return false;
    const auto [buffer, context] = receives.front();
    receives.pop_front();
    const std::size_t bytes = std::min(message.size(), buffer.bytes);
    if (bytes > 0) std::memcpy(buffer.address, message.data(), bytes);
    events.push_back({fabric::Event::Kind::received, 0, bytes, context, 0});
    return true;
  }
  void land(std::uint32_t immediate, std::size_t bytes = 1) {
    events.push_back({fabric::Event::Kind::landed, immediate, bytes, nullptr, 0});
  }

  void lose(fabric::RemoteId remote, bool refused = false, bool unwanted = false) {
    fabric::Event event;
    event.kind = fabric::Event::Kind::lost;
    event.remote = remote;
    event.refused = refused;
    event.unwanted = unwanted;
    events.push_back(event);
  }
  void lose_unverified(fabric::RemoteId remote) {
    lose(remote);
    events.back().unverified = true;
  }
  void set_interface(bool up) {
    fabric::Event event;
    event.kind = up ? fabric::Event::Kind::rail_up : fabric::Event::Kind::rail_down;
    events.push_back(event);
  }
  std::uint64_t rings = 0;

  /// Of the messages sent, the notices of one kind.
  std::vector<wire::RecordHeader> notices(wire::RecordKind kind) const {
    std::vector<wire::RecordHeader> found;
    for (const Sent& sent : sends) {
      if (sent.header().kind != wire::FrameKind::notice) continue;
      wire::RecordHeader record;
      std::memcpy(&record, sent.bytes.data() + wire::kRecordsAt, sizeof record);
      if (record.kind == kind) found.push_back(record);
    }
    return found;
  }

  struct Held {
    fabric::RemoteId remote;
    fabric::PostContext* context;
  };
  fabric::Post answer = fabric::Post::posted;
  bool complete_at_once = true;
  int stops = 0;
  bool dead = false;            ///< nothing can be connected by it any more
  bool keeps_contexts = false;  ///< what a disconnect ends comes out of `poll` when the test says so
  bool fence_answer = true;
  bool quiet_answer = false;
  fabric::Liveness liveness_answer = fabric::Liveness::unknown;
  std::optional<fabric::Delivery> delivery_answer;
  int wake_descriptor = -1;
  mutable int warmed = 0;  ///< how often what a message goes through was touched
  std::vector<fabric::LinkTag> connects;
  std::vector<fabric::LinkTag> fences;
  std::vector<Held> held;  ///< what no event has ended yet
  std::vector<Sent> sends;
  std::vector<Written> writes;
  std::vector<Read> reads;
  std::deque<std::pair<fabric::LocalChunk, fabric::PostContext*>> receives;
  std::deque<fabric::Event> events;
  std::size_t polls = 0;
  std::size_t disconnects = 0;
  int registrations = 0;
  fabric::Capabilities capabilities_;

 private:
  void end(fabric::Event::Kind kind, fabric::RemoteId remote, std::size_t bytes, fabric::PostContext* context) {
    if (complete_at_once) {
      events.push_back({kind, 0, bytes, context, 0});
    } else {
      held.push_back({remote, context});
    }
  }

  fabric::RemoteId next_remote_ = 0;
};

}  // namespace railyard::transport
