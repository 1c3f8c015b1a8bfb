// What simulated rails and processes do that only real ones did before: successes after the end of a link, writes in
// part, processes that stop, memory that is taken back, arrivals from nobody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "transport/wire.hpp"
#include "two_rails.hpp"

namespace railyard::fabric::sim {
namespace {

constexpr RailState kDark{Carry::nothing, Carry::nothing};
constexpr RailState kBroken{Carry::errors, Carry::errors};

std::size_t count_of(std::span<const Event> events, Event::Kind kind) {
  return static_cast<std::size_t>(std::ranges::count(events, kind, &Event::kind));
}

TEST(SimUnkind, ASuccessMayComeLongAfterItsLinkWasGivenUp) {
  TwoRails world([](RailOptions& rail) {
    rail.late_success_probability = 1;
    rail.late_success_delay = 5'000'000;
    rail.late_probability = 1;  // no completion before the end of the link
    rail.late_delay = 1'000'000;
    rail.needs_local_registration = false;
  });
  Regions regions(world, 64);
  std::array<PostContext, 4> contexts;
  for (PostContext& context : contexts) {
    ASSERT_EQ(world.a->send(world.b_from_a, regions.local(0, 8), &context), Post::posted);
  }
  world.fabric.advance(1'500);
  std::vector<Event> early;
  TwoRails::collect(*world.a, early);
  world.a->disconnect(world.b_from_a);
  const auto events = world.settle(*world.a);
  EXPECT_EQ(early.size() + events.size(), contexts.size());
  EXPECT_EQ(count_of(events, Event::Kind::failed), 0U);
  EXPECT_GT(count_of(events, Event::Kind::sent), 0U);
  EXPECT_GT(world.fabric.statistics().late_successes, 0U);
}

TEST(SimUnkind, AReadThatDidNotArriveIsNeverALateSuccess) {
  TwoRails world([](RailOptions& rail) { rail.late_success_probability = 1; });
  Regions regions(world, 64);
  PostContext context;
  ASSERT_EQ(world.a->read(regions.remote(0), regions.local(0, 64), &context), Post::posted);
  world.fabric.advance(500);
  world.a->disconnect(world.b_from_a);
  EXPECT_EQ(count_of(world.settle(*world.a), Event::Kind::failed), 1U);
}

TEST(SimUnkind, AWriteThatFailsMayLeaveSomeOfItsBytes) {
  std::size_t partial = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    TwoRails world([](RailOptions& rail) { rail.partial_probability = 1; }, seed);
    Regions regions(world, 4096);
    std::ranges::fill(regions.here, std::byte{0x42});
    PostContext context;
    ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 4096), {.delivery_complete = true}, &context),
              Post::posted);
    world.fabric.advance(1'000);
    world.fabric.set_state(1, kBroken);
    EXPECT_EQ(world.next(*world.a).kind, Event::Kind::failed);
    const auto landed = std::ranges::count(regions.there, std::byte{0x42});
    partial += landed > 0 && landed < 4096 ? 1 : 0;
  }
  EXPECT_GT(partial, 5U);
}

TEST(SimUnkind, NothingOfAWriteLandsBehindTheFence) {
  TwoRails world([](RailOptions& rail) { rail.partial_probability = 1; });
  Regions regions(world, 4096);
  std::ranges::fill(regions.here, std::byte{0x42});
  PostContext context;
  ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 4096), {.delivery_complete = true}, &context),
            Post::posted);
  world.fabric.advance(1'000);
  EXPECT_TRUE(world.b->fence({}));
  world.fabric.set_state(1, kBroken);
  world.settle(*world.a);
  EXPECT_EQ(std::ranges::count(regions.there, std::byte{0x42}), 0);
}

TEST(SimUnkind, ARefusalBlamesTheOperationAndLeavesTheLinkOrBreaksIt) {
  for (const bool breaks : {false, true}) {
    FabricOptions options = TwoRails::make_options(
        [breaks](RailOptions& rail) {
          rail.writes_confirmed = true;
          rail.refusal_breaks_link = breaks;
        },
        1);
    options.programs.deregisters = true;
    TwoRails world(options);
    Regions regions(world, 64);
    PostContext context;
    ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 64), {}, &context), Post::posted);
    world.fabric.advance(1'000);  // on its way
    world.b->revoke(regions.there_registration);
    regions.gone = true;
    const auto events = world.settle(*world.a);
    const auto failed = std::ranges::find(events, Event::Kind::failed, &Event::kind);
    ASSERT_NE(failed, events.end());
    EXPECT_EQ(failed->blame, Blame::operation);
    EXPECT_EQ(failed->context, &context);
    EXPECT_EQ(count_of(events, Event::Kind::lost), breaks ? 1U : 0U);
    EXPECT_EQ(world.fabric.statistics().violations(), 0U);
    EXPECT_EQ(world.fabric.statistics().refused, 1U);
    EXPECT_EQ(regions.there, std::vector<std::byte>(64));
  }
}

TEST(SimUnkind, AStoppedProcessIsAliveAndItsNicGoesOn) {
  for (const bool alone : {true, false}) {
    TwoRails world([alone](RailOptions& rail) { rail.progresses_alone = alone; });
    Regions regions(world, 64);
    std::ranges::fill(regions.here, std::byte{0x42});
    PostContext context;
    ASSERT_EQ(world.a->write(regions.remote(0), regions.local(0, 64), {}, &context), Post::posted);
    world.fabric.pause(0, 1'000'000);
    EXPECT_TRUE(world.fabric.paused(0));
    EXPECT_EQ(world.b->liveness(world.a_from_b), Liveness::alive);
    world.fabric.advance(500'000);
    std::vector<Event> ignored;
    TwoRails::collect(*world.b, ignored);
    EXPECT_EQ(regions.there[0] == std::byte{0x42}, alone) << "only a NIC that needs no process sends";
    world.fabric.advance(600'000);
    EXPECT_FALSE(world.fabric.paused(0));
    TwoRails::collect(*world.b, ignored);
    EXPECT_EQ(regions.there[0], std::byte{0x42});
    world.settle(*world.a);
  }
}

TEST(SimUnkind, LivenessIsToldWhereAnythingGetsThrough) {
  TwoRails world;
  EXPECT_EQ(world.a->liveness(world.b_from_a), Liveness::alive);
  world.fabric.set_state(1, kDark);
  EXPECT_EQ(world.a->liveness(world.b_from_a), Liveness::unknown);
  world.fabric.set_state(1, {});
  world.fabric.kill(1, Death::told);
  EXPECT_EQ(world.a->liveness(world.b_from_a), Liveness::gone);
  TwoRails silent;
  silent.fabric.kill(1, Death::silent);
  EXPECT_EQ(silent.a->liveness(silent.b_from_a), Liveness::unknown);
  EXPECT_EQ(silent.a->liveness(77), Liveness::unknown);
}

TEST(SimUnkind, WhatNobodySentArrivesAllTheSame) {
  FabricOptions options = TwoRails::make_options({}, 1);
  options.intrusions = {{10'000, 1, Intrusion::Kind::garbage},
                        {20'000, 1, Intrusion::Kind::wrong_session},
                        {30'000, 1, Intrusion::Kind::immediate},
                        {40'000, 1, Intrusion::Kind::connection}};
  TwoRails world(options);
  std::array<std::array<std::byte, 4096>, 3> buffers{};
  std::array<PostContext, 3> contexts;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    ASSERT_EQ(world.b->receive(chunk(buffers[i]), &contexts[i]), Post::posted);
  }
  auto message = counting_bytes(64);
  PostContext sent;
  ASSERT_EQ(world.a->send(world.b_from_a, chunk(message), &sent), Post::posted);
  std::vector<Event> events = world.settle(*world.b);
  EXPECT_EQ(count_of(events, Event::Kind::received), 3U) << "one of them was sent";
  EXPECT_EQ(count_of(events, Event::Kind::landed), 1U);
  EXPECT_EQ(count_of(events, Event::Kind::left), 1U);
  EXPECT_EQ(world.fabric.statistics().intrusions, 4U);
  world.settle(*world.a);
}

/// Whoever has heard one session may have guessed a part of another: every byte of it has to be looked at.
TEST(SimUnkind, AMessageOfAnotherSessionIsWrongInAnyByteOfIt) {
  constexpr std::size_t kAt = offsetof(transport::wire::FrameHeader, session);
  constexpr std::size_t kBytes = sizeof(transport::wire::FrameHeader::session);
  constexpr std::size_t kIntrusions = 64;
  FabricOptions options = TwoRails::make_options({}, 1);
  for (std::size_t i = 0; i < kIntrusions; ++i)
    options.intrusions.push_back({20'000 + static_cast<std::int64_t>(i), 1, Intrusion::Kind::wrong_session});
  TwoRails world(options);
  std::vector<std::array<std::byte, 64>> buffers(kIntrusions + 1);
  std::vector<PostContext> contexts(kIntrusions + 1);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    ASSERT_EQ(world.b->receive(chunk(buffers[i]), &contexts[i]), Post::posted);
  }
  auto message = counting_bytes(64);
  PostContext sent;
  ASSERT_EQ(world.a->send(world.b_from_a, chunk(message), &sent), Post::posted);
  EXPECT_EQ(count_of(world.settle(*world.b), Event::Kind::received), kIntrusions + 1);
  world.settle(*world.a);
  std::array<std::size_t, kBytes> wrong{};
  std::size_t whole = 0;
  for (const auto& buffer : buffers) {
    bool same = true;
    for (std::size_t i = 0; i < kBytes; ++i) {
      const bool differs = buffer[kAt + i] != message[kAt + i];
      wrong[i] += differs ? 1 : 0;
      same = same && !differs;
    }
    whole += same ? 1 : 0;
  }
  EXPECT_EQ(whole, 1U) << "the one that was sent";
  EXPECT_THAT(wrong, ::testing::Each(::testing::AllOf(::testing::Gt(kIntrusions / 4), ::testing::Lt(kIntrusions))));
}

}  // namespace
}  // namespace railyard::fabric::sim
