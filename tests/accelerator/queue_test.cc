/// Copies by the copy engines.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "accelerator/gpu.hpp"

namespace railyard::accelerator::testing {

namespace {

class QueueTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto opened = gpus_->open_queue(0);
    ASSERT_TRUE(opened.ok()) << opened.error().text();
    queue_ = std::move(*opened);
  }
  void TearDown() override {
    queue_.reset();
    GpuTest::TearDown();
  }
  std::uint64_t copy(void* to, const void* from, std::size_t bytes) {
    const auto number = queue_->copy(to, from, bytes);
    EXPECT_TRUE(number.ok()) << number.error().text();
    return number.ok() ? *number : 0;
  }

  std::unique_ptr<CopyQueue> queue_;
};

TEST_F(QueueTest, EverySizeInEveryDirection) {
  constexpr std::size_t kMost = (3 << 20) + 77;
  const DeviceMemory one(kMost);
  const DeviceMemory two(kMost);
  const auto source = gpus_->allocate_pinned(kMost).value();
  const auto target = gpus_->allocate_pinned(kMost).value();
  unsigned seed = 1;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{3}, std::size_t{8}, std::size_t{63}, std::size_t{4097},
                                  std::size_t{65'535}, std::size_t{1'000'003}, kMost - 5}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{5}}) {
      const auto wanted = pattern(bytes, ++seed);
      std::memcpy(source->memory().data() + at, wanted.data(), bytes);
      copy(one.data() + at, source->memory().data() + at, bytes);
      copy(two.data(), one.data() + at, bytes);
      const std::uint64_t last = copy(target->memory().data() + at, two.data(), bytes);
      ASSERT_TRUE(wait_for(*queue_, last));
      EXPECT_EQ(std::memcmp(target->memory().data() + at, wanted.data(), bytes), 0) << bytes << " bytes at " << at;
    }
  }
}

TEST_F(QueueTest, NumbersCountUpAndNothingIsDoneEarly) {
  constexpr std::size_t kBytes = 100'000;
  const DeviceMemory memory(kBytes);
  const auto host = gpus_->allocate_pinned(2 * kBytes).value();
  std::byte* const back = host->memory().data() + kBytes;
  std::uint64_t number = 0;
  for (unsigned round = 0; round < 50; ++round) {
    const auto wanted = pattern(kBytes, round);
    std::memcpy(host->memory().data(), wanted.data(), kBytes);
    std::memset(back, 0, kBytes);
    EXPECT_EQ(copy(memory.data(), host->memory().data(), kBytes), number + 1);
    EXPECT_EQ(copy(back, memory.data(), kBytes), number + 2);
    number += 2;
    for (;;) {
      const auto done = queue_->completed();
      ASSERT_TRUE(done.ok()) << done.error().text();
      ASSERT_GE(*done, number - 2);
      ASSERT_LE(*done, number);
      if (*done == number) break;
    }
    ASSERT_EQ(std::memcmp(back, wanted.data(), kBytes), 0) << round;
  }
}

TEST_F(QueueTest, CopiesAreLateOnTheDouble) {
  if (!on_double()) GTEST_SKIP() << "a GPU's copies may be done at once";
  program().set_copy_us(20'000);
  const DeviceMemory memory(8);
  const auto host = gpus_->allocate_pinned(16).value();
  std::memset(host->memory().data(), 7, 16);
  copy(memory.data(), host->memory().data(), 8);
  const std::uint64_t last = copy(host->memory().data() + 8, memory.data(), 8);
  EXPECT_LT(*queue_->completed(), last);
  ASSERT_TRUE(wait_for(*queue_, last));
}

TEST_F(QueueTest, StoresComeAfterWhatIsBeforeThem) {
  const DeviceMemory memory(4096);
  const auto host = gpus_->allocate_pinned(4096).value();
  auto* const flag = new (host->memory().data() + 2048) std::atomic<std::uint64_t>(0);
  for (std::uint64_t round = 1; round <= 30; ++round) {
    const auto wanted = pattern(1000, static_cast<unsigned>(round));
    memory.fill(wanted);
    copy(host->memory().data(), memory.data(), 1000);
    ASSERT_TRUE(queue_->store(flag, round).ok());
    while (flag->load(std::memory_order_acquire) != round) {
      ASSERT_TRUE(queue_->completed().ok());
    }
    ASSERT_EQ(std::memcmp(host->memory().data(), wanted.data(), 1000), 0) << round;
  }
  const auto number = queue_->store(memory.data() + 16, 0x1122334455667788);
  ASSERT_TRUE(number.ok()) << number.error().text();
  ASSERT_TRUE(wait_for(*queue_, *number));
  std::uint64_t stored = 0;
  std::memcpy(&stored, memory.read(16, 8).data(), 8);
  EXPECT_EQ(stored, 0x1122334455667788U);
  EXPECT_EQ(queue_->store(memory.data() + 4, 1).status(), Status::invalid);
}

TEST_F(QueueTest, NoBytesAreDoneInOrderToo) {
  const DeviceMemory memory(1 << 20);
  const auto host = gpus_->allocate_pinned(1 << 20).value();
  EXPECT_EQ(copy(memory.data(), host->memory().data(), 1 << 20), 1U);
  EXPECT_EQ(copy(nullptr, nullptr, 0), 2U);
  EXPECT_EQ(copy(memory.data(), host->memory().data(), 0), 3U);
  ASSERT_TRUE(wait_for(*queue_, 3));
}

TEST_F(QueueTest, AnyThreadMayUseItWithoutAContext) {
  const DeviceMemory memory(1000);
  const auto host = gpus_->allocate_pinned(1000).value();
  std::thread([&] {
    const auto number = queue_->copy(memory.data(), host->memory().data(), 1000);
    ASSERT_TRUE(number.ok()) << number.error().text();
    EXPECT_TRUE(wait_for(*queue_, *number));
    cuda::CudaContext current = context_;
    EXPECT_EQ(library().context_current(&current), cuda::kSuccess);
    EXPECT_EQ(current, nullptr);
    EXPECT_TRUE(gpus_->open_queue(0).ok());
    EXPECT_TRUE(gpus_->allocate_pinned(10).ok());
    EXPECT_EQ(library().context_current(&current), cuda::kSuccess);
    EXPECT_EQ(current, nullptr);
  }).join();
}

TEST_F(QueueTest, TheEndWaitsForWhatIsUnderWay) {
  if (on_double()) program().set_copy_us(2000);
  const auto wanted = pattern(50'000, 5);
  const DeviceMemory memory(wanted.size());
  const auto host = gpus_->allocate_pinned(wanted.size()).value();
  memory.fill(wanted);
  for (int i = 0; i < 5; ++i) copy(host->memory().data(), memory.data(), wanted.size());
  queue_.reset();
  EXPECT_EQ(std::memcmp(host->memory().data(), wanted.data(), wanted.size()), 0);
}

TEST_F(QueueTest, MemoryThatIsNobodysIsRefusedAndTheQueueGoesOn) {
  if (!on_double()) GTEST_SKIP() << "a real driver reads it as memory of the host";
  const DeviceMemory memory(1000);
  const auto host = gpus_->allocate_pinned(1000).value();
  const auto refused = queue_->copy(memory.data(), reinterpret_cast<void*>(4096), 100);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().text().find("CUDA_ERROR_"), std::string::npos) << refused.error().text();
  EXPECT_EQ(copy(memory.data(), host->memory().data(), 1000), 1U);
  EXPECT_TRUE(wait_for(*queue_, 1));
}

TEST_F(QueueTest, AnErrorOfTheDeviceEndsIt) {
  if (!on_double()) GTEST_SKIP() << "no GPU is broken for this";
  const DeviceMemory memory(1000);
  const auto host = gpus_->allocate_pinned(1000).value();
  program().fail_copy(3);
  for (int i = 0; i < 3; ++i) copy(memory.data(), host->memory().data(), 1000);
  static_cast<void>(queue_->copy(memory.data(), host->memory().data(), 1000));  // the third may have failed by now
  for (;;) {
    const auto done = queue_->completed();
    if (!done.ok()) {
      const std::string text = done.error().text();
      EXPECT_NE(text.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << text;
      EXPECT_NE(text.find("GPU 0 (0000:1b:00.0)"), std::string::npos) << text;
      break;
    }
    ASSERT_LE(*done, 2U);
  }
  EXPECT_FALSE(queue_->copy(memory.data(), host->memory().data(), 10).ok());
  EXPECT_FALSE(queue_->store(memory.data(), 1).ok());
  EXPECT_FALSE(queue_->completed().ok());
}

TEST_F(QueueTest, ManyQueuesHaveTheirOwnNumbers) {
  constexpr std::size_t kQueues = 70;  // more than one page of words
  std::vector<std::unique_ptr<CopyQueue>> queues;
  for (std::size_t i = 0; i < kQueues; ++i) queues.push_back(gpus_->open_queue(0).value());
  queues.clear();
  queue_.reset();
  if (on_double()) program().live(&before_);  // with the pages of words that stay
  const DeviceMemory memory(64 * kQueues);
  const auto host = gpus_->allocate_pinned(64 * kQueues).value();
  for (std::size_t i = 0; i < kQueues; ++i) {
    auto opened = gpus_->open_queue(static_cast<int>(i) % gpus_->devices());
    ASSERT_TRUE(opened.ok()) << opened.error().text();
    queues.push_back(std::move(*opened));
  }
  for (int round = 1; round <= 3; ++round) {
    for (std::size_t i = 0; i < kQueues; ++i) {
      const auto number = queues[i]->copy(memory.data() + 64 * i, host->memory().data() + 64 * i, 64);
      ASSERT_TRUE(number.ok()) << number.error().text();
      EXPECT_EQ(*number, static_cast<std::uint64_t>(round));
    }
  }
  for (auto& queue : queues) ASSERT_TRUE(wait_for(*queue, 3));
}

TEST_F(QueueTest, ThereIsNoSuchDevice) {
  EXPECT_EQ(gpus_->open_queue(-1).status(), Status::out_of_range);
  EXPECT_EQ(gpus_->open_queue(1000).status(), Status::out_of_range);
}

TEST_F(QueueTest, WritesOfNicsAreFlushedWhereThePlatformSaysSo) {
  if (gpus_->nic_writes(0) != NicWrites::by_flush) GTEST_SKIP() << "this GPU has no flush call, or needs none";
  const auto flushed = gpus_->flush_writes(0);
  EXPECT_TRUE(flushed.ok()) << flushed.error().text();
}

}  // namespace

}  // namespace railyard::accelerator::testing
