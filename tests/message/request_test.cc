// Request: what `test` may say of it while its channel ends; where requests come from.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "message/request_pool.hpp"

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

TEST(RequestPool, HasAsManyAsAChannelMayHaveAndEachOnce) {
  message::RequestPool pool(false);
  std::set<Request*> taken;
  std::set<std::uint32_t> indices;
  for (std::size_t i = 0; i < Channel::kMostRequests; ++i) {
    Request* const request = pool.take();
    ASSERT_NE(request, nullptr);
    taken.insert(request);
    indices.insert(request->index);
  }
  EXPECT_EQ(taken.size(), Channel::kMostRequests);
  EXPECT_EQ(indices.size(), Channel::kMostRequests);
  EXPECT_EQ(pool.take(), nullptr);
  pool.give_back(*taken.begin());
  EXPECT_EQ(pool.take(), *taken.begin());
  EXPECT_EQ(pool.take(), nullptr);
}

TEST(RequestPool, TheLastOneGivenBackComesFirst) {
  message::RequestPool pool(true);
  Request* const first = pool.take();
  Request* const second = pool.take();
  EXPECT_TRUE(first->sends);
  pool.give_back(second);
  pool.give_back(first);
  EXPECT_EQ(pool.take(), first);
  EXPECT_EQ(pool.take(), second);
}

TEST(RequestPool, WhatTheEngineStillUsesIsNotGivenOut) {
  message::RequestPool pool(false);
  std::vector<Request*> all;
  for (std::size_t i = 0; i < Channel::kMostRequests; ++i) all.push_back(pool.take());
  for (Request* request : all) {
    request->kept.store(true);
    pool.give_back(request);
  }
  EXPECT_EQ(pool.take(), nullptr);
  all[7]->kept.store(false);
  EXPECT_EQ(pool.take(), all[7]);
  EXPECT_EQ(pool.take(), nullptr);
  for (Request* request : all) request->kept.store(false);
  std::set<Request*> rest;
  while (Request* const request = pool.take()) rest.insert(request);
  EXPECT_EQ(rest.size(), Channel::kMostRequests - 1);
  EXPECT_FALSE(rest.contains(all[7]));
}

}  // namespace
}  // namespace railyard
