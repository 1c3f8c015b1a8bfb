#include "base/ring.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>

namespace railyard {
namespace {

TEST(Ring, RoundsItsCapacityUp) {
  EXPECT_EQ(Ring<int>(0).capacity(), 1U);
  EXPECT_EQ(Ring<int>(1).capacity(), 1U);
  EXPECT_EQ(Ring<int>(5).capacity(), 8U);
  EXPECT_EQ(Ring<int>(8).capacity(), 8U);
}

TEST(Ring, FullIsRefusedAndLeavesTheValue) {
  Ring<std::unique_ptr<int>> ring(2);
  EXPECT_TRUE(ring.push(std::make_unique<int>(1)));
  EXPECT_TRUE(ring.push(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  EXPECT_FALSE(ring.push(std::move(third)));
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(**ring.pop(), 1);
  EXPECT_TRUE(ring.push(std::move(third)));
  EXPECT_EQ(third, nullptr);
}

TEST(Ring, DestroysWhatNobodyTook) {
  const auto counted = std::make_shared<int>(0);
  {
    Ring<std::shared_ptr<int>> ring(4);
    ring.push(counted);
    ring.push(counted);
    ring.pop();
    EXPECT_EQ(counted.use_count(), 2);
  }
  EXPECT_EQ(counted.use_count(), 1);
}

TEST(Ring, BehavesLikeABoundedQueue) {
  EXPECT_TRUE(rc::check([] {
    const auto capacity = *rc::gen::inRange<std::size_t>(1, 20);
    Ring<std::string> ring(capacity);
    std::deque<std::string> model;
    const auto steps = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 5));
    int number = 0;
    for (const int step : steps) {
      if (step < 3) {
        const std::string value = "value " + std::to_string(number++);
        const bool fits = model.size() < ring.capacity();
        RC_ASSERT(ring.push(value) == fits);
        if (fits) model.push_back(value);
      } else {
        const auto value = ring.pop();
        RC_ASSERT(value.has_value() == !model.empty());
        if (value) {
          RC_ASSERT(*value == model.front());
          model.pop_front();
        }
      }
      RC_ASSERT(ring.size() == model.size());
      RC_ASSERT(ring.empty() == model.empty());
    }
  }));
}

// Elements with a pointer inside: under the thread sanitizer an element read before it was published is a report.
TEST(Ring, TwoThreadsPassEverythingOnceInOrder) {
  constexpr int kCount = 100'000;
  Ring<std::unique_ptr<int>> ring(64);
  std::thread producer([&ring] {
    for (int i = 0; i < kCount; ++i) {
      auto value = std::make_unique<int>(i);
      while (!ring.push(std::move(value))) std::this_thread::yield();
    }
  });
  int wrong = 0;
  for (int expected = 0; expected < kCount;) {
    auto value = ring.pop();
    if (!value) {
      std::this_thread::yield();
      continue;
    }
    wrong += **value == expected ? 0 : 1;
    ++expected;
    if (ring.size() > ring.capacity()) ++wrong;
  }
  producer.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(ring.empty());
}

}  // namespace
}  // namespace railyard
