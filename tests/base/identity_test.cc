#include "base/identity.hpp"

#include <gtest/gtest.h>

#include <set>

namespace railyard {
namespace {

TEST(Identity, NoTwoAreEqual) {
  std::set<Identity> seen;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(Identity::make()).second);
}

TEST(Identity, TextIsHexadecimal) {
  Identity identity;
  EXPECT_EQ(identity.text(), "00000000000000000000000000000000");
  identity.bytes[0] = 0xab;
  identity.bytes[15] = 0x01;
  EXPECT_EQ(identity.text(), "ab000000000000000000000000000001");
}

TEST(Identity, ComparesByContent) {
  Identity a;
  Identity b;
  EXPECT_EQ(a, b);
  b.bytes[3] = 1;
  EXPECT_LT(a, b);
}

}  // namespace
}  // namespace railyard
