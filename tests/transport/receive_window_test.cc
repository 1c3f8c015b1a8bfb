#include "transport/receive_window.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.hpp"

namespace railyard::transport {
namespace {

using Arrival = ReceiveWindow::Arrival;

TEST(ReceiveWindow, EverySegmentTakesEffectOnceInOrderWhateverTheArrivalOrder) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    ReceiveWindow window;
    // Segments arrive shuffled inside a moving window, each twice.
    constexpr std::uint32_t kSegments = 20000;
    constexpr std::uint32_t kAhead = 1500;
    std::vector<std::uint32_t> order(std::size_t{2} * kSegments);
    for (std::uint32_t i = 0; i < kSegments; ++i) order[2 * i] = order[2 * i + 1] = i;
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::swap(order[i], order[std::min(order.size() - 1, i + random.below(kAhead))]);
    }
    std::uint32_t fresh = 0;
    for (const std::uint32_t segment : order) {
      if (segment - window.next() < 0x80000000U && segment - window.next() >= wire::kMaxWindow) continue;
      fresh += window.arrive(segment) == Arrival::fresh;
      while (window.ready()) window.advance();
    }
    EXPECT_LE(fresh, kSegments);
    EXPECT_EQ(
        fresh, window.next() + [&] {
          std::uint32_t waiting = 0;
          ReceiveWindow copy = window;
          for (std::uint32_t i = 0; i < wire::kMaxWindow; ++i)
            waiting += copy.arrive(window.next() + i) == Arrival::duplicate;
          return waiting;
        }());
  }
}

TEST(ReceiveWindow, TellsDuplicatesAndOutsidersApart) {
  ReceiveWindow window;
  EXPECT_EQ(window.arrive(0), Arrival::fresh);
  EXPECT_EQ(window.arrive(0), Arrival::duplicate);
  window.advance();
  EXPECT_EQ(window.arrive(0), Arrival::duplicate);
  EXPECT_EQ(window.arrive(wire::kMaxWindow), Arrival::fresh);
  EXPECT_EQ(window.arrive(wire::kMaxWindow + 1), Arrival::outside);
}

TEST(ReceiveWindow, ExpandFindsTheSegmentAroundEveryPosition) {
  ReceiveWindow window;
  for (std::uint32_t step = 0; step < 40000; ++step) {
    for (const std::uint32_t ahead : {0U, 1U, 100U, wire::kMaxWindow - 1}) {
      const std::uint32_t segment = window.next() + ahead;
      ASSERT_EQ(window.expand(segment & wire::Immediate::kSequenceMask), segment);
    }
    const std::uint32_t late = window.next() - 5;
    ASSERT_EQ(window.expand(late & wire::Immediate::kSequenceMask), late);
    window.arrive(window.next());
    window.advance();
  }
}

TEST(ReceiveWindow, AWordHoldsWhatEachSegmentSays) {
  std::uint32_t random = 12345;
  const auto draw = [&random](std::uint32_t below) { return (random = random * 1664525U + 1013904223U) % below; };
  ReceiveWindow window;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 500; ++i) window.arrive(window.next() + draw(wire::kMaxWindow));
    window.arrive(window.next() + wire::kMaxWindow - 1);
    for (std::uint32_t first = 0; first < wire::kMaxWindow; first += 64U) {
      const std::uint64_t word = window.word(window.next() + first);
      for (std::uint32_t bit = 0; bit < 64U; ++bit) {
        const bool seen = first + bit < wire::kMaxWindow && window.arrived(window.next() + first + bit);
        ASSERT_EQ((word >> bit & 1U) != 0, seen) << window.next() << " " << first + bit;
      }
    }
    for (std::uint32_t steps = draw(700); steps > 0; --steps) window.advance();
  }
}

}  // namespace
}  // namespace railyard::transport
