/// Memory of other processes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <type_traits>

#include "accelerator/gpu.hpp"

namespace railyard::accelerator::testing {

namespace {

static_assert(std::is_trivially_copyable_v<ShareHandle>);

class ShareTest : public GpuTest, public ::testing::WithParamInterface<DeviceMemory::Kind> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    queue_ = gpus_->open_queue(0).value();
  }
  void TearDown() override {
    queue_.reset();
    GpuTest::TearDown();
  }
  std::vector<std::byte> fetch(std::span<std::byte> memory) {
    const auto host = gpus_->allocate_pinned(memory.size()).value();
    const auto number = queue_->copy(host->memory().data(), memory.data(), memory.size());
    EXPECT_TRUE(number.ok() && wait_for(*queue_, *number));
    return {host->memory().begin(), host->memory().end()};
  }
  Error refused(const ShareHandle& handle) {
    auto mapped = gpus_->map(handle);
    EXPECT_FALSE(mapped.ok());
    return mapped.ok() ? Error() : mapped.error().copy();
  }

  std::unique_ptr<CopyQueue> queue_;
};

TEST_P(ShareTest, BytesGoBothWays) {
  Peer peer(3'000'001, GetParam(), 11);
  const auto mapped = gpus_->map(peer.handle());
  ASSERT_TRUE(mapped.ok()) << mapped.error().text();
  EXPECT_EQ((*mapped)->device(), 0);
  const auto memory = (*mapped)->memory();
  ASSERT_GE(memory.size(), 3'000'001U);
  auto wanted = pattern(memory.size(), 11);
  EXPECT_TRUE(fetch(memory) == wanted);

  const DeviceMemory here(50'000);
  const auto sent = pattern(here.size(), 12);
  here.fill(sent);
  ASSERT_TRUE(queue_->copy(memory.data() + 1001, here.data(), here.size()).ok());
  const auto last = queue_->store(memory.data() + 100'000, 0x0102030405060708);
  ASSERT_TRUE(last.ok()) << last.error().text();
  ASSERT_TRUE(wait_for(*queue_, *last));
  std::memcpy(wanted.data() + 1001, sent.data(), sent.size());
  const std::uint64_t value = 0x0102030405060708;
  std::memcpy(wanted.data() + 100'000, &value, sizeof(value));
  EXPECT_TRUE(peer.read() == wanted);
}

TEST_P(ShareTest, MappedTwiceAndUsedByAnotherDevice) {
  Peer peer(4 << 20, GetParam(), 3);
  const auto wanted = pattern(peer.handle().bytes, 3);
  auto first = gpus_->map(peer.handle());
  auto second = gpus_->map(peer.handle(), gpus_->devices() - 1);
  auto third = gpus_->map(peer.handle());
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_EQ((*second)->device(), 0);
  first->reset();
  second->reset();
  EXPECT_TRUE(fetch((*third)->memory()) == wanted);
  third->reset();
  const auto again = gpus_->map(peer.handle());
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_TRUE(fetch((*again)->memory()) == wanted);
}

TEST_P(ShareTest, APeerThatIsKilledLeavesItsMemoryMapped) {
  Peer peer(5 << 20, GetParam(), 21);
  {
    const auto mapped = gpus_->map(peer.handle());
    ASSERT_TRUE(mapped.ok()) << mapped.error().text();
    peer.kill();
    EXPECT_TRUE(fetch((*mapped)->memory()) == pattern((*mapped)->memory().size(), 21));
  }
  EXPECT_FALSE(refused(peer.handle()).text().empty());
  EXPECT_TRUE(gpus_->open_queue(0).ok());
}

TEST_P(ShareTest, TheOwnHandleIsRefusedHereAndMappedThere) {
  const DeviceMemory memory(1'000'000, GetParam());
  const auto shared = gpus_->share(*gpus_->find(memory.data() + 5));
  ASSERT_TRUE(shared.ok()) << shared.error().text();
  const Error error = refused((*shared)->handle());
  EXPECT_EQ(error.status(), Status::invalid);
  EXPECT_NE(error.text().find("own"), std::string::npos) << error.text();
  Peer peer(1000, DeviceMemory::Kind::allocated, 1);
  EXPECT_EQ(peer.map((*shared)->handle()), "");
  EXPECT_NE(peer.map(peer.handle()), "");
}

TEST_P(ShareTest, NothingInAHandleIsBelieved) {
  Peer peer(4 << 20, GetParam(), 2);
  ShareHandle wrong = peer.handle();
  wrong.kind = static_cast<ShareHandle::Kind>(9);
  EXPECT_EQ(refused(wrong).status(), Status::invalid);
  wrong = {};
  EXPECT_EQ(refused(wrong).status(), Status::invalid);
  wrong = peer.handle();
  wrong.bytes = 0;
  EXPECT_EQ(refused(wrong).status(), Status::invalid);
  for (const std::uint64_t bytes : {std::uint64_t{400} << 20, std::uint64_t{1} << 40, UINT64_MAX}) {
    wrong.bytes = bytes;
    EXPECT_NE(refused(wrong).text(), "");
  }
  wrong = peer.handle();
  wrong.device_uuid[3] ^= std::byte{1};
  EXPECT_EQ(refused(wrong).status(), Status::unsupported);
  if (on_double()) {
    wrong = peer.handle();
    wrong.device_uuid.back() = std::byte{1};  // the other GPU
    EXPECT_EQ(refused(wrong).status(), Status::refused);
  }
  if (GetParam() == DeviceMemory::Kind::allocated) {
    wrong = peer.handle();
    wrong.ipc.fill(std::byte{0x5a});
    EXPECT_NE(refused(wrong).text(), "");
  } else {
    for (const auto& [pid, descriptor] :
         {std::pair{0, 3}, std::pair{-1, 3}, std::pair{INT32_MAX, 3}, std::pair{peer.handle().pid, -1},
          std::pair{peer.handle().pid, 1'000'000}, std::pair{peer.handle().pid, 2}}) {
      wrong = peer.handle();
      wrong.pid = pid;
      wrong.descriptor = descriptor;
      EXPECT_NE(refused(wrong).text(), "");
    }
  }
  EXPECT_TRUE(gpus_->map(peer.handle()).ok());
}

TEST_P(ShareTest, FreedMemoryIsNotShared) {
  std::optional<Allocation> gone;
  {
    const DeviceMemory memory(8 << 20, GetParam());
    gone = gpus_->find(memory.data());
    ASSERT_TRUE(gone);
  }
  EXPECT_EQ(gpus_->share(*gone).status(), Status::not_found);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ShareTest, ::testing::Values(DeviceMemory::Kind::allocated, DeviceMemory::Kind::mapped),
                         [](const auto& kind) {
                           return kind.param == DeviceMemory::Kind::allocated ? "allocated" : "mapped";
                         });

using AllocateTest = GpuTest;

/// Memory of our own is found, shared by a descriptor, and stays with a peer that has it mapped.
TEST_F(AllocateTest, PeersMapItByADescriptor) {
  auto memory = gpus_->allocate(0, 3'000'001);
  ASSERT_TRUE(memory.ok()) << memory.error().text();
  ASSERT_GE((*memory)->memory().size(), 3'000'001U);
  EXPECT_EQ((*memory)->device(), 0);
  const auto found = gpus_->find((*memory)->memory().data() + 5);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->device, 0);
  const auto shared = gpus_->share(*found);
  ASSERT_TRUE(shared.ok()) << shared.error().text();
  EXPECT_EQ((*shared)->handle().kind, ShareHandle::Kind::descriptor);
  Peer peer(1000, DeviceMemory::Kind::allocated, 1);
  EXPECT_EQ(peer.map((*shared)->handle()), "");
  EXPECT_EQ(gpus_->allocate(gpus_->devices(), 100).status(), Status::out_of_range);
  EXPECT_FALSE(gpus_->allocate(0, SIZE_MAX - 100).ok());
  EXPECT_TRUE(gpus_->allocate(0, 0).ok());
}

TEST_F(AllocateTest, AGpusAtomicsReachItsOwnMemory) {
  EXPECT_TRUE(gpus_->atomics_reach(0, 0));
  EXPECT_FALSE(gpus_->atomics_reach(0, gpus_->devices()));
}

using DmaBufTest = GpuTest;

TEST_F(DmaBufTest, MemoryThatCannotBeSharedSaysWhatToDo) {
  const DeviceMemory memory(1'000'000, DeviceMemory::Kind::mapped_unshareable);
  const auto shared = gpus_->share(*gpus_->find(memory.data()));
  ASSERT_EQ(shared.status(), Status::unsupported);
  EXPECT_NE(shared.error().text().find("CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"), std::string::npos)
      << shared.error().text();
}

TEST_F(DmaBufTest, IsOfTheWholePagesThatHoldTheMemory) {
  const DeviceMemory memory(4 << 20);
  if (!gpus_->has_dma_bufs(0)) {
    EXPECT_FALSE(on_double());
    EXPECT_EQ(gpus_->dma_buf({memory.data(), memory.size()}).status(), Status::unsupported);
    GTEST_SKIP() << "this GPU has none";
  }
  const std::size_t page = 4096;
  for (const auto& [at, bytes] : {std::pair<std::size_t, std::size_t>{0, memory.size()},
                                  {1, 1},
                                  {4095, 2},
                                  {8192 + 512, 1000},
                                  {memory.size() - 7, 7}}) {
    auto made = gpus_->dma_buf({memory.data() + at, bytes});
    ASSERT_TRUE(made.ok()) << made.error().text();
    ASSERT_TRUE(made->descriptor);
    EXPECT_EQ(made->offset, at % page) << "the range begins at a page";
    if (on_double()) {
      EXPECT_EQ(::lseek(made->descriptor.get(), 0, SEEK_CUR), static_cast<off_t>(at / page * page));
    }
  }
  EXPECT_EQ(gpus_->dma_buf({memory.data() + page, memory.size()}).status(), Status::out_of_range);
  EXPECT_EQ(gpus_->dma_buf({memory.data(), 0}).status(), Status::invalid);
  std::vector<std::byte> host(page);
  EXPECT_EQ(gpus_->dma_buf(host).status(), Status::invalid);
}

}  // namespace

}  // namespace railyard::accelerator::testing
