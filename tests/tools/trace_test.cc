/// `railyard trace`: a real run as a trace that Perfetto takes, with all that the program did and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "json_reader.hpp"
#include "run_command.hpp"
#include "telemetry/files.hpp"
#include "telemetry/trace_reader.hpp"

namespace railyard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kExample = std::string(RAILYARD_BIN_DIR) + "/example-02-gets-and-atomics";
constexpr int kItems = 32;  ///< that the example has

/// What a trace holds, its pairs checked.
struct Contents {
  std::map<std::string, int> operations;  ///< by name
  std::map<std::string, double> bytes;    ///< the same
  std::map<std::string, int> events;
  int segments = 0;
  int direct = 0;
  int unfinished = 0;
  std::set<double> processes;
  std::set<double> windows;
};

/// What every event of the format needs, whatever it says: chrome://tracing leaves out what lacks it, without a word.
void check_form(const Json& trace) {
  std::set<double> processes;
  std::set<double> named_processes;
  std::set<std::pair<double, double>> tracks;
  std::set<std::pair<double, double>> named_tracks;
  for (const Json& event : trace["traceEvents"].array()) {
    const auto& fields = event.object();
    const std::string& phase = event["ph"].text();
    ASSERT_EQ(phase.size(), 1U);
    for (const char* wanted : {"pid", "name"}) ASSERT_TRUE(fields.count(wanted)) << wanted << " in " << phase;
    EXPECT_FALSE(event["name"].text().empty());
    const double pid = event["pid"].number();
    processes.insert(pid);
    if (phase == "M") {
      EXPECT_TRUE(event["args"].object().count("name") + event["args"].object().count("sort_index") == 1);
      if (event["name"].text() == "process_name") named_processes.insert(pid);
      if (event["name"].text() == "thread_name") named_tracks.emplace(pid, event["tid"].number());
      continue;
    }
    ASSERT_TRUE(fields.count("ts")) << phase;
    if (phase == "C") {
      ASSERT_FALSE(event["args"].object().empty());
      for (const auto& [name, value] : event["args"].object()) EXPECT_GE(value.number(), 0) << name;
      continue;
    }
    ASSERT_TRUE(phase == "b" || phase == "e" || phase == "i") << phase;
    tracks.emplace(pid, event["tid"].number());
    ASSERT_TRUE(fields.count("cat") == 1 && fields.count(phase == "i" ? "s" : "id") == 1) << phase;
  }
  EXPECT_EQ(processes, named_processes);
  for (const auto& track : tracks)
    EXPECT_TRUE(named_tracks.contains(track)) << "track " << track.second << " of " << track.first << " has no name";
}

Contents contents_of(const Json& trace) {
  check_form(trace);
  Contents seen;
  struct Open {
    std::string name;
    double since = 0;
  };
  std::map<std::string, Open> open;
  std::set<std::string> ended;
  for (const Json& event : trace["traceEvents"].array()) {
    const std::string& phase = event["ph"].text();
    seen.processes.insert(event["pid"].number());
    EXPECT_TRUE(phase == "M" || event["ts"].number() >= 0);
    if (phase == "b") {
      const std::string& id = event["id"].text();
      EXPECT_TRUE(open.try_emplace(id, Open{event["name"].text(), event["ts"].number()}).second) << "twice: " << id;
      EXPECT_FALSE(ended.contains(id)) << id << " comes again";
      const Json& arguments = event["args"];
      if (event["cat"].text() == "segment") {
        ++seen.segments;
        EXPECT_GT(arguments["bytes"].number(), 0);
        continue;
      }
      ++seen.operations[event["name"].text()];
      seen.bytes[event["name"].text()] += arguments["bytes"].number();
      seen.direct += static_cast<int>(arguments.object().count("direct"));
      EXPECT_GE(arguments["peer"].number(), 0);
      if (arguments.object().count("window") != 0) seen.windows.insert(arguments["window"].number());
    } else if (phase == "e") {
      const std::string& id = event["id"].text();
      const auto begun = open.find(id);
      EXPECT_TRUE(begun != open.end()) << id << " ends and never began";
      if (begun == open.end()) continue;
      EXPECT_EQ(begun->second.name, event["name"].text());
      EXPECT_GE(event["ts"].number(), begun->second.since);
      seen.unfinished += static_cast<int>(event["args"].object().count("unfinished"));
      open.erase(begun);
      ended.insert(id);
    } else if (phase == "i") {
      ++seen.events[event["name"].text()];
    }
  }
  EXPECT_TRUE(open.empty()) << open.size() << " began and never end";
  return seen;
}

TEST(TraceCommand, ARunOfTwoRanksHasWhatTheProgramDid) {
  const ScratchFolder scratch;
  const std::string file = scratch.file("trace.json");
  const Outcome run = railyard_command({"trace", "-o", file, "--json", scratch.file("about.json"), "--",
                                        RAILYARD_COMMAND, "launch", "-n", "2", "--", kExample},
                                       on_loopback());
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.output, HasSubstr("total right")) << "the program's own output";
  EXPECT_THAT(run.errors, HasSubstr("2 processes"));
  const auto trace = JsonReader::read(read_file(file));
  ASSERT_TRUE(trace) << "not JSON";
  const Contents seen = contents_of(*trace);
  EXPECT_EQ(seen.processes.size(), 2U);
  EXPECT_EQ(seen.operations.at("get"), kItems);
  EXPECT_EQ(seen.bytes.at("get"), kItems * 1048576.0);
  // A fetch for each item and one more of each rank, which finds none left; an addition for each item.
  EXPECT_EQ(seen.operations.at("atomic"), 2 * kItems + 2);
  EXPECT_EQ(seen.bytes.at("atomic"), 8.0 * (2 * kItems + 2));
  EXPECT_FALSE(seen.operations.contains("put"));
  EXPECT_EQ(seen.unfinished, 0);
  EXPECT_EQ(seen.windows, std::set<double>{0}) << "it has one";
  EXPECT_GT(seen.segments, 0);
  const auto about = JsonReader::read(read_file(scratch.file("about.json")));
  ASSERT_TRUE(about);
  ASSERT_EQ((*about)["processes"].array().size(), 2U);
  std::set<double> ranks;
  for (const Json& process : (*about)["processes"].array()) {
    EXPECT_EQ(process["overwritten"].number(), 0);
    EXPECT_EQ(process["missing"].number(), 0);
    EXPECT_EQ(process["recorded"].number(), process["kept"].number());
    ranks.insert(process["rank"].number());
  }
  EXPECT_EQ(ranks, (std::set<double>{0, 1}));
}

TEST(TraceCommand, DirectStoresAndLoadsAreThereToo) {
  const ScratchFolder scratch;
  const std::string file = scratch.file("trace.json");
  const Outcome run =
      railyard_command({"trace", "-o", file, "--", RAILYARD_COMMAND, "launch", "-n", "2", "--", kExample},
                       {{"RAILYARD_DRIVER", "tcp"}, {"RAILYARD_INTERFACES", "lo"}});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  const auto trace = JsonReader::read(read_file(file));
  ASSERT_TRUE(trace);
  const Contents seen = contents_of(*trace);
  EXPECT_EQ(seen.operations.at("get"), kItems);
  EXPECT_EQ(seen.operations.at("atomic"), 2 * kItems + 2);
  EXPECT_GE(seen.direct, kItems);
}

TEST(TraceCommand, ASmallBufferSaysWhatItLost) {
  const ScratchFolder scratch;
  const Outcome run = railyard_command({"trace", "-o", scratch.file("trace.json"), "--buffer", "4K", "--",
                                        RAILYARD_COMMAND, "launch", "-n", "2", "--", kExample},
                                       on_loopback());
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.errors, AllOf(HasSubstr("records were overwritten by newer ones"), HasSubstr("--buffer")));
  const auto trace = JsonReader::read(read_file(scratch.file("trace.json")));
  ASSERT_TRUE(trace);
  contents_of(*trace);  // what is left is in pairs
  double overwritten = 0;
  for (const Json& process : (*trace)["otherData"]["processes"].array()) {
    overwritten += process["overwritten"].number();
    EXPECT_EQ(process["kept"].number() + process["overwritten"].number() + process["missing"].number(),
              process["recorded"].number());
  }
  EXPECT_GT(overwritten, 0);
}

TEST(TraceCommand, PassesOnTheProgramsCode) {
  const ScratchFolder scratch;
  const std::string file = scratch.file("trace.json");
  const Outcome failed = railyard_command({"trace", "-o", file, "--", "/bin/sh", "-c", "exit 7"});
  EXPECT_EQ(failed.exit_code, 7);
  EXPECT_EQ(railyard_command({"trace", "-o", file, "--", "/bin/sh", "-c", "kill -9 $$"}).exit_code, 137);
  EXPECT_EQ(railyard_command({"trace", "-o", file, "--", "/no/such/program"}).exit_code, 127);
  const Outcome idle = railyard_command({"trace", "-o", file, "--", "/bin/true"});
  EXPECT_EQ(idle.exit_code, 1);
  EXPECT_THAT(idle.errors, HasSubstr("nothing was recorded"));
}

TEST(TraceCommand, RefusesWhatMakesNoSense) {
  const ScratchFolder scratch;
  std::ofstream(scratch.file("railyard.trace.1.1")) << "something else";
  const Outcome none =
      railyard_command({"trace", "-o", scratch.file("out"), "--file", scratch.file("railyard.trace.1.1")});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.errors, HasSubstr("not a trace file"));
  EXPECT_EQ(railyard_command({"trace", "-o", "/no/such/folder/x", "--", "/bin/true"}).exit_code, 3);
  EXPECT_EQ(railyard_command({"trace", "-o", "-", "--", "/bin/true"}).exit_code, 2);
  EXPECT_EQ(railyard_command({"trace", "-o", scratch.file("x"), "--buffer", "many", "--", "/bin/true"}).exit_code, 2);
  const Outcome bad =
      railyard_command({"trace", "-o", scratch.file("x"), "--", "/bin/true"}, {{"RAILYARD_TRACE", "yes"}});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.errors, HasSubstr("RAILYARD_TRACE='yes' is not allowed"));
  const Outcome empty = railyard_command({"trace", "-o", scratch.file("x"), "--directory", scratch.file("")});
  EXPECT_EQ(empty.exit_code, 2) << empty.errors;  // the file above lies there
}

/// Its ranks record as fast as they can when one is killed; what they recorded is converted while they run and after.
TEST(TraceCommand, AProcessThatRunsOrWasKilledCanBeConverted) {
  const ScratchFolder scratch;
  const std::string folder = scratch.file("");
  std::vector<std::string> environment =
      clean_environment(on_loopback({{"RAILYARD_TRACE", folder}, {"RAILYARD_TRACE_BYTES", "64K"}}));
  std::vector<std::string> words{RAILYARD_COMMAND, "bench", "put", "--sizes", "64K", "--rounds", "10000"};
  posix_spawn_file_actions_t quietly;
  posix_spawn_file_actions_init(&quietly);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&quietly, output, "/dev/null", O_WRONLY, 0);
  pid_t bench = -1;
  ASSERT_EQ(
      ::posix_spawn(&bench, RAILYARD_COMMAND, &quietly, nullptr, pointers(words).data(), pointers(environment).data()),
      0);
  posix_spawn_file_actions_destroy(&quietly);
  const auto convert = [&] {
    const Outcome converted = railyard_command({"trace", "-o", scratch.file("trace.json"), "--directory", folder});
    EXPECT_EQ(converted.exit_code, 0) << converted.errors;
    auto trace = JsonReader::read(read_file(scratch.file("trace.json")));
    EXPECT_TRUE(trace);
    return trace ? std::move(*trace) : Json();
  };
  std::vector<telemetry::Found> ranks;
  const auto recorded = [&] {
    ranks = telemetry::list(folder, telemetry::kTracePrefix);
    if (ranks.size() < 2) return false;
    return std::ranges::any_of(ranks, [](const auto& rank) {
      const auto file = telemetry::read_trace_file(rank.path);
      return file && file->recorded > 1000;
    });
  };
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!recorded() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  if (ranks.size() != 2) ::kill(bench, SIGKILL);
  ASSERT_EQ(ranks.size(), 2U);
  const Contents running = contents_of(convert());
  EXPECT_GT(running.operations.size(), 0U);
  ::kill(ranks[0].pid, SIGKILL);
  int status = 0;
  ::waitpid(bench, &status, 0);
  EXPECT_NE(status, 0) << "a rank was killed";
  const Json trace = convert();
  const Contents seen = contents_of(trace);
  EXPECT_GT(seen.segments, 0);
  for (const Json& process : trace["otherData"]["processes"].array()) {
    EXPECT_FALSE(process["alive"].flag());
    EXPECT_GT(process["recorded"].number(), 0);
  }
}

}  // namespace
}  // namespace railyard::testing
