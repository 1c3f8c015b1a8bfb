/// A request that takes long is reported once, whether its user waits for it or tests it again and again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "base/log.hpp"
#include "contexts.hpp"

namespace railyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ChannelStall : public ::testing::TestWithParam<bool> {
 protected:
  ChannelStall() {
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::scoped_lock hold(mutex_);
      if (line.find("stalled for") != std::string_view::npos) lines_.emplace_back(line);
    });
  }
  ~ChannelStall() override { set_log_sink({}); }
  std::vector<std::string> lines() {
    const std::scoped_lock hold(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST_P(ChannelStall, IsReportedOnce) {
  Settings settings = over_network(1);
  settings.stall_ms = 150;
  settings.log = "warn";
  const auto from = open_context(settings);
  const auto to = open_context(settings);
  ChannelPair pair = connect(*from, *to);
  std::vector<std::byte> memory(64);
  const std::array slots{ReceiveSlot{memory, 0}};
  const auto receive = pair.in->receive(slots);
  ASSERT_TRUE(receive);
  if (GetParam()) {
    EXPECT_EQ(pair.in->wait(*receive, {}, Deadline::in(std::chrono::milliseconds(900))).status(), Status::timeout);
  } else {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(900);
    while (lines().empty() || std::chrono::steady_clock::now() < until) {
      const auto done = pair.in->test(*receive);
      ASSERT_TRUE(done && !*done);
    }
  }
  ASSERT_EQ(lines().size(), 1U);
  EXPECT_THAT(lines()[0], AllOf(HasSubstr("a receive on a channel to"), HasSubstr("sequence"),
                                HasSubstr("credits left"), HasSubstr("rail 0")));
}

INSTANTIATE_TEST_SUITE_P(Ways, ChannelStall, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "Waited" : "Tested"); });

}  // namespace
}  // namespace railyard
