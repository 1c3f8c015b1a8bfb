// T9 on real devices: a rail is cut under shared channels. TEST_CUT is a command that cuts one of the rails of
// TEST_RAILS, TEST_MEND one that mends it (tests/lab/verbs.test).
#include <gtest/gtest.h>

#include "contexts.hpp"

namespace railyard {
namespace {

constexpr std::size_t kChannels = 64;

std::uint64_t links_lost(const Context& context) {
  std::uint64_t lost = 0;
  for (const auto& engine : context.statistics().engines) lost += engine.links_lost;
  return lost;
}

TEST(CutT9, ARailThatIsCutUnder64SharedChannelsCostsNoMessageAndItsLinkIsLostOnceForAll) {
  const char* const cut = std::getenv("TEST_CUT");
  const char* const mend = std::getenv("TEST_MEND");
  if (cut == nullptr || mend == nullptr) GTEST_SKIP() << "no TEST_CUT: nothing to cut";
  Settings settings = over_network(2);
  settings.workers = 1;
  const auto a = open_context(settings);
  const auto b = open_context(settings);
  std::vector<ChannelPair> pairs;
  for (std::size_t i = 0; i < kChannels; ++i) pairs.push_back(i % 2 == 0 ? connect(*a, *b) : connect(*b, *a));
  ASSERT_EQ(a->statistics().routes, 1U);
  const std::uint64_t before = links_lost(*a) + links_lost(*b);

  std::vector<std::byte> targets(kChannels * 100'000);
  const auto everybody_sends = [&](std::uint32_t round, bool cuts) {
    std::vector<std::vector<std::byte>> sources;
    std::vector<Request*> receives;
    std::vector<Request*> sends;
    const auto target = [&](std::size_t i) { return std::span(targets).subspan(i * 100'000, sources[i].size()); };
    for (std::size_t i = 0; i < kChannels; ++i) {
      sources.push_back(pattern(i % 3 == 0 ? 100'000 : 500, round * 1000 + static_cast<std::uint32_t>(i)));
      const std::array slots{ReceiveSlot{target(i), 0}};
      receives.push_back(must(pairs[i].in->receive(slots)));
      sends.push_back(must(pairs[i].out->send(sources[i], 0)));
    }
    if (cuts) {
      ASSERT_EQ(std::system(cut), 0) << cut;
    }
    for (std::size_t i = 0; i < kChannels; ++i) {
      ASSERT_TRUE(waited(*pairs[i].in, receives[i]) && waited(*pairs[i].out, sends[i])) << "channel " << i;
      EXPECT_TRUE(std::ranges::equal(target(i), sources[i])) << "channel " << i;
    }
  };
  everybody_sends(1, false);
  everybody_sends(2, true);
  everybody_sends(3, false);
  // A link at each end, whoever shares it. (On an emulated machine another may be late and given up besides.)
  const std::uint64_t lost = links_lost(*a) + links_lost(*b) - before;
  EXPECT_TRUE(lost >= 2 && lost < kChannels) << lost;
  ASSERT_EQ(std::system(mend), 0) << mend;
  everybody_sends(4, false);
}

}  // namespace
}  // namespace railyard
