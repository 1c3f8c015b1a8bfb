/// Windows whose atomics are the NICs' own, on the double of verbs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "doubles/verbs/verbs_double.hpp"
#include "window/thread_world.hpp"

namespace railyard {
namespace {

using ::testing::HasSubstr;

Settings verbs_rails(std::uint32_t rails) {
  Settings settings;
  settings.driver = "verbs";
  settings.interfaces = "fake0,fake1";
  settings.rails = rails;
  settings.shared_memory = "off";
  return settings;
}

WindowOptions native() {
  WindowOptions options;
  options.native_atomics = true;
  return options;
}

TEST(NativeAtomics, AddUpAndFetchExactly) {
  verbs_double::Network network({.devices = 2});
  run_ranks(3, verbs_rails(2), [](World& world) {
    auto window = Window::allocate(world, 4096, native());
    ASSERT_TRUE(window.ok()) << window.error().text();
    std::vector<std::uint64_t> before(100);
    std::vector<Ticket> tickets;
    for (std::uint64_t& value : before) {
      auto ticket = window->fetch_atomic<std::uint64_t>(0, 8, AtomicOp::add, &value, 1);
      ASSERT_TRUE(ticket.ok()) << ticket.error().text();
      tickets.push_back(*ticket);
      auto plain = window->atomic<std::uint64_t>(0, 16, AtomicOp::increment, 0);
      ASSERT_TRUE(plain.ok()) << plain.error().text();
    }
    for (const Ticket& ticket : tickets) ASSERT_TRUE(window->wait(ticket).ok());
    ASSERT_TRUE(window->quiet().ok());
    for (std::size_t i = 1; i < before.size(); ++i) EXPECT_LT(before[i - 1], before[i]);
    ASSERT_TRUE(window->barrier().ok());
    std::uint64_t sum = 0;
    auto seen = window->fetch_atomic<std::uint64_t>(0, 8, AtomicOp::fetch, &sum);
    ASSERT_TRUE(seen.ok() && window->wait(*seen).ok());
    EXPECT_EQ(sum, 300u);
    seen = window->fetch_atomic<std::uint64_t>(0, 16, AtomicOp::fetch, &sum);
    ASSERT_TRUE(seen.ok() && window->wait(*seen).ok());
    EXPECT_EQ(sum, 300u);
    // One of the three wins.
    std::uint64_t was = 1;
    seen = window->fetch_atomic<std::uint64_t>(1, 24, AtomicOp::compare_swap, &was,
                                               static_cast<std::uint64_t>(world.rank()) + 1, 0);
    ASSERT_TRUE(seen.ok() && window->wait(*seen).ok());
    ASSERT_TRUE(window->barrier().ok());
    std::uint64_t winner = 0;
    seen = window->fetch_atomic<std::uint64_t>(1, 24, AtomicOp::fetch, &winner);
    ASSERT_TRUE(seen.ok() && window->wait(*seen).ok());
    EXPECT_EQ(was == 0, winner == static_cast<std::uint64_t>(world.rank()) + 1);
    ASSERT_TRUE(window->barrier().ok());
  });
  EXPECT_EQ(network.violations(), std::vector<std::string>());
  EXPECT_EQ(network.alive(), 0u);
}

TEST(NativeAtomics, SayWhatTheyAreNot) {
  verbs_double::Network network({.devices = 1});
  run_ranks(1, verbs_rails(1), [](World& world) {
    auto window = Window::allocate(world, 4096, native());
    ASSERT_TRUE(window.ok()) << window.error().text();
    const auto narrow = window->atomic<std::uint32_t>(0, 8, AtomicOp::add, 1);
    EXPECT_EQ(narrow.status(), Status::unsupported);
    EXPECT_THAT(narrow.error().text(), HasSubstr("8 bytes"));
    EXPECT_EQ(window->atomic<std::uint64_t>(0, 8, AtomicOp::bit_or, 1).status(), Status::unsupported);
  });
}

TEST(NativeAtomics, NeedARailThatHasThem) {
  run_ranks(1, loopback_settings(1), [](World& world) {
    const auto window = Window::allocate(world, 4096, native());
    EXPECT_EQ(window.status(), Status::unsupported);
    EXPECT_THAT(window.error().text(), HasSubstr("RAILYARD_DRIVER=verbs"));
  });
}

TEST(NativeAtomics, OfRanksThatDisagreeAreRefused) {
  verbs_double::Network network({.devices = 1});
  run_ranks(2, verbs_rails(1), [](World& world) {
    WindowOptions options;
    options.native_atomics = world.rank() == 0;
    const auto window = Window::allocate(world, 4096, options);
    EXPECT_EQ(window.status(), Status::invalid);
    EXPECT_THAT(window.error().text(), HasSubstr("native_atomics"));
  });
}

TEST(NativeAtomics, OnARailThatIsLostFailAndAreNotRepeated) {
  verbs_double::Network network({.devices = 2});
  // The first device's completions do not come: what it sends takes effect all the same.
  run_ranks(2, verbs_rails(2), [&](World& world) {
    auto window = Window::allocate(world, 4096, native());
    ASSERT_TRUE(window.ok()) << window.error().text();
    if (world.rank() == 1) {
      auto first = window->atomic<std::uint64_t>(0, 8, AtomicOp::add, 1);
      ASSERT_TRUE(first.ok() && window->wait(*first).ok());
      network.hold_completions(0, true);
      network.hold_completions(1, true);
      auto held = window->atomic<std::uint64_t>(0, 8, AtomicOp::add, 1);
      ASSERT_TRUE(held.ok()) << held.error().text();
      network.cut(0);
      network.hold_completions(0, false);
      network.hold_completions(1, false);
      const auto answer = window->wait(*held);
      EXPECT_EQ(answer.status(), Status::rail_failed) << answer.error().text();
      network.mend(0);
      EXPECT_TRUE(window->signal(0, {.index = 0}).ok()) << "the flow suffered";
    } else {
      EXPECT_TRUE(window->wait_signal(0, Comparison::greater_equal, 1).ok());
      const auto* word = reinterpret_cast<const std::uint64_t*>(window->local().data() + 8);
      EXPECT_LE(std::atomic_ref(*const_cast<std::uint64_t*>(word)).load(), 2u);
    }
    ASSERT_TRUE(window->barrier().ok());
  });
}

}  // namespace
}  // namespace railyard
