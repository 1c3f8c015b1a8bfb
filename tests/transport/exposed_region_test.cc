#include "transport/exposed_region.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <vector>

namespace railyard::transport {
namespace {

class ExposedRegionTest : public ::testing::Test {
 protected:
  std::uint64_t word(std::size_t index) const { return memory_[index]; }
  bool change(AtomicOp op, std::uint64_t operand, std::uint64_t compare, std::uint32_t width,
              std::uint64_t offset = 0) {
    return change(static_cast<std::uint8_t>(op), operand, compare, width, offset);
  }
  bool change(std::uint8_t code, std::uint64_t operand, std::uint64_t compare, std::uint32_t width,
              std::uint64_t offset = 0) {
    return apply_atomic(exposed_region_, offset, code, {operand, compare, 0, width}, before_);
  }
  std::array<std::uint64_t, 4> memory_{};
  std::array<std::uint64_t, 2> signals_{};
  ExposedRegion exposed_region_{std::as_writable_bytes(std::span(memory_)), signals_};
  std::uint64_t before_ = 0;
};

TEST_F(ExposedRegionTest, EveryAtomicDoesWhatItSays) {
  memory_[0] = 12;
  EXPECT_TRUE(change(AtomicOp::add, 3, 0, 8));
  EXPECT_EQ(before_, 12U);
  EXPECT_EQ(word(0), 15U);
  EXPECT_TRUE(change(AtomicOp::increment, 99, 0, 8));
  EXPECT_EQ(word(0), 16U);
  EXPECT_TRUE(change(AtomicOp::bit_or, 3, 0, 8));
  EXPECT_EQ(word(0), 19U);
  EXPECT_TRUE(change(AtomicOp::bit_and, 18, 0, 8));
  EXPECT_EQ(word(0), 18U);
  EXPECT_TRUE(change(AtomicOp::bit_xor, 16, 0, 8));
  EXPECT_EQ(word(0), 2U);
  EXPECT_TRUE(change(AtomicOp::set, 7, 0, 8));
  EXPECT_TRUE(change(AtomicOp::swap, 8, 0, 8));
  EXPECT_EQ(before_, 7U);
  EXPECT_TRUE(change(AtomicOp::compare_swap, 9, 1, 8));
  EXPECT_EQ(before_, 8U);
  EXPECT_EQ(word(0), 8U);
  EXPECT_TRUE(change(AtomicOp::compare_swap, 9, 8, 8));
  EXPECT_EQ(word(0), 9U);
  EXPECT_TRUE(change(AtomicOp::fetch, 0, 0, 8));
  EXPECT_EQ(before_, 9U);
  EXPECT_EQ(word(0), 9U);
}

TEST_F(ExposedRegionTest, NarrowAtomicsLeaveTheNeighbourAlone) {
  memory_[0] = 0xffffffff00000005U;
  EXPECT_TRUE(change(AtomicOp::add, 0xffffffffU, 0, 4));
  EXPECT_EQ(before_, 5U);
  EXPECT_EQ(word(0), 0xffffffff00000004U);
}

TEST_F(ExposedRegionTest, EachCodeIsOneOperationAndAllOthersAreNone) {
  std::vector<int> known;
  for (const std::uint32_t width : {4U, 8U}) {
    std::vector<int> found;
    for (int code = 0; code < 256; ++code) {
      memory_[0] = 7;
      if (change(static_cast<std::uint8_t>(code), 9, 7, width)) {
        found.push_back(code);
      } else {
        EXPECT_EQ(word(0), 7U) << code;
      }
    }
    if (!known.empty()) {
      EXPECT_EQ(found, known);
    }
    known = found;
  }
  EXPECT_EQ(known, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0x19, 0x1a, 0x20, 0x29, 0x2a}));
}

TEST_F(ExposedRegionTest, MinAndMaxReadTheirWordAsTheirCodeSays) {
  constexpr auto kMinus = static_cast<std::uint64_t>(-2);
  const auto changed = [&](std::uint8_t code, std::uint64_t from, std::uint64_t operand) {
    memory_[0] = from;
    EXPECT_TRUE(change(code, operand, 0, 8));
    EXPECT_EQ(before_, from);
    return word(0);
  };
  EXPECT_EQ(changed(0x09, 5, kMinus), 5U);
  EXPECT_EQ(changed(0x19, 5, kMinus), kMinus);
  EXPECT_EQ(changed(0x0a, 5, kMinus), kMinus);
  EXPECT_EQ(changed(0x1a, 5, kMinus), 5U);
  const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
  EXPECT_EQ(changed(0x20, bits(1.5), bits(-3)), bits(-1.5));
  EXPECT_EQ(changed(0x29, bits(-1), bits(-2)), bits(-2));
  EXPECT_EQ(changed(0x2a, bits(-1), bits(-2)), bits(-1));
}

TEST_F(ExposedRegionTest, NothingOutsideIsTouched) {
  EXPECT_FALSE(change(AtomicOp::add, 1, 0, 8, 32));
  EXPECT_FALSE(change(AtomicOp::add, 1, 0, 8, 4));
  EXPECT_FALSE(change(AtomicOp::add, 1, 0, 2, 0));
  EXPECT_FALSE(change(AtomicOp::add, 1, 0, 8, UINT64_MAX - 3));
  EXPECT_FALSE(change(static_cast<AtomicOp>(200), 1, 0, 8));
  const std::array<std::byte, 8> bytes{};
  EXPECT_TRUE(apply_put(exposed_region_, 24, bytes));
  EXPECT_FALSE(apply_put(exposed_region_, 25, bytes));
  EXPECT_FALSE(apply_put(exposed_region_, UINT64_MAX, bytes));
  EXPECT_TRUE(apply_signal(exposed_region_, 1, SignalOp::add, 5));
  EXPECT_FALSE(apply_signal(exposed_region_, 2, SignalOp::add, 5));
  EXPECT_FALSE(apply_signal(exposed_region_, 1, static_cast<SignalOp>(9), 5));
  EXPECT_EQ(signals_[1], 5U);
}

}  // namespace
}  // namespace railyard::transport
