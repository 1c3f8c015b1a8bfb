/// Windows that allocate memory of a GPU, used by the host's calls. What kernels do there: tests/device.
#include <gtest/gtest.h>

#include <cstring>

#include "gpu_ways.hpp"

namespace railyard {
namespace {

using test::Gpu;

std::vector<std::byte> read_device(const Gpu& gpu, std::span<const std::byte> memory) {
  std::vector<std::byte> to(memory.size());
  Gpu::need(gpu.call<int(void*, std::uint64_t, std::size_t)>("cuMemcpyDtoH_v2")(
                to.data(), reinterpret_cast<std::uintptr_t>(memory.data()), memory.size()),
            "cuMemcpyDtoH");
  return to;
}

class GpuWindowAllocated : public ::testing::TestWithParam<GpuWay> {};
INSTANTIATE_TEST_SUITE_P(Ways, GpuWindowAllocated, ::testing::ValuesIn(kGpuWays),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(GpuWindowAllocated, IsZeroedAndTakesEveryCallOfTheHost) {
  static constexpr std::size_t kBytes = 3'000'000;
  run_processes_over(GetParam(), 2, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    WindowOptions options;
    options.device = 0;
    auto window = must(Window::allocate(world, kBytes, options));
    EXPECT_EQ(window.local().size(), kBytes);
    EXPECT_EQ(read_device(gpu, window.local()), std::vector<std::byte>(kBytes));
    must(window.barrier());
    const int other = 1 - world.rank();
    const auto rank = static_cast<std::size_t>(world.rank());
    const std::vector<std::byte> sent(1'000'000, static_cast<std::byte>(10 + rank));
    const std::vector<std::byte> expected(1'000'000, static_cast<std::byte>(11 - rank));
    must(window.put_signal_counter(other, 5, sent.data(), sent.size(), {3, 2}, {4, 7}));
    EXPECT_EQ(must(window.wait_signal(3, Comparison::equal, 2)), 2U);
    EXPECT_EQ(must(window.wait_counter(4, 7)), 7U);
    EXPECT_EQ(read_device(gpu, window.local().subspan(5, sent.size())), expected);
    std::vector<std::byte> got(1000);
    must(window.wait(must(window.get(other, 5, got.data(), got.size()))));
    EXPECT_EQ(got, std::vector<std::byte>(1000, sent[0]));
    std::uint64_t before = 7;
    must(window.wait(must(window.fetch_atomic<std::uint64_t>(other, 2'000'000, AtomicOp::add, &before, 5))));
    EXPECT_EQ(before, 0U);
    must(window.signal(other, {3, 50, SignalOp::set}));
    must(window.wait_signal(3, Comparison::equal, 50));
    must(window.barrier());
    must(window.signal(world.rank(), {3, 1}));
    EXPECT_EQ(window.read_signal(3), 51U);
    must(window.reset_signal(3));
    must(window.reset_counter(4));
    EXPECT_EQ(window.read_signal(3), 0U);
    EXPECT_EQ(window.read_counter(4), 0U);
    must(window.close());
    if (gpu.is_double()) {
      CudaDoubleLive live{};
      gpu.call<void(CudaDoubleLive*)>("cuda_double_live")(&live);
      // The shared-memory rail may have the peer's mapped until that link ends.
      EXPECT_LE(live.reservations, GetParam().rails == 0 ? 1U : 0U) << "what the window allocated is gone with it";
    }
  });
}

/// Each rank chooses for itself; signals may lie elsewhere than the data.
TEST_P(GpuWindowAllocated, RanksMayMix) {
  run_processes_over(GetParam(), 3, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    std::vector<std::uint64_t> words(8);
    WindowOptions options;
    options.signals = words.size();
    if (world.rank() > 0) options.device = 0;
    if (world.rank() == 2) options.signal_memory = words;
    auto window = must(Window::allocate(world, 4096, options));
    for (std::uint64_t to = 0; to < 3; ++to) {
      const std::uint64_t value = 100 * to + static_cast<std::uint64_t>(world.rank());
      must(window.put_signal(static_cast<int>(to), 8 * static_cast<std::size_t>(world.rank()), &value, 8, {1}));
    }
    EXPECT_EQ(must(window.wait_signal(1, Comparison::equal, 3)), 3U);
    for (std::uint64_t from = 0; from < 3; ++from) {
      std::uint64_t value = 0;
      must(window.wait(must(window.get(world.rank(), 8 * from, &value, sizeof value))));
      EXPECT_EQ(value, 100 * static_cast<std::uint64_t>(world.rank()) + from);
    }
    must(window.close());
  });
}

TEST(GpuWindowAllocation, WhatCannotBeIsAnErrorOnEveryRank) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    WindowOptions options;
    if (world.rank() == 1) options.device = 77;
    auto refused = Window::allocate(world, 100, options);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().text().find("77"), std::string::npos) << refused.error().text();
  });
}

}  // namespace
}  // namespace railyard
