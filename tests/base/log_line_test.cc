#include "base/log_line.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace railyard::log_detail {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

Message message(std::string text) { return {LogLevel::warn, -1, "", std::move(text), 0}; }

TEST(LogLine, TimeIsUtcWithMilliseconds) {
  EXPECT_EQ(timestamp(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(timestamp(1'794'837'600'123'456'789), "2026-11-16T14:00:00.123Z");
}

TEST(LogLine, HasTimeHostAndRank) {
  EXPECT_EQ(stamped_line(message("x"), {"node7", 1, 3}, 0), "1970-01-01T00:00:00.000Z node7 railyard[3]: warning: x");
  EXPECT_EQ(json_line(message("x"), {"node7", 1, -1}, 0),
            R"({"time":"1970-01-01T00:00:00.000Z","host":"node7","pid":1,"level":"warning","message":"x"})");
}

TEST(RepeatFold, WritesAgainWithACountAfterItsWindow) {
  RepeatFold fold;
  EXPECT_EQ(fold.take(message("a"), 0).size(), 1U);
  for (int i = 1; i <= 3; ++i) EXPECT_TRUE(fold.take(message("a"), i * kSecond).empty());
  const auto later = fold.take(message("a"), RepeatFold::kWindowNs);
  ASSERT_EQ(later.size(), 1U);
  EXPECT_EQ(later[0].more, 3U);
  EXPECT_TRUE(fold.take(message("a"), RepeatFold::kWindowNs + 1).empty());
}

TEST(RepeatFold, TellsOldCountsWithTheNextMessage) {
  RepeatFold fold;
  for (int i = 0; i < 4; ++i) fold.take(message("a"), i);
  const auto out = fold.take(message("b"), RepeatFold::kWindowNs);
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(out[0].text, "a");
  EXPECT_EQ(out[0].more, 3U);
  EXPECT_EQ(out[1].text, "b");
  EXPECT_EQ(fold.flush().size(), 0U);
}

TEST(RepeatFold, ForgetsTheOldestAndLosesNoCount) {
  RepeatFold fold;
  std::uint64_t written = 0;
  std::uint64_t folded = 0;
  const auto count = [&](const std::vector<Message>& out) {
    for (const Message& one : out) one.more == 0 ? ++written : folded += one.more;
  };
  for (int i = 0; i < 40; ++i) {
    count(fold.take(message(std::to_string(i)), i));
    count(fold.take(message(std::to_string(i)), i));
  }
  count(fold.flush());
  EXPECT_EQ(written, 40U);
  EXPECT_EQ(folded, 40U);
}

}  // namespace
}  // namespace railyard::log_detail
