#include "base/nearest.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <string>

namespace railyard {
namespace {

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", "abc"), 0U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("RIALS", "RAILS"), 1U);
}

TEST(EditDistance, IsTheSameBothWays) {
  EXPECT_TRUE(rc::check([](const std::string& a, const std::string& b) {
    RC_ASSERT(edit_distance(a, b) == edit_distance(b, a));
    RC_ASSERT((edit_distance(a, b) == 0) == (a == b));
    RC_ASSERT(edit_distance(a, b) <= std::max(a.size(), b.size()));
  }));
}

TEST(NearestName, IsTheOneWithFewestEdits) {
  const std::array<std::string_view, 3> known = {"batch", "rails", "window"};
  EXPECT_EQ(nearest_name("rial", known), "rails");
  EXPECT_EQ(nearest_name("windows", known), "window");
  EXPECT_EQ(nearest_name("anything", {}), "");
}

}  // namespace
}  // namespace railyard
