/// A proxy for kernels of a GPU, on the double of the driver: what kernels share lies in device memory, host memory is
/// pinned.
#if defined(RAILYARD_CUDA_DOUBLE)

#include "kernel_view.hpp"

namespace railyard {
namespace {

void exchange(bool atomics) {
  run_processes(2, [&](World& world, ProcessRendezvous&) {
    auto window = must(Window::allocate(world, 1 << 20));
    DeviceOptions options = patient({.rings = 4, .barriers = 1, .barrier_signal = 8});
    options.device = 0;
    options.host_atomics = atomics;
    {
      const ProgramMemory shared(DeviceProxy::device_bytes(window, options));
      EXPECT_FALSE(DeviceProxy::open(window, options)) << "no device memory";
      options.device_memory = shared.memory();
      auto proxy = must(DeviceProxy::open(window, options));
      const KernelView view(proxy.handle(), shared);
      const device::Window kernel = view.window();
      const int peer = 1 - world.rank();
      EXPECT_NE(kernel.handle().peers[peer].data, nullptr);
      EXPECT_EQ(kernel.handle().peers[peer].signals != nullptr, atomics);
      must(window.barrier());
      const auto sent = device_pattern(5000, 1 + static_cast<std::uint64_t>(world.rank()));
      const auto expected = device_pattern(5000, 1 + static_cast<std::uint64_t>(peer));
      EXPECT_EQ(kernel.put(peer, 0, sent.data(), 5000).number(), 0U) << "by the kernel itself";
      EXPECT_TRUE(kernel.put_counter(peer, 8000, sent.data(), 100, {3}).ok());
      EXPECT_TRUE(kernel.put_signal(peer, 6000, sent.data(), 1000, {0}).ok());
      EXPECT_EQ(kernel.wait_counter(3, 1), device::Status::ok);
      EXPECT_EQ(kernel.wait_signal(0, device::Comparison::equal, 1), device::Status::ok);
      EXPECT_TRUE(device_holds(window, 0, expected));
      EXPECT_TRUE(device_holds(window, 8000, std::span(expected).first(100)));
      EXPECT_TRUE(device_holds(window, 6000, std::span(expected).first(1000)));
      // A source in the window, by the address that kernels know it by.
      EXPECT_TRUE(kernel.put_signal(peer, 100'000, kernel.local(), 5000, {1}).ok());
      EXPECT_EQ(kernel.wait_signal(1, device::Comparison::equal, 1), device::Status::ok);
      EXPECT_TRUE(device_holds(window, 100'000, sent)) << "what the peer got from here";
      EXPECT_EQ(kernel.barrier(), device::Status::ok);
      EXPECT_EQ(proxy.commands() == 0, atomics);
      EXPECT_EQ(kernel.with_budget(1'000'000).wait_counter(9, 1), device::Status::timeout);
      EXPECT_EQ(proxy.status().status(), Status::timeout);
      proxy.resume();
      must(proxy.status());
      must(window.barrier());
      must(proxy.close());
    }
    must(window.close());
  });
}

/// Signals and counters in device memory: kernels read them there, and leave every change to the proxy.
TEST(DeviceDriver, KernelsReadWordsInDeviceMemoryAndNeverWriteThem) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    const ProgramMemory words(16 * sizeof(std::uint64_t));
    const std::span<std::uint64_t> all(reinterpret_cast<std::uint64_t*>(words.memory().data()), 16);
    WindowOptions places;
    places.signal_memory = all.first(8);
    places.counter_memory = all.last(8);
    auto window = must(Window::allocate(world, 4096, places));
    DeviceOptions options = patient({.rings = 4});
    options.device = 0;
    options.host_atomics = true;
    {
      const ProgramMemory shared(DeviceProxy::device_bytes(window, options));
      options.device_memory = shared.memory();
      auto proxy = must(DeviceProxy::open(window, options));
      const KernelView view(proxy.handle(), shared);
      const device::Window kernel = view.window();
      EXPECT_EQ(static_cast<const void*>(proxy.handle().handle().signals), all.data());
      EXPECT_EQ(static_cast<const void*>(proxy.handle().handle().counters), all.data() + 8);
      EXPECT_FALSE(kernel.handle().adds_counters);
      EXPECT_EQ(kernel.handle().peers[world.rank()].signal_count, 0U);
      const auto sent = device_pattern(2000, 1 + static_cast<std::uint64_t>(world.rank()));
      for (const int to : {0, 1}) {
        const std::size_t at = 2000 * static_cast<std::size_t>(world.rank());
        EXPECT_TRUE(kernel.put_signal_counter(to, at, sent.data(), 2000, {3, 5}, {2, 1}).ok());
      }
      EXPECT_EQ(must(window.wait_signal(3, Comparison::equal, 10)), 10U);
      EXPECT_EQ(must(window.wait_counter(2, 2)), 2U);
      std::array<std::uint64_t, 16> seen{};
      words.read(seen.data());
      EXPECT_EQ(seen[3], 10U);
      EXPECT_EQ(seen[8 + 2], 2U);
      for (const std::uint64_t rank : {0ULL, 1ULL})
        EXPECT_TRUE(device_holds(window, 2000 * rank, device_pattern(2000, 1 + rank)));
      must(window.barrier());
      must(proxy.close());
    }
    must(window.close());
  });
}

TEST(DeviceDriver, KernelsWriteDataAndTheProxySignals) { exchange(false); }
TEST(DeviceDriver, WithHostAtomicsKernelsDoBoth) { exchange(true); }

}  // namespace
}  // namespace railyard

#endif
