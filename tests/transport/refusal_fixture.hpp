/// Rank 0 of 2, and what rank 1 says to it outside the sequence.
#pragma once

#include "engine_fixture.hpp"

namespace railyard::transport {

class RefusalTest : public EngineTest {
 protected:
  static constexpr std::int64_t kMillisecond = 1'000'000;
  static constexpr std::size_t kChunk = std::size_t{32} * 1024;

  void open(std::size_t rails, Settings settings = {}) {
    settings.peer_timeout_ms = 100'000;
    EngineTest::open(rails, settings);
    for (auto* rail : rails_) rail->complete_at_once = false;
  }
  void pass(int milliseconds) {
    for (int i = 0; i < milliseconds; ++i) {
      clock_.time += kMillisecond;
      engine_->progress();
    }
  }
  /// A frame of records as rank 1 would send it.
  std::vector<std::byte> frame_of(wire::FrameKind kind, std::uint32_t sequence,
                                  std::span<const std::pair<wire::RecordHeader, std::vector<std::byte>>> records) {
    std::vector<std::byte> bytes(wire::kFrameBytes);
    std::uint32_t used = wire::kRecordsAt;
    for (auto [record, body] : records) {
      record.length = static_cast<std::uint16_t>(body.size());
      std::byte* at = wire::FrameWriter::append(bytes.data(), used, record);
      if (!body.empty()) std::memcpy(at, body.data(), body.size());
    }
    wire::FrameHeader header;
    header.kind = kind;
    header.flow = 1;
    header.records = static_cast<std::uint16_t>(records.size());
    header.session = flow_->session_in;
    header.sequence = sequence;
    header.acknowledged = flow_->sender.acknowledged();
    header.limit = header.acknowledged + kFirstGrant;
    header.bytes = used;
    std::memcpy(bytes.data(), &header, sizeof header);
    bytes.resize(used);
    return bytes;
  }
  std::vector<std::byte> notice(wire::RecordHeader record, std::span<const std::byte> body = {}) {
    const std::pair<wire::RecordHeader, std::vector<std::byte>> only{record, {body.begin(), body.end()}};
    return frame_of(wire::FrameKind::notice, 0, std::span(&only, 1));
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
  static std::uint32_t sequence(const ScriptRail::Written& write) {
    return wire::Immediate::unpack(write.options.immediate).sequence;
  }
  void complete(std::size_t rail, fabric::PostContext* context, fabric::Event::Kind kind,
                fabric::Blame blame = fabric::Blame::link) {
    std::erase_if(rails_[rail]->held, [&](const ScriptRail::Held& each) { return each.context == context; });
    fabric::Event event;
    event.kind = kind;
    event.context = context;
    event.error = 5;
    event.blame = blame;
    rails_[rail]->events.push_back(event);
  }
  void acknowledge(std::uint32_t up_to, std::size_t over = 0) {
    rails_[over]->deliver(acknowledgement(up_to, up_to + 100));
    engine_->progress();
  }
};

}  // namespace railyard::transport
