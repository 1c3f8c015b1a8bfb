/// A link that completes nothing keeps a few buffers, not all: acknowledgements go on over the others.
#include "refusal_fixture.hpp"

namespace railyard::transport {
namespace {

using NoticePoolTest = RefusalTest;

TEST_F(NoticePoolTest, NoticesOnAStuckLinkLeaveBuffersForAcknowledgements) {
  open(2);
  rails_[1]->complete_at_once = true;  // the other completes nothing
  for (std::uint32_t round = 1; round <= 1000; ++round) {
    rails_[1]->deliver(notice(wire::Ping{round, {1, 1, 1}, true}.header()));
    engine_->progress();
  }
  EXPECT_EQ(rails_[1]->notices(wire::RecordKind::pong).size(), 1000U);
  EXPECT_LT(rails_[0]->notices(wire::RecordKind::pong).size(), 100U);
  rails_[1]->sends.clear();
  rails_[1]->deliver(frame(0, 1));
  pass(3);
  bool acknowledged = false;
  for (const auto& sent : rails_[1]->sends) acknowledged |= sent.header().acknowledged == 1;
  EXPECT_TRUE(acknowledged);
}

}  // namespace
}  // namespace railyard::transport
