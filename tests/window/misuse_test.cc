/// Bad input: each a clear error that names the cause; the process and its other operations go on.
#include <gtest/gtest.h>

#include <array>

#include "railyard/window.hpp"
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
