/// What callers do while a thread sleeps on the rails, and what the first pass after a sleep does first.
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/fd.hpp"
#include "engine_fixture.hpp"

namespace railyard::transport {
namespace {

class AsleepTest : public EngineTest {
 protected:
  AsleepTest() {
    open(1);
    rails_[0]->wake_descriptor = arrival_.get();
  }
  ~AsleepTest() override { wake(); }
  /// `timer`: its own, where it waits for nothing itself.
  void fall_asleep(int timer = -1) {
    seen_asleep_ = false;
    over_ = false;
    sleeper_ = std::thread([this, timer] {
      // What happened before may end the first sleep at once.
      while (!seen_asleep_.load())
        engine_->waiting().sleep(kLong, engine_->waiting().passes(), false, {.timer = timer});
      over_ = true;
    });
    while (!engine_->waiting().attended()) std::this_thread::yield();
    seen_asleep_ = true;
  }
  void wake() {
    if (!sleeper_.joinable()) return;
    while (!over_.load()) {
      engine_->waiting().nudge();
      std::this_thread::yield();
    }
    sleeper_.join();
  }

  static constexpr std::int64_t kLong = 60'000'000'000;

  Fd arrival_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  Fd timer_{::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)};
  std::atomic<bool> seen_asleep_{false};  ///< orders nothing
  std::atomic<bool> over_{false};         ///< orders nothing: the join does
  std::thread sleeper_;
};

TEST_F(AsleepTest, AShortWaitForAWordLeavesTheRailsToWhoSleepsOnThem) {
  fall_asleep();
  const std::uint64_t passes = engine_->waiting().passes();
  Pace pace;
  int looks = 0;
  EXPECT_TRUE(engine_->wait_for_word([&] { return ++looks == 10'000; }, kLong, pace, nullptr, [] {}));
  EXPECT_EQ(engine_->waiting().passes(), passes);
  EXPECT_TRUE(engine_->waiting().attended());
}

TEST_F(AsleepTest, AWaitWithSomethingUnderWayTakesTheRailsOverAtOnce) {
  fall_asleep(timer_.get());
  {
    const ProgressGuard hold(engine_->progress_lock());
    put_small();
  }
  const std::uint64_t passes = engine_->waiting().passes();
  Pace pace;
  std::uint32_t looks = 0;
  const auto passed = [&] { return ++looks != 0 && engine_->waiting().passes() != passes; };
  EXPECT_TRUE(engine_->wait_for_word(passed, kLong, pace, nullptr, [] {}));
  EXPECT_LE(looks, Pace::kLeast + 1);
}

TEST_F(AsleepTest, AWaitForAWordThatTakesLongerTakesTheRailsOver) {
  fall_asleep();
  const std::uint64_t passes = engine_->waiting().passes();
  Pace pace;
  const auto passed = [&] {
    clock_.time += 1000;
    return engine_->waiting().passes() != passes;
  };
  EXPECT_TRUE(engine_->wait_for_word(passed, kLong, pace, nullptr, [] {}));
  EXPECT_FALSE(engine_->waiting().attended());
}

TEST_F(AsleepTest, TheFirstPassAfterASleepTouchesTheWayOfTheLastMessageFirst) {
  put_small();
  engine_->progress();
  EXPECT_EQ(rails_[0]->warmed, 0);
  fall_asleep();
  wake();
  engine_->progress();
  EXPECT_EQ(rails_[0]->warmed, 1);
  engine_->progress();
  EXPECT_EQ(rails_[0]->warmed, 1);
}

TEST_F(AsleepTest, ARouteThatIsGoneIsNotTouched) {
  put_small();
  engine_->progress();
  engine_->close_flow(*flow_);
  for (int turn = 0; turn < 100 && engine_->peers().flows().all().size() != 0; ++turn) engine_->progress();
  ASSERT_EQ(engine_->peers().flows().all().size(), 0U);
  ASSERT_TRUE(engine_->peers().registry().routes().empty());
  fall_asleep();
  wake();
  engine_->progress();
  EXPECT_EQ(rails_[0]->warmed, 0);
}

}  // namespace
}  // namespace railyard::transport
