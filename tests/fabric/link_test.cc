/// Links that fail, end and are shut out: what fabric/rail.hpp promises of `connect`, `disconnect` and `fence`.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/fi_errno.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "fabric/two_rails.hpp"
#include "sanitized.hpp"

namespace railyard::fabric {
namespace {

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator list("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(list), end(list)));
}

/// Every driver.
using AnyLink = TwoRails;
INSTANTIATE_TEST_SUITE_P(Beds, AnyLink, ::testing::ValuesIn(beds()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(AnyLink, SaysWhatItsFenceIsWorth) {
  const Capabilities& capabilities = a_.rail->capabilities();
  EXPECT_EQ(capabilities.fencing, GetParam().fences_exactly() ? Fencing::exact : Fencing::timed);
  EXPECT_EQ(capabilities.packet_lifetime > 0, capabilities.fencing == Fencing::timed);
}

TEST_P(AnyLink, IsMadeAndEndedManyTimesWithoutLeavingAnythingOpen) {
  ASSERT_TRUE(delivers());
  std::size_t before = 0;
  for (std::uint32_t round = 0; round < 200; ++round) {
    a_.rail->disconnect(a_.peer);
    connect(a_, b_, {7, round + 1});
    b_.rail->disconnect(b_.peer);
    connect(b_, a_, {8, round + 1});
    ASSERT_TRUE(delivers()) << round;
    if (round == 20) before = open_descriptors();
  }
  // The last ends of the rounds before may not have been seen yet: a few polls find them.
  pump_until([n = 0]() mutable { return n++ == 1000; });
  EXPECT_LE(open_descriptors(), before + 4);
}

/// Links that can be lost one by one: connected endpoints and our own shared memory.
class ConnectedLink : public TwoRails {
 protected:
  static constexpr LinkTag kTag{42, 5};

  /// Whether its peer lives is found out by connections, which others may refuse.
  bool asks_by_connecting() const {
    const std::string& driver = a_.rail->capabilities().driver;
    return driver == "tcp" || driver == "ofi" || driver == "verbs";
  }
  void SetUp() override {
    TwoRails::SetUp();
    a_.rail->disconnect(a_.peer);
    connect(a_, b_, kTag);
  }
  Post write(PostContext& context, std::size_t bytes = 4096, WriteOptions options = {}) {
    return a_.rail->write({a_.peer, b_.at(0), b_.registration.key}, a_.chunk(0, bytes, kData), options, &context);
  }
  Post read(PostContext& context, std::size_t bytes) {
    return a_.rail->read({a_.peer, b_.at(0), b_.registration.key}, a_.chunk(0, bytes, kData), &context);
  }
  /// As many posts as the link takes while the peer does not move.
  std::size_t fill_link(std::vector<PostContext>& contexts, const std::function<Post(PostContext&)>& post) {
    std::size_t posted = 0;
    while (posted < contexts.size() && post(contexts[posted]) == Post::posted) ++posted;
    return posted;
  }
  bool fenced(LinkTag tag) {
    bool done = false;
    return pump_until([&] { return done || (done = b_.rail->fence(tag)); });
  }
  /// Everything that was posted has come out of poll, once.
  void expect_all_back_once(const std::vector<PostContext>& contexts, std::size_t posted) {
    ASSERT_TRUE(pump_until([&] {
      for (std::size_t i = 0; i < posted; ++i)
        if (told(a_, &contexts[i]) == 0) return false;
      return true;
    }));
    pump_until([n = 0]() mutable { return n++ == 500; });
    for (std::size_t i = 0; i < posted; ++i) EXPECT_EQ(told(a_, &contexts[i]), 1u) << i;
  }
};

std::vector<Bed> connected_beds() {
  std::vector<Bed> some = {{"tcp", "tcp", "lo", "connected"}, kSockets, kSingleCopy, kRingsOnly, kVerbsDouble};
  if (discover_verbs(Settings())) some.push_back(kVerbs);
  return some;
}

INSTANTIATE_TEST_SUITE_P(Beds, ConnectedLink, ::testing::ValuesIn(connected_beds()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ConnectedLink, IsBusyUntilThePeerHasAccepted) {
  auto fresh = a_.rail->connect(b_.rail->address(), {43, 0});
  ASSERT_TRUE(fresh.ok()) << fresh.error().text();
  PostContext context;
  std::vector<std::pair<Rail*, Event>> alone;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(a_.rail->send(*fresh, a_.chunk(0, 8, kControl), &context), Post::busy);
    pump({a_.rail.get()}, alone, [n = 0]() mutable { return n++ == 1; });
  }
  a_.peer = *fresh;
  EXPECT_TRUE(delivers());
}

TEST_P(ConnectedLink, IsLostAndRefusedWhereNobodyListens) {
  auto gone = open_bed(GetParam(), 1);
  ASSERT_TRUE(gone.ok());
  const auto address = (*gone)[0]->address();
  gone->clear();
  auto remote = a_.rail->connect(address, {1, 1});
  ASSERT_TRUE(remote.ok()) << remote.error().text();
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; }));
  EXPECT_EQ(find(a_, Event::Kind::lost)->remote, *remote);
  const bool proof = !asks_by_connecting();
  EXPECT_EQ(find(a_, Event::Kind::lost)->refused, proof);
  EXPECT_EQ(find(a_, Event::Kind::lost)->unverified, !proof);
  EXPECT_NE(find(a_, Event::Kind::lost)->error, 0);
  PostContext context;
  EXPECT_EQ(a_.rail->send(*remote, a_.chunk(0, 8, kControl), &context), Post::failed);
  a_.rail->disconnect(*remote);
  EXPECT_TRUE(delivers()) << "another link of the rail suffered";
}

/// Where whoever refuses a connection may not be the peer's machine.
TEST_P(ConnectedLink, RefusalsAreProofWhenTheyAreRepeatedAndTheLinkHasStoodBefore) {
  if (!asks_by_connecting()) GTEST_SKIP() << "here the kernel or the model knows for sure";
  ASSERT_TRUE(delivers());
  const auto there = b_.rail->address();
  b_.rail->stop();
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; }));
  a_.rail->disconnect(a_.peer);
  bool refused = false;
  for (std::uint32_t attempt = 0; attempt < 200 && !refused; ++attempt) {
    log_.clear();
    auto remote = a_.rail->connect(there, {kTag.id, kTag.epoch + 1 + attempt});
    ASSERT_TRUE(remote.ok()) << remote.error().text();
    ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; }));
    refused = find(a_, Event::Kind::lost)->refused;
    // Drivers that do not try again by themselves leave it to the next attempt.
    EXPECT_TRUE(refused || find(a_, Event::Kind::lost)->unverified);
    a_.rail->disconnect(*remote);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_TRUE(refused);
}

TEST_P(ConnectedLink, IsLostWhenThePeerGoesAndEveryContextComesBackOnce) {
  ASSERT_TRUE(delivers());
  std::vector<PostContext> contexts(100);
  const std::size_t posted = fill_link(contexts, [&](PostContext& context) {
    return write(context, 1 << 20, {.delivery_complete = a_.rail->capabilities().delivery_complete});
  });
  ASSERT_EQ(posted, contexts.size());
  b_.rail->stop();
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; }));
  EXPECT_EQ(find(a_, Event::Kind::lost)->remote, a_.peer);
  EXPECT_FALSE(find(a_, Event::Kind::lost)->refused);
  a_.rail->disconnect(a_.peer);
  expect_all_back_once(contexts, posted);
  EXPECT_EQ(seen(a_, Event::Kind::lost), 1u);
}

TEST_P(ConnectedLink, EndedUnderLoadGivesEveryContextBackOnce) {
  ASSERT_TRUE(delivers());
  std::vector<PostContext> writes(60);
  std::vector<PostContext> reads(60);
  std::vector<PostContext> sends(60);
  const std::size_t written = fill_link(writes, [&](PostContext& context) { return write(context, 1 << 20); });
  const std::size_t read_count = fill_link(reads, [&](PostContext& context) { return read(context, 1 << 20); });
  const std::size_t sent = fill_link(
      sends, [&](PostContext& context) { return a_.rail->send(a_.peer, a_.chunk(0, 2000, kControl), &context); });
  pump_until([n = 0]() mutable { return n++ == 3; });
  ASSERT_EQ(told(a_, &reads.back()), 0u) << "nothing is under way any more";
  a_.rail->disconnect(a_.peer);
  expect_all_back_once(writes, written);
  expect_all_back_once(reads, read_count);
  expect_all_back_once(sends, sent);
  EXPECT_EQ(seen(a_, Event::Kind::lost), 0u) << "a link that its owner ended is not lost";
}

TEST_P(ConnectedLink, EndedInTheMiddleOfAReadHarmsNoOther) {
  // The answer to the read is half here when its link is ended; then many reads and writes on another link are all
  // right.
  for (std::uint32_t round = 0; round < 10; ++round) {
    ASSERT_TRUE(delivers());
    PostContext half;
    ASSERT_EQ(insist([&] { return read(half, 1 << 20); }), Post::posted);
    std::vector<std::pair<Rail*, Event>> quiet;
    for (std::uint32_t turn = 0; turn < round + 1; ++turn)
      for (Rail* rail : {b_.rail.get(), a_.rail.get()}) {
        std::array<Event, 32> events;
        const std::size_t count = rail->poll(events);
        for (std::size_t i = 0; i < count; ++i) log_.emplace_back(rail, events[i]);
      }
    a_.rail->disconnect(a_.peer);
    connect(a_, b_, {kTag.id, kTag.epoch + 1 + round});
    ASSERT_TRUE(delivers());
    EXPECT_EQ(told(a_, &half), 1u);

    fill(b_.memory, round);
    std::vector<PostContext> reads(64);
    for (std::size_t i = 0; i < reads.size(); ++i)
      ASSERT_EQ(insist([&] {
                  return a_.rail->read({a_.peer, b_.at(i * 16384), b_.registration.key},
                                       a_.chunk(i * 16384, 16384, kData), &reads[i]);
                }),
                Post::posted);
    expect_all_back_once(reads, reads.size());
    EXPECT_TRUE(equal(a_.memory, b_.memory)) << "round " << round;
    log_.clear();
  }
}

TEST_P(ConnectedLink, ARailMayStopWhileALinkEndsInTheMiddleOfAReadAndLetsGoOfItsMemory) {
  ASSERT_TRUE(delivers());
  PostContext half;
  ASSERT_EQ(insist([&] { return read(half, 1 << 20); }), Post::posted);
  pump_until([n = 0]() mutable { return n++ == 2; });
  a_.rail->disconnect(a_.peer);
  a_.rail->stop();
  std::ranges::fill(a_.memory, std::byte{7});
  pump_until([n = 0]() mutable { return n++ == 200; });
  EXPECT_TRUE(std::ranges::all_of(a_.memory, [](std::byte each) { return each == std::byte{7}; }));
  stop_first_ = true;
}

TEST_P(ConnectedLink, AnEndIsToldToTheTarget) {
  ASSERT_TRUE(delivers());
  a_.rail->disconnect(a_.peer);
  ASSERT_TRUE(
      pump_until([&] { return seen(b_, Event::Kind::left) >= 1 && find(b_, Event::Kind::left)->link.id == 42; }));
  EXPECT_EQ(find(b_, Event::Kind::left)->link.epoch, kTag.epoch);
  pump_until([n = 0]() mutable { return n++ == 500; });
  EXPECT_EQ(seen(b_, Event::Kind::left), 1u);
}

TEST_P(ConnectedLink, WhatWasSentBeforeTheEndArrives) {
  ASSERT_TRUE(delivers());
  std::vector<PostContext> receives(150);
  std::vector<PostContext> sends(150);
  PostContext written;
  for (PostContext& context : receives)
    ASSERT_EQ(b_.rail->receive(b_.chunk(0, 2048, kControl), &context), Post::posted);
  feed(b_, 1);
  for (PostContext& context : sends)
    ASSERT_EQ(insist([&] { return a_.rail->send(a_.peer, a_.chunk(0, 1000, kControl), &context); }), Post::posted);
  ASSERT_EQ(insist([&] { return write(written, 4096, {.with_immediate = true, .immediate = 3}); }), Post::posted);
  // Where a write is done only once the target has taken it, that moves, too, one event at a time.
  std::vector<std::pair<Rail*, Event>> alone;
  pump({a_.rail.get()}, alone, [&, polls = 0]() mutable {
    std::array<Event, 1> one;
    if (alone.size() >= sends.size() && ++polls > 1000 && b_.rail->poll(one) == 1)
      log_.emplace_back(b_.rail.get(), one[0]);
    return alone.size() == sends.size() + 1;
  });
  a_.rail->disconnect(a_.peer);
  // One event at a time, so that the end is found while there is more to tell.
  while (seen(b_, Event::Kind::left) == 0) {
    std::array<Event, 1> one;
    if (b_.rail->poll(one) == 1) log_.emplace_back(b_.rail.get(), one[0]);
  }
  EXPECT_EQ(seen(b_, Event::Kind::received), sends.size() + 1);
  EXPECT_EQ(seen(b_, Event::Kind::landed), 1u);
  EXPECT_EQ(log_.back().second.kind, Event::Kind::left) << "something arrived after the end was told";
}

TEST_P(ConnectedLink, AHalfFilledReceiveComesBack) {
  ASSERT_TRUE(delivers());
  log_.clear();
  // A message longer than the sockets hold stops half-way when its sender goes.
  std::vector<std::byte> big(64 << 20);
  if (a_.rail->capabilities().max_message < big.size()) GTEST_SKIP() << "a message arrives whole or not at all";
  auto from = a_.rail->register_memory(big, {});
  ASSERT_TRUE(from.ok());
  std::vector<std::byte> room(big.size());
  auto to = b_.rail->register_memory(room, {});
  ASSERT_TRUE(to.ok());
  PostContext received;
  PostContext sent;
  ASSERT_EQ(b_.rail->receive({room.data(), room.size(), to->descriptor[kControl]}, &received), Post::posted);
  ASSERT_EQ(insist([&] {
              return a_.rail->send(a_.peer, {big.data(), big.size(), from->descriptor[kControl]}, &sent);
            }),
            Post::posted);
  for (int i = 0; i < 3; ++i) pump_until([n = 0]() mutable { return n++ == 1; });
  ASSERT_EQ(told(b_, &received), 0u);
  a_.rail->disconnect(a_.peer);
  ASSERT_TRUE(pump_until([&] { return told(b_, &received) == 1 && told(a_, &sent) == 1; }));
  EXPECT_EQ(find(b_, Event::Kind::failed)->context, &received);
  connect(a_, b_, {kTag.id, kTag.epoch + 1});
  EXPECT_TRUE(delivers());
  a_.rail->revoke(*from);
  b_.rail->revoke(*to);
}

TEST_P(ConnectedLink, AFenceStopsAWriterInMidWrite) {
  ASSERT_TRUE(delivers());
  feed(b_, 64);
  for (std::uint32_t epoch = kTag.epoch; epoch < kTag.epoch + 5; ++epoch) {
    std::vector<PostContext> contexts(1000);
    std::size_t posted = 0;
    std::size_t told_so_far = 0;
    // The writer goes on all the time, with bytes that change.
    const auto write_on = [&] {
      std::fill(a_.memory.begin(), a_.memory.end(), static_cast<std::byte>(posted));
      if (posted < contexts.size() &&
          write(contexts[posted], 1 << 20, {.with_immediate = true, .immediate = 1}) == Post::posted)
        ++posted;
    };
    ASSERT_TRUE(pump_until([&] {
      write_on();
      return seen(b_, Event::Kind::landed) >= 10;
    }));
    bool done = false;
    ASSERT_TRUE(pump_until([&] {
      write_on();
      return done || (done = b_.rail->fence({kTag.id, epoch}));
    }));
    const std::vector<std::byte> then = b_.memory;
    told_so_far = seen(b_, Event::Kind::landed);
    for (int i = 0; i < 300; ++i) {
      write_on();
      pump_until([n = 0]() mutable { return n++ == 1; });
    }
    EXPECT_TRUE(equal(then, b_.memory)) << "bytes landed after the fence";
    EXPECT_EQ(seen(b_, Event::Kind::landed), told_so_far) << "an event came after the fence said that all had";
    ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; }));
    EXPECT_EQ(seen(b_, Event::Kind::left), 0u) << "a fenced link has not left";
    a_.rail->disconnect(a_.peer);
    expect_all_back_once(contexts, posted);
    log_.clear();
    connect(a_, b_, {kTag.id, epoch + 1});
    ASSERT_TRUE(delivers()) << "a newer epoch was refused";
    log_.clear();
  }
}

TEST_P(ConnectedLink, AFenceIsDoneOnlyWhenWhatLandedHasBeenTold) {
  ASSERT_TRUE(delivers());
  std::vector<PostContext> receives(20);
  std::vector<PostContext> sends(20);
  for (PostContext& context : receives) ASSERT_EQ(b_.rail->receive(b_.chunk(0, 64, kControl), &context), Post::posted);
  for (PostContext& context : sends)
    ASSERT_EQ(insist([&] { return a_.rail->send(a_.peer, a_.chunk(0, 64, kControl), &context); }), Post::posted);
  a_.rail->ring();
  // One event at a time: the rail has more of them in hand when it is asked to fence.
  std::array<Event, 1> one;
  std::size_t before = 0;
  while (before == 0) before = b_.rail->poll(one);
  std::size_t after = 0;
  while (!b_.rail->fence(kTag)) after += b_.rail->poll(one);
  EXPECT_GT(after, 0u) << "the rail had nothing in hand: this shows nothing";
  std::size_t late = 0;
  for (int i = 0; i < 1000; ++i) late += b_.rail->poll(one);
  EXPECT_EQ(late, 0u);
  stop_first_ = true;  // it still has contexts of this test
}

TEST_P(ConnectedLink, AFencedEpochIsRefusedAndANewerOneTaken) {
  ASSERT_TRUE(delivers());
  ASSERT_TRUE(fenced({kTag.id, 9}));
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; }));
  for (const std::uint32_t epoch : {0U, 5U, 9U}) {
    log_.clear();
    a_.rail->disconnect(a_.peer);
    connect(a_, b_, {kTag.id, epoch});
    ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; })) << epoch;
    EXPECT_FALSE(find(a_, Event::Kind::lost)->refused) << "somebody is there";
    const int refusal = GetParam().tcp()     ? FI_EACCES
                        : GetParam().verbs() ? static_cast<int>(verbs::kUnwanted)
                                             : static_cast<int>(shm::kEpochRefused);
    EXPECT_EQ(find(a_, Event::Kind::lost)->error, refusal);
  }
  log_.clear();
  a_.rail->disconnect(a_.peer);
  connect(a_, b_, {kTag.id, 10});
  EXPECT_TRUE(delivers());
  EXPECT_EQ(seen(a_, Event::Kind::lost), 0u);
}

TEST_P(ConnectedLink, AFenceOfOneLinkLeavesTheOthers) {
  auto other = a_.rail->connect(b_.rail->address(), {77, 0});
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(delivers());
  ASSERT_TRUE(fenced(kTag));
  std::swap(a_.peer, *other);
  EXPECT_TRUE(delivers());
  EXPECT_TRUE(fenced({999, 3})) << "a link that never was";
}

TEST_P(ConnectedLink, AnOlderEpochIsRefusedAndANewerOneEndsTheOlder) {
  ASSERT_TRUE(delivers());
  auto older = a_.rail->connect(b_.rail->address(), {kTag.id, kTag.epoch - 1});
  ASSERT_TRUE(older.ok());
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; }));
  EXPECT_EQ(find(a_, Event::Kind::lost)->remote, *older);
  a_.rail->disconnect(*older);
  log_.clear();
  auto newer = a_.rail->connect(b_.rail->address(), {kTag.id, kTag.epoch + 1});
  ASSERT_TRUE(newer.ok());
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1 && seen(b_, Event::Kind::left) == 1; }));
  EXPECT_EQ(find(a_, Event::Kind::lost)->remote, a_.peer);
  EXPECT_EQ(find(b_, Event::Kind::left)->link.epoch, kTag.epoch);
  a_.rail->disconnect(a_.peer);
  a_.peer = *newer;
  EXPECT_TRUE(delivers());
}

TEST_P(ConnectedLink, AnAttemptCanBeEndedBeforeItStands) {
  for (std::uint32_t i = 0; i < 50; ++i) {
    auto attempt = a_.rail->connect(b_.rail->address(), {100 + i, 0});
    ASSERT_TRUE(attempt.ok());
    pump_until([n = std::uint32_t{0}, i]() mutable { return n++ == i % 12; });
    a_.rail->disconnect(*attempt);
  }
  EXPECT_TRUE(delivers());
  EXPECT_EQ(seen(a_, Event::Kind::lost), 0u);
}

TEST_P(ConnectedLink, ARequestThatWasNeverFinishedLeavesNoSocket) {
  if (!GetParam().tcp()) GTEST_SKIP() << "there is no listener";
#ifdef RAILYARD_SANITIZED
  GTEST_SKIP() << "the thread sanitizer takes the look at descriptors for a race";
#endif
  const std::size_t before = open_descriptors();
  auto rails = open_bed(GetParam(), 1);
  ASSERT_TRUE(rails.ok());
  // The listener's own address is at the end of the rail's.
  const auto address = (*rails)[0]->address();
  sockaddr_in there{};
  ASSERT_GE(address.size(), sizeof there);
  std::memcpy(&there, address.data() + address.size() - sizeof there, sizeof there);
  ASSERT_EQ(there.sin_family, AF_INET);
  const int half = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(half, reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
  std::array<Event, 8> events;
  for (int i = 0; i < 1000; ++i) (*rails)[0]->poll(events);  // the provider has accepted it and waits for more
  rails->clear();
  ::close(half);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_P(ConnectedLink, AKilledPeerLeavesNothingBehind) {
  if (GetParam().doubled()) GTEST_SKIP() << "the double lives in one process";
  ASSERT_TRUE(delivers());
  const std::vector<std::byte> address = b_.rail->address();
  const std::size_t before = open_descriptors();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // A process of its own: it connects, says a word, and goes on polling until it is killed.
    auto rails = open_bed(GetParam(), 1);
    auto remote = rails.ok() ? (*rails)[0]->connect(address, {4711, 1}) : Result<RemoteId>(rails.error().copy());
    if (!remote.ok()) ::_exit(1);
    char word = 'w';
    PostContext context;
    bool said = false;
    std::array<Event, 8> events;
    for (;;) {
      if (!said) said = (*rails)[0]->send(*remote, {&word, 1, nullptr}, &context) == Post::posted;
      (*rails)[0]->poll(events);
    }
  }
  PostContext heard;
  ASSERT_EQ(b_.rail->receive(b_.chunk(0, 1, kControl), &heard), Post::posted);
  ASSERT_TRUE(pump_until([&] { return told(b_, &heard) == 1; })) << "its lanes were not accepted";
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(pump_until([&] { return seen(b_, Event::Kind::left) == 1; }));
  EXPECT_EQ(find(b_, Event::Kind::left)->link.id, 4711u);
  EXPECT_LE(open_descriptors(), before);
  EXPECT_TRUE(delivers());
}

}  // namespace
}  // namespace railyard::fabric
