/// Rank 0 of 2 over rails that the test plays.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>

#include "script_rail.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {

class StillClock final : public Clock {
 public:
  std::int64_t now() const override { return time; }
  void idle() override { time += 1000; }
  std::atomic<std::int64_t> time = 1;  ///< a thread that sleeps reads it too
};

/// Rank 0 of 2 over rails that the test plays; the test is rank 1.
class EngineTest : public ::testing::Test {
 protected:
  void open(std::size_t rails, const Settings& settings = {}) {
    EngineParts parts;
    parts.settings = settings;
    parts.clock = used_clock_;
    parts.rank = 0;
    parts.size = 2;
    parts.identity.bytes[0] = 1;
    for (std::size_t i = 0; i < rails; ++i) {
      auto rail = std::make_unique<ScriptRail>();
      rails_.push_back(rail.get());
      parts.rails.push_back(std::move(rail));
    }
    parts.find_peer = [rails](int) -> Result<PeerAddress> {
      static const std::array<std::byte, 1> kAddress{};
      PeerAddress peer;
      peer.identity.bytes[0] = 2;
      for (std::size_t i = 0; i < rails; ++i) peer.rails.push_back({"script", kAddress});
      return peer;
    };
    auto engine = Engine::open(std::move(parts));
    ASSERT_TRUE(engine) << engine.error().text();
    engine_ = std::move(*engine);
    exposed_region_.memory = std::as_writable_bytes(std::span(memory_));
    exposed_region_.signals = signals_;
    exposed_region_id_ = *engine_->exposed().expose(exposed_region_);
    flow_ = *engine_->peers().flow(1);
  }

  /// A frame as rank 1 would send it.
  std::vector<std::byte> frame(std::uint32_t sequence, std::uint64_t signal_add, std::uint32_t acknowledged = 0) {
    std::vector<std::byte> bytes(wire::kFrameBytes);
    std::uint32_t used = wire::kRecordsAt;
    std::byte* body =
        wire::FrameWriter::append(bytes.data(), used, {wire::RecordKind::signal, 0, 8, exposed_region_id_, 0});
    std::memcpy(body, &signal_add, 8);
    wire::FrameHeader header;
    header.flow = 1;
    header.records = 1;
    header.session = flow_->session_in;
    header.sequence = sequence;
    header.acknowledged = acknowledged;
    header.limit = acknowledged + kFirstGrant;
    header.bytes = used;
    std::memcpy(bytes.data(), &header, sizeof header);
    bytes.resize(used);
    return bytes;
  }
  std::vector<std::byte> acknowledgement(std::uint32_t acknowledged, std::uint32_t limit) {
    wire::FrameHeader header;
    header.kind = wire::FrameKind::acknowledge;
    header.flow = 1;
    header.session = flow_->session_in;
    header.acknowledged = acknowledged;
    header.limit = limit;
    header.bytes = wire::kRecordsAt;
    std::vector<std::byte> bytes(wire::kRecordsAt);
    std::memcpy(bytes.data(), &header, sizeof header);
    return bytes;
  }
  std::uint64_t put_small() {
    static constexpr std::array<std::byte, 8> kBytes{};
    const PutRecord put{7, 0, kBytes};
    std::uint64_t number = 0;
    EXPECT_TRUE(engine_->submissions().try_records(*flow_, &put, nullptr, number));
    return number;
  }
  Bulk bulk(std::size_t bytes) {
    source_.resize(bytes);
    Bulk work;
    work.local = source_.data();
    work.bytes = bytes;
    work.remote = {7, keys_};
    return work;
  }
  void chunk_lands(std::uint32_t sequence, std::size_t rail = 0) {
    rails_[rail]->land(wire::Immediate{wire::Immediate::kChunk, 1, sequence}.pack());
  }

  StillClock clock_;
  Clock* used_clock_ = &clock_;
  std::vector<ScriptRail*> rails_;
  std::array<std::uint64_t, 64> memory_{};
  std::array<std::uint64_t, 4> signals_{};
  std::array<RemoteKey, 8> keys_{};
  std::vector<std::byte> source_;
  ExposedRegion exposed_region_;
  std::uint32_t exposed_region_id_ = 0;
  std::unique_ptr<Engine> engine_;
  Flow* flow_ = nullptr;
};

}  // namespace railyard::transport
