#include "base/touch.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstddef>

namespace railyard {
namespace {

constexpr std::size_t kPage = 4096;

/// Which pages of a fresh mapping are there.
std::array<unsigned char, 3> pages_present(void* memory) {
  std::array<unsigned char, 3> present{};
  EXPECT_EQ(::mincore(memory, present.size() * kPage, present.data()), 0);
  return present;
}

TEST(Touch, ReadsEveryLineOfAnObjectAndNoOther) {
  void* const memory = ::mmap(nullptr, 3 * kPage, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto* const bytes = static_cast<const std::byte*>(memory);
  touch(bytes + kPage, 0);
  EXPECT_EQ(pages_present(memory), (std::array<unsigned char, 3>{0, 0, 0}));
  touch(bytes + kPage - 1, 1);
  EXPECT_EQ(pages_present(memory), (std::array<unsigned char, 3>{1, 0, 0}));
  touch(bytes + kPage + 100, kPage - 100);
  EXPECT_EQ(pages_present(memory), (std::array<unsigned char, 3>{1, 1, 0}));
  touch(bytes + 2 * kPage - 1, 2);
  EXPECT_EQ(pages_present(memory), (std::array<unsigned char, 3>{1, 1, 1}));
  ::munmap(memory, 3 * kPage);
}

/// What is called `name` in the library, whatever of it the program holds.
const void* in_library(const char* name) { return ::dlsym(RTLD_DEFAULT, name); }

TEST(Touch, HotFunctionsLieTogetherWhereTheLinkerCanDoThat) {
  ASSERT_EQ(knows_hot_code(), RAILYARD_HOT_CODE != 0);
  if (!knows_hot_code()) GTEST_SKIP() << "this linker does not take cmake/hot.ld";
  EXPECT_TRUE(is_hot(in_library("_ZN8railyard14touch_hot_codeEv")));
  EXPECT_TRUE(is_hot(in_library("_ZN8railyard9transport6Engine8progressEv")));
  EXPECT_FALSE(is_hot(in_library("_ZN8railyard14knows_hot_codeEv")));
  touch_hot_code();
}

}  // namespace
}  // namespace railyard
