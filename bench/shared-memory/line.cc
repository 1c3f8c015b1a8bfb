/// How near two processors are: nanoseconds that a cache line takes one way between two processes.
/// `bench/shared-memory/compare` asks before and after every sample: on a virtual machine two cores are near each other
/// in one second and far in the next. usage: shm-line CPU CPU PRIORITY   (PRIORITY 0: the scheduler of whoever calls)
#include <fmt/core.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <new>
#include <optional>
#include <string_view>

namespace {

constexpr std::uint64_t kRoundTrips = 2500;
constexpr std::uint64_t kWarmUp = 500;
constexpr unsigned kPatienceSeconds = 20;

/// One for each direction, so far apart that fetching one does not bring the other. They publish nothing but
/// themselves; release and acquire as a message would have them.
struct Lines {
  alignas(128) std::atomic<std::uint64_t> there = 0;
  alignas(128) std::atomic<std::uint64_t> back = 0;
};

void wait_for(const std::atomic<std::uint64_t>& line, std::uint64_t number) {
  while (line.load(std::memory_order_acquire) != number) {
  }
}

void answer(Lines& lines) {
  for (std::uint64_t i = 1; i <= kWarmUp + kRoundTrips; ++i) {
    wait_for(lines.there, i);
    lines.back.store(i, std::memory_order_release);
  }
}

double ask(Lines& lines) {
  auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t i = 1; i <= kWarmUp + kRoundTrips; ++i) {
    if (i == kWarmUp + 1) begin = std::chrono::steady_clock::now();
    lines.there.store(i, std::memory_order_release);
    wait_for(lines.back, i);
  }
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / static_cast<double>(kRoundTrips) / 2;
}

bool settle(unsigned cpu, unsigned priority) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) return false;
  const sched_param parameters{.sched_priority = static_cast<int>(priority)};
  return priority == 0 || sched_setscheduler(0, SCHED_FIFO, &parameters) == 0;
}

int measure(unsigned cpu, unsigned other, unsigned priority) {
  void* const memory = mmap(nullptr, sizeof(Lines), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  // Both places are tried before there is a second process, so neither waits for one that could not start; the second
  // one starts where it stays: on the asking one's processor it would wait behind its spinning.
  if (memory == MAP_FAILED || !settle(cpu, priority) || !settle(other, priority)) {
    fmt::print(stderr, "shm-line: no such processor, or priority {} is not allowed\n", priority);
    return 1;
  }
  auto& lines = *new (memory) Lines;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return 1;
  // Two that spin at real-time priority and wait for each other in vain would take the machine with them.
  alarm(kPatienceSeconds);
  if (child == 0) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
    answer(lines);
    _exit(0);
  }
  if (!settle(cpu, priority)) return 1;
  const double nanoseconds = ask(lines);
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) return 1;
  fmt::print("{:.1f}\n", nanoseconds);
  return 0;
}

std::optional<unsigned> number_in(std::string_view text, unsigned most) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = error == std::errc() && end == text.data() + text.size() && value <= most;
  return good ? std::optional(value) : std::nullopt;
}

}  // namespace

int main(int argc, char** argv) {
  const auto cpu = argc == 4 ? number_in(argv[1], CPU_SETSIZE - 1) : std::nullopt;
  const auto other = argc == 4 ? number_in(argv[2], CPU_SETSIZE - 1) : std::nullopt;
  const auto priority = argc == 4 ? number_in(argv[3], 99) : std::nullopt;
  if (!cpu || !other || !priority || *cpu == *other) {
    fmt::print(stderr, "usage: shm-line CPU OTHER_CPU PRIORITY\n");
    return 2;
  }
  return measure(*cpu, *other, *priority);
}
