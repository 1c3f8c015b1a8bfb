/// Who is woken by what, where threads sleep on the rails.
#include "transport/waiting.hpp"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <thread>

#include "script_rail.hpp"

namespace railyard::transport {
namespace {

class WaitingTest : public ::testing::Test {
 protected:
  WaitingTest() { rail_.wake_descriptor = arrival_.get(); }
  void arrive() const {
    const std::uint64_t one = 1;
    ASSERT_EQ(::write(arrival_.get(), &one, sizeof one), ssize_t{sizeof one});
  }
  void fall_asleep(std::thread& thread, Waiting::SleepOn also, Waiting::Slept& slept) {
    thread = std::thread([this, also, &slept] { slept = waiting_.sleep(kLong, waiting_.passes(), false, also); });
    while (!waiting_.attended()) std::this_thread::yield();
  }
  void pass() {
    const ProgressGuard hold(lock_);
    waiting_.passed(clock_.now(), true);
  }
  bool has_run_out() const {
    std::uint64_t times = 0;
    return ::read(timer_.get(), &times, sizeof times) == ssize_t{sizeof times};
  }

  static constexpr std::int64_t kLong = 60'000'000'000;

  SteadyClock clock_;
  ProgressLock lock_{true};
  Fd arrival_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  Fd timer_{::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)};
  ScriptRail rail_;
  std::vector<fabric::Rail*> rails_{&rail_};
  Waiting waiting_{clock_, lock_, rails_, "auto", [] { return Waiting::Agenda{kLong, false}; }};
};

/// A caller reads ahead what it is about to run through. Once: a stream of puts must not pay for that each time.
TEST_F(WaitingTest, EachSleepIsNewToACallerOnce) {
  std::atomic<std::uint64_t> seen{0};
  EXPECT_FALSE(waiting_.newly_attended(seen)) << "nobody sleeps";
  std::thread thread;
  auto slept = Waiting::Slept::poll_first;
  for (int round = 0; round < 3; ++round) {
    fall_asleep(thread, {.timer = timer_.get()}, slept);
    EXPECT_TRUE(waiting_.newly_attended(seen));
    for (int call = 0; call < 3; ++call) EXPECT_FALSE(waiting_.newly_attended(seen));
    pass();
    EXPECT_FALSE(waiting_.newly_attended(seen)) << "pushed aside";
    thread.join();
  }
}

TEST_F(WaitingTest, WhatArrivesWakesWhoLeads) {
  std::thread thread;
  auto slept = Waiting::Slept::poll_first;
  for (int round = 0; round < 3; ++round) {
    fall_asleep(thread, {.timer = timer_.get()}, slept);
    arrive();
    thread.join();
    EXPECT_EQ(slept, Waiting::Slept::yes);
    EXPECT_FALSE(has_run_out());
    std::uint64_t taken = 0;
    ASSERT_EQ(::read(arrival_.get(), &taken, sizeof taken), ssize_t{sizeof taken});
    // And again after it was pushed aside.
    fall_asleep(thread, {.timer = timer_.get()}, slept);
    pass();
    thread.join();
  }
}

/// A caller sleeps on few rails one by one, and on many through one set.
TEST_F(WaitingTest, WhatArrivesWakesACallerThatSleepsOnFewRailsOrOnMany) {
  std::vector<ScriptRail> silent(20);
  std::vector<Fd> never_readable;
  for (ScriptRail& rail : silent) {
    never_readable.emplace_back(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    rail.wake_descriptor = never_readable.back().get();
    rails_.insert(rails_.begin(), &rail);
  }
  for (const bool many : {true, false}) {
    if (!many) rails_.erase(rails_.begin(), rails_.end() - 1);
    std::thread thread;
    auto slept = Waiting::Slept::poll_first;
    fall_asleep(thread, {}, slept);
    arrive();
    thread.join();
    EXPECT_EQ(slept, Waiting::Slept::yes);
    std::uint64_t taken = 0;
    ASSERT_EQ(::read(arrival_.get(), &taken, sizeof taken), ssize_t{sizeof taken});
  }
}

TEST_F(WaitingTest, WhatArrivesForACallerDoesNotWakeTheThreadThatItPushedAside) {
  for (int round = 0; round < 5; ++round) {
    std::thread thread;
    auto slept = Waiting::Slept::poll_first;
    fall_asleep(thread, {.timer = timer_.get()}, slept);
    pass();
    arrive();
    thread.join();
    EXPECT_EQ(slept, Waiting::Slept::others_are);
    EXPECT_TRUE(has_run_out()) << "its timer was to wake it, and nothing else";
    std::uint64_t taken = 0;
    ASSERT_EQ(::read(arrival_.get(), &taken, sizeof taken), ssize_t{sizeof taken});
  }
}

TEST_F(WaitingTest, WhoWaitsForSomethingItselfIsWokenByAPassAtOnce) {
  std::thread thread;
  auto slept = Waiting::Slept::poll_first;
  fall_asleep(thread, {}, slept);
  pass();
  thread.join();
  EXPECT_EQ(slept, Waiting::Slept::others_are);
}

}  // namespace
}  // namespace railyard::transport
