/// Whose memory an address is.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <thread>

#include "accelerator/gpu.hpp"

namespace railyard::accelerator::testing {

namespace {

using FindTest = GpuTest;

TEST_F(FindTest, HostMemoryIsNone) {
  const int on_stack = 0;
  const auto on_heap = std::make_unique<int>(0);
  static const int constant = 7;
  EXPECT_FALSE(gpus_->find(&on_stack));
  EXPECT_FALSE(gpus_->find(on_heap.get()));
  EXPECT_FALSE(gpus_->find(&constant));
  EXPECT_FALSE(gpus_->find(nullptr));
}

TEST_F(FindTest, WhatIsNotMappedIsNone) {
  void* const gone = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  EXPECT_FALSE(gpus_->find(gone));
  ASSERT_EQ(::munmap(gone, 4096), 0);
  EXPECT_FALSE(gpus_->find(gone));
}

TEST_F(FindTest, PinnedAndManagedMemoryIsTheHosts) {
  const auto pinned = gpus_->allocate_pinned(10'000);
  ASSERT_TRUE(pinned.ok()) << pinned.error().text();
  EXPECT_FALSE(gpus_->find((*pinned)->memory().data()));
  cuda::Address managed = 0;
  ASSERT_EQ(program().allocate_managed(&managed, 8192, 1), cuda::kSuccess);
  EXPECT_FALSE(gpus_->find(reinterpret_cast<void*>(managed)));
  ASSERT_EQ(program().free(managed), cuda::kSuccess);
}

TEST_F(FindTest, DeviceMemoryFromItsFirstByteToItsLast) {
  const DeviceMemory memory(1'000'000);
  const DeviceMemory small(40);
  for (const DeviceMemory* each : {&memory, &small}) {
    const auto first = gpus_->find(each->data());
    ASSERT_TRUE(first);
    EXPECT_EQ(first->device, 0);
    EXPECT_EQ(first->base, reinterpret_cast<std::uintptr_t>(each->data()));
    EXPECT_GE(first->bytes, each->size());
    if (on_double()) {
      EXPECT_EQ(first->bytes, each->size());
    }
    const auto last = gpus_->find(each->data() + each->size() - 1);
    ASSERT_TRUE(last);
    EXPECT_EQ(last->base, first->base);
    EXPECT_EQ(last->id, first->id);
  }
  EXPECT_NE(gpus_->find(memory.data())->id, gpus_->find(small.data())->id);
}

TEST_F(FindTest, MemoryThatTheProgramMaps) {
  const DeviceMemory memory(3'000'000, DeviceMemory::Kind::mapped);
  const auto found = gpus_->find(memory.data() + 2'999'999);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->device, 0);
  EXPECT_EQ(found->base, reinterpret_cast<std::uintptr_t>(memory.data()));
  EXPECT_EQ(found->bytes, memory.size());
}

TEST_F(FindTest, FromAThreadWithoutAContext) {
  const DeviceMemory memory(5000);
  std::optional<Allocation> found;
  std::thread([&] { found = gpus_->find(memory.data() + 17); }).join();
  ASSERT_TRUE(found);
  EXPECT_GE(found->bytes, 5000U);
}

TEST_F(FindTest, FreedMemoryIsNoneAndTheNextThereHasAnotherId) {
  std::optional<Allocation> before;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const void* at = nullptr;
    {
      const DeviceMemory memory(4 << 20);
      const auto found = gpus_->find(memory.data());
      ASSERT_TRUE(found);
      at = memory.data();
      if (before && before->base == found->base) {
        EXPECT_NE(found->id, before->id);
        return;
      }
      before = found;
    }
    EXPECT_FALSE(gpus_->find(at));
  }
  GTEST_SKIP() << "no address came twice";
}

TEST_F(FindTest, TheProcessorCannotTouchMemoryOfTheDouble) {
  if (!on_double()) GTEST_SKIP() << "a real driver may map it";
  const DeviceMemory memory(10'000);
  const auto wanted = pattern(5000, 9);
  std::vector<std::byte> read(5000);
  EXPECT_EQ(program().poke(memory.data() + 3, wanted.data(), wanted.size()), 1);
  EXPECT_EQ(program().peek(read.data(), memory.data() + 3, read.size()), 1);
  EXPECT_EQ(read, wanted);
  EXPECT_EQ(memory.read(3, 5000), wanted);
  EXPECT_EQ(program().peek(read.data(), memory.data() + 9000, read.size()), 0);
  EXPECT_EQ(program().peek(read.data(), wanted.data(), read.size()), 0);
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile std::byte*>(memory.data())), "");
  EXPECT_DEATH(*static_cast<volatile std::byte*>(memory.data() + 9999) = std::byte{1}, "");
}

TEST_F(FindTest, DevicesHaveBusIds) {
  ASSERT_GE(gpus_->devices(), 1);
  EXPECT_EQ(gpus_->name(), "cuda");
  for (int device = 0; device < gpus_->devices(); ++device) {
    EXPECT_EQ(gpus_->bus_id(device).size(), std::string("0000:1b:00.0").size()) << gpus_->bus_id(device);
  }
  if (on_double()) {
    EXPECT_EQ(gpus_->bus_id(0), "0000:1b:00.0");
  }
  EXPECT_EQ(gpus_->bus_id(-1), "");
  EXPECT_EQ(gpus_->bus_id(1000), "");
}

TEST_F(FindTest, HostMemoryIsPinnedUntilTheEnd) {
  std::vector<std::byte> memory(100'000);
  {
    auto pinned = gpus_->pin(memory);
    ASSERT_TRUE(pinned.ok()) << pinned.error().text();
    EXPECT_EQ((*pinned)->memory().data(), memory.data());
    EXPECT_NE((*pinned)->device_address(), nullptr);
    const auto again = gpus_->pin(memory);
    ASSERT_FALSE(again.ok());
    EXPECT_NE(again.error().text().find("pinned already"), std::string::npos) << again.error().text();
  }
  EXPECT_TRUE(gpus_->pin(memory).ok());
  EXPECT_FALSE(gpus_->pin({}).ok());
  EXPECT_FALSE(gpus_->allocate_pinned(0).ok());
}

}  // namespace

}  // namespace railyard::accelerator::testing
