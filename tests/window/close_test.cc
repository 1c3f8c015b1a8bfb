/// Windows that are closed together: under one deadline, and what happens to each where ranks do not come.
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "process_world.hpp"
#include "railyard/window.hpp"
#include "stopped.hpp"

namespace railyard {
namespace {

using std::chrono::milliseconds;

struct CloseBed {
  const char* name;
  Settings (*settings)(int);
  bool under_way;  ///< something is, when the peer stops
};
class CloseTest : public ::testing::TestWithParam<CloseBed> {
 protected:
  std::function<Settings(int)> settings() const { return GetParam().settings; }
};
Settings close_over_rails(int /*rank*/) { return loopback_settings(1); }
Settings close_mapped(int /*rank*/) { return direct_settings(); }
INSTANTIATE_TEST_SUITE_P(Rails, CloseTest,
                         ::testing::Values(CloseBed{"rails", close_over_rails, false},
                                           CloseBed{"rails_under_way", close_over_rails, true},
                                           CloseBed{"mapped", close_mapped, false}),
                         [](const auto& info) { return std::string(info.param.name); });

template <typename Call>
double seconds_of(Call&& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<Window*> pointers_to(std::vector<Window>& windows) {
  std::vector<Window*> all;
  for (Window& each : windows) all.push_back(&each);
  return all;
}

constexpr std::size_t kWindows = 8;

std::vector<Window> make_windows(World& world) {
  std::vector<Window> windows;
  for (std::size_t i = 0; i < kWindows; ++i) windows.push_back(must(Window::allocate(world, 1 << 20)));
  return windows;
}

/// All ranks prepare, then the last one is stopped and the others do what `prepare` gave them.
void beside_a_stopped_rank(int size, const std::function<Settings(int)>& settings,
                           const std::function<std::function<void()>(World&)>& prepare) {
  run_processes(size, settings,
                [&](World& world, ProcessRendezvous& rendezvous) {
                  auto& stopped = rendezvous.notes[0];
                  auto& done = rendezvous.notes[1];
                  const auto body = prepare(world);
                  if (world.rank() == size - 1) {
                    stopped = static_cast<std::uint64_t>(::getpid());
                    for (;;) std::this_thread::sleep_for(milliseconds(100));
                  }
                  while (stopped == 0) std::this_thread::yield();
                  const auto other = static_cast<pid_t>(stopped.load());
                  ASSERT_TRUE(stop_process(other));
                  body();
                  if (done.fetch_add(1) + 2 == static_cast<std::uint64_t>(size)) ::kill(other, SIGKILL);
                },
                {size - 1});
}

TEST_P(CloseTest, SeveralWindowsOfAStoppedRankTakeTheTimeOfOne) {
  const bool under_way = GetParam().under_way;
  beside_a_stopped_rank(2, settings(), [under_way](World& world) -> std::function<void()> {
    auto windows = std::make_shared<std::vector<Window>>(make_windows(world));
    for (Window& each : *windows) must(each.put_value(1 - world.rank(), 0, 1));
    must(windows->front().barrier());
    return [windows, under_way] {
      static std::array<std::byte, 1 << 16> source{};
      for (Window& each : *windows)
        if (under_way) must(each.put(1, 0, source.data(), source.size()));
      const auto limit = Deadline::in(milliseconds(1000));
      Status one = Status::ok;
      Status all = Status::ok;
      const double time_of_one = seconds_of([&] { one = windows->front().close(limit).status(); });
      const double time_of_all = seconds_of([&] { all = Window::close_all(pointers_to(*windows), limit).status(); });
      EXPECT_EQ(one, Status::timeout);
      EXPECT_EQ(all, Status::timeout);
      EXPECT_LT(time_of_all, 3 * time_of_one) << kWindows << " windows";
      for (Window& each : *windows) EXPECT_TRUE(each.is_open());
      // Without the other ranks: nobody is waited for.
      const double time_of_ends = seconds_of([&] { windows->clear(); });
      EXPECT_LT(time_of_ends, time_of_one) << kWindows << " windows";
    };
  });
}

TEST_P(CloseTest, AWorldWhoseRanksDoNotComeLeavesTheOthersTheirTime) {
  beside_a_stopped_rank(3, settings(), [](World& world) -> std::function<void()> {
    struct Held {
      std::vector<Window> both;
      std::optional<World> part;
      std::optional<Window> own;
    };
    auto held = std::make_shared<Held>();
    held->both = make_windows(world);
    held->part = must(world.split(world.rank() == 2 ? 1 : 0));
    held->own = must(Window::allocate(*held->part, 64));
    must(held->both.front().barrier());
    return [held] {
      auto all = pointers_to(held->both);
      all.push_back(&*held->own);
      EXPECT_EQ(Window::close_all(all, Deadline::in(milliseconds(4000))).status(), Status::timeout);
      for (Window& each : held->both) EXPECT_TRUE(each.is_open());
      EXPECT_FALSE(held->own->is_open());
      held->own.reset();
      held->part.reset();
      held->both.clear();
    };
  });
}

TEST(Close, WindowsOfAWorldAndOfItsPartsAreClosedTogether) {
  run_processes(3, [](World& world, ProcessRendezvous&) {
    auto windows = make_windows(world);
    auto part = must(world.split(world.rank() == 2 ? 1 : 0));
    auto own = must(Window::allocate(*part, 64));
    const int next = (world.rank() + 1) % world.size();
    for (Window& each : windows) must(each.put_signal(next, 0, &next, sizeof next, {0, 1}));
    auto all = pointers_to(windows);
    all.push_back(&own);
    must(Window::close_all(all));
    for (Window* each : all) EXPECT_FALSE(each->is_open());
    EXPECT_EQ(Window::close_all(all).status(), Status::invalid);
    must(Window::close_all({}));
  });
}

TEST(Close, SenselessListsCloseNothing) {
  const Settings settings = loopback_settings(1);
  WorldOptions options;
  options.settings = &settings;
  auto world = must(World::open(options));
  auto first = must(Window::allocate(world, 64));
  auto second = must(Window::allocate(world, 64));
  const auto refused = [](std::vector<Window*> windows) {
    const auto closed = Window::close_all(windows);
    EXPECT_EQ(closed.status(), Status::invalid);
    return closed ? std::string() : closed.error().text();
  };
  EXPECT_NE(refused({&first, nullptr}).find("number 1 of 2 is no window"), std::string::npos);
  EXPECT_NE(refused({&first, &second, &first}).find("number 2 of 3 was given before"), std::string::npos);
  Window moved = std::move(second);
  EXPECT_NE(refused({&first, &second}).find("no window"), std::string::npos);
  EXPECT_FALSE(second.is_open());
  EXPECT_TRUE(first.is_open());
  must(moved.close());
  EXPECT_NE(refused({&first, &moved}).find("closed"), std::string::npos);
  EXPECT_TRUE(first.is_open());
  must(first.close());
  EXPECT_FALSE(first.is_open());
}

}  // namespace
}  // namespace railyard
