#include "transport/held_frames.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/random.hpp"

namespace railyard::transport {
namespace {

TEST(HeldFrames, GivesBackEachFrameOnceWhateverTheOrder) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    HeldFrames held;
    std::vector<memory::Buffer> buffers(1024);
    std::map<std::uint32_t, memory::Buffer*> model;
    std::uint32_t next = static_cast<std::uint32_t>(random.next());  // wraps now and then
    for (int step = 0; step < 5000; ++step) {
      const std::uint32_t sequence = next + static_cast<std::uint32_t>(random.below(1000));
      if (model.find(sequence) == model.end() && random.chance(0.5)) {
        memory::Buffer* buffer = &buffers[sequence % buffers.size()];
        held.put(sequence, buffer);
        model[sequence] = buffer;
      }
      const auto found = model.find(next);
      ASSERT_EQ(held.holds(next), found != model.end());
      ASSERT_EQ(held.take(next), found != model.end() ? found->second : nullptr);
      if (found != model.end()) model.erase(found);
      ASSERT_EQ(held.take(next), nullptr);
      ++next;
    }
  }
}

}  // namespace
}  // namespace railyard::transport
