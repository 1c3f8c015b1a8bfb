/// `railyard bench` as scripts use it: the JSON's shape, what is refused, and that wrong data is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bench/check.hpp"
#include "json_reader.hpp"
#include "run_command.hpp"

namespace railyard::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Short rounds: these tests look at form and truth, never at speed.
std::vector<std::string> quick(const std::string& test, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"bench", test, "--rounds", "2", "--round-ms", "10", "--no-pin"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const std::vector<std::string> kOnLoopback{"--driver", "ofi", "--provider", "tcp", "--interfaces", "lo"};

std::vector<std::string> plus(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct Case {
  const char* test;
  const char* sizes;
  const char* unit;
};

class BenchJson : public ::testing::TestWithParam<Case> {};

TEST_P(BenchJson, HasTheAgreedShape) {
  const auto& [test, sizes, unit] = GetParam();
  const ScratchFolder scratch;
  const std::string file = scratch.file("figures.json");
  const Outcome outcome = railyard_command(
      plus(quick(test, kOnLoopback), {"--rails", "1", "--sizes", sizes, "--beside", "raw", "--json", file}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("ours/raw"), HasSubstr("Verified")));
  const auto json = JsonReader::read(read_file(file));
  ASSERT_TRUE(json) << read_file(file);
  EXPECT_THAT(json->keys(), ElementsAre("direct", "driver", "provider", "rails", "rows", "test"));
  EXPECT_EQ((*json)["test"].text(), test);
  EXPECT_EQ((*json)["driver"].text(), "ofi");
  EXPECT_THAT((*json)["provider"].text(), HasSubstr("tcp"));
  EXPECT_EQ((*json)["rails"].number(), 1);
  ASSERT_EQ((*json)["rows"].array().size(), 2U);
  for (const Json& row : (*json)["rows"].array()) {
    EXPECT_THAT(row.keys(), ElementsAre("by_rail", "bytes", "ours", "ratio", "raw", "unit"));
    EXPECT_EQ(row["unit"].text(), unit);
    EXPECT_GT(row["ours"].number(), 0);
    EXPECT_GT(row["raw"].number(), 0);
    EXPECT_NEAR(row["ratio"].number(), row["ours"].number() / row["raw"].number(), 1e-3 * row["ratio"].number());
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTest, BenchJson,
                         ::testing::Values(Case{"put", "4096,300000", "MB/s"}, Case{"get", "4096,300000", "MB/s"},
                                           Case{"put_signal", "1,2000", "us"}, Case{"atomic", "4,8", "us"},
                                           Case{"rate", "1,64", "op/s"}),
                         [](const auto& info) { return std::string(info.param.test); });

TEST(Bench, HasAFigureForEachRail) {
  for (const bool get : {false, true}) {
    const Outcome outcome =
        railyard_command(quick(get ? "get" : "put", {"--driver", "tcp", "--interfaces", "lo", "--rails", "2", "--sizes",
                                                     "4M", "--json", "-"}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
    const auto json = JsonReader::read(outcome.output);
    ASSERT_TRUE(json) << outcome.output;
    const Json& row = (*json)["rows"].array()[0];
    const auto& rails = row["by_rail"].array();
    ASSERT_EQ(rails.size(), 2U);
    EXPECT_THAT(rails[0]["name"].text(), HasSubstr("lo#0"));
    EXPECT_THAT(rails[1]["name"].text(), HasSubstr("lo#1"));
    const char* const way = get ? "received_mb_per_second" : "sent_mb_per_second";
    // Both carry a part, together what was measured; a median and a mean over the same rounds differ by no factor.
    EXPECT_GT(rails[0][way].number(), 0);
    EXPECT_GT(rails[1][way].number(), 0);
    const double together = rails[0][way].number() + rails[1][way].number();
    EXPECT_GT(together, row["ours"].number() / 20);
    EXPECT_LT(together, row["ours"].number() * 20);
    EXPECT_EQ((*json)["direct"]["puts"].number(), 0);
    EXPECT_THAT(outcome.errors, HasSubstr("Rails of rank 0"));
  }
}

TEST(Bench, CountsDirectStores) {
  const Outcome outcome =
      railyard_command(quick("put", {"--driver", "tcp", "--interfaces", "lo", "--sizes", "4096", "--json", "-"}),
                       {{"RAILYARD_SHARED_MEMORY", "on"}});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  const auto json = JsonReader::read(outcome.output);
  ASSERT_TRUE(json) << outcome.output;
  if ((*json)["direct"]["puts"].number() == 0) GTEST_SKIP() << "peers' windows cannot be mapped here";
  EXPECT_GT((*json)["direct"]["bytes_put"].number(), 0);
  EXPECT_THAT(outcome.errors, HasSubstr("Direct stores"));
}

TEST(Bench, WithoutRawTheRatioIsNull) {
  const Outcome outcome =
      railyard_command(plus(quick("put", kOnLoopback), {"--rails", "2", "--sizes", "100,1M", "--json", "-"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  const auto json = JsonReader::read(outcome.output);
  ASSERT_TRUE(json) << outcome.output;
  EXPECT_EQ((*json)["rails"].number(), 2);
  ASSERT_EQ((*json)["rows"].array().size(), 2U);
  EXPECT_EQ((*json)["rows"].array()[0]["bytes"].number(), 100);
  EXPECT_EQ((*json)["rows"].array()[1]["bytes"].number(), 1024 * 1024);
  for (const Json& row : (*json)["rows"].array()) {
    EXPECT_TRUE(row["raw"].is_null());
    EXPECT_TRUE(row["ratio"].is_null());
    EXPECT_GT(row["ours"].number(), 0);
  }
}

TEST(Bench, SeveralRailsAreEachComparedAlone) {
  const Outcome outcome = railyard_command(
      plus(quick("put", kOnLoopback), {"--rails", "3", "--sizes", "64K", "--beside", "raw", "--json", "-"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  const auto json = JsonReader::read(outcome.output);
  ASSERT_TRUE(json) << outcome.output;
  EXPECT_EQ((*json)["rails"].number(), 3);
  EXPECT_GT((*json)["rows"].array().at(0)["ratio"].number(), 0);
}

TEST(Bench, RunsInsideAWorldOfTwo) {
  const ScratchFolder scratch;
  const std::string file = scratch.file("figures.json");
  auto words = plus({"launch", "-n", "2", "--", RAILYARD_COMMAND}, quick("rate", kOnLoopback));
  const Outcome two = railyard_command(plus(words, {"--sizes", "8", "--json", file}));
  EXPECT_EQ(two.exit_code, 0) << two.errors;
  EXPECT_TRUE(JsonReader::read(read_file(file)));
  words[2] = "3";
  const Outcome three = railyard_command(words);
  EXPECT_EQ(three.exit_code, 2);
  EXPECT_THAT(three.errors, HasSubstr("between 2 ranks"));
}

TEST(Bench, WhatCannotRunIsSaidOnce) {
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  const Outcome provider = railyard_command({"bench", "put", "--provider", "nosuch"});
  EXPECT_EQ(provider.exit_code, 3);
  EXPECT_THAT(provider.errors, HasSubstr("'nosuch'"));
  EXPECT_EQ(lines(provider.errors), 1) << provider.errors;
  const Outcome rail = railyard_command({"bench", "put", "--interfaces", "nosuch0"});
  EXPECT_EQ(rail.exit_code, 3);
  EXPECT_THAT(rail.errors, HasSubstr("nosuch0"));
  EXPECT_EQ(lines(rail.errors), 1) << rail.errors;
  const Outcome driver = railyard_command({"bench", "put", "--driver", "sim"});
  EXPECT_EQ(driver.exit_code, 3);
  EXPECT_THAT(driver.errors, HasSubstr("railyard sim"));
  const Outcome setting = railyard_command({"bench", "put"}, {{"RAILYARD_BATCH", "none"}});
  EXPECT_EQ(setting.exit_code, 2);
  EXPECT_THAT(setting.errors, HasSubstr("RAILYARD_BATCH"));
  const Outcome file = railyard_command({"bench", "put", "--json", "/nonexistent/figures.json"});
  EXPECT_EQ(file.exit_code, 3);
  EXPECT_THAT(file.errors, HasSubstr("/nonexistent/figures.json"));
  for (const Outcome* outcome : {&provider, &rail, &driver, &setting, &file}) EXPECT_THAT(outcome->output, IsEmpty());
}

/// Moves data by itself, and can be told to get it wrong.
class FakeContestant final : public bench::Contestant {
 public:
  std::string name() const override { return "fake"; }
  std::span<std::byte> exposed() override { return exposed_; }
  std::span<std::byte> buffer() override { return buffer_; }
  Result<double> run_source(const bench::Round&) override { return 1.0; }
  Result<void> run_target(const bench::Round&) override { return {}; }

 private:
  std::vector<std::byte> exposed_ = std::vector<std::byte>(4096);
  std::vector<std::byte> buffer_ = std::vector<std::byte>(4096);
};

bench::Plan plan_of(bench::Test test, std::uint64_t serial, std::size_t bytes = 100) {
  bench::Plan plan;
  plan.round = {.test = test, .bytes = bytes, .slots = 7, .depth = 7, .count = 20, .serial = serial};
  return plan;
}

TEST(BenchCheck, FindsAnyWrongByteOfAPut) {
  FakeContestant source;
  FakeContestant target;
  for (const bench::Test test : {bench::Test::put, bench::Test::rate, bench::Test::put_signal}) {
    const bench::Plan plan = plan_of(test, 3);
    bench::prepare(source, plan, 0);
    std::copy(source.buffer().begin(), source.buffer().end(), target.exposed().begin());
    EXPECT_TRUE(bench::verify(target, plan, 1));
    for (const std::size_t at : {std::size_t{0}, std::size_t{350}, bench::covered(plan.round) - 1}) {
      target.exposed()[at] ^= std::byte{1};
      EXPECT_FALSE(bench::verify(target, plan, 1)) << at;
      target.exposed()[at] ^= std::byte{1};
    }
  }
}

TEST(BenchCheck, DataOfAnEarlierRoundIsWrong) {
  FakeContestant source;
  FakeContestant target;
  bench::prepare(source, plan_of(bench::Test::put, 1), 0);
  std::copy(source.buffer().begin(), source.buffer().end(), target.exposed().begin());
  EXPECT_TRUE(bench::verify(target, plan_of(bench::Test::put, 1), 1));
  EXPECT_FALSE(bench::verify(target, plan_of(bench::Test::put, 2), 1));
}

TEST(BenchCheck, FindsAWrongGetAndAWrongSum) {
  FakeContestant source;
  FakeContestant target;
  const bench::Plan get = plan_of(bench::Test::get, 1);
  bench::prepare(target, get, 1);
  std::copy(target.exposed().begin(), target.exposed().end(), source.buffer().begin());
  EXPECT_TRUE(bench::verify(source, get, 0));
  source.buffer()[5] ^= std::byte{64};
  EXPECT_FALSE(bench::verify(source, get, 0));

  const bench::Plan atomic = plan_of(bench::Test::atomic, 2, 8);
  bench::prepare(target, atomic, 1);
  EXPECT_FALSE(bench::verify(target, atomic, 1));
  std::uint64_t sum = atomic.round.count;
  std::memcpy(target.exposed().data(), &sum, sizeof(sum));
  EXPECT_TRUE(bench::verify(target, atomic, 1));
}

}  // namespace
}  // namespace railyard::testing
