/// Bad input: each a clear error that names the cause; the process and its other operations go on.
#include <gtest/gtest.h>

#include <array>
#include <climits>

#include "railyard/window.hpp"
#include "sanitized.hpp"
#include "thread_world.hpp"

namespace railyard {
namespace {

void expect_error(const Error& error, Status status, std::initializer_list<const char*> words) {
  EXPECT_EQ(error.status(), status) << error.text();
  for (const char* word : words)
    EXPECT_NE(error.text().find(word), std::string::npos) << error.text() << " lacks " << word;
}

TEST(Misuse, OutOfRangeIsNamedAndHarmless) {
  run_ranks(2, loopback_settings(1), [](World& world) {
    auto window = must(Window::allocate(world, 100, {.signals = 2, .counters = 1}));
    std::array<std::byte, 200> memory{};
    std::uint64_t was = 0;
    expect_error(window.put(2, 0, memory.data(), 1).error(), Status::out_of_range, {"put", "rank 2", "0 to 1"});
    expect_error(window.put(-1, 0, memory.data(), 1).error(), Status::out_of_range, {"rank -1"});
    expect_error(window.put(1, 90, memory.data(), 11).error(), Status::out_of_range,
                 {"11 bytes", "offset 90", "100 bytes"});
    expect_error(window.put(1, SIZE_MAX, memory.data(), 2).error(), Status::out_of_range, {"offset"});
    expect_error(window.get(1, 101, memory.data(), 0).error(), Status::out_of_range, {"get", "101"});
    expect_error(window.put(1, 0, nullptr, 4).error(), Status::invalid, {"null"});
    expect_error(window.signal(1, {2, 1}).error(), Status::out_of_range, {"signal 2", "has 2"});
    expect_error(window.put_counter(1, 0, memory.data(), 1, {1, 1}).error(), Status::out_of_range, {"counter 1"});
    expect_error(window.wait_signal(7, Comparison::equal, 1).error(), Status::out_of_range, {"signal 7"});
    expect_error(window.atomic<std::uint64_t>(1, 4, AtomicOp::add, 1).error(), Status::invalid,
                 {"offset 4", "multiple"});
    expect_error(window.atomic<std::uint64_t>(1, 96, AtomicOp::add, 1).error(), Status::out_of_range, {"96"});
    expect_error(window.atomic_word(1, 0, AtomicOp::add, 3, 1, 0, &was).error(), Status::invalid, {"3 bytes"});
    expect_error(window.atomic<std::uint64_t>(1, 0, AtomicOp::fetch, 0).error(), Status::invalid, {"fetch_atomic"});
    expect_error(window.quiet(5).error(), Status::out_of_range, {"rank 5"});
    expect_error(window.fence(5).error(), Status::out_of_range, {"rank 5"});
    // What is right still works.
    const int peer = 1 - world.rank();
    must(window.put_signal(peer, 0, memory.data(), 8, {0, 1}));
    must(window.wait_signal(0, Comparison::equal, 1));
    must(window.close());
  });
}

TEST(Misuse, MemoryThatIsNotThereIsNamed) {
  run_ranks(2, loopback_settings(1), [](World& world) {
    auto window = must(Window::allocate(world, 1 << 20));
    auto* nowhere = reinterpret_cast<std::byte*>(0x10000);
    const int peer = 1 - world.rank();
    expect_error(window.put(peer, 0, nowhere, 100'000).error(), Status::invalid, {"0x10000", "100000"});
    expect_error(window.get(peer, 0, nowhere, 100'000).error(), Status::invalid, {"0x10000"});
    EXPECT_FALSE(Window::adopt(world, std::span(nowhere, 4096)).ok());
    EXPECT_FALSE(Window::adopt(world, {}).ok());
    std::vector<std::byte> source(100'000);
    must(window.put_signal(peer, 0, source.data(), source.size(), {0, 1}));
    must(window.wait_signal(0, Comparison::equal, 1));
    must(window.close());
  });
}

TEST(Misuse, DifferentWindowSizesAreAnErrorOnEveryRank) {
  run_ranks(3, loopback_settings(1), [](World& world) {
    const auto window = Window::allocate(world, world.rank() == 1 ? 200 : 100);
    ASSERT_FALSE(window.ok());
    expect_error(window.error(), Status::invalid, {"sizes differ", "200", "100", "per_rank"});
    auto again = must(Window::allocate(world, 100));
    must(again.close());
  });
}

TEST(Misuse, OneRankThatCannotTakePartFailsTheWindowForAll) {
  run_ranks(3, loopback_settings(1), [](World& world) {
    auto* nowhere = reinterpret_cast<std::byte*>(0x10000);
    std::vector<std::byte> memory(4096);
    const auto window = Window::adopt(world, world.rank() == 2 ? std::span(nowhere, 4096) : std::span(memory));
    ASSERT_FALSE(window.ok());
    if (world.rank() != 2) expect_error(window.error(), Status::invalid, {"rank 2"});
  });
}

TEST(Misuse, AWaitThatRunsOutOfTimeSaysOnWhat) {
  run_ranks(2, loopback_settings(1), [](World& world) {
    auto window = must(Window::allocate(world, 64));
    const auto soon = Deadline::in(std::chrono::milliseconds(20));
    expect_error(window.wait_signal(3, Comparison::greater, 7, soon).error(), Status::timeout,
                 {"signal 3", "> 7", "holds 0"});
    expect_error(window.wait_counter(2, 7, soon).error(), Status::timeout, {"counter 2", "7"});
    must(world.barrier());
    must(window.close());
  });
}

TEST(Misuse, ATicketThatWasNeverGivenOutIsAnError) {
  run_ranks(2, loopback_settings(1), [](World& world) {
    auto window = must(Window::allocate(world, 64));
    const int peer = 1 - world.rank();
    const std::uint64_t value = 1;
    const Ticket good = must(window.put(peer, 0, &value, sizeof value));
    const auto soon = Deadline::in(std::chrono::milliseconds(20));
    const std::array made_up{Ticket{1, peer, 5'000'000},    Ticket{1, peer, 1025},       Ticket{999, peer, 1},
                             Ticket{good.number + 1, peer}, Ticket{UINT64_MAX, peer, 3}, Ticket{1, world.rank(), 0},
                             Ticket{1, world.rank(), 7}};
    for (const Ticket& ticket : made_up) {
      for (const Completion completion : {Completion::local, Completion::remote}) {
        // Whoever makes progress meanwhile: another thread may have the engine at any of these calls.
        for (int i = 0; i < 1000; ++i) {
          const auto seen = window.test(ticket, completion);
          ASSERT_FALSE(seen) << ticket.number << " in slot " << ticket.slot << ", try " << i;
          expect_error(seen.error(), Status::invalid, {"ticket"});
        }
        const auto peeked = window.peek(ticket, completion);
        ASSERT_FALSE(peeked) << ticket.number;
        expect_error(peeked.error(), Status::invalid, {"ticket"});
        expect_error(window.wait(ticket, completion, soon).error(), Status::invalid, {"ticket"});
      }
    }
    for (const int nobody : {-1, 2, INT_MAX, INT_MIN}) {
      expect_error(window.test({1, nobody, 0}).error(), Status::out_of_range, {"rank"});
      expect_error(window.wait({1, nobody, 9}, Completion::remote, soon).error(), Status::out_of_range, {"rank"});
    }
#ifndef RAILYARD_SANITIZED  // which ends the program at a value that the type does not have
    expect_error(window.test(good, static_cast<Completion>(9)).error(), Status::invalid, {"completion 9"});
#endif
    must(window.wait(good));
    must(window.close());
  });
}

TEST(Misuse, ValuesThatNoEnumerationHasAreNamedAtTheCall) {
  for (const char* shared_memory : {"off", "on"}) {
    Settings settings = loopback_settings(1);
    settings.shared_memory = shared_memory;
    run_ranks(2, settings, [](World& world) {
      auto window = must(Window::allocate(world, 64));
      const std::uint64_t value = 1;
      std::uint64_t was = 0;
      for (const int rank : {0, 1}) {
        expect_error(window.signal(rank, {0, 1, static_cast<SignalOp>(77)}).error(), Status::invalid,
                     {"signal operation 77", "add", "set"});
        expect_error(window.put_signal(rank, 0, &value, 8, {0, 1, static_cast<SignalOp>(2)}).error(), Status::invalid,
                     {"signal operation 2"});
        expect_error(window.atomic<std::uint64_t>(rank, 0, static_cast<AtomicOp>(77), 1).error(), Status::invalid,
                     {"atomic operation 77", "add", "compare_swap", "fetch"});
        expect_error(window.fetch_atomic(rank, 0, static_cast<AtomicOp>(11), &was).error(), Status::invalid,
                     {"atomic operation 11"});
        expect_error(window.put(rank, 0, &value, 8, static_cast<Order>(3)).error(), Status::invalid, {"order 3"});
      }
      expect_error(window.wait_signal(0, static_cast<Comparison>(99), 1).error(), Status::invalid,
                   {"comparison 99", "equal", "greater_equal"});
      EXPECT_EQ(window.read_signal(0), 0U);
      must(window.barrier());
      must(window.close());
    });
  }
}

TEST(Misuse, AClosedWindowSaysSo) {
  run_ranks(2, loopback_settings(1), [](World& world) {
    auto window = must(Window::allocate(world, 64));
    must(window.close());
    const std::uint64_t value = 1;
    expect_error(window.put(0, 0, &value, 8).error(), Status::invalid, {"put", "closed"});
    expect_error(window.signal(1, {0, 1}).error(), Status::invalid, {"closed"});
    expect_error(window.wait_signal(0, Comparison::equal, 1).error(), Status::invalid, {"closed"});
    expect_error(window.wait_counter(0, 1).error(), Status::invalid, {"closed"});
    expect_error(window.quiet().error(), Status::invalid, {"closed"});
    expect_error(window.barrier().error(), Status::invalid, {"closed"});
    expect_error(window.close().error(), Status::invalid, {"closed"});
    EXPECT_EQ(window.read_signal(0), 0U);
    EXPECT_TRUE(window.local().empty());
    EXPECT_EQ(window.bytes(0), 0U);
  });
}

TEST(Misuse, UnknownProviderAndNoRailAreNamed) {
  Settings settings = loopback_settings(1);
  settings.driver = "ofi";
  settings.provider = "warpdrive";
  WorldOptions options;
  options.settings = &settings;
  auto world = World::open(options);
  ASSERT_FALSE(world.ok());
  expect_error(world.error(), Status::not_found, {"warpdrive"});

  settings = loopback_settings(1);
  settings.interfaces = "nosuchif0";
  world = World::open(options);
  ASSERT_FALSE(world.ok());
  expect_error(world.error(), Status::not_found, {"nosuchif0"});

  settings = loopback_settings(1);
  settings.driver = "pigeon";
  world = World::open(options);
  ASSERT_FALSE(world.ok());
  EXPECT_NE(world.error().text().find("pigeon"), std::string::npos) << world.error().text();
}

TEST(Misuse, AWorldOfOneNeedsNoLauncher) {
  Settings settings = loopback_settings(2);
  settings.rails = 2;
  WorldOptions options;
  options.settings = &settings;
  auto world = must(World::open(options));
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.rail_count(), 2U);
  auto window = must(Window::allocate(world, 64));
  must(window.put_value<std::uint32_t>(0, 0, 5));
  must(window.barrier());
  must(window.close());
}

}  // namespace
}  // namespace railyard
