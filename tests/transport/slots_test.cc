#include "transport/slots.hpp"

#include <gtest/gtest.h>

namespace railyard::transport {
namespace {

FailureCause cause_of(const Slots& slots, std::uint64_t number) {
  const auto failure = slots.failures().find(number);
  return failure ? failure->cause : FailureCause::none;
}

TEST(SlotsTest, AFailureStaysWithItsTicketWhenALaterOneInTheSlotFailsToo) {
  Slots slots(1);
  std::vector<std::uint64_t> numbers;
  for (const auto cause : {FailureCause::out_of_range, FailureCause::none, FailureCause::peer_lost}) {
    const std::uint32_t index = slots.take({});
    ASSERT_EQ(index, 0U);
    numbers.push_back(slots.number(index));
    EXPECT_FALSE(slots.done(index, numbers.back()));
    slots.finish(index, cause);
    EXPECT_TRUE(slots.done(index, numbers.back()));
  }
  EXPECT_EQ(cause_of(slots, numbers[0]), FailureCause::out_of_range);
  EXPECT_EQ(cause_of(slots, numbers[1]), FailureCause::none);
  EXPECT_EQ(cause_of(slots, numbers[2]), FailureCause::peer_lost);
}

TEST(FailureLogTest, WhatIsTooOldToTellIsNoSuccess) {
  FailureLog log;
  constexpr std::uint64_t kLast = 2 * FailureLog::kMost;
  for (std::uint64_t number = 1; number <= kLast; ++number) log.record({number, 3, 7, FailureCause::misaligned});
  EXPECT_EQ(log.find(1)->cause, FailureCause::too_old);
  EXPECT_EQ(log.find(kLast - FailureLog::kMost)->cause, FailureCause::too_old);
  EXPECT_EQ(log.find(kLast - FailureLog::kMost + 1)->cause, FailureCause::misaligned);
  EXPECT_EQ(log.find(kLast)->cause, FailureCause::misaligned);
  EXPECT_FALSE(log.find(kLast + 1));
}

TEST(FailureLogTest, AFailureThatNobodyAskedAboutIsToldOnce) {
  FailureLog log;
  // Ranks of two worlds may have the same number: the flow tells them apart.
  const int one = 0;
  const int other = 0;
  log.record({4, 1, 0, FailureCause::not_exposed, false, &one});
  log.record({5, 1, 0, FailureCause::not_exposed, false, &other});
  log.record({6, 1, 0, FailureCause::not_exposed, false, &one});
  log.record({6, 1, 0, FailureCause::not_exposed, false, &one});
  EXPECT_TRUE(log.find(4));
  EXPECT_EQ(log.take_untold(&one)->number, 6U);
  EXPECT_FALSE(log.take_untold(&one));
  EXPECT_EQ(log.take_untold()->number, 5U);
  EXPECT_FALSE(log.take_untold());
}

TEST(FailureLogTest, AnErrorNamesPeerOperationSequenceAndCause) {
  const Error error = to_error({17, 3, 42, FailureCause::not_exposed});
  EXPECT_EQ(error.status(), Status::not_found);
  EXPECT_EQ(error.where().peer, 3);
  EXPECT_EQ(error.where().sequence, 42U);
  EXPECT_NE(error.text().find("operation 17 to rank 3"), std::string::npos) << error.text();
  EXPECT_NE(error.text().find("no longer has this window"), std::string::npos) << error.text();
}

}  // namespace
}  // namespace railyard::transport
