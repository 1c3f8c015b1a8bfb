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

const FrameHeader& begin_frame(std::vector<std::byte>& frame, std::uint16_t records, std::uint32_t bytes) {
  FrameHeader header;
  header.records = records;
  header.bytes = bytes;
  std::memcpy(frame.data(), &header, sizeof header);
  return *parse_header(frame);
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
  RecordReader reader(begin_frame(frame, 2, used));
  RecordReader::Record record;
  ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(record.header.word, 77U);
  EXPECT_EQ(std::memcmp(record.body.data(), "abcde", 5), 0);
  EXPECT_EQ(record.body.size(), 5U);
  ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(record.header.kind, RecordKind::signal);
  EXPECT_EQ(std::memcmp(record.body.data(), &value, 8), 0);
  EXPECT_FALSE(reader.next(record));
  EXPECT_TRUE(reader.ok());
}

TEST(Wire, AReaderGoesOnWhereAnotherStood) {
  std::vector<std::byte> frame(kFrameBytes);
  std::uint32_t used = kRecordsAt;
  for (std::uint16_t i = 0; i < 3; ++i)
    FrameWriter::append(frame.data(), used, {RecordKind::put, 0, std::uint16_t(8 * i), 1, i});
  const FrameHeader& header = begin_frame(frame, 3, used);
  RecordReader first(header);
  RecordReader::Record record;
  ASSERT_TRUE(first.next(record));
  RecordReader second(header, first.at(), 1);
  EXPECT_EQ(second.left(), 2U);
  ASSERT_TRUE(second.next(record));
  EXPECT_EQ(record.header.word, 1U);
  EXPECT_EQ(record.body.size(), 8U);
  ASSERT_TRUE(second.next(record));
  EXPECT_EQ(record.header.word, 2U);
  EXPECT_FALSE(second.next(record));
  EXPECT_TRUE(second.ok());
}

TEST(Wire, ReaderStopsAtARecordThatLeavesTheFrame) {
  std::vector<std::byte> frame(64);
  std::uint32_t used = kRecordsAt;
  FrameWriter::append(frame.data(), used, {RecordKind::put, 0, 8, 1, 0});
  RecordHeader bad{RecordKind::put, 0, 500, 1, 0};
  std::memcpy(frame.data() + kRecordsAt, &bad, sizeof bad);
  RecordReader reader(begin_frame(frame, 1, 64));
  RecordReader::Record record;
  EXPECT_FALSE(reader.next(record));
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
