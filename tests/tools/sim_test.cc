/// `railyard sim`: what it prints and writes, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "json_reader.hpp"
#include "run_command.hpp"

namespace railyard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SimCommand, WritesTheKeysThatScriptsRelyOn) {
  const ScratchFolder scratch;
  const std::string file = scratch.file("sim.json");
  const Outcome run = railyard_command({"sim", "--schedules", "5", "--seed", "3", "--json", file});
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.output, AllOf(HasSubstr("schedules"), HasSubstr("ghosts"), HasSubstr("corrupt")));
  const std::string text = read_file(file);
  std::size_t at = 0;
  for (const char* key : {"schedules", "ops", "lost", "doubled", "early", "ghosts", "corrupt"}) {
    const std::size_t found = text.find("\"" + std::string(key) + "\"");
    ASSERT_NE(found, std::string::npos) << key;
    EXPECT_GE(found, at) << key << " is not in its place";
    at = found;
  }
  const auto json = JsonReader::read(text);
  ASSERT_TRUE(json.has_value()) << text;
  EXPECT_EQ((*json)["schedules"].number(), 5);
  EXPECT_GT((*json)["ops"].number(), 0);
  for (const char* key : {"lost", "doubled", "early", "ghosts", "corrupt", "violations"}) {
    EXPECT_EQ((*json)[key].number(), 0) << key;
  }
  EXPECT_TRUE((*json)["first_failing_seed"].is_null());
}

TEST(SimCommand, TheSameSeedGivesTheSameFile) {
  const std::vector<std::string> line = {"sim", "--schedules", "3", "--seed", "9", "--json", "-"};
  EXPECT_EQ(railyard_command(line).output, railyard_command(line).output);
}

TEST(SimCommand, BadInputIsAUsageErrorThatSaysWhatToDo) {
  const Outcome fault = railyard_command({"sim", "--faults", "fire"});
  EXPECT_EQ(fault.exit_code, 2);
  EXPECT_THAT(fault.errors, AllOf(HasSubstr("'fire'"), HasSubstr("reorder"), HasSubstr("late-completion")));
  const Outcome ranks = railyard_command({"sim", "--ranks", "many"});
  EXPECT_EQ(ranks.exit_code, 2);
  EXPECT_THAT(ranks.errors, HasSubstr("'many'"));
  EXPECT_EQ(railyard_command({"sim", "--programs", "sockets"}).exit_code, 2);
  EXPECT_EQ(railyard_command({"sim", "--ranks", "2,3"}).exit_code, 2);
  EXPECT_EQ(railyard_command({"sim", "--rails", "1000"}).exit_code, 2);
  EXPECT_EQ(railyard_command({"sim", "--schedules", "0"}).exit_code, 2);
  EXPECT_EQ(railyard_command({"sim", "--json", "/no/such/folder/file"}).exit_code, 3);
}

TEST(SimCommand, MeasuresMemoryForEachSize) {
  const Outcome run = railyard_command({"sim", "--memory", "--ranks", "8,16", "--rails", "2", "--json", "-"});
  if (run.exit_code == 3) GTEST_SKIP() << run.errors;  // a sanitizer's allocator does not count
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  const auto json = JsonReader::read(run.output.substr(run.output.find('{')));
  ASSERT_TRUE(json.has_value()) << run.output;
  const auto& rows = (*json)["rows"].array();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[1]["ranks"].number(), 16);
  EXPECT_GT(rows[1]["bytes_per_known_peer"].number(), 0);
  EXPECT_GT(rows[1]["bytes_per_active_peer"].number(), 0);
}

/// Every channel is opened and every link counted; that the sum is peers x rails x m is what sharing promises.
TEST(SimCommand, CountsTheQueuePairsOfOneRank) {
  const ScratchFolder scratch;
  const std::string picture = scratch.file("queue-pairs.svg");
  const Outcome run =
      railyard_command({"sim", "--queue-pairs", "--ranks", "16,48", "--rails", "2", "--json", "-", "--svg", picture});
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  const auto json = JsonReader::read(run.output.substr(run.output.find('{')));
  ASSERT_TRUE(json.has_value()) << run.output;
  double same_local_rank = 0;
  for (const auto& row : (*json)["rows"].array()) {
    const double peers = row["peers"].number();
    const double channels = row["channels"].number();
    const double shared = row["shared_links"].number();
    EXPECT_EQ(peers, row["same_local_rank"].flag() ? row["ranks"].number() / 8 - 1 : row["ranks"].number() - 8);
    EXPECT_EQ(row["queue_pairs"].number(), peers * 2 * shared);
    EXPECT_EQ(row["links"].number(), 2 * row["queue_pairs"].number()) << "one each way";
    EXPECT_EQ(row["nccl"].number(), peers * 2 * channels * 2);
    EXPECT_EQ(row["nccl_with_flush"].number(), peers * 2 * channels * 3);
    EXPECT_EQ(row["anp"].number(), peers * 2 * shared * 2);
    EXPECT_EQ(row["anp_with_flush"].number(), peers * 2 * (shared * 2 + channels));
    same_local_rank += row["same_local_rank"].flag() ? 1 : 0;
  }
  EXPECT_EQ(same_local_rank, 2) << "one for each size";
  EXPECT_THAT(read_file(picture), AllOf(HasSubstr("<svg"), HasSubstr("NCCL"), HasSubstr("ANP")));
}

TEST(SimCommand, SaysWhichJobsHaveNoQueuePairsToCount) {
  const Outcome odd = railyard_command({"sim", "--queue-pairs", "--ranks", "20"});
  EXPECT_EQ(odd.exit_code, 2);
  EXPECT_THAT(odd.errors, AllOf(HasSubstr("20 ranks"), HasSubstr("multiple of 8")));
  const Outcome small = railyard_command({"sim", "--queue-pairs", "--ranks", "8"});
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_THAT(small.errors, HasSubstr("from 16 to 4096"));
  EXPECT_EQ(railyard_command({"sim", "--queue-pairs", "--memory"}).exit_code, 2);
}

TEST(SimCommand, WithoutFencesItFindsGhosts) {
  const Outcome run =
      railyard_command({"sim", "--schedules", "400", "--faults", "late-packets", "--no-fence", "--json", "-"});
  EXPECT_EQ(run.exit_code, 1) << run.errors;
  const auto json = JsonReader::read(run.output.substr(run.output.find('{')));
  ASSERT_TRUE(json.has_value()) << run.output;
  EXPECT_GT((*json)["ghosts"].number(), 0);
}

TEST(SimCommand, DrawsTheGoodputOfFailingRails) {
  const ScratchFolder scratch;
  const std::string picture = scratch.file("goodput.svg");
  const Outcome run = railyard_command({"sim", "--goodput", "--ranks", "8", "--svg", picture, "--json", "-"});
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  const auto json = JsonReader::read(run.output.substr(run.output.find('{')));
  ASSERT_TRUE(json.has_value()) << run.output;
  EXPECT_THAT(read_file(picture), HasSubstr("<svg"));
  EXPECT_EQ(railyard_command({"sim", "--svg", picture}).exit_code, 2) << "a picture of what?";
}

}  // namespace
}  // namespace railyard::testing
