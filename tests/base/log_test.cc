#include "base/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace railyard {
namespace {

using ::testing::ElementsAre;

class Log : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel, std::string_view line) { lines_.emplace_back(line); });
  }
  void TearDown() override {
    set_log_sink({});
    set_log_rank(-1);
    set_log_level(LogLevel::warn);
  }
  std::vector<std::string> lines_;
};

TEST_F(Log, WritesWhatTheLevelAllows) {
  log_error("a {}", 1);
  log_warn("b {}", 2);
  log_info("c {}", 3);
  EXPECT_THAT(lines_, ElementsAre("railyard: error: a 1", "railyard: warning: b 2"));
  set_log_level(LogLevel::debug);
  log_info("d");
  log_debug("e");
  EXPECT_THAT(lines_,
              ElementsAre("railyard: error: a 1", "railyard: warning: b 2", "railyard: d", "railyard: debug: e"));
}

TEST_F(Log, PrefixNamesTheRank) {
  set_log_rank(7);
  log_warn("x");
  EXPECT_THAT(lines_, ElementsAre("railyard[7]: warning: x"));
}

struct CountsFormatting {
  int* count;
};

}  // namespace
}  // namespace railyard

template <>
struct fmt::formatter<railyard::CountsFormatting> {
  constexpr auto parse(format_parse_context& context) { return context.begin(); }
  auto format(const railyard::CountsFormatting& value, format_context& context) const {
    ++*value.count;
    return context.out();
  }
};

namespace railyard {
namespace {

TEST_F(Log, FormatsNothingBelowTheLevel) {
  int formatted = 0;
  const CountsFormatting value{&formatted};
  log_debug("{}", value);
  EXPECT_EQ(formatted, 0);
  log_error("{}", value);
  EXPECT_EQ(formatted, 1);
}

TEST_F(Log, LinesOfSeveralThreadsStayWhole) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      for (int j = 0; j < 100; ++j) log_error("line {:02} of thread {}", j, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines_.size(), 400U);
  for (const std::string& line : lines_)
    EXPECT_THAT(line, ::testing::MatchesRegex("railyard: error: line [0-9][0-9] of thread [0-3]"));
}

TEST_F(Log, GoesToStderrByDefault) {
  set_log_sink({});
  ::testing::internal::CaptureStderr();
  log_error("there");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::MatchesRegex("[0-9-]+T[0-9:.]+Z [^ ]+ railyard: error: there\n"));
}

TEST_F(Log, NamesTheRail) {
  log_warn(LogRail{1, "tcp lo#1"}, "is {}", "down");
  log_warn(LogRail{-1, "sim 3"}, "is down");
  EXPECT_THAT(lines_,
              ElementsAre("railyard: warning: rail 1 (tcp lo#1): is down", "railyard: warning: sim 3: is down"));
}

TEST_F(Log, FoldsRepeats) {
  for (int i = 0; i < 5; ++i) {
    log_warn("again");
    log_warn(LogRail{i % 2, "nic"}, "again");
  }
  EXPECT_THAT(lines_, ElementsAre("railyard: warning: again", "railyard: warning: rail 0 (nic): again",
                                  "railyard: warning: rail 1 (nic): again"));
  lines_.clear();
  log_detail::flush();
  EXPECT_THAT(lines_, ElementsAre("railyard: warning: again (repeated 4 times)",
                                  "railyard: warning: rail 0 (nic): again (repeated 2 times)",
                                  "railyard: warning: rail 1 (nic): again (repeated 1 time)"));
  lines_.clear();
  log_detail::flush();
  EXPECT_TRUE(lines_.empty());
}

TEST_F(Log, WritesJsonIfAsked) {
  set_log_sink({});
  set_log_format(LogFormat::json);
  set_log_rank(4);
  ::testing::internal::CaptureStderr();
  log_error(LogRail{2, "verbs mlx5_0"}, "said \"no\"\n\\");
  set_log_format(LogFormat::text);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::MatchesRegex("\\{\"time\":\"[0-9-]+T[0-9:.]+Z\",\"host\":\"[^\"]+\",\"pid\":[0-9]+,\"rank\":4,"
                                      "\"level\":\"error\",\"rail\":2,\"device\":\"verbs mlx5_0\","
                                      "\"message\":\"said \\\\\"no\\\\\"\\\\u000a\\\\\\\\\"\\}\n"));
}

TEST(LogLevels, AreParsedByName) {
  EXPECT_EQ(parse_log_level("error").value(), LogLevel::error);
  EXPECT_EQ(parse_log_level("warn").value(), LogLevel::warn);
  EXPECT_EQ(parse_log_level("info").value(), LogLevel::info);
  EXPECT_EQ(parse_log_level("debug").value(), LogLevel::debug);
  EXPECT_EQ(parse_log_level("loud").status(), Status::invalid);
}

TEST(LogLimit, AllowsABurstInEachIntervalAndCountsTheRest) {
  LogLimit limit(2, 100);
  EXPECT_TRUE(limit.allow(1000));
  EXPECT_TRUE(limit.allow(1001));
  EXPECT_FALSE(limit.allow(1002));
  EXPECT_FALSE(limit.allow(1099));
  EXPECT_TRUE(limit.allow(1100));
  EXPECT_EQ(limit.take_suppressed(), 2U);
  EXPECT_EQ(limit.take_suppressed(), 0U);
}

TEST(LogLimit, StartsAtAnyTime) {
  LogLimit limit(1, 100);
  EXPECT_TRUE(limit.allow(0));
  EXPECT_FALSE(limit.allow(99));
  EXPECT_TRUE(limit.allow(100));
}

}  // namespace
}  // namespace railyard
