#include "shm/copy.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace railyard::shm {
namespace {

TEST(ShmCopy, EverySizeAndOffsetCopiesExactlyItsBytes) {
  constexpr std::size_t kMost = 700;
  std::vector<std::byte> from(kMost + 64);
  for (std::size_t at = 0; at < from.size(); ++at) from[at] = static_cast<std::byte>(at * 7 + at / 256);
  for (std::size_t bytes = 0; bytes <= kMost; ++bytes) {
    for (const std::size_t offset :
         {std::size_t{0}, std::size_t{1}, std::size_t{13}, std::size_t{16}, std::size_t{24}}) {
      std::vector<std::byte> to(kMost + 64, std::byte{0xee});
      copy_bytes(to.data() + offset, from.data() + (offset * 3) % 32, bytes);
      for (std::size_t at = 0; at < to.size(); ++at) {
        const bool inside = at >= offset && at < offset + bytes;
        ASSERT_EQ(to[at], inside ? from[(offset * 3) % 32 + at - offset] : std::byte{0xee}) << bytes << " at " << at;
      }
    }
  }
}

}  // namespace
}  // namespace railyard::shm
