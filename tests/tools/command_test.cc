/// The command line itself: help, version, bad arguments, and `info`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "json_reader.hpp"
#include "run_command.hpp"

namespace railyard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Command, HelpShowsEveryCommandWithExamples) {
  const Outcome help = railyard_command({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"info", "launch", "bench", "sim", "demo", "doctor", "topo"}) {
    EXPECT_THAT(help.output, HasSubstr(std::string("\n  ") + command + " "));
    const Outcome own = railyard_command({command, "--help"});
    EXPECT_EQ(own.exit_code, 0) << command;
    EXPECT_THAT(own.output, HasSubstr("railyard " + std::string(command))) << "no example in " << command << " --help";
  }
  EXPECT_THAT(help.output, AllOf(HasSubstr("Examples"), HasSubstr("Exit codes")));
}

TEST(Command, VersionIsThatOfTheBuild) {
  const Outcome version = railyard_command({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.output, "railyard " RAILYARD_VERSION "\n");
}

TEST(Command, BadLinesAreUsageErrors) {
  const std::vector<std::vector<std::string>> lines = {{},
                                                       {"fly"},
                                                       {"--fly"},
                                                       {"info", "--fly"},
                                                       {"bench"},
                                                       {"bench", "fly"},
                                                       {"bench", "put", "--rails", "0"},
                                                       {"bench", "put", "--rails", "many"},
                                                       {"bench", "put", "--beside", "mpi"},
                                                       {"bench", "put", "--sizes", "0"},
                                                       {"bench", "put", "--sizes", "8,x"},
                                                       {"bench", "put", "--sizes", "1G"},
                                                       {"bench", "atomic", "--sizes", "16"},
                                                       {"bench", "put", "--rounds", "0"},
                                                       {"demo", "--ranks", "1"},
                                                       {"demo", "--seconds", "-1"},
                                                       {"launch", "-n", "0"}};
  for (const auto& line : lines) {
    const Outcome outcome = railyard_command(line);
    EXPECT_EQ(outcome.exit_code, 2) << ::testing::PrintToString(line) << outcome.errors;
    EXPECT_THAT(outcome.errors, Not(IsEmpty())) << ::testing::PrintToString(line);
    EXPECT_THAT(outcome.output, IsEmpty()) << ::testing::PrintToString(line);
  }
  EXPECT_THAT(railyard_command({"bench", "put", "--sizes", "8,x"}).errors, HasSubstr("'x'"));
  EXPECT_THAT(railyard_command({"bench", "atomic", "--sizes", "16"}).errors, HasSubstr("4 or 8 bytes"));
}

TEST(Command, AnUnknownSubcommandIsNamedWithTheNearestOne) {
  const Outcome outcome = railyard_command({"lunch", "-n", "2"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.errors, AllOf(HasSubstr("'lunch'"), HasSubstr("did you mean 'launch'?")));
  EXPECT_THAT(railyard_command({"inof"}).errors, HasSubstr("did you mean 'info'?"));
}

TEST(Info, RailsOfOneNicHaveNamesThatDiffer) {
  const Outcome info = railyard_command({"info", "--json", "-"}, on_loopback({{"RAILYARD_RAILS", "3"}}));
  ASSERT_EQ(info.exit_code, 0) << info.errors;
  const auto json = JsonReader::read(info.output);
  ASSERT_TRUE(json) << info.output;
  const auto& rails = (*json)["rails"].array();
  ASSERT_EQ(rails.size(), 3U);
  for (std::size_t i = 0; i < rails.size(); ++i) {
    EXPECT_EQ(rails[i]["number"].number(), static_cast<double>(i));
    EXPECT_THAT(rails[i]["name"].text(), HasSubstr("lo#" + std::to_string(i)));
  }
  const Outcome one = railyard_command({"info"}, on_loopback({{"RAILYARD_RAILS", "1"}}));
  EXPECT_THAT(one.output, Not(HasSubstr("lo#")));
}

TEST(Logs, AreJsonIfAsked) {
  const Outcome info =
      railyard_command({"info"}, on_loopback({{"RAILYARD_RIALS", "2"}, {"RAILYARD_LOG_FORMAT", "json"}}));
  EXPECT_EQ(info.exit_code, 0);
  const auto json = JsonReader::read(info.errors);
  ASSERT_TRUE(json) << info.errors;
  EXPECT_EQ((*json)["level"].text(), "warning");
  EXPECT_THAT((*json)["message"].text(), HasSubstr("RAILYARD_RIALS"));
  EXPECT_THAT((*json)["time"].text(), HasSubstr("Z"));
}

/// What the example of that name logs, two ranks over two tcp rails.
Outcome logged_example(const std::string& name, bool launched, const std::string& level) {
  const Variables variables = on_loopback({{"RAILYARD_RAILS", "2"}, {"RAILYARD_LOG", level}});
  const std::string program = std::string(RAILYARD_BIN_DIR) + "/example-" + name;
  return launched ? railyard_command({"launch", "-n", "2", "--", program}, variables) : run({program}, variables);
}

/// One line of each kind, of each rank.
std::vector<std::string> lines_of_a_world(int rank) {
  const std::string begin = "railyard." + std::to_string(rank) + ".: debug: ";  // the brackets are any character
  const std::string peer = "rank " + std::to_string(1 - rank);
  std::vector<std::string> lines{
      begin + "settings: .*RAILYARD_RAILS=2 .environment.",
      begin + "route to " + peer + ": our rails paired with its rails: 0 with 0, 1 with 1",
      begin + "flow [0-9]+ to " + peer + ": opened, on 2 links",
      begin + "flow [0-9]+ to " + peer + ": ended",
      begin + "memory registered: [0-9]+ bytes of host memory at 0x[0-9a-f]+, on 2 of 2 rails",
      begin + "window 1: made, [0-9]+ bytes of host memory; 0 peers mapped directly, 1 reached by",
      begin + "window 1: destroyed",
      begin + "progress: (no thread, callers make it|a thread makes it); waits: auto"};
  for (const char* number : {"0", "1"}) {
    const std::string rail = begin + "rail " + number + " .tcp lo#" + number + " 127.0.0.1.: ";
    lines.push_back(rail + "opened: driver tcp, device lo, address 127.0.0.1 port [0-9]+, fabric ");
    lines.push_back(rail + "link to " + peer + ": connecting to its rail " + number +
                    " at 127.0.0.1 port [0-9]+, epoch 1");
    lines.push_back(rail + "link to " + peer + ": closed, epoch 1");
  }
  return lines;
}

TEST(Logs, DebugTellsHowAWorldCameUp) {
  const Outcome told = logged_example("01-put-signal", true, "debug");
  ASSERT_EQ(told.exit_code, 0) << told.errors;
  for (const int rank : {0, 1}) {
    for (const std::string& line : lines_of_a_world(rank))
      EXPECT_THAT(told.errors, ::testing::ContainsRegex(line)) << "rank " << rank;
    // The greeting went by one of the rails; the run may be over before the other one's connection stands.
    const std::string rail = "railyard." + std::to_string(rank) + ".: debug: rail [01] .tcp lo#[01] 127.0.0.1.: ";
    EXPECT_THAT(told.errors, ::testing::ContainsRegex(rail + "a connection stands: 127.0.0.1 port [0-9]+ to 127.0.0.1 "
                                                             "port [0-9]+"));
    EXPECT_THAT(told.errors,
                ::testing::ContainsRegex(rail + "link to rank " + std::to_string(1 - rank) + ": up, epoch 1"));
  }
}

TEST(Logs, DebugTellsOfChannels) {
  const Outcome told = logged_example("10-messages-in-c", false, "debug");
  ASSERT_EQ(told.exit_code, 0) << told.errors;
  for (const char* line :
       {"settings: .*RAILYARD_RAILS=2 .environment.", "progress: thread 'railyard 0' makes it; waits: auto",
        "channel to peer [0-9a-f]+: opened, flow 0, shared links 0",
        "channel to peer [0-9a-f]+: closed, flow 0; [0-9]+ messages sent, [0-9]+ received"})
    EXPECT_THAT(told.errors, ::testing::ContainsRegex(std::string("debug: ") + line));
}

TEST(Logs, TellNothingOfAllThatByDefault) {
  EXPECT_THAT(logged_example("01-put-signal", true, "warn").errors, IsEmpty());
  EXPECT_THAT(logged_example("10-messages-in-c", false, "warn").errors, IsEmpty());
  EXPECT_THAT(logged_example("01-put-signal", true, "info").errors, Not(HasSubstr("debug:")));
}

TEST(Info, ShowsRailsAndBootstrap) {
  const Outcome info = railyard_command({"info"}, on_loopback({{"RAILYARD_RAILS", "2"}}));
  EXPECT_EQ(info.exit_code, 0) << info.errors;
  EXPECT_THAT(info.output, AllOf(HasSubstr("lo "), HasSubstr("tcp"), HasSubstr("loopback"), HasSubstr("Bootstrap:")));
  EXPECT_THAT(info.output, HasSubstr("Ranks of one host: through the network"));
  EXPECT_THAT(info.output, Not(HasSubstr("RAILYARD_BATCH")));
}

TEST(Info, ShowsEverySettingWithItsSource) {
  const Outcome info = railyard_command({"info", "--settings"}, on_loopback({{"RAILYARD_BATCH", "17"}}));
  EXPECT_EQ(info.exit_code, 0) << info.errors;
  EXPECT_THAT(info.output, ::testing::ContainsRegex("RAILYARD_BATCH +17 +32 +environment"));
  EXPECT_THAT(info.output, ::testing::ContainsRegex("RAILYARD_WINDOW +1024 +1024 +default"));
}

TEST(Info, WritesJsonAndNothingElseToTheStandardOutput) {
  const Outcome info = railyard_command({"info", "--json", "-"}, on_loopback({{"RAILYARD_RAILS", "3"}}));
  ASSERT_EQ(info.exit_code, 0) << info.errors;
  const auto json = JsonReader::read(info.output);
  ASSERT_TRUE(json) << info.output;
  EXPECT_EQ((*json)["version"].text(), RAILYARD_VERSION);
  ASSERT_EQ((*json)["rails"].array().size(), 3U);
  const Json& rail = (*json)["rails"].array()[0];
  EXPECT_EQ(rail["driver"].text(), "tcp");
  EXPECT_THAT(rail["provider"].text(), HasSubstr("tcp"));
  EXPECT_GT(rail["depth"].number(), 0);
  EXPECT_TRUE((*json)["problem"].is_null());
  bool found = false;
  for (const Json& setting : (*json)["settings"].array()) {
    if (setting["name"].text() != "RAILYARD_RAILS") continue;
    found = true;
    EXPECT_EQ(setting["value"].text(), "3");
    EXPECT_EQ(setting["default"].text(), "0");
    EXPECT_EQ(setting["source"].text(), "environment");
  }
  EXPECT_TRUE(found);
}

std::string saved_machine_file(const std::string& name) {
  return std::string(RAILYARD_SOURCE_DIR) + "/tests/topology/machines/" + name + ".xml";
}

TEST(Info, ShowsWhichRailsServeWhichGpuOfASavedMachine) {
  const Outcome text = railyard_command({"info", "--topology", saved_machine_file("dgx")});
  EXPECT_EQ(text.exit_code, 0) << text.errors;
  EXPECT_THAT(text.output, ::testing::ContainsRegex("1 +0000:15:00.0 +0 +mlx5_1 +PCIe switch +topology"));
  const Outcome info = railyard_command({"info", "--topology", saved_machine_file("p5"), "--json", "-"},
                                        {{"RAILYARD_RAILS_PER_GPU", "2"}, {"RAILYARD_GPU_RAILS", "7=rdmap0s3"}});
  ASSERT_EQ(info.exit_code, 0) << info.errors;
  const auto json = JsonReader::read(info.output);
  ASSERT_TRUE(json) << info.output;
  const auto& gpus = (*json)["gpus"].array();
  ASSERT_EQ(gpus.size(), 8U);
  ASSERT_EQ(gpus[1]["rails"].array().size(), 2U);
  EXPECT_EQ(gpus[1]["rails"].array()[0]["name"].text(), "rdmap1s0");
  EXPECT_EQ(gpus[1]["rails"].array()[0]["path"].text(), "PCIe switch");
  EXPECT_EQ(gpus[1]["spares"].array().size(), 30U);
  EXPECT_EQ(gpus[7]["rails"].array()[0]["name"].text(), "rdmap0s3");
  EXPECT_EQ(gpus[7]["rails"].array()[0]["path"].text(), "machine");
  EXPECT_THAT(railyard_command({"info", "--topology", saved_machine_file("no_gpu")}).output, HasSubstr("No GPU"));
}

TEST(Info, FindsTheSameRailsOfGpusInEveryProcess) {
  const std::vector<std::string> line = {"info", "--json", "-", "--topology"};
  const auto answer = [&](const std::string& machine, const Variables& variables) {
    auto words = line;
    words.push_back(saved_machine_file(machine));
    return railyard_command(words, variables).output;
  };
  const std::string whole = answer("dgx", {});
  EXPECT_THAT(whole, HasSubstr("mlx5_8"));
  EXPECT_EQ(answer("dgx", {{"CUDA_VISIBLE_DEVICES", "5"}, {"HIP_VISIBLE_DEVICES", "5"}}), whole);
  EXPECT_EQ(answer("dgx", {{"RAILYARD_RANK", "3"}, {"RAILYARD_SIZE", "4"}}), whole);
  EXPECT_EQ(answer("dgx_cpuset", {}), whole) << "in a container with some of the cores";
}

TEST(Info, ShowsTheGpusOfThisMachine) {
  // hwloc takes the saved machine for this one; its NICs are those that the driver finds.
  const Variables machine = on_loopback({{"HWLOC_XMLFILE", saved_machine_file("odd")}});
  const Outcome text = railyard_command({"info"}, machine);
  EXPECT_EQ(text.exit_code, 0) << text.errors;
  EXPECT_THAT(text.output, ::testing::ContainsRegex("5 +0000:[0-9a-f:.]+ +1 +lo +machine +topology"));
  const auto json = JsonReader::read(railyard_command({"info", "--json", "-"}, machine).output);
  ASSERT_TRUE(json);
  EXPECT_EQ((*json)["gpus"].array().size(), 6U);
  EXPECT_TRUE((*json)["gpus_unknown"].is_null());
}

TEST(Info, NamesWhatIsWrongWithTheRailsOfGpus) {
  const Variables machine = on_loopback({{"HWLOC_XMLFILE", saved_machine_file("odd")}});
  const auto with = [&](const std::string& name, const std::string& value) {
    Variables all = machine;
    all[name] = value;
    return railyard_command({"info"}, all);
  };
  const Outcome nic = with("RAILYARD_GPU_RAILS", "0=mlx5_0");
  EXPECT_EQ(nic.exit_code, 3);
  EXPECT_THAT(nic.errors, AllOf(HasSubstr("RAILYARD_GPU_RAILS"), HasSubstr("'mlx5_0'"), HasSubstr("did you mean lo?")));
  const Outcome form = with("RAILYARD_GPU_RAILS", "lo");
  EXPECT_EQ(form.exit_code, 2);
  EXPECT_THAT(form.errors, HasSubstr("GPU=NIC"));
  const Outcome number = with("RAILYARD_RAILS_PER_GPU", "all");
  EXPECT_EQ(number.exit_code, 2);
  EXPECT_THAT(number.errors, AllOf(HasSubstr("RAILYARD_RAILS_PER_GPU='all'"), HasSubstr("0 to 256")));
  const Outcome file = railyard_command({"info", "--topology", "/nonexistent/machine.xml"});
  EXPECT_EQ(file.exit_code, 3);
  EXPECT_THAT(file.errors, HasSubstr("/nonexistent/machine.xml"));
}

TEST(Info, NeverShowsTheJobKey) {
  const Outcome info =
      railyard_command({"info", "--settings", "--json", "-"}, on_loopback({{"RAILYARD_JOB_KEY", "opensesame"}}));
  EXPECT_EQ(info.exit_code, 0) << info.errors;
  EXPECT_THAT(info.output + info.errors, Not(HasSubstr("opensesame")));
}

TEST(Info, NamesWhatIsWrong) {
  const Outcome provider = railyard_command({"info"}, {{"RAILYARD_PROVIDER", "nosuch"}});
  EXPECT_EQ(provider.exit_code, 3);
  EXPECT_THAT(provider.errors, AllOf(HasSubstr("'nosuch'"), HasSubstr("RAILYARD_PROVIDER")));
  const Outcome interface = railyard_command({"info"}, {{"RAILYARD_INTERFACES", "nosuch0"}});
  EXPECT_EQ(interface.exit_code, 3);
  EXPECT_THAT(interface.errors, HasSubstr("nosuch0"));
  const Outcome driver = railyard_command({"info"}, {{"RAILYARD_DRIVER", "nosuch"}});
  EXPECT_EQ(driver.exit_code, 3);
  EXPECT_THAT(driver.errors, AllOf(HasSubstr("'nosuch'"), HasSubstr("ofi")));
  const Outcome value = railyard_command({"info"}, {{"RAILYARD_RAILS", "many"}});
  EXPECT_EQ(value.exit_code, 2);
  EXPECT_THAT(value.errors, AllOf(HasSubstr("RAILYARD_RAILS"), HasSubstr("many")));
  const Outcome typo = railyard_command({"info"}, on_loopback({{"RAILYARD_RIALS", "2"}}));
  EXPECT_EQ(typo.exit_code, 0);
  EXPECT_THAT(typo.errors, AllOf(HasSubstr("RAILYARD_RIALS"), HasSubstr("RAILYARD_RAILS")));
  const Outcome file = railyard_command({"info", "--json", "/nonexistent/info.json"}, on_loopback());
  EXPECT_EQ(file.exit_code, 3);
  EXPECT_THAT(file.errors, HasSubstr("/nonexistent/info.json"));
}

}  // namespace
}  // namespace railyard::testing
