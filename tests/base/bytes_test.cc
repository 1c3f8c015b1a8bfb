#include "base/bytes.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <string>
#include <vector>

namespace railyard {
namespace {

TEST(Bytes, AreLittleEndian) {
  ByteWriter writer;
  writer.u16(0x0102);
  writer.u32(0x03040506);
  writer.text("ab");
  const std::array<unsigned char, 12> expected = {2, 1, 6, 5, 4, 3, 2, 0, 0, 0, 'a', 'b'};
  ASSERT_EQ(writer.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(writer.bytes()[i], std::byte{expected[i]}) << i;
}

TEST(Bytes, WhatIsWrittenIsRead) {
  EXPECT_TRUE(rc::check([](std::uint8_t a, std::uint16_t b, std::uint32_t c, std::uint64_t d, std::int32_t e,
                           std::int64_t f, const std::string& text) {
    ByteWriter writer;
    writer.u8(a);
    writer.u16(b);
    writer.u32(c);
    writer.u64(d);
    writer.i32(e);
    writer.i64(f);
    writer.text(text);
    ByteReader reader(writer.bytes());
    RC_ASSERT(reader.u8() == a);
    RC_ASSERT(reader.u16() == b);
    RC_ASSERT(reader.u32() == c);
    RC_ASSERT(reader.u64() == d);
    RC_ASSERT(reader.i32() == e);
    RC_ASSERT(reader.i64() == f);
    RC_ASSERT(reader.text() == text);
    RC_ASSERT(reader.done());
  }));
}

// Heap memory of exactly the message's size: the address sanitizer sees a read past the end.
TEST(Bytes, AnyReadsOfAnyBytesStayInside) {
  EXPECT_TRUE(rc::check([](const std::vector<std::uint8_t>& content) {
    const std::vector<std::byte> bytes = [&] {
      ByteWriter writer;
      for (const std::uint8_t byte : content) writer.u8(byte);
      return writer.take();
    }();
    ByteReader reader(bytes);
    bool failed = false;
    std::size_t taken = 0;
    for (const int kind : *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 6))) {
      const std::size_t before = reader.remaining();
      switch (kind) {
        case 0:
          reader.u8();
          break;
        case 1:
          reader.u16();
          break;
        case 2:
          reader.u32();
          break;
        case 3:
          reader.u64();
          break;
        case 4:
          reader.blob();
          break;
        default:
          reader.raw(3);
          break;
      }
      RC_ASSERT(!(failed && reader.ok()));
      failed = !reader.ok();
      taken += before - reader.remaining();
      RC_ASSERT(taken <= bytes.size());
      if (failed) RC_ASSERT(reader.remaining() == 0U);
    }
  }));
}

TEST(Bytes, TooShortIsZeroAndStaysSo) {
  const std::array<std::byte, 3> bytes = {std::byte{9}, std::byte{9}, std::byte{9}};
  ByteReader reader(bytes);
  EXPECT_EQ(reader.u32(), 0U);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.u8(), 0U);
  EXPECT_FALSE(reader.done());
}

TEST(Bytes, ALengthOverTheBoundFails) {
  ByteWriter writer;
  writer.text("12345");
  ByteReader strict(writer.bytes());
  EXPECT_EQ(strict.text(4), "");
  EXPECT_FALSE(strict.ok());
  ByteReader exact(writer.bytes());
  EXPECT_EQ(exact.text(5), "12345");
  EXPECT_TRUE(exact.done());
}

TEST(Bytes, ALengthPastTheEndFails) {
  ByteWriter writer;
  writer.u32(UINT32_MAX);
  writer.u8(1);
  ByteReader reader(writer.bytes());
  EXPECT_TRUE(reader.blob().empty());
  EXPECT_FALSE(reader.ok());
}

TEST(Bytes, LeftoversAreNotDone) {
  ByteWriter writer;
  writer.u16(1);
  ByteReader reader(writer.bytes());
  reader.u8();
  EXPECT_TRUE(reader.ok());
  EXPECT_FALSE(reader.done());
}

TEST(Bytes, AnEmptyBlobIsFine) {
  ByteWriter writer;
  writer.blob({});
  ByteReader reader(writer.bytes());
  EXPECT_TRUE(reader.blob().empty());
  EXPECT_TRUE(reader.done());
}

TEST(Bytes, TakeLeavesTheWriterEmpty) {
  ByteWriter writer;
  writer.u8(1);
  EXPECT_EQ(writer.take().size(), 1U);
  EXPECT_EQ(writer.size(), 0U);
}

}  // namespace
}  // namespace railyard
