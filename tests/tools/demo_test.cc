/// `railyard demo`, and the examples, as a newcomer runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "demo_report.hpp"
#include "json_reader.hpp"
#include "run_command.hpp"

namespace railyard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Demo, UsesTheRailsOfTheWorldItIsStartedIn) {
  const ScratchFolder scratch;
  const std::string file = scratch.file("figures.json");
  const Outcome demo = railyard_command(
      {"launch", "-n", "2", "--", RAILYARD_COMMAND, "demo", "--seconds", "0.05", "--svg", "", "--json", file});
  ASSERT_EQ(demo.exit_code, 0) << demo.errors;
  EXPECT_THAT(demo.output, AllOf(HasSubstr("2 ranks, "), Not(HasSubstr("on this machine"))));
  const auto figures = JsonReader::read(read_file(file));
  const auto info =
      JsonReader::read(railyard_command({"info", "--json", "-"}, {{"RAILYARD_SHARED_MEMORY", "off"}}).output);
  ASSERT_TRUE(figures && info);
  std::vector<std::string> own;
  std::vector<std::string> found;
  for (const Json& rail : (*figures)["rails"].array()) own.push_back(rail["name"].text());
  for (const Json& rail : (*info)["rails"].array()) found.push_back(rail["name"].text());
  EXPECT_EQ(own, found);
}

TEST(Demo, MovesAndVerifiesTraffic) {
  const ScratchFolder scratch;
  const std::string svg = scratch.file("picture.svg");
  const std::string file = scratch.file("figures.json");
  const Outcome demo = railyard_command(
      {"demo", "-n", "3", "--rails", "2", "--seconds", "0.1", "--svg", svg, "--json", file}, {{"LC_ALL", "C.UTF-8"}});
  ASSERT_EQ(demo.exit_code, 0) << demo.errors;
  EXPECT_THAT(demo.output, AllOf(HasSubstr("3 ranks"), HasSubstr("2 rails"), HasSubstr("p99"), HasSubstr("█"),
                                 HasSubstr("Verified: "), HasSubstr(svg)));
  EXPECT_THAT(read_file(svg), AllOf(StartsWith("<svg "), HasSubstr("fetch-add"), ::testing::EndsWith("</svg>\n")));
  const auto json = JsonReader::read(read_file(file));
  ASSERT_TRUE(json) << read_file(file);
  EXPECT_TRUE((*json)["verified"].flag());
  EXPECT_EQ((*json)["ranks"].number(), 3);
  EXPECT_GT((*json)["bytes_checked"].number(), 0);
  EXPECT_GT((*json)["signals_checked"].number(), 0);
  EXPECT_GT((*json)["atomics_checked"].number(), 0);
  ASSERT_EQ((*json)["rails"].array().size(), 2U);
  ASSERT_EQ((*json)["phases"].array().size(), 6U);
  for (const Json& phase : (*json)["phases"].array()) {
    EXPECT_GT(phase["operations"].number(), 0) << phase["name"].text();
    EXPECT_LE(phase["p50_us"].number(), phase["p99_us"].number()) << phase["name"].text();
  }
}

TEST(Demo, DrawsWithoutBlocksWhereTheyCannotBeShown) {
  for (const Variables& locale :
       {Variables{{"LC_ALL", "C"}}, Variables{{"LC_ALL", ""}, {"LC_CTYPE", ""}, {"LANG", ""}}}) {
    const Outcome demo =
        railyard_command({"demo", "-n", "2", "--rails", "1", "--seconds", "0.05", "--svg", ""}, locale);
    ASSERT_EQ(demo.exit_code, 0) << demo.errors;
    EXPECT_THAT(demo.output, AllOf(HasSubstr("####"), Not(HasSubstr("█")), Not(HasSubstr("Picture"))));
  }
}

TEST(Demo, NamesWhatIsWrong) {
  const Outcome file = railyard_command({"demo", "--svg", "/nonexistent/picture.svg"});
  EXPECT_EQ(file.exit_code, 3);
  EXPECT_THAT(file.errors, HasSubstr("/nonexistent/picture.svg"));
  const Outcome provider = railyard_command({"demo", "--svg", ""}, {{"RAILYARD_PROVIDER", "nosuch"}});
  EXPECT_EQ(provider.exit_code, 3);
  EXPECT_THAT(provider.errors, HasSubstr("'nosuch'"));
}

/// A world of two in which rank 1 is what the test says.
class OtherRank final : public Bootstrap {
 public:
  explicit OtherRank(std::vector<std::byte> other) : other_(std::move(other)) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string describe() const override { return "test"; }
  Result<void> barrier(Deadline) override { return {}; }
  Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, Deadline) override {
    if (recorded_.empty()) recorded_.assign(mine.begin(), mine.end());
    return std::vector<std::vector<std::byte>>{{mine.begin(), mine.end()}, other_.empty() ? recorded_ : other_};
  }
  const std::vector<std::byte>& recorded() const { return recorded_; }

 private:
  std::vector<std::byte> other_;
  std::vector<std::byte> recorded_;
};

tool::DemoResult small_result() {
  tool::DemoResult result;
  result.provider = "tcp";
  result.phases.resize(1);
  result.phases[0].name = "get";
  result.phases[0].operations = 2;
  result.phases[0].latency.add(1000);
  result.phases[0].latency.add(9000);
  result.rails = {{"tcp lo", 500, 300}};
  result.bulk_seconds = 0.5;
  result.bytes_checked = 7;
  return result;
}

TEST(DemoReport, AddsUpTheRanks) {
  OtherRank same({});
  const auto summary = tool::summarise(small_result(), same);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->ranks, 2);
  EXPECT_EQ(summary->all.phases.at(0).operations, 4U);
  EXPECT_EQ(summary->all.phases.at(0).latency.count(), 4U);
  EXPECT_EQ(summary->all.rails.at(0).bytes, 1000U);
  EXPECT_DOUBLE_EQ(summary->rail_rate(summary->all.rails.at(0)), 600 / 0.5);
  EXPECT_EQ(summary->all.bytes_checked, 14U);
  EXPECT_THAT(tool::demo_table(*summary, false), HasSubstr("Verified"));
}

TEST(DemoReport, AFailureOfAnyRankIsTheOutcome) {
  tool::DemoResult broken = small_result();
  broken.failure = "rank 1: get: byte 8 of 64 from rank 0 is wrong";
  OtherRank recorder({});
  ASSERT_TRUE(tool::summarise(broken, recorder));
  OtherRank other(recorder.recorded());
  const auto summary = tool::summarise(small_result(), other);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->all.failure, broken.failure);
  EXPECT_THAT(tool::demo_table(*summary, false), Not(HasSubstr("Verified")));
  EXPECT_THAT(tool::demo_picture(*summary), HasSubstr("FAILED: rank 1"));
  const auto json = JsonReader::read(tool::demo_json(*summary));
  ASSERT_TRUE(json);
  EXPECT_FALSE((*json)["verified"].flag());
}

TEST(DemoReport, RefusesWhatAnotherProgramSent) {
  OtherRank other(std::vector<std::byte>(33, std::byte{0x7f}));
  EXPECT_FALSE(tool::summarise(small_result(), other));
}

struct Example {
  const char* name;
  const char* ranks;
  const char* rails;
  const char* says;
};

class Examples : public ::testing::TestWithParam<Example> {};

TEST_P(Examples, RunAndVerifyTheirResult) {
  const Example& example = GetParam();
  const std::string program = std::string(RAILYARD_BIN_DIR) + "/example-" + example.name;
  const Outcome outcome =
      railyard_command({"launch", "-n", example.ranks, "--", program},
                       // A crowded machine is late: a link that is given up for that says so.
                       on_loopback({{"RAILYARD_RAILS", example.rails}, {"RAILYARD_ACK_DEADLINE_MS", "5000"}}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr(example.says));
  EXPECT_THAT(outcome.errors, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    All, Examples,
    ::testing::Values(Example{"01-put-signal", "2", "1", "rank 1 of 2, over 1 rails: greetings from rank 0"},
                      Example{"01-put-signal", "1", "1", "rank 0 of 1, over 1 rails: greetings from rank 0"},
                      Example{"02-gets-and-atomics", "2", "4", "32 items, total right"},
                      Example{"03-halo-exchange", "3", "2", "rank 2 of 3: 500 steps, equal to the undivided rod"},
                      Example{"04-all-to-all-in-c", "4", "2", "rank 3: 4 blocks, 0 wrong bytes"},
                      Example{"06-ring-with-credits", "2", "1", "rank 1 of 2: 200 blocks, 0 of them wrong"},
                      Example{"06-ring-with-credits", "3", "2", "rank 2 of 3: 200 blocks, 0 of them wrong"},
                      Example{"07-grid-halo", "4", "2", "2 x 2 tiles, 100 steps"},
                      Example{"07-grid-halo", "3", "1", "none is missing"},
                      Example{"10-messages-in-c", "1", "2", "32 blocks of 300000 bytes, 0 wrong bytes"}),
    [](const auto& info) {
      std::string name = std::string(info.param.name) + "_" + info.param.ranks;
      for (char& c : name) c = c == '-' ? '_' : c;
      return name;
    });

}  // namespace
}  // namespace railyard::testing
