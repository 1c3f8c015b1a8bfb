// T11: sizes at the edges, groups of every size with tags in any order, messages over 4 GiB.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/random.hpp"
#include "contexts.hpp"
#include "sanitized.hpp"

namespace railyard {
namespace {

struct Bed {
  std::string name;
  Settings settings;
};

class SizesT11 : public ::testing::TestWithParam<Bed> {
 protected:
  void SetUp() override {
    a_ = open_context(GetParam().settings);
    b_ = open_context(GetParam().settings);
    pair_ = connect(*a_, *b_);
    ASSERT_TRUE(pair_.out && pair_.in);
  }
  std::unique_ptr<Context> a_;
  std::unique_ptr<Context> b_;
  ChannelPair pair_;
};

TEST_P(SizesT11, PowersOfTwoAndTheirNeighboursArriveWholeBeforeAndAfterTheirReceive) {
  std::uint32_t seed = 0;
  for (std::size_t power = 0; power <= 21; ++power) {
    for (const std::size_t bytes :
         {(std::size_t{1} << power) - 1, std::size_t{1} << power, (std::size_t{1} << power) + 1}) {
      const auto message = pattern(bytes, ++seed);
      std::vector<std::byte> target(bytes + 1, std::byte{0xee});
      const std::array slots{ReceiveSlot{std::span(target).first(bytes), 0}};
      Request* send = nullptr;
      Request* receive = nullptr;
      if (seed % 2 == 0) send = must(pair_.out->send(message, 0));
      receive = must(pair_.in->receive(slots));
      if (seed % 2 == 1) send = must(pair_.out->send(message, 0));
      std::array<std::uint64_t, 1> size{};
      ASSERT_TRUE(waited(*pair_.in, receive, size) && waited(*pair_.out, send));
      ASSERT_EQ(size[0], bytes);
      ASSERT_TRUE(std::ranges::equal(message, std::span(target).first(bytes))) << bytes;
      ASSERT_EQ(target.back(), std::byte{0xee}) << "a byte past the end of " << bytes;
    }
  }
}

TEST_P(SizesT11, GroupsOfEverySizeTakeTheirMessagesByTagInAnyOrderAlsoWhereTagsAreTheSame) {
  Random random(5);
  for (std::size_t count = 1; count <= Channel::kMostSlots; ++count) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{200}, std::size_t{30'000}}) {
      for (const int tags : {1, 3, 8}) {
        std::vector<std::vector<std::byte>> targets(count, std::vector<std::byte>(bytes + count, std::byte{0xee}));
        std::vector<ReceiveSlot> slots;
        for (std::size_t i = 0; i < count; ++i) slots.push_back({targets[i], static_cast<int>(i) % tags});
        std::vector<int> order;
        for (const ReceiveSlot& slot : slots) order.push_back(slot.tag);
        for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
        const bool first = random.chance(0.5);
        Request* receive = first ? must(pair_.in->receive(slots)) : nullptr;
        std::vector<std::vector<std::byte>> messages;
        std::vector<Request*> sends;
        for (std::size_t i = 0; i < count; ++i) {
          messages.push_back(pattern(bytes + i, static_cast<std::uint32_t>(random.next())));
          sends.push_back(must(pair_.out->send(messages.back(), order[i])));
        }
        if (!first) receive = must(pair_.in->receive(slots));
        std::array<std::uint64_t, Channel::kMostSlots> sizes{};
        ASSERT_TRUE(waited(*pair_.in, receive, sizes));
        for (Request* send : sends) ASSERT_TRUE(waited(*pair_.out, send));
        // The messages of a tag go into its slots in the order in which they were sent.
        for (std::size_t i = 0; i < count; ++i) {
          std::size_t earlier = 0;
          for (std::size_t j = 0; j < i; ++j) earlier += slots[j].tag == slots[i].tag ? 1 : 0;
          std::size_t message = 0;
          for (std::size_t seen = 0; message < count; ++message) {
            if (order[message] == slots[i].tag && seen++ == earlier) break;
          }
          if (count == 1) message = 0;
          ASSERT_EQ(sizes[i], messages[message].size());
          ASSERT_TRUE(std::ranges::equal(messages[message], std::span(targets[i]).first(sizes[i])));
        }
      }
    }
  }
}

/// A long range of addresses over little memory: the same chunk again and again.
class LongMemory {
 public:
  LongMemory(std::size_t chunk, std::size_t bytes) : bytes_(bytes) {
    const int file = ::memfd_create("railyard test", 0);
    EXPECT_EQ(::ftruncate(file, static_cast<off_t>(chunk)), 0);
    base_ = static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (std::size_t at = 0; at < bytes; at += chunk) {
      const std::size_t part = std::min(chunk, bytes - at);
      EXPECT_NE(::mmap(base_ + at, part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0), MAP_FAILED);
    }
    ::close(file);
  }
  ~LongMemory() { ::munmap(base_, bytes_); }
  LongMemory(const LongMemory&) = delete;
  LongMemory& operator=(const LongMemory&) = delete;
  std::span<std::byte> bytes() const { return {base_, bytes_}; }

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_;
};

TEST_P(SizesT11, AMessageOver4GiBArrivesWhole) {
#ifdef RAILYARD_SANITIZED
  GTEST_SKIP() << "4 GiB take too long under a sanitizer";
#endif
  if (std::getenv("RAILYARD_LONG_TESTS") == nullptr) {
    GTEST_SKIP() << "moves 4 GiB: set RAILYARD_LONG_TESTS=1";
  }
  constexpr std::size_t kChunk = 64 << 20U;
  constexpr std::size_t kBytes = (std::size_t{4} << 30U) + 8193;
  const LongMemory source(kChunk, kBytes);
  const LongMemory target(kChunk, kBytes + 4096);
  const auto content = pattern(kChunk, 3);
  std::memcpy(source.bytes().data(), content.data(), kChunk);
  const std::array slots{ReceiveSlot{target.bytes(), 0}};
  Request* const receive = must(pair_.in->receive(slots));
  Request* const send = must(pair_.out->send(source.bytes(), 0));
  std::array<std::uint64_t, 1> size{};
  ASSERT_TRUE(waited(*pair_.in, receive, size) && waited(*pair_.out, send));
  EXPECT_EQ(size[0], kBytes);
  EXPECT_EQ(pair_.in->statistics().bytes_received, kBytes);
  EXPECT_TRUE(same_bytes(target.bytes().data(), content.data(), kChunk));
}

TEST_P(SizesT11, ASizeOver4GiBThatDoesNotFitIsNamedInFull) {
  const LongMemory source(1 << 20U, (std::size_t{5} << 30U));
  std::vector<std::byte> target(100'000);
  const std::array slots{ReceiveSlot{target, 0}};
  Request* const receive = must(pair_.in->receive(slots));
  Request* const send = must(pair_.out->send(source.bytes(), 0));
  for (auto [channel, request] : {std::pair{pair_.in.get(), receive}, std::pair{pair_.out.get(), send}}) {
    const auto done = channel->wait(request, {}, Deadline::in(test_patience() * std::chrono::seconds(30)));
    ASSERT_FALSE(done);
    EXPECT_NE(done.error().text().find("5368709120 bytes"), std::string::npos) << done.error().text();
    EXPECT_NE(done.error().text().find("100000 bytes"), std::string::npos) << done.error().text();
  }
  pair_ = {};  // before its memory
}

INSTANTIATE_TEST_SUITE_P(Rails, SizesT11, ::testing::Values(Bed{"Memory", over_memory()}, Bed{"Tcp2", over_network(2)}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace railyard
