/// Who moves the engine on when its callers stop.
#include "transport/progress_thread.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "engine_fixture.hpp"

namespace railyard::transport {
namespace {

/// Goes on with every look of another thread, so that a busy machine changes nothing.
class WatchersClock final : public Clock {
 public:
  std::int64_t now() const override {
    return 100 * static_cast<std::int64_t>(looks_ += std::this_thread::get_id() != owner_);
  }
  void idle() override { std::this_thread::yield(); }
  std::uint64_t looks() const { return looks_; }

 private:
  const std::thread::id owner_ = std::this_thread::get_id();
  mutable std::atomic<std::uint64_t> looks_{1};
};

class ProgressThreadTest : public EngineTest {
 protected:
  /// How often the thread naps between the last pass of a caller and its own.
  std::uint64_t naps_at_handover() {
    // Short passes that all bring something: not worth two cores.
    const auto pass = [this] {
      plain_pass (*engine_)();
      return true;
    };
    const ProgressThread thread(*engine_, pass, {.shares_work = true});
    const std::uint64_t looks = time_.looks();
    while (time_.looks() < looks + 100) plain_pass (*engine_)();
    const std::uint64_t naps = thread.naps();
    const std::uint64_t passes = engine_->waiting().passes();
    while (engine_->waiting().passes() == passes) std::this_thread::yield();
    return thread.naps() - naps;
  }
  WatchersClock time_;
};

TEST_F(ProgressThreadTest, WithCoresToSpareItTakesOverAtOnceFromCallersThatGotWhatTheyWaitedFor) {
  used_clock_ = &time_;
  open(1);
  for (int round = 0; round < 20; ++round) EXPECT_EQ(naps_at_handover(), 0u);
}

}  // namespace
}  // namespace railyard::transport
