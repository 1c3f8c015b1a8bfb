/// Registered memory of verbs rails, and the atomics that a device does in it.
#include <sys/mman.h>
#include <unistd.h>

#include "fabric/verbs_rails.hpp"

namespace railyard::fabric {
namespace {

using ::testing::HasSubstr;

using VerbsMemory = VerbsRails;

TEST_F(VerbsMemory, OnlyBulkDataMayArriveInAnyOrder) {
  Side& a = open(0);
  std::array<std::byte, 4096> bytes{};
  EXPECT_EQ(network_.relaxed_regions(), 0u) << "neither CM messages nor signals";
  auto bulk = a.rail->register_memory(bytes, {.remote = true, .bulk = true});
  ASSERT_TRUE(bulk.ok());
  EXPECT_EQ(network_.relaxed_regions(), 1u);
  auto plain = a.rail->register_memory(bytes, {.remote = true});
  auto local = a.rail->register_memory(bytes, {});
  ASSERT_TRUE(plain.ok() && local.ok());
  EXPECT_EQ(network_.relaxed_regions(), 1u);
  for (const Registration& one : {*bulk, *plain, *local}) a.rail->revoke(one);
  EXPECT_EQ(network_.relaxed_regions(), 0u);
}

TEST_F(VerbsMemory, WhereRelaxedOrderIsNotToBeHadBulkIsPlain) {
  network_.library().reg_mr_iova2 = nullptr;
  Side& a = open(0);
  std::array<std::byte, 4096> bytes{};
  EXPECT_TRUE(a.rail->register_memory(bytes, {.remote = true, .bulk = true}).ok());
  EXPECT_EQ(network_.relaxed_regions(), 0u);
}

TEST_F(VerbsMemory, WhatPeersMayNotReachTheyDoNot) {
  Side& a = open(0);
  Side& b = open(1);
  std::array<std::byte, 64> own{};
  auto local = b.rail->register_memory(own, {});
  ASSERT_TRUE(local.ok());
  const RemoteId link = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, link));
  PostContext* const context = a.fresh();
  ASSERT_EQ(a.rail->write({link, local->remote_base, local->key}, a.chunk(0, 8), {}, context), Post::posted);
  ASSERT_TRUE(pump([&] { return a.told(context) == 1; }));
  EXPECT_EQ(a.find(Event::Kind::failed)->error, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(own[0], std::byte{0});
}

TEST_F(VerbsMemory, ADmaBufIsWrittenWhereItLies) {
  Side& a = open(0);
  Side& b = open(1);
  ASSERT_TRUE(b.rail->capabilities().device_memory);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const int file = ::memfd_create("device", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(file, static_cast<off_t>(4 * page)), 0);
  auto* const mapped = static_cast<std::byte*>(::mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  ASSERT_NE(mapped, MAP_FAILED);
  // An address that nothing is mapped at here, as that of a device may be.
  auto* const address = reinterpret_cast<std::byte*>(std::uintptr_t{0x7000'0000'0000} + 512);
  auto registration =
      b.rail->register_memory({address, 1000}, {.remote = true, .dma_buf = file, .dma_buf_offset = page + 512});
  ASSERT_TRUE(registration.ok()) << registration.error().text();
  EXPECT_EQ(registration->remote_base, reinterpret_cast<std::uint64_t>(address));
  const RemoteId link = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, link));
  std::fill_n(a.memory.begin(), 1000, std::byte{9});
  PostContext* const context = a.fresh();
  ASSERT_EQ(a.rail->write({link, registration->remote_base, registration->key}, a.chunk(0, 1000), {}, context),
            Post::posted);
  ASSERT_TRUE(pump([&] { return a.told(context) == 1; }));
  EXPECT_EQ(mapped[page + 511], std::byte{0});
  EXPECT_EQ(mapped[page + 512], std::byte{9});
  EXPECT_EQ(mapped[page + 1511], std::byte{9});
  EXPECT_EQ(mapped[page + 1512], std::byte{0});
  EXPECT_EQ(network_.relaxed_regions(), 0u);
  b.rail->revoke(*registration);
  ::munmap(mapped, 4 * page);
  ::close(file);
}

TEST_F(VerbsMemory, ADeviceThatTakesNoDmaBufSaysSo) {
  network_.options(0).dma_buf = false;
  Side& a = open(0);
  const auto refused = a.rail->register_memory(a.memory, {.remote = true, .dma_buf = 0});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("dma-buf"));
  EXPECT_THAT(refused.error().text(), HasSubstr("not supported"));
  network_.library().reg_dmabuf_mr = nullptr;
  const auto unknown = a.rail->register_memory(a.memory, {.remote = true, .dma_buf = 0});
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().text(), HasSubstr("not supported"));
}

TEST_F(VerbsMemory, ASourceThatMayOnlyBeReadIsTaken) {
  Side& a = open(0);
  Side& b = open(1);
  network_.fail_call("reg_mr", 1, EFAULT);  // what a device answers where it may not write
  auto source = a.rail->register_memory(a.memory, {});
  ASSERT_TRUE(source.ok()) << source.error().text();
  const RemoteId link = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, link));
  std::fill_n(a.memory.begin(), 1000, std::byte{5});
  PostContext* const context = a.fresh();
  ASSERT_EQ(a.rail->write(a.to(link, b, 0), {a.memory.data(), 1000, source->descriptor[0]}, {}, context), Post::posted);
  ASSERT_TRUE(pump([&] { return a.told(context) == 1; }));
  EXPECT_EQ(b.memory[999], std::byte{5});
  network_.fail_call("reg_mr", 1, EFAULT, 2);
  EXPECT_FALSE(a.rail->register_memory(a.memory, {.remote = true}).ok()) << "peers could not write there";
}

class VerbsAtomics : public VerbsRails {
 protected:
  using Kind = AtomicRequest::Kind;
  std::uint64_t word(const Side& side, std::size_t offset) const {
    std::uint64_t value = 0;
    std::memcpy(&value, side.memory.data() + offset, sizeof value);
    return value;
  }
  Event done(Side& side, PostContext* context) {
    EXPECT_TRUE(pump([&] { return side.told(context) == 1; }));
    return *std::ranges::find(side.log, context, &Event::context);
  }
};

TEST_F(VerbsAtomics, AddAndCompareSwapGiveWhatWasThere) {
  Side& a = open(0);
  Side& b = open(1);
  ASSERT_TRUE(a.rail->capabilities().native_atomics);
  const RemoteId link = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, link));
  std::uint64_t expected = 0;
  for (std::uint64_t i = 1; i <= 100; ++i) {
    PostContext* const context = a.fresh();
    ASSERT_EQ(a.rail->atomic(a.to(link, b, 64), {.kind = Kind::add, .value = i}, a.chunk(8, 8), context), Post::posted);
    EXPECT_EQ(done(a, context).kind, Event::Kind::read);
    EXPECT_EQ(word(a, 8), expected);
    expected += i;
  }
  EXPECT_EQ(word(b, 64), 5050u);
  for (const std::uint64_t compare : {1u, 5050u}) {
    PostContext* const context = a.fresh();
    ASSERT_EQ(a.rail->atomic(a.to(link, b, 64), {Kind::compare_swap, 7, compare}, a.chunk(8, 8), context),
              Post::posted);
    EXPECT_EQ(done(a, context).kind, Event::Kind::read);
    EXPECT_EQ(word(a, 8), 5050u);
    EXPECT_EQ(word(b, 64), compare == 5050 ? 7u : 5050u);
  }
}

TEST_F(VerbsAtomics, WhatIsNotAWordIsRefusedAndHarmsNothing) {
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId link = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, link));
  PostContext* const context = a.fresh();
  EXPECT_EQ(a.rail->atomic(a.to(link, b, 65), {}, a.chunk(8, 8), context), Post::failed);
  EXPECT_THAT(a.rail->failure(), HasSubstr("atomic"));
  EXPECT_EQ(a.rail->atomic(a.to(link, b, 64), {}, a.chunk(8, 4), context), Post::failed);
  EXPECT_TRUE(delivers(a, b, link));
  EXPECT_EQ(a.seen(Event::Kind::lost), 0u);
}

TEST_F(VerbsAtomics, ADeviceWithoutThemSaysSo) {
  network_.options(0).atomics = false;
  Side& a = open(0);
  Side& b = open(1);
  EXPECT_FALSE(a.rail->capabilities().native_atomics);
  const RemoteId link = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, link));
  PostContext* const context = a.fresh();
  EXPECT_EQ(a.rail->atomic(a.to(link, b, 64), {}, a.chunk(8, 8), context), Post::failed);
  EXPECT_THAT(a.rail->failure(), HasSubstr("not supported"));
  EXPECT_TRUE(delivers(a, b, link));
}

}  // namespace
}  // namespace railyard::fabric
