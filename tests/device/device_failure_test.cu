/// Kernels that wait while something dies: the proxy's thread is stopped, or gone; the peer is killed. Each returns an
/// error within its budget, and the GPU goes on. Two processes on one GPU; docs/device.md has the lines that build and
/// run it. `gone`: the case of the thread that is gone, alone: it may have held locks.
#include <dirent.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "../../examples/cuda_program.cuh"

namespace {

using railyard::device::Comparison;
using railyard::device::Status;
using railyard::device::Window;

constexpr int kStatuses = 4;  // what a kernel's waits returned

__global__ void wait_for_all(Window window, int peer, int* statuses) {
  unsigned char byte = 1;
  // More than a ring holds: the last of them wait for room.
  Status full = Status::ok;
  for (int i = 0; i < 1000 && full == Status::ok; ++i) full = window.put(peer, 0, &byte, 1).status();
  statuses[0] = static_cast<int>(full);
  statuses[1] = static_cast<int>(window.quiet(peer));
  statuses[2] = static_cast<int>(window.wait_counter(0, 1));
  statuses[3] = static_cast<int>(window.wait_signal(0, Comparison::greater_equal, 1, peer));
}

__global__ void wait_for_peer(Window window, int peer, int* statuses) {
  statuses[0] = static_cast<int>(window.wait_signal(0, Comparison::greater_equal, 1, peer));
}

__global__ void add_one(int* word) { *word += 1; }

/// The GPU and this process's context are as they were.
bool still_usable() {
  int* word = nullptr;
  CUDA(cudaMallocHost(&word, sizeof *word));
  *word = 41;
  add_one<<<1, 1>>>(word);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess && *word == 42;
  CUDA(cudaFreeHost(word));
  return ran;
}

std::atomic<bool> held{false};
std::atomic<bool> let_go{false};
void hold(int) {
  held = true;
  while (!let_go) ::usleep(1000);
}
void vanish(int) {
  held = true;
  ::syscall(SYS_exit, 0);  // this thread alone, with nothing cleaned up
}

void strike_proxy(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigaction(SIGUSR1, &action, nullptr);
  held = let_go = false;
  DIR* const tasks = ::opendir("/proc/self/task");
  while (const dirent* const task = ::readdir(tasks)) {
    const std::string name = std::string("/proc/self/task/") + task->d_name + "/comm";
    char text[64] = {};
    if (std::FILE* const file = std::fopen(name.c_str(), "r")) {
      if (std::fgets(text, sizeof text, file) != nullptr && std::strcmp(text, "railyard-proxy\n") == 0)
        ::syscall(SYS_tgkill, ::getpid(), std::atoi(task->d_name), SIGUSR1);
      std::fclose(file);
    }
  }
  ::closedir(tasks);
  while (!held) ::usleep(1000);
}

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kBudget{1};
bool good = true;

void judge(const char* what, const int* statuses, int count, Clock::time_point start) {
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  bool all = true;
  for (int i = 0; i < count; ++i) all = all && statuses[i] != static_cast<int>(Status::ok);
  // One budget for each wait, and as much again for a machine with other work.
  const bool in_time = seconds < 2.0 * count * kBudget.count();
  const bool usable = still_usable();
  std::printf("%-22s %d waits, statuses", what, count);
  for (int i = 0; i < count; ++i) std::printf(" %d", statuses[i]);
  std::printf(", %.2f s, GPU %s: %s\n", seconds, usable ? "usable" : "BROKEN",
              all && in_time && usable ? "ok" : "FAILED");
  good = good && all && in_time && usable;
}

}  // namespace

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  auto world = must(railyard::World::open());
  if (world.size() != 2) return std::fprintf(stderr, "two ranks, please\n"), 64;
  auto window = must(railyard::Window::allocate(world, 4096));
  CUDA(cudaSetDevice(0));
  int* statuses = nullptr;
  CUDA(cudaMallocHost(&statuses, kStatuses * sizeof *statuses));
  railyard::DeviceOptions options;
  options.device = 0;
  options.direct = false;
  options.budget = kBudget;
  give_memory(options, window);
  must(window.barrier());
  if (world.rank() == 1) {
    // Until the last case: then it is killed by the other one, which knows its process.
    must(window.put_value(0, 0, static_cast<std::int64_t>(::getpid())));
    must(window.barrier());
    for (;;) static_cast<void>(window.wait_signal(1, railyard::Comparison::equal, 1));
  }
  must(window.barrier());
  std::int64_t victim = 0;
  std::memcpy(&victim, window.local().data(), sizeof victim);
  if (count > 1 && std::strcmp(arguments[1], "gone") == 0) {
    auto proxy = must(railyard::DeviceProxy::open(window, options));
    strike_proxy(vanish);
    const auto start = Clock::now();
    wait_for_all<<<1, 1>>>(proxy.handle(), 1, statuses);
    CUDA(cudaDeviceSynchronize());
    judge("the proxy is gone", statuses, 4, start);
    const auto closed = proxy.close(railyard::Deadline::in(std::chrono::seconds(1)));
    std::printf("%-22s %s\n", "its end", closed ? "complete" : closed.error().text().c_str());
    good = good && !closed;

    ::kill(static_cast<pid_t>(victim), SIGKILL);
  } else {
    {
      auto proxy = must(railyard::DeviceProxy::open(window, options));
      strike_proxy(hold);
      const auto start = Clock::now();
      wait_for_all<<<1, 1>>>(proxy.handle(), 1, statuses);
      CUDA(cudaDeviceSynchronize());
      judge("the proxy is stopped", statuses, 4, start);
      let_go = true;
      const auto closed = proxy.close();  // says what the kernel met first
      good = good && !closed && closed.status() == railyard::Status::timeout;
    }
    {
      options.budget = std::chrono::seconds(30);  // the peer's death ends the wait, not the budget
      auto proxy = must(railyard::DeviceProxy::open(window, options));
      const auto start = Clock::now();
      wait_for_peer<<<1, 1>>>(proxy.handle(), 1, statuses);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      ::kill(static_cast<pid_t>(victim), SIGKILL);
      CUDA(cudaDeviceSynchronize());
      judge("the peer is killed", statuses, 1, start);
      good = good && statuses[0] == static_cast<int>(Status::peer_lost);
    }
  }
  std::printf("%s\n", good ? "everything was right" : "something was wrong");
  std::fflush(stdout);
  ::_exit(good ? 0 : 1);  // a window whose peer is gone has no collective end
}
