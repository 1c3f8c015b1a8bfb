#include "memory/mapped.hpp"

#include <gtest/gtest.h>

#include "memory/pages.hpp"

namespace railyard::memory {
namespace {

TEST(CheckMapped, TakesMemoryThatIsThere) {
  const Pages pages(4);
  EXPECT_TRUE(check_mapped(pages.all()).ok());
  EXPECT_TRUE(check_mapped(pages.all().subspan(10, 5000)).ok());
  int local = 0;
  EXPECT_TRUE(check_mapped(std::as_bytes(std::span(&local, 1))).ok());
}

TEST(CheckMapped, RefusesAHoleAnywhere) {
  const Pages pages(5);
  pages.unmap(2, 1);
  EXPECT_EQ(check_mapped(pages.all()).status(), Status::invalid);
  EXPECT_EQ(check_mapped(pages.pages(1, 2)).status(), Status::invalid);
  EXPECT_EQ(check_mapped(pages.pages(2, 1).first(1)).status(), Status::invalid);
  EXPECT_TRUE(check_mapped(pages.pages(0, 2)).ok());
  EXPECT_TRUE(check_mapped(pages.pages(3, 2)).ok());
}

TEST(CheckMapped, RefusesPagesWithoutAccess) {
  const Pages pages(3);
  pages.take_access(1, 2);
  EXPECT_TRUE(check_mapped(pages.pages(0, 1)).ok());
  EXPECT_EQ(check_mapped(pages.pages(1, 1)).status(), Status::invalid);
  EXPECT_EQ(check_mapped(pages.pages(0, 2)).status(), Status::invalid);
}

TEST(CheckMapped, RefusesWhatIsNoMemoryAndSaysWhere) {
  EXPECT_EQ(check_mapped({}).status(), Status::invalid);
  const auto* const nowhere = reinterpret_cast<const std::byte*>(0x10);
  const auto answer = check_mapped({nowhere, 64});
  ASSERT_EQ(answer.status(), Status::invalid);
  EXPECT_NE(answer.error().message().find("0x10"), std::string::npos) << answer.error().text();
  const std::byte here{};
  EXPECT_EQ(check_mapped({&here, SIZE_MAX}).status(), Status::invalid);
}

}  // namespace
}  // namespace railyard::memory
