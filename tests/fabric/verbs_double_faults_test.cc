/// The verbs double: what tests can make go wrong, and how that looks to a program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "doubles/verbs/bare.hpp"
#include "fabric/verbs_double_fixture.hpp"

namespace railyard::verbs_double {
namespace {

using ::testing::ElementsAre;
using VerbsDoubleFaults = VerbsDoubleTest;

constexpr std::uint32_t kKey = 0x77;

TEST_F(VerbsDoubleFaults, AFrozenDeviceKeepsEverything) {
  Line line(calls_, 0, 1);
  network_.freeze(1);
  network_.retry_time(std::chrono::nanoseconds(0));
  line.near.memory[0] = byte(1);
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(line.far, 0).post(line.out), 0);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(line.near.poll());
  EXPECT_EQ(line.far.memory[0], byte(0));
  network_.thaw(1);
  EXPECT_EQ(line.near.poll()->status, IBV_WC_SUCCESS);
  EXPECT_EQ(line.far.memory[0], byte(1));
}

TEST_F(VerbsDoubleFaults, ASlowDeviceMovesAFewWorkRequestsAtATime) {
  Line line(calls_, 0, 1);
  network_.pace(0, 2);
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, i, 0, 8).at(line.far, 0).post(line.out), 0);
  }
  EXPECT_EQ(network_.traffic(0).work_requests, 0u);
  EXPECT_FALSE(line.far.poll());
  EXPECT_EQ(network_.traffic(0).work_requests, 2u);
  EXPECT_FALSE(line.far.poll());
  EXPECT_EQ(network_.traffic(0).work_requests, 3u);
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(line.near.poll()->wr_id, i);
}

TEST_F(VerbsDoubleFaults, ArrivedAndNotYetCompleteCanStillFail) {
  network_.retry_time(std::chrono::milliseconds(1));
  Line line(calls_, 0, 1);
  network_.hold_completions(0, true);
  line.near.memory[0] = byte(1);
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(line.far, 0).post(line.out), 0);
  EXPECT_EQ(line.far.memory[0], byte(1));
  EXPECT_FALSE(line.near.poll());
  network_.hold_completions(0, false);
  EXPECT_EQ(line.near.poll()->status, IBV_WC_SUCCESS);
  network_.hold_completions(0, true);
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 2, 0, 8).at(line.far, 8).post(line.out), 0);
  EXPECT_EQ(line.far.memory[8], byte(1));
  network_.cut(1);
  EXPECT_EQ(wait(line.near).status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(VerbsDoubleFaults, WhatIsHeldIsFlushedAlthoughItArrived) {
  Line line(calls_, 0, 1);
  network_.hold_completions(0, true);
  line.near.memory[0] = byte(1);
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8, 0).at(line.far, 0).post(line.out), 0);
  EXPECT_EQ(line.far.memory[0], byte(1));
  ASSERT_EQ(line.near.to_error(line.out), 0);
  EXPECT_EQ(line.near.poll()->status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(VerbsDoubleFaults, GhostsArriveUnlessTheOtherEndIsShut) {
  network_.retry_time(std::chrono::milliseconds(1));
  for (const bool shut : {false, true}) {
    Line line(calls_, 0, 1);
    ASSERT_EQ(line.far.receive(50, 0, 0), 0);
    network_.keep_packets(0);
    line.near.memory[0] = byte(1);
    ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 8).at(line.far, 0).post(line.out), 0);
    EXPECT_EQ(wait(line.near).status, IBV_WC_RETRY_EXC_ERR);
    line.near.memory[0] = byte(2);
    if (shut) {
      ASSERT_EQ(line.far.to_error(line.in), 0);
    }
    ASSERT_EQ(line.near.destroy(line.out), 0);
    EXPECT_EQ(line.far.memory[0], byte(0));
    network_.release_packets(0);
    EXPECT_EQ(line.far.memory[0], byte(shut ? 0 : 1)) << "as it was when it was sent";
    EXPECT_EQ(line.far.poll().has_value(), !shut);
  }
}

TEST_F(VerbsDoubleFaults, PacketsKeptForAShortTimeArriveOnce) {
  network_.retry_time(std::chrono::seconds(10));
  Line line(calls_, 0, 1);
  ASSERT_EQ(line.far.receive(50, 0, 8), 0);
  ASSERT_EQ(line.far.receive(51, 0, 8), 0);
  network_.keep_packets(0);
  ASSERT_EQ(Work(line.near, IBV_WR_SEND, 1, 0, 8).post(line.out), 0);
  EXPECT_FALSE(line.far.poll());
  network_.release_packets(0);
  EXPECT_EQ(line.near.poll()->status, IBV_WC_SUCCESS);
  EXPECT_TRUE(line.far.poll());
  EXPECT_FALSE(line.far.poll());
}

TEST_F(VerbsDoubleFaults, APortGoesDownAndComesBackInTime) {
  network_.retry_time(std::chrono::seconds(10));
  Line line(calls_, 0, 1);
  network_.port_down(1);
  pollfd readable{.fd = line.far.context->async_fd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&readable, 1, 0), 1);
  auto event = line.far.event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event_type, IBV_EVENT_PORT_ERR);
  EXPECT_EQ(event->element.port_num, 1);
  EXPECT_EQ(::poll(&readable, 1, 0), 0);
  EXPECT_FALSE(line.far.event());
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(line.far, 0).post(line.out), 0);
  EXPECT_FALSE(line.near.poll());
  network_.port_up(1);
  EXPECT_EQ(line.far.event()->event_type, IBV_EVENT_PORT_ACTIVE);
  EXPECT_EQ(line.near.poll()->status, IBV_WC_SUCCESS);
}

TEST_F(VerbsDoubleFaults, APathIsCutForTwo) {
  network_.retry_time(std::chrono::milliseconds(1));
  Line line(calls_, 0, 1);
  Line home(calls_, 0, 0);
  network_.cut_path(1, 0);
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(line.far, 0).post(line.out), 0);
  ASSERT_EQ(Work(home.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(home.far, 0).post(home.out), 0);
  EXPECT_EQ(home.near.poll()->status, IBV_WC_SUCCESS);
  EXPECT_EQ(wait(line.near).status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(VerbsDoubleFaults, ADeadDeviceAnswersNothing) {
  Line line(calls_, 0, 1);
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(line.far, 0).post(line.out), 0);
  network_.kill(0);
  EXPECT_EQ(line.near.event()->event_type, IBV_EVENT_DEVICE_FATAL);
  EXPECT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(line.far, 0).post(line.out), EIO);
  EXPECT_EQ(line.near.receive(1, 0, 8), EIO);
  EXPECT_FALSE(line.near.poll());
  EXPECT_EQ(calls_.alloc_pd(line.near.context), nullptr);
  EXPECT_EQ(errno, EIO);
  int count = 0;
  calls_.free_device_list(calls_.get_device_list(&count));
  EXPECT_EQ(count, 1);
}

TEST_F(VerbsDoubleFaults, APairBreaksByItself) {
  Line line(calls_, 0, 1);
  network_.freeze(0);
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8, 0).at(line.far, 0).post(line.out), 0);
  network_.break_pair(0, line.out->qp_num);
  network_.thaw(0);
  EXPECT_EQ(line.near.event()->event_type, IBV_EVENT_QP_FATAL);
  EXPECT_EQ(line.near.poll()->status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(VerbsDoubleFaults, EventsMustBeAcknowledged) {
  Line line(calls_, 0, 1);
  network_.break_pair(0, line.out->qp_num);
  ibv_async_event event{};
  ASSERT_EQ(calls_.get_async_event(line.near.context, &event), 0);
  EXPECT_EQ(line.near.destroy(line.out), 0);
  expect_violation("not acknowledged");
  pollfd readable{.fd = line.near.context->async_fd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&readable, 1, 0), 0) << "the second event was about the same pair and went with it";
  EXPECT_FALSE(line.near.event());
}

TEST_F(VerbsDoubleFaults, ACallFailsWhenATestSaysSo) {
  End end(calls_, 0);
  network_.fail_call("create_qp", 2, EAGAIN);
  EXPECT_NE(end.make_pair(), nullptr);
  EXPECT_EQ(end.make_pair(), nullptr);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_NE(end.make_pair(), nullptr);
  Line line(calls_, 0, 1);
  network_.fail_call("post_send", 1, ENOSPC, 2);
  Work work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8);
  EXPECT_EQ(work.at(line.far, 0).post(line.out), ENOSPC);
  EXPECT_EQ(work.bad, &work.request);
  EXPECT_EQ(work.post(line.out), ENOSPC);
  EXPECT_EQ(work.post(line.out), 0);
}

/// Two datagram pairs; each datagram carries its number.
struct Datagrams {
  explicit Datagrams(const fabric::verbs::Library& calls) : one(calls, 0), other(calls, 1) {
    for (std::uint64_t i = 0; i < 16; ++i) EXPECT_EQ(other.receive(i, i * 64, 64, to), 0);
  }
  int post(std::uint32_t bytes) { return Work(one, IBV_WR_SEND, 1, 0, bytes).to(address, to->qp_num, kKey).post(from); }
  void send(int number) {
    one.memory[0] = byte(number);
    EXPECT_EQ(post(1), 0);
    EXPECT_TRUE(one.poll());
  }
  std::vector<int> received() const {
    std::vector<int> numbers;
    while (const auto completion = other.poll()) {
      numbers.push_back(static_cast<int>(other.memory[completion->wr_id * 64 + 40]));
    }
    return numbers;
  }
  End one;
  End other;
  ibv_qp* from = one.make_datagram_pair(kKey);
  ibv_qp* to = other.make_datagram_pair(kKey);
  ibv_ah* address = one.make_address(other.gid);
};

TEST_F(VerbsDoubleFaults, DatagramsGetLost) {
  Datagrams line(calls_);
  network_.lose_datagrams(0, 2);
  for (int i = 1; i <= 3; ++i) line.send(i);
  EXPECT_THAT(line.received(), ElementsAre(3));
  network_.lose_every(0, 2);
  for (int i = 4; i <= 7; ++i) line.send(i);
  EXPECT_THAT(line.received(), ElementsAre(4, 6));
  EXPECT_EQ(network_.traffic(0).datagrams_lost, 4u);
}

TEST_F(VerbsDoubleFaults, DatagramsComeTwiceAndLateAndInAnotherOrder) {
  Datagrams line(calls_);
  network_.duplicate_datagrams(0, 1);
  line.send(1);
  line.send(2);
  EXPECT_THAT(line.received(), ElementsAre(1, 1, 2));
  network_.swap_datagrams(0, 1);
  for (int i = 3; i <= 5; ++i) line.send(i);
  EXPECT_THAT(line.received(), ElementsAre(4, 3, 5));
  network_.swap_datagrams(0, 1);
  line.send(6);
  EXPECT_THAT(line.received(), IsEmpty());
  EXPECT_EQ(wait(line.other).status, IBV_WC_SUCCESS) << "nobody overtook it: it comes all the same";
  network_.delay_datagrams(0, std::chrono::milliseconds(5));
  line.send(7);
  EXPECT_THAT(line.received(), IsEmpty());
  EXPECT_EQ(wait(line.other).status, IBV_WC_SUCCESS);
}

TEST_F(VerbsDoubleFaults, DatagramsThatAreTooLongFailAtTheSender) {
  Datagrams line(calls_);
  ASSERT_EQ(line.post(1025), 0);
  EXPECT_EQ(line.one.poll()->status, IBV_WC_LOC_LEN_ERR);
}

TEST_F(VerbsDoubleFaults, APairInErrorFlushesItsReceives) {
  Datagrams line(calls_);
  ASSERT_EQ(line.other.to_error(line.to), 0);
  int flushed = 0;
  while (const auto completion = line.other.poll()) flushed += completion->status == IBV_WC_WR_FLUSH_ERR ? 1 : 0;
  EXPECT_EQ(flushed, 16);
}

TEST_F(VerbsDoubleFaults, ByHandNothingMovesAlone) {
  Line line(calls_, 0, 1);
  network_.motion(Motion::by_hand);
  ASSERT_EQ(line.far.receive(50, 0, 0), 0);
  line.near.memory[0] = byte(1);
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 8).at(line.far, 0).post(line.out), 0);
  EXPECT_FALSE(line.near.poll() || line.far.poll());
  network_.advance();
  EXPECT_EQ(line.near.poll()->status, IBV_WC_SUCCESS);
  EXPECT_TRUE(line.far.poll());
  EXPECT_EQ(line.far.memory[0], byte(1));
}

TEST_F(VerbsDoubleFaults, ThreadsHaveAnEndEach) {
  constexpr int kRounds = 2000;
  Line line(calls_, 0, 1);
  // Each end bounces a message to the other.
  const auto bounce = [&](End& end, ibv_qp* pair, bool begins) {
    int received = 0;
    EXPECT_EQ(end.receive(1, 0, 8), 0);
    if (begins) {
      EXPECT_EQ(Work(end, IBV_WR_SEND, 2, 64, 8).post(pair), 0);
    }
    while (received < kRounds) {
      const auto completion = end.poll();
      if (!completion) {
        std::this_thread::yield();
        continue;
      }
      EXPECT_EQ(completion->status, IBV_WC_SUCCESS);
      if (completion->opcode != IBV_WC_RECV) continue;
      ++received;
      EXPECT_EQ(end.receive(1, 0, 8), 0);
      if (begins && received == kRounds) break;
      EXPECT_EQ(Work(end, IBV_WR_SEND, 2, 64, 8).post(pair), 0);
    }
  };
  std::thread other([&] { bounce(line.far, line.in, false); });
  bounce(line.near, line.out, true);
  other.join();
}

TEST_F(VerbsDoubleFaults, ThreadsComeAndGo) {
  constexpr int kRounds = 100;
  const auto live = [&] {
    for (int round = 0; round < kRounds; ++round) {
      Line line(calls_, 0, 1, {.send_depth = 4});
      ASSERT_EQ(line.far.receive(50, 0, 8), 0);
      ASSERT_EQ(Work(line.near, IBV_WR_SEND, 1, 0, 8).post(line.out), 0);
      EXPECT_EQ(wait(line.near).status, IBV_WC_SUCCESS);
      EXPECT_EQ(wait(line.far).status, IBV_WC_SUCCESS);
      if (round % 2 == 0) network_.break_pair(1, line.in->qp_num);
      while (line.far.event()) {
      }
    }
  };
  std::thread other(live);
  live();
  other.join();
  EXPECT_EQ(network_.count(Kind::connected_pair).created, 4u * kRounds);
}

}  // namespace
}  // namespace railyard::verbs_double
