/// Whether there is a driver at all. Each case is a process of its own: the answer is found once.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "accelerator/gpu.hpp"

namespace railyard::accelerator::testing {

namespace {

/// Runs this program with another environment, on the double or nothing; its exit status.
int run_again(const std::string& argument, std::vector<std::string> environment) {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string line = *variable;
    if (!line.starts_with("RAILYARD_GPU=") && !line.starts_with("LD_LIBRARY_PATH=") && !line.starts_with("GTEST_") &&
        !line.starts_with("TEST_REAL_GPU=")) {
      environment.push_back(line);
    }
  }
  std::vector<char*> variables;
  for (std::string& line : environment) variables.push_back(line.data());
  variables.push_back(nullptr);
  std::string name = "accelerator_test";
  std::string option = argument;
  char* const arguments[] = {name.data(), option.data(), nullptr};
  pid_t child = -1;
  EXPECT_EQ(::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, variables.data()), 0);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

const std::string kWithDouble = "LD_LIBRARY_PATH=" + std::filesystem::path(RAILYARD_CUDA_DOUBLE).parent_path().string();

TEST(DriverTest, IsFoundWhenItIsWanted) { EXPECT_EQ(run_again("--driver=wanted", {kWithDouble}), kDriverFound); }

TEST(DriverTest, IsNotLoadedForAPointer) { EXPECT_EQ(run_again("--driver=loaded", {kWithDouble}), kDriverNone); }

TEST(DriverTest, ThatTheProgramStartedServesForAPointer) {
  EXPECT_EQ(run_again("--driver=started", {}), kDriverFound);
  // Before there can be no device memory, and to start it would forbid that to children.
  EXPECT_EQ(run_again("--driver=brought", {}), kDriverNone);
}

TEST(DriverTest, IsNotUsedWhereItIsOff) {
  EXPECT_EQ(run_again("--driver=wanted", {kWithDouble, "RAILYARD_GPU=off"}), kDriverNone);
  EXPECT_EQ(run_again("--driver=started", {"RAILYARD_GPU=off"}), kDriverNone);
}

TEST(DriverTest, NoGpuOrNoLibraryIsNoTrouble) {
  EXPECT_EQ(run_again("--driver=wanted", {kWithDouble, "CUDA_DOUBLE_DEVICES=0"}), kDriverNone);
  if (wants_real_gpu()) GTEST_SKIP() << "there is a library here";
  EXPECT_EQ(run_again("--driver=wanted", {}), kDriverNone);
}

TEST(DriverTest, OlderOnesServeToo) {
  const std::string these = "--gtest_filter=QueueTest.*:FindTest.*:*ShareTest.*";
  EXPECT_EQ(run_again(these, {"CUDA_DOUBLE_STREAM_WRITES=0"}), 0);
  EXPECT_EQ(run_again(these, {"CUDA_DOUBLE_VERSION=11"}), 0);
}

}  // namespace

}  // namespace railyard::accelerator::testing
