/// The send queue alone: places, numbers, and what a completion speaks for. The device is a function that takes chains.
#include <gtest/gtest.h>

#include <vector>

#include "fabric/verbs/send_queue.hpp"

namespace railyard::fabric::verbs {
namespace {

struct Sent {
  std::uint64_t wr_id = 0;
  bool signalled = false;
};

class VerbsSendQueue : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kName = std::uint64_t{5} << SendQueue::kNameShift;

  void SetUp() override {
    context_.ops.post_send = [](ibv_qp* pair, ibv_send_wr* work, ibv_send_wr**) {
      auto& sent = *static_cast<std::vector<Sent>*>(pair->qp_context);
      for (; work != nullptr; work = work->next)
        sent.push_back({work->wr_id, (work->send_flags & IBV_SEND_SIGNALED) != 0});
      return 0;
    };
    pair_.context = &context_;
    pair_.qp_context = &sent_;
    queue_.open(&pair_, 64, kName);
  }
  /// Adds one, asking for places where there are none. The context is its number.
  void add(std::uint64_t number) {
    if (!queue_.has_place()) {
      if (queue_.chain_full()) queue_.ring();
      ASSERT_GT(queue_.grantable(), 0u);
      queue_.grant(queue_.grantable());
    }
    queue_.next(reinterpret_cast<PostContext*>(number), Event::Kind::written).work.send_flags = 0;
    queue_.add();
  }

  ibv_context context_{};
  ibv_qp pair_{};
  std::vector<Sent> sent_;
  SendQueue queue_;
};

TEST_F(VerbsSendQueue, AChainLeavesWithItsLastSignalledAlone) {
  for (std::uint64_t i = 0; i < 5; ++i) add(i);
  EXPECT_TRUE(queue_.holds());
  EXPECT_TRUE(sent_.empty());
  ASSERT_EQ(queue_.ring(), 0);
  EXPECT_FALSE(queue_.holds());
  ASSERT_EQ(sent_.size(), 5u);
  for (std::uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(sent_[i].wr_id, kName + i);
    EXPECT_EQ(sent_[i].signalled, i == 4);
  }
}

TEST_F(VerbsSendQueue, NoMoreIsGrantedThanTheChainHolds) {
  EXPECT_FALSE(queue_.has_place());
  EXPECT_EQ(queue_.grantable(), SendQueue::kChain);
  for (std::uint64_t i = 0; i < SendQueue::kChain; ++i) add(i);
  EXPECT_FALSE(queue_.has_place());
  EXPECT_TRUE(queue_.chain_full());
  EXPECT_EQ(queue_.grantable(), 0u);
  add(SendQueue::kChain);
  EXPECT_EQ(sent_.size(), SendQueue::kChain);
}

TEST_F(VerbsSendQueue, WhatWasGrantedAndNotUsedGoesBack) {
  queue_.grant(10);
  for (std::uint64_t i = 0; i < 4; ++i) add(i);
  EXPECT_EQ(queue_.take_back(), 6u);
  EXPECT_FALSE(queue_.has_place());
  EXPECT_EQ(queue_.take_back(), 0u);
  EXPECT_EQ(queue_.outstanding(), 4u);
}

TEST_F(VerbsSendQueue, ACompletionIsOfWhatIsOutOnly) {
  for (std::uint64_t i = 0; i < 8; ++i) add(i);
  ASSERT_EQ(queue_.ring(), 0);
  EXPECT_TRUE(queue_.is_out(kName));
  EXPECT_TRUE(queue_.is_out(kName + 7));
  EXPECT_FALSE(queue_.is_out(kName + 8)) << "not yet";
  EXPECT_EQ(queue_.before(kName + 7), 7u);
  for (int i = 0; i < 3; ++i) queue_.retire();
  EXPECT_FALSE(queue_.is_out(kName + 2)) << "no longer";
  EXPECT_EQ(queue_.before(kName + 3), 0u);
  for (const std::uint64_t other : {kName - (std::uint64_t{1} << SendQueue::kNameShift) + 5,
                                    kName + (std::uint64_t{1} << SendQueue::kNameShift) + 5, std::uint64_t{5}})
    EXPECT_FALSE(queue_.is_out(other)) << "another queue pair's";
  EXPECT_FALSE(SendQueue().is_out(0)) << "there is none";
}

/// The last numbers are not those of the next name, and none is given twice while it is out.
TEST_F(VerbsSendQueue, NumbersBeginAgainWhenNothingIsOut) {
  constexpr std::uint64_t kNumbers = std::uint64_t{1} << SendQueue::kIndexBits;
  constexpr std::uint64_t kNext = kName + (std::uint64_t{1} << SendQueue::kNameShift);
  std::uint64_t added = 0;
  while (queue_.grantable() != 0 || queue_.has_place() || queue_.chain_full()) {
    add(added++);
    if (queue_.chain_full()) queue_.ring();
    if (queue_.outstanding() == 48) {
      for (std::uint64_t i = added - 48; i < added - 8; ++i)
        ASSERT_EQ(queue_.retire().context, reinterpret_cast<PostContext*>(i));
    }
    ASSERT_LE(added, kNumbers);
    sent_.clear();
  }
  EXPECT_EQ(added, kNumbers);
  EXPECT_TRUE(queue_.is_out(kName + kNumbers - 1));
  EXPECT_FALSE(queue_.is_out(kNext));
  EXPECT_FALSE(queue_.is_out(kName));
  while (queue_.outstanding() != 0) queue_.retire();
  queue_.renumber();
  EXPECT_EQ(queue_.grantable(), SendQueue::kChain);
  add(0);
  EXPECT_TRUE(queue_.is_out(kName));
}

}  // namespace
}  // namespace railyard::fabric::verbs
