// T7: a receiver that has as much open as a channel may have, all the time. Every message makes room for one more.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <memory>

#include "contexts.hpp"
#include "message/wire.hpp"
#include "yard.hpp"

namespace railyard::message {
namespace {

class FullHouseT7 : public ::testing::Test {
 protected:
  void open(std::uint32_t eager_bytes) {
    ends_ = {};
    Settings settings = quiet_settings();
    settings.eager_bytes = eager_bytes;
    yard_ = std::make_unique<Yard>(orderly(std::array<std::uint32_t, 2>{1, 1}), std::array{settings, settings});
    ends_ = yard_->join(0, 1);
    ASSERT_TRUE(ends_) << yard_->why;
  }
  bool done(ChannelState& channel, Request* request) {
    return request != nullptr && yard_->until([&] {
      const auto tested = channel.test(request, {});
      EXPECT_TRUE(tested) << tested.error().text();
      return !tested || *tested;
    });
  }
  bool sent(std::span<const std::byte> message, int tag) {
    return done(*ends_.out, must(ends_.out->send(message, tag, nullptr)));
  }
  /// Everything that is on its way arrives before anybody calls again.
  void settle() {
    yard_->until([] { return false; }, 1'000'000);
  }

  std::unique_ptr<Yard> yard_;
  Ends ends_;
};

TEST_F(FullHouseT7, ReceivesStayAsManyAsPromisedWhileMessagesComeOneByOne) {
  for (const std::size_t slots : {std::size_t{1}, std::size_t{2}}) {
    for (const std::uint32_t eager_bytes : {0U, 4096U}) {
      open(eager_bytes);
      std::vector<std::byte> target(64);
      const std::vector<ReceiveSlot> places(slots, ReceiveSlot{target, 0});
      std::deque<Request*> receives;
      for (std::size_t i = 0; i < Channel::kMostRequests; ++i)
        receives.push_back(must(ends_.in->receive(places, false)));
      for (std::uint32_t i = 0; i < 2 * Channel::kMostRequests && !HasFailure(); ++i) {
        const auto message = pattern(target.size(), i);
        for (std::size_t slot = 0; slot < slots; ++slot) ASSERT_TRUE(sent(message, 0)) << "message " << i;
        ASSERT_TRUE(done(*ends_.in, receives.front())) << "message " << i;
        ASSERT_EQ(target, message);
        receives.pop_front();
        receives.push_back(must(ends_.in->receive(places, false)));
        ASSERT_NE(receives.back(), nullptr) << i;
        settle();
      }
    }
  }
}

// The flow is full when the receive wants to tell of its memory; the message is there before it can.
TEST_F(FullHouseT7, AReceiveThatFoundNoRoomMayBeFilledBeforeItIsGranted) {
  constexpr std::size_t kLong = 60'000;
  open(kLong);
  const auto message = pattern(100, 1);
  const auto other = pattern(kLong, 2);
  std::vector<std::byte> target(message.size());
  std::vector<std::vector<std::byte>> targets(100, std::vector<std::byte>(kLong));
  for (auto& each : targets) must(ends_.out->receive(std::array{ReceiveSlot{each, 0}}, false));
  settle();
  Request* const send = must(ends_.out->send(message, 0, nullptr));
  std::vector<Request*> sends;
  for (std::size_t i = 0; i < targets.size(); ++i) sends.push_back(must(ends_.in->send(other, 0, nullptr)));
  ASSERT_FALSE(sends.back()->finished()) << "there is room for everything";
  Request* const receive = must(ends_.in->receive(std::array{ReceiveSlot{target, 0}}, false));
  ASSERT_TRUE(done(*ends_.in, receive));
  EXPECT_EQ(target, message);
  ASSERT_TRUE(done(*ends_.out, send));
  for (Request* const each : sends) ASSERT_TRUE(done(*ends_.in, each));
  settle();
  EXPECT_TRUE(sent(message, 0)) << "the channel is over";
}

// Besides as many registrations as a user may make, each slot lies in memory that has to be announced on its own, and
// next time in other memory.
TEST_F(FullHouseT7, EverySlotOfEveryReceiveMayLieInARegionOfItsOwn) {
  open(0);
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kSlots = Channel::kMostRequests * Channel::kMostSlots;
  std::vector<std::byte> arena((kMostRegistrations + 2 * kSlots + 1) * kPage);
  void* aligned = arena.data();
  std::size_t room = arena.size();
  ASSERT_NE(std::align(kPage, room - kPage, aligned, room), nullptr);
  auto* place = static_cast<std::byte*>(aligned);
  std::vector<std::unique_ptr<Memory>> registered;
  for (; registered.size() < kMostRegistrations; place += kPage) {
    auto memory = ends_.in->register_memory(std::span(place, kPage));
    ASSERT_TRUE(memory) << memory.error().text();
    registered.push_back(std::move(*memory));
    // The peer is told of a registration when a receive first speaks of it.
    const std::array slots{ReceiveSlot{std::span(place, 64), 0, registered.back().get()}};
    Request* const receive = must(ends_.in->receive(slots, false));
    ASSERT_TRUE(sent(pattern(64, 0), 0) && done(*ends_.in, receive));
  }
  for (std::uint32_t round = 0; round < 2; ++round) {
    std::vector<Request*> receives;
    for (std::size_t i = 0; i < Channel::kMostRequests; ++i) {
      std::vector<ReceiveSlot> slots;
      for (std::size_t tag = 0; tag < Channel::kMostSlots; ++tag, place += kPage) {
        slots.push_back({std::span(place, 64), static_cast<int>(tag)});
      }
      receives.push_back(must(ends_.in->receive(slots, false)));
      ASSERT_NE(receives.back(), nullptr) << i;
    }
    const auto message = pattern(64, round);
    for (Request* const receive : receives) {
      for (std::size_t tag = 0; tag < Channel::kMostSlots; ++tag) {
        ASSERT_TRUE(sent(message, static_cast<int>(tag)));
      }
      ASSERT_TRUE(done(*ends_.in, receive));
    }
  }
  // Their channel goes before their memory.
  yard_->close(ends_, 0, 1);
}

}  // namespace
}  // namespace railyard::message
