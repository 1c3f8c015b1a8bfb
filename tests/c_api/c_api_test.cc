/// The C API as a C program uses it, and what it does with calls that make no sense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "plain_c.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Free {
  void operator()(ry_settings* settings) const { ry_settings_free(settings); }
  void operator()(ry_window* window) const { ry_window_free(window); }
  void operator()(ry_world* world) const { ry_world_free(world); }
  void operator()(ry_context* context) const { ry_context_free(context); }
  void operator()(ry_listener* listener) const { ry_listener_free(listener); }
  void operator()(ry_channel* channel) const { ry_channel_free(channel); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

/// Rails on loopback, whatever the machine has.
Owned<ry_settings> loopback_settings(const char* rails = "2") {
  ry_settings* settings = nullptr;
  EXPECT_EQ(ry_settings_from_environment(&settings), RY_OK) << ry_error_text();
  EXPECT_EQ(ry_settings_set(settings, "RAILYARD_DRIVER", "tcp"), RY_OK) << ry_error_text();
  EXPECT_EQ(ry_settings_set(settings, "RAILYARD_INTERFACES", "lo"), RY_OK) << ry_error_text();
  EXPECT_EQ(ry_settings_set(settings, "RAILYARD_SHARED_MEMORY", "off"), RY_OK) << ry_error_text();
  EXPECT_EQ(ry_settings_set(settings, "RAILYARD_RAILS", rails), RY_OK) << ry_error_text();
  EXPECT_EQ(ry_settings_set(settings, "RAILYARD_BOOTSTRAP", "single"), RY_OK) << ry_error_text();
  return Owned<ry_settings>(settings);
}

Owned<ry_world> single_world() {
  const auto settings = loopback_settings();
  ry_world* world = nullptr;
  EXPECT_EQ(ry_world_open(settings.get(), nullptr, &world), RY_OK) << ry_error_text();
  return Owned<ry_world>(world);
}

Owned<ry_window> single_window(ry_world* world, std::size_t bytes = 1 << 20) {
  ry_window* window = nullptr;
  EXPECT_EQ(ry_window_allocate(world, bytes, nullptr, &window), RY_OK) << ry_error_text();
  return Owned<ry_window>(window);
}

TEST(CApi, EveryOperationWorksFromC) {
  const auto world = single_world();
  ASSERT_NE(world, nullptr);
  EXPECT_EQ(ry_world_rank(world.get()), 0);
  EXPECT_EQ(ry_world_size(world.get()), 1);
  EXPECT_EQ(ry_world_rail_count(world.get()), 2U);
  const auto window = single_window(world.get());
  ASSERT_NE(window, nullptr);
  EXPECT_EQ(ry_window_bytes(window.get(), 0), std::size_t{1} << 20U);
  EXPECT_EQ(ry_window_signals(window.get(), 0), ry_window_default_options().signals);
  const int line = plain_c_operations(window.get());
  EXPECT_EQ(line, 0) << "plain_c.c:" << line << ": " << ry_error_text();
  EXPECT_EQ(ry_window_close(window.get(), RY_DEFAULT), RY_OK) << ry_error_text();
}

TEST(CApi, WindowOverTheCallersOwnMemory) {
  const auto world = single_world();
  ASSERT_NE(world, nullptr);
  std::vector<unsigned char> memory(8192);
  std::array<std::uint64_t, 4> signals{};
  std::array<std::uint64_t, 2> counters{};
  ry_window_options options = ry_window_default_options();
  options.signals = signals.size();
  options.counters = counters.size();
  options.signal_memory = signals.data();
  options.counter_memory = counters.data();
  ry_window* made = nullptr;
  ASSERT_EQ(ry_window_adopt(world.get(), memory.data(), memory.size(), &options, &made), RY_OK) << ry_error_text();
  const Owned<ry_window> window(made);
  EXPECT_EQ(ry_window_local(made), memory.data());
  EXPECT_EQ(ry_window_signals(made, 0), signals.size());
  const char text[] = "adopted";
  ASSERT_EQ(ry_put_signal_counter(made, 0, 100, text, sizeof(text), {1, 6, RY_SIGNAL_ADD}, {0, 3}, nullptr), RY_OK);
  ASSERT_EQ(ry_wait_signal(made, 1, RY_EQUAL, 6, RY_DEFAULT, nullptr), RY_OK) << ry_error_text();
  ASSERT_EQ(ry_wait_counter(made, 0, 3, RY_DEFAULT, nullptr), RY_OK) << ry_error_text();
  EXPECT_STREQ(reinterpret_cast<const char*>(memory.data()) + 100, text);
  EXPECT_EQ(signals[1], 6U);
  EXPECT_EQ(counters[0], 3U);
}

TEST(CApi, StatisticsShowWhatTheRailsAreCalled) {
  const auto world = single_world();
  ASSERT_NE(world, nullptr);
  ry_rail_statistics rail;
  ASSERT_EQ(ry_world_read_rail(world.get(), 0, &rail), RY_OK);
  EXPECT_THAT(rail.name, HasSubstr("lo"));
  EXPECT_THAT(rail.provider, HasSubstr("tcp"));
  ry_world_statistics all;
  EXPECT_EQ(ry_world_read_statistics(world.get(), &all), RY_OK);
  EXPECT_EQ(all.dropped_malformed, 0U);
  EXPECT_EQ(ry_world_read_rail(world.get(), 2, &rail), RY_OUT_OF_RANGE);
  EXPECT_THAT(ry_error_text(), HasSubstr("rail"));
}

TEST(CApi, MemoryIsRememberedAndForgotten) {
  const auto world = single_world();
  ASSERT_NE(world, nullptr);
  std::vector<char> memory(1 << 16);
  EXPECT_EQ(ry_world_remember(world.get(), memory.data(), memory.size()), RY_OK) << ry_error_text();
  ry_world_forget(world.get(), memory.data(), memory.size());
  ry_world_progress(world.get());
  EXPECT_EQ(ry_world_barrier(world.get(), 5000), RY_OK) << ry_error_text();
}

/// Two ranks in one process meet here.
class TwoRanks {
 public:
  ry_bootstrap bootstrap(int rank) {
    seats_[static_cast<std::size_t>(rank)] = {this, rank};
    return {&seats_[static_cast<std::size_t>(rank)], rank, 2, &TwoRanks::allgather, &TwoRanks::barrier, "two threads"};
  }

 private:
  struct Seat {
    TwoRanks* two_ranks = nullptr;
    int rank = 0;
  };

  static ry_status allgather(void* context, const void* mine, size_t bytes, void* all, int64_t /*deadline_ms*/) {
    auto* seat = static_cast<Seat*>(context);
    const auto rank = static_cast<std::size_t>(seat->rank);
    auto& shared = seat->two_ranks->contributions_;
    shared[rank].assign(static_cast<const char*>(mine), static_cast<const char*>(mine) + bytes);
    seat->two_ranks->barrier_.arrive_and_wait();
    for (std::size_t i = 0; i < shared.size(); ++i) {
      if (shared[i].size() != bytes) return RY_INVALID;
      std::memcpy(static_cast<char*>(all) + i * bytes, shared[i].data(), bytes);
    }
    seat->two_ranks->barrier_.arrive_and_wait();
    return RY_OK;
  }

  static ry_status barrier(void* context, int64_t /*deadline_ms*/) {
    static_cast<Seat*>(context)->two_ranks->barrier_.arrive_and_wait();
    return RY_OK;
  }

  std::array<Seat, 2> seats_;
  std::array<std::vector<char>, 2> contributions_;
  std::barrier<> barrier_{2};
};

TEST(CApi, AnExistingBootstrapIsPassedIn) {
  TwoRanks two_ranks;
  std::array<int, 2> lines{-1, -1};
  std::array<std::string, 2> errors;
  const auto run = [&](int rank) {
    const auto settings = loopback_settings();
    const ry_bootstrap bootstrap = two_ranks.bootstrap(rank);
    ry_world* world = nullptr;
    ry_window* window = nullptr;
    const auto index = static_cast<std::size_t>(rank);
    if (ry_world_open(settings.get(), &bootstrap, &world) == RY_OK &&
        ry_window_allocate(world, 1 << 20, nullptr, &window) == RY_OK) {
      lines[index] = plain_c_exchange(window, rank);
      if (lines[index] == 0 && ry_window_close(window, RY_DEFAULT) != RY_OK) lines[index] = -2;
    }
    errors[index] = ry_error_text();
    ry_window_free(window);
    ry_world_free(world);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(lines[rank], 0) << "rank " << rank << ": " << errors[rank];
}

TEST(CApi, SeveralWorldsShareAContext) {
  TwoRanks one;
  TwoRanks two;
  std::array<int, 2> lines{-1, -1};
  std::array<std::string, 2> errors;
  const auto run = [&](int rank) {
    const auto settings = loopback_settings();
    const ry_bootstrap first = one.bootstrap(rank);
    const ry_bootstrap second = two.bootstrap(1 - rank);
    ry_context* context = nullptr;
    ry_world* world = nullptr;
    ry_world* other = nullptr;
    ry_window* window = nullptr;
    const auto index = static_cast<std::size_t>(rank);
    if (ry_context_open(settings.get(), &context) == RY_OK && ry_world_open_on(context, &first, &world) == RY_OK &&
        ry_world_open_on(context, &second, &other) == RY_OK) {
      EXPECT_EQ(ry_world_rank(other), 1 - rank);
      EXPECT_EQ(ry_world_translate(world, 0, other), 1);
      ry_context_free(context);
      context = nullptr;
      ry_world_free(world);
      world = nullptr;
      if (ry_window_allocate(other, 1 << 20, nullptr, &window) == RY_OK) {
        lines[index] = plain_c_exchange(window, ry_world_rank(other));
        if (lines[index] == 0 && ry_window_close(window, RY_DEFAULT) != RY_OK) lines[index] = -2;
      }
    }
    errors[index] = ry_error_text();
    ry_window_free(window);
    ry_world_free(other);
    ry_world_free(world);
    ry_context_free(context);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(lines[rank], 0) << "rank " << rank << ": " << errors[rank];
  ry_world* none = nullptr;
  EXPECT_EQ(ry_world_open_on(nullptr, nullptr, &none), RY_INVALID);
}

TEST(CApi, APartOfAWorldOutlivesIt) {
  TwoRanks two_ranks;
  std::array<int, 2> lines{-1, -1};
  std::array<std::string, 2> errors;
  const auto run = [&](int rank) {
    const auto settings = loopback_settings();
    const ry_bootstrap bootstrap = two_ranks.bootstrap(rank);
    ry_world* world = nullptr;
    ry_world* none = nullptr;
    ry_world* swapped = nullptr;
    ry_window* window = nullptr;
    const auto index = static_cast<std::size_t>(rank);
    if (ry_world_open(settings.get(), &bootstrap, &world) == RY_OK && ry_world_split(world, -1, 0, &none) == RY_OK &&
        none == nullptr && ry_world_split(world, 0, -rank, &swapped) == RY_OK) {
      EXPECT_EQ(ry_world_rank(swapped), 1 - rank);
      EXPECT_EQ(ry_world_translate(swapped, 0, nullptr), 1);
      EXPECT_EQ(ry_world_translate(world, 0, swapped), 1);
      EXPECT_EQ(ry_world_translate(world, 2, swapped), -1);
      EXPECT_EQ(ry_world_translate(nullptr, 0, nullptr), -1);
      ry_world_free(world);
      world = nullptr;
      if (ry_window_allocate(swapped, 1 << 20, nullptr, &window) == RY_OK) {
        lines[index] = plain_c_exchange(window, ry_world_rank(swapped));
        if (lines[index] == 0 && ry_window_close(window, RY_DEFAULT) != RY_OK) lines[index] = -2;
      }
    }
    errors[index] = ry_error_text();
    ry_window_free(window);
    ry_world_free(swapped);
    ry_world_free(world);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(lines[rank], 0) << "rank " << rank << ": " << errors[rank];
  ry_world* part = nullptr;
  EXPECT_EQ(ry_world_split(nullptr, 0, 0, &part), RY_INVALID);
}

TEST(CApi, ABootstrapThatFailsIsNamed) {
  const auto settings = loopback_settings();
  ry_bootstrap broken{};
  broken.size = 2;
  broken.allgather = [](void*, const void*, size_t, void*, int64_t) -> ry_status { return RY_PEER_LOST; };
  broken.barrier = [](void*, int64_t) -> ry_status { return RY_PEER_LOST; };
  broken.description = "the broken one";
  ry_world* world = nullptr;
  EXPECT_EQ(ry_world_open(settings.get(), &broken, &world), RY_PEER_LOST);
  EXPECT_EQ(world, nullptr);
  EXPECT_THAT(ry_error_text(), HasSubstr("the broken one"));
}

TEST(CApi, SenselessCallsAreErrorsNotCrashes) {
  EXPECT_EQ(ry_settings_from_environment(nullptr), RY_INVALID);
  EXPECT_EQ(ry_world_open(nullptr, nullptr, nullptr), RY_INVALID);
  EXPECT_EQ(ry_put(nullptr, 0, 0, "x", 1, RY_ORDERED, nullptr), RY_INVALID);
  EXPECT_THAT(ry_error_text(), HasSubstr("ry_put"));
  EXPECT_EQ(ry_quiet(nullptr, 0, RY_DEFAULT), RY_INVALID);
  int done = 0;
  EXPECT_EQ(ry_peek(nullptr, {}, RY_REMOTE, &done), RY_INVALID);
  EXPECT_EQ(ry_window_local(nullptr), nullptr);
  EXPECT_EQ(ry_world_rank(nullptr), -1);
  ry_world_free(nullptr);
  ry_window_free(nullptr);
  ry_settings_free(nullptr);

  const auto settings = loopback_settings();
  ry_bootstrap half{};
  half.size = 1;
  ry_world* none = nullptr;
  EXPECT_EQ(ry_world_open(settings.get(), &half, &none), RY_INVALID);
  EXPECT_THAT(ry_error_text(), HasSubstr("allgather"));
}

TEST(CApi, BadArgumentsNameTheirCauseAndLeaveTheWindowUsable) {
  const auto world = single_world();
  ASSERT_NE(world, nullptr);
  const auto window = single_window(world.get(), 4096);
  ASSERT_NE(window, nullptr);
  const char byte = 1;
  EXPECT_EQ(ry_put(window.get(), 1, 0, &byte, 1, RY_ORDERED, nullptr), RY_OUT_OF_RANGE);
  EXPECT_EQ(ry_put(window.get(), 0, 4096, &byte, 1, RY_ORDERED, nullptr), RY_OUT_OF_RANGE);
  EXPECT_THAT(ry_error_text(), HasSubstr("4096"));
  EXPECT_EQ(ry_put(window.get(), 0, 0, &byte, 1, 9, nullptr), RY_INVALID);
  EXPECT_EQ(ry_atomic(window.get(), 0, 0, 99, 8, 0, 0, nullptr, nullptr), RY_INVALID);
  EXPECT_THAT(ry_error_text(), AllOf(HasSubstr("99"), HasSubstr("RY_ADD"), HasSubstr("RY_MAX")));
  EXPECT_EQ(ry_atomic(window.get(), 0, 0, 256 + RY_ADD, 8, 0, 0, nullptr, nullptr), RY_INVALID);
  EXPECT_EQ(ry_signal(window.get(), 0, {0, 1, 77}, nullptr), RY_INVALID);
  EXPECT_THAT(ry_error_text(), AllOf(HasSubstr("77"), HasSubstr("RY_SIGNAL_SET")));
  EXPECT_EQ(ry_wait_signal(window.get(), 0, -1, 1, 20, nullptr), RY_INVALID);
  EXPECT_THAT(ry_error_text(), AllOf(HasSubstr("-1"), HasSubstr("RY_GREATER_EQUAL")));
  EXPECT_NE(ry_wait(window.get(), {1, 0, 5000000}, RY_REMOTE, 20), RY_OK);
  EXPECT_NE(ry_wait(window.get(), {1, 90, 0}, RY_REMOTE, 20), RY_OK);
  EXPECT_NE(ry_atomic(window.get(), 0, 0, RY_ADD, 3, 0, 0, nullptr, nullptr), RY_OK);
  EXPECT_EQ(ry_signal(window.get(), 0, {1000, 1, RY_SIGNAL_ADD}, nullptr), RY_OUT_OF_RANGE);
  EXPECT_EQ(ry_wait_signal(window.get(), 0, RY_EQUAL, 1, -7, nullptr), RY_INVALID);
  EXPECT_EQ(ry_wait_signal(window.get(), 0, RY_EQUAL, 1, 20, nullptr), RY_TIMEOUT);
  int done = 0;
  EXPECT_EQ(ry_test(window.get(), {}, 5, &done), RY_INVALID);
  EXPECT_EQ(ry_put(window.get(), 0, 0, &byte, 1, RY_ORDERED, nullptr), RY_OK) << ry_error_text();
  EXPECT_EQ(ry_quiet(window.get(), RY_ALL_RANKS, RY_DEFAULT), RY_OK);
}

TEST(CApi, SeveralSignalsAreWaitedForAtOnce) {
  const auto world = single_world();
  ASSERT_NE(world, nullptr);
  const auto window = single_window(world.get(), 64);
  ASSERT_NE(window, nullptr);
  const std::array<ry_signal_condition, 2> both{{{0, RY_EQUAL, 7, RY_ANY_RANK}, {1, RY_GREATER, 0, 0}}};
  size_t which = 9;
  uint64_t held = 0;
  EXPECT_EQ(ry_wait_any_signal(window.get(), both.data(), both.size(), 5, &which, &held), RY_TIMEOUT);
  EXPECT_EQ(ry_signal(window.get(), 0, {1, 3, RY_SIGNAL_ADD}, nullptr), RY_OK);
  EXPECT_EQ(ry_wait_any_signal(window.get(), both.data(), both.size(), 5, &which, &held), RY_OK) << ry_error_text();
  EXPECT_EQ(which, 1U);
  EXPECT_EQ(held, 3U);
  EXPECT_EQ(ry_wait_all_signals(window.get(), both.data(), both.size(), 5), RY_TIMEOUT);
  EXPECT_EQ(ry_signal(window.get(), 0, {0, 7, RY_SIGNAL_SET}, nullptr), RY_OK);
  EXPECT_EQ(ry_wait_all_signals(window.get(), both.data(), both.size(), RY_DEFAULT), RY_OK) << ry_error_text();
  EXPECT_EQ(ry_wait_any_signal(window.get(), nullptr, 1, 5, nullptr, nullptr), RY_INVALID);
  EXPECT_EQ(ry_wait_any_signal(window.get(), both.data(), 0, 5, nullptr, nullptr), RY_INVALID);
  const ry_signal_condition senseless{0, 12, 1, RY_ANY_RANK};
  EXPECT_EQ(ry_wait_all_signals(window.get(), &senseless, 1, 5), RY_INVALID);
  EXPECT_THAT(ry_error_text(), HasSubstr("12"));
}

TEST(CApi, AWorldCanBeWatched) {
  const auto world = single_world();
  ASSERT_NE(world, nullptr);
  EXPECT_EQ(ry_world_arm(world.get()), 0);
  int descriptor = -1;
  EXPECT_EQ(ry_world_descriptor(world.get(), &descriptor), RY_OK) << ry_error_text();
  EXPECT_GE(descriptor, 0);
  do ry_world_progress(world.get());
  while (ry_world_arm(world.get()) == 0);
  ry_world_progress(world.get());
  EXPECT_EQ(ry_world_descriptor(nullptr, &descriptor), RY_INVALID);
  EXPECT_EQ(ry_world_arm(nullptr), 0);
}

TEST(CApi, AClosedWindowCanOnlyBeFreed) {
  const auto world = single_world();
  ASSERT_NE(world, nullptr);
  const auto window = single_window(world.get(), 4096);
  ASSERT_NE(window, nullptr);
  EXPECT_EQ(ry_window_close(window.get(), RY_DEFAULT), RY_OK) << ry_error_text();
  const char byte = 1;
  EXPECT_EQ(ry_put(window.get(), 0, 0, &byte, 1, RY_ORDERED, nullptr), RY_INVALID);
  EXPECT_THAT(ry_error_text(), HasSubstr("closed"));
  EXPECT_EQ(ry_quiet(window.get(), RY_ALL_RANKS, RY_DEFAULT), RY_INVALID);
  EXPECT_EQ(ry_window_close(window.get(), RY_DEFAULT), RY_INVALID);
  EXPECT_EQ(ry_window_local(window.get()), nullptr);
  EXPECT_EQ(ry_read_signal(window.get(), 0), 0U);
}

TEST(CApi, WindowsAreClosedTogether) {
  const auto world = single_world();
  ASSERT_NE(world, nullptr);
  const auto first = single_window(world.get(), 4096);
  const auto second = single_window(world.get(), 4096);
  const std::array both{first.get(), second.get()};
  const std::array twice{first.get(), first.get()};
  const std::array one_is_none{first.get(), static_cast<ry_window*>(nullptr)};
  EXPECT_EQ(ry_window_close_all(twice.data(), twice.size(), RY_DEFAULT), RY_INVALID);
  EXPECT_THAT(ry_error_text(), HasSubstr("given before"));
  EXPECT_EQ(ry_window_close_all(one_is_none.data(), one_is_none.size(), RY_DEFAULT), RY_INVALID);
  EXPECT_EQ(ry_window_close_all(nullptr, 1, RY_DEFAULT), RY_INVALID);
  EXPECT_EQ(ry_window_close_all(both.data(), both.size(), -7), RY_INVALID);
  EXPECT_EQ(ry_window_close_all(nullptr, 0, RY_DEFAULT), RY_OK);
  EXPECT_NE(ry_window_is_open(first.get()), 0);
  EXPECT_EQ(ry_window_close_all(both.data(), both.size(), RY_DEFAULT), RY_OK) << ry_error_text();
  EXPECT_EQ(ry_window_is_open(first.get()), 0);
  EXPECT_EQ(ry_window_is_open(second.get()), 0);
  EXPECT_EQ(ry_window_is_open(nullptr), 0);
  EXPECT_EQ(ry_window_close_all(both.data(), both.size(), RY_DEFAULT), RY_INVALID);
  EXPECT_THAT(ry_error_text(), HasSubstr("closed"));
}

Owned<ry_context> loopback_context() {
  const auto settings = loopback_settings();
  ry_context* context = nullptr;
  EXPECT_EQ(ry_context_open(settings.get(), &context), RY_OK) << ry_error_text();
  return Owned<ry_context>(context);
}

TEST(CApi, MessagesTravelOverChannels) {
  const auto context = loopback_context();
  ASSERT_NE(context, nullptr);
  const int line = plain_c_messages(context.get());
  EXPECT_EQ(line, 0) << "plain_c.c:" << line << ": " << ry_error_text();
}

TEST(CApi, SenselessCallsOfChannelsAreErrorsNotCrashes) {
  const auto context = loopback_context();
  ASSERT_NE(context, nullptr);
  EXPECT_EQ(ry_context_open(nullptr, nullptr), RY_INVALID);
  EXPECT_EQ(ry_context_listen(context.get(), nullptr), RY_INVALID);
  ry_channel* channel = nullptr;
  ry_handle made_up{};
  EXPECT_NE(ry_context_connect(context.get(), &made_up, 0, &channel), RY_OK);
  EXPECT_THAT(ry_error_text(), HasSubstr("handle"));
  EXPECT_EQ(channel, nullptr);
  ry_context_abandon(context.get(), &made_up);
  EXPECT_EQ(ry_listener_accept(nullptr, &channel), RY_INVALID);
  ry_request request{};
  int done = 0;
  EXPECT_EQ(ry_channel_send(nullptr, "x", 1, 0, nullptr, &request), RY_INVALID);
  EXPECT_EQ(ry_channel_test(nullptr, request, &done, nullptr, 0), RY_INVALID);
  EXPECT_EQ(ry_channel_wait(nullptr, request, nullptr, 0, -7), RY_INVALID);
  ry_channel_close(nullptr);
  ry_channel_free(nullptr);
  ry_memory_free(nullptr);
  ry_listener_free(nullptr);
  ry_context_free(nullptr);

  ry_listener* opened = nullptr;
  ASSERT_EQ(ry_context_listen(context.get(), &opened), RY_OK) << ry_error_text();
  const Owned<ry_listener> listener(opened);
  EXPECT_EQ(ry_listener_accept(opened, &channel), RY_BUSY);  // nobody has connected
  ry_handle handle;
  ASSERT_EQ(ry_listener_handle(opened, &handle), RY_OK);
  ry_status connected = RY_BUSY;
  while (connected == RY_BUSY) connected = ry_context_connect(context.get(), &handle, 0, &channel);
  ASSERT_EQ(connected, RY_OK) << ry_error_text();
  const Owned<ry_channel> owned(channel);
  for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{1} << 32U, UINT64_MAX})
    EXPECT_EQ(ry_channel_test(channel, {number}, &done, nullptr, 0), RY_INVALID) << number;
  EXPECT_THAT(ry_error_text(), HasSubstr("request"));
  ry_receive_slot slot{nullptr, 8, 0, nullptr};
  EXPECT_EQ(ry_channel_receive(channel, &slot, 1, &request), RY_INVALID);
  EXPECT_EQ(ry_channel_receive(channel, &slot, RY_MOST_SLOTS + 1, &request), RY_INVALID);
  EXPECT_EQ(ry_channel_receive(channel, &slot, 0, &request), RY_INVALID);
  EXPECT_EQ(ry_channel_send(channel, nullptr, 8, 0, nullptr, &request), RY_INVALID);
  EXPECT_EQ(ry_channel_register(channel, nullptr, 8, nullptr), RY_INVALID);
  ry_memory* memory = nullptr;
  EXPECT_EQ(ry_channel_register_for(nullptr, &slot, sizeof slot, RY_FOR_SENDS, &memory), RY_INVALID);
  EXPECT_EQ(ry_channel_register_for(channel, nullptr, 8, RY_FOR_SENDS, &memory), RY_INVALID);
  EXPECT_EQ(ry_channel_register_for(channel, &slot, sizeof slot, -1, &memory), RY_INVALID);
  EXPECT_EQ(memory, nullptr);
}

TEST(CApi, SettingsAreCheckedByName) {
  const auto settings = loopback_settings();
  EXPECT_EQ(ry_settings_set(settings.get(), "RAILYARD_RAILS", "many"), RY_INVALID);
  EXPECT_THAT(ry_error_text(), HasSubstr("RAILYARD_RAILS"));
  EXPECT_NE(ry_settings_set(settings.get(), "RAILYARD_RIALS", "2"), RY_OK);
  EXPECT_THAT(ry_error_text(), HasSubstr("RAILYARD_RAILS"));
  ASSERT_EQ(ry_settings_set(settings.get(), "RAILYARD_PROVIDER", "nosuch"), RY_OK);
  ry_world* world = nullptr;
  EXPECT_EQ(ry_world_open(settings.get(), nullptr, &world), RY_NOT_FOUND);
  EXPECT_THAT(ry_error_text(), HasSubstr("nosuch"));
}

TEST(CApi, ErrorsBelongToTheirThread) {
  EXPECT_EQ(ry_world_barrier(nullptr, 0), RY_INVALID);
  const std::string mine = ry_error_text();
  std::string first_there;
  std::thread other([&] {
    first_there = ry_error_text();
    ry_put(nullptr, 0, 0, nullptr, 0, RY_ORDERED, nullptr);
  });
  other.join();
  EXPECT_EQ(first_there, "");
  EXPECT_EQ(ry_error_text(), mine);
}

TEST(CApi, StatusesHaveWords) {
  EXPECT_STREQ(ry_status_text(RY_OK), "ok");
  for (int status = RY_OK; status <= RY_NO_MEMORY; ++status) {
    EXPECT_STRNE(ry_status_text(status), "unknown status");
  }
  EXPECT_STREQ(ry_status_text(200), "unknown status");
  EXPECT_STREQ(ry_version(), RAILYARD_VERSION);
}

TEST(CApi, TheHeaderIsC99AndOldCxx) {
  if (std::system("cc --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no compiler here";
  const std::string header = std::string(RAILYARD_SOURCE_DIR) + "/include/railyard/railyard.h";
  const std::string flags = " -Wall -Wextra -Wpedantic -Werror -fsyntax-only ";
  EXPECT_EQ(std::system(("cc -std=c99 -x c" + flags + header).c_str()), 0);
  EXPECT_EQ(std::system(("c++ -std=c++11 -x c++" + flags + header).c_str()), 0);
}

}  // namespace
