/// nvshmem-host --library FILE --major 3|4 --case NAME --bed shm|tcp: one case with several PEs, each a process.
#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>

#include "cases.hpp"

namespace railyard::nvshmem::test {
namespace {

struct Case {
  const char* name;
  void (*run3)(const Start&);
  void (*run4)(const Start&);
  int pes;
  int rails;        ///< over tcp
  bool kills_last;  ///< the last PE ends by a signal
};

#define CASE(group, name) #name, &group < abi::Transport3> ::name, &group < abi::Transport4> ::name
constexpr Case kCases[] = {
    {CASE(SetUp, table), 1, 1, false},       {CASE(SetUp, versions), 1, 1, false},
    {CASE(Traffic, transfers), 3, 2, false}, {CASE(Traffic, atomics), 3, 2, false},
    {CASE(Traffic, order), 2, 4, false},     {CASE(Traffic, signals), 2, 4, false},
    {CASE(Traffic, threads), 2, 2, false},   {CASE(SetUp, memory), 2, 2, false},
    {CASE(SetUp, misuse), 2, 2, false},      {CASE(Traffic, killed), 3, 2, true},
    {CASE(SetUp, again), 2, 2, false},       {CASE(SetUp, exit), 2, 2, false},
    {CASE(Traffic, gpu), 2, 1, false},       {CASE(Traffic, stopped), 3, 2, false},
};

int usage() {
  std::fputs("usage: nvshmem-host --library FILE --major 3|4 --case NAME --bed shm|tcp\ncases:", stderr);
  for (const Case& each : kCases) std::fprintf(stderr, " %s", each.name);
  std::fputc('\n', stderr);
  return 64;
}

void set_bed(const std::string& bed, int rails) {
  ::setenv("RAILYARD_DRIVER", "tcp", 1);
  ::setenv("RAILYARD_INTERFACES", "lo", 1);
  ::setenv("RAILYARD_RAILS", std::to_string(rails).c_str(), 1);
  ::setenv("RAILYARD_SHARED_MEMORY", bed == "shm" ? "on" : "off", 1);
}

int run(const Case& test, const Start& start, int major) {
  pid_t children[Board::kMostPes] = {};
  for (int pe = 0; pe < test.pes; ++pe) {
    children[pe] = ::fork();
    if (children[pe] != 0) continue;
    Start mine = start;
    mine.pe = pe;
    (major == 3 ? test.run3 : test.run4)(mine);
    std::fflush(nullptr);
    ::_exit(failures == 0 ? 0 : 1);
  }
  int failed = 0;
  for (int pe = 0; pe < test.pes; ++pe) {
    int status = 0;
    ::waitpid(children[pe], &status, 0);
    const bool killed = test.kills_last && pe == test.pes - 1;
    const bool well =
        killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!well) std::fprintf(stderr, "PE %d ended with status %d\n", pe, status);
    failed += well ? 0 : 1;
  }
  std::printf("%s, major %d: %s\n", test.name, major, failed == 0 ? "ok" : "FAILED");
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace railyard::nvshmem::test

int main(int count, char** words) {
  using namespace railyard::nvshmem::test;  // NOLINT(google-build-using-namespace)
  Start start;
  const Case* test = nullptr;
  int major = 0;
  std::string bed = "shm";
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string word = words[i];
    if (word == "--library") start.library = words[i + 1];
    if (word == "--major") major = std::atoi(words[i + 1]);
    if (word == "--bed") bed = words[i + 1];
    for (const Case& each : kCases)
      if (word == "--case" && std::strcmp(each.name, words[i + 1]) == 0) test = &each;
  }
  if (test == nullptr || start.library.empty() || (major != 3 && major != 4) || (bed != "shm" && bed != "tcp"))
    return usage();
  start.board = Board::make(test->pes);
  if (start.board == nullptr) return 1;
  set_bed(bed, test->rails);
  return run(*test, start, major);
}
