/// When a refused connection proves that a process is gone.
#include "fabric/refusals.hpp"

#include <gtest/gtest.h>

#include <string>

namespace railyard::fabric {
namespace {

TEST(Refusals, OnlyThoseInARowSomeTimeApartOfAPeerThatWasReachedAreBelieved) {
  Refusals<std::string> refusals;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(refusals.refused("never reached", i * kRefusalPause));
  refusals.stood("peer");
  EXPECT_TRUE(refusals.reached("peer"));
  EXPECT_FALSE(refusals.reached("never reached"));
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(refusals.refused("peer", 1000 + i)) << "all at one moment";
  EXPECT_FALSE(refusals.refused("peer", 2 * kRefusalPause));
  EXPECT_TRUE(refusals.refused("peer", 3 * kRefusalPause));
  refusals.stood("peer");
  EXPECT_FALSE(refusals.refused("peer", 4 * kRefusalPause)) << "it was reached in between";
}

}  // namespace
}  // namespace railyard::fabric
