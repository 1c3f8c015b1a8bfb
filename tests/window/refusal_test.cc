/// A rank that ends its part of a window by itself: what still goes there fails with a cause, everything else goes on.
#include <gtest/gtest.h>

#include <optional>

#include "railyard/window.hpp"
#include "thread_world.hpp"

namespace railyard {
namespace {

/// Rank 1 has given up its part of `gone`; both have `stays`.
void with_half_a_window(const Settings& settings, std::size_t bytes,
                        const std::function<void(World&, Window& gone, Window& stays)>& body) {
  run_ranks(2, settings, [&](World& world) {
    std::optional<Window> gone(must(Window::allocate(world, bytes)));
    auto stays = must(Window::allocate(world, bytes));
    // Both have used both: every link stands.
    const std::uint64_t one = 1;
    must(gone->wait(must(gone->put(1 - world.rank(), 0, &one, sizeof one))));
    must(stays.barrier());
    if (world.rank() == 1) gone.reset();
    must(stays.barrier());
    if (world.rank() == 0) body(world, *gone, stays);
    must(stays.barrier());
    must(stays.close());
    gone.reset();
  });
}

void still_works(Window& window) {
  const std::uint64_t before = window.read_signal(1);
  std::vector<std::byte> bytes(window.bytes(1), std::byte{7});
  must(window.wait(must(window.put_signal(1, 0, bytes.data(), bytes.size(), {1, 1}))));
  std::uint64_t was = 0;
  must(window.wait(must(window.fetch_atomic<std::uint64_t>(1, 0, AtomicOp::add, &was, 1))));
  EXPECT_EQ(was, 0x0707070707070707U);
  EXPECT_EQ(window.read_signal(1), before) << "that was the other's";
}

void expect_refused(Window& window, Result<Ticket> ticket) {
  const auto waited = window.wait(must(std::move(ticket)));
  ASSERT_FALSE(waited.ok());
  EXPECT_EQ(waited.error().status(), Status::not_found) << waited.error().text();
  EXPECT_EQ(waited.error().where().peer, 1);
  EXPECT_NE(waited.error().text().find("no longer has this window"), std::string::npos) << waited.error().text();
}

TEST(Refusal, SmallOperationsOnAWindowThatIsGoneFailWithACause) {
  with_half_a_window(loopback_settings(2), 4096, [](World& world, Window& gone, Window& stays) {
    const std::uint64_t value = 5;
    std::uint64_t was = 0;
    expect_refused(gone, gone.put(1, 0, &value, sizeof value));
    expect_refused(gone, gone.signal(1, {0, 1}));
    expect_refused(gone, gone.put_signal(1, 0, &value, sizeof value, {0, 1}));
    expect_refused(gone, gone.atomic<std::uint64_t>(1, 0, AtomicOp::add, 1));
    expect_refused(gone, gone.fetch_atomic<std::uint64_t>(1, 0, AtomicOp::add, &was, 1));
    must(stays.quiet());
    still_works(stays);
    EXPECT_EQ(world.statistics().peers_lost, 0U);
  });
}

TEST(Refusal, QuietTellsOnceOfWhatNobodyWaitedFor) {
  with_half_a_window(loopback_settings(1), 4096, [](World&, Window& gone, Window& stays) {
    for (int i = 0; i < 1000; ++i) must(gone.signal(1, {0, 1}));
    const auto told = stays.quiet();
    ASSERT_FALSE(told.ok());
    EXPECT_EQ(told.error().status(), Status::not_found) << told.error().text();
    must(stays.quiet());
    still_works(stays);
  });
}

struct DeadKeyBed {
  const char* driver;
  std::uint32_t rails;
  /// Where a rail cannot tell what was refused, the operation is tried a few times, alone on a link: not a hundred
  /// times, and the flow outlives it.
  std::uint64_t most_links_lost;
};
class DeadKey : public ::testing::TestWithParam<DeadKeyBed> {};

TEST_P(DeadKey, APutOfAMegabyteFailsAlone) {
  const std::size_t bytes = std::size_t{1} << 20U;
  Settings settings = loopback_settings(GetParam().rails);
  std::uint64_t most_links_lost = GetParam().most_links_lost;
  if (!on_verbs()) {
    settings.driver = GetParam().driver;
  } else if (most_links_lost != 0) {
    GTEST_SKIP() << "once is enough there";
  } else {
    most_links_lost = 60;  // a refused write breaks its queue pair
  }
  with_half_a_window(settings, bytes, [&](World& world, Window& gone, Window& stays) {
    std::vector<std::byte> source(bytes, std::byte{3});
    const auto put = must(gone.put_signal_counter(1, 0, source.data(), bytes, {0, 1}, {0, 1}));
    const auto other = must(stays.put(1, 0, source.data(), bytes));
    const auto waited = gone.wait(put);
    ASSERT_FALSE(waited.ok());
    EXPECT_EQ(waited.error().status(), Status::invalid) << waited.error().text();
    EXPECT_NE(waited.error().text().find("memory key"), std::string::npos) << waited.error().text();
    EXPECT_EQ(gone.read_counter(0), 0U) << "a failed operation advances no counter";
    must(stays.wait(other));
    const auto got = gone.wait(must(gone.get(1, 0, source.data(), bytes)));
    EXPECT_FALSE(got.ok());
    must(stays.quiet());
    still_works(stays);
    EXPECT_LE(world.statistics().links_lost, most_links_lost);
    EXPECT_EQ(world.statistics().peers_lost, 0U);
  });
}

INSTANTIATE_TEST_SUITE_P(Rails, DeadKey,
                         ::testing::Values(DeadKeyBed{"tcp", 1, 0}, DeadKeyBed{"tcp", 4, 0}, DeadKeyBed{"ofi", 1, 60},
                                           DeadKeyBed{"ofi", 2, 60}, DeadKeyBed{"ofi", 4, 60}),
                         [](const auto& info) { return info.param.driver + std::to_string(info.param.rails); });

}  // namespace
}  // namespace railyard
