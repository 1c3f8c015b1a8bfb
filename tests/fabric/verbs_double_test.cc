/// The verbs double itself: with bare verbs calls, each thing that it is there to show is seen.
#include <gtest/gtest.h>

#include "doubles/verbs/bare.hpp"
#include "fabric/verbs_double_fixture.hpp"

namespace railyard::verbs_double {
namespace {

using VerbsDouble = VerbsDoubleTest;

TEST_F(VerbsDouble, StandsInForTheLibrary) {
  const auto found = fabric::verbs::library();
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, &calls_);
  int count = 0;
  ibv_device** const list = calls_.get_device_list(&count);
  ASSERT_EQ(count, 2);
  EXPECT_STREQ(calls_.get_device_name(list[0]), "fake0");
  EXPECT_STREQ(calls_.get_device_name(list[1]), "fake1");
  EXPECT_EQ(list[2], nullptr);
  calls_.free_device_list(list);
}

TEST_F(VerbsDouble, AWriteLandsWithItsImmediate) {
  Line line(calls_, 0, 1);
  line.near.memory[0] = byte(7);
  ASSERT_EQ(line.far.receive(50, 0, 0), 0);
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 8).at(line.far, 100).immediate(99).post(line.out), 0);
  EXPECT_EQ(line.far.memory[100], byte(7));
  const auto sent = line.near.poll();
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent->opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(sent->wr_id, 1u);
  EXPECT_EQ(sent->qp_num, line.out->qp_num);
  const auto landed = line.far.poll();
  ASSERT_TRUE(landed);
  EXPECT_EQ(landed->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(landed->wr_id, 50u);
  EXPECT_EQ(landed->imm_data, 99u);
  EXPECT_EQ(landed->byte_len, 8u);
  EXPECT_EQ(landed->wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(landed->qp_num, line.in->qp_num);
  EXPECT_FALSE(line.near.poll() || line.far.poll());
}

TEST_F(VerbsDouble, AMessageTakesTheOldestReceive) {
  Line line(calls_, 0, 1);
  line.near.memory[0] = byte(1);
  line.near.memory[1] = byte(2);
  ASSERT_EQ(line.far.receive(50, 0, 64), 0);
  ASSERT_EQ(line.far.receive(51, 64, 64), 0);
  ASSERT_EQ(Work(line.near, IBV_WR_SEND, 1, 0, 1, IBV_SEND_INLINE).post(line.out), 0);
  ASSERT_EQ(Work(line.near, IBV_WR_SEND, 2, 1, 1).post(line.out), 0);
  EXPECT_EQ(line.far.memory[0], byte(1));
  EXPECT_EQ(line.far.memory[64], byte(2));
  EXPECT_EQ(line.near.poll()->wr_id, 2u) << "the first asked for no completion";
  EXPECT_EQ(line.far.poll()->wr_id, 50u);
  EXPECT_EQ(line.far.poll()->wr_id, 51u);
}

TEST_F(VerbsDouble, ReadsAndAtomicsBringBackWhatWasThere) {
  Line line(calls_, 0, 1);
  line.far.memory[16] = byte(5);
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_READ, 1, 0, 8).at(line.far, 16).post(line.out), 0);
  EXPECT_EQ(line.near.memory[0], byte(5));
  EXPECT_EQ(line.near.poll()->opcode, IBV_WC_RDMA_READ);

  Work add(line.near, IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 8, 8);
  add.request.wr.atomic.compare_add = 3;
  ASSERT_EQ(add.at(line.far, 16).post(line.out), 0);
  EXPECT_EQ(line.near.memory[8], byte(5));
  EXPECT_EQ(line.far.memory[16], byte(8));
  EXPECT_EQ(line.near.poll()->opcode, IBV_WC_FETCH_ADD);

  Work swap(line.near, IBV_WR_ATOMIC_CMP_AND_SWP, 3, 8, 8);
  swap.request.wr.atomic.compare_add = 8;
  swap.request.wr.atomic.swap = 1;
  ASSERT_EQ(swap.at(line.far, 16).post(line.out), 0);
  EXPECT_EQ(line.near.memory[8], byte(8));
  EXPECT_EQ(line.far.memory[16], byte(1));
  ASSERT_EQ(swap.at(line.far, 16).post(line.out), 0);
  EXPECT_EQ(line.near.memory[8], byte(1)) << "what was there, not what was expected";
  EXPECT_EQ(line.far.memory[16], byte(1));
}

TEST_F(VerbsDouble, ADatagramBringsAHeaderAndNeedsTheKey) {
  End one(calls_, 0);
  End other(calls_, 1);
  constexpr std::uint32_t kKey = 0x1234;
  ibv_qp* const from = one.make_datagram_pair(kKey);
  ibv_qp* const to = other.make_datagram_pair(kKey);
  ibv_ah* const address = one.make_address(other.gid);
  ASSERT_NE(address, nullptr);
  ASSERT_EQ(other.receive(50, 0, 128, to), 0);
  one.memory[0] = byte(9);
  ASSERT_EQ(Work(one, IBV_WR_SEND, 1, 0, 4).to(address, to->qp_num, kKey + 1).post(from), 0);
  EXPECT_EQ(one.poll()->status, IBV_WC_SUCCESS) << "the sender is not told";
  EXPECT_FALSE(other.poll());
  ASSERT_EQ(Work(one, IBV_WR_SEND, 2, 0, 4, IBV_SEND_INLINE).to(address, to->qp_num, kKey).post(from), 0);
  const auto received = other.poll();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->byte_len, 44u);
  EXPECT_EQ(received->src_qp, from->qp_num);
  EXPECT_EQ(received->wc_flags, static_cast<unsigned>(IBV_WC_GRH));
  EXPECT_EQ(other.memory[40], byte(9));
  EXPECT_EQ(other.memory[35], byte(1)) << "the sender's address ends its IPv4 header: 127.0.0.1";
  EXPECT_EQ(other.memory[39], byte(2));
  EXPECT_EQ(network_.traffic(1).datagrams_refused, 1u);
}

TEST_F(VerbsDouble, WorkRequestsLeaveTheQueueWhenALaterCompletionWasPolled) {
  Line line(calls_, 0, 1, {.send_depth = 4});
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8, 0).at(line.far, 0).post(line.out), 0);
  }
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 2, 0, 8).at(line.far, 0).post(line.out), 0);
  Work more(line.near, IBV_WR_RDMA_WRITE, 3, 0, 8);
  Work last(line.near, IBV_WR_RDMA_WRITE, 4, 0, 8);
  more.at(line.far, 0).then(last.at(line.far, 0));
  EXPECT_EQ(more.post(line.out), ENOMEM) << "all have arrived, but nothing was polled";
  EXPECT_EQ(more.bad, &more.request);
  EXPECT_EQ(line.near.poll()->wr_id, 2u);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8, 0).at(line.far, 0).post(line.out), 0);
  }
  EXPECT_EQ(more.post(line.out), ENOMEM);
  EXPECT_EQ(more.bad, &last.request) << "what stands before it was taken";
  EXPECT_EQ(line.near.poll()->wr_id, 3u);
  EXPECT_EQ(network_.traffic(0).peak_send_queue, 4u);
}

TEST_F(VerbsDouble, AReceiveQueueEndsToo) {
  Line line(calls_, 0, 1, {.receive_depth = 2});
  EXPECT_EQ(line.far.receive(1, 0, 8), 0);
  EXPECT_EQ(line.far.receive(2, 0, 8), 0);
  EXPECT_EQ(line.far.receive(3, 0, 8), ENOMEM);
  ASSERT_EQ(Work(line.near, IBV_WR_SEND, 1, 0, 8).post(line.out), 0);
  EXPECT_EQ(line.far.receive(3, 0, 8), ENOMEM) << "taken, but not polled";
  EXPECT_TRUE(line.far.poll());
  EXPECT_EQ(line.far.receive(3, 0, 8), 0);
}

TEST_F(VerbsDouble, ACompletionQueueThatRunsOverIsDead) {
  Line line(calls_, 0, 1, {.completions = 2});
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(line.far, 0).post(line.out), 0);
  }
  expect_violation("completion queue of fake0 for 2 ran over");
  const auto event = line.near.event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event_type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(event->element.cq, line.near.queue);
  EXPECT_TRUE(line.near.poll());
  EXPECT_TRUE(line.near.poll());
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(line.far, 0).post(line.out), 0);
  EXPECT_FALSE(line.near.poll());
}

TEST_F(VerbsDouble, AWriteThatMayNotEndsBothPairs) {
  Line line(calls_, 0, 1);
  Work bad(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8, 0);
  Work next(line.near, IBV_WR_RDMA_WRITE, 2, 0, 8, 0);
  bad.at(line.far, line.far.memory.size() - 7).then(next.at(line.far, 0));
  ASSERT_EQ(bad.post(line.out), 0);
  EXPECT_EQ(line.near.poll()->status, IBV_WC_REM_ACCESS_ERR);
  const auto flushed = line.near.poll();
  ASSERT_TRUE(flushed) << "in error also those complete that did not ask for it";
  EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(flushed->wr_id, 2u);
  EXPECT_EQ(line.near.event()->event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  const auto event = line.far.event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event_type, IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(event->element.qp, line.in);
  EXPECT_EQ(line.far.event()->event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  EXPECT_FALSE(line.far.event());
  ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 3, 0, 8, 0).at(line.far, 0).post(line.out), 0);
  EXPECT_EQ(line.near.poll()->status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(VerbsDouble, ARegionGivesOnlyTheAccessItHas) {
  const EndOptions closed{.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ};
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    Line line(calls_, 0, {}, 1, closed);
    ASSERT_EQ(Work(line.near, opcode, 1, 0, 8).at(line.far, 0).post(line.out), 0);
    EXPECT_EQ(line.near.poll()->status, opcode == IBV_WR_RDMA_READ ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
  }
}

TEST_F(VerbsDouble, EndsThatDoNotAgreeDoNotMeet) {
  network_.retry_time(std::chrono::milliseconds(1));
  struct Case {
    EndOptions near;
    ibv_wc_status status;
  };
  // Another sequence, another kind of address, another size of packets.
  for (const Case& one : {Case{{.first_packet = 1}, IBV_WC_RETRY_EXC_ERR}, Case{{.gid_index = 2}, IBV_WC_RETRY_EXC_ERR},
                          Case{{.path_mtu = IBV_MTU_512}, IBV_WC_REM_INV_REQ_ERR}}) {
    Line line(calls_, 0, one.near, 1, {});
    ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(line.far, 0).post(line.out), 0);
    EXPECT_EQ(wait(line.near).status, one.status);
  }
}

TEST_F(VerbsDouble, AWrongLocalKeyIsTheSendersFault) {
  Line line(calls_, 0, 1);
  Work work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8);
  work.sge.lkey = line.near.region->rkey;
  ASSERT_EQ(work.at(line.far, 0).post(line.out), 0);
  EXPECT_EQ(line.near.poll()->status, IBV_WC_LOC_PROT_ERR);
  EXPECT_FALSE(line.far.event());
}

TEST_F(VerbsDouble, AMessageTooLongForItsReceiveFailsAtBothEnds) {
  Line line(calls_, 0, 1);
  ASSERT_EQ(line.far.receive(50, 0, 4), 0);
  ASSERT_EQ(Work(line.near, IBV_WR_SEND, 1, 0, 8).post(line.out), 0);
  EXPECT_EQ(line.near.poll()->status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(line.far.poll()->status, IBV_WC_LOC_LEN_ERR);
}

TEST_F(VerbsDouble, PostsThatCannotBeAreRefusedAtOnce) {
  Line line(calls_, 0, 1, {.inline_bytes = 16});
  EXPECT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 17, IBV_SEND_INLINE).at(line.far, 0).post(line.out), EINVAL);
  EXPECT_EQ(Work(line.near, IBV_WR_RDMA_READ, 1, 0, 8, IBV_SEND_INLINE).at(line.far, 0).post(line.out), EINVAL);
  EXPECT_EQ(Work(line.near, IBV_WR_BIND_MW, 1, 0, 8).post(line.out), EINVAL);
  ibv_qp* const young = line.near.make_pair();
  EXPECT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(line.far, 0).post(young), EINVAL);
}

TEST_F(VerbsDouble, ASenderWaitsForAReceiveAndWhatIsBehindItToo) {
  Line line(calls_, 0, 1);
  Work first(line.near, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 0);
  Work second(line.near, IBV_WR_RDMA_WRITE, 2, 0, 8);
  ASSERT_EQ(first.at(line.far, 0).then(second.at(line.far, 0)).post(line.out), 0);
  EXPECT_FALSE(line.near.poll());
  EXPECT_EQ(network_.traffic(0).receiver_waits, 1u);
  ASSERT_EQ(line.far.receive(50, 0, 0), 0);
  EXPECT_EQ(line.near.poll()->wr_id, 1u);
  EXPECT_EQ(line.near.poll()->wr_id, 2u);
}

TEST_F(VerbsDouble, ASenderThatMayNotWaitForEverGivesUp) {
  network_.retry_time(std::chrono::milliseconds(2));
  Line line(calls_, 0, 1, {.rnr_retry = 3});
  ASSERT_EQ(Work(line.near, IBV_WR_SEND, 1, 0, 8).post(line.out), 0);
  EXPECT_EQ(wait(line.near).status, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_F(VerbsDouble, APeerThatIsGoneIsFoundOutByTheTimeout) {
  network_.retry_time(std::chrono::milliseconds(2));
  for (const bool destroyed : {false, true}) {
    Line line(calls_, 0, 1);
    if (destroyed) {
      ASSERT_EQ(line.far.destroy(line.in), 0);
    } else {
      ASSERT_EQ(line.far.to_error(line.in), 0);
    }
    ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(line.far, 0).post(line.out), 0);
    EXPECT_FALSE(line.near.poll());
    EXPECT_EQ(wait(line.near).status, IBV_WC_RETRY_EXC_ERR);
  }
}

TEST_F(VerbsDouble, APeerThatIsLateInTimeHearsAll) {
  network_.retry_time(std::chrono::seconds(10));
  End near(calls_, 0);
  End far(calls_, 1);
  ibv_qp* const out = near.make_pair();
  ibv_qp* const in = far.make_pair();
  ASSERT_EQ(near.to_init(out), 0);
  ASSERT_EQ(far.to_init(in), 0);
  ASSERT_EQ(near.to_receive(out, far.gid, in->qp_num), 0);
  ASSERT_EQ(near.to_send(out), 0);
  ASSERT_EQ(Work(near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(far, 0).post(out), 0);
  EXPECT_FALSE(near.poll());
  ASSERT_EQ(far.to_receive(in, near.gid, out->qp_num), 0);
  EXPECT_EQ(wait(near).status, IBV_WC_SUCCESS);
  EXPECT_EQ(far.event()->event_type, IBV_EVENT_COMM_EST);
}

TEST_F(VerbsDouble, StatesFollowEachOtherWithAllTheyNeed) {
  End end(calls_, 0);
  ibv_qp* const pair = end.make_pair();
  EXPECT_EQ(end.to_send(pair), EINVAL);
  ibv_qp_attr wanted{};
  wanted.qp_state = IBV_QPS_INIT;
  wanted.port_num = 1;
  EXPECT_EQ(calls_.modify_qp(pair, &wanted, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
  wanted.port_num = 2;
  const int all = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
  EXPECT_EQ(calls_.modify_qp(pair, &wanted, all), EINVAL) << "no such port";
  ASSERT_EQ(end.to_init(pair), 0);
  EXPECT_EQ(end.to_init(pair), EINVAL);
  ASSERT_EQ(end.to_error(pair), 0);
  wanted.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(calls_.modify_qp(pair, &wanted, IBV_QP_STATE), 0);
  EXPECT_EQ(end.to_init(pair), 0);
  EXPECT_EQ(pair->state, IBV_QPS_INIT);
}
}  // namespace
}  // namespace railyard::verbs_double
