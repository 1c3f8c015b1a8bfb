// Request: what `test` may say of it while its channel ends.
#include "message/request.hpp"

#include <gtest/gtest.h>

namespace railyard {
namespace {

class RequestTest : public ::testing::Test {
 protected:
  RequestTest() { request_.state.store(Request::State::posted); }
  Request request_;
};

TEST_F(RequestTest, IsPendingWhileNothingHappens) {
  EXPECT_EQ(request_.verdict([] { return false; }), Request::Verdict::pending);
}

TEST_F(RequestTest, IsLostWithItsChannel) {
  EXPECT_EQ(request_.verdict([] { return true; }), Request::Verdict::lost);
}

TEST_F(RequestTest, IsDoneWhateverBecameOfItsChannel) {
  request_.finish();
  EXPECT_EQ(request_.verdict([] { return true; }), Request::Verdict::done);
}

/// Another thread brings the last message and the peer's close between the two looks.
TEST_F(RequestTest, IsDoneWhenItIsFinishedJustBeforeItsChannelEnds) {
  const auto both_arrive = [this] {
    request_.finish();
    request_.fail();
    return true;
  };
  EXPECT_EQ(request_.verdict(both_arrive), Request::Verdict::done);
}

TEST_F(RequestTest, FailedStaysFailed) {
  request_.fail();
  EXPECT_EQ(request_.verdict([this] { return request_.has_failed(); }), Request::Verdict::lost);
}

}  // namespace
}  // namespace railyard
