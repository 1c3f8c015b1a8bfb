#include "bootstrap/pmix.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>
#include <thread>

#include "bootstrap/open.hpp"
#include "bootstrap/pmix_library.hpp"
#include "helpers.hpp"
#include "roles.hpp"

namespace railyard::bootstrap {

namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = 4;
const PmixLibrary* real_pmix = nullptr;

/// Says what went wrong and gives the exit code for it.
int failed(const std::string& what) {
  fmt::print("FAILED {}\n", what);
  return 1;
}

int gather(Bootstrap& bootstrap) {
  const int rank = bootstrap.rank();
  for (int round = 0; round < 3; ++round) {
    const auto gathered = bootstrap.allgather(bytes_of(contribution(rank)), {});
    if (!gathered) return failed(gathered.error().text());
    if (!is_complete(gathered, kRanks)) return failed("a contribution differs");
    if (const auto passed = bootstrap.barrier({}); !passed) return failed(passed.error().text());
  }
  // Lengths from nothing to a megabyte, each byte its rank's.
  const auto length = [](std::size_t of) { return of == 0 ? 0 : std::size_t{1} << (20 - of); };
  const std::vector<std::byte> mine(length(static_cast<std::size_t>(rank)), static_cast<std::byte>(rank));
  const auto gathered = bootstrap.allgather(mine, {});
  if (!gathered) return failed(gathered.error().text());
  for (std::size_t peer = 0; peer < kRanks; ++peer) {
    if ((*gathered)[peer] != std::vector<std::byte>(length(peer), static_cast<std::byte>(peer)))
      return failed("bytes differ");
  }
  if (bootstrap.allgather(std::vector<std::byte>(kMostContribution + 1), {}).status() != Status::out_of_range) {
    return failed("a contribution over the limit was taken");
  }
  fmt::print("GATHERED {} of {} by {}\n", rank, bootstrap.size(), bootstrap.describe());
  return 0;
}

/// Rank 2 is late for a call; the others are told who it is that they wait for.
int wait_for_late_rank(Bootstrap& bootstrap) {
  if (const auto passed = bootstrap.barrier({}); !passed) return failed(passed.error().text());
  if (bootstrap.rank() == 2) {
    std::this_thread::sleep_for(milliseconds(3000));
    return 0;
  }
  const auto passed = bootstrap.barrier(Deadline::in(milliseconds(500)));
  if (passed.status() != Status::timeout) return failed("no timeout: " + passed.error().text());
  fmt::print("TOLD {}\n", passed.error().message());
  const auto again = bootstrap.barrier({});
  return again.status() == Status::timeout ? 0 : failed("a broken bootstrap went on");
}

/// Rank 1 makes another call than the others.
int make_different_calls(Bootstrap& bootstrap) {
  auto passed = Result<void>();
  if (bootstrap.rank() == 1) {
    passed = bootstrap.barrier({});
  } else if (auto gathered = bootstrap.allgather({}, {}); !gathered) {
    passed = std::move(gathered.error());
  }
  if (passed.status() != Status::invalid) return failed("no such error: " + passed.error().text());
  fmt::print("TOLD {}\n", passed.error().message());
  return 0;
}

bool collects(std::span<const pmix_info_t> info) {
  return std::ranges::any_of(info, [](const pmix_info_t& one) {
    return std::strncmp(one.key, PMIX_COLLECT_DATA, PMIX_MAX_KEYLEN) == 0 && one.value.data.flag;
  });
}

/// A fence without data is over at once, as Slurm's server has it for the ranks of other hosts.
pmix_status_t short_fence(const pmix_proc_t* procs, std::size_t nprocs, const pmix_info_t* info, std::size_t ninfo,
                          pmix_op_cbfunc_t done, void* handed) {
  if (collects({info, ninfo})) return real_pmix->fence(procs, nprocs, info, ninfo, done, handed);
  done(PMIX_SUCCESS, handed);
  return PMIX_SUCCESS;
}

/// Rank 2 is late for a barrier, which nobody leaves before it. The ranks share a host and its clock.
int wait_in_barrier(Bootstrap& bootstrap) {
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  if (bootstrap.rank() == 2) std::this_thread::sleep_for(milliseconds(500));
  std::int64_t times[] = {now(), 0};
  if (const auto passed = bootstrap.barrier({}); !passed) return failed(passed.error().text());
  times[1] = now();
  const auto gathered = bootstrap.allgather(std::as_bytes(std::span(times)), {});
  if (!gathered) return failed(gathered.error().text());
  for (const auto& one : *gathered) {
    std::int64_t theirs[2];
    if (one.size() != sizeof theirs) return failed("a contribution differs");
    std::memcpy(theirs, one.data(), sizeof theirs);
    if (times[1] < theirs[0]) return failed("a rank left the barrier before another had come");
  }
  return 0;
}

/// PMIx is asked for and there is none.
int open_outside() {
  Settings settings;
  settings.bootstrap = "pmix";
  const auto opened = open_bootstrap(settings);
  if (opened) return failed("it opened");
  fmt::print("TOLD {}\n", opened.error().text());
  return 0;
}

struct Finished {
  int exit_code = -1;
  std::string output;
};

/// Starts this program in a role, by `launcher` if that is given.
Finished run_as(const std::string& role, const std::string& launcher = "") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  // libpmix keeps a few bytes from its start to the end of the process: a leak sanitizer must not take them for ours.
  const std::string known_leaks = fmt::format("{}railyard-pmix-{}.supp", ::testing::TempDir(), getpid());
  std::ofstream(known_leaks) << "leak:libpmix.so\n";
  const std::string command =
      fmt::format("LSAN_OPTIONS=suppressions='{}':print_suppressions=0 timeout 100 {} '{}' --role={} 2>&1", known_leaks,
                  launcher, self, role);
  Finished run;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return run;
  std::array<char, 4096> buffer;
  for (std::size_t count = 0; (count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    run.output.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::filesystem::remove(known_leaks);
  return run;
}

Finished run_with_mpirun(const std::string& role) {
  return run_as(role,
                fmt::format("mpirun {} --oversubscribe -n {}", geteuid() == 0 ? "--allow-run-as-root" : "", kRanks));
}

class PmixTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed (openmpi-bin)";
    if (started_by_pmix()) GTEST_SKIP() << "the tests themselves run under mpirun";
  }
};

TEST_F(PmixTest, RanksOfMpirunGather) {
  const Finished run = run_with_mpirun("pmix-gather");
  EXPECT_EQ(run.exit_code, 0) << run.output;
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(run.output, HasSubstr(fmt::format("GATHERED {} of {} by pmix ", rank, kRanks)));
  }
}

TEST_F(PmixTest, ALateRankIsNamed) {
  const Finished run = run_with_mpirun("pmix-late");
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("TOLD rank 2 of 4 did not enter barrier 1 within 500 ms"));
}

TEST_F(PmixTest, BarriersHoldWhereFencesWithoutDataDoNot) {
  const Finished run = run_with_mpirun("pmix-barrier");
  EXPECT_EQ(run.exit_code, 0) << run.output;
}

TEST_F(PmixTest, DifferentCallsAreNamed) {
  const Finished run = run_with_mpirun("pmix-different");
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("TOLD rank 1 made barrier as its call number 0, rank 0 made allgather"),
                                HasSubstr("TOLD rank 0 made allgather as its call number 0, rank 1 made barrier")));
}

TEST(Pmix, OutsideALauncherIsAClearError) {
  if (started_by_pmix()) GTEST_SKIP() << "the tests themselves run under mpirun";
  const Finished run = run_as("pmix-outside");
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("TOLD not found: no PMIx server answers"), HasSubstr("mpirun")));
}

TEST(Pmix, WithoutItsLibraryTheErrorSaysWhatToDo) {
  const std::string folder = fmt::format("{}railyard-no-pmix-{}", ::testing::TempDir(), getpid());
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/libpmix.so.2") << "not a library";
  const Finished run = run_as("pmix-outside", fmt::format("env LD_LIBRARY_PATH='{}'", folder));
  std::filesystem::remove_all(folder);
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("TOLD unsupported"), HasSubstr("libpmix2"), HasSubstr("RAILYARD_RENDEZVOUS")));
}

/// Takes over what a signal does, as plugins of PMIx may, and finds no server.
pmix_status_t init_that_changes_a_signal(pmix_proc_t* /*self*/, pmix_info_t* /*info*/, std::size_t /*count*/) {
  ::signal(SIGSEGV, SIG_DFL);
  return PMIX_ERR_UNREACH;
}

void handler_of_the_program(int /*signal*/) {}

TEST(Pmix, ItsInitLeavesTheProgramsSignalHandlersAlone) {
  PmixLibrary other;
  other.init = &init_that_changes_a_signal;
  other.error_string = [](pmix_status_t) { return "unreachable"; };
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGSEGV, nullptr, &before), 0);
  ::signal(SIGSEGV, &handler_of_the_program);
  replace_pmix_library(&other);
  const auto opened = open_pmix(1'000'000'000);
  replace_pmix_library(nullptr);
  struct sigaction now {};
  ASSERT_EQ(::sigaction(SIGSEGV, &before, &now), 0);
  EXPECT_EQ(opened.status(), Status::not_found);
  EXPECT_EQ(now.sa_handler, &handler_of_the_program);
}

}  // namespace

int run_role(std::string_view name) {
  if (name == "pmix-outside") return open_outside();
  if (name == "pmix-barrier") {
    const auto found = pmix_library();
    if (!found) return failed(found.error().text());
    real_pmix = *found;
    static PmixLibrary like_slurm = *real_pmix;
    like_slurm.fence = &short_fence;
    replace_pmix_library(&like_slurm);
  }
  // What mpirun sets must be enough.
  const auto opened = open_bootstrap(Settings{});
  if (!opened) return failed(opened.error().text());
  if ((*opened)->size() != kRanks) return failed("wrong size");
  if (name == "pmix-gather") return gather(**opened);
  if (name == "pmix-late") return wait_for_late_rank(**opened);
  if (name == "pmix-barrier") return wait_in_barrier(**opened);
  if (name == "pmix-different") return make_different_calls(**opened);
  return failed(fmt::format("no role '{}'", name));
}

}  // namespace railyard::bootstrap
