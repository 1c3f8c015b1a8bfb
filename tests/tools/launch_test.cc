/// `railyard launch` when a rank fails: who is named, who goes on, and the exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run_command.hpp"

namespace railyard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Outcome launch(const std::vector<std::string>& options, const std::string& script) {
  std::vector<std::string> words{"launch", "-n", "2"};
  words.insert(words.end(), options.begin(), options.end());
  for (const char* word : {"--", "/bin/sh", "-c"}) words.emplace_back(word);
  words.push_back(script);
  return railyard_command(words);
}

TEST(Launch, NamesTheFirstFailureAndPassesItsCodeOn) {
  // Rank 1 would run for ever; it is told to end.
  const Outcome outcome = launch({"--grace", "0.1"}, "test $RAILYARD_RANK = 0 && exit 7; exec sleep 1000");
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_THAT(outcome.errors, AllOf(HasSubstr("error: rank 0 (pid "), HasSubstr("exited with code 7"),
                                    HasSubstr("the first failure: rank 0"), HasSubstr("2 of 2 ranks")));
}

TEST(Launch, LetsTheOthersRunOnIfAsked) {
  const ScratchFolder scratch;
  // Rank 1 ends by itself once rank 0 has failed and been told of: with no grace it would be ended before.
  const std::string mark = scratch.file("mark");
  const std::string script = "if test $RAILYARD_RANK = 0; then touch " + mark + "; exit 7; fi; while ! test -e " +
                             mark + "; do sleep 0.05; done; sleep 1; echo reached";
  const Outcome going = launch({"--grace", "0", "--keep-going"}, script);
  EXPECT_EQ(going.exit_code, 7);
  EXPECT_THAT(going.output, HasSubstr("reached"));
  EXPECT_THAT(going.errors, AllOf(HasSubstr("1 run on"), Not(HasSubstr("the first failure"))));
  EXPECT_THAT(launch({"--grace", "0"}, script).output, Not(HasSubstr("reached")));
}

TEST(Launch, SaysWhatTheCodesMean) {
  EXPECT_EQ(railyard_command({"launch", "-n", "1", "--", "/nonexistent/program"}).exit_code, 127);
  EXPECT_EQ(railyard_command({"launch", "-n", "1", "--", "/etc/passwd"}).exit_code, 126);
  EXPECT_EQ(launch({"--grace", "0.1"}, "kill -9 $$").exit_code, 137);
}

}  // namespace
}  // namespace railyard::testing
