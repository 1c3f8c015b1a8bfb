/// Two rails of one process, for tests of what rails promise each other.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <span>

#include "fabric/beds.hpp"

namespace railyard::fabric {

inline constexpr std::size_t kControl = static_cast<std::size_t>(Lane::control);
inline constexpr std::size_t kData = static_cast<std::size_t>(Lane::data);

/// Two rails of one process, connected both ways, each with a registered megabyte.
class TwoRails : public ::testing::TestWithParam<Bed> {
 protected:
  struct Side {
    std::unique_ptr<Rail> rail;
    RemoteId peer = 0;
    std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
    Registration registration;
    std::deque<PostContext> fed;  ///< receives that `feed` keeps posted

    LocalChunk chunk(std::size_t offset, std::size_t bytes, std::size_t lane) {
      return {memory.data() + offset, bytes, registration.descriptor[lane]};
    }
    std::uint64_t at(std::size_t offset) const { return registration.remote_base + offset; }
  };

  void SetUp() override {
    strict_.forget();
    if (GetParam().doubled()) network_.emplace();
    auto rails = open_bed(GetParam(), 2);
    ASSERT_TRUE(rails.ok()) << rails.error().text();
    ASSERT_EQ(rails->size(), 2u);
    a_.rail = std::move((*rails)[0]);
    b_.rail = std::move((*rails)[1]);
    connect(a_, b_);
    connect(b_, a_);
    for (Side* side : {&a_, &b_}) {
      auto registration = side->rail->register_memory(side->memory, {.remote = true});
      ASSERT_TRUE(registration.ok()) << registration.error().text();
      side->registration = *registration;
    }
  }

  void TearDown() override {
    for (Side* side : {&a_, &b_}) {
      if (!side->rail) continue;
      if (stop_first_ || !side->fed.empty()) side->rail->stop();
      side->rail->revoke(side->registration);
      side->rail.reset();
    }
    EXPECT_EQ(strict_.violations(), 0u) << strict_.text();
    EXPECT_EQ(strict_.open_objects(), 0u);
    if (!network_) return;
    EXPECT_EQ(network_->violations(), std::vector<std::string>());
    EXPECT_EQ(network_->alive(), 0u);
  }

  static void connect(Side& from, Side& to, LinkTag tag = {}) {
    auto peer = from.rail->connect(to.rail->address(), tag);
    ASSERT_TRUE(peer.ok()) << peer.error().text();
    from.peer = *peer;
  }

  bool pump_until(const std::function<bool()>& done) {
    return pump({a_.rail.get(), b_.rail.get()}, log_, [&] {
      feed_again();
      return done();
    });
  }
  /// Keeps receives posted for writes with immediates, where those use them up.
  static void feed(Side& side, std::size_t count) {
    if (!side.rail->capabilities().landings_use_receives) return;
    while (side.fed.size() < count) {
      side.fed.emplace_back();
      ASSERT_EQ(side.rail->receive(fodder(side), &side.fed.back()), Post::posted);
    }
  }
  static LocalChunk fodder(Side& side) { return side.chunk(side.memory.size() - 64, 64, kControl); }
  void feed_again() {
    for (; looked_at_ < log_.size(); ++looked_at_) {
      const auto& [rail, event] = log_[looked_at_];
      if (event.kind != Event::Kind::landed || event.context == nullptr) continue;
      Side& side = rail == a_.rail.get() ? a_ : b_;
      ASSERT_EQ(side.rail->receive(fodder(side), event.context), Post::posted);
    }
    looked_at_ = std::min(looked_at_, log_.size());
  }
  /// Posts, polling while the answer is busy.
  Post insist(const std::function<Post()>& post) {
    Post answer = post();
    pump_until([&] { return answer != Post::busy || (answer = post()) != Post::busy; });
    return answer;
  }
  std::size_t seen(const Side& side, Event::Kind kind) const {
    return static_cast<std::size_t>(std::count_if(log_.begin(), log_.end(), [&](const auto& entry) {
      return entry.first == side.rail.get() && entry.second.kind == kind;
    }));
  }
  const Event* find(const Side& side, Event::Kind kind, std::size_t index = 0) const {
    for (const auto& [rail, event] : log_)
      if (rail == side.rail.get() && event.kind == kind && index-- == 0) return &event;
    return nullptr;
  }
  static void fill(std::span<std::byte> bytes, unsigned seed) {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + seed + (i >> 8));
  }
  static bool equal(std::span<const std::byte> x, std::span<const std::byte> y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end());
  }

  /// Whether the link from `a_` takes a message: the receive that it lands in is posted here.
  bool delivers() {
    PostContext received;
    PostContext sent;
    const std::size_t before = seen(b_, Event::Kind::received);
    const std::size_t told_before = told(a_, &sent);  // an earlier call may have had its context in the same place
    if (b_.rail->receive(b_.chunk(0, 64, kControl), &received) != Post::posted) return false;
    if (insist([&] { return a_.rail->send(a_.peer, a_.chunk(0, 8, kControl), &sent); }) != Post::posted) return false;
    return pump_until(
        [&] { return seen(b_, Event::Kind::received) == before + 1 && told(a_, &sent) == told_before + 1; });
  }
  /// How often a context has come out of a poll.
  std::size_t told(const Side& side, const PostContext* context) const {
    return static_cast<std::size_t>(std::count_if(log_.begin(), log_.end(), [&](const auto& entry) {
      return entry.first == side.rail.get() && entry.second.context == context;
    }));
  }

  StrictAccount strict_;
  std::optional<verbs_double::Network> network_;
  Side a_;
  Side b_;
  bool stop_first_ = false;
  std::vector<std::pair<Rail*, Event>> log_;
  std::size_t looked_at_ = 0;  ///< how much of the log `feed_again` has seen
};

}  // namespace railyard::fabric
