#include "bootstrap/single.hpp"

#include <gtest/gtest.h>

#include "helpers.hpp"

namespace railyard::bootstrap {
namespace {

TEST(Single, IsAWorldOfOne) {
  const auto single = open_single();
  EXPECT_EQ(single->rank(), 0);
  EXPECT_EQ(single->size(), 1);
  EXPECT_EQ(single->describe(), "single");
  EXPECT_TRUE(single->barrier({}));
  const auto gathered = single->allgather(bytes_of("mine"), {});
  ASSERT_TRUE(gathered);
  ASSERT_EQ(gathered->size(), 1U);
  EXPECT_EQ(text_of(gathered->front()), "mine");
}

}  // namespace
}  // namespace railyard::bootstrap
