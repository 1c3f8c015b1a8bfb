/// An engine whose links, peer and time a test plays by hand.
#pragma once

#include "engine_fixture.hpp"

namespace railyard::transport {

inline constexpr std::int64_t kMillisecond = 1'000'000;

class FailoverTest : public EngineTest {
 protected:
  void open(std::size_t rails, Settings settings = {}, std::uint32_t peer_timeout_ms = 1000) {
    settings.peer_timeout_ms = peer_timeout_ms;
    EngineTest::open(rails, settings);
    for (auto* rail : rails_) rail->complete_at_once = false;
  }
  /// Lets the engine look at its links so many times, a millisecond apart.
  void pass(int milliseconds) {
    for (int i = 0; i < milliseconds; ++i) {
      clock_.time += kMillisecond;
      engine_->progress();
    }
  }
  std::vector<std::byte> notice(wire::RecordHeader record, std::span<const std::byte> body = {},
                                std::uint32_t sequence = 0) {
    std::vector<std::byte> bytes(wire::kFrameBytes);
    std::uint32_t used = wire::kRecordsAt;
    record.length = static_cast<std::uint16_t>(body.size());
    std::byte* at = wire::FrameWriter::append(bytes.data(), used, record);
    if (!body.empty()) std::memcpy(at, body.data(), body.size());
    wire::FrameHeader header;
    header.kind = wire::FrameKind::notice;
    header.flow = 1;
    header.records = 1;
    header.session = flow_->session_in;
    header.sequence = sequence;
    header.acknowledged = flow_->sender.acknowledged();
    header.limit = header.acknowledged + kFirstGrant;
    header.bytes = used;
    std::memcpy(bytes.data(), &header, sizeof header);
    bytes.resize(used);
    return bytes;
  }
  /// The peer's word after a fence: `next`, and which of the 64 segments from there on have arrived.
  void fenced(std::uint16_t link, std::uint32_t epoch, std::uint32_t next, std::uint64_t arrived, std::size_t over) {
    struct {
      wire::FencedBody body;
      std::uint64_t bits;
    } report{{next, 1}, arrived};
    rails_[over]->deliver(notice({wire::RecordKind::fenced, 0, 0, epoch, wire::LinkEnds{link, link, link}.pack()},
                                 std::as_bytes(std::span(&report, 1))));
    engine_->progress();
  }
  void answer_pings(std::size_t rail, std::size_t over) {
    for (const auto& ping : rails_[rail]->notices(wire::RecordKind::ping)) {
      rails_[over]->deliver(notice({wire::RecordKind::pong, 0, 0, ping.number, ping.word}));
    }
  }
  std::size_t writes() const {
    std::size_t count = 0;
    for (const auto* rail : rails_) count += rail->writes.size();
    return count;
  }
  /// Four ordered chunks, two on each rail.
  void put_four_chunks() {
    std::uint64_t number = 0;
    ASSERT_TRUE(engine_->submissions().try_write(*flow_, bulk(4 * 32 * 1024), nullptr, number));
    ASSERT_EQ(rails_[0]->writes.size(), 2U);
    ASSERT_EQ(rails_[1]->writes.size(), 2U);
  }
  static std::uint32_t sequence(const ScriptRail::Written& write) {
    return wire::Immediate::unpack(write.options.immediate).sequence;
  }
};

}  // namespace railyard::transport
