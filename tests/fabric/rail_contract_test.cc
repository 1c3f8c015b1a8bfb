/// The contract of fabric/rail.hpp, written once and run over every bed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "fabric/two_rails.hpp"

namespace railyard::fabric {
namespace {

using RailContract = TwoRails;

INSTANTIATE_TEST_SUITE_P(Beds, RailContract, ::testing::ValuesIn(beds()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(RailContract, SaysWhatItIs) {
  const Capabilities& capabilities = a_.rail->capabilities();
  EXPECT_EQ(capabilities.driver, GetParam().driver);
  EXPECT_TRUE(capabilities.provider.starts_with(GetParam().provider)) << capabilities.provider;
  EXPECT_GE(capabilities.max_message, 4096u);
  EXPECT_GE(capabilities.max_write, std::size_t{1} << 20);
  EXPECT_GE(capabilities.depth, 64u);
  EXPECT_TRUE(a_.rail->name().starts_with(GetParam().provider)) << a_.rail->name();
  EXPECT_FALSE(a_.rail->fabric().empty());
  EXPECT_EQ(a_.rail->fabric(), b_.rail->fabric());
  const bool strict = std::string(GetParam().provider) == "strict";
  EXPECT_EQ(capabilities.binds_registrations, strict);
  EXPECT_EQ(capabilities.needs_local_registration, strict || GetParam().verbs());
}

TEST_P(RailContract, SendsMessagesInFullAndReportsBothSides) {
  PostContext sent;
  PostContext received;
  fill(std::span(a_.memory).first(1500), 1);
  ASSERT_EQ(b_.rail->receive(b_.chunk(0, 2048, kControl), &received), Post::posted);
  ASSERT_EQ(insist([&] { return a_.rail->send(a_.peer, a_.chunk(0, 1500, kControl), &sent); }), Post::posted);
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::sent) == 1 && seen(b_, Event::Kind::received) == 1; }));
  EXPECT_EQ(find(a_, Event::Kind::sent)->context, &sent);
  EXPECT_EQ(find(b_, Event::Kind::received)->context, &received);
  EXPECT_EQ(find(b_, Event::Kind::received)->bytes, 1500u);
  EXPECT_TRUE(equal(std::span(a_.memory).first(1500), std::span(b_.memory).first(1500)));
}

TEST_P(RailContract, WritesWithAnImmediateOnceTheBytesAreThere) {
  PostContext context;
  feed(b_, 1);
  fill(std::span(a_.memory).subspan(1000, 300000), 7);
  ASSERT_EQ(insist([&] {
              return a_.rail->write({a_.peer, b_.at(5000), b_.registration.key}, a_.chunk(1000, 300000, kData),
                                    {.with_immediate = true, .immediate = 0xfedcba98}, &context);
            }),
            Post::posted);
  bool right = false;
  ASSERT_TRUE(pump_until([&] {
    // At the very moment it is reported, the bytes are visible.
    if (!right && seen(b_, Event::Kind::landed) == 1)
      right = equal(std::span(a_.memory).subspan(1000, 300000), std::span(b_.memory).subspan(5000, 300000));
    return seen(b_, Event::Kind::landed) == 1 && seen(a_, Event::Kind::written) == 1;
  }));
  EXPECT_TRUE(right);
  EXPECT_EQ(find(b_, Event::Kind::landed)->immediate, 0xfedcba98u);
  EXPECT_EQ(find(b_, Event::Kind::landed)->context, b_.fed.empty() ? nullptr : &b_.fed.front());
  EXPECT_EQ(find(a_, Event::Kind::written)->context, &context);
}

TEST_P(RailContract, WritesWithoutAnImmediateTellOnlyTheWriter) {
  PostContext context;
  fill(std::span(a_.memory).first(64), 3);
  const bool tells = a_.rail->capabilities().delivery_complete;
  EXPECT_EQ(tells, !GetParam().verbs());
  ASSERT_EQ(insist([&] {
              return a_.rail->write({a_.peer, b_.at(64), b_.registration.key}, a_.chunk(0, 64, kData),
                                    {.delivery_complete = tells}, &context);
            }),
            Post::posted);
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::written) == 1; }));
  EXPECT_TRUE(equal(std::span(a_.memory).first(64), std::span(b_.memory).subspan(64, 64)));
  EXPECT_EQ(log_.size(), 1u);
}

TEST_P(RailContract, DeliveryCompletionMeansVisibleAtTheTarget) {
  if (!a_.rail->capabilities().delivery_complete) GTEST_SKIP() << "its completions do not mean that";
  // The target does not move at all: a truthful completion cannot come, or the bytes are there already.
  PostContext first;
  PostContext second;
  const auto write = [&](PostContext& context, std::size_t bytes) {
    return insist([&] {
      return a_.rail->write({a_.peer, b_.at(0), b_.registration.key}, a_.chunk(0, bytes, kData),
                            {.with_immediate = true, .delivery_complete = true, .immediate = 1}, &context);
    });
  };
  ASSERT_EQ(write(first, 8), Post::posted);
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::written) == 1; }));
  fill(std::span(a_.memory).first(4096), 9);
  ASSERT_EQ(write(second, 4096), Post::posted);
  std::vector<std::pair<Rail*, Event>> alone;
  for (int i = 0; i < 20000 && alone.empty(); ++i) pump({a_.rail.get()}, alone, [n = 0]() mutable { return n++ == 1; });
  if (!alone.empty()) {
    EXPECT_TRUE(equal(std::span(a_.memory).first(4096), std::span(b_.memory).first(4096)));
  }
  log_.insert(log_.end(), alone.begin(), alone.end());
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::written) == 2; }));
  EXPECT_TRUE(equal(std::span(a_.memory).first(4096), std::span(b_.memory).first(4096)));
}

TEST_P(RailContract, ReadsTheRemoteRegion) {
  PostContext context;
  fill(std::span(b_.memory).subspan(4096, 70000), 11);
  ASSERT_EQ(insist([&] {
              return a_.rail->read({a_.peer, b_.at(4096), b_.registration.key}, a_.chunk(100, 70000, kData), &context);
            }),
            Post::posted);
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::read) == 1; }));
  EXPECT_EQ(find(a_, Event::Kind::read)->context, &context);
  EXPECT_TRUE(equal(std::span(a_.memory).subspan(100, 70000), std::span(b_.memory).subspan(4096, 70000)));
}

TEST_P(RailContract, ReachesItself) {
  auto self = a_.rail->connect(a_.rail->address(), {});
  ASSERT_TRUE(self.ok()) << self.error().text();
  PostContext received;
  PostContext sent;
  PostContext written;
  fill(std::span(a_.memory).first(128), 5);
  ASSERT_EQ(a_.rail->receive(a_.chunk(1024, 256, kControl), &received), Post::posted);
  feed(a_, 1);
  ASSERT_EQ(insist([&] { return a_.rail->send(*self, a_.chunk(0, 128, kControl), &sent); }), Post::posted);
  ASSERT_EQ(insist([&] {
              return a_.rail->write({*self, a_.at(4096), a_.registration.key}, a_.chunk(0, 128, kData),
                                    {.with_immediate = true, .immediate = 77}, &written);
            }),
            Post::posted);
  ASSERT_TRUE(pump_until([&] {
    return seen(a_, Event::Kind::received) == 1 && seen(a_, Event::Kind::landed) == 1 &&
           seen(a_, Event::Kind::sent) == 1 && seen(a_, Event::Kind::written) == 1;
  }));
  EXPECT_TRUE(equal(std::span(a_.memory).first(128), std::span(a_.memory).subspan(1024, 128)));
  EXPECT_TRUE(equal(std::span(a_.memory).first(128), std::span(a_.memory).subspan(4096, 128)));
}

TEST_P(RailContract, FullQueuesAnswerBusyAndEveryPostedWriteCompletesOnce) {
  // Connect first, so that busy means "full" below.
  PostContext first;
  feed(b_, 64);
  ASSERT_EQ(insist([&] {
              return a_.rail->write({a_.peer, b_.at(0), b_.registration.key}, a_.chunk(0, 8, kData), {}, &first);
            }),
            Post::posted);
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::written) == 1; }));
  log_.clear();

  const std::size_t many = a_.rail->capabilities().depth * 4;
  std::vector<PostContext> contexts(many);
  std::size_t posted = 0;
  Post answer = Post::posted;
  const auto post = [&] {
    return a_.rail->write({a_.peer, b_.at(0), b_.registration.key}, a_.chunk(0, 4096, kData),
                          {.with_immediate = true, .immediate = static_cast<std::uint32_t>(posted)}, &contexts[posted]);
  };
  while (posted < many && (answer = post()) == Post::posted) ++posted;
  ASSERT_EQ(answer, Post::busy) << posted << " posted: " << a_.rail->failure();
  EXPECT_LE(posted, a_.rail->capabilities().depth);
  ASSERT_TRUE(pump_until([&] {
    while (posted < many && post() == Post::posted) ++posted;
    return posted == many && seen(a_, Event::Kind::written) == many && seen(b_, Event::Kind::landed) == many;
  }));
  std::vector<bool> completed(many);
  std::vector<bool> landed(many);
  for (const auto& [rail, event] : log_) {
    const auto index = event.kind == Event::Kind::written ? static_cast<std::size_t>(event.context - contexts.data())
                                                          : static_cast<std::size_t>(event.immediate);
    std::vector<bool>& which = event.kind == Event::Kind::written ? completed : landed;
    ASSERT_LT(index, many);
    EXPECT_FALSE(which[index]) << "twice: " << index;
    which[index] = true;
  }
}

TEST_P(RailContract, MessagesWithoutAReceiveWait) {
  constexpr std::size_t kMany = 40;
  std::vector<PostContext> sends(kMany);
  std::vector<PostContext> receives(kMany);
  for (std::size_t i = 0; i < kMany; ++i) {
    a_.memory[i * 64] = static_cast<std::byte>(i);
    ASSERT_EQ(insist([&] { return a_.rail->send(a_.peer, a_.chunk(i * 64, 64, kControl), &sends[i]); }), Post::posted);
  }
  for (int i = 0; i < 1000; ++i) pump_until([n = 0]() mutable { return n++ == 1; });
  EXPECT_EQ(seen(b_, Event::Kind::received), 0u);
  for (std::size_t i = 0; i < kMany; ++i)
    ASSERT_EQ(b_.rail->receive(b_.chunk(i * 64, 64, kControl), &receives[i]), Post::posted);
  ASSERT_TRUE(pump_until([&] { return seen(b_, Event::Kind::received) == kMany; }));
  for (std::size_t i = 0; i < kMany; ++i) EXPECT_EQ(b_.memory[i * 64], static_cast<std::byte>(i));
}

TEST_P(RailContract, ReceivesAreBounded) {
  stop_first_ = true;
  const std::size_t many = 100000;
  std::vector<PostContext> contexts(many);
  std::size_t posted = 0;
  while (posted < many && b_.rail->receive(b_.chunk(0, 64, kControl), &contexts[posted]) == Post::posted) ++posted;
  if (b_.rail->capabilities().landings_use_receives)
    EXPECT_GE(posted, b_.rail->capabilities().depth);
  else
    EXPECT_EQ(posted, b_.rail->capabilities().depth);
  EXPECT_EQ(b_.rail->receive(b_.chunk(0, 64, kControl), &contexts[posted]), Post::busy);
  PostContext sent;
  ASSERT_EQ(insist([&] { return a_.rail->send(a_.peer, a_.chunk(0, 8, kControl), &sent); }), Post::posted);
  ASSERT_TRUE(pump_until([&] { return seen(b_, Event::Kind::received) == 1; }));
  EXPECT_EQ(b_.rail->receive(b_.chunk(0, 64, kControl), &contexts[posted]), Post::posted);
  b_.rail->stop();  // before the contexts go
}

TEST_P(RailContract, LanesDoNotStarveEachOther) {
  // A poll with room for one event only, with both lanes full of them.
  constexpr std::size_t kMany = 100;
  std::vector<PostContext> sends(kMany);
  std::vector<PostContext> receives(kMany);
  std::vector<PostContext> writes(kMany);
  for (PostContext& context : receives) ASSERT_EQ(b_.rail->receive(b_.chunk(0, 64, kControl), &context), Post::posted);
  feed(b_, kMany);
  for (std::size_t i = 0; i < kMany; ++i) {
    ASSERT_EQ(insist([&] { return a_.rail->send(a_.peer, a_.chunk(0, 64, kControl), &sends[i]); }), Post::posted);
    ASSERT_EQ(insist([&] {
                return a_.rail->write({a_.peer, b_.at(4096), b_.registration.key}, a_.chunk(0, 64, kData),
                                      {.with_immediate = true, .immediate = 1}, &writes[i]);
              }),
              Post::posted);
  }
  std::size_t landed_by_then = 0;
  for (std::size_t turns = 0; turns < 5'000'000; ++turns) {
    std::array<Event, 1> one;
    if (b_.rail->poll(one) == 1) log_.emplace_back(b_.rail.get(), one[0]);
    if (seen(b_, Event::Kind::received) < kMany) landed_by_then = seen(b_, Event::Kind::landed);
    if (seen(b_, Event::Kind::received) == kMany && seen(b_, Event::Kind::landed) == kMany) break;
    std::array<Event, 8> some;
    a_.rail->poll(some);
  }
  EXPECT_EQ(seen(b_, Event::Kind::received), kMany);
  EXPECT_EQ(seen(b_, Event::Kind::landed), kMany);
  EXPECT_GE(landed_by_then, kMany / 4) << "the data lane had to wait for the control lane to run dry";
}

TEST_P(RailContract, ABadKeyIsAnErrorCompletionAndNothingIsWritten) {
  if (!GetParam().reports_bad_keys) GTEST_SKIP() << "this provider drops such a write and tells nobody";
  PostContext context;
  feed(b_, 1);
  fill(std::span(a_.memory).first(64), 1);
  ASSERT_EQ(
      insist([&] {
        return a_.rail->write(
            {a_.peer, b_.at(0), b_.registration.key ^ 0x5555}, a_.chunk(0, 64, kData),
            {.with_immediate = true, .delivery_complete = a_.rail->capabilities().delivery_complete, .immediate = 9},
            &context);
      }),
      Post::posted);
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::failed) == 1; }));
  EXPECT_EQ(find(a_, Event::Kind::failed)->context, &context);
  EXPECT_NE(find(a_, Event::Kind::failed)->error, 0);
  EXPECT_FALSE(a_.rail->describe_error(find(a_, Event::Kind::failed)->error).empty());
  EXPECT_EQ(seen(b_, Event::Kind::landed), 0u);
  EXPECT_TRUE(std::all_of(b_.memory.begin(), b_.memory.begin() + 64, [](std::byte x) { return x == std::byte{0}; }));
}

TEST_P(RailContract, AKeyDiesWithItsRegistration) {
  if (!GetParam().reports_bad_keys) GTEST_SKIP() << "this provider drops such a write and tells nobody";
  std::vector<std::byte> other(8192);
  auto registration = b_.rail->register_memory(other, {.remote = true});
  ASSERT_TRUE(registration.ok()) << registration.error().text();
  PostContext context;
  const auto write = [&] {
    return insist([&] {
      return a_.rail->write({a_.peer, registration->remote_base, registration->key}, a_.chunk(0, 64, kData),
                            {.delivery_complete = a_.rail->capabilities().delivery_complete}, &context);
    });
  };
  ASSERT_EQ(write(), Post::posted);
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::written) == 1; }));
  b_.rail->revoke(*registration);
  ASSERT_EQ(write(), Post::posted);
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::failed) == 1; }));
}

/// A registration is its own bytes, not their pages: what lies beside them on the same page is out of reach.
class ExactRange : public TwoRails {
 protected:
  static constexpr std::size_t kBegin = 8192 + 100;
  static constexpr std::size_t kBytes = 1000;

  /// Writes into a fresh registration, `shift` bytes beside it. Returns whether that was refused.
  bool refused(std::int64_t shift) {
    PostContext& context = contexts_.emplace_back();
    auto exact = b_.rail->register_memory(std::span(b_.memory).subspan(kBegin, kBytes), {.remote = true});
    EXPECT_TRUE(exact.ok()) << exact.error().text();
    const auto write = [&] {
      return a_.rail->write({a_.peer, exact->remote_base + static_cast<std::uint64_t>(shift), exact->key},
                            a_.chunk(0, kBytes, kData),
                            {.delivery_complete = a_.rail->capabilities().delivery_complete}, &context);
    };
    EXPECT_EQ(insist(write), Post::posted);
    EXPECT_TRUE(pump_until([&] { return told(a_, &context) == 1; }));
    b_.rail->revoke(*exact);
    return seen(a_, Event::Kind::failed) == 1;
  }
  /// One write inside, then one beside.
  void try_beside(std::int64_t shift) {
    if (!GetParam().reports_bad_keys) GTEST_SKIP() << "this provider drops such a write and tells nobody";
    const auto page = std::span(b_.memory).subspan(8192, 4096);
    std::ranges::fill(page, std::byte{0xa5});
    std::ranges::fill(a_.memory, std::byte{0x11});
    ASSERT_FALSE(refused(0));
    EXPECT_EQ(std::ranges::count(page, std::byte{0x11}), std::ptrdiff_t{kBytes});
    std::ranges::fill(a_.memory, std::byte{0x22});
    EXPECT_TRUE(refused(shift));
    // It may have begun inside.
    EXPECT_EQ(std::ranges::count(page, std::byte{0xa5}), std::ptrdiff_t{4096 - kBytes});
  }

 private:
  std::deque<PostContext> contexts_;
};

INSTANTIATE_TEST_SUITE_P(Beds, ExactRange, ::testing::ValuesIn(beds()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ExactRange, OneByteBeforeIsRefused) { try_beside(-1); }
TEST_P(ExactRange, OneByteAfterIsRefused) { try_beside(1); }

TEST_P(RailContract, RegistersTheSameMemoryManyTimes) {
  std::vector<Registration> registrations;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 50; ++i) {
      auto registration = a_.rail->register_memory(a_.memory, {.remote = true});
      ASSERT_TRUE(registration.ok()) << registration.error().text();
      for (const Registration& other : registrations) EXPECT_NE(other.key, registration->key);
      registrations.push_back(*registration);
    }
    for (const Registration& registration : registrations) a_.rail->revoke(registration);
    registrations.clear();
  }
}

TEST_P(RailContract, RefusesAddressesThatAreNone) {
  const std::vector<std::byte> good = b_.rail->address();
  EXPECT_EQ(a_.rail->connect({}, {}).status(), Status::invalid);
  const std::vector<std::byte> noise(100, std::byte{0x5a});
  EXPECT_EQ(a_.rail->connect(noise, {}).status(), Status::invalid);
  for (std::size_t length = 0; length < good.size(); ++length)
    EXPECT_FALSE(a_.rail->connect(std::span(good).first(length), {}).ok()) << length;
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_EQ(a_.rail->connect(longer, {}).status(), Status::invalid);
  std::vector<std::byte> newer = good;
  newer[4] = std::byte{99};
  const auto answer = a_.rail->connect(newer, {});
  ASSERT_EQ(answer.status(), Status::version_mismatch);
  EXPECT_NE(answer.error().message().find("99"), std::string::npos);
}

TEST_P(RailContract, ADisconnectedRemoteIsRefusedAndItsPlaceIsUsedAgain) {
  const RemoteId old = a_.peer;
  a_.rail->disconnect(old);
  PostContext context;
  EXPECT_EQ(a_.rail->send(old, a_.chunk(0, 8, kControl), &context), Post::failed);
  EXPECT_NE(a_.rail->failure().find("send"), std::string::npos);
  EXPECT_EQ(a_.rail->read({old, b_.at(0), b_.registration.key}, a_.chunk(0, 8, kData), &context), Post::failed);
  EXPECT_EQ(a_.rail->send(12345, a_.chunk(0, 8, kControl), &context), Post::failed);
  a_.rail->disconnect(old);  // twice does no harm
  connect(a_, b_);
  EXPECT_EQ(a_.peer, old);
  PostContext received;
  ASSERT_EQ(b_.rail->receive(b_.chunk(0, 64, kControl), &received), Post::posted);
  ASSERT_EQ(insist([&] { return a_.rail->send(a_.peer, a_.chunk(0, 8, kControl), &context); }), Post::posted);
  ASSERT_TRUE(pump_until([&] { return seen(b_, Event::Kind::received) == 1; }));
}

TEST_P(RailContract, AStoppedRailTouchesNothing) {
  PostContext received;
  ASSERT_EQ(b_.rail->receive(b_.chunk(0, 64, kControl), &received), Post::posted);
  b_.rail->stop();
  EXPECT_EQ(b_.rail->receive(b_.chunk(0, 64, kControl), &received), Post::failed);
  EXPECT_EQ(b_.rail->send(b_.peer, b_.chunk(0, 64, kControl), &received), Post::failed);
  EXPECT_FALSE(b_.rail->register_memory(b_.memory, {.remote = true}).ok());
  EXPECT_FALSE(b_.rail->connect(a_.rail->address(), {}).ok());
  std::array<Event, 4> events;
  EXPECT_EQ(b_.rail->poll(events), 0u);
  b_.rail->disconnect(b_.peer);
}

/// A peer that does not poll has a machine that takes what is sent all the same; or the rail does not say.
TEST_P(RailContract, WhatThePeersMachineTakesIsKnownWithoutItsProcess) {
  ASSERT_TRUE(delivers());
  const auto before = a_.rail->delivery(a_.peer);
  if (!before) GTEST_SKIP() << "this rail does not know";
  PostContext received;
  PostContext sent;
  ASSERT_EQ(a_.rail->send(a_.peer, a_.chunk(0, 64, kControl), &sent), Post::posted);
  EXPECT_TRUE(pump({a_.rail.get()}, log_, [&] {
    const auto now = a_.rail->delivery(a_.peer);
    const bool in_memory = before->taken == 0;
    return now && !now->waits && (now->taken > before->taken || in_memory);
  }));
  ASSERT_EQ(b_.rail->receive(b_.chunk(0, 64, kControl), &received), Post::posted);
  EXPECT_TRUE(pump_until([&] { return told(b_, &received) == 1 && told(a_, &sent) == 1; }));
}

TEST_P(RailContract, PollsWithoutRoomAreHarmless) { EXPECT_EQ(a_.rail->poll({}), 0u); }

}  // namespace
}  // namespace railyard::fabric
