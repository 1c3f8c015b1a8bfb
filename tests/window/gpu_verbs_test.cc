/// Windows over memory of GPUs on verbs rails, on the doubles: a NIC's writes are seen by nobody before a flush.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "accelerator/accelerator.hpp"
#include "base/random.hpp"
#include "doubles/verbs/verbs_double.hpp"
#include "gpu_memory.hpp"
#include "window/thread_world.hpp"

namespace railyard {
namespace {

using test::AnyMemory;
using test::Gpu;
using test::GpuMemory;
using ::testing::HasSubstr;

constexpr std::size_t kVerbsWindow = 1 << 20;

std::vector<std::byte> some_bytes(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> made(bytes);
  Random random(seed);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.next());
  return made;
}

Settings on_fakes(std::uint32_t rails) {
  Settings settings;
  settings.driver = "verbs";
  settings.interfaces = rails == 1 ? "fake0" : "fake0,fake1";
  settings.rails = rails;
  settings.shared_memory = "off";
  return settings;
}

/// The doubles of the NICs and of the GPU.
struct VerbsBed {
  explicit VerbsBed(bool flush_call) {
    EXPECT_TRUE(accelerator::may_have_gpus());
    gpu.call<void(int, int)>("cuda_double_set_rdma")(0, flush_call ? 1 : 0);
  }
  ~VerbsBed() {
    EXPECT_EQ(network.violations(), std::vector<std::string>());
    EXPECT_EQ(network.alive(), 0u);
    CudaDoubleLive live{};
    gpu.call<void(CudaDoubleLive*)>("cuda_double_live")(&live);
    EXPECT_EQ(live.nic_mappings, 0u);
    EXPECT_EQ(gpu.call<std::uint64_t()>("cuda_double_freed_under_nic")(), 0u);
  }
  VerbsBed(const VerbsBed&) = delete;
  VerbsBed& operator=(const VerbsBed&) = delete;

  const Gpu gpu;
  verbs_double::Network network{{.devices = 2}};
};

class GpuOverVerbs : public ::testing::TestWithParam<bool> {
 protected:
  /// In a process of its own: one that has started the driver cannot fork any more, and other tests here do.
  static void run(const std::function<void(VerbsBed&)>& body) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      {
        VerbsBed bed(GetParam());
        body(bed);
      }
      ::fflush(nullptr);
      ::_exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
};
INSTANTIATE_TEST_SUITE_P(Platforms, GpuOverVerbs, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "FlushCall" : "ReadBack"; });

/// Rounds of puts with a signal, and gets, between two ranks; every byte is compared when its signal or ticket says so.
void exchange_rounds(World& world, const Gpu& gpu, bool window_on_device, bool source_on_device, std::uint64_t rounds) {
  AnyMemory memory(gpu, window_on_device, kVerbsWindow);
  AnyMemory local(gpu, source_on_device, kVerbsWindow);
  auto window = must(Window::adopt(world, memory.span()));
  const int other = 1 - world.rank();
  Random random(5);
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const std::size_t bytes = round % 4 == 0 ? 8 : 1 + random.below(kVerbsWindow / 2);
    const std::size_t offset = random.below(kVerbsWindow - bytes + 1) / 8 * 8;
    const std::size_t from = random.below(kVerbsWindow - bytes + 1);
    const auto theirs = some_bytes(bytes, 2 * round + static_cast<std::uint64_t>(other));
    local.fill(some_bytes(bytes, 2 * round + static_cast<std::uint64_t>(world.rank())), from);
    const Ticket ticket = must(window.put_signal(other, offset, local.data() + from, bytes, {3, 1}));
    must(window.wait_signal(3, Comparison::greater_equal, round));
    ASSERT_EQ(memory.read(offset, bytes), theirs) << bytes << " bytes at " << offset << ", round " << round;
    must(window.wait(ticket));
    must(window.barrier());
    must(window.wait(must(window.get(other, offset, local.data() + from, bytes))));
    ASSERT_EQ(local.read(from, bytes), some_bytes(bytes, 2 * round + static_cast<std::uint64_t>(world.rank())));
    must(window.barrier());
  }
  must(window.close());
}

TEST_P(GpuOverVerbs, EveryByteIsThereAtItsSignal) {
  run([](VerbsBed& /*bed*/) {
    run_ranks(2, on_fakes(2), [](World& world) {
      const Gpu gpu;
      exchange_rounds(world, gpu, true, true, 30);
    });
  });
}

TEST_P(GpuOverVerbs, HostAndDeviceMemoryMix) {
  run([](VerbsBed& /*bed*/) {
    for (int mix = 0; mix < 4; ++mix) {
      run_ranks(2, on_fakes(2), [mix](World& world) {
        const Gpu gpu;
        const bool first = world.rank() == 0;
        exchange_rounds(world, gpu, first == ((mix & 1) != 0), first == ((mix & 2) != 0), 8);
      });
    }
  });
}

TEST_P(GpuOverVerbs, WordsInTheMemoryOfAGpuComeBehindThePutsTheyCover) {
  run([](VerbsBed& /*bed*/) {
    run_ranks(2, on_fakes(2), [](World& world) {
      const Gpu gpu;
      const GpuMemory memory(gpu, kVerbsWindow);
      const GpuMemory words(gpu, 4096);
      const GpuMemory source(gpu, kVerbsWindow);
      WindowOptions options;
      options.signal_memory = {reinterpret_cast<std::uint64_t*>(words.data()), 8};
      auto window = must(Window::adopt(world, {memory.data(), memory.size()}, options));
      const int other = 1 - world.rank();
      for (std::uint64_t round = 1; round <= 20; ++round) {
        source.fill(some_bytes(100'000, 2 * round + static_cast<std::uint64_t>(world.rank())));
        must(window.put_signal(other, 0, source.data(), 100'000, {1, 1}));
        must(window.wait_signal(1, Comparison::greater_equal, round));
        std::uint64_t word = 0;
        std::memcpy(&word, words.read(8, 8).data(), 8);
        ASSERT_EQ(word, round);
        ASSERT_EQ(memory.read(0, 100'000), some_bytes(100'000, 2 * round + static_cast<std::uint64_t>(other)));
        must(window.quiet());
        must(window.barrier());
      }
      must(window.close());
    });
  });
}

TEST_P(GpuOverVerbs, ARailMayDieUnderIt) {
  run([](VerbsBed& bed) {
    std::atomic<bool> over{false};
    std::thread trouble([&] {
      for (int i = 0; !over; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(40));
        bed.network.port_down(static_cast<std::size_t>(i % 2));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        bed.network.port_up(static_cast<std::size_t>(i % 2));
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    });
    run_ranks(2, on_fakes(2), [](World& world) {
      const Gpu gpu;
      exchange_rounds(world, gpu, true, true, 60);
    });
    over = true;
    trouble.join();
  });
}

TEST_P(GpuOverVerbs, ANicThatTakesNoneLeavesItToTheOthers) {
  run([](VerbsBed& bed) {
    bed.network.options(1).dma_buf = false;
    run_ranks(2, on_fakes(2), [](World& world) {
      const Gpu gpu;
      exchange_rounds(world, gpu, true, true, 10);
      exchange_rounds(world, gpu, false, false, 4);
    });
  });
}

TEST_P(GpuOverVerbs, WhereNoNicTakesItTheCallSaysSo) {
  run([](VerbsBed& bed) {
    bed.network.options(0).dma_buf = bed.network.options(1).dma_buf = false;
    run_ranks(2, on_fakes(2), [](World& world) {
      const Gpu gpu;
      const GpuMemory memory(gpu, kVerbsWindow);
      const auto refused = Window::adopt(world, {memory.data(), memory.size()});
      EXPECT_EQ(refused.status(), Status::unsupported);
      EXPECT_THAT(refused.error().text(), HasSubstr("memory of GPUs"));
      exchange_rounds(world, gpu, false, false, 4);
    });
  });
}

TEST_P(GpuOverVerbs, TheWindowsMemoryIsTheProgramsAgainWhenItIsClosed) {
  run([](VerbsBed& /*bed*/) {
    run_ranks(2, on_fakes(1), [](World& world) {
      const Gpu gpu;
      for (int turn = 0; turn < 10; ++turn) {
        auto memory = std::make_unique<GpuMemory>(gpu, kVerbsWindow);
        auto source = std::make_unique<GpuMemory>(gpu, kVerbsWindow);
        auto window = must(Window::adopt(world, {memory->data(), memory->size()}));
        for (int i = 0; i < 8; ++i) must(window.put(1 - world.rank(), 0, source->data(), kVerbsWindow));
        must(window.quiet());
        must(window.barrier());
        must(window.close());
        memory.reset();
        source.reset();  // was registered for each put alone
      }
    });
  });
}

}  // namespace
}  // namespace railyard
