// The simulated world itself: its clock, its repeatability, its faults.
#include "fabric/sim/fabric.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "fabric/sim/faults.hpp"
#include "two_rails.hpp"

namespace railyard::fabric::sim {
namespace {

/// A little of everything under disorder; the digest of what happened.
std::uint64_t trace_of(std::uint64_t seed) {
  FabricOptions options = TwoRails::make_options({}, seed);
  Random random(seed);
  for (const FaultKind& kind : fault_kinds()) kind.apply(options, random);
  SimFabric fabric(options);
  auto a = std::move(fabric.open_rail(0)).value();
  auto b = std::move(fabric.open_rail(1)).value();
  const RemoteId remote = a->connect(b->address(), {}).value();
  fabric.advance(200'000);
  std::vector<std::byte> source(20'000);
  std::vector<std::byte> target(20'000);
  std::vector<std::byte> buffers(64 * 64);
  const auto registration = b->register_memory(target, {.remote = true}).value();
  std::array<Event, 8> events;
  for (std::size_t i = 0; i < 64; ++i) {
    b->receive(chunk(std::span(buffers).subspan(64 * i, 64)), nullptr);
    a->send(remote, chunk(std::span(source).first(40)), nullptr);
    a->write({remote, 0, registration.key}, chunk(std::span(source).first(100 * i)), {.with_immediate = true}, nullptr);
    a->read({remote, 0, registration.key}, chunk(std::span(source).first(50 * i)), nullptr);
    fabric.advance(1'000);
    a->poll(events);
    b->poll(events);
  }
  while (fabric.step()) {
    a->poll(events);
    b->poll(events);
  }
  b->revoke(registration);
  return fabric.trace();
}

TEST(SimFabric, TheSameSeedReplaysExactly) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(trace_of(seed), trace_of(seed)) << seed;
}

TEST(SimFabric, DifferentSeedsDiffer) {
  std::set<std::uint64_t> traces;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) traces.insert(trace_of(seed));
  EXPECT_EQ(traces.size(), 200U);
}

TEST(SimFabric, TimePassesOnlyWhenTold) {
  TwoRails world;
  const std::int64_t start = world.fabric.clock().now();
  world.fabric.advance(123);
  EXPECT_EQ(world.fabric.clock().now(), start + 123);
  EXPECT_FALSE(world.fabric.step());
  EXPECT_EQ(world.fabric.clock().now(), start + 123);
}

TEST(SimFabric, AnIdleWaitGoesToWhatHappensNext) {
  TwoRails world;
  auto message = counting_bytes(8);
  ASSERT_EQ(world.a->send(world.b_from_a, chunk(message), nullptr), Post::posted);
  world.fabric.clock().idle();
  EXPECT_GT(world.fabric.now(), 0);
  while (world.fabric.step()) {
  }
  const std::int64_t before = world.fabric.now();
  world.fabric.clock().idle();  // nothing is on its way: a wait's deadline must come nearer all the same
  EXPECT_GT(world.fabric.now(), before);
}

TEST(SimFabric, ThousandsOfRailsAreCheap) {
  FabricOptions options;
  options.rails.resize(16'384);
  for (std::size_t i = 0; i < options.rails.size(); ++i) options.rails[i].process = static_cast<int>(i / 4);
  SimFabric fabric(options);
  std::vector<std::unique_ptr<Rail>> rails;
  for (std::size_t i = 0; i < options.rails.size(); ++i) rails.push_back(std::move(fabric.open_rail(i)).value());
  EXPECT_LT(fabric.memory_bytes() / options.rails.size(), 2'048U);
  // A few rails have a link to every other; no pair has spoken.
  const std::size_t before = fabric.memory_bytes();
  constexpr std::size_t kTalkers = 16;
  for (std::size_t i = 0; i < kTalkers; ++i) {
    for (const auto& other : rails) ASSERT_TRUE(rails[i]->connect(other->address(), {}).ok());
    fabric.advance(options.rails[0].latency);
  }
  EXPECT_LT((fabric.memory_bytes() - before) / (kTalkers * rails.size()), 128U);
}

TEST(SimFaults, KnownKindsParse) {
  const auto kinds = parse_faults("reorder,delay,slow-rail,busy,late-completion,delay");
  ASSERT_TRUE(kinds.ok());
  EXPECT_EQ(kinds.value().size(), 5U);
  EXPECT_TRUE(parse_faults("none").value().empty());
}

TEST(SimFaults, AnUnknownKindIsAnErrorThatListsTheKnown) {
  for (const char* names : {"fire", "reorder,fire", "", "reorder,"}) {
    const auto kinds = parse_faults(names);
    ASSERT_FALSE(kinds.ok()) << names;
    for (const FaultKind& kind : fault_kinds()) {
      EXPECT_THAT(kinds.error().text(), testing::HasSubstr(std::string(kind.name)));
    }
  }
}

/// Two processes with two rails each.
FabricOptions four_rails() {
  FabricOptions options;
  options.rails.resize(4);
  for (int i = 0; i < 4; ++i) {
    options.rails[static_cast<std::size_t>(i)].process = i / 2;
    options.rails[static_cast<std::size_t>(i)].number = i % 2;
  }
  return options;
}

TEST(SimFaults, EveryPairKeepsAWayWhateverIsMixed) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    FabricOptions options = four_rails();
    options.seed = seed;
    Random random(seed);
    for (const FaultKind& kind : fault_kinds()) kind.apply(options, random);
    std::ranges::stable_sort(options.changes, {}, &RailChange::time);
    std::vector<RailState> last(options.rails.size());
    for (const RailChange& change : options.changes) last[change.rail] = change.state;
    const bool first = last[0] == RailState{} && last[2] == RailState{};
    const bool second = last[1] == RailState{} && last[3] == RailState{};
    EXPECT_TRUE(first || second) << seed;
    EXPECT_EQ(options.deaths.size(), 1U);
  }
}

TEST(SimFaults, EveryKindChangesSomething) {
  for (const FaultKind& kind : fault_kinds()) {
    FabricOptions options = four_rails();
    Random random(5);
    kind.apply(options, random);
    const RailOptions untouched;
    bool changed = !options.changes.empty() || !options.deaths.empty() || !options.pauses.empty() ||
                   !options.intrusions.empty() || options.programs.any();
    for (const RailOptions& rail : options.rails) {
      changed = changed || rail.reorder_probability != untouched.reorder_probability ||
                rail.delay_probability != untouched.delay_probability || rail.bandwidth != untouched.bandwidth ||
                rail.busy_probability != untouched.busy_probability ||
                rail.lost_completion_probability != untouched.lost_completion_probability ||
                rail.late_probability != untouched.late_probability;
    }
    EXPECT_TRUE(changed) << kind.name;
  }
}

}  // namespace
}  // namespace railyard::fabric::sim
