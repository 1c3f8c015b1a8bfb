#include "launcher/launcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "bootstrap/open.hpp"
#include "helpers.hpp"

namespace railyard::bootstrap {
namespace {

using launcher::launch_command;
using launcher::launch_function;
using launcher::LaunchOptions;
using launcher::LaunchReport;

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A folder for what ranks leave for the test.
class LauncherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "railyard-launch-" + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    options_.grace_ns = 200'000'000;
    options_.environment = {{"FOLDER", folder_}};
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::string read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string note(const std::string& name) const { return read(folder_ + "/" + name); }
  void wait_for_note(const std::string& name) const {
    while (!std::filesystem::exists(folder_ + "/" + name)) std::this_thread::sleep_for(milliseconds(5));
  }
  LaunchReport shell(int ranks, const std::string& script) {
    options_.ranks = ranks;
    auto report = launch_command(options_, {"sh", "-c", script});
    EXPECT_TRUE(report) << report.error().text();
    return report ? std::move(*report) : LaunchReport{};
  }
  /// Runs a launcher in a process of its own, for what a launcher cannot do to itself.
  template <typename Body>
  static pid_t in_process(Body body) {
    const pid_t pid = fork();
    if (pid == 0) {
      set_log_level(LogLevel::error);
      body();
      _exit(99);
    }
    return pid;
  }
  static bool is_alive(pid_t pid) {
    // A zombie of somebody else's is not alive.
    const std::string status = read(fmt::format("/proc/{}/stat", pid));
    const std::size_t end = status.rfind(')');
    return end != std::string::npos && status.size() > end + 2 && status[end + 2] != 'Z';
  }
  static void expect_end(pid_t pid) {
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (is_alive(pid) && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(milliseconds(5));
    EXPECT_FALSE(is_alive(pid)) << pid;
  }

  std::string folder_;
  LaunchOptions options_;
};

TEST_F(LauncherTest, RanksMeetThroughTheLauncher) {
  options_.ranks = 8;
  const auto report = launch_function(options_, [](int rank) {
    const auto settings = Settings::from_environment();
    if (!settings || settings->rank != rank || settings->size != 8) return 1;
    auto bootstrap = open_bootstrap(*settings);
    if (!bootstrap || (*bootstrap)->describe() != "launcher") return 2;
    if (!is_complete((*bootstrap)->allgather(bytes_of(contribution(rank)), {}), 8)) return 3;
    return (*bootstrap)->barrier({}) ? 0 : 4;
  });
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_EQ(report->exit_code, 0) << report->failure;
  EXPECT_EQ(report->first_failed, -1);
}

TEST_F(LauncherTest, SixtyFourProcessesGather) {
  options_.ranks = 64;
  const auto report = launch_function(options_, [](int rank) {
    auto bootstrap = open_bootstrap(Settings::from_environment().value());
    if (!bootstrap) return 2;
    return is_complete((*bootstrap)->allgather(bytes_of(contribution(rank)), {}), 64) ? 0 : 3;
  });
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_EQ(report->exit_code, 0) << report->failure;
}

TEST_F(LauncherTest, EveryRankGetsItsEnvironment) {
  options_.environment.emplace_back("EXTRA", "a b");
  EXPECT_EQ(shell(3, "echo $RAILYARD_SIZE $EXTRA $RAILYARD_BOOTSTRAP > $FOLDER/$RAILYARD_RANK").exit_code, 0);
  for (const char* rank : {"0", "1", "2"}) EXPECT_EQ(note(rank), "3 a b tcp\n");
}

TEST_F(LauncherTest, JobsHaveKeysOfTheirOwn) {
  shell(1, "echo $RAILYARD_JOB_KEY > $FOLDER/first");
  shell(1, "echo $RAILYARD_JOB_KEY > $FOLDER/second");
  EXPECT_EQ(note("first").size(), 65U);
  EXPECT_NE(note("first"), note("second"));
}

TEST_F(LauncherTest, TheFirstFailureIsNamedAndItsCodePassedOn) {
  LogLines log;
  const auto report = shell(3, "if [ $RAILYARD_RANK = 1 ]; then exit 7; fi; exec sleep 1000");
  EXPECT_EQ(report.exit_code, 7);
  EXPECT_EQ(report.first_failed, 1);
  EXPECT_THAT(report.failure, AllOf(HasSubstr("rank 1 (pid "), HasSubstr("exited with code 7")));
  EXPECT_THAT(log.all(), AllOf(HasSubstr(report.failure), HasSubstr("2 ranks still run")));
}

TEST_F(LauncherTest, ARankEndedByASignalIsNamed) {
  LogLines log;
  const auto report = shell(2, "if [ $RAILYARD_RANK = 0 ]; then kill -KILL $$; fi; exec sleep 1000");
  EXPECT_EQ(report.exit_code, 128 + SIGKILL);
  EXPECT_EQ(report.first_failed, 0);
  EXPECT_THAT(report.failure, HasSubstr("signal 9 (Killed)"));
}

TEST_F(LauncherTest, OthersThatIgnoreBeingAskedAreForced) {
  LogLines log;
  EXPECT_EQ(
      shell(
          2,
          "if [ $RAILYARD_RANK = 0 ]; then exit 5; fi; trap '' TERM; echo $$ > $FOLDER/pid; while :; do sleep 1; done")
          .exit_code,
      5);
}

TEST_F(LauncherTest, OthersMayEndByThemselvesWithinTheGrace) {
  LogLines log;
  options_.grace_ns = std::chrono::nanoseconds(kPatience).count();
  const auto report = shell(2, "if [ $RAILYARD_RANK = 0 ]; then exit 5; fi; sleep 0.3; echo done > $FOLDER/done");
  EXPECT_EQ(report.exit_code, 5);
  EXPECT_EQ(note("done"), "done\n");
}

TEST_F(LauncherTest, NoProcessAndNoZombieIsLeft) {
  LogLines log;
  shell(3,
        "sleep 1000 & echo $! > $FOLDER/child$RAILYARD_RANK; echo $$ > $FOLDER/self$RAILYARD_RANK; if [ $RAILYARD_RANK "
        "= 2 ]; then exit 1; fi; wait");
  for (const char* rank : {"0", "1", "2"}) {
    expect_end(std::stoi(note(std::string("child") + rank)));
    EXPECT_FALSE(std::filesystem::exists("/proc/" + std::to_string(std::stoi(note(std::string("self") + rank)))));
  }
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(LauncherTest, NoDescriptorIsLeftOpenAndNothingIsChanged) {
  LogLines log;
  const std::size_t before = open_descriptors();
  sigset_t mask_before;
  sigset_t mask_after;
  rlimit limit_before{};
  rlimit limit_after{};
  pthread_sigmask(SIG_SETMASK, nullptr, &mask_before);
  getrlimit(RLIMIT_NOFILE, &limit_before);
  options_.tag_output = true;
  shell(3, "true");
  shell(2, "exit 3");
  EXPECT_EQ(open_descriptors(), before);
  pthread_sigmask(SIG_SETMASK, nullptr, &mask_after);
  getrlimit(RLIMIT_NOFILE, &limit_after);
  for (int signal = 1; signal < 32; ++signal)
    EXPECT_EQ(sigismember(&mask_before, signal), sigismember(&mask_after, signal));
  EXPECT_EQ(limit_before.rlim_cur, limit_after.rlim_cur);
}

TEST_F(LauncherTest, RanksStartWithTheSignalsAndLimitsOfTheLauncherItself) {
  shell(1, "ulimit -n > $FOLDER/files");
  // Not through a shell: shells unblock signals themselves.
  ASSERT_TRUE(launch_command(options_, {"cp", "/proc/self/status", folder_ + "/status"}));
  EXPECT_THAT(note("status"), HasSubstr("SigBlk:\t0000000000000000"));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(note("files"), std::to_string(limit.rlim_cur) + "\n");
}

TEST_F(LauncherTest, ARankInheritsNoDescriptorOfTheLauncher) {
  // What any child of this process inherits is not the launcher's.
  ASSERT_EQ(system(("ls /proc/self/fd > " + folder_ + "/any").c_str()), 0);
  options_.tag_output = true;
  shell(2, "ls /proc/self/fd > $FOLDER/$RAILYARD_RANK");
  EXPECT_EQ(note("0"), note("any"));
  EXPECT_EQ(note("1"), note("any"));
}

TEST_F(LauncherTest, OutputIsTaggedByRank) {
  options_.tag_output = true;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  shell(3, "echo out $RAILYARD_RANK; echo err $RAILYARD_RANK >&2; printf 'no end'");
  const std::string out = ::testing::internal::GetCapturedStdout();
  const std::string err = ::testing::internal::GetCapturedStderr();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(out, HasSubstr(fmt::format("[{0}] out {0}\n", rank)));
    EXPECT_THAT(out, HasSubstr(fmt::format("[{0}] no end\n", rank)));
    EXPECT_THAT(err, HasSubstr(fmt::format("[{0}] err {0}\n", rank)));
  }
}

TEST_F(LauncherTest, OutputIsLeftAloneWithoutTags) {
  ::testing::internal::CaptureStdout();
  shell(2, "echo same");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "same\nsame\n");
}

TEST_F(LauncherTest, ALotOfOutputComesThroughWhole) {
  options_.tag_output = true;
  ::testing::internal::CaptureStdout();
  shell(2, "seq 1 20000");
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 40000);
  EXPECT_THAT(out, AllOf(HasSubstr("[0] 20000\n"), HasSubstr("[1] 20000\n")));
}

TEST_F(LauncherTest, ARankHasNoInputButRankZeroMayHaveTheLaunchers) {
  shell(2, "wc -c > $FOLDER/$RAILYARD_RANK");
  EXPECT_EQ(std::stoi(note("1")), 0);
}

TEST_F(LauncherTest, AProgramThatDoesNotExistIsNamed) {
  LogLines log;
  options_.ranks = 3;
  const auto report = launch_command(options_, {"no-such-program-anywhere"});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->exit_code, 127);
  EXPECT_THAT(log.all(), HasSubstr("cannot execute 'no-such-program-anywhere': No such file or directory"));
  EXPECT_EQ(launch_command(options_, {"/etc/passwd"})->exit_code, 126);
  EXPECT_EQ(launch_command(options_, {}).status(), Status::invalid);
  options_.ranks = 0;
  EXPECT_EQ(launch_command(options_, {"true"}).status(), Status::out_of_range);
}

TEST_F(LauncherTest, TheExitCodeOfAFunctionIsItsAnswer) {
  LogLines log;
  options_.ranks = 2;
  const auto report = launch_function(options_, [](int rank) { return rank == 1 ? 42 : 0; });
  ASSERT_TRUE(report);
  EXPECT_EQ(report->exit_code, 42);
  EXPECT_EQ(report->first_failed, 1);
}

TEST_F(LauncherTest, ARankKilledInACollectiveIsNamedToTheOthers) {
  LogLines log;
  options_.grace_ns = std::chrono::nanoseconds(kPatience).count();
  options_.ranks = 4;
  const std::string folder = folder_;
  const auto report = launch_function(options_, [&folder](int rank) {
    auto bootstrap = open_bootstrap(Settings::from_environment().value());
    if (!bootstrap) return 2;
    if (rank == 2) {
      // Late, so that the others are waiting for it.
      std::this_thread::sleep_for(milliseconds(200));
      raise(SIGKILL);
    }
    const auto gathered = (*bootstrap)->allgather(bytes_of(contribution(rank)), {});
    std::ofstream(fmt::format("{}/{}", folder, rank)) << (gathered ? "no failure" : gathered.error().text());
    return gathered.status() == Status::peer_lost && gathered.error().where().peer == 2 ? 0 : 3;
  });
  ASSERT_TRUE(report);
  EXPECT_EQ(report->exit_code, 128 + SIGKILL);
  EXPECT_EQ(report->first_failed, 2);
  for (const char* rank : {"0", "1", "3"}) {
    EXPECT_THAT(note(rank), AllOf(HasSubstr("rank 2 (pid "), HasSubstr("is gone: its connection closed")));
  }
}

TEST_F(LauncherTest, ARankThatEndsBeforeItArrivesIsNamedToTheOthersAtOnce) {
  LogLines log;
  options_.grace_ns = std::chrono::nanoseconds(kPatience).count();
  options_.ranks = 3;
  const std::string folder = folder_;
  const auto report = launch_function(options_, [&folder](int rank) {
    if (rank == 1) return 9;
    const auto bootstrap = open_bootstrap(Settings::from_environment().value());
    std::ofstream(fmt::format("{}/{}", folder, rank)) << (bootstrap ? "no failure" : bootstrap.error().text());
    return 0;
  });
  ASSERT_TRUE(report);
  EXPECT_EQ(report->exit_code, 9);
  for (const char* rank : {"0", "2"}) {
    EXPECT_THAT(note(rank), AllOf(HasSubstr("rank 1 ended before it arrived"), HasSubstr("exited with code 9")));
  }
}

TEST_F(LauncherTest, ASignalIsPassedOnToEveryRank) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const pid_t launcher = in_process([this] {
      options_.grace_ns = std::chrono::nanoseconds(kPatience).count();
      const auto report = shell(2,
                                "trap 'echo got > $FOLDER/got$RAILYARD_RANK; exit 0' TERM INT; echo up > "
                                "$FOLDER/up$RAILYARD_RANK; while :; do sleep 0.05; done");
      _exit(report.exit_code);
    });
    for (const char* name : {"up0", "up1"}) wait_for_note(name);
    kill(launcher, signal);
    int status = 0;
    ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + signal);
    for (const char* name : {"got0", "got1"}) EXPECT_EQ(note(name), "got\n");
    for (const char* name : {"up0", "up1", "got0", "got1"}) std::filesystem::remove(folder_ + "/" + name);
  }
}

TEST_F(LauncherTest, ASecondSignalEndsTheRanksAtOnce) {
  const pid_t launcher = in_process([this] {
    options_.grace_ns = std::chrono::nanoseconds(kPatience).count();
    const auto report = shell(1,
                              "trap 'echo got > $FOLDER/got' TERM; echo $$ > $FOLDER/tmp; mv $FOLDER/tmp $FOLDER/pid; "
                              "while :; do sleep 0.05; done");
    _exit(report.exit_code);
  });
  wait_for_note("pid");
  kill(launcher, SIGTERM);
  wait_for_note("got");
  kill(launcher, SIGTERM);
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
  expect_end(std::stoi(note("pid")));
}

TEST_F(LauncherTest, RanksEndWithALauncherThatIsKilled) {
  const pid_t launcher = in_process([this] {
    shell(
        2,
        "echo $$ > $FOLDER/tmp$RAILYARD_RANK; mv $FOLDER/tmp$RAILYARD_RANK $FOLDER/pid$RAILYARD_RANK; exec sleep 1000");
  });
  for (const char* name : {"pid0", "pid1"}) wait_for_note(name);
  kill(launcher, SIGKILL);
  ASSERT_EQ(waitpid(launcher, nullptr, 0), launcher);
  for (const char* name : {"pid0", "pid1"}) expect_end(std::stoi(note(name)));
}

TEST_F(LauncherTest, AnUnknownNamespaceIsNamedBeforeAnythingStarts) {
  options_.network_namespaces = "no-such-namespace";
  options_.ranks = 2;
  const auto report = launch_command(options_, {"sh", "-c", "echo ran > $FOLDER/ran"});
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().message(), HasSubstr("no network namespace 'no-such-namespace'"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/ran"));
  options_.network_namespaces = "../x";
  EXPECT_EQ(launch_command(options_, {"true"}).status(), Status::invalid);
}

TEST_F(LauncherTest, RanksLiveInTheirNamespacesAndMeet) {
  const std::string first = fmt::format("railyard-test-a-{}", getpid());
  const std::string second = fmt::format("railyard-test-b-{}", getpid());
  const auto ip = [](const std::string& arguments) {
    return system(("ip netns " + arguments + " 2>/dev/null").c_str());
  };
  if (geteuid() != 0 || ip("add " + first) != 0) GTEST_SKIP() << "needs root and `ip netns`";
  ASSERT_EQ(ip("add " + second), 0);
  options_.network_namespaces = first + "," + second;
  options_.ranks = 4;
  const char* const temporary = getenv("TMPDIR");
  const std::optional<std::string> before = temporary == nullptr ? std::nullopt : std::optional<std::string>(temporary);
  setenv("TMPDIR", folder_.c_str(), 1);
  const std::string folder = folder_;
  const auto report = launch_function(options_, [&folder](int rank) {
    std::ofstream(fmt::format("{}/{}", folder, rank)) << std::filesystem::read_symlink("/proc/self/ns/net").string();
    auto bootstrap = open_bootstrap(Settings::from_environment().value());
    if (!bootstrap) return 2;
    return is_complete((*bootstrap)->allgather(bytes_of(contribution(rank)), {}), 4) ? 0 : 3;
  });
  before ? setenv("TMPDIR", before->c_str(), 1) : unsetenv("TMPDIR");
  ip("delete " + first);
  ip("delete " + second);
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_EQ(report->exit_code, 0) << report->failure;
  EXPECT_EQ(note("0"), note("2"));
  EXPECT_EQ(note("1"), note("3"));
  EXPECT_NE(note("0"), note("1"));
  EXPECT_NE(note("0"), std::filesystem::read_symlink("/proc/self/ns/net").string());
  // The socket file and its folder are gone.
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_EQ(entry.path().filename().string().find("railyard"), std::string::npos) << entry.path();
  }
}

}  // namespace
}  // namespace railyard::bootstrap
