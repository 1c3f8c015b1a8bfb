/// Commands as words: what goes in comes out, and a torn one is never taken.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/random.hpp"
#include "device/issue.hpp"
#include "device_world.hpp"

namespace railyard {
namespace {

using device::Operation;
using device::detail::Command;
using device::detail::kCommandWords;
using device::detail::kPhase;
using device::detail::phase_of;
using device::detail::Word;

Command some_command(Random& random) {
  Command command;
  command.operation = static_cast<Operation>(random.below(8));
  command.signal_op = static_cast<device::SignalOp>(random.below(2));
  command.has_signal = random.below(2) == 0;
  command.has_counter = random.below(2) == 0;
  command.is_inline = random.below(2) == 0;
  command.rank = static_cast<std::uint32_t>(random.below(1 << 24));
  command.offset = random.next();
  if (command.is_inline) {
    command.inline_bytes = static_cast<std::uint8_t>(random.below(25));
    for (Word& word : command.payload) word = random.next();
  } else {
    command.source = random.next();
    command.bytes = random.next();
  }
  command.signal_index = random.next() >> 32;
  command.signal_value = random.next();
  command.counter_index = random.next() >> 34;
  command.counter_value = random.next();
  return command;
}

TEST(Command, EveryFieldComesOutAsItWentIn) {
  Random random(1);
  for (int round = 0; round < 10'000; ++round) {
    const Command sent = some_command(random);
    Word words[kCommandWords];
    sent.pack(words);
    for (Word& word : words) {
      EXPECT_EQ(word & kPhase, 0U);
      if (round % 2 == 0) word |= kPhase;
    }
    const Command got = Command::unpack(words);
    EXPECT_EQ(got.operation, sent.operation);
    EXPECT_EQ(got.signal_op, sent.signal_op);
    EXPECT_EQ(got.has_signal, sent.has_signal);
    EXPECT_EQ(got.has_counter, sent.has_counter);
    EXPECT_EQ(got.is_inline, sent.is_inline);
    EXPECT_EQ(got.inline_bytes, sent.inline_bytes);
    EXPECT_EQ(got.rank, sent.rank);
    EXPECT_EQ(got.offset, sent.offset);
    EXPECT_EQ(got.source, sent.source);
    EXPECT_EQ(got.bytes, sent.bytes);
    EXPECT_EQ(std::memcmp(got.payload, sent.payload, sizeof got.payload), 0);
    EXPECT_EQ(got.signal_index, sent.signal_index);
    EXPECT_EQ(got.signal_value, sent.signal_value);
    EXPECT_EQ(got.counter_index, sent.counter_index);
    EXPECT_EQ(got.counter_value, sent.counter_value);
  }
}

TEST(Command, WhatDoesNotFitStaysOutOfRange) {
  Command command;
  command.operation = Operation::put_signal_counter;
  command.rank = static_cast<std::uint32_t>(-1);
  command.signal_index = ~Word{0};
  command.counter_index = ~Word{0};
  Word words[kCommandWords];
  command.pack(words);
  const Command got = Command::unpack(words);
  EXPECT_EQ(got.rank, device::detail::kEveryRank);
  EXPECT_EQ(got.signal_index, 0xffffffffU);
  EXPECT_EQ(got.counter_index, device::detail::kMostCounters - 1);
}

TEST(Command, ZeroedMemoryIsNoCommandInAnyTurn) {
  EXPECT_EQ(phase_of(0, 64), kPhase);
  EXPECT_EQ(phase_of(63, 64), kPhase);
  EXPECT_EQ(phase_of(64, 64), 0U);
  EXPECT_EQ(phase_of(128, 64), kPhase);
}

/// Eight words stored by hand, in any order, over several turns of the ring: the proxy takes the command after the last
/// one and never before.
TEST(Command, ATornCommandIsNeverTaken) {
  run_proxied(
      2, 4096, patient({.rings = 1, .depth = 64}),
      [](Node& node) {
        if (node.world.rank() != 0) {
          must(node.window.wait_signal(7, Comparison::greater_equal, 1));
          EXPECT_EQ(node.window.read_signal(0), 300U);
          return;
        }
        Random random(3);
        const device::detail::Handle& handle = node.kernel.handle();
        for (Word index = 0; index < 300; ++index) {
          Command command;
          command.operation = Operation::signal;
          command.has_signal = true;
          command.rank = 1;
          command.signal_value = 1;
          Word words[kCommandWords];
          command.pack(words);
          std::array<std::size_t, kCommandWords> order{0, 1, 2, 3, 4, 5, 6, 7};
          for (std::size_t at = 7; at > 0; --at) std::swap(order[at], order[random.below(at + 1)]);
          // In each turn, every word is the last one once, and comes late.
          const bool late = index % 64 < kCommandWords;
          if (late) std::swap(order[7], *std::ranges::find(order, index % 64));
          Word* const slot = handle.commands + index % 64 * kCommandWords;
          for (std::size_t done = 0; done < kCommandWords; ++done) {
            if (late && done == 7) std::this_thread::sleep_for(milliseconds(5));
            EXPECT_EQ(node.proxy.commands(), index) << "taken after " << done << " words";
            device::detail::store_system(&slot[order[done]], words[order[done]] | phase_of(index, 64));
          }
          while (node.proxy.commands() == index) std::this_thread::yield();
        }
        __atomic_store_n(&handle.tails[0].tail, 300, __ATOMIC_RELEASE);
        EXPECT_EQ(node.kernel.quiet(), device::Status::ok);
        EXPECT_TRUE(node.kernel.signal(1, {7}).ok());
      },
      1);
}

}  // namespace
}  // namespace railyard
