/// A local completion says that a buffer is free, not that its bytes have arrived: FENCED alone says that.
#include "refusal_fixture.hpp"

namespace railyard::transport {
namespace {

using LateSuccessTest = RefusalTest;

TEST_F(LateSuccessTest, AChunkThatTheFenceLacksGoesOutAgainThoughItsWriteSucceedsLate) {
  open(2);
  for (auto* rail : rails_) rail->keeps_contexts = true;
  std::uint64_t number = 0;
  ASSERT_TRUE(engine_->submissions().try_write(*flow_, bulk(4 * kChunk), nullptr, number));
  ASSERT_EQ(rails_[0]->writes.size(), 2U);
  const auto lost = rails_[0]->writes;
  rails_[0]->lose(lost[0].to.remote);
  pass(1);
  fenced(0, 0, 0, 0b0101, 1);  // of segments 0 to 3, those of link 0 (1 and 3) are missing
  // Now the rail lets go of them, and says that all went well.
  for (const auto& write : lost) complete(0, write.context, fabric::Event::Kind::written);
  pass(1);
  for (const auto& write : std::vector(rails_[1]->writes)) complete(1, write.context, fabric::Event::Kind::written);
  pass(5);
  std::vector<std::uint32_t> on_one;
  for (const auto& write : rails_[1]->writes) on_one.push_back(sequence(write));
  EXPECT_EQ(on_one, (std::vector<std::uint32_t>{0, 2, 1, 3}));
  acknowledge(4, 1);
  EXPECT_EQ(flow_->completed.load(), number);
}

TEST_F(LateSuccessTest, AFrameThatTheFenceLacksGoesOutAgainThoughItsSendSucceedsLate) {
  open(2);
  for (auto* rail : rails_) rail->keeps_contexts = true;
  const std::uint64_t number = put_small();
  const std::size_t first = rails_[0]->sends.empty() ? 1 : 0;
  const std::size_t other = 1 - first;
  ASSERT_EQ(rails_[first]->sends.size(), 1U);
  const auto sent = rails_[first]->sends.front();
  rails_[first]->lose(sent.remote);
  pass(1);
  fenced(static_cast<std::uint16_t>(first), 0, 0, 0, other);
  complete(first, sent.context, fabric::Event::Kind::sent);
  pass(2);
  std::size_t again = 0;
  for (const auto& each : rails_[other]->sends) {
    if (each.header().kind == wire::FrameKind::sequenced && each.header().sequence == 0) ++again;
  }
  EXPECT_EQ(again, 1U);
  acknowledge(1, other);
  EXPECT_EQ(flow_->completed.load(), number);
}

}  // namespace
}  // namespace railyard::transport
