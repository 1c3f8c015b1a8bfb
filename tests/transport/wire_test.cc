#include "transport/wire.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace railyard::transport::wire {
namespace {

std::vector<std::byte> frame_of(std::uint16_t records, std::size_t bytes) {
  std::vector<std::byte> frame(bytes);
  FrameHeader header;
  header.records = records;
  header.bytes = static_cast<std::uint32_t>(bytes);
  std::memcpy(frame.data(), &header, sizeof header);
  return frame;
}

TEST(Wire, ImmediateKeepsItsParts) {
  for (const std::uint32_t sequence : {0U, 1U, 4095U, 8191U, 8192U, 0xffffffffU}) {
    for (const std::uint16_t flow : {std::uint16_t{0}, std::uint16_t{77}, std::uint16_t{65535}}) {
      const auto back = Immediate::unpack(Immediate{Immediate::kChunk, flow, sequence}.pack());
      EXPECT_EQ(back.kind, Immediate::kChunk);
      EXPECT_EQ(back.flow, flow);
      EXPECT_EQ(back.sequence, sequence & Immediate::kSequenceMask);
    }
  }
}

TEST(Wire, HeaderOfAnotherVersionIsRefused) {
  auto frame = frame_of(1, 64);
  ASSERT_TRUE(parse_header(frame));
  frame[1] = std::byte{kVersion + 1};
  EXPECT_FALSE(parse_header(frame));
}

TEST(Wire, HeaderThatClaimsMoreThanArrivedIsRefused) {
  auto frame = frame_of(1, 64);
  frame.resize(63);
  EXPECT_FALSE(parse_header(frame));
  frame.resize(8);
  EXPECT_FALSE(parse_header(frame));
  EXPECT_FALSE(parse_header({}));
}

TEST(Wire, KindAndRecordsMustAgree) {
  EXPECT_FALSE(parse_header(frame_of(0, 32)));
  auto frame = frame_of(1, 32);
  frame[2] = std::byte{static_cast<std::uint8_t>(FrameKind::acknowledge)};
  EXPECT_FALSE(parse_header(frame));
  frame[2] = std::byte{99};
  EXPECT_FALSE(parse_header(frame));
}

TEST(Wire, RecordsComeBackAsWritten) {
  std::vector<std::byte> frame(kFrameBytes);
  std::uint32_t used = kRecordsAt;
  std::byte* body = FrameWriter::append(frame.data(), used, {RecordKind::put, 0, 5, 0x10002, 77});
  std::memcpy(body, "abcde", 5);
  const std::uint64_t value = 42;
  body = FrameWriter::append(frame.data(), used, {RecordKind::signal, 1, 8, 0x10002, 3});
  std::memcpy(body, &value, 8);
  FrameHeader header;
  header.records = 2;
  header.bytes = used;
  RecordReader reader(frame, header);
  const auto put = reader.next();
  ASSERT_TRUE(put);
  EXPECT_EQ(put->header.offset, 77U);
  EXPECT_EQ(std::memcmp(put->body.data(), "abcde", 5), 0);
  EXPECT_EQ(put->body.size(), 5U);
  const auto signal = reader.next();
  ASSERT_TRUE(signal);
  EXPECT_EQ(signal->header.kind, RecordKind::signal);
  EXPECT_EQ(std::memcmp(signal->body.data(), &value, 8), 0);
  EXPECT_FALSE(reader.next());
  EXPECT_TRUE(reader.ok());
}

TEST(Wire, ReaderStopsAtARecordThatLeavesTheFrame) {
  std::vector<std::byte> frame(64);
  std::uint32_t used = kRecordsAt;
  FrameWriter::append(frame.data(), used, {RecordKind::put, 0, 8, 1, 0});
  RecordHeader bad{RecordKind::put, 0, 500, 1, 0};
  std::memcpy(frame.data() + kRecordsAt, &bad, sizeof bad);
  FrameHeader header;
  header.records = 1;
  header.bytes = 64;
  RecordReader reader(frame, header);
  EXPECT_FALSE(reader.next());
  EXPECT_FALSE(reader.ok());
}

TEST(Wire, PaddingHoldsNoStaleBytes) {
  std::vector<std::byte> frame(128, std::byte{0xee});
  std::uint32_t used = kRecordsAt;
  std::byte* body = FrameWriter::append(frame.data(), used, {RecordKind::put, 0, 3, 1, 0});
  std::memcpy(body, "abc", 3);
  for (std::size_t i = 3; i < 8; ++i) EXPECT_EQ(body[i], std::byte{0});
}

}  // namespace
}  // namespace railyard::transport::wire
