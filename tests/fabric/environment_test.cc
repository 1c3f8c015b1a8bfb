/// Lets libfabric find the strict provider. It looks once, at its first use, so this comes before every test.
#include <gtest/gtest.h>

#include <cstdlib>

namespace {

class ProviderPath : public ::testing::Environment {
 public:
  void SetUp() override { ASSERT_EQ(::setenv("FI_PROVIDER_PATH", RAILYARD_STRICT_PROVIDER_DIR, 1), 0); }
};

const auto* const kProviderPath = ::testing::AddGlobalTestEnvironment(new ProviderPath);

TEST(Environment, NamesTheStrictProvider) {
  EXPECT_NE(kProviderPath, nullptr);
  EXPECT_STREQ(std::getenv("FI_PROVIDER_PATH"), RAILYARD_STRICT_PROVIDER_DIR);
}

}  // namespace
