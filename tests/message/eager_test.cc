/// Messages of several frames: copied where they are alone, written where many are under way.
#include <gtest/gtest.h>

#include <array>

#include "contexts.hpp"

namespace railyard {
namespace {

constexpr std::size_t kBytes = 16'000;

class EagerTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const Settings settings = GetParam() ? over_memory() : over_network(2);
    a_ = open_context(settings);
    b_ = open_context(settings);
    ASSERT_TRUE(a_ && b_);
    pair_ = connect(*a_, *b_);
    ASSERT_TRUE(pair_.out && pair_.in);
  }
  /// Through memory, two frames are the limit.
  std::size_t size() const { return GetParam() ? kBytes / 2 : kBytes; }

  std::unique_ptr<Context> a_;
  std::unique_ptr<Context> b_;
  ChannelPair pair_;
};

TEST_P(EagerTest, ALoneMessageOfSeveralFramesNeedsNoReceive) {
  auto source = pattern(size(), 1);
  const auto registered = pair_.out->register_memory(source);
  ASSERT_TRUE(registered);
  for (std::uint64_t i = 0; i < 3; ++i) {
    Request* const send = must(pair_.out->send(source, 0, registered->get()));
    ASSERT_TRUE(waited(*pair_.out, send)) << "done although nobody receives";
    EXPECT_EQ(pair_.out->statistics().eager_sent, i + 1);
    std::vector<std::byte> target(size());
    const std::array slots{ReceiveSlot{target, 0}};
    ASSERT_TRUE(waited(*pair_.in, must(pair_.in->receive(slots))));
    EXPECT_TRUE(same_bytes(target.data(), source.data(), source.size()));
  }
}

TEST_P(EagerTest, AStreamOfThemIsWritten) {
  constexpr std::size_t kCount = 64;
  auto source = pattern(size(), 2);
  const auto registered = pair_.out->register_memory(source);
  ASSERT_TRUE(registered);
  std::vector<std::vector<std::byte>> targets(kCount, std::vector<std::byte>(size()));
  std::vector<Request*> receives;
  for (auto& target : targets) {
    const std::array slots{ReceiveSlot{target, 0}};
    receives.push_back(must(pair_.in->receive(slots)));
  }
  std::vector<Request*> sends;
  for (std::size_t i = 0; i < kCount; ++i) sends.push_back(must(pair_.out->send(source, 0, registered->get())));
  for (Request* receive : receives) ASSERT_TRUE(waited(*pair_.in, receive));
  for (Request* send : sends) ASSERT_TRUE(waited(*pair_.out, send));
  for (const auto& target : targets) EXPECT_TRUE(same_bytes(target.data(), source.data(), source.size()));
  EXPECT_LT(pair_.out->statistics().eager_sent, kCount);
}

INSTANTIATE_TEST_SUITE_P(Over, EagerTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "memory" : "network"; });

}  // namespace
}  // namespace railyard
