/// Windows over memory of GPUs: every call, on any mix of host and device memory, over every way that carries it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "base/random.hpp"
#include "gpu_ways.hpp"

namespace railyard {
namespace {

using test::AnyMemory;
using test::Gpu;
using test::GpuMemory;

constexpr std::size_t kWindow = 3 << 20;

std::vector<std::byte> bytes_of(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> made(bytes);
  Random random(seed);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.next());
  return made;
}

std::vector<std::size_t> some_sizes() {
  return {1, 7, 8, 64, 1000, 1024, 1025, 4096, 8193, 65536, 262143, 262144, 262145, 1 << 20, kWindow};
}

/// Where the caller's memory and the windows of the two ranks lie.
struct Mix {
  const char* name;
  bool caller;
  bool window_of_0;
  bool window_of_1;
};

constexpr Mix kMixes[] = {{"AllOnGpus", true, true, true},
                          {"HostToGpu", false, true, true},
                          {"GpuToHost", true, false, false},
                          {"MixedWorld", true, true, false}};

class GpuWindows : public ::testing::TestWithParam<std::tuple<Mix, GpuWay>> {
 protected:
  static Mix mix() { return std::get<0>(GetParam()); }
  static GpuWay way() { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Mixes, GpuWindows,
                         ::testing::Combine(::testing::ValuesIn(kMixes), ::testing::ValuesIn(kGpuWays)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + std::get<1>(info.param).name;
                         });

class GpuWindow : public ::testing::TestWithParam<GpuWay> {};
INSTANTIATE_TEST_SUITE_P(Ways, GpuWindow, ::testing::ValuesIn(kGpuWays),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(GpuWindows, EveryByteIsThereAtItsSignal) {
  run_processes_over(way(), 2, [mix = mix()](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    AnyMemory memory(gpu, world.rank() == 0 ? mix.window_of_0 : mix.window_of_1, kWindow);
    AnyMemory source(gpu, mix.caller, kWindow + 64);
    auto window = must(Window::adopt(world, memory.span()));
    const int other = 1 - world.rank();
    Random random(5);
    std::uint64_t round = 0;
    std::vector<std::size_t> sizes = some_sizes();
    for (int i = 0; i < 20; ++i) sizes.push_back(1 + random.below(300'000));
    for (const std::size_t bytes : sizes) {
      ++round;
      const std::size_t offset = random.below(kWindow - bytes + 1);
      const std::size_t from = random.below(64);
      const auto mine = bytes_of(bytes, 2 * round + static_cast<std::uint64_t>(world.rank()));
      const auto theirs = bytes_of(bytes, 2 * round + static_cast<std::uint64_t>(other));
      source.fill(mine, from);
      const Ticket ticket = must(window.put_signal_counter(other, offset, source.data() + from, bytes, {3, 1}, {2, 1}));
      must(window.wait_signal(3, Comparison::greater_equal, round));
      ASSERT_EQ(memory.read(offset, bytes), theirs) << bytes << " bytes at " << offset;
      must(window.wait_counter(2, round));
      must(window.wait(ticket));
      must(window.barrier());
    }
    must(window.close());
  });
}

/// A question to the driver takes longer than a small put.
TEST_P(GpuWindow, MemoryThatIsSurelyTheHostsIsNotAskedAbout) {
  run_processes_over(GetParam(), 2, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    if (!gpu.is_double()) GTEST_SKIP() << "a driver does not say how often it was asked";
    const auto questions = [&] { return gpu.call<std::uint64_t()>("cuda_double_questions")(); };
    auto window = must(Window::allocate(world, 1 << 20));
    const int other = 1 - world.rank();
    std::vector<std::byte> heap(1 << 20);
    const std::span<std::byte> remembered = heap;
    must(world.remember(remembered));
    // Not a variable: a sanitizer keeps those elsewhere.
    const std::span<std::byte> stack(static_cast<std::byte*>(__builtin_alloca(64)), 64);
    std::ranges::fill(stack, std::byte{1});
    must(window.wait(must(window.put(other, 0, stack.data(), stack.size()))));
    must(window.wait(must(window.put(other, 0, window.local().data(), 4096))));
    const std::uint64_t before = questions();
    for (int i = 0; i < 100; ++i) {
      for (const std::span<const std::byte> from :
           {std::span<const std::byte>(stack), std::span<const std::byte>(window.local()).subspan(100, 50),
            std::span<const std::byte>(remembered).subspan(8192, 60)})
        must(window.wait(must(window.put(other, 0, from.data(), from.size()))));
    }
    EXPECT_EQ(questions(), before);
    world.forget(remembered);
    must(window.wait(must(window.put(other, 0, remembered.data() + 8192, 60))));
    EXPECT_GT(questions(), before) << "what is forgotten may be anybody's";
    must(window.barrier());
    must(window.close());
  });
}

TEST_P(GpuWindows, GetsBringWhatIsThere) {
  run_processes_over(way(), 2, [mix = mix()](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    AnyMemory memory(gpu, world.rank() == 0 ? mix.window_of_0 : mix.window_of_1, kWindow);
    AnyMemory destination(gpu, mix.caller, kWindow + 64);
    memory.fill(bytes_of(kWindow, 100 + static_cast<std::uint64_t>(world.rank())));
    auto window = must(Window::adopt(world, memory.span()));
    must(window.barrier());
    const int other = 1 - world.rank();
    const auto theirs = bytes_of(kWindow, 100 + static_cast<std::uint64_t>(other));
    Random random(7);
    for (const std::size_t bytes : some_sizes()) {
      const std::size_t offset = random.below(kWindow - bytes + 1);
      const std::size_t to = random.below(64);
      must(window.wait(must(window.get(other, offset, destination.data() + to, bytes))));
      const auto from = theirs.begin() + static_cast<std::ptrdiff_t>(offset);
      ASSERT_TRUE(std::equal(from, from + static_cast<std::ptrdiff_t>(bytes), destination.read(to, bytes).begin()))
          << bytes << " bytes at " << offset;
    }
    must(window.barrier());
    must(window.close());
  });
}

TEST_P(GpuWindows, ARankReachesItsOwnPart) {
  run_processes_over(way(), 1, [mix = mix()](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    AnyMemory memory(gpu, mix.window_of_0, kWindow);
    AnyMemory other(gpu, mix.caller, kWindow);
    auto window = must(Window::adopt(world, memory.span()));
    for (const std::size_t bytes : some_sizes()) {
      const auto mine = bytes_of(bytes, bytes);
      other.fill(mine);
      must(window.wait(must(window.put_signal(0, kWindow - bytes, other.data(), bytes, {0, 1}))));
      EXPECT_EQ(memory.read(kWindow - bytes, bytes), mine);
      other.fill(std::vector<std::byte>(bytes));
      must(window.wait(must(window.get(0, kWindow - bytes, other.data(), bytes))));
      EXPECT_EQ(other.read(0, bytes), mine);
    }
    EXPECT_EQ(window.read_signal(0), some_sizes().size());
    must(window.close());
  });
}

TEST_P(GpuWindow, AValueIsTakenAtTheCall) {
  run_processes_over(GetParam(), 2, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    const GpuMemory memory(gpu, 4096);
    auto window = must(Window::adopt(world, {memory.data(), memory.size()}));
    if (world.rank() == 0) {
      for (std::uint64_t i = 0; i < 512; ++i) must(window.put_value(1, 8 * i, i * i));
      must(window.signal(1, {0, 1}));
    } else {
      must(window.wait_signal(0, Comparison::equal, 1));
      const auto all = memory.read(0, memory.size());
      for (std::uint64_t i = 0; i < 512; ++i) {
        std::uint64_t value = 0;
        std::memcpy(&value, all.data() + 8 * i, 8);
        ASSERT_EQ(value, i * i);
      }
    }
    must(window.close());
  });
}

TEST_P(GpuWindow, ARangeThatLeavesItsAllocationIsRefused) {
  run_processes_over(GetParam(), 1, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    const GpuMemory memory(gpu, 1 << 21);
    const auto refused = Window::adopt(world, {memory.data() + 4096, memory.size()});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.status(), Status::invalid) << refused.error().text();
  });
}

/// The window ends while a peer's puts are under way, its memory goes and other memory comes there.
/// A kernel that waits for a signal, and a program that waits for the kernel in the driver, keep the driver from making
/// streams, pinned memory and mappings: what brings the signal must not need any.
TEST_P(GpuWindow, NothingIsMadeWhileAKernelRuns) {
  if (const char* const real = std::getenv("TEST_REAL_GPU"); real != nullptr && *real == '1')
    GTEST_SKIP() << "the double alone counts such calls";
  for (const bool second_on_gpu : {true, false}) {
    run_processes_over(GetParam(), 2, [&](World& world, ProcessRendezvous&) {
      const Gpu gpu;
      const bool on_gpu = world.rank() == 0 || second_on_gpu;
      AnyMemory memory(gpu, on_gpu, kWindow);
      const GpuMemory source(gpu, kWindow);
      const GpuMemory signals(gpu, 64);
      WindowOptions options;
      if (on_gpu) options.signal_memory = {reinterpret_cast<std::uint64_t*>(signals.data()), 8};
      auto window = must(Window::adopt(world, memory.span(), options));
      must(world.remember({source.data(), source.size()}));
      must(window.barrier());

      gpu.call<void(int)>("cuda_double_kernel")(1);
      const int other = 1 - world.rank();
      std::vector<std::byte> host(kWindow);
      const std::size_t at = 8 + static_cast<std::size_t>(world.rank()) * kWindow / 2;  // this rank's half
      for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{300'000}, kWindow / 2 - 8}) {
        for (const int to : {other, world.rank()}) {
          must(window.wait(must(window.put(to, at, source.data(), bytes))));
          must(window.wait(must(window.put(to, at, host.data(), bytes))));
          must(window.wait(must(window.get(to, at, source.data(), bytes))));
          must(window.wait(must(window.get(to, at, host.data(), bytes))));
          must(window.wait(must(window.put_signal(to, at, source.data(), bytes, {1, 1}))));
          std::uint64_t before = 0;
          must(window.wait(must(window.fetch_atomic<std::uint64_t>(to, 0, AtomicOp::add, &before, 1))));
        }
      }
      must(window.wait_signal(1, Comparison::greater_equal, 8));
      must(window.barrier());
      EXPECT_EQ(gpu.call<std::uint64_t()>("cuda_double_held_up")(), 0U);
      gpu.call<void(int)>("cuda_double_kernel")(0);
      must(window.close());
    });
  }
}

TEST_P(GpuWindow, NothingIsWrittenAfterItsEnd) {
  run_processes_over(GetParam(), 2, [](World& world, ProcessRendezvous& rendezvous) {
    const Gpu gpu;
    if (gpu.is_double()) gpu.call<void(unsigned)>("cuda_double_set_copy_us")(300);
    const GpuMemory source(gpu, kWindow);
    source.fill(std::vector<std::byte>(kWindow, std::byte{0xee}));
    for (std::uint64_t round = 1; round <= 8; ++round) {
      const GpuMemory memory(gpu, kWindow);
      {
        auto window = must(Window::adopt(world, {memory.data(), memory.size()}));
        if (world.rank() == 0) {
          for (int i = 0; i < 20; ++i) (void)window.put_signal(1, 0, source.data(), kWindow / 4, {0, 1});
          while (rendezvous.notes[0].load() < round) world.progress();
        } else {
          must(window.wait_signal(0, Comparison::greater_equal, round % 3));
        }
      }  // it ends without its peer
      if (world.rank() == 1) {
        memory.fill(std::vector<std::byte>(kWindow));
        rendezvous.notes[0].store(round);
        for (int i = 0; i < 2000; ++i) world.progress();
        const auto now = memory.read(0, kWindow);
        ASSERT_EQ(std::ranges::count(now, std::byte{0xee}), 0) << "round " << round;
      }
      must(world.barrier());
    }
  });
}

/// Connections end under traffic, at any moment of a copy: nothing is lost, nothing lands twice, and no signal comes
/// before its bytes.
TEST(GpuWindowCut, SignalsAreExactAndFollowTheirBytes) {
  static constexpr std::size_t kSlots = 8;
  static constexpr std::size_t kSlot = 300'000;
  static constexpr std::uint64_t kRounds = 60;
  run_processes_over({"TwoRails", 2}, 2, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    if (gpu.is_double()) gpu.call<void(unsigned)>("cuda_double_set_copy_us")(200);
    const GpuMemory memory(gpu, kSlots * kSlot);
    const GpuMemory source(gpu, kSlots * kSlot);
    auto window = must(Window::adopt(world, {memory.data(), memory.size()}));
    const int other = 1 - world.rank();
    std::uint64_t cuts = 0;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      for (std::size_t slot = 0; slot < kSlots; ++slot) {
        const std::size_t bytes = slot % 2 == 0 ? kSlot : 64;
        source.fill(std::vector<std::byte>(bytes, static_cast<std::byte>(round + slot)), slot * kSlot);
        must(window.put_signal(other, slot * kSlot, source.data() + slot * kSlot, bytes, {slot, 1}));
        if (slot == round % kSlots && world.rank() == static_cast<int>(round % 2)) cuts += cut_a_connection(round);
      }
      for (std::size_t slot = 0; slot < kSlots; ++slot) {
        ASSERT_EQ(must(window.wait_signal(slot, Comparison::greater_equal, round)), round);
        const std::size_t bytes = slot % 2 == 0 ? kSlot : 64;
        ASSERT_EQ(memory.read(slot * kSlot, bytes), std::vector<std::byte>(bytes, static_cast<std::byte>(round + slot)))
            << "round " << round << ", slot " << slot;
      }
      must(window.barrier());
    }
    EXPECT_GT(cuts, kRounds / 4);
    must(window.close());
  });
}

/// A GPU that fails takes the operations on its memory with it. Those between host memory go on, over the same rails.
TEST(GpuWindowFailure, AGpuThatFailsFailsItsOperationsAlone) {
  for (const int broken : {0, 1}) {
    run_processes_over({"TwoRails", 2}, 2, [broken](World& world, ProcessRendezvous& rendezvous) {
      const Gpu gpu;
      if (!gpu.is_double()) GTEST_SKIP() << "a real GPU is not broken for a test";
      const GpuMemory memory(gpu, kWindow);
      const GpuMemory source(gpu, kWindow);
      auto window = must(Window::adopt(world, {memory.data(), memory.size()}));
      auto plain = must(Window::allocate(world, kWindow));
      must(window.barrier());
      if (world.rank() == broken) {
        gpu.call<void(std::uint64_t)>("cuda_double_fail_copy")(1);
        rendezvous.notes[0].store(1);
      }
      while (rendezvous.notes[0].load() == 0) world.progress();
      if (world.rank() == 0) {
        for (const std::size_t bytes : {std::size_t{64}, std::size_t{300'000}, kWindow}) {
          const auto put = window.wait(must(window.put(1, 0, source.data(), bytes)));
          EXPECT_FALSE(put.ok()) << bytes << " bytes";
          EXPECT_EQ(put.status(), Status::invalid) << put.error().text();
          const auto got = window.wait(must(window.get(1, 0, source.data(), bytes)));
          EXPECT_FALSE(got.ok()) << bytes << " bytes";
          EXPECT_EQ(got.status(), Status::invalid) << got.error().text();
        }
        const auto mine = bytes_of(kWindow, 1);
        must(plain.put_signal(1, 0, mine.data(), kWindow, {0, 1}));
        must(plain.quiet());
      } else {
        must(plain.wait_signal(0, Comparison::equal, 1));
        const auto expected = bytes_of(kWindow, 1);
        EXPECT_TRUE(std::ranges::equal(plain.local(), expected));
      }
      must(plain.barrier());
    });
  }
}

}  // namespace
}  // namespace railyard
