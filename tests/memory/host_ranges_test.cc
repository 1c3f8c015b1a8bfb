#include "memory/host_ranges.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "memory/pages.hpp"

namespace railyard::memory {
namespace {

class Ranges : public ::testing::Test {
 protected:
  bool hold(std::span<const std::byte> memory) const { return ranges_.hold(memory.data(), memory.size()); }

  HostRanges ranges_;
  Pages pages_{64};
};

TEST_F(Ranges, ThePagesOfWhatWasAddedAreKnownAndNoneBesideThem) {
  EXPECT_FALSE(hold(pages_.pages(4, 1)));
  ranges_.add({pages_.pages(4, 1).data() + 100, 2 * page_bytes()});
  EXPECT_TRUE(hold(pages_.pages(4, 1).first(8))) << "a page is the host's or it is not";
  EXPECT_TRUE(hold(pages_.pages(4, 3)));
  EXPECT_TRUE(hold(pages_.pages(6, 1).last(1)));
  EXPECT_FALSE(hold({pages_.pages(6, 1).data() + 100, page_bytes()})) << "its end lies outside";
  EXPECT_FALSE(hold({pages_.pages(3, 1).data() + 100, page_bytes()})) << "its beginning does";
  EXPECT_FALSE(hold(pages_.pages(7, 1)));
  ranges_.add(pages_.pages(20, 1).first(100));
  EXPECT_TRUE(hold(pages_.pages(20, 1).first(10)));
  ranges_.add({});
  EXPECT_FALSE(hold(pages_.pages(3, 1)));
}

TEST_F(Ranges, WhatIsTakenOutIsNotKnown) {
  ranges_.add(pages_.pages(4, 8));
  ranges_.add(pages_.pages(20, 4));
  ranges_.remove(pages_.pages(30, 4));
  EXPECT_TRUE(hold(pages_.pages(4, 8)));
  ranges_.remove(pages_.pages(11, 1).last(1));
  EXPECT_FALSE(hold(pages_.pages(4, 1))) << "by any of its bytes";
  EXPECT_TRUE(hold(pages_.pages(20, 4)));
  ranges_.remove({});
  EXPECT_TRUE(hold(pages_.pages(20, 4)));
}

TEST_F(Ranges, TheLastFewAreKept) {
  const auto count = static_cast<std::size_t>(HostRanges::kMost);
  for (std::size_t i = 0; i < 3; ++i) ranges_.add(pages_.pages(60, 1));
  for (std::size_t i = 0; i < count; ++i) ranges_.add(pages_.pages(2 * i, 1));
  for (std::size_t i = 0; i < count; ++i) EXPECT_TRUE(hold(pages_.pages(2 * i, 1)));
  EXPECT_FALSE(hold(pages_.pages(60, 1)));
}

TEST_F(Ranges, AddressesAtTheEdgesDoNoHarm) {
  const auto at = [](std::uintptr_t address) { return reinterpret_cast<const std::byte*>(address); };
  EXPECT_FALSE(ranges_.hold(nullptr, 8));
  EXPECT_FALSE(ranges_.hold(at(UINTPTR_MAX - 3), 8));
  ranges_.add({at(UINTPTR_MAX - 3 * page_bytes() + 1), 2 * page_bytes()});
  EXPECT_FALSE(ranges_.hold(at(UINTPTR_MAX - 3 * page_bytes() + 1), 8)) << "too high to be kept";
}

TEST(OwnStackTest, IsThatOfTheThreadAndNobodyElses) {
  // Not a variable: a sanitizer keeps those elsewhere.
  const void* const here = __builtin_alloca(8);
  OwnStack::look();
  static int elsewhere = 0;
  EXPECT_FALSE(OwnStack::holds(&elsewhere));
  EXPECT_FALSE(OwnStack::holds(nullptr));
  EXPECT_TRUE(OwnStack::holds(here));
  std::thread([&] {
    EXPECT_FALSE(OwnStack::holds(here));
    OwnStack::look();
    EXPECT_FALSE(OwnStack::holds(here));
  }).join();
}

}  // namespace
}  // namespace railyard::memory
