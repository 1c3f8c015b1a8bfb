/// Words in the memory of GPUs: atomics on windows there, and signals and counters that lie there.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <set>

#include "base/random.hpp"
#include "gpu_ways.hpp"

namespace railyard {
namespace {

using test::Gpu;
using test::GpuMemory;

/// Copies of the double take at least so long: what does not wait for one is found out.
void slow_copies(const Gpu& gpu, unsigned microseconds) {
  if (gpu.is_double()) gpu.call<void(unsigned)>("cuda_double_set_copy_us")(microseconds);
}

std::span<std::byte> span_of(const GpuMemory& memory) { return {memory.data(), memory.size()}; }
std::span<std::uint64_t> words_of(const GpuMemory& memory) {
  return {reinterpret_cast<std::uint64_t*>(memory.data()), memory.size() / sizeof(std::uint64_t)};
}

template <typename T = std::uint64_t>
T word_at(const GpuMemory& memory, std::size_t offset) {
  const auto bytes = memory.read(offset, sizeof(T));
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

constexpr AtomicOp kOps[] = {AtomicOp::add,     AtomicOp::increment, AtomicOp::bit_and, AtomicOp::bit_or,
                             AtomicOp::bit_xor, AtomicOp::set,       AtomicOp::swap,    AtomicOp::compare_swap,
                             AtomicOp::fetch,   AtomicOp::min,       AtomicOp::max};
constexpr WordType kTypes[] = {WordType::int32,  WordType::uint32,  WordType::int64,
                               WordType::uint64, WordType::float32, WordType::float64};

bool is_float(WordType type) { return type == WordType::float32 || type == WordType::float64; }
std::size_t width_of(WordType type) {
  return type == WordType::int32 || type == WordType::uint32 || type == WordType::float32 ? 4 : 8;
}
/// Bits that are a sensible value of the type: small numbers of either sign, so that they meet again.
std::uint64_t some_value(WordType type, Random& random) {
  const auto number = static_cast<std::int64_t>(random.below(9)) - 4;
  if (type == WordType::float32) return std::bit_cast<std::uint32_t>(static_cast<float>(number) / 2);
  if (type == WordType::float64) return std::bit_cast<std::uint64_t>(static_cast<double>(number) / 2);
  const auto bits = static_cast<std::uint64_t>(number);
  return width_of(type) == 4 ? bits & 0xffffffffU : bits;
}

/// Each operation is done on host memory, too: what was there and what is there in the end must be the same.
void compare_with_host_memory(World& world, int target, int rounds) {
  const Gpu gpu;
  constexpr std::size_t kWords = 6;
  const GpuMemory memory(gpu, 4096);
  auto window = must(Window::adopt(world, span_of(memory)));
  auto model = must(Window::allocate(world, 4096));
  if (world.rank() == 0) {
    Random random(11);
    for (int round = 0; round < rounds; ++round) {
      for (const WordType type : kTypes) {
        for (const AtomicOp op : kOps) {
          const bool bitwise = op == AtomicOp::bit_and || op == AtomicOp::bit_or || op == AtomicOp::bit_xor;
          if (is_float(type) && bitwise) continue;
          // Each type has words of its own, both halves of eight bytes among them.
          const std::size_t at = static_cast<std::size_t>(type) * 64 + random.below(kWords) * width_of(type);
          const std::uint64_t operand = some_value(type, random);
          const std::uint64_t compare = some_value(type, random);
          if (op == AtomicOp::fetch || random.below(2) == 0) {
            std::uint64_t held = 0;
            std::uint64_t expected = 0;
            must(window.wait(must(window.atomic_word(target, at, op, type, operand, compare, &held))));
            must(model.wait(must(model.atomic_word(target, at, op, type, operand, compare, &expected))));
            ASSERT_EQ(held, expected) << "operation " << static_cast<int>(op) << " on " << static_cast<int>(type);
          } else {
            must(window.atomic_word(target, at, op, type, operand, compare, nullptr));
            must(model.atomic_word(target, at, op, type, operand, compare, nullptr));
          }
        }
      }
    }
  }
  must(window.barrier());
  must(model.barrier());
  if (world.rank() == target) {
    const auto expected = model.local();
    EXPECT_EQ(memory.read(0, 512), std::vector<std::byte>(expected.begin(), expected.begin() + 512));
  }
  must(model.close());
  must(window.close());
}

class GpuWindowWords : public ::testing::TestWithParam<GpuWay> {};
/// Words travel in messages: it is the puts before them that go by the rails.
INSTANTIATE_TEST_SUITE_P(Ways, GpuWindowWords, ::testing::Values(kGpuWays[0], kGpuWays[2]),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(GpuWindowWords, AtomicsDoWhatTheyDoOnHostMemory) {
  run_processes_over(GetParam(), 2, [](World& world, ProcessRendezvous&) { compare_with_host_memory(world, 1, 1); });
}

TEST(GpuWindowWord, SoDoThoseOfARankOnItself) {
  run_processes(1, [](World& world, ProcessRendezvous&) { compare_with_host_memory(world, 0, 1); });
}

/// A driver whose streams do not write values: everything is a copy.
TEST(GpuWindowWord, SoDoTheyWhereStreamsWriteNoValues) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    ::setenv("CUDA_DOUBLE_STREAM_WRITES", "0", 1);
    compare_with_host_memory(world, 1, 1);
  });
}

TEST_P(GpuWindowWords, NoneIsLostAndNoneCountsTwice) {
  static constexpr int kRanks = 3;
  static constexpr std::uint64_t kEach = 40;
  run_processes_over(GetParam(), kRanks, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    const GpuMemory memory(gpu, 4096);
    auto window = must(Window::adopt(world, span_of(memory)));
    // Every rank at the same words of rank 0, that one itself too: what each fetched is its alone.
    std::vector<std::uint64_t> held(kEach);
    std::vector<Ticket> tickets;
    for (std::uint64_t i = 0; i < kEach; ++i) {
      tickets.push_back(must(window.fetch_atomic<std::uint64_t>(0, 0, AtomicOp::add, &held[i], 1)));
      must(window.atomic<std::uint32_t>(0, 8, AtomicOp::increment, 0));
      must(window.atomic<double>(0, 16, AtomicOp::add, 0.5));
    }
    for (const Ticket& ticket : tickets) must(window.wait(ticket));
    EXPECT_EQ(std::set<std::uint64_t>(held.begin(), held.end()).size(), kEach);
    EXPECT_TRUE(std::ranges::is_sorted(held)) << "a rank's own come in sequence";
    must(window.barrier());
    if (world.rank() == 0) {
      EXPECT_EQ(word_at(memory, 0), kRanks * kEach);
      EXPECT_EQ(word_at(memory, 8), kRanks * kEach) << "its neighbour stays zero";
      EXPECT_EQ(word_at<double>(memory, 16), kRanks * kEach * 0.5);
    }
    must(window.close());
  });
}

TEST_P(GpuWindowWords, FourBytesLeaveTheirNeighboursAlone) {
  static constexpr std::size_t kPairs = 100;
  run_processes_over(GetParam(), 3, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    const GpuMemory memory(gpu, kPairs * 8);
    auto window = must(Window::adopt(world, span_of(memory)));
    for (std::uint32_t i = 0; i < kPairs; ++i) {
      if (world.rank() == 1) must(window.atomic<std::uint32_t>(0, 8 * i, AtomicOp::add, i + 1));
      if (world.rank() == 2) must(window.put_value(0, 8 * i + 4, ~i));
    }
    must(window.barrier());
    for (std::uint32_t i = 0; world.rank() == 0 && i < kPairs; ++i) {
      ASSERT_EQ(word_at<std::uint32_t>(memory, 8 * i), i + 1);
      ASSERT_EQ(word_at<std::uint32_t>(memory, 8 * i + 4), ~i);
    }
    must(window.close());
  });
}

/// Its owner looks at the memory itself: puts, then the word, then the acknowledgement.
TEST_P(GpuWindowWords, AnAtomicFollowsItsPutsAndIsThereWhenItIsComplete) {
  static constexpr std::size_t kBytes = 300'000;
  run_processes_over(GetParam(), 2, [](World& world, ProcessRendezvous& rendezvous) {
    const Gpu gpu;
    slow_copies(gpu, 8000);
    const GpuMemory memory(gpu, 8 + 2 * kBytes);
    const GpuMemory source(gpu, kBytes);
    auto window = must(Window::adopt(world, span_of(memory)));
    for (std::uint64_t round = 1; round <= 9; ++round) {
      const std::vector<std::byte> pattern(kBytes, static_cast<std::byte>(round));
      if (world.rank() == 0) {
        source.fill(pattern);
        must(window.put(1, 8, source.data(), kBytes));
        const auto ticket = must(window.atomic<std::uint64_t>(1, 0, round % 2 == 0 ? AtomicOp::add : AtomicOp::set,
                                                              round % 2 == 0 ? 1 : round));
        // What lands while the word is under way does not pass it.
        must(window.put(1, 8 + kBytes, source.data(), 1000));
        must(window.wait(ticket));
        rendezvous.notes[0].store(round);
      } else if (round % 3 == 0) {
        // Whoever sees the word sees the bytes.
        while (word_at(memory, 0) != round) world.progress();
        ASSERT_EQ(memory.read(8, kBytes), pattern) << "round " << round;
      } else {
        // Whoever was told that it is complete finds the word, without help from here.
        while (rendezvous.notes[0].load() != round) world.progress();
        ASSERT_EQ(word_at(memory, 0), round);
        ASSERT_EQ(memory.read(8, kBytes), pattern) << "round " << round;
      }
      must(window.barrier());
    }
    must(window.close());
  });
}

TEST_P(GpuWindowWords, SignalsThereFollowTheirDataAndTheHostSeesThem) {
  static constexpr std::size_t kBytes = 1 << 20;
  run_processes_over(GetParam(), 2, [](World& world, ProcessRendezvous& rendezvous) {
    const Gpu gpu;
    slow_copies(gpu, 200);
    const GpuMemory memory(gpu, kBytes);
    const GpuMemory signals(gpu, 512);
    const GpuMemory source(gpu, kBytes);
    WindowOptions options;
    options.signal_memory = words_of(signals);
    auto window = must(Window::adopt(world, span_of(memory), options));
    const int other = 1 - world.rank();
    Random random(3);
    for (std::uint64_t round = 1; round <= 24; ++round) {
      const std::size_t bytes = 1 + random.below(kBytes);
      const std::vector<std::byte> pattern(bytes, static_cast<std::byte>(round));
      source.fill(pattern);
      const auto ticket = must(window.put_signal(other, 0, source.data(), bytes, {5, 1}));
      if (round % 2 == 0) {
        // As a kernel does: the word alone says that the bytes are there.
        while (word_at(signals, 40) != round) world.progress();
      } else {
        ASSERT_EQ(must(window.wait_signal(5, Comparison::greater_equal, round)), round);
        ASSERT_EQ(word_at(signals, 40), round) << "what the host has seen, a kernel sees";
      }
      ASSERT_EQ(memory.read(0, bytes), pattern) << "round " << round;
      must(window.wait(ticket));
      rendezvous.notes[static_cast<std::size_t>(world.rank())].store(round);
      // Complete at its origin: the word is there, and nobody makes a pass here meanwhile.
      while (rendezvous.notes[static_cast<std::size_t>(other)].load() < round) world.progress();
      ASSERT_EQ(word_at(signals, 40), round);
      EXPECT_EQ(window.read_signal(5), round);
      must(window.barrier());
    }
    EXPECT_EQ(word_at(signals, 32), 0U);
    EXPECT_EQ(word_at(signals, 48), 0U);
    must(window.close());
  });
}

/// Eight bytes of the host's are one store there, on its way together with the signal behind it.
TEST_P(GpuWindowWords, PutsOfEightBytesAreThereWhenTheirSignalIs) {
  run_processes_over(GetParam(), 2, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    slow_copies(gpu, 100);
    const GpuMemory memory(gpu, 4096);
    const GpuMemory signals(gpu, 512);
    WindowOptions options;
    options.signal_memory = words_of(signals);
    for (const bool on_gpu : {true, false}) {
      auto window = must(Window::adopt(world, span_of(memory), on_gpu ? options : WindowOptions{}));
      const int other = 1 - world.rank();
      for (std::uint64_t round = 1; round <= 40; ++round) {
        // Aligned and not, beside words that stay as they are, and several to one word.
        const std::size_t at = round % 4 == 0 ? 803 : 8 * round;
        const std::uint64_t value = 0x0102030405060708U * round + static_cast<std::uint64_t>(world.rank());
        if (round % 3 == 0) must(window.put_value(other, at, std::uint64_t{99}));
        must(window.put_signal(other, at, &value, sizeof value, {2, 1}));
        if (on_gpu && round % 2 == 0) {
          while (word_at(signals, 16) != round) world.progress();  // as a kernel does
        } else {
          must(window.wait_signal(2, Comparison::greater_equal, round));
        }
        ASSERT_EQ(word_at(memory, at), 0x0102030405060708U * round + static_cast<std::uint64_t>(other));
        must(window.quiet(other));
        must(window.barrier());
      }
      EXPECT_EQ(word_at(memory, 8 * 41), 0U);
      const std::uint64_t outside = 1;
      EXPECT_EQ(window.put(other, 4092, &outside, sizeof outside).status(), Status::out_of_range);
      must(window.close());
    }
  });
}

TEST_P(GpuWindowWords, SignalsThereAreExact) {
  static constexpr std::uint64_t kEach = 40;
  run_processes_over(GetParam(), 3, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    const GpuMemory signals(gpu, 64 * 8);
    WindowOptions options;
    options.signal_memory = words_of(signals);
    auto window = must(Window::allocate(world, 4096, options));
    for (int rank = 0; rank < 3; ++rank) {
      for (std::uint64_t i = 0; i < kEach; ++i) must(window.signal(rank, {1, 3}));
      must(window.signal(rank, {static_cast<std::size_t>(10 + world.rank()), 77, SignalOp::set}));
    }
    const SignalCondition all[] = {{1, Comparison::equal, 9 * kEach},
                                   {10, Comparison::equal, 77},
                                   {11, Comparison::equal, 77},
                                   {12, Comparison::equal, 77}};
    must(window.wait_all_signals(all));
    EXPECT_EQ(word_at(signals, 8), 9 * kEach);
    EXPECT_EQ(word_at(signals, 8 * 12), 77U);
    must(window.barrier());
    must(window.reset_signal(1));
    EXPECT_EQ(window.read_signal(1), 0U);
    EXPECT_EQ(word_at(signals, 8), 0U);
    must(window.barrier());
    must(window.put_signal((world.rank() + 1) % 3, 0, &kEach, sizeof kEach, {1, 1}));
    EXPECT_EQ(must(window.wait_signal(1, Comparison::not_equal, 0)), 1U);
    EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(window.local().data()), kEach);
    const auto refused = window.signal(0, {64, 1});
    EXPECT_EQ(refused.status(), Status::out_of_range);
    must(window.close());
  });
}

TEST_P(GpuWindowWords, CountersThereAdvanceWithTheirOperations) {
  run_processes_over(GetParam(), 2, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    constexpr std::size_t kBulk = 1 << 20;
    const GpuMemory memory(gpu, kBulk + 64);
    const GpuMemory counters(gpu, 64);
    const GpuMemory source(gpu, kBulk);
    WindowOptions options;
    options.counter_memory = words_of(counters);
    auto window = must(Window::adopt(world, span_of(memory), options));
    const int other = 1 - world.rank();
    const std::uint64_t small = 9;
    for (std::uint64_t round = 1; round <= 50; ++round) {
      must(window.put_counter(other, 0, source.data(), kBulk, {2, 1}));
      must(window.put_counter(other, kBulk, &small, sizeof small, {3, 2}));
      must(window.put_counter(world.rank(), kBulk + 8, &small, sizeof small, {4, 1}));
    }
    EXPECT_EQ(must(window.wait_counter(2, 50)), 50U);
    EXPECT_EQ(must(window.wait_counter(3, 100)), 100U);
    EXPECT_EQ(must(window.wait_counter(4, 50)), 50U);
    EXPECT_EQ(word_at(counters, 16), 50U);
    EXPECT_EQ(word_at(counters, 24), 100U);
    EXPECT_EQ(word_at(counters, 32), 50U);
    EXPECT_EQ(window.read_counter(2), 50U);
    must(window.reset_counter(2));
    EXPECT_EQ(word_at(counters, 16), 0U);
    EXPECT_EQ(window.read_counter(2), 0U);
    must(window.barrier());
    must(window.close());
  });
}

/// The window ends while peers change its words; other data takes the place.
TEST_P(GpuWindowWords, NoneIsWrittenAfterTheEnd) {
  run_processes_over(GetParam(), 2, [](World& world, ProcessRendezvous& rendezvous) {
    const Gpu gpu;
    slow_copies(gpu, 300);
    const GpuMemory memory(gpu, 4096);
    const GpuMemory signals(gpu, 4096);
    for (std::uint64_t round = 1; round <= 8; ++round) {
      {
        WindowOptions options;
        options.signal_memory = words_of(signals);
        auto window = must(Window::adopt(world, span_of(memory), options));
        if (world.rank() == 0) {
          for (std::size_t i = 0; i < 100; ++i) {
            (void)window.atomic<std::uint64_t>(1, 8 * i, AtomicOp::add, 1);
            (void)window.atomic<std::uint32_t>(1, 8 * i + 4, AtomicOp::set, 1);
            (void)window.signal(1, {i, 1});
          }
          while (rendezvous.notes[0].load() < round) world.progress();
        } else {
          must(window.wait_signal(round % 4, Comparison::greater_equal, 1));
        }
      }  // it ends without its peer
      if (world.rank() == 1) {
        memory.fill(std::vector<std::byte>(memory.size()));
        signals.fill(std::vector<std::byte>(signals.size()));
        rendezvous.notes[0].store(round);
        for (int i = 0; i < 2000; ++i) world.progress();
        ASSERT_EQ(memory.read(0, memory.size()), std::vector<std::byte>(memory.size())) << "round " << round;
        ASSERT_EQ(signals.read(0, signals.size()), std::vector<std::byte>(signals.size())) << "round " << round;
      }
      must(world.barrier());
    }
  });
}

TEST_P(GpuWindowWords, AGpuThatFailsFailsTheOperationsAndNothingElse) {
  run_processes_over(GetParam(), 2, [](World& world, ProcessRendezvous& rendezvous) {
    const Gpu gpu;
    if (!gpu.is_double()) GTEST_SKIP() << "a real GPU is not broken for a test";
    const GpuMemory memory(gpu, 4096);
    auto window = must(Window::adopt(world, span_of(memory)));
    must(window.barrier());
    if (world.rank() == 1) {
      gpu.call<void(std::uint64_t)>("cuda_double_fail_copy")(1);
      rendezvous.notes[0].store(1);
      must(window.wait_signal(0, Comparison::equal, 1));
    } else {
      while (rendezvous.notes[0].load() == 0) world.progress();
      std::uint64_t held = 0;
      const auto fetched = window.wait(must(window.fetch_atomic<std::uint64_t>(1, 0, AtomicOp::add, &held, 1)));
      EXPECT_EQ(fetched.status(), Status::invalid) << fetched.error().text();
      const auto added = window.wait(must(window.atomic<std::uint64_t>(1, 8, AtomicOp::add, 1)));
      EXPECT_EQ(added.status(), Status::invalid) << added.error().text();
      // Signals in host memory, and the flow, are as well as before.
      must(window.wait(must(window.signal(1, {0, 1}))));
    }
    must(window.barrier());
  });
}

TEST(GpuWindowWord, WhatCannotBeIsRefusedWithTheReason) {
  run_processes(1, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    const GpuMemory memory(gpu, 4096);
    {
      auto window = must(Window::adopt(world, span_of(memory).subspan(4, 64)));
      const auto misaligned = window.atomic<std::uint64_t>(0, 0, AtomicOp::add, 1);
      EXPECT_EQ(misaligned.status(), Status::invalid) << misaligned.error().text();
      auto* const place = reinterpret_cast<std::uint32_t*>(memory.data());
      const auto fetched = window.fetch_atomic<std::uint32_t>(0, 0, AtomicOp::add, place, 1);
      EXPECT_EQ(fetched.status(), Status::invalid);
      EXPECT_NE(fetched.error().text().find("host memory"), std::string::npos) << fetched.error().text();
      must(window.close());
    }
    WindowOptions options;
    options.signal_memory = {reinterpret_cast<std::uint64_t*>(memory.data()), 4 << 20};
    const auto longer = Window::allocate(world, 64, options);
    EXPECT_EQ(longer.status(), Status::invalid);
    EXPECT_NE(longer.error().text().find("signal_memory"), std::string::npos) << longer.error().text();
    options.signal_memory = {reinterpret_cast<std::uint64_t*>(memory.data() + 4), 8};
    EXPECT_EQ(Window::allocate(world, 64, options).status(), Status::invalid);
  });
}

/// Between GPUs a put is one copy, however long; cut for a NIC it would be many.
TEST(GpuWindowWord, APutBetweenGpusIsOneCopy) {
  static constexpr std::size_t kBytes = 24 << 20;
  run_processes(2, [](World& world, ProcessRendezvous&) {
    const Gpu gpu;
    const GpuMemory memory(gpu, kBytes);
    const GpuMemory source(gpu, kBytes);
    source.fill(std::vector<std::byte>(kBytes, std::byte{7}));
    auto window = must(Window::adopt(world, span_of(memory)));
    must(window.barrier());
    std::uint64_t before = 0;
    if (gpu.is_double()) before = gpu.call<std::uint64_t()>("cuda_double_copies")();
    must(window.barrier());
    if (world.rank() == 0) must(window.put_signal(1, 0, source.data(), kBytes, {0, 1}));
    if (world.rank() == 1) {
      must(window.wait_signal(0, Comparison::equal, 1));
      if (gpu.is_double()) {
        EXPECT_EQ(gpu.call<std::uint64_t()>("cuda_double_copies")(), before + 1);
      }
      EXPECT_EQ(memory.read(0, kBytes), std::vector<std::byte>(kBytes, std::byte{7}));
    }
    must(window.barrier());
    must(window.close());
  });
}

}  // namespace
}  // namespace railyard
