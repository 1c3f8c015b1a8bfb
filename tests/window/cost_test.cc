/// What the cheap calls must not cost: a system call, a lock, an allocation.
#include <gtest/gtest.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "sanitized.hpp"
#include "thread_world.hpp"
#include "window/world_state.hpp"

namespace {
thread_local std::uint64_t allocations = 0;
}

#ifndef RAILYARD_SANITIZED
// Counts what this program and the library allocate with `new`; libfabric's own mallocs are not ours to count.
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace railyard {
namespace {

/// Runs `body` in a child that dies at its first system call (but exit); true when it lived.
template <typename Body>
bool lives_without_system_calls(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) ::_exit(42);
    body();
    ::syscall(SYS_exit, 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Cost, TheSystemCallTrapWorks) {
#ifdef RAILYARD_SANITIZED
  GTEST_SKIP() << "the sanitizer makes system calls of its own";
#endif
  EXPECT_FALSE(lives_without_system_calls([] { ::getppid(); }));
}

TEST(Cost, QuietWithNothingOutstandingAndReadSignalMakeNoSystemCall) {
#ifdef RAILYARD_SANITIZED
  GTEST_SKIP() << "the sanitizer makes system calls of its own";
#endif
  run_ranks(2, loopback_settings(2), [](World& world) {
    auto window = must(Window::allocate(world, 4096));
    const int peer = 1 - world.rank();
    must(window.put_value<std::uint64_t>(peer, 0, 5));
    must(window.signal(peer, {0, 1}));
    must(window.wait_signal(0, Comparison::equal, 1));
    must(window.barrier());
    if (world.rank() == 0) {
      EXPECT_TRUE(lives_without_system_calls([&] {
        for (int i = 0; i < 1000; ++i) {
          if (!window.quiet() || !window.quiet(1) || window.read_signal(0) != 1) ::syscall(SYS_getppid);
        }
      }));
    }
    must(window.close());
  });
}

TEST(Cost, QuietWithNothingOutstandingAndReadSignalTakeNoLock) {
  run_ranks(2, loopback_settings(1), [](World& world) {
    auto window = must(Window::allocate(world, 4096));
    must(window.signal(1 - world.rank(), {0, 1}));
    must(window.wait_signal(0, Comparison::equal, 1));
    must(window.barrier());
    must(world.barrier());
    {
      // Somebody else has the progress lock: a call that needs it would not come back.
      const transport::ProgressGuard hold(window_detail::WorldAccess::state(world).engine().progress_lock());
      std::thread other([&] {
        must(window.quiet());
        must(window.quiet(1 - world.rank()));
        must(window.fence());
        EXPECT_EQ(window.read_signal(0), 1U);
        EXPECT_EQ(window.read_counter(0), 0U);
      });
      other.join();
    }
    must(window.close());
  });
}

TEST(Cost, ASmallPutAllocatesNothing) {
#ifdef RAILYARD_SANITIZED
  GTEST_SKIP() << "the sanitizer counts allocations in its own way";
#endif
  run_ranks(2, loopback_settings(1), [](World& world) {
    auto window = must(Window::allocate(world, 4096));
    const int peer = 1 - world.rank();
    const std::array<std::byte, 64> source{};
    const auto some = [&](int count) {
      for (int i = 0; i < count; ++i) {
        must(window.put(peer, 0, source.data(), source.size()));
        must(window.put_signal(peer, 64, source.data(), 8, {1, 1}));
        must(window.signal(peer, {2, 1}));
        must(window.put_value<std::uint32_t>(peer, 128, 7));
        must(window.atomic<std::uint64_t>(peer, 256, AtomicOp::add, 1));
        must(window.put_counter(peer, 0, source.data(), 8, {0, 1}));
      }
    };
    some(20);  // what is made once is made now
    must(window.quiet());
    must(window.barrier());
    const std::uint64_t before = allocations;
    some(20);
    EXPECT_EQ(allocations - before, 0U);
    must(window.quiet());
    must(window.close());
  });
}

}  // namespace
}  // namespace railyard
