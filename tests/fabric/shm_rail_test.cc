/// What is special about the rail through shared memory: bytes read straight out of a peer's memory, and peers that die
/// or talk nonsense. What every rail promises is in rail_contract_test.cc and link_test.cc.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "base/random.hpp"
#include "fabric/beds.hpp"

namespace railyard::fabric::shm {
namespace {

constexpr std::size_t kLong = 4 << 20;

/// A directory of its own: what is left there was left by this test.
class ShmRailTest : public ::testing::Test {
 protected:
  struct Side {
    std::unique_ptr<ShmRail> rail;
    RemoteId peer = 0;
    std::vector<std::byte> memory = std::vector<std::byte>(2 * kLong);
    Registration registration;
    std::vector<Event> log;

    void poll() {
      std::array<Event, 32> events;
      const std::size_t count = rail->poll(events);
      log.insert(log.end(), events.begin(), events.begin() + static_cast<std::ptrdiff_t>(count));
    }
    std::size_t seen(Event::Kind kind) const {
      return static_cast<std::size_t>(
          std::count_if(log.begin(), log.end(), [kind](const Event& event) { return event.kind == kind; }));
    }
    LocalChunk chunk(std::size_t bytes) { return {memory.data(), bytes, nullptr}; }
    std::uint64_t at(std::size_t offset) const { return registration.remote_base + offset; }
  };

  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / ("railyard-test-" + std::to_string(::getpid()));
    std::filesystem::create_directory(directory_);
    for (Side* side : {&a_, &b_}) open(*side);
    connect(a_, b_.rail->address());
  }
  void TearDown() override {
    for (Side* side : {&a_, &b_}) side->rail.reset();
    EXPECT_TRUE(std::filesystem::is_empty(directory_));
    std::filesystem::remove_all(directory_);
  }

  void open(Side& side) {
    ShmRail::Options options;
    options.directory = directory_;
    auto rail = ShmRail::open(options);
    ASSERT_TRUE(rail.ok()) << rail.error().text();
    side.rail = std::move(*rail);
    auto registration = side.rail->register_memory(side.memory, {.remote = true});
    ASSERT_TRUE(registration.ok());
    side.registration = *registration;
  }
  static void connect(Side& side, const std::vector<std::byte>& address, LinkTag tag = {1, 0}) {
    auto peer = side.rail->connect(address, tag);
    ASSERT_TRUE(peer.ok()) << peer.error().text();
    side.peer = *peer;
  }
  bool pump_until(const std::function<bool()>& done) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
      a_.poll();
      b_.poll();
      if (std::chrono::steady_clock::now() > give_up) return false;
    }
    return true;
  }
  Post write(std::size_t bytes, PostContext& context, std::uint64_t key) {
    return a_.rail->write({a_.peer, b_.at(0), key}, a_.chunk(bytes), {.with_immediate = true, .immediate = 5},
                          &context);
  }
  bool posts(const std::function<Post()>& post) {
    Post answer = post();
    pump_until([&] { return answer != Post::busy || (answer = post()) != Post::busy; });
    return answer == Post::posted;
  }
  /// After this, writes are taken at once.
  void settle() {
    PostContext context;
    ASSERT_TRUE(posts([&] { return write(8, context, b_.registration.key); }));
    ASSERT_TRUE(pump_until([&] { return b_.seen(Event::Kind::landed) == 1 && a_.seen(Event::Kind::written) == 1; }));
    a_.log.clear();
    b_.log.clear();
  }

  std::filesystem::path directory_;
  Side a_;
  Side b_;
};

TEST_F(ShmRailTest, LongOperationsAreCopiedOnceShortOnesAreNot) {
  settle();
  EXPECT_EQ(b_.rail->bytes_copied_once(), 0U);
  PostContext context;
  std::fill(a_.memory.begin(), a_.memory.begin() + kLong, std::byte{7});
  ASSERT_TRUE(posts([&] { return write(kLong, context, b_.registration.key); }));
  ASSERT_TRUE(pump_until([&] { return b_.seen(Event::Kind::landed) == 1 && a_.seen(Event::Kind::written) == 1; }));
  EXPECT_EQ(b_.rail->bytes_copied_once(), kLong);
  EXPECT_TRUE(std::equal(a_.memory.begin(), a_.memory.begin() + kLong, b_.memory.begin()));
  EXPECT_EQ(b_.log.front().bytes, kLong);

  std::fill(b_.memory.begin(), b_.memory.end(), std::byte{9});
  ASSERT_TRUE(posts([&] {
    return a_.rail->read({a_.peer, b_.at(0), b_.registration.key}, a_.chunk(kLong), &context);
  }));
  ASSERT_TRUE(pump_until([&] { return a_.seen(Event::Kind::read) == 1; }));
  EXPECT_EQ(a_.rail->bytes_copied_once(), kLong);
  EXPECT_TRUE(std::equal(a_.memory.begin(), a_.memory.begin() + kLong, b_.memory.begin()));
}

TEST_F(ShmRailTest, AMessageOvertakesLongWrites) {
  settle();
  std::array<PostContext, 8> writes;
  PostContext received;
  PostContext sent;
  ASSERT_EQ(b_.rail->receive(b_.chunk(64), &received), Post::posted);
  for (PostContext& context : writes) ASSERT_TRUE(posts([&] { return write(kLong, context, b_.registration.key); }));
  ASSERT_TRUE(posts([&] { return a_.rail->send(a_.peer, a_.chunk(64), &sent); }));
  ASSERT_TRUE(pump_until([&] { return b_.seen(Event::Kind::received) == 1; }));
  EXPECT_LT(b_.seen(Event::Kind::landed), writes.size());
  ASSERT_TRUE(pump_until([&] { return a_.seen(Event::Kind::written) == writes.size(); }));
}

TEST_F(ShmRailTest, WhatItsSenderHasGivenUpDoesNotLand) {
  settle();
  // The target has not moved yet; the sender ends the link and uses the memory for something else.
  PostContext context;
  ASSERT_EQ(write(kLong, context, b_.registration.key), Post::posted);
  a_.rail->disconnect(a_.peer);
  std::fill(a_.memory.begin(), a_.memory.end(), std::byte{0xee});
  ASSERT_TRUE(pump_until([&] { return a_.seen(Event::Kind::failed) == 1 && b_.seen(Event::Kind::left) == 1; }));
  pump_until([n = 0]() mutable { return n++ == 100; });
  EXPECT_EQ(b_.seen(Event::Kind::landed), 0U);
  EXPECT_EQ(a_.seen(Event::Kind::written), 0U);
}

TEST_F(ShmRailTest, TheGuardTellsBeforeTheEndOfTheLinkIsHeard) {
  settle();
  PostContext context;
  PostContext sent;
  PostContext received;
  ASSERT_EQ(write(kLong, context, b_.registration.key), Post::posted);
  // A message that waits for a receive keeps what comes after it in the ring: the end of the link, too.
  ASSERT_EQ(a_.rail->send(a_.peer, a_.chunk(8), &sent), Post::posted);
  b_.poll();
  ASSERT_LT(b_.rail->bytes_copied_once(), kLong);
  a_.rail->disconnect(a_.peer);
  for (int turn = 0; turn < 100; ++turn) b_.poll();
  EXPECT_EQ(b_.rail->bytes_copied_once(), kLong) << "it was not read to its end: this shows nothing";
  EXPECT_EQ(b_.seen(Event::Kind::landed), 0U);
  ASSERT_EQ(b_.rail->receive(b_.chunk(8), &received), Post::posted);
  ASSERT_TRUE(pump_until([&] { return b_.seen(Event::Kind::left) == 1; }));
  EXPECT_EQ(b_.seen(Event::Kind::landed), 0U);
}

TEST_F(ShmRailTest, ADeregisteredKeyStopsALongWriteHalfWay) {
  settle();
  PostContext context;
  std::fill(a_.memory.begin(), a_.memory.end(), std::byte{0xaa});
  ASSERT_EQ(write(kLong, context, b_.registration.key), Post::posted);
  b_.poll();
  const std::size_t copied = b_.rail->bytes_copied_once();
  ASSERT_GT(copied, 0U);
  ASSERT_LT(copied, kLong);
  b_.rail->revoke(b_.registration);
  ASSERT_TRUE(pump_until([&] { return a_.seen(Event::Kind::failed) == 1; }));
  EXPECT_EQ(b_.seen(Event::Kind::landed), 0U);
  EXPECT_EQ(b_.rail->bytes_copied_once(), copied);
  EXPECT_TRUE(std::all_of(b_.memory.begin() + static_cast<std::ptrdiff_t>(copied), b_.memory.end(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_F(ShmRailTest, ALongReadOfAKeyThatIsGoneFails) {
  settle();
  b_.rail->revoke(b_.registration);
  PostContext context;
  ASSERT_TRUE(posts([&] {
    return a_.rail->read({a_.peer, b_.at(0), b_.registration.key}, a_.chunk(kLong), &context);
  }));
  ASSERT_TRUE(pump_until([&] { return a_.seen(Event::Kind::failed) == 1; }));
  EXPECT_EQ(a_.log.back().error, kBadKey);
}

TEST_F(ShmRailTest, LongOperationsOutsideTheRegionFail) {
  settle();
  PostContext context;
  const std::size_t offset = b_.memory.size() - kLong + 1;
  ASSERT_TRUE(posts([&] {
    return a_.rail->write({a_.peer, b_.at(offset), b_.registration.key}, a_.chunk(kLong), {}, &context);
  }));
  ASSERT_TRUE(pump_until([&] { return a_.seen(Event::Kind::failed) == 1; }));
  ASSERT_TRUE(posts([&] {
    return a_.rail->read({a_.peer, b_.at(0) - 1, b_.registration.key}, a_.chunk(kLong), &context);
  }));
  ASSERT_TRUE(pump_until([&] { return a_.seen(Event::Kind::failed) == 2; }));
  EXPECT_EQ(b_.rail->bytes_copied_once(), 0U);
}

TEST_F(ShmRailTest, MemoryThatThePeerCannotReadGoesThroughTheRing) {
  settle();
  // Not readable at the moment when the target tries.
  void* const hole = ::mmap(nullptr, kLong, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  ASSERT_EQ(::mprotect(hole, kLong, PROT_NONE), 0);
  PostContext context;
  ASSERT_EQ(a_.rail->write({a_.peer, b_.at(0), b_.registration.key}, {hole, kLong, nullptr},
                           {.with_immediate = true, .immediate = 1}, &context),
            Post::posted);
  // It finds that it cannot read, and says so.
  for (int turn = 0; turn < 100; ++turn) b_.poll();
  EXPECT_EQ(b_.rail->bytes_copied_once(), 0U);
  ASSERT_EQ(::mprotect(hole, kLong, PROT_READ | PROT_WRITE), 0);
  std::memset(hole, 0x3c, kLong);
  ASSERT_TRUE(pump_until([&] { return b_.seen(Event::Kind::landed) == 1 && a_.seen(Event::Kind::written) == 1; }));
  EXPECT_EQ(b_.rail->bytes_copied_once(), 0U);
  EXPECT_TRUE(std::all_of(b_.memory.begin(), b_.memory.begin() + kLong,
                          [](std::byte byte) { return byte == std::byte{0x3c}; }));
  ::munmap(hole, kLong);
}

TEST_F(ShmRailTest, NonsenseHarmsNobodyElse) {
  settle();
  // An endpoint that speaks the core's language and no other.
  struct Deaf : Listener {
    void left(Inbound& /*from*/, bool /*died*/) override {}
    void lost(Outbound& /*to*/) override {}
  } deaf;
  Endpoint::Options options;
  options.directory = directory_;
  auto core = Endpoint::open(options, deaf);
  ASSERT_TRUE(core.ok());
  Identity identity;
  std::memcpy(identity.bytes.data(), b_.rail->address().data() + 6, identity.bytes.size());
  auto out = (*core)->connect_identity(identity);
  ASSERT_TRUE(out.ok()) << out.error().text();
  Random random(3);
  for (int round = 0; round < 200'000; ++round) {
    const std::size_t bytes = random.below(4) == 0 ? random.below(4096) : 0;
    const Reservation room = (*out)->reserve(bytes);
    if (room.record == nullptr) {
      b_.poll();
      (*core)->poll([](Inbound&, const Arrival&) { return true; });
      continue;
    }
    // Numbers of links that stand now and then, keys and addresses that are nearly right.
    const auto odd = [&](std::uint64_t likely) {
      return random.below(3) == 0 ? random.next() : likely + random.below(3) - 1;
    };
    room.record->arguments = {odd(std::uint64_t{1} << 32U), odd(b_.registration.key)};
    room.record->more[0] = odd(b_.at(0));
    room.record->more[1] = odd(0);
    room.record->more[2] = odd(std::uint64_t{kLong} << 32U);
    room.record->more[3] = odd(a_.at(0));
    const auto kind = static_cast<std::uint8_t>(1 + random.below(13));
    (*out)->publish({static_cast<std::uint32_t>(bytes), kind, static_cast<std::uint8_t>(random.below(4))});
  }
  b_.log.clear();
  PostContext context;
  a_.memory[0] = std::byte{0x77};
  ASSERT_TRUE(posts([&] { return write(kLong, context, b_.registration.key); }));
  ASSERT_TRUE(pump_until([&] { return a_.seen(Event::Kind::written) == 1; }));
  EXPECT_TRUE(std::equal(a_.memory.begin(), a_.memory.begin() + kLong, b_.memory.begin()));
  EXPECT_EQ(a_.seen(Event::Kind::lost), 0U);
}

/// What the test and its child tell each other.
struct SharedPage {
  std::atomic<int> stage{0};
  std::atomic<pid_t> pid{0};
  std::array<std::byte, 64> address{};
  std::size_t address_bytes = 0;
  std::uint64_t key = 0;
  std::uint64_t base = 0;
};
SharedPage* make_page() {
  void* const memory = ::mmap(nullptr, sizeof(SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) SharedPage;
}

/// A process that writes a long chunk, reads it back, and goes on until it is killed.
[[noreturn]] void be_writer(const std::string& directory, SharedPage& page) {
  ShmRail::Options options;
  options.directory = directory;
  auto rail = ShmRail::open(options);
  if (!rail) ::_exit(2);
  auto peer = (*rail)->connect(std::span(page.address).first(page.address_bytes), {4711, 0});
  if (!peer) ::_exit(3);
  std::vector<std::byte> memory(kLong, std::byte{0x42});
  std::array<PostContext, 2> contexts;
  int step = 0;
  for (;;) {
    if (step == 0 && (*rail)->write({*peer, page.base, page.key}, {memory.data(), kLong, nullptr},
                                    {.with_immediate = true, .immediate = 6}, contexts.data()) == Post::posted)
      step = 1;
    if (step == 2 && (*rail)->read({*peer, page.base + kLong, page.key}, {memory.data(), kLong, nullptr},
                                   &contexts[1]) == Post::posted)
      step = 3;
    std::array<Event, 8> events;
    const std::size_t count = (*rail)->poll(events);
    for (std::size_t i = 0; i < count; ++i) {
      if (events[i].kind == Event::Kind::failed || events[i].kind == Event::Kind::lost) ::_exit(4);
      if (events[i].kind == Event::Kind::written) step = 2;
      if (events[i].kind != Event::Kind::read) continue;
      const bool right =
          std::all_of(memory.begin(), memory.end(), [](std::byte byte) { return byte == std::byte{0x24}; });
      // How it got the bytes, for the test to know.
      page.stage = right ? ((*rail)->bytes_copied_once() == kLong ? 1 : 2) : 3;
    }
  }
}

class ShmProcesses : public ShmRailTest {
 protected:
  void SetUp() override {
    ShmRailTest::SetUp();
    page_ = make_page();
    ASSERT_NE(page_, nullptr);
    const auto address = b_.rail->address();
    std::copy(address.begin(), address.end(), page_->address.begin());
    page_->address_bytes = address.size();
    page_->key = b_.registration.key;
    page_->base = b_.registration.remote_base;
    std::fill(b_.memory.begin() + kLong, b_.memory.end(), std::byte{0x24});
  }
  void TearDown() override {
    ::munmap(page_, sizeof *page_);
    ShmRailTest::TearDown();
  }
  void expect_both_ways(bool copied_once) {
    ASSERT_TRUE(pump_until([&] { return b_.seen(Event::Kind::landed) == 1 && page_->stage != 0; }));
    EXPECT_EQ(page_->stage, copied_once ? 1 : 2);
    EXPECT_EQ(b_.rail->bytes_copied_once(), copied_once ? kLong : 0);
    EXPECT_TRUE(std::all_of(b_.memory.begin(), b_.memory.begin() + kLong,
                            [](std::byte byte) { return byte == std::byte{0x42}; }));
  }
  SharedPage* page_ = nullptr;
};

TEST_F(ShmProcesses, ReadEachOthersMemoryAndAKilledOneLeavesNothing) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) be_writer(directory_, *page_);
  expect_both_ways(true);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(pump_until([&] { return b_.seen(Event::Kind::left) == 1; }));
  EXPECT_EQ(b_.log.back().link.id, 4711U);
}

TEST_F(ShmProcesses, InAnotherPidNamespaceUseTheRing) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(77);
    const pid_t inside = ::fork();
    if (inside == 0) be_writer(directory_, *page_);
    page_->pid = inside;
    int status = 0;
    ::waitpid(inside, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 0);
  }
  int status = 0;
  ASSERT_TRUE(
      pump_until([&] { return b_.seen(Event::Kind::landed) == 1 || ::waitpid(child, &status, WNOHANG) == child; }));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "may not make a pid namespace";
  ASSERT_EQ(status, 0) << "the child ended early";
  expect_both_ways(false);
  ASSERT_EQ(::kill(page_->pid, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(pump_until([&] { return b_.seen(Event::Kind::left) == 1; }));
}

}  // namespace
}  // namespace railyard::fabric::shm
