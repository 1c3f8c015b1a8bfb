// What fabric/rail.hpp promises, kept by the simulated rail.
#include "fabric/sim/rail.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "two_rails.hpp"

namespace railyard::fabric::sim {
namespace {

using Kind = Event::Kind;

TEST(SimRail, NamesItselfAndItsPlane) {
  TwoRails world([](RailOptions& rail) {
    rail.number = 3;
    rail.plane = "red";
  });
  EXPECT_EQ(world.b->name(), "sim 1.3");
  EXPECT_EQ(world.b->fabric(), "red");
  EXPECT_EQ(world.b->capabilities().driver, "sim");
}

TEST(SimRail, ConnectRefusesWhatIsNoAddress) {
  TwoRails world;
  EXPECT_EQ(world.a->connect({}, {}).status(), Status::invalid);
  auto longer = world.b->address();
  longer.push_back(std::byte{0});
  EXPECT_EQ(world.a->connect(longer, {}).status(), Status::invalid);
  auto beyond = world.b->address();
  beyond[4] = std::byte{200};
  EXPECT_EQ(world.a->connect(beyond, {}).status(), Status::invalid);
}

TEST(SimRail, RailsOfDifferentPlanesDoNotReachEachOther) {
  FabricOptions options;
  options.rails.resize(2);
  options.rails[1].plane = "other";
  SimFabric fabric(options);
  auto a = std::move(fabric.open_rail(0)).value();
  auto b = std::move(fabric.open_rail(1)).value();
  const auto connected = a->connect(b->address(), {});
  ASSERT_FALSE(connected.ok());
  EXPECT_THAT(connected.error().text(), testing::HasSubstr("plane other"));
}

TEST(SimRail, ARailIsOpenedOnce) {
  SimFabric fabric(FabricOptions{1, std::vector<RailOptions>(1)});
  auto rail = std::move(fabric.open_rail(0)).value();
  EXPECT_EQ(fabric.open_rail(0).status(), Status::invalid);
  EXPECT_EQ(fabric.open_rail(1).status(), Status::out_of_range);
}

TEST(SimRail, AMessageTakesOnePostedReceive) {
  TwoRails world;
  auto message = counting_bytes(100);
  std::vector<std::byte> buffer(256);
  PostContext sent;
  PostContext received;
  ASSERT_EQ(world.b->receive(chunk(buffer), &received), Post::posted);
  ASSERT_EQ(world.a->send(world.b_from_a, chunk(message), &sent), Post::posted);
  const Event arrival = world.next(*world.b);
  EXPECT_EQ(arrival.kind, Kind::received);
  EXPECT_EQ(arrival.context, &received);
  ASSERT_EQ(arrival.bytes, 100U);
  EXPECT_TRUE(std::equal(message.begin(), message.end(), buffer.begin()));
  const Event done = world.next(*world.a);
  EXPECT_EQ(done.kind, Kind::sent);
  EXPECT_EQ(done.context, &sent);
  EXPECT_TRUE(world.settle(*world.a).empty());
  EXPECT_TRUE(world.settle(*world.b).empty());
}

TEST(SimRail, MessagesWithoutAReceiveWaitAndAreNotLost) {
  TwoRails world([](RailOptions& rail) { rail.not_ready = 2; });
  constexpr std::size_t kMessages = 10;  // more than the queue at the receiver holds
  std::vector<std::vector<std::byte>> messages;
  for (std::size_t i = 0; i < kMessages; ++i) messages.push_back(counting_bytes(50, i));
  for (auto& message : messages) ASSERT_EQ(world.a->send(world.b_from_a, chunk(message), nullptr), Post::posted);
  world.fabric.advance(100'000);
  std::array<Event, 4> events;
  EXPECT_EQ(world.b->poll(events), 0U);
  EXPECT_GE(world.fabric.statistics().receiver_not_ready, kMessages);

  std::vector<std::vector<std::byte>> buffers(kMessages, std::vector<std::byte>(64));
  for (auto& buffer : buffers) ASSERT_EQ(world.b->receive(chunk(buffer), nullptr), Post::posted);
  EXPECT_EQ(world.settle(*world.b).size(), kMessages);
  for (auto& buffer : buffers) buffer.resize(50);
  EXPECT_THAT(buffers, testing::UnorderedElementsAreArray(messages));
}

TEST(SimRail, AMessageLongerThanItsReceiveFails) {
  TwoRails world;
  auto message = counting_bytes(100);
  std::vector<std::byte> buffer(99);
  PostContext received;
  ASSERT_EQ(world.b->receive(chunk(buffer), &received), Post::posted);
  ASSERT_EQ(world.a->send(world.b_from_a, chunk(message), nullptr), Post::posted);
  const Event event = world.next(*world.b);
  EXPECT_EQ(event.kind, Kind::failed);
  EXPECT_EQ(event.error, kFaultTruncated);
  EXPECT_EQ(event.context, &received);
  EXPECT_EQ(world.fabric.statistics().violations(), 1U);
}

TEST(SimRail, SentMeansTheBufferWasRead) {
  TwoRails world;
  auto message = counting_bytes(64);
  const auto original = message;
  std::vector<std::byte> buffer(64);
  ASSERT_EQ(world.b->receive(chunk(buffer), nullptr), Post::posted);
  ASSERT_EQ(world.a->send(world.b_from_a, chunk(message), nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.a).kind, Kind::sent);
  std::ranges::fill(message, std::byte{0});
  world.settle(*world.b);
  EXPECT_EQ(buffer, original);
}

TEST(SimRail, ASourceChangedBeforeTheCompletionIsSentChanged) {
  TwoRails world;  // so that a transport that calls its sources free too early is found out
  auto message = counting_bytes(64);
  std::vector<std::byte> buffer(64);
  ASSERT_EQ(world.b->receive(chunk(buffer), nullptr), Post::posted);
  ASSERT_EQ(world.a->send(world.b_from_a, chunk(message), nullptr), Post::posted);
  std::ranges::fill(message, std::byte{0});
  world.settle(*world.b);
  EXPECT_EQ(buffer, std::vector<std::byte>(64));
}

TEST(SimRail, InjectCopiesAtOnce) {
  TwoRails world([](RailOptions& rail) { rail.inject_bytes = 64; });
  auto message = counting_bytes(64);
  const auto original = message;
  std::vector<std::byte> buffer(64);
  ASSERT_EQ(world.b->receive(chunk(buffer), nullptr), Post::posted);
  ASSERT_EQ(world.a->send(world.b_from_a, chunk(message), nullptr), Post::posted);
  std::ranges::fill(message, std::byte{0});
  world.settle(*world.b);
  EXPECT_EQ(buffer, original);
}

TEST(SimRail, AWriteLandsInChunksAndItsImmediateComesAfterTheLast) {
  TwoRails world([](RailOptions& rail) {
    rail.mtu = 1000;
    rail.reorder_probability = 0.5;
    rail.bandwidth = 1e9;
  });
  constexpr std::size_t kBytes = 10'500;
  Regions regions(world, kBytes);
  std::ranges::copy(counting_bytes(kBytes), regions.here.begin());
  ASSERT_EQ(
      world.a->write(regions.remote(0), regions.local(0, kBytes), {.with_immediate = true, .immediate = 77}, nullptr),
      Post::posted);
  std::set<std::size_t> seen;  // how many bytes were right at each moment
  std::array<Event, 4> events;
  std::size_t count = 0;
  while (count == 0) {
    std::size_t right = 0;
    for (std::size_t i = 0; i < kBytes; ++i) right += regions.there[i] == regions.here[i] ? 1U : 0U;
    seen.insert(right);
    count = world.b->poll(events);
    if (count == 0) {
      ASSERT_TRUE(world.fabric.step());
    }
  }
  EXPECT_GE(seen.size(), 8U);
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(events[0].kind, Kind::landed);
  EXPECT_EQ(events[0].immediate, 77U);
  EXPECT_EQ(events[0].bytes, kBytes);
  EXPECT_EQ(events[0].context, nullptr);
  EXPECT_EQ(regions.there, regions.here);
}

TEST(SimRail, WritesOfDifferentOperationsInterleave) {
  TwoRails world([](RailOptions& rail) {
    rail.mtu = 256;
    rail.interleave = 2;
  });
  constexpr std::size_t kBytes = 4096;
  Regions regions(world, 2 * kBytes);
  std::ranges::fill(regions.here, std::byte{1});
  ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, kBytes), {}, nullptr), Post::posted);
  ASSERT_EQ(world.a->write(regions.remote(kBytes), regions.local(kBytes, kBytes), {}, nullptr), Post::posted);
  bool both_partly = false;
  while (world.fabric.step()) {
    const auto partly = [&](std::size_t begin) {
      const auto landed = std::count(regions.there.begin() + static_cast<std::ptrdiff_t>(begin),
                                     regions.there.begin() + static_cast<std::ptrdiff_t>(begin + kBytes), std::byte{1});
      return landed > 0 && landed < static_cast<std::ptrdiff_t>(kBytes);
    };
    both_partly = both_partly || (partly(0) && partly(kBytes));
  }
  EXPECT_TRUE(both_partly);
  EXPECT_EQ(regions.there, regions.here);
  world.settle(*world.a);
}

TEST(SimRail, APlainCompletionComesBeforeTheBytesAConfirmedOneAfter) {
  TwoRails world([](RailOptions& rail) { rail.latency = 50'000; });
  Regions regions(world, 64);
  std::ranges::copy(counting_bytes(64), regions.here.begin());
  ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 64), {}, nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.a).kind, Kind::written);
  EXPECT_NE(regions.there, regions.here);
  world.settle(*world.a);
  EXPECT_EQ(regions.there, regions.here);

  std::ranges::copy(counting_bytes(64, 9), regions.here.begin());
  ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 64), {.delivery_complete = true}, nullptr),
            Post::posted);
  EXPECT_EQ(world.next(*world.a).kind, Kind::written);
  EXPECT_EQ(regions.there, regions.here);
}

TEST(SimRail, EmptyWritesCarryTheirImmediate) {
  TwoRails world;
  Regions regions(world, 64);
  ASSERT_EQ(world.a->write(regions.remote(0), LocalChunk{}, {.with_immediate = true, .immediate = 5}, nullptr),
            Post::posted);
  const Event event = world.next(*world.b);
  EXPECT_EQ(event.kind, Kind::landed);
  EXPECT_EQ(event.immediate, 5U);
  EXPECT_EQ(event.bytes, 0U);
  EXPECT_EQ(world.next(*world.a).kind, Kind::written);
}

TEST(SimRail, AnImmediateThatTakesAReceiveWaitsForOne) {
  TwoRails world([](RailOptions& rail) { rail.immediate_takes_receive = true; });
  Regions regions(world, 64);
  PostContext context;
  std::vector<std::byte> buffer(64);
  ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 64), {.with_immediate = true, .immediate = 5}, nullptr),
            Post::posted);
  EXPECT_TRUE(world.settle(*world.b).empty());
  ASSERT_EQ(world.b->receive(chunk(buffer), &context), Post::posted);
  const Event event = world.next(*world.b);
  EXPECT_EQ(event.kind, Kind::landed);
  EXPECT_EQ(event.context, &context);
  world.settle(*world.a);
}

TEST(SimRail, AReadBringsTheRemoteBytes) {
  TwoRails world([](RailOptions& rail) { rail.mtu = 512; });
  constexpr std::size_t kBytes = 5'000;
  Regions regions(world, kBytes);
  std::ranges::copy(counting_bytes(kBytes), regions.there.begin());
  PostContext context;
  ASSERT_EQ(world.a->read(regions.remote(1'000), regions.local(0, 4'000), &context), Post::posted);
  const Event event = world.next(*world.a);
  EXPECT_EQ(event.kind, Kind::read);
  EXPECT_EQ(event.context, &context);
  EXPECT_EQ(event.bytes, 4'000U);
  EXPECT_TRUE(std::equal(regions.there.begin() + 1'000, regions.there.end(), regions.here.begin()));
}

TEST(SimRail, AFullQueueIsBusyUntilTheCompletionWasPolled) {
  TwoRails world([](RailOptions& rail) { rail.depth = 2; });
  Regions regions(world, 64);
  const auto write = [&] { return world.a->write(regions.remote(0), regions.local(0, 8), {}, nullptr); };
  EXPECT_EQ(write(), Post::posted);
  EXPECT_EQ(write(), Post::posted);
  EXPECT_EQ(write(), Post::busy);
  EXPECT_EQ(world.fabric.statistics().writes, 2U);
  while (world.fabric.step()) {
  }
  EXPECT_EQ(write(), Post::busy);
  EXPECT_EQ(world.settle(*world.a).size(), 2U);
  EXPECT_EQ(write(), Post::posted);
  world.settle(*world.a);
}

TEST(SimRail, ReceivesAreBounded) {
  TwoRails world([](RailOptions& rail) { rail.receive_depth = 1; });
  std::vector<std::byte> buffer(64);
  EXPECT_EQ(world.a->receive(chunk(buffer), nullptr), Post::posted);
  EXPECT_EQ(world.a->receive(chunk(buffer), nullptr), Post::busy);
}

TEST(SimRail, BusyAtRandomLeavesNothingBehind) {
  TwoRails world([](RailOptions& rail) { rail.busy_probability = 0.5; });
  Regions regions(world, 64);
  std::size_t posted = 0;
  for (int i = 0; i < 100; ++i) {
    posted += world.a->write(regions.remote(0), regions.local(0, 8), {}, nullptr) == Post::posted ? 1U : 0U;
  }
  EXPECT_GT(posted, 20U);
  EXPECT_LT(posted, 80U);
  EXPECT_EQ(world.settle(*world.a).size(), posted);
}

TEST(SimRail, AnUnconnectedRemoteIsRefused) {
  TwoRails world;
  auto message = counting_bytes(8);
  EXPECT_EQ(world.a->send(17, chunk(message), nullptr), Post::failed);
  EXPECT_THAT(world.a->failure(), testing::HasSubstr("remote 17"));
  world.a->disconnect(world.b_from_a);
  EXPECT_EQ(world.a->send(world.b_from_a, chunk(message), nullptr), Post::failed);
}

/// A write to B with the remote chunk changed; what the poster is told.
Event refused_write(const std::function<void(RemoteChunk&)>& change,
                    const std::function<void(RailOptions&)>& options = {}) {
  TwoRails world(options);
  Regions regions(world, 64);
  std::ranges::copy(counting_bytes(64), regions.here.begin());
  RemoteChunk to = regions.remote(0);
  change(to);
  EXPECT_EQ(world.a->write(to, regions.local(0, 64), {.with_immediate = true}, nullptr), Post::posted);
  const Event event = world.next(*world.a);
  EXPECT_EQ(regions.there, std::vector<std::byte>(64));
  EXPECT_TRUE(world.settle(*world.b).empty()) << "an immediate came although the write failed";
  EXPECT_EQ(world.fabric.statistics().violations(), 1U);
  return event;
}

TEST(SimRail, ABadKeyIsRefused) {
  const Event event = refused_write([](RemoteChunk& to) { to.key ^= 0x400U; });
  EXPECT_EQ(event.kind, Kind::failed);
  EXPECT_EQ(event.error, kFaultBadKey);
}

TEST(SimRail, AnAddressOutOfBoundsIsRefused) {
  EXPECT_EQ(refused_write([](RemoteChunk& to) { to.address += 1; }).error, kFaultOutOfBounds);
  EXPECT_EQ(refused_write([](RemoteChunk& to) { to.address = UINT64_MAX; }).error, kFaultOutOfBounds);
  const auto virtually = [](RailOptions& rail) { rail.virtual_addresses = true; };
  EXPECT_EQ(refused_write([](RemoteChunk& to) { to.address -= 1; }, virtually).error, kFaultOutOfBounds);
  EXPECT_EQ(refused_write([](RemoteChunk& to) { to.address = 0; }, virtually).error, kFaultOutOfBounds);
}

TEST(SimRail, MemoryRegisteredForLocalUseIsNotReachable) {
  TwoRails world;
  std::vector<std::byte> memory(64);
  const auto registration = world.b->register_memory(memory, {.remote = false}).value();
  auto source = counting_bytes(8);
  ASSERT_EQ(world.a->write({world.b_from_a, 0, registration.key}, chunk(source), {}, nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.a).error, kFaultNotRemote);
  world.b->revoke(registration);
}

TEST(SimRail, AKeyOfAnotherRailIsRefused) {
  TwoRails world;
  std::vector<std::byte> memory(64);
  const auto registration = world.a->register_memory(memory, {.remote = true}).value();
  const auto other = world.b->register_memory(memory, {.remote = true}).value();
  auto source = counting_bytes(8);
  ASSERT_EQ(world.a->write({world.b_from_a, 0, registration.key}, chunk(source), {}, nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.a).kind, Kind::failed);
  world.a->revoke(registration);
  world.b->revoke(other);
}

TEST(SimRail, WritesAndReadsAfterDeregistrationAreRefused) {
  TwoRails world;
  Regions regions(world, 64);
  std::ranges::copy(counting_bytes(64), regions.here.begin());
  world.b->revoke(regions.there_registration);
  regions.gone = true;
  ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 8), {}, nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.a).error, kFaultDeregistered);
  ASSERT_EQ(world.a->read(regions.remote(0), regions.local(0, 8), nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.a).error, kFaultDeregistered);
  // The place of the old registration is taken by another: the old key must not open it.
  const auto again = world.b->register_memory(regions.there, {.remote = true}).value();
  ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 8), {}, nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.a).error, kFaultDeregistered);
  EXPECT_EQ(world.fabric.statistics().violations(), 3U);
  EXPECT_THAT(world.a->describe_error(kFaultDeregistered), testing::HasSubstr("gone"));
  world.b->revoke(again);
}

TEST(SimRail, DeregistrationUnderwayStopsTheRest) {
  TwoRails world([](RailOptions& rail) { rail.latency = 10'000; });
  Regions regions(world, 64);
  std::ranges::copy(counting_bytes(64), regions.here.begin());
  ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 64), {.delivery_complete = true}, nullptr),
            Post::posted);
  world.fabric.advance(5'000);  // the packet is on its way
  world.b->revoke(regions.there_registration);
  regions.gone = true;
  const Event event = world.next(*world.a);
  EXPECT_EQ(event.kind, Kind::failed);
  EXPECT_EQ(event.error, kFaultDeregistered);
  EXPECT_EQ(regions.there, std::vector<std::byte>(64));
}

TEST(SimRail, DoubleDeregistrationIsCounted) {
  TwoRails world;
  std::vector<std::byte> memory(64);
  const auto registration = world.a->register_memory(memory, {}).value();
  world.a->revoke(registration);
  EXPECT_EQ(world.fabric.statistics().violations(), 0U);
  world.a->revoke(registration);
  EXPECT_EQ(world.fabric.statistics().violations(), 1U);
  EXPECT_EQ(world.a->register_memory({}, {}).status(), Status::invalid);
}

TEST(SimRail, ARailClosedBeforeItsRegistrationsIsCounted) {
  TwoRails world;
  std::vector<std::byte> memory(64);
  ASSERT_TRUE(world.a->register_memory(memory, {}).ok());
  world.a.reset();
  EXPECT_EQ(world.fabric.statistics().registrations_left, 1U);
}

TEST(SimRail, LocalMemoryNeedsTheDescriptorOfItsLane) {
  TwoRails world([](RailOptions& rail) {
    rail.needs_local_registration = true;
    rail.binds_registrations = true;
  });
  Regions regions(world, 64);
  const auto write = [&](void* address, void* descriptor) {
    EXPECT_EQ(world.a->write(regions.remote(0), LocalChunk{address, 8, descriptor}, {}, nullptr), Post::posted);
    return world.next(*world.a);
  };
  const auto& descriptors = regions.here_registration.descriptor;
  EXPECT_EQ(write(regions.here.data(), descriptors[1]).kind, Kind::written);
  EXPECT_EQ(write(regions.here.data(), descriptors[0]).error, kFaultBadDescriptor);
  EXPECT_EQ(write(regions.here.data(), nullptr).error, kFaultBadDescriptor);
  EXPECT_EQ(write(regions.here.data() + 60, descriptors[1]).error, kFaultOutOfBounds);

  ASSERT_EQ(world.a->send(world.b_from_a, LocalChunk{regions.here.data(), 8, descriptors[1]}, nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.a).error, kFaultBadDescriptor);
  ASSERT_EQ(world.a->receive(LocalChunk{regions.here.data(), 8, nullptr}, nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.a).error, kFaultBadDescriptor);
  EXPECT_EQ(world.fabric.statistics().violations(), 5U);
}

TEST(SimRail, OneDescriptorServesBothLanesWhereNothingIsBound) {
  TwoRails world([](RailOptions& rail) { rail.needs_local_registration = true; });
  Regions regions(world, 64);
  EXPECT_EQ(regions.here_registration.descriptor[0], regions.here_registration.descriptor[1]);
  ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 8), {}, nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.a).kind, Kind::written);
}

TEST(SimRail, LimitsAreKept) {
  TwoRails world([](RailOptions& rail) {
    rail.max_message = 32;
    rail.max_write = 48;
  });
  Regions regions(world, 64);
  ASSERT_EQ(world.a->send(world.b_from_a, regions.local(0, 33), nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.a).error, kFaultTooLong);
  ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 49), {}, nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.a).error, kFaultTooLong);
  ASSERT_EQ(world.a->read(regions.remote(0), regions.local(0, 49), nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.a).error, kFaultTooLong);
}

TEST(SimRail, WithoutProgressOfItsOwnNothingLandsUntilAPoll) {
  TwoRails world([](RailOptions& rail) { rail.progresses_alone = false; });
  Regions regions(world, 64);
  std::ranges::copy(counting_bytes(64), regions.here.begin());
  ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 64), {.with_immediate = true}, nullptr), Post::posted);
  while (world.fabric.step()) {
  }
  EXPECT_EQ(regions.there, std::vector<std::byte>(64));
  EXPECT_TRUE(world.fabric.ready(1));
  std::array<Event, 4> events;
  ASSERT_EQ(world.b->poll(events), 1U);
  EXPECT_EQ(regions.there, regions.here);
  EXPECT_FALSE(world.fabric.ready(1));
  world.settle(*world.a);
}

TEST(SimRail, OperationsToAClosedRailFail) {
  TwoRails world;
  Regions regions(world, 64);
  auto message = counting_bytes(8);
  world.b->revoke(regions.there_registration);
  regions.gone = true;
  ASSERT_EQ(world.a->read(regions.remote(0), regions.local(0, 8), nullptr), Post::posted);
  world.b.reset();
  // The answer to the read and the news of the broken link may overtake each other.
  std::vector<Kind> kinds;
  for (const Event& event : world.settle(*world.a)) kinds.push_back(event.kind);
  EXPECT_THAT(kinds, testing::UnorderedElementsAre(Kind::failed, Kind::lost, Kind::left));
  EXPECT_EQ(world.a->send(world.b_from_a, chunk(message), nullptr), Post::failed);
  EXPECT_EQ(world.fabric.statistics().violations(), 0U);
}

TEST(SimRail, ClosingWithWorkInHandTouchesNothingAfterwards) {
  TwoRails world([](RailOptions& rail) { rail.mtu = 64; });
  {
    Regions regions(world, 4096);
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 4096), {}, nullptr), Post::posted);
      ASSERT_EQ(world.a->read(regions.remote(0), regions.local(0, 4096), nullptr), Post::posted);
      ASSERT_EQ(world.a->send(world.b_from_a, regions.local(0, 100), nullptr), Post::posted);
    }
    world.fabric.advance(3'000);
    world.a->revoke(regions.here_registration);
    world.a.reset();
  }
  std::vector<Event> events = world.settle(*world.b);  // the memory of the regions is gone: a sanitizer would see it
  for (const Event& event : events) EXPECT_TRUE(event.kind == Kind::left || event.kind == Kind::lost);
}

TEST(SimRail, AStoppedRailTouchesNothing) {
  TwoRails world;
  Regions regions(world, 64);
  std::ranges::copy(counting_bytes(64), regions.here.begin());
  std::vector<std::byte> buffer(64);
  ASSERT_EQ(world.b->receive(chunk(buffer), nullptr), Post::posted);
  ASSERT_EQ(world.a->send(world.b_from_a, regions.local(0, 8), nullptr), Post::posted);
  ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 8), {}, nullptr), Post::posted);
  world.b->stop();
  world.settle(*world.a);
  EXPECT_EQ(buffer, std::vector<std::byte>(64));
  EXPECT_EQ(regions.there, std::vector<std::byte>(64));
  std::array<Event, 4> events;
  EXPECT_EQ(world.b->poll(events), 0U);
  EXPECT_EQ(world.b->receive(chunk(buffer), nullptr), Post::failed);
  EXPECT_EQ(world.b->send(world.a_from_b, chunk(buffer), nullptr), Post::failed);
  EXPECT_THAT(world.b->failure(), testing::HasSubstr("stopped"));
  EXPECT_EQ(world.fabric.statistics().violations(), 0U);
}

TEST(SimRail, BandwidthIsSharedAtTheReceiver) {
  // Three senders to one rail: the bytes come in no faster than that one rail can take them.
  FabricOptions options;
  for (int process = 0; process < 4; ++process) {
    RailOptions rail;
    rail.process = process;
    rail.bandwidth = 1e9;
    options.rails.push_back(rail);
  }
  constexpr std::size_t kBytes = 1 << 20;
  const auto time_for = [&](std::size_t senders) {
    SimFabric fabric(options);
    std::vector<std::unique_ptr<Rail>> rails;
    for (std::size_t i = 0; i < 4; ++i) rails.push_back(std::move(fabric.open_rail(i)).value());
    std::vector<std::byte> source(kBytes);
    std::vector<std::byte> target(kBytes);
    const auto registration = rails[0]->register_memory(target, {.remote = true}).value();
    for (std::size_t i = 1; i <= senders; ++i) {
      const RemoteId remote = rails[i]->connect(rails[0]->address(), {.id = i}).value();
      fabric.advance(options.rails[0].latency);
      EXPECT_EQ(rails[i]->write({remote, 0, registration.key}, chunk(source), {.with_immediate = true}, nullptr),
                Post::posted);
    }
    std::array<Event, 4> events;
    std::size_t landed = 0;
    while (landed < senders && fabric.step()) landed += rails[0]->poll(events);
    EXPECT_EQ(landed, senders);
    rails[0]->revoke(registration);
    return static_cast<double>(fabric.now());
  };
  const double one = time_for(1);
  EXPECT_NEAR(one, 1e9 * kBytes / 1e9, one * 0.05);
  EXPECT_NEAR(time_for(3) / one, 3.0, 0.15);
}

TEST(SimRail, InOrderRailsKeepTheOrderOfMessages) {
  TwoRails world([](RailOptions& rail) {
    rail.jitter = 50'000;
    rail.delay_probability = 0.2;
  });
  constexpr std::size_t kMessages = 50;
  std::vector<std::vector<std::byte>> buffers(kMessages, std::vector<std::byte>(8));
  for (auto& buffer : buffers) ASSERT_EQ(world.b->receive(chunk(buffer), nullptr), Post::posted);
  std::vector<std::vector<std::byte>> messages;
  for (std::size_t i = 0; i < kMessages; ++i) messages.push_back(counting_bytes(8, i));
  for (auto& message : messages) ASSERT_EQ(world.a->send(world.b_from_a, chunk(message), nullptr), Post::posted);
  world.settle(*world.b);
  EXPECT_EQ(buffers, messages);
}

TEST(SimRail, ReorderingRailsDoNot) {
  TwoRails world([](RailOptions& rail) { rail.reorder_probability = 0.3; });
  constexpr std::size_t kMessages = 50;
  std::vector<std::vector<std::byte>> buffers(kMessages, std::vector<std::byte>(8));
  for (auto& buffer : buffers) ASSERT_EQ(world.b->receive(chunk(buffer), nullptr), Post::posted);
  std::vector<std::vector<std::byte>> messages;
  for (std::size_t i = 0; i < kMessages; ++i) messages.push_back(counting_bytes(8, i));
  for (auto& message : messages) ASSERT_EQ(world.a->send(world.b_from_a, chunk(message), nullptr), Post::posted);
  world.settle(*world.b);
  EXPECT_NE(buffers, messages);
  EXPECT_THAT(buffers, testing::UnorderedElementsAreArray(messages));
}

TEST(SimRail, ControlMessagesDoNotQueueBehindBulk) {
  TwoRails world([](RailOptions& rail) { rail.bandwidth = 1e9; });
  constexpr std::size_t kBytes = 1 << 20;
  Regions regions(world, kBytes);
  std::vector<std::byte> buffer(64);
  ASSERT_EQ(world.b->receive(chunk(buffer), nullptr), Post::posted);
  ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, kBytes), {.with_immediate = true}, nullptr),
            Post::posted);
  ASSERT_EQ(world.a->send(world.b_from_a, regions.local(0, 8), nullptr), Post::posted);
  EXPECT_EQ(world.next(*world.b).kind, Kind::received);
  EXPECT_EQ(world.next(*world.b).kind, Kind::landed);
}

TEST(SimRail, LateCompletionsComeLateButCome) {
  TwoRails world([](RailOptions& rail) {
    rail.late_probability = 1;
    rail.late_delay = 1'000'000;
    rail.depth = 64;
  });
  Regions regions(world, 64);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 8), {}, nullptr), Post::posted);
  }
  world.fabric.advance(100'000);  // far more than the latency
  std::vector<Event> events;
  TwoRails::collect(*world.a, events);
  EXPECT_LT(events.size(), 20U);
  const auto rest = world.settle(*world.a);
  EXPECT_EQ(events.size() + rest.size(), 20U);
}

}  // namespace
}  // namespace railyard::fabric::sim
