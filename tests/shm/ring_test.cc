#include "shm/ring.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace railyard::shm {
namespace {

constexpr std::uint32_t kBytes = 16 * 1024;

struct TestRing {
  struct alignas(kLine) Memory {
    std::array<std::byte, kBytes> bytes{};
  };
  std::unique_ptr<Memory> memory = std::make_unique<Memory>();
  RingControl control{};
  Producer producer{memory->bytes.data(), kBytes, &control};
  Consumer consumer{memory->bytes.data(), kBytes, &control};

  bool send(std::size_t payload, std::uint64_t number) {
    const bool in_first = payload <= Record::kShort;
    Reservation reservation;
    if (in_first) {
      reservation.record = producer.reserve_line();
    } else {
      reservation = producer.reserve(payload);
    }
    if (reservation.record == nullptr) return false;
    reservation.record->arguments = {number, ~number};
    std::byte* const to = in_first ? reservation.record->payload.data() : reservation.payload;
    const std::vector<std::byte> bytes(payload, static_cast<std::byte>(number & 0xff));
    if (in_first) {
      copy_bytes(to, bytes.data(), payload);
    } else {
      producer.write(to, bytes.data(), payload);
    }
    producer.publish({.bytes = static_cast<std::uint32_t>(payload),
                      .kind = 7,
                      .flags = in_first ? Word::kInFirst : std::uint8_t{0}});
    return true;
  }
  /// The next record, checked against what `send` made.
  bool receive(std::size_t payload, std::uint64_t number) {
    Arrival arrival;
    if (!consumer.peek(arrival)) return false;
    EXPECT_EQ(arrival.word.bytes, payload);
    EXPECT_EQ(arrival.record->arguments[0], number);
    for (std::size_t at = 0; at < payload; ++at)
      if (arrival.payload[at] != static_cast<std::byte>(number & 0xff)) return false;
    consumer.pop();
    return true;
  }
};

TEST(ShmRing, RecordsOfEverySizeArriveInOrderOverManyLaps) {
  const bool held = rc::check([](std::uint32_t seed) {
    TestRing ring;
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    const auto size_of = [seed](std::uint64_t number) {
      return (number * 2654435761u + seed) % (most_payload(kBytes) + 1) >> (number % 7);
    };
    for (int step = 0; step < 400; ++step) {
      for (std::uint32_t burst = (seed >> (step % 24)) % 9; burst > 0 && ring.send(size_of(sent), sent); --burst)
        ++sent;
      for (std::uint32_t burst = (seed >> (step % 19)) % 9; burst > 0 && received < sent; --burst, ++received)
        RC_ASSERT(ring.receive(size_of(received), received));
      // Sometimes a record comes back and tells what was freed, sometimes with older news.
      if (step % 5 == 0) ring.producer.told(ring.consumer.freed() - (step % 3 == 0 && received > 3 ? 3 : 0));
    }
    while (received < sent) {
      RC_ASSERT(ring.receive(size_of(received), received));
      ++received;
    }
    RC_ASSERT(ring.consumer.empty());
  });
  EXPECT_TRUE(held);
}

TEST(ShmRing, AnEmptyRingAlwaysHasRoomForTheLongestRecord) {
  // Frees come in batches: whatever the batch held back, the producer is never stuck in front of an empty ring once the
  // consumer has looked at it.
  for (std::size_t payload = 1; payload < most_payload(kBytes); payload += 61) {
    TestRing ring;
    for (std::uint64_t number = 0; number < 200; ++number) {
      const std::size_t bytes = number % 2 == 0 ? payload : most_payload(kBytes);
      ASSERT_TRUE(ring.send(bytes, number)) << payload << " " << number;
      ASSERT_TRUE(ring.receive(bytes, number));
      Arrival arrival;
      ASSERT_FALSE(ring.consumer.peek(arrival));
    }
  }
}

TEST(ShmRing, WhatWasConsumedIsUsedAgainAtOnce) {
  // The line that both sides have just touched is the fastest one: a ping-pong stays on it.
  TestRing ring;
  const Record* const first = ring.producer.reserve_line();
  for (std::uint64_t number = 0; number < 1000; ++number) {
    const auto [record, payload] = ring.producer.reserve(500);
    ASSERT_EQ(record, first);
    ASSERT_TRUE(ring.send(500, number));
    ASSERT_TRUE(ring.receive(500, number));
    ring.producer.told(ring.consumer.freed());
  }
}

TEST(ShmRing, ARunStartsAgainBelowWhatIsStillUnread) {
  TestRing ring;
  const auto* const lines = reinterpret_cast<const Record*>(ring.memory->bytes.data());
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  // The consumer is always a few behind: the ring never is empty, and yet its far end stays unused.
  for (; sent < 20; ++sent) ASSERT_TRUE(ring.send(200, sent));
  for (int round = 0; round < 500; ++round) {
    for (int step = 0; step < 4; ++step) ASSERT_TRUE(ring.receive(200, received++));
    ring.producer.told(ring.consumer.freed());
    for (int step = 0; step < 4; ++step) ASSERT_TRUE(ring.send(200, sent++));
  }
  while (received < sent) ASSERT_TRUE(ring.receive(200, received++));
  EXPECT_EQ(lines[record_count(kBytes) - 1].word, 0U);
}

TEST(ShmRing, NothingLeftOverIsTakenForARecord) {
  // Every eight bytes of every payload look like the word of the next record.
  TestRing ring;
  std::vector<std::uint64_t> words(most_payload(kBytes) / 8);
  for (std::uint32_t number = 0; number < 40 * record_count(kBytes); ++number) {
    std::fill(words.begin(), words.end(), Word{.bytes = 8, .kind = 7}.pack(number + 2));
    const std::size_t payload = 64 + number * 37 % (most_payload(kBytes) - 64);
    const auto [record, to] = ring.producer.reserve(payload);
    ASSERT_NE(record, nullptr);
    record->more.fill(words[0]);
    record->arguments.fill(words[0]);
    ring.producer.write(to, reinterpret_cast<const std::byte*>(words.data()), payload);
    ring.producer.publish({.bytes = static_cast<std::uint32_t>(payload), .kind = 7});
    Arrival arrival;
    ASSERT_TRUE(ring.consumer.peek(arrival));
    ASSERT_EQ(arrival.word.bytes, payload);
    ring.consumer.pop();
    ASSERT_FALSE(ring.consumer.peek(arrival));
    ASSERT_FALSE(ring.consumer.broken());
  }
}

TEST(ShmRing, AClearedRingServesItsNextOwnerFromTheStart) {
  TestRing ring;
  for (std::uint64_t number = 0; number < 10; ++number) ASSERT_TRUE(ring.send(100, number));
  clear_ring(ring.memory->bytes.data(), kBytes);
  ring.control.consumed = 0;
  ring.producer = Producer(ring.memory->bytes.data(), kBytes, &ring.control);
  ring.consumer = Consumer(ring.memory->bytes.data(), kBytes, &ring.control);
  EXPECT_TRUE(ring.consumer.empty());
  ASSERT_TRUE(ring.send(100, 77));
  ASSERT_TRUE(ring.receive(100, 77));
  EXPECT_TRUE(ring.consumer.empty());
}

TEST(ShmRing, AFullRingRefusesAndLosesNothing) {
  TestRing ring;
  std::uint64_t sent = 0;
  while (ring.send(500, sent)) ++sent;
  EXPECT_FALSE(ring.send(500, sent));
  for (std::uint64_t number = 0; number < sent; ++number) ASSERT_TRUE(ring.receive(500, number));
  EXPECT_TRUE(ring.send(500, sent));
  EXPECT_TRUE(ring.receive(500, sent));
}

TEST(ShmRing, AHalfWrittenRecordIsNotThere) {
  TestRing ring;
  ASSERT_TRUE(ring.send(100, 1));
  const auto [record, payload] = ring.producer.reserve(100);
  record->arguments = {2, 2};
  std::memset(payload, 2, 100);
  ASSERT_TRUE(ring.receive(100, 1));
  Arrival arrival;
  EXPECT_FALSE(ring.consumer.peek(arrival));
  EXPECT_FALSE(ring.consumer.broken());
}

TEST(ShmRing, WordsThatCannotBeAreRefused) {
  const auto breaks = [](Word word) {
    TestRing ring;
    auto& record = *reinterpret_cast<Record*>(ring.memory->bytes.data());
    record.extent = Extent::pack(word.bytes, 0);
    word_of(record).store(word.pack(1));
    Arrival arrival;
    EXPECT_FALSE(ring.consumer.peek(arrival));
    return ring.consumer.broken();
  };
  EXPECT_TRUE(breaks({.bytes = static_cast<std::uint32_t>(most_payload(kBytes) + 1), .kind = 7}));
  EXPECT_TRUE(breaks({.bytes = Extent::kByteMask, .kind = 7}));
  EXPECT_TRUE(breaks({.bytes = Record::kShort + 1, .kind = 7, .flags = Word::kInFirst})) << "longer than a line";
}

TEST(ShmRing, AFreeCountThatCannotBeIsRefused) {
  TestRing ring;
  while (ring.send(500, 0)) {
  }
  ring.control.consumed = 1000;
  EXPECT_FALSE(ring.send(500, 0));
  EXPECT_TRUE(ring.producer.broken()) << "more records than were sent";
}

TEST(ShmRing, NewsThatCannotBeFreesNothing) {
  TestRing ring;
  std::uint64_t sent = 0;
  while (ring.send(500, sent)) ++sent;
  for (const std::uint64_t news : {sent + 1, sent + 1000, std::uint64_t{0xffff'ffff}}) {
    ring.producer.told(static_cast<std::uint32_t>(news));
    EXPECT_FALSE(ring.send(500, sent));
  }
  for (std::uint64_t number = 0; number < sent; ++number) ASSERT_TRUE(ring.receive(500, number));
}

TEST(ShmRing, TwoThreadsSeeEveryRecordWhole) {
  TestRing ring;
  constexpr std::uint64_t kRecords = 200'000;
  const auto size_of = [](std::uint64_t number) { return std::size_t{number * 2654435761u % 900} >> (number % 5); };
  std::thread sender([&] {
    for (std::uint64_t number = 0; number < kRecords;)
      if (ring.send(size_of(number), number)) {
        ++number;
      } else {
        std::this_thread::yield();
      }
  });
  for (std::uint64_t number = 0; number < kRecords;) {
    if (Arrival arrival; !ring.consumer.peek(arrival)) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_TRUE(ring.receive(size_of(number), number));
    ++number;
  }
  sender.join();
  EXPECT_FALSE(ring.consumer.broken());
  EXPECT_TRUE(ring.consumer.empty());
}

}  // namespace
}  // namespace railyard::shm
