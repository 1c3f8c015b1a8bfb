/// `railyard top` in a terminal, beside a job that runs: each key does what the first line says it does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <termios.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "base/fd.hpp"
#include "run_command.hpp"

namespace railyard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

constexpr auto kMostPatience = std::chrono::seconds(30);
constexpr winsize kSize{40, 200, 0, 0};
constexpr std::string_view kFrameBegins = "\x1b[H";
constexpr const char* kDown = "\x1b[B";
constexpr const char* kUp = "\x1b[A";

/// Two ranks; the first one puts into the second one's window until this ends.
class Job {
 public:
  explicit Job(const std::string& telemetry) {
    auto environment = clean_environment(on_loopback({{"RAILYARD_TELEMETRY", telemetry}}));
    std::vector<std::string> words{RAILYARD_COMMAND, "bench",      "put",   "--sizes", "64K", "--rounds",
                                   "10000",          "--round-ms", "10000", "--json",  "-"};
    const auto arguments = pointers(words);
    const auto variables = pointers(environment);
    child_ = ::fork();
    if (child_ != 0) return;
    ::setpgid(0, 0);
    const int nowhere = ::open("/dev/null", O_RDWR);
    ::dup2(nowhere, STDOUT_FILENO);
    ::dup2(nowhere, STDERR_FILENO);
    ::execve(arguments[0], arguments.data(), variables.data());
    ::_exit(127);
  }
  ~Job() {
    ::kill(-child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

 private:
  pid_t child_ = -1;
};

/// The command on a terminal of its own, and what that terminal shows.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& words) {
    int master = -1;
    child_ = ::forkpty(&master, nullptr, nullptr, &kSize);
    if (child_ == 0) {
      std::vector<std::string> copies = words;
      ::execv(copies.front().c_str(), pointers(copies).data());
      ::_exit(127);
    }
    master_ = Fd(master);
  }
  ~Terminal() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(std::string_view keys) { (void)!::write(master_.get(), keys.data(), keys.size()); }

  /// The newest whole picture that is as wanted; the newest of all where none becomes so.
  std::string picture(const std::function<bool(const std::string&)>& wanted) {
    std::string newest;
    for (const auto end = Clock::now() + kMostPatience; Clock::now() < end && listen(100);) {
      if (newest = whole_picture(); !newest.empty() && wanted(newest)) break;
    }
    return newest;
  }
  std::string picture_with(const std::string& text) {
    return picture([&](const std::string& shown) { return shown.find(text) != std::string::npos; });
  }
  /// What it draws within so long.
  std::string drawn_within(std::chrono::milliseconds time) {
    const std::size_t before = said_.size();
    for (const auto end = Clock::now() + time; Clock::now() < end;) listen(10);
    return said_.substr(before);
  }
  /// Its exit code; -1: it did not end.
  int exit_code() {
    int status = 0;
    for (const auto end = Clock::now() + kMostPatience; Clock::now() < end;) {
      listen(10);
      if (::waitpid(child_, &status, WNOHANG) != child_) continue;
      child_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return -1;
  }
  /// Whether keys are shown, and given to programs by the line, as in a shell.
  bool is_as_before() const {
    termios now{};
    return ::tcgetattr(master_.get(), &now) == 0 && (now.c_lflag & (ICANON | ECHO)) == (ICANON | ECHO);
  }
  const std::string& said() const { return said_; }

 private:
  /// False: nobody has the other end any more.
  bool listen(int milliseconds) {
    pollfd readable{master_.get(), POLLIN, 0};
    if (::poll(&readable, 1, milliseconds) <= 0) return true;
    char bytes[65536];
    const ssize_t got = ::read(master_.get(), bytes, sizeof bytes);
    if (got > 0) said_.append(bytes, static_cast<std::size_t>(got));
    return got > 0;
  }
  /// A picture is whole when its last line is.
  std::string whole_picture() const {
    std::size_t begin = said_.rfind(kFrameBegins);
    while (begin != std::string::npos) {
      const std::string one = said_.substr(begin, said_.find(kFrameBegins, begin + 1) - begin);
      std::size_t lines = 0;
      for (std::size_t at = one.find("\x1b[K"); at != std::string::npos; at = one.find("\x1b[K", at + 1)) ++lines;
      if (lines == kSize.ws_row - 1U) return one;
      if (begin == 0) break;
      begin = said_.rfind(kFrameBegins, begin - 1);
    }
    return "";
  }

  Fd master_;
  pid_t child_ = -1;
  std::string said_;
};

/// "1/2" of the process that is first in the list; empty where there is none.
std::string first_rank(const std::string& picture) {
  const std::size_t first = picture.find("/2 ");
  return first == std::string::npos || first == 0 ? "" : picture.substr(first - 1, 3);
}

class TopKeys : public ::testing::Test {
 protected:
  /// Both ranks are there and move something.
  std::string beginning() {
    return terminal_.picture([](const std::string& shown) {
      return shown.find("2 processes") != std::string::npos && shown.find("iB/s") != std::string::npos;
    });
  }

  ScratchFolder scratch_;
  Job job_{scratch_.file("")};
  Terminal terminal_{{RAILYARD_COMMAND, "top", "--interval", "0.2", "--directory", scratch_.file("")}};
};

TEST_F(TopKeys, SortByWhatIsSentAndReceived) {
  EXPECT_THAT(beginning(), HasSubstr("s sort: pid"));
  terminal_.type("s");
  EXPECT_THAT(terminal_.picture_with("s sort: sent"), HasSubstr("s sort: sent"));
  const auto first_is = [this](const char* rank) {
    return first_rank(terminal_.picture([&](const std::string& shown) { return first_rank(shown) == rank; }));
  };
  EXPECT_EQ(first_is("0/2"), "0/2") << "the first rank sends";
  terminal_.type("s");
  EXPECT_THAT(terminal_.picture_with("s sort: received"), HasSubstr("s sort: received"));
  EXPECT_EQ(first_is("1/2"), "1/2") << "the second one receives";
  for (const char* const next : {"operations", "under-way", "pid"}) {
    terminal_.type("s");
    const std::string title = std::string("s sort: ") + next;
    EXPECT_THAT(terminal_.picture_with(title), HasSubstr(title));
  }
}

TEST_F(TopKeys, DrillDown) {
  EXPECT_THAT(beginning(), AllOf(HasSubstr("d show: rails"), HasSubstr("device")));
  const std::pair<const char*, const char*> tables[] = {
      {"links", "unacknowledged"}, {"windows", "part"}, {"latency", "99.9 %"}, {"processes", "command"}};
  for (const auto& [detail, column] : tables) {
    terminal_.type("d");
    EXPECT_THAT(terminal_.picture_with(std::string("d show: ") + detail),
                AllOf(HasSubstr(std::string("d show: ") + detail), HasSubstr(column), Not(HasSubstr("device"))));
  }
  terminal_.type("d");
  EXPECT_THAT(terminal_.picture_with("d show: rails"), HasSubstr("device"));
}

TEST_F(TopKeys, ArrowsChooseOneProcess) {
  EXPECT_FALSE(beginning().empty());
  terminal_.type(kDown);
  const std::string first = terminal_.picture_with("1 process\x1b");
  EXPECT_THAT(first, AllOf(HasSubstr("  process "), Not(HasSubstr("2 processes"))));
  terminal_.type(kDown);
  const std::string rank = first_rank(first);
  const std::string second =
      terminal_.picture([&](const std::string& shown) { return first_rank(shown) == (rank == "0/2" ? "1/2" : "0/2"); });
  EXPECT_NE(first_rank(second), rank) << "the other process";
  terminal_.type(std::string(kUp) + kUp);
  EXPECT_THAT(terminal_.picture_with("2 processes"), HasSubstr("2 processes"));
}

TEST_F(TopKeys, PauseAndGoOn) {
  EXPECT_FALSE(beginning().empty());
  terminal_.type("p");
  EXPECT_THAT(terminal_.picture_with("PAUSED"), HasSubstr("PAUSED"));
  EXPECT_EQ(terminal_.drawn_within(std::chrono::milliseconds(800)), "") << "four intervals";
  terminal_.type("p");
  EXPECT_THAT(terminal_.picture_with("p pause"), Not(HasSubstr("PAUSED")));
  EXPECT_NE(terminal_.drawn_within(std::chrono::milliseconds(2000)), "");
}

TEST_F(TopKeys, KeysThatComeTogetherAllCount) {
  EXPECT_FALSE(beginning().empty());
  terminal_.type("sd");
  EXPECT_THAT(terminal_.picture_with("d show: links"), HasSubstr("s sort: sent  d show: links"));
}

TEST_F(TopKeys, QuitLeavesTheTerminalAsItWas) {
  EXPECT_FALSE(beginning().empty());
  EXPECT_FALSE(terminal_.is_as_before());
  terminal_.type("q");
  EXPECT_EQ(terminal_.exit_code(), 0);
  EXPECT_TRUE(terminal_.is_as_before());
  EXPECT_TRUE(terminal_.said().ends_with("\x1b[?1049l")) << "the first screen again";
}

TEST_F(TopKeys, SoDoesControlC) {
  EXPECT_FALSE(beginning().empty());
  terminal_.type("\x03");
  EXPECT_EQ(terminal_.exit_code(), 0);
  EXPECT_TRUE(terminal_.is_as_before());
  EXPECT_TRUE(terminal_.said().ends_with("\x1b[?1049l"));
}

}  // namespace
}  // namespace railyard::testing
