/// Gets and atomics of kernels, through the proxy and on mapped memory.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "device_world.hpp"

namespace railyard {
namespace {

using device::Scope;

class DeviceWordsOf : public OnEveryBed {};
INSTANTIATE_TEST_SUITE_P(Beds, DeviceWordsOf, ::testing::ValuesIn(kBeds), name_of_bed);

template <Scope scope>
void get_every_size(Node& node, std::span<const std::byte> there) {
  std::vector<std::byte> got(there.size());
  for (const std::size_t bytes : {0UL, 1UL, 7UL, 8UL, 24UL, 25UL, 1000UL, 65'536UL, 300'001UL}) {
    const std::size_t offset = bytes % 13;
    std::fill(got.begin(), got.end(), std::byte{0});
    const device::Ticket ticket = node.kernel.get<scope>(node.peer, offset, got.data() + 3, bytes);
    ASSERT_TRUE(ticket.ok());
    ASSERT_EQ(node.kernel.wait<scope>(ticket), device::Status::ok);
    ASSERT_EQ(std::memcmp(got.data() + 3, there.data() + offset, bytes), 0) << bytes;
    ASSERT_EQ(got[3 + bytes], std::byte{0});
  }
}

TEST_P(DeviceWordsOf, GetsBringEveryByteAtEveryScope) {
  run(2, 1 << 19, [](Node& node) {
    const auto mine = device_pattern(1 << 19, 1 + static_cast<std::uint64_t>(node.world.rank()));
    const auto theirs = device_pattern(1 << 19, 1 + static_cast<std::uint64_t>(node.peer));
    std::memcpy(node.window.local().data(), mine.data(), mine.size());
    must(node.window.barrier());
    get_every_size<Scope::thread>(node, theirs);
    get_every_size<Scope::warp>(node, theirs);
    get_every_size<Scope::block>(node, theirs);
    must(node.proxy.status());
    EXPECT_EQ(node.proxy.commands() == 0, GetParam() == Bed::mapped);
    // A get is complete with what was posted before it, and `quiet` covers it.
    std::vector<std::byte> got(5000);
    EXPECT_TRUE(node.kernel.put(node.peer, 400'000, mine.data(), 5000).ok());
    EXPECT_EQ(node.kernel.fence(), device::Status::ok);
    EXPECT_TRUE(node.kernel.get(node.peer, 400'000, got.data(), 5000).ok());
    EXPECT_EQ(node.kernel.quiet(node.peer), device::Status::ok);
    EXPECT_EQ(std::memcmp(got.data(), mine.data(), 5000), 0) << "after the put, since a fence is between";
  });
}

/// Each operation on its own word, beside the same one by the host: what was there and what is there must be the same.
template <typename T>
void compare_with_the_host(Node& node, std::size_t base, std::span<const T> values) {
  constexpr bool kFloat = std::is_floating_point_v<T>;
  std::size_t at = base;
  for (int number = 0; number <= static_cast<int>(AtomicOp::max); ++number) {
    const auto op = static_cast<AtomicOp>(number);
    if (kFloat && (op == AtomicOp::bit_and || op == AtomicOp::bit_or || op == AtomicOp::bit_xor)) continue;
    for (const T operand : values) {
      const T compare = values[static_cast<std::size_t>(number) % values.size()];
      T model{};
      must(node.window.wait(must(node.window.fetch_atomic<T>(1, at, op, &model, operand, compare))));
      T held{};
      ASSERT_EQ((node.kernel.fetch_atomic<Scope::thread, T>(1, at + 2048, static_cast<device::AtomicOp>(number), &held,
                                                            operand, compare)),
                device::Status::ok);
      ASSERT_EQ(std::memcmp(&held, &model, sizeof held), 0)
          << "operation " << number << " of " << sizeof(T) << " bytes";
      if (op == AtomicOp::fetch) continue;
      must(node.window.atomic<T>(1, at, op, operand, compare));
      ASSERT_TRUE(
          (node.kernel.atomic<Scope::block, T>(1, at + 2048, static_cast<device::AtomicOp>(number), operand, compare)
               .ok()));
    }
    at += sizeof(T);
  }
}

TEST_P(DeviceWordsOf, AtomicsDoWhatThoseOfTheHostDo) {
  run(2, 4096, [](Node& node) {
    if (node.world.rank() == 0) {
      const std::int32_t narrow[] = {5, -3, 7, -3, 0};
      const std::uint32_t narrow_unsigned[] = {5, 0xfffffff0U, 7, 7, 0};
      const std::int64_t wide[] = {5, -3, 7, -3, 0};
      const std::uint64_t wide_unsigned[] = {5, ~std::uint64_t{2}, 7, 7, 0};
      const float floats[] = {1.5F, -0.0F, 0.0F, -2.0F, std::numeric_limits<float>::quiet_NaN(), 1.0F};
      const double doubles[] = {1.5, -0.0, 0.0, -2.0, std::numeric_limits<double>::quiet_NaN(), 1.0};
      compare_with_the_host<std::int32_t>(node, 0, narrow);
      compare_with_the_host<std::uint32_t>(node, 256, narrow_unsigned);
      compare_with_the_host<std::int64_t>(node, 512, wide);
      compare_with_the_host<std::uint64_t>(node, 768, wide_unsigned);
      compare_with_the_host<float>(node, 1024, floats);
      compare_with_the_host<double>(node, 1280, doubles);
      EXPECT_EQ(node.kernel.quiet(), device::Status::ok);
      must(node.window.quiet());
    }
    must(node.window.barrier());
    if (node.world.rank() == 1) {
      EXPECT_EQ(std::memcmp(node.window.local().data(), node.window.local().data() + 2048, 2048), 0);
    }
  });
}

TEST_P(DeviceWordsOf, NoFetchIsLostAndNoneCountsTwice) {
  static constexpr std::uint64_t kEach = 100;
  run(3, 4096,
      [](Node& node) {
        std::set<std::uint64_t> held[2];
        std::vector<std::thread> blocks;
        for (std::uint32_t block = 0; block < 2; ++block) {
          blocks.emplace_back([&, block] {
            const device::Window kernel = node.kernel.on_ring(block);
            for (std::uint64_t i = 0; i < kEach; ++i) {
              std::uint64_t before = 0;
              ASSERT_EQ(kernel.fetch_atomic(0, 8, device::AtomicOp::increment, &before), device::Status::ok);
              held[block].insert(before);
            }
          });
        }
        for (auto& block : blocks) block.join();
        EXPECT_EQ(held[0].size(), kEach);
        held[0].merge(held[1]);
        EXPECT_EQ(held[0].size(), 2 * kEach) << "what one block fetched, another did";
        must(node.window.barrier());
        if (node.world.rank() == 0) {
          std::uint64_t count = 0;
          std::memcpy(&count, node.window.local().data() + 8, sizeof count);
          EXPECT_EQ(count, 6 * kEach);
        }
      },
      {.rings = 2});
}

TEST_P(DeviceWordsOf, WhatMakesNoSenseIsAnErrorOfTheProxys) {
  run(2, 64, [](Node& node) {
    const auto fails = [&](device::Status status, const char* operation) {
      EXPECT_EQ(status, device::Status::error);
      EXPECT_STREQ(node.proxy.status().error().where().operation, operation);
      node.proxy.resume();
    };
    std::uint64_t before = 0;
    fails(node.kernel.fetch_atomic<Scope::thread>(node.peer, 4, device::AtomicOp::add, &before, std::uint64_t{1}),
          "fetch_atomic");
    fails(node.kernel.fetch_atomic<Scope::thread>(node.peer, 64, device::AtomicOp::add, &before, std::uint64_t{1}),
          "fetch_atomic");
    EXPECT_TRUE(node.kernel.atomic(node.peer, 0, device::AtomicOp::bit_or, 1.0).ok());
    fails(node.kernel.quiet(), "atomic");
    EXPECT_TRUE(node.kernel.atomic(node.peer, 0, device::AtomicOp::fetch, 1).ok());
    fails(node.kernel.quiet(), "atomic");
    EXPECT_TRUE(node.kernel.get(node.peer, 60, &before, 8).ok());
    fails(node.kernel.quiet(), "get");
    EXPECT_TRUE(node.kernel.get(node.peer, 0, nullptr, 8).ok());
    fails(node.kernel.quiet(), "get");
  });
}

/// A caller that gives up leaves its place behind until its command is complete: all of them come back.
TEST(DeviceWord, PlacesOfFetchesThatWereGivenUpAreUsedAgain) {
  run_proxied(2, 4096, patient({.rings = 2, .depth = 64}), [](Node& node) {
    if (node.world.rank() != 0) return;
    const device::Window kernel = node.kernel.on_ring(1);
    const device::Window brief = kernel.with_budget(200'000);
    node.proxy.state().wedge(true);
    std::this_thread::sleep_for(milliseconds(5));  // a pass that has begun ends
    std::uint64_t before = 0;
    for (unsigned i = 0; i < device::detail::kMostFetches + 3; ++i) {
      EXPECT_EQ(brief.fetch_atomic(1, 0, device::AtomicOp::increment, &before), device::Status::timeout);
    }
    node.proxy.state().wedge(false);
    for (unsigned i = 0; i < 2 * device::detail::kMostFetches; ++i) {
      ASSERT_EQ(kernel.fetch_atomic(1, 0, device::AtomicOp::increment, &before), device::Status::ok);
      EXPECT_EQ(before, device::detail::kMostFetches + i) << "those that found no place were never sent";
    }
    node.proxy.resume();
  });
}

/// A proxy that ends with a fetch under way: its result still comes, into memory that is kept for it.
TEST(DeviceWord, AProxyMayEndWithAFetchUnderWay) {
  run_proxied(2, 4096, patient({.rings = 2}), [](Node& node) {
    if (node.world.rank() != 0) return;
    for (int round = 0; round < 20; ++round) {
      auto brief = must(DeviceProxy::open(node.window, {.rings = 2}));
      std::uint64_t before = 0;
      static_cast<void>(brief.handle().with_budget(1000).fetch_atomic(1, 0, device::AtomicOp::increment, &before));
    }
    must(node.window.quiet());
  });
}

}  // namespace
}  // namespace railyard
