/// Windows that end without their peers: what these go on sending lands nowhere, and they are told.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "process_world.hpp"
#include "railyard/window.hpp"

namespace railyard {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kEndBytes = 8 << 20;

std::span<std::byte> map_fresh(void* address) {
  void* const memory = ::mmap(address, kEndBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | (address != nullptr ? MAP_FIXED : 0), -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  return {static_cast<std::byte*>(memory), kEndBytes};
}

class EndsTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Rails, EndsTest, ::testing::Values("on", "off"),
                         [](const auto& info) { return std::string("shared_memory_") + info.param; });

TEST_P(EndsTest, AWindowThatEndsAloneGivesItsMemoryBack) {
  const auto settings = [](int /*rank*/) {
    Settings mine = loopback_settings(2);
    mine.shared_memory = GetParam();
    return mine;
  };
  run_processes(2, settings, [](World& world, ProcessRendezvous& rendezvous) {
    const std::span<std::byte> memory = map_fresh(nullptr);
    auto other = must(Window::allocate(world, 4096));
    {
      auto window = must(Window::adopt(world, memory));
      if (world.rank() == 0) {
        std::ranges::fill(memory, std::byte{0xee});
        std::size_t failures = 0;
        Status last = Status::ok;
        while (rendezvous.notes[1] == 0 || failures == 0) {
          // Long ones, short ones and signals: all end when the window does.
          auto ticket = window.put(1, 0, memory.data(), kEndBytes);
          if (ticket) ticket = window.put_signal(1, 8, memory.data(), 64, {3, 1});
          const auto waited = ticket ? window.wait(*ticket) : Result<void>(std::move(ticket.error()));
          rendezvous.notes[0].fetch_add(1);
          if (waited) continue;
          ++failures;
          last = waited.status();
          if (last == Status::peer_lost || last == Status::timeout) break;
        }
        // Those whose tickets nobody looked at are told here.
        for (int i = 0; i < 100'000 && !window.quiet(); ++i) {
        }
        EXPECT_NE(last, Status::peer_lost);
        EXPECT_NE(last, Status::timeout);
      } else {
        while (rendezvous.notes[0] < 3) world.progress();
      }
    }
    if (world.rank() == 1) {
      const std::span<std::byte> fresh = map_fresh(memory.data());
      std::ranges::fill(fresh, std::byte{0x5a});
      for (int i = 0; i < 50; ++i) {
        world.progress();
        std::this_thread::sleep_for(milliseconds(10));
      }
      EXPECT_EQ(std::ranges::count(fresh, std::byte{0x5a}), static_cast<std::ptrdiff_t>(kEndBytes));
      rendezvous.notes[1] = 1;
    }
    // Nothing else has come to harm.
    must(other.signal(1 - world.rank(), {0, 1}));
    must(other.wait_signal(0, Comparison::equal, 1));
    must(other.barrier());
    must(other.close());
  });
}

}  // namespace
}  // namespace railyard
