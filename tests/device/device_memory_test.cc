/// Windows in memory of a GPU that they have allocated: kernels of ranks on one host store and signal there themselves.
/// On the double of the driver.
#if defined(RAILYARD_CUDA_DOUBLE)

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <memory>
#include <set>

#include "kernel_view.hpp"

namespace railyard {
namespace {

struct GpuNode {
  World& world;
  Window& window;
  DeviceProxy& proxy;
  device::Window kernel;
  const ProgramMemory& program;
  ProcessRendezvous& rendezvous;
  int peer;

  void slow_copies(unsigned microseconds) const {
    program.call<void(unsigned)>("cuda_double_set_copy_us")(microseconds);
  }
  bool holds(std::size_t offset, std::span<const std::byte> expected) const {
    return std::memcmp(kernel.local() + offset, expected.data(), expected.size()) == 0;
  }
};

constexpr std::size_t kBytes = 1 << 20;

void run_on_gpu(int size, DeviceOptions options, const std::function<void(GpuNode&)>& body, WindowOptions places = {}) {
  run_processes(size, [&](World& world, ProcessRendezvous& rendezvous) {
    const ProgramMemory start(64);
    if (places.device < 0) places.device = 0;
    auto window = must(Window::allocate(world, kBytes, places));
    options.device = 0;
    {
      const ProgramMemory shared(DeviceProxy::device_bytes(window, options));
      options.device_memory = shared.memory();
      auto proxy = must(DeviceProxy::open(window, options));
      const KernelView view(proxy.handle(), shared);
      GpuNode node{world, window, proxy, view.window(), shared, rendezvous, (world.rank() + 1) % world.size()};
      must(window.barrier());
      body(node);
      must(window.barrier());
      static_cast<void>(proxy.close(Deadline::in(seconds(30))));
    }
    must(window.close());
  });
}

TEST(DeviceMemory, KernelsStoreAndSignalByThemselves) {
  run_on_gpu(2, patient({.rings = 4, .barriers = 1, .barrier_signal = 8}), [](GpuNode& node) {
    const device::Window& kernel = node.kernel;
    const auto sent = device_pattern(5000, 1 + static_cast<std::uint64_t>(node.world.rank()));
    const auto expected = device_pattern(5000, 1 + static_cast<std::uint64_t>(node.peer));
    EXPECT_EQ(kernel.put(node.peer, 3, sent.data(), 2000).number(), 0U);
    EXPECT_EQ(kernel.put_value(node.peer, 6000, std::uint64_t{0x1122334455667788}).number(), 0U);
    EXPECT_EQ(kernel.put_counter(node.peer, 8000, sent.data(), 100, {3, 2}).number(), 0U);
    EXPECT_EQ(kernel.put_signal(node.peer, 10'000, sent.data(), 2000, {1, 4}).number(), 0U);
    EXPECT_EQ(kernel.signal(node.peer, {2}).number(), 0U);
    EXPECT_EQ(kernel.put_signal_counter(node.peer, 20'000, sent.data(), 8, {2, 5}, {3, 1}).number(), 0U);
    EXPECT_EQ(kernel.wait_signal(1, device::Comparison::equal, 4), device::Status::ok);
    EXPECT_TRUE(node.holds(10'000, std::span(expected).first(2000)));
    EXPECT_EQ(kernel.wait_signal(2, device::Comparison::greater, 5), device::Status::ok);
    EXPECT_EQ(kernel.read_signal(2), 6U);
    EXPECT_TRUE(node.holds(3, std::span(expected).first(2000)));
    EXPECT_TRUE(node.holds(8000, std::span(expected).first(100)));
    EXPECT_TRUE(node.holds(20'000, std::span(expected).first(8)));
    std::uint64_t value = 0;
    std::memcpy(&value, kernel.local() + 6000, sizeof value);
    EXPECT_EQ(value, 0x1122334455667788U);
    EXPECT_EQ(kernel.wait_counter(3, 3), device::Status::ok);
    EXPECT_EQ(kernel.read_counter(3), 3U);
    // To itself, too.
    EXPECT_EQ(kernel.put_signal(node.world.rank(), 30'000, sent.data(), 1500, {5}).number(), 0U);
    EXPECT_EQ(kernel.wait_signal(5, device::Comparison::equal, 1), device::Status::ok);
    EXPECT_TRUE(node.holds(30'000, std::span(sent).first(1500)));
    EXPECT_EQ(kernel.barrier(), device::Status::ok);
    EXPECT_EQ(node.proxy.commands(), 0U);
    // The host sees what kernels have added, without anybody telling it.
    EXPECT_EQ(must(node.window.wait_signal(1, Comparison::equal, 4)), 4U);
    EXPECT_EQ(node.window.read_signal(2), 6U);
    EXPECT_EQ(must(node.window.wait_counter(3, 3)), 3U);
    EXPECT_EQ(node.window.read_counter(3), 3U);
  });
}

/// A host thread that waits looks at the kernels' half again and again. The engine's words use the same queue.
TEST(DeviceMemory, AWaitOfTheHostLeavesTheQueueToTheWords) {
  static constexpr std::uint64_t kSignals = 300;
  DeviceOptions options = patient({.rings = 4});
  options.direct = false;
  run_on_gpu(2, options, [](GpuNode& node) {
    const auto copies = [&] { return node.program.call<std::uint64_t()>("cuda_double_copies")(); };
    node.slow_copies(100);
    must(node.window.barrier());
    const std::uint64_t before = copies();
    std::thread block([&] {
      for (std::uint64_t i = 0; i < kSignals; ++i) EXPECT_TRUE(node.kernel.signal(node.peer, {16}).ok());
    });
    EXPECT_EQ(must(node.window.wait_signal(16, Comparison::equal, kSignals, Deadline::in(seconds(20)))), kSignals);
    block.join();
    const std::uint64_t made = copies() - before;
    EXPECT_LE(made, 2 * kSignals) << "one for a word, and as much again for the looks";
    node.slow_copies(0);
  });
}

/// More rings than what may be under way to a rank at a time, and each signal a write of the GPU's: what becomes free
/// goes to every ring in turn, so that no kernel waits for room until others have ended.
TEST(DeviceMemory, NoRingWaitsForTheOthersToEnd) {
  static constexpr std::uint32_t kRings = 64;
  static constexpr std::uint64_t kEach = 300;
  static constexpr std::uint64_t kDepth = 64;
  DeviceOptions options = patient({.rings = kRings, .depth = kDepth});
  options.direct = false;
  run_on_gpu(2, options, [](GpuNode& node) {
    node.slow_copies(20);
    must(node.window.barrier());
    // Every ring is full before any goes on: a thread that gets no core does not look like a ring that is not served.
    std::barrier<> full(kRings);
    std::atomic<bool> ended{false};
    std::uint64_t least = kEach;
    std::vector<std::thread> blocks;
    for (std::uint32_t ring = 0; ring < kRings; ++ring) {
      blocks.emplace_back([&, kernel = node.kernel.on_ring(ring)] {
        for (std::uint64_t i = 0; i < kEach; ++i) {
          EXPECT_TRUE(kernel.signal(node.peer, {16}).ok());
          if (i + 1 == kDepth) full.arrive_and_wait();
        }
        if (ended.exchange(true)) return;
        for (std::uint32_t other = 0; other < kRings; ++other)
          least = std::min(least, device::detail::load_system(&kernel.handle().progress[other].consumed));
      });
    }
    for (std::thread& block : blocks) block.join();
    EXPECT_GE(least, kEach / 10) << "of the slowest ring, when the first had posted all";
    EXPECT_EQ(must(node.window.wait_signal(16, Comparison::equal, kRings * kEach)), kRings * kEach);
    node.slow_copies(0);
  });
}

/// One copy looks at many words.
TEST(DeviceMemory, AWaitOfTheHostSeesManyWordsInOneCopy) {
  static constexpr std::size_t kWords = 600;  // more than one look takes
  run_on_gpu(2, patient({.rings = 4}),
             [](GpuNode& node) {
               const auto copies = [&] { return node.program.call<std::uint64_t()>("cuda_double_copies")(); };
               std::vector<SignalCondition> all;
               for (std::size_t i = 0; i < kWords; ++i)
                 all.push_back({.index = i, .comparison = Comparison::equal, .value = 1});
               for (std::size_t i = 0; i < kWords; ++i) ASSERT_EQ(node.kernel.signal(node.peer, {i}).number(), 0U);
               must(node.window.barrier());
               const std::uint64_t before = copies();
               must(node.window.wait_all_signals(all, Deadline::in(seconds(20))));
               EXPECT_LE(copies() - before, 20U);
             },
             {.signals = kWords});
}

/// A word has two halves: kernels add to one, the engine writes the other. Both at once, to the same signals.
TEST(DeviceMemory, NoAddOfAKernelIsLostToTheEngine) {
  static constexpr std::uint64_t kByKernels = 20'000;
  static constexpr std::uint64_t kByHosts = 60;
  run_on_gpu(2, patient({.rings = 4}), [](GpuNode& node) {
    std::thread host([&] {
      for (std::uint64_t i = 0; i < kByHosts; ++i) {
        must(node.window.signal(0, {1, 1000}));
        must(node.window.put_counter(0, 0, &i, sizeof i, {2, 1000}));
      }
      must(node.window.quiet());
    });
    const std::uint64_t value = 7;
    for (std::uint64_t i = 0; i < kByKernels; ++i) {
      ASSERT_EQ(node.kernel.signal(0, {1}).number(), 0U);
      ASSERT_EQ(node.kernel.put_counter(0, 64, &value, sizeof value, {2}).number(), 0U);
    }
    host.join();
    must(node.window.barrier());
    constexpr std::uint64_t kEach = kByKernels + 1000 * kByHosts;
    EXPECT_EQ(must(node.window.wait_counter(2, kEach)), kEach);
    EXPECT_EQ(node.kernel.read_counter(2), kEach);
    if (node.world.rank() != 0) return;
    EXPECT_EQ(node.kernel.read_signal(1), 2 * kEach);
    EXPECT_EQ(node.window.read_signal(1), 2 * kEach);
  });
}

/// What a kernel added before a word is set, the set overwrites; what it adds afterwards counts.
TEST(DeviceMemory, AWordThatIsSetForgetsWhatKernelsAdded) {
  run_on_gpu(2, patient({.rings = 4}), [](GpuNode& node) {
    for (std::uint64_t round = 1; round <= 20; ++round) {
      const std::uint64_t wanted = 1000 * round;
      if (node.world.rank() == 1) {
        for (int i = 0; i < 3; ++i) ASSERT_TRUE(node.kernel.signal(0, {4}).ok());
        if (round % 2 == 0) {
          const device::Ticket ticket = node.kernel.signal(0, {4, wanted, device::SignalOp::set});
          ASSERT_NE(ticket.number(), 0U) << "by the owner's engine";
          ASSERT_EQ(node.kernel.wait(ticket), device::Status::ok);
        } else {
          must(node.window.wait(must(node.window.signal(0, {4, wanted, SignalOp::set}))));
        }
        ASSERT_EQ(node.kernel.signal(0, {4, 2}).number(), 0U);
      }
      must(node.window.barrier());
      if (node.world.rank() == 0) {
        ASSERT_EQ(node.kernel.read_signal(4), wanted + 2) << "round " << round;
        ASSERT_EQ(node.window.read_signal(4), wanted + 2);
        if (round % 5 == 0) {
          must(node.window.reset_signal(4));
          ASSERT_EQ(node.kernel.read_signal(4), 0U);
          ASSERT_EQ(node.window.read_signal(4), 0U);
        }
      }
      must(node.window.barrier());
    }
  });
}

/// A long put goes through the proxy, and takes its time: the signal that follows it does not pass.
TEST(DeviceMemory, ASignalFollowsThePutsThatWentThroughTheProxy) {
  DeviceOptions options = patient({.rings = 4});
  options.direct_bytes = 1000;
  run_on_gpu(2, options, [](GpuNode& node) {
    node.slow_copies(2000);
    constexpr std::size_t kLong = 300'000;
    for (std::uint64_t round = 1; round <= 8; ++round) {
      const auto sent = device_pattern(kLong, 2 * round + static_cast<std::uint64_t>(node.world.rank()));
      const auto expected = device_pattern(kLong, 2 * round + static_cast<std::uint64_t>(node.peer));
      ASSERT_NE(node.kernel.put(node.peer, 0, sent.data(), kLong).number(), 0U);
      ASSERT_TRUE(node.kernel.put_signal(node.peer, kLong, sent.data(), 8, {1}).ok());
      ASSERT_EQ(node.kernel.wait_signal(1, device::Comparison::equal, round), device::Status::ok);
      ASSERT_TRUE(node.holds(0, expected)) << "round " << round;
      ASSERT_TRUE(node.holds(kLong, std::span(expected).first(8)));
      ASSERT_EQ(node.kernel.quiet(), device::Status::ok);
      ASSERT_EQ(node.kernel.put_signal(node.peer, 0, sent.data(), 1000, {2}).number(), 0U) << "nothing is under way";
      ASSERT_EQ(node.kernel.wait_signal(2, device::Comparison::equal, round), device::Status::ok);
      must(node.window.barrier());
    }
  });
}

/// The owner's memory goes back while a peer's kernel still stores: the peer's mapping keeps it, and nobody else has
/// it.
TEST(DeviceMemory, ALateStoreHitsNobody) {
  run_processes(2, [](World& world, ProcessRendezvous& rendezvous) {
    const ProgramMemory start(64);
    WindowOptions places;
    places.device = 0;
    auto window = std::make_unique<Window>(must(Window::allocate(world, kBytes, places)));
    DeviceOptions options = patient({.rings = 4});
    options.device = 0;
    const ProgramMemory shared(DeviceProxy::device_bytes(*window, options));
    options.device_memory = shared.memory();
    auto proxy = std::make_unique<DeviceProxy>(must(DeviceProxy::open(*window, options)));
    const KernelView view(proxy->handle(), shared);
    must(window->barrier());
    if (world.rank() == 0) {
      proxy.reset();
      window.reset();  // without a word
      const ProgramMemory next(kBytes);
      const std::vector<std::byte> zeros(kBytes);
      std::memset(next.touch(next.memory().data()), 0, kBytes);
      rendezvous.notes[0].store(1);
      while (rendezvous.notes[1].load() == 0) std::this_thread::yield();
      EXPECT_EQ(std::memcmp(next.touch(next.memory().data()), zeros.data(), kBytes), 0);
    } else {
      while (rendezvous.notes[0].load() == 0) std::this_thread::yield();
      const auto sent = device_pattern(1000, 1);
      EXPECT_EQ(view.window().put_signal(0, 0, sent.data(), sent.size(), {1}).number(), 0U);
      rendezvous.notes[1].store(1);
      proxy.reset();
      window.reset();
    }
  });
}

TEST(DeviceMemory, GetsComeByTheKernelOrThroughTheProxy) {
  run_on_gpu(2, patient({.rings = 4}), [](GpuNode& node) {
    const auto mine = device_pattern(kBytes, 1 + static_cast<std::uint64_t>(node.world.rank()));
    const auto theirs = device_pattern(kBytes, 1 + static_cast<std::uint64_t>(node.peer));
    std::memcpy(node.kernel.local(), mine.data(), kBytes);
    must(node.window.barrier());
    std::vector<std::byte> got(kBytes);
    EXPECT_EQ(node.kernel.get(node.peer, 7, got.data(), 1500).number(), 0U);
    EXPECT_EQ(std::memcmp(got.data(), theirs.data() + 7, 1500), 0);
    const device::Ticket ticket = node.kernel.get(node.peer, 100, got.data(), 500'000);
    EXPECT_NE(ticket.number(), 0U);
    EXPECT_EQ(node.kernel.wait(ticket), device::Status::ok);
    EXPECT_EQ(std::memcmp(got.data(), theirs.data() + 100, 500'000), 0);
    EXPECT_TRUE(node.kernel.get(node.peer, kBytes - 10, got.data(), 11).ok()) << "the proxy finds out";
    EXPECT_EQ(node.kernel.quiet(), device::Status::error);
    EXPECT_EQ(node.proxy.status().status(), Status::out_of_range);
    EXPECT_EQ(node.proxy.status().error().where().operation, std::string_view("get"));
    node.proxy.resume();
  });
}

/// Of every rank's kernels at once: what each fetched is its alone.
void count_together(bool direct) {
  DeviceOptions options = patient({.rings = 4});
  options.direct_atomics = direct;
  run_on_gpu(3, options, [direct](GpuNode& node) {
    constexpr std::uint64_t kEach = 50;
    std::set<std::uint64_t> held;
    for (std::uint64_t i = 0; i < kEach; ++i) {
      std::uint64_t before = 0;
      ASSERT_EQ(node.kernel.fetch_atomic<device::Scope::thread>(0, 0, device::AtomicOp::add, &before, std::uint64_t{1}),
                device::Status::ok);
      held.insert(before);
      const device::Ticket ticket = node.kernel.atomic(0, 16, device::AtomicOp::add, 0.5);
      ASSERT_TRUE(ticket.ok());
      ASSERT_EQ(ticket.number() == 0, direct);
    }
    EXPECT_EQ(held.size(), kEach);
    EXPECT_EQ(node.kernel.quiet(), device::Status::ok);
    must(node.window.barrier());
    if (node.world.rank() != 0) return;
    std::uint64_t count = 0;
    double sum = 0;
    std::memcpy(&count, node.kernel.local(), sizeof count);
    std::memcpy(&sum, node.kernel.local() + 16, sizeof sum);
    EXPECT_EQ(count, 3 * kEach);
    EXPECT_EQ(sum, 3 * kEach * 0.5);
  });
}
TEST(DeviceMemory, AtomicsOfKernelsAreTheEngines) { count_together(false); }
TEST(DeviceMemory, OrTheGpusWhereTheProgramSaysSo) { count_together(true); }

/// Two GPUs without atomics in each other's memory: kernels store data there, and signals go through the proxy.
TEST(DeviceMemory, WithoutAtomicsBetweenGpusTheProxySignals) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    ::setenv("CUDA_DOUBLE_P2P_ATOMICS", "0", 1);
    const ProgramMemory start(64);
    WindowOptions places;
    places.device = world.rank();
    auto window = must(Window::allocate(world, kBytes, places));
    DeviceOptions options = patient({.rings = 4});
    options.device = world.rank();
    {
      const ProgramMemory shared(DeviceProxy::device_bytes(window, options));
      options.device_memory = shared.memory();
      auto proxy = must(DeviceProxy::open(window, options));
      const KernelView view(proxy.handle(), shared);
      const device::Window kernel = view.window();
      const int peer = 1 - world.rank();
      must(window.barrier());
      EXPECT_EQ(kernel.handle().peers[peer].signal_count, 0U);
      EXPECT_NE(kernel.handle().peers[world.rank()].signal_count, 0U) << "its own GPU's";
      const auto sent = device_pattern(1000, 1 + static_cast<std::uint64_t>(world.rank()));
      const auto expected = device_pattern(1000, 1 + static_cast<std::uint64_t>(peer));
      EXPECT_EQ(kernel.put(peer, 0, sent.data(), 1000).number(), 0U);
      EXPECT_NE(kernel.put_signal(peer, 2000, sent.data(), 1000, {1}).number(), 0U);
      EXPECT_EQ(kernel.wait_signal(1, device::Comparison::equal, 1), device::Status::ok);
      EXPECT_EQ(std::memcmp(kernel.local(), expected.data(), 1000), 0);
      EXPECT_EQ(std::memcmp(kernel.local() + 2000, expected.data(), 1000), 0);
      must(window.barrier());
      must(proxy.close());
    }
    must(window.close());
  });
}

/// Memory that the caller brings is stored to by its owner alone.
TEST(DeviceMemory, AdoptedMemoryIsNotMappedForKernels) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    const ProgramMemory memory(kBytes);
    auto window = must(Window::adopt(world, memory.memory()));
    DeviceOptions options = patient({.rings = 4});
    options.device = 0;
    {
      const ProgramMemory shared(DeviceProxy::device_bytes(window, options));
      options.device_memory = shared.memory();
      auto proxy = must(DeviceProxy::open(window, options));
      const KernelView view(proxy.handle(), shared);
      EXPECT_EQ(view.window().handle().peers[1 - world.rank()].data, nullptr);
      must(window.barrier());
      must(proxy.close());
    }
    must(window.close());
    WindowOptions both;
    both.device = 0;
    {
      auto own = must(Window::allocate(world, 100, both));
      EXPECT_EQ(DeviceProxy::open(own, {.device = 1}).status(), Status::invalid) << "another GPU";
      EXPECT_EQ(DeviceProxy::open(own).status(), Status::invalid) << "host threads";
      must(own.close());
    }
    EXPECT_EQ(Window::adopt(world, memory.memory(), both).status(), Status::invalid);
  });
}

}  // namespace
}  // namespace railyard

#endif
