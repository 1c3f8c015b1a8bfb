/// Memory of GPUs on tcp rails, on the double of the driver: a processor or a socket that touches it ends the test.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>

#include "accelerator/accelerator.hpp"
#include "base/random.hpp"
#include "fabric/tcp/rail.hpp"
#include "gpu_memory.hpp"
#include "tcp_bed.hpp"

namespace railyard::fabric {
namespace {

using test::Gpu;
using test::GpuMemory;

constexpr std::size_t kBytes = 3 << 20;
constexpr auto kDataLane = static_cast<std::size_t>(Lane::data);

std::vector<std::byte> some_bytes(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> made(bytes);
  Random random(seed);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.next());
  return made;
}

/// A rail, what it knows, and what it has said.
struct End {
  std::unique_ptr<Rail> rail;
  std::map<const PostContext*, Event> told;
  std::vector<Event> landed;
  std::size_t lost = 0;

  End() {
    auto opened = open_tcp(loopback_offer("127.0.0.1"), Settings{});
    EXPECT_TRUE(opened) << opened.error().text();
    if (opened) rail = std::move(*opened);
  }
  void poll() {
    std::array<Event, 16> events;
    for (std::size_t i = 0, count = rail->poll(events); i < count; ++i) {
      if (events[i].context != nullptr) told[events[i].context] = events[i];
      if (events[i].kind == Event::Kind::landed) landed.push_back(events[i]);
      lost += events[i].kind == Event::Kind::lost;
    }
  }
  bool heard_of(const PostContext& context) const { return told.contains(&context); }
  Event::Kind kind_of(const PostContext& context) const { return told.at(&context).kind; }
  Registration share(std::span<std::byte> memory, int device) {
    auto made = rail->register_memory(memory, {.remote = true, .device = device});
    EXPECT_TRUE(made) << made.error().text();
    return made ? *made : Registration{};
  }
};

class TcpDevice : public ::testing::Test {
 protected:
  TcpDevice() { EXPECT_TRUE(accelerator::may_have_gpus()); }

  void slow_copies(unsigned microseconds) const {
    if (gpu_.is_double()) gpu_.call<void(unsigned)>("cuda_double_set_copy_us")(microseconds);
  }
  static bool poll_until(std::initializer_list<End*> ends, const std::function<bool()>& done) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      for (End* const end : ends) end->poll();
    }
    return true;
  }
  static void poll_for(std::initializer_list<End*> ends, std::chrono::milliseconds time) {
    const auto until = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < until)
      for (End* const end : ends) end->poll();
  }
  /// A link that takes posts.
  static RemoteId connect(End& from, End& to, LinkTag tag = {}) {
    auto link = from.rail->connect(to.rail->address(), tag);
    EXPECT_TRUE(link) << link.error().text();
    PostContext context;
    std::byte nothing{};
    Post answer = Post::busy;
    EXPECT_TRUE(poll_until({&from, &to}, [&] {
      if (answer == Post::busy) answer = from.rail->read({*link, 0, 1}, {&nothing, 1}, &context);
      return from.heard_of(context);  // refused: there is no such key
    }));
    from.told.clear();
    return *link;
  }
  static LocalChunk chunk(std::byte* address, std::size_t bytes, const Registration& registration) {
    return {address, bytes, registration.descriptor[kDataLane]};
  }

  const Gpu gpu_;
};

/// Host or device memory.
struct AnyMemory {
  AnyMemory(const Gpu& gpu, bool on_device) : device(on_device ? 0 : -1) {
    if (on_device)
      memory = std::make_unique<GpuMemory>(gpu, kBytes);
    else
      host.resize(kBytes);
  }
  std::byte* data() { return memory ? memory->data() : host.data(); }
  void fill(const std::vector<std::byte>& bytes) {
    if (memory)
      memory->fill(bytes);
    else
      std::ranges::copy(bytes, host.begin());
  }
  std::vector<std::byte> read(std::size_t bytes) {
    if (memory) return memory->read(0, bytes);
    return {host.begin(), host.begin() + static_cast<std::ptrdiff_t>(bytes)};
  }
  std::unique_ptr<GpuMemory> memory;
  std::vector<std::byte> host;
  int device;
};

TEST_F(TcpDevice, WritesAndReadsBringEveryByteBeforeTheyAreTold) {
  slow_copies(300);
  constexpr std::array<std::pair<bool, bool>, 3> kMixes{{{true, true}, {true, false}, {false, true}}};
  for (const auto& [from_device, to_device] : kMixes) {
    End a, b;
    const RemoteId link = connect(a, b);
    AnyMemory here(gpu_, from_device), there(gpu_, to_device);
    const Registration source = a.share({here.data(), kBytes}, here.device);
    const Registration target = b.share({there.data(), kBytes}, there.device);
    std::uint32_t round = 0;
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{5000},
                                    std::size_t{262144}, std::size_t{262145}, kBytes}) {
      SCOPED_TRACE(bytes);
      ++round;
      const auto sent = some_bytes(bytes, bytes + 1);
      here.fill(sent);
      PostContext written;
      const WriteOptions options{.with_immediate = true, .delivery_complete = true, .immediate = round};
      ASSERT_EQ(
          a.rail->write({link, target.remote_base, target.key}, chunk(here.data(), bytes, source), options, &written),
          Post::posted);
      b.landed.clear();
      ASSERT_TRUE(poll_until({&a, &b}, [&] { return !b.landed.empty(); }));
      EXPECT_EQ(b.landed[0].immediate, round);
      EXPECT_EQ(b.landed[0].bytes, bytes);
      ASSERT_EQ(there.read(bytes), sent);
      ASSERT_TRUE(poll_until({&a, &b}, [&] { return a.heard_of(written); }));
      EXPECT_EQ(a.kind_of(written), Event::Kind::written);

      const auto other = some_bytes(bytes, bytes + 2);
      there.fill(other);
      PostContext read;
      ASSERT_EQ(a.rail->read({link, target.remote_base, target.key}, chunk(here.data(), bytes, source), &read),
                Post::posted);
      ASSERT_TRUE(poll_until({&a, &b}, [&] { return a.heard_of(read); }));
      EXPECT_EQ(a.kind_of(read), Event::Kind::read);
      ASSERT_EQ(here.read(bytes), other);
      a.told.clear();
    }
    EXPECT_EQ(a.lost + b.lost, 0U);
    a.rail->revoke(source);
    b.rail->revoke(target);
  }
}

/// A write to host memory behind one to device memory is not acknowledged for both.
TEST_F(TcpDevice, AnAcknowledgementSpeaksForTheCopiesBeforeIt) {
  slow_copies(2000);
  End a, b;
  const RemoteId link = connect(a, b);
  AnyMemory device(gpu_, true), host(gpu_, false);
  const Registration on_device = b.share({device.data(), kBytes}, 0);
  const Registration on_host = b.share({host.data(), kBytes}, -1);
  for (std::uint64_t round = 1; round <= 8; ++round) {
    const auto sent = some_bytes(4096, round);
    PostContext first, second;
    const WriteOptions options{.delivery_complete = true};
    std::vector<std::byte> source = sent;
    ASSERT_EQ(a.rail->write({link, 0, on_device.key}, {source.data(), 4096}, options, &first), Post::posted);
    ASSERT_EQ(a.rail->write({link, 0, on_host.key}, {source.data(), 4096}, options, &second), Post::posted);
    ASSERT_TRUE(poll_until({&a, &b}, [&] { return a.heard_of(first); }));
    ASSERT_EQ(device.read(4096), sent) << "round " << round;
    ASSERT_TRUE(poll_until({&a, &b}, [&] { return a.heard_of(second); }));
    a.told.clear();
  }
}

/// Taken back at any moment: the memory stays as its owner leaves it, and the link stands.
TEST_F(TcpDevice, MemoryThatWasTakenBackIsNotWritten) {
  slow_copies(5000);  // longer than it takes to fill the memory again
  End a, b;
  const RemoteId link = connect(a, b);
  AnyMemory source(gpu_, true);
  source.fill(std::vector<std::byte>(kBytes, std::byte{0xee}));
  const Registration from = a.share({source.data(), kBytes}, 0);
  const std::vector<std::byte> zeros(kBytes);
  for (int round = 0; round < 12; ++round) {
    const GpuMemory memory(gpu_, kBytes);
    const Registration to = b.share({memory.data(), kBytes}, 0);
    PostContext write, read;
    ASSERT_EQ(a.rail->write({link, 0, to.key}, chunk(source.data(), kBytes, from), {}, &write), Post::posted);
    ASSERT_EQ(a.rail->read({link, 0, to.key}, chunk(source.data(), 300'000, from), &read), Post::posted);
    poll_for({&a, &b}, std::chrono::milliseconds(3 * round));
    b.rail->revoke(to);
    memory.fill(zeros);
    ASSERT_TRUE(poll_until({&a, &b}, [&] { return a.heard_of(write) && a.heard_of(read); }));
    poll_for({&a, &b}, std::chrono::milliseconds(8));
    ASSERT_EQ(memory.read(0, kBytes), zeros) << "round " << round;
    for (const PostContext* context : {&write, &read}) {
      if (a.told[context].kind == Event::Kind::failed) {
        EXPECT_EQ(a.told[context].blame, Blame::operation);
      }
    }
    source.fill(std::vector<std::byte>(kBytes, std::byte{0xee}));
    a.told.clear();
  }
  EXPECT_EQ(a.lost + b.lost, 0U);
}

/// Once a fence is up, what its link sent never comes; until then nothing says that it is up.
TEST_F(TcpDevice, NothingLandsBehindAFence) {
  slow_copies(1000);
  End a, b;
  AnyMemory source(gpu_, true);
  source.fill(std::vector<std::byte>(kBytes, std::byte{0xee}));
  const Registration from = a.share({source.data(), kBytes}, 0);
  const std::vector<std::byte> zeros(kBytes);
  const GpuMemory memory(gpu_, kBytes);
  const Registration to = b.share({memory.data(), kBytes}, 0);
  for (std::uint32_t round = 0; round < 16; ++round) {
    const LinkTag tag{7, round};
    const RemoteId link = connect(a, b, tag);
    PostContext write;
    ASSERT_EQ(a.rail->write({link, 0, to.key}, chunk(source.data(), kBytes, from), {true, 1}, &write), Post::posted);
    for (std::uint32_t i = 0; i < 100 * round; ++i) {
      a.poll();
      b.poll();
    }
    ASSERT_TRUE(poll_until({&b}, [&] { return b.rail->fence(tag); }));
    b.landed.clear();
    memory.fill(zeros);
    poll_for({&a, &b}, std::chrono::milliseconds(8));
    ASSERT_EQ(memory.read(0, kBytes), zeros) << "round " << round;
    EXPECT_TRUE(b.landed.empty());
    a.rail->disconnect(link);
    ASSERT_TRUE(poll_until({&a, &b}, [&] { return a.heard_of(write); }));
    a.told.clear();
  }
}

/// A context that comes out says that its memory is no longer touched, also where its link was ended.
TEST_F(TcpDevice, ContextsOfAnEndedLinkWaitForTheirCopies) {
  slow_copies(3000);
  End a, b;
  AnyMemory there(gpu_, true);
  there.fill(std::vector<std::byte>(kBytes, std::byte{0xee}));
  const Registration target = b.share({there.data(), kBytes}, 0);
  const std::vector<std::byte> zeros(kBytes);
  for (int round = 0; round < 16; ++round) {
    const RemoteId link = connect(a, b);
    const GpuMemory memory(gpu_, kBytes);
    auto local = a.rail->register_memory({memory.data(), kBytes}, {.device = 0});
    ASSERT_TRUE(local) << local.error().text();
    PostContext read, write;
    constexpr std::size_t kHalf = kBytes / 2;  // what is read is not written
    ASSERT_EQ(a.rail->read({link, 0, target.key}, chunk(memory.data(), kHalf, *local), &read), Post::posted);
    ASSERT_EQ(a.rail->write({link, kHalf, target.key}, chunk(memory.data() + kHalf, 64, *local), {}, &write),
              Post::posted);
    for (int i = 0; i < 500 * round; ++i) {
      a.poll();
      b.poll();
    }
    a.rail->disconnect(link);
    ASSERT_TRUE(poll_until({&a, &b}, [&] { return a.heard_of(read) && a.heard_of(write); }));
    memory.fill(zeros);
    a.rail->revoke(*local);
    poll_for({&a, &b}, std::chrono::milliseconds(5));
    ASSERT_EQ(memory.read(0, kBytes), zeros) << "round " << round;
    a.told.clear();
  }
}

/// More senders than buffers fall silent in the middle of a frame: another one is served all the same.
TEST_F(TcpDevice, SendersThatFallSilentKeepNoBuffers) {
  End target, last;
  const GpuMemory memory(gpu_, kBytes);
  const Registration to = target.share({memory.data(), kBytes}, 0);
  std::vector<std::byte> source(kBytes, std::byte{0x11});
  constexpr std::size_t kSilent = tcp::DeviceTraffic::kMostBounces + 4;
  constexpr std::size_t kEach = 8;  // more than the kernel takes
  std::deque<PostContext> contexts(kEach * kSilent);
  std::deque<End> silent(kSilent);
  std::size_t posted = 0;
  for (End& end : silent) {
    const RemoteId link = connect(end, target);
    for (std::size_t i = 0; i < kEach; ++i)
      ASSERT_EQ(end.rail->write({link, 0, to.key}, {source.data(), kBytes}, {}, &contexts[posted++]), Post::posted);
    for (int i = 0; i < 64; ++i) end.rail->ring();  // as much as the kernel takes, and no more
  }
  poll_for({&target}, std::chrono::milliseconds(500));
  const RemoteId link = connect(last, target);
  const auto sent = some_bytes(100'000, 3);
  std::vector<std::byte> mine = sent;
  PostContext write;
  ASSERT_EQ(last.rail->write({link, 0, to.key}, {mine.data(), mine.size()}, {.delivery_complete = true}, &write),
            Post::posted);
  ASSERT_TRUE(poll_until({&target, &last}, [&] { return last.heard_of(write); }));
  EXPECT_EQ(last.kind_of(write), Event::Kind::written);
  // One that goes on loses nothing.
  End& first = silent.front();
  ASSERT_TRUE(poll_until({&target, &last, &first}, [&] { return first.told.size() == kEach; }));
  for (const auto& [context, event] : first.told) EXPECT_EQ(event.kind, Event::Kind::written);
  EXPECT_EQ(memory.read(0, kBytes), source);
  for (const End& end : silent) EXPECT_EQ(end.lost, 0U);
}

/// More receivers than buffers read nothing: another one is sent to all the same.
TEST_F(TcpDevice, ReceiversThatDoNotReadKeepNoBuffers) {
  End source, last;
  const GpuMemory memory(gpu_, kBytes);
  const auto sent = some_bytes(kBytes, 5);
  memory.fill(sent);
  auto from = source.rail->register_memory({memory.data(), kBytes}, {.device = 0});
  ASSERT_TRUE(from) << from.error().text();
  std::deque<End> silent(tcp::DeviceTraffic::kMostBounces + 4);
  std::vector<std::vector<std::byte>> places;
  std::deque<PostContext> contexts(3 * silent.size());
  std::size_t posted = 0;
  for (End& end : silent) {
    const RemoteId link = connect(source, end);
    const Registration to = end.share(places.emplace_back(kBytes), -1);
    for (int i = 0; i < 3; ++i)
      ASSERT_EQ(source.rail->write({link, 0, to.key}, chunk(memory.data(), kBytes, *from), {}, &contexts[posted++]),
                Post::posted);
  }
  poll_for({&source}, std::chrono::milliseconds(50));
  const RemoteId link = connect(source, last);
  std::vector<std::byte> place(100'000);
  const Registration to = last.share(place, -1);
  PostContext write;
  ASSERT_EQ(source.rail->write({link, 0, to.key}, chunk(memory.data(), place.size(), *from),
                               {.delivery_complete = true}, &write),
            Post::posted);
  ASSERT_TRUE(poll_until({&source, &last}, [&] { return source.heard_of(write); }));
  EXPECT_TRUE(std::equal(place.begin(), place.end(), sent.begin()));
  const auto all = [&] {
    for (End& end : silent) end.poll();
    return std::ranges::all_of(contexts, [&](const PostContext& context) { return source.heard_of(context); });
  };
  ASSERT_TRUE(poll_until({&source, &last}, all));
  for (const auto& each : places) EXPECT_EQ(each, sent);
  EXPECT_EQ(source.lost, 0U);
}

/// The operation fails with the reason; what the host sends over the same link goes on.
TEST_F(TcpDevice, AGpuThatFailsFailsTheOperation) {
  if (!gpu_.is_double()) GTEST_SKIP() << "a real GPU is not broken for a test";
  End a, b;
  const RemoteId link = connect(a, b);
  const GpuMemory device(gpu_, kBytes);
  std::vector<std::byte> host(kBytes);
  const Registration on_device = b.share({device.data(), kBytes}, 0);
  const Registration on_host = b.share(host, -1);
  const Registration local = a.share({device.data(), kBytes}, 0);
  gpu_.call<void(std::uint64_t)>("cuda_double_fail_copy")(1);
  const auto ask = [&](auto post) {
    PostContext context;
    a.told.clear();
    EXPECT_EQ(post(&context), Post::posted);
    EXPECT_TRUE(poll_until({&a, &b}, [&] { return a.heard_of(context); }));
    return a.told[&context];
  };
  std::vector<std::byte> mine(kBytes);
  const std::array<Event, 4> all{
      ask([&](PostContext* context) {
        return a.rail->write({link, 0, on_host.key}, chunk(device.data(), 64, local), {}, context);
      }),
      ask([&](PostContext* context) {
        return a.rail->write({link, 0, on_device.key}, {mine.data(), kBytes}, {}, context);
      }),
      ask([&](PostContext* context) {
        return a.rail->read({link, 0, on_device.key}, {mine.data(), kBytes}, context);
      }),
      ask([&](PostContext* context) {
        return a.rail->read({link, 0, on_host.key}, chunk(device.data(), kBytes, local), context);
      })};
  for (const Event& event : all) {
    EXPECT_EQ(event.kind, Event::Kind::failed);
    EXPECT_EQ(event.blame, Blame::operation);
    EXPECT_NE(a.rail->describe_error(event.error).find("GPU"), std::string::npos);
  }
  EXPECT_EQ(all[0].error, tcp::kGpuFailed);
  EXPECT_EQ(all[1].error, tcp::kTargetGpuFailed);
  EXPECT_EQ(all[2].error, tcp::kTargetGpuFailed);
  EXPECT_EQ(all[3].error, tcp::kGpuFailed);
  EXPECT_EQ(ask([&](PostContext* context) {
              return a.rail->write({link, 0, on_host.key}, {mine.data(), kBytes}, {}, context);
            }).kind,
            Event::Kind::written);
  EXPECT_EQ(a.lost + b.lost, 0U);
  gpu_.call<void()>("cuda_double_mend")();
}

/// Buffers and queues come with the first registration, and go with the rail: no post allocates any.
TEST_F(TcpDevice, EverythingIsOpenedAtRegistrationAndClosedWithTheRail) {
  if (!gpu_.is_double()) GTEST_SKIP() << "only the double counts";
  const auto live = [&] {
    CudaDoubleLive now{};
    gpu_.call<void(CudaDoubleLive*)>("cuda_double_live")(&now);
    return now;
  };
  const GpuMemory memory(gpu_, kBytes);
  const CudaDoubleLive before = live();
  std::vector<std::byte> place(kBytes);
  PostContext write;  // the rails' own until they end
  {
    End a, b;
    const RemoteId link = connect(a, b);
    EXPECT_EQ(live().streams, before.streams) << "a rail without memory of GPUs has nothing to do with them";
    const Registration from = a.share({memory.data(), kBytes}, 0);
    const Registration to = b.share(place, -1);
    const CudaDoubleLive opened = live();
    EXPECT_EQ(opened.streams, before.streams + 2);
    ASSERT_EQ(a.rail->write({link, 0, to.key}, chunk(memory.data(), kBytes, from), {}, &write), Post::posted);
    ASSERT_TRUE(poll_until({&a, &b}, [&] { return a.heard_of(write); }));
    EXPECT_EQ(live().streams, opened.streams);
    EXPECT_EQ(live().pinned, opened.pinned);
    ASSERT_EQ(a.rail->write({link, 0, to.key}, chunk(memory.data(), kBytes, from), {}, &write), Post::posted);
    a.rail->ring();
  }  // with copies under way
  EXPECT_EQ(live().streams, before.streams);
  EXPECT_LE(live().pinned, before.pinned + 1) << "the driver keeps its page of progress words";
}

TEST(TcpDeviceMissing, MemoryOfAGpuWithoutItsDriverIsRefusedWithTheFix) {
  if (accelerator::loaded_driver() != nullptr) GTEST_SKIP() << "another test of this process has started one";
  End end;
  std::vector<std::byte> memory(64);
  const auto refused = end.rail->register_memory(memory, {.device = 0});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.status(), Status::unsupported);
  for (const char* const word : {"tcp", "GPU 0", "libcuda.so.1", "RAILYARD_GPU"})
    EXPECT_NE(refused.error().text().find(word), std::string::npos) << refused.error().text();
}

}  // namespace
}  // namespace railyard::fabric
