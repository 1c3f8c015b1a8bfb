/// Memory of GPUs on verbs rails: the double of the devices' DMA writes it through the double of the CUDA driver, which
/// shows nothing of it before a flush or a read.
#include <filesystem>

#include "accelerator/accelerator.hpp"
#include "fabric/verbs_rails.hpp"
#include "gpu_memory.hpp"

namespace railyard::fabric {
namespace {

using test::Gpu;
using test::GpuMemory;
using ::testing::HasSubstr;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kGpuBytes = 16 * kPage;
constexpr auto kBulkLane = static_cast<std::size_t>(Lane::data);

/// How the platform makes writes of NICs visible.
struct Platform {
  const char* name;
  int ordering;
  int flush;
};
std::ostream& operator<<(std::ostream& out, const Platform& platform) { return out << platform.name; }
constexpr Platform kFlushCall{"FlushCall", 0, 1};
constexpr Platform kReadBack{"ReadBack", 0, 0};
constexpr Platform kInOrder{"InOrder", 100, 0};

std::vector<std::byte> filled(std::size_t bytes, unsigned value) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

std::ptrdiff_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

class VerbsDevice : public VerbsRails {
 protected:
  VerbsDevice() {
    EXPECT_TRUE(accelerator::may_have_gpus());
    choose(kFlushCall);
    before_ = live();
    freed_before_ = asked("cuda_double_freed_under_nic");
  }
  void TearDown() override {
    VerbsRails::TearDown();
    memories_.clear();
    gpu_.call<void(int)>("cuda_double_set_dma_bufs")(1);
    EXPECT_EQ(live().nic_mappings, 0u);
    EXPECT_EQ(live().allocations, before_.allocations);
    EXPECT_EQ(live().mappings, before_.mappings) << "flush buffers";
    EXPECT_EQ(asked("cuda_double_freed_under_nic"), freed_before_) << "memory goes after its registrations";
  }
  void choose(const Platform& platform) const {
    gpu_.call<void(int, int)>("cuda_double_set_rdma")(platform.ordering, platform.flush);
  }
  CudaDoubleLive live() const {
    CudaDoubleLive now{};
    gpu_.call<void(CudaDoubleLive*)>("cuda_double_live")(&now);
    return now;
  }
  std::uint64_t asked(const char* name) const { return gpu_.call<std::uint64_t()>(name)(); }
  std::uint64_t flushes() const { return asked("cuda_double_flushes"); }

  static Result<Registration> share(Side& side, std::byte* memory, std::size_t bytes) {
    return side.rail->register_memory({memory, bytes}, {.remote = true, .bulk = true, .device = 0});
  }
  static RemoteChunk at(RemoteId link, const Registration& there, std::size_t offset = 0) {
    return {link, there.remote_base + offset, there.key};
  }
  /// A write that tells its target of itself. Whether it was told there.
  bool lands(Side& from, Side& to, RemoteChunk chunk, std::size_t bytes) {
    const std::size_t before = to.seen(Event::Kind::landed);
    WriteOptions options;
    options.with_immediate = true;
    EXPECT_EQ(from.rail->write(chunk, from.chunk(0, bytes), options, from.fresh()), Post::posted);
    from.rail->ring();
    return pump([&] { return to.seen(Event::Kind::landed) > before || to.seen(Event::Kind::failed) != 0; }) &&
           to.seen(Event::Kind::landed) > before;
  }

  /// A link from a to b, which shares memory of its GPU.
  struct Line {
    Side& a;
    Side& b;
    const GpuMemory& memory;
    Registration there;
    RemoteId link;
  };
  Line open_line() {
    const GpuMemory& memory = memories_.emplace_back(gpu_, kGpuBytes);
    Side& a = open(0);
    Side& b = open(1);
    auto there = share(b, memory.data(), memory.size());
    EXPECT_TRUE(there.ok()) << there.error().text();
    const RemoteId link = connect(a, b, {1, 1});
    EXPECT_TRUE(delivers(a, b, link));
    return {a, b, memory, there.ok() ? *there : Registration{}, link};
  }
  /// Posts a write of `bytes` that tells of itself.
  static void write(const Line& line, std::size_t bytes) {
    WriteOptions options;
    options.with_immediate = true;
    EXPECT_EQ(line.a.rail->write(at(line.link, line.there), line.a.chunk(0, bytes), options, line.a.fresh()),
              Post::posted);
    line.a.rail->ring();
  }

  const Gpu gpu_;
  std::list<GpuMemory> memories_;  ///< stay until the rails have gone
  CudaDoubleLive before_{};
  std::uint64_t freed_before_ = 0;
};

class VerbsDevices : public VerbsDevice, public ::testing::WithParamInterface<Platform> {
 protected:
  void SetUp() override { choose(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Platforms, VerbsDevices, ::testing::Values(kFlushCall, kReadBack, kInOrder),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(VerbsDevices, ALandingIsToldWhenTheGpuSeesIt) {
  const Line line = open_line();
  Side& a = line.a;
  Side& b = line.b;
  for (unsigned round = 1; round <= 50; ++round) {
    const std::size_t bytes = 1 + round * 97;
    std::fill_n(a.memory.begin(), bytes, static_cast<std::byte>(round));
    ASSERT_TRUE(lands(a, b, at(line.link, line.there, round), bytes));
    ASSERT_EQ(line.memory.read(round, bytes), filled(bytes, round)) << "told of, and not there: round " << round;
  }
  b.rail->revoke(line.there);
}

TEST_P(VerbsDevices, AReadIsDoneWhenTheGpuSeesIt) {
  const GpuMemory& memory = memories_.emplace_back(gpu_, kGpuBytes);
  Side& a = open(0);
  Side& b = open(1);
  auto here = b.rail->register_memory({memory.data(), memory.size()}, {.device = 0});
  ASSERT_TRUE(here.ok()) << here.error().text();
  const RemoteId link = connect(b, a, {1, 1});
  ASSERT_TRUE(delivers(b, a, link));
  for (unsigned round = 1; round <= 50; ++round) {
    std::fill_n(a.memory.begin(), 1000, static_cast<std::byte>(round));
    PostContext* const context = b.fresh();
    const LocalChunk to{memory.data() + round, 1000, here->descriptor[kBulkLane]};
    ASSERT_EQ(b.rail->read(b.to(link, a, 0), to, context), Post::posted);
    ASSERT_TRUE(pump([&] { return b.told(context) == 1; }));
    ASSERT_EQ(memory.read(round, 1000), filled(1000, round)) << "round " << round;
  }
  b.rail->revoke(*here);
}

TEST_P(VerbsDevices, WhatWasTakenBackIsNotWritten) {
  const Line line = open_line();
  Side& a = line.a;
  Side& b = line.b;
  network_.pace(0, 1);  // one write at a time is on its way
  WriteOptions options;
  options.with_immediate = true;
  std::vector<PostContext*> posted;
  for (std::size_t i = 0; i < 24; ++i) {
    std::fill_n(a.memory.begin() + static_cast<std::ptrdiff_t>(i * 64), 64, static_cast<std::byte>(i + 1));
    posted.push_back(a.fresh());
    ASSERT_EQ(a.rail->write(at(line.link, line.there, i * 64), a.chunk(i * 64, 64), options, posted.back()),
              Post::posted);
  }
  a.rail->ring();
  ASSERT_TRUE(pump([&] { return b.seen(Event::Kind::landed) >= 5; }));
  b.rail->revoke(line.there);
  EXPECT_EQ(asked("cuda_double_unseen"), 0u) << "nothing is on its way any more";
  const auto then = line.memory.read(0, 24 * 64);
  network_.pace(0, 0);
  expect_back_once(a, posted);
  EXPECT_EQ(line.memory.read(0, 24 * 64), then) << "written after it was taken back";
  const Event* const refused = a.find(Event::Kind::failed);
  ASSERT_NE(refused, nullptr) << "its sender must hear of it";
  EXPECT_EQ(refused->error, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(refused->blame, Blame::operation);
}

TEST_P(VerbsDevices, NothingIsLeftOpen) {
  const GpuMemory& memory = memories_.emplace_back(gpu_, kGpuBytes);
  Side& a = open(0);
  ASSERT_TRUE(share(a, memory.data(), memory.size()).ok());  // what the first one needs stays
  const auto files = open_files();
  for (int i = 0; i < 100; ++i) {
    auto made = share(a, memory.data() + 7 * i, 100);
    ASSERT_TRUE(made.ok()) << made.error().text();
    network_.fail_call("reg_dmabuf_mr", 1, EOPNOTSUPP);
    EXPECT_EQ(share(a, memory.data() + 7 * i, 100).status(), Status::unsupported);
    a.rail->revoke(*made);
  }
  EXPECT_EQ(open_files(), files);
}

TEST_F(VerbsDevice, TheRangeIsOfWholePagesAndTheMemoryInsideIt) {
  const GpuMemory& memory = memories_.emplace_back(gpu_, kGpuBytes);
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId link = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, link));
  for (const auto& [from, bytes] : {std::pair<std::size_t, std::size_t>{0, kPage},
                                    {1, 1},
                                    {kPage - 1, 2},
                                    {2 * kPage + 512, 1000},
                                    {kGpuBytes - 7, 7}}) {
    memory.fill(filled(kGpuBytes, 0));
    auto there = share(b, memory.data() + from, bytes);
    ASSERT_TRUE(there.ok()) << there.error().text();
    EXPECT_EQ(there->remote_base, reinterpret_cast<std::uint64_t>(memory.data() + from));
    std::fill_n(a.memory.begin(), bytes, std::byte{9});
    ASSERT_TRUE(lands(a, b, at(link, *there), bytes));
    auto wanted = filled(kGpuBytes, 0);
    std::fill_n(wanted.begin() + static_cast<std::ptrdiff_t>(from), bytes, std::byte{9});
    EXPECT_EQ(memory.read(0, kGpuBytes), wanted) << bytes << " bytes at " << from;
    b.rail->revoke(*there);
  }
}

TEST_F(VerbsDevice, TheProcessorReadsNoSourceThere) {
  const GpuMemory& memory = memories_.emplace_back(gpu_, kGpuBytes);
  memory.fill(filled(64, 7));
  Side& a = open(0);
  Side& b = open(1);
  auto source = a.rail->register_memory({memory.data(), memory.size()}, {.device = 0});
  ASSERT_TRUE(source.ok()) << source.error().text();
  const RemoteId link = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, link));
  PostContext* const context = a.fresh();
  const LocalChunk small{memory.data(), 8, source->descriptor[kBulkLane]};  // would go inline, were it the host's
  ASSERT_EQ(a.rail->write(a.to(link, b, 0), small, {}, context), Post::posted);
  ASSERT_TRUE(pump([&] { return a.told(context) == 1; }));
  EXPECT_EQ(b.memory[7], std::byte{7});
  EXPECT_EQ(b.memory[8], std::byte{0});
}

TEST_F(VerbsDevice, NobodyPaysForFlushesThatNobodyNeeds) {
  const GpuMemory& memory = memories_.emplace_back(gpu_, kGpuBytes);
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId link = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, link));
  const auto before = flushes();
  ASSERT_TRUE(lands(a, b, a.to(link, b, 0), 100));
  EXPECT_EQ(flushes(), before) << "no memory of a GPU is registered";
  auto there = share(b, memory.data(), memory.size());
  ASSERT_TRUE(there.ok());
  ASSERT_TRUE(lands(a, b, at(link, *there), 100));
  const auto with = flushes();
  EXPECT_GT(with, before);
  ASSERT_TRUE(delivers(a, b, link));
  EXPECT_EQ(flushes(), with) << "messages are read by the processor";
  b.rail->revoke(*there);
  ASSERT_TRUE(lands(a, b, a.to(link, b, 0), 100));
  EXPECT_EQ(flushes(), with) << "and none is any more";
}

TEST_F(VerbsDevice, FlushBuffersAreTheRailsAndGoBeforeIt) {
  choose(kReadBack);
  const GpuMemory& memory = memories_.emplace_back(gpu_, kGpuBytes);
  Side& a = open(0);
  const auto regions = network_.count(0, Device::region).alive;
  auto first = share(a, memory.data(), kPage);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(network_.count(0, Device::region).alive, regions + 3) << "the memory, a page of the GPU, one of the host";
  EXPECT_EQ(pairs(0), 1u) << "connected to itself";
  EXPECT_EQ(live().mappings, before_.mappings + 1);
  auto second = share(a, memory.data(), kPage);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(network_.count(0, Device::region).alive, regions + 4);
  a.rail->revoke(*first);
  a.rail->revoke(*second);
  EXPECT_EQ(network_.count(0, Device::region).alive, regions + 2) << "kept for the next memory";
  a.rail->stop();
  EXPECT_EQ(network_.alive(), 0u) << "none was in another's way";
  EXPECT_EQ(live().mappings, before_.mappings);
}

TEST_F(VerbsDevice, WhoCannotSaysSoAndTakesHostMemory) {
  const GpuMemory& memory = memories_.emplace_back(gpu_, kGpuBytes);
  Side& able = open(1);
  network_.options(0).dma_buf = false;
  Side& old_kernel = open(0);
  EXPECT_FALSE(old_kernel.rail->capabilities().device_memory);
  EXPECT_TRUE(able.rail->capabilities().device_memory);
  auto refused = share(old_kernel, memory.data(), kPage);
  ASSERT_EQ(refused.status(), Status::unsupported);
  EXPECT_THAT(refused.error().text(), HasSubstr("dma-buf"));
  EXPECT_TRUE(share(able, memory.data(), kPage).ok());

  network_.library().reg_dmabuf_mr = nullptr;
  Side& old_library = open(2);
  EXPECT_FALSE(old_library.rail->capabilities().device_memory);
  EXPECT_EQ(share(old_library, memory.data(), kPage).status(), Status::unsupported);
  const RemoteId link = connect(old_kernel, old_library, {1, 1});
  EXPECT_TRUE(delivers(old_kernel, old_library, link));
}

TEST_F(VerbsDevice, AGpuWithoutDescriptorsIsRefusedForItselfAlone) {
  const GpuMemory& memory = memories_.emplace_back(gpu_, kGpuBytes);
  Side& a = open(0);
  gpu_.call<void(int)>("cuda_double_set_dma_bufs")(0);
  const auto refused = share(a, memory.data(), kPage);
  ASSERT_EQ(refused.status(), Status::unsupported);
  EXPECT_THAT(refused.error().text(), HasSubstr("open kernel module"));
  gpu_.call<void(int)>("cuda_double_set_dma_bufs")(1);
  EXPECT_TRUE(share(a, memory.data(), kPage).ok());
}

TEST_F(VerbsDevice, AFlushCallThatFailsIsReplacedByReads) {
  const Line line = open_line();
  Side& a = line.a;
  Side& b = line.b;
  choose(kReadBack);  // the driver said otherwise
  for (unsigned round = 1; round <= 3; ++round) {
    std::fill_n(a.memory.begin(), 1000, static_cast<std::byte>(round));
    ASSERT_TRUE(lands(a, b, at(line.link, line.there), 1000));
    ASSERT_EQ(line.memory.read(0, 1000), filled(1000, round));
  }
}

TEST_F(VerbsDevice, AFlushThatFailsTellsOfNothingAndCostsTheLinks) {
  choose(kReadBack);
  const Line line = open_line();
  Side& a = line.a;
  Side& b = line.b;
  RemoteId link = line.link;
  constexpr std::uint32_t kFlushPair = 0x101;  // the device's second, after that of CM messages
  network_.break_pair(1, kFlushPair);
  std::fill_n(a.memory.begin(), 1000, std::byte{5});
  EXPECT_FALSE(lands(a, b, at(link, line.there), 1000));
  ASSERT_TRUE(pump([&] { return a.lost(link) == 1; })) << "its sender must write it again elsewhere";
  EXPECT_EQ(b.seen(Event::Kind::landed), 0u);
  EXPECT_EQ(b.seen(Event::Kind::failed), 1u) << "the receive comes back";
  a.rail->disconnect(link);
  link = connect(a, b, {1, 2});
  ASSERT_TRUE(delivers(a, b, link));
  b.log.clear();
  ASSERT_TRUE(lands(a, b, at(link, line.there), 1000)) << "by another queue pair";
  EXPECT_EQ(line.memory.read(0, 1000), filled(1000, 5));
}

TEST_F(VerbsDevice, AFenceWaitsForTheFlushOfWhatLanded) {
  choose(kReadBack);
  const Line line = open_line();
  Side& a = line.a;
  Side& b = line.b;
  network_.hold_completions(1, true);  // of b's reads
  std::fill_n(a.memory.begin(), 100, std::byte{5});
  write(line, 100);
  pump_for(std::chrono::milliseconds(10));
  EXPECT_EQ(b.seen(Event::Kind::landed), 0u);
  EXPECT_FALSE(b.rail->fence({1, 1}));
  pump_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(b.rail->fence({1, 1})) << "a landing is not told yet";
  network_.hold_completions(1, false);
  ASSERT_TRUE(fenced(b, {1, 1}));
  EXPECT_EQ(b.seen(Event::Kind::landed), 1u);
  EXPECT_EQ(line.memory.read(0, 100), filled(100, 5));
}

TEST_F(VerbsDevice, ADeviceThatGoesTellsOfNothingThatWasNotFlushed) {
  choose(kReadBack);
  const Line line = open_line();
  Side& b = line.b;
  network_.hold_completions(1, true);
  write(line, 100);
  pump_for(std::chrono::milliseconds(10));
  network_.kill(1);
  ASSERT_TRUE(pump([&] { return b.seen(Event::Kind::rail_down) == 1; }));
  EXPECT_EQ(b.seen(Event::Kind::landed), 0u);
  EXPECT_EQ(b.seen(Event::Kind::failed), 1u);
}

}  // namespace
}  // namespace railyard::fabric
