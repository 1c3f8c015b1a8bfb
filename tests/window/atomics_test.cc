/// Atomics on words of every type: over one rail and several, on mapped memory, and both at once against the owner's
/// own processor.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "process_world.hpp"

namespace railyard {
namespace {

struct AtomicsWay {
  const char* name;
  std::uint32_t rails;
  const char* shared_memory;
};
class AtomicsTest : public ::testing::TestWithParam<AtomicsWay> {
 protected:
  Settings settings() const {
    Settings settings = loopback_settings(GetParam().rails);
    settings.shared_memory = GetParam().shared_memory;
    return settings;
  }
};
INSTANTIATE_TEST_SUITE_P(Rails, AtomicsTest,
                         ::testing::Values(AtomicsWay{"1rails", 1, "off"}, AtomicsWay{"3rails", 3, "off"},
                                           AtomicsWay{"direct", 2, "on"}),
                         [](const auto& info) { return std::string(info.param.name); });

/// One word of rank 1's window.
template <typename T>
class RemoteWord {
 public:
  RemoteWord(Window& window, std::size_t offset) : window_(window), offset_(offset) {}
  T fetch(AtomicOp op, T operand = {}, T compare = {}) {
    T was{};
    must(window_.wait(must(window_.fetch_atomic<T>(1, offset_, op, &was, operand, compare))));
    return was;
  }
  /// The word after an operation that does not fetch.
  T after(AtomicOp op, T operand) {
    must(window_.atomic<T>(1, offset_, op, operand));
    return fetch(AtomicOp::fetch);
  }
  T set(T value) { return fetch(AtomicOp::set, value); }

 private:
  Window& window_;
  std::size_t offset_;
};

template <typename T>
void check_order(Window& window, std::size_t offset) {
  using Limits = std::numeric_limits<T>;
  RemoteWord<T> word(window, offset);
  word.set(10);
  EXPECT_EQ(word.after(AtomicOp::min, 11), T{10});
  EXPECT_EQ(word.after(AtomicOp::min, 9), T{9});
  EXPECT_EQ(word.after(AtomicOp::max, 8), T{9});
  EXPECT_EQ(word.after(AtomicOp::max, 12), T{12});
  EXPECT_EQ(word.fetch(AtomicOp::min, Limits::lowest()), T{12});
  EXPECT_EQ(word.fetch(AtomicOp::max, Limits::max()), Limits::lowest());
  EXPECT_EQ(word.fetch(AtomicOp::max, T{0}), Limits::max());
  EXPECT_EQ(word.fetch(AtomicOp::min, T{0}), Limits::max());
  EXPECT_EQ(word.after(AtomicOp::add, 5), T{5});
  EXPECT_EQ(word.after(AtomicOp::increment, 0), T{6});
  if constexpr (std::is_signed_v<T>) {
    EXPECT_EQ(word.after(AtomicOp::min, T{-3}), T{-3}) << "with its sign";
    EXPECT_EQ(word.after(AtomicOp::max, T{-4}), T{-3});
    EXPECT_EQ(word.after(AtomicOp::add, T{-4}), T{-7});
  }
}

template <typename T>
void check_floating(Window& window, std::size_t offset) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const T infinity = std::numeric_limits<T>::infinity();
  RemoteWord<T> word(window, offset);
  word.set(T{0.5});
  EXPECT_EQ(word.fetch(AtomicOp::add, T{0.25}), T{0.5});
  EXPECT_EQ(word.fetch(AtomicOp::fetch), T{0.75});
  // A number beats a NaN, whoever came first.
  EXPECT_EQ(word.after(AtomicOp::min, nan), T{0.75});
  EXPECT_EQ(word.after(AtomicOp::max, nan), T{0.75});
  word.set(nan);
  EXPECT_TRUE(std::isnan(word.after(AtomicOp::min, nan)));
  EXPECT_EQ(word.after(AtomicOp::min, T{3}), T{3});
  word.set(nan);
  EXPECT_EQ(word.after(AtomicOp::max, -infinity), -infinity);
  // The zeros have an order.
  word.set(T{0});
  EXPECT_FALSE(std::signbit(word.after(AtomicOp::max, -T{0})));
  EXPECT_TRUE(std::signbit(word.after(AtomicOp::min, -T{0})));
  EXPECT_TRUE(std::signbit(word.after(AtomicOp::min, T{0})));
  EXPECT_FALSE(std::signbit(word.after(AtomicOp::max, T{0})));
  // Bits are compared.
  word.set(-T{0});
  EXPECT_TRUE(std::signbit(word.fetch(AtomicOp::compare_swap, T{1}, T{0})));
  EXPECT_EQ(word.fetch(AtomicOp::compare_swap, T{1}, -T{0}), T{0});
  EXPECT_EQ(word.fetch(AtomicOp::swap, nan), T{1});
  EXPECT_TRUE(std::isnan(word.fetch(AtomicOp::compare_swap, T{2}, nan)));
  EXPECT_EQ(word.fetch(AtomicOp::fetch), T{2});
  word.set(infinity);
  EXPECT_TRUE(std::isnan(word.after(AtomicOp::add, -infinity)));
}

TEST_P(AtomicsTest, EveryTypeHasAddMinAndMax) {
  run_ranks(2, settings(), [](World& world) {
    auto window = must(Window::allocate(world, 64));
    if (world.rank() == 0) {
      check_order<std::int32_t>(window, 4);
      check_order<std::uint32_t>(window, 8);
      check_order<float>(window, 12);
      check_order<std::int64_t>(window, 16);
      check_order<std::uint64_t>(window, 24);
      check_order<double>(window, 32);
      check_floating<float>(window, 44);
      check_floating<double>(window, 48);
    }
    must(window.barrier());
    if (world.rank() == 1) {
      EXPECT_EQ(window.local()[0], std::byte{0}) << "neighbours stay as they are";
      EXPECT_EQ(window.local()[40], std::byte{0});
      EXPECT_EQ(window.local()[56], std::byte{0});
    }
    must(window.close());
  });
}

TEST_P(AtomicsTest, WhatMakesNoSenseIsRefusedAtTheCall) {
  run_ranks(1, settings(), [](World& world) {
    auto window = must(Window::allocate(world, 64));
    EXPECT_EQ(window.atomic<double>(0, 4, AtomicOp::add, 1).status(), Status::invalid);
    for (const AtomicOp op : {AtomicOp::bit_and, AtomicOp::bit_or, AtomicOp::bit_xor}) {
      EXPECT_EQ(window.atomic<float>(0, 0, op, 1).status(), Status::invalid);
    }
    const auto op = window.atomic<double>(0, 0, static_cast<AtomicOp>(11), 1);
    EXPECT_NE(op.error().message().find("max (10)"), std::string::npos) << op.error().message();
    const auto type = window.atomic_word(0, 0, AtomicOp::add, static_cast<WordType>(6), 1, 0, nullptr);
    EXPECT_NE(type.error().message().find("float64 (5)"), std::string::npos) << type.error().message();
    must(window.close());
  });
}

/// The words that all ranks change at once.
struct SharedWords {
  double sum;
  float narrow_sum;
  std::int32_t least;
  double greatest;
};

constexpr int kChanges = 20'000;

void change_all(Window& window, int rank) {
  for (int i = 1; i <= kChanges; ++i) {
    must(window.atomic<double>(0, offsetof(SharedWords, sum), AtomicOp::add, 0.5));
    must(window.atomic<float>(0, offsetof(SharedWords, narrow_sum), AtomicOp::add, 1));
    must(window.atomic<std::int32_t>(0, offsetof(SharedWords, least), AtomicOp::min, -(i * 4 + rank)));
    must(window.atomic<double>(0, offsetof(SharedWords, greatest), AtomicOp::max, i * 4 + rank));
  }
  must(window.quiet());
}

/// What a rank does meanwhile by its own processor, for as long as the others are at it.
class OwnChanges {
 public:
  explicit OwnChanges(double& word)
      : thread_([this, &word] {
          while (!stop_) {
            std::atomic_ref<double>(word).fetch_add(0.5);
            ++made_;
          }
        }) {}
  double end() {
    stop_ = true;
    thread_.join();
    return 0.5 * static_cast<double>(made_);
  }

 private:
  std::atomic<bool> stop_{false};
  std::uint64_t made_ = 0;
  std::thread thread_;
};

void check_all(const SharedWords& words, int ranks, double added_by_others) {
  EXPECT_EQ(words.sum, 0.5 * kChanges * ranks + added_by_others) << "each one exactly once";
  EXPECT_EQ(words.narrow_sum, static_cast<float>(kChanges * ranks));
  EXPECT_EQ(words.least, -(kChanges * 4 + ranks - 1));
  EXPECT_EQ(words.greatest, kChanges * 4 + ranks - 1);
}

void contend(World& world, Window& window) {
  auto& words = *reinterpret_cast<SharedWords*>(window.local().data());
  must(window.barrier());
  std::optional<OwnChanges> owner;
  if (world.rank() == 0) owner.emplace(words.sum);
  change_all(window, world.rank());
  must(window.barrier());
  if (owner) check_all(words, world.size(), owner->end());
  must(window.close());
}

TEST_P(AtomicsTest, AreExactUnderContentionWithTheOwnerToo) {
  run_ranks(3, settings(), [](World& world) {
    auto window = must(Window::allocate(world, sizeof(SharedWords)));
    contend(world, window);
  });
}

/// Ranks 1 and 2 are told that they may not map memory: what they send is applied by rank 0, while rank 3 changes the
/// same word itself until they are done.
TEST(MixedAtomics, ThoseOnMappedMemoryAndThoseThatTheTargetAppliesAreAtomicAgainstEachOther) {
  const auto settings = [](int rank) {
    Settings mine = direct_settings();
    if (rank == 1 || rank == 2) mine.shared_memory = "off";
    return mine;
  };
  run_processes(4, settings, [](World& world, ProcessRendezvous& rendezvous) {
    auto window = must(Window::allocate(world, sizeof(SharedWords)));
    auto& words = *reinterpret_cast<SharedWords*>(window.local().data());
    must(window.barrier());
    if (world.rank() == 3) {
      std::uint64_t made = 0;
      for (; rendezvous.notes[0] < 2; ++made)
        must(window.atomic<double>(0, offsetof(SharedWords, sum), AtomicOp::add, 0.5));
      rendezvous.notes[1] = made;
      EXPECT_GE(world.statistics().direct_atomics, made);
    } else if (world.rank() != 0) {
      change_all(window, world.rank());
      EXPECT_EQ(world.statistics().direct_atomics, 0U);
      ++rendezvous.notes[0];
    }
    must(window.barrier());
    if (world.rank() == 0) {
      const auto made = static_cast<double>(rendezvous.notes[1].load());
      EXPECT_EQ(words.sum, 0.5 * (2 * kChanges + made)) << made;
      EXPECT_EQ(words.least, -(kChanges * 4 + 2));
    }
    must(window.close());
  });
}

/// Memory of the caller's is not mapped: ranks on one host meet on the shared-memory rail.
TEST(SharedMemoryRailAtomics, AreExactUnderContention) {
  run_processes(3, [](World& world, ProcessRendezvous&) {
    static SharedWords words;
    auto window = must(Window::adopt(world, std::as_writable_bytes(std::span(&words, 1))));
    contend(world, window);
  });
}

}  // namespace
}  // namespace railyard
