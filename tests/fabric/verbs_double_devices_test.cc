/// The verbs double: devices as they are found, their limits, and the life of objects.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "doubles/verbs/bare.hpp"
#include "fabric/verbs_double_fixture.hpp"

namespace railyard::verbs_double {
namespace {

using ::testing::ElementsAre;
using VerbsDoubleDevices = VerbsDoubleTest;

constexpr std::uint32_t kKey = 0x77;

TEST_F(VerbsDoubleDevices, TheRoutedAddressStandsBehindOthers) {
  End end(calls_, 1);
  ibv_port_attr port{};
  ASSERT_EQ(calls_.query_port(end.context, 1, reinterpret_cast<_compat_ibv_port_attr*>(&port)), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.lid, 0);
  std::vector<std::uint32_t> types;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(port.gid_tbl_len); ++i) {
    ibv_gid_entry entry{};
    const int error = calls_.query_gid_ex(end.context, 1, i, &entry, 0, sizeof entry);
    if (error == 0) {
      types.push_back(entry.gid_type);
    } else {
      EXPECT_EQ(error, ENODATA);
    }
  }
  EXPECT_THAT(types,
              ElementsAre(IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2));
  EXPECT_EQ(end.gid.raw[10], 0xff);
  EXPECT_EQ(end.gid.raw[12], 127);
  EXPECT_EQ(end.gid.raw[15], 2);
  __be16 partition = 0;
  EXPECT_EQ(calls_.query_pkey(end.context, 1, 0, &partition), 0);
  EXPECT_EQ(partition, 0xffff);
  EXPECT_NE(calls_.query_port(end.context, 2, reinterpret_cast<_compat_ibv_port_attr*>(&port)), 0);
}

TEST_F(VerbsDoubleDevices, InfinibandHasLocalIdentifiers) {
  for (std::size_t i = 0; i < 2; ++i) network_.options(i).infiniband = true;
  End one(calls_, 0, {.gid_index = 0});
  End other(calls_, 1, {.gid_index = 0});
  ibv_port_attr port{};
  ASSERT_EQ(calls_.query_port(other.context, 1, reinterpret_cast<_compat_ibv_port_attr*>(&port)), 0);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_INFINIBAND);
  EXPECT_NE(port.lid, 0);
  ibv_qp* const from = one.make_datagram_pair(kKey);
  ibv_qp* const to = other.make_datagram_pair(kKey);
  ibv_ah_attr wanted{};
  wanted.dlid = port.lid;
  wanted.port_num = 1;
  ibv_ah* const address = calls_.create_ah(one.domain, &wanted);
  ASSERT_NE(address, nullptr);
  one.addresses.push_back(address);
  ASSERT_EQ(other.receive(1, 0, 64, to), 0);
  ASSERT_EQ(Work(one, IBV_WR_SEND, 1, 0, 8).to(address, to->qp_num, kKey).post(from), 0);
  const auto received = other.poll();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->wc_flags, 0u) << "no header inside the subnet, but its room";
  EXPECT_EQ(received->byte_len, 48u);
}

TEST_F(VerbsDoubleDevices, AnEthernetAddressNeedsAGid) {
  End end(calls_, 0);
  ibv_ah_attr wanted = end.way_to(end.gid);
  wanted.is_global = 0;
  EXPECT_EQ(calls_.create_ah(end.domain, &wanted), nullptr);
  EXPECT_EQ(errno, EINVAL);
  wanted = end.way_to(end.gid);
  wanted.grh.sgid_index = 6;
  EXPECT_EQ(calls_.create_ah(end.domain, &wanted), nullptr) << "an empty place in the table";
}

TEST_F(VerbsDoubleDevices, LimitsHold) {
  Limits& limits = network_.options(0).limits;
  limits.max_qp = 2;
  limits.max_cq = 1;
  limits.max_cqe = 64;
  limits.max_qp_wr = 16;
  limits.max_srq = 1;
  limits.max_srq_wr = 16;
  limits.max_pd = 1;
  limits.max_mr = 1;
  limits.max_ah = 1;
  limits.max_inline_data = 64;
  End end(calls_, 0);
  ibv_device_attr told{};
  ASSERT_EQ(calls_.query_device(end.context, &told), 0);
  EXPECT_EQ(told.max_qp, 2);
  EXPECT_EQ(told.max_cqe, 64);

  EXPECT_NE(end.make_pair(IBV_QPT_RC), nullptr);
  EXPECT_NE(end.make_pair(IBV_QPT_UD), nullptr);
  EXPECT_EQ(end.make_pair(IBV_QPT_RC), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(calls_.create_cq(end.context, 65, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(calls_.create_cq(end.context, 1, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(calls_.alloc_pd(end.context), nullptr);
  EXPECT_EQ(calls_.reg_mr(end.domain, end.memory.data(), 8, 0), nullptr);
  EXPECT_NE(end.make_address(end.gid), nullptr);
  EXPECT_EQ(end.make_address(end.gid), nullptr);
  ibv_srq_init_attr shared{};
  shared.attr.max_wr = 1;
  EXPECT_EQ(calls_.create_srq(end.domain, &shared), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  shared.attr.max_wr = 17;
  EXPECT_EQ(calls_.create_srq(end.domain, &shared), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = end.queue;
  wanted.srq = end.receives;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = 17;
  EXPECT_EQ(calls_.create_qp(end.domain, &wanted), nullptr);
  EXPECT_EQ(errno, EINVAL);
  wanted.cap.max_send_wr = 16;
  wanted.cap.max_inline_data = 65;
  EXPECT_EQ(calls_.create_qp(end.domain, &wanted), nullptr);
  EXPECT_EQ(errno, EINVAL);
  const Count pairs = network_.count(0, Kind::connected_pair);
  EXPECT_EQ(pairs.created, 1u);
  EXPECT_EQ(pairs.alive, 1u);
  EXPECT_EQ(network_.count(Kind::datagram_pair).peak, 1u);
}

TEST_F(VerbsDoubleDevices, WhatOthersNeedIsNotDestroyed) {
  End end(calls_, 0);
  ASSERT_NE(end.make_pair(), nullptr);
  EXPECT_EQ(calls_.dealloc_pd(end.domain), EBUSY);
  EXPECT_EQ(calls_.destroy_cq(end.queue), EBUSY);
  EXPECT_EQ(calls_.destroy_srq(end.receives), EBUSY);
  EXPECT_EQ(calls_.close_device(end.context), EBUSY);
  ibv_pd* const empty = calls_.alloc_pd(end.context);
  ibv_mr* const region = calls_.reg_mr(empty, end.memory.data(), 8, 0);
  EXPECT_EQ(calls_.dealloc_pd(empty), EBUSY);
  EXPECT_EQ(calls_.dereg_mr(region), 0);
  EXPECT_EQ(calls_.dealloc_pd(empty), 0);
}

TEST_F(VerbsDoubleDevices, UseAfterTheEndIsRecorded) {
  Line line(calls_, 0, 1);
  ibv_qp* const gone = line.out;
  ASSERT_EQ(line.near.destroy(gone), 0);
  EXPECT_EQ(calls_.destroy_qp(gone), EINVAL);
  expect_violation("destroy_qp on something that is not there");
  EXPECT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(line.far, 0).post(gone), EINVAL);
  expect_violation("post_send on something that is not there");
  ibv_cq* const queue = calls_.create_cq(line.near.context, 4, nullptr, nullptr, 0);
  ASSERT_EQ(calls_.destroy_cq(queue), 0);
  ibv_wc completion{};
  EXPECT_EQ(ibv_poll_cq(queue, 1, &completion), 0);
  expect_violation("poll_cq on something that is not there");
}

TEST_F(VerbsDoubleDevices, CompletionsOfADestroyedPairStayOrGo) {
  for (const bool removes : {false, true}) {
    network_.options(0).removes_completions = removes;
    Line line(calls_, 0, 1, {.receive_depth = 1});
    ASSERT_EQ(line.near.receive(50, 0, 8), 0);
    ASSERT_EQ(Work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8).at(line.far, 0).post(line.out), 0);
    ASSERT_EQ(Work(line.far, IBV_WR_SEND, 2, 0, 8).post(line.in), 0);
    ASSERT_EQ(line.near.destroy(line.out), 0);
    EXPECT_EQ(line.near.poll().has_value(), !removes);
    EXPECT_EQ(line.near.poll().has_value(), !removes);
    EXPECT_EQ(line.near.receive(51, 0, 8), 0) << "its place in the queue is free in any case";
  }
}

TEST_F(VerbsDoubleDevices, RegionsMayHaveAddressesOfTheirOwn) {
  Line line(calls_, 0, 1);
  constexpr std::uint64_t kBase = 0x10000;
  ibv_mr* const region = calls_.reg_mr_iova2(line.far.domain, line.far.memory.data(), 64, kBase,
                                             line.far.options.access | IBV_ACCESS_RELAXED_ORDERING);
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(network_.relaxed_regions(), 1u);
  line.near.memory[0] = byte(3);
  Work work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 8);
  work.request.wr.rdma = {.remote_addr = kBase + 56, .rkey = region->rkey};
  ASSERT_EQ(work.post(line.out), 0);
  EXPECT_EQ(line.near.poll()->status, IBV_WC_SUCCESS);
  EXPECT_EQ(line.far.memory[56], byte(3));
  EXPECT_EQ(calls_.dereg_mr(region), 0);
  EXPECT_EQ(calls_.reg_mr(line.far.domain, line.far.memory.data(), 8, IBV_ACCESS_REMOTE_WRITE), nullptr)
      << "remote write needs local write";
}

TEST_F(VerbsDoubleDevices, MemoryBehindADescriptorIsReached) {
  const int descriptor = ::memfd_create("verbs double", MFD_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(::ftruncate(descriptor, 8192), 0);
  Line line(calls_, 0, 1);
  ibv_mr* const region =
      calls_.reg_dmabuf_mr(line.far.domain, 4100, 64, 0, descriptor, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  ASSERT_NE(region, nullptr);
  line.near.memory[0] = byte(4);
  Work work(line.near, IBV_WR_RDMA_WRITE, 1, 0, 1);
  work.request.wr.rdma = {.remote_addr = 2, .rkey = region->rkey};
  ASSERT_EQ(work.post(line.out), 0);
  std::byte landed{};
  ASSERT_EQ(::pread(descriptor, &landed, 1, 4102), 1);
  EXPECT_EQ(landed, byte(4));
  EXPECT_EQ(calls_.dereg_mr(region), 0);
  ::close(descriptor);
}

}  // namespace
}  // namespace railyard::verbs_double
