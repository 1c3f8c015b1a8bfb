/// Memory that was taken back: whatever peers are in the middle of, not one byte of it changes any more.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "fabric/two_rails.hpp"

namespace railyard::fabric {
namespace {

class Revoke : public TwoRails {
 protected:
  static constexpr std::size_t kBytes = std::size_t{8} << 20;
  static constexpr std::size_t kDepth = 4;

  void SetUp() override {
    TwoRails::SetUp();
    auto source = a_.rail->register_memory(source_, {});
    auto target = b_.rail->register_memory(target_, {.remote = true});
    ASSERT_TRUE(source.ok() && target.ok());
    source_registration_ = *source;
    target_registration_ = *target;
  }
  void TearDown() override {
    up_ = false;
    a_.rail->disconnect(a_.peer);
    pump_until([&] {
      keep_writing();
      return over_ == posted_;
    });
    a_.rail->revoke(source_registration_);
    stop_first_ = true;
    TwoRails::TearDown();
  }

  /// Keeps large writes under way from a to b, as long as the link takes them.
  void keep_writing() {
    for (; looked_ < log_.size(); ++looked_) {
      const auto& [rail, event] = log_[looked_];
      if (rail != a_.rail.get()) continue;
      if (event.kind == Event::Kind::lost) up_ = false;
      const auto* const first = contexts_.data();
      if (event.context < first || event.context >= first + kDepth) continue;
      ++over_;
      event.kind == Event::Kind::failed ? ++failed_ : ++written_;
      idle_.push_back(event.context);
    }
    while (up_ && !idle_.empty()) {
      const LocalChunk from{source_.data(), kBytes, source_registration_.descriptor[kData]};
      const Post answer =
          a_.rail->write({a_.peer, target_registration_.remote_base, target_registration_.key}, from, {}, idle_.back());
      if (answer == Post::failed) up_ = false;
      if (answer != Post::posted) break;
      ++posted_;
      idle_.pop_back();
    }
    a_.rail->ring();
  }
  /// A look at every byte would take longer than all else.
  bool some_arrived() const {
    for (std::size_t at = 0; at < target_.size(); at += std::size_t{1} << 16U)
      if (target_[at] == kSent) return true;
    return false;
  }
  bool unchanged() const {
    return std::all_of(target_.begin(), target_.end(), [](std::byte byte) { return byte == kOwn; });
  }
  /// Polls on for a while, with the writer doing what it can.
  void poll_on() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    std::size_t polls = 0;
    pump_until([&] {
      keep_writing();
      return ++polls > 2000 && std::chrono::steady_clock::now() > until;
    });
  }

  static constexpr std::byte kSent{0x5a};
  static constexpr std::byte kOwn{0xc3};
  std::vector<std::byte> source_ = std::vector<std::byte>(kBytes, kSent);
  std::vector<std::byte> target_ = std::vector<std::byte>(kBytes);
  Registration source_registration_;
  Registration target_registration_;
  std::array<PostContext, kDepth> contexts_;
  std::vector<PostContext*> idle_{&contexts_[0], &contexts_[1], &contexts_[2], &contexts_[3]};
  std::size_t looked_ = 0;
  std::size_t posted_ = 0;
  std::size_t over_ = 0;
  std::size_t written_ = 0;
  std::size_t failed_ = 0;
  bool up_ = true;
};

TEST_P(Revoke, NoByteChangesAfterItWhateverIsUnderWay) {
  // In the middle of a write: its first bytes are here, its last are not.
  ASSERT_TRUE(pump_until([&] {
    keep_writing();
    return some_arrived();
  }));
  b_.rail->revoke(target_registration_);
  std::fill(target_.begin(), target_.end(), kOwn);
  EXPECT_TRUE(pump_until([&] {
    keep_writing();
    return failed_ != 0 || !up_;
  })) << "the writer was not told";
  poll_on();
  EXPECT_TRUE(unchanged()) << "bytes of a revoked registration were written";
  const std::size_t written = written_;
  poll_on();
  EXPECT_EQ(written_, written) << "a write to a key that is no more succeeded";
}

TEST_P(Revoke, OtherRegistrationsKeepWorking) {
  ASSERT_TRUE(pump_until([&] {
    keep_writing();
    return some_arrived();
  }));
  b_.rail->revoke(target_registration_);
  up_ = false;
  // The link may have been lost with the writes; another takes its place.
  a_.rail->disconnect(a_.peer);
  ASSERT_TRUE(pump_until([&] {
    keep_writing();
    return over_ == posted_;
  }));
  connect(a_, b_, {.id = 0, .epoch = 1});
  fill(a_.memory, 7);
  PostContext context;
  ASSERT_EQ(insist([&] {
              return a_.rail->write({a_.peer, b_.at(0), b_.registration.key}, a_.chunk(0, 65536, kData), {}, &context);
            }),
            Post::posted);
  a_.rail->ring();
  ASSERT_TRUE(pump_until([&] {
    return told(a_, &context) == 1 && equal(std::span(b_.memory).first(65536), std::span(a_.memory).first(65536));
  }));
}

TEST_P(Revoke, OfMemoryThatOnlyThisSideUsesCostsNoLink) {
  ASSERT_TRUE(delivers());
  std::vector<std::byte> memory(4096);
  auto registration = b_.rail->register_memory(memory, {});
  ASSERT_TRUE(registration.ok());
  b_.rail->revoke(*registration);
  ASSERT_TRUE(delivers());
  EXPECT_EQ(seen(a_, Event::Kind::lost), 0u);
}

TEST_P(Revoke, OfWhatIsKnownToBeOverCostsNoLink) {
  std::vector<std::byte> memory(4096);
  auto registration = b_.rail->register_memory(memory, {.remote = true});
  ASSERT_TRUE(registration.ok());
  PostContext context;
  ASSERT_EQ(insist([&] {
              return a_.rail->write({a_.peer, registration->remote_base, registration->key}, a_.chunk(0, 4096, kData),
                                    {}, &context);
            }),
            Post::posted);
  a_.rail->ring();
  ASSERT_TRUE(pump_until([&] { return told(a_, &context) == 1; }));
  ASSERT_TRUE(delivers());
  b_.rail->deregister(*registration);
  ASSERT_TRUE(delivers());
  EXPECT_EQ(seen(a_, Event::Kind::lost), 0u);
}

/// Where the target itself can shut writers out. Reliable datagrams over tcp cannot: see fabric/ofi/datagram.hpp.
std::vector<Bed> exact_beds() {
  std::vector<Bed> some = beds();
  std::erase_if(some, [](const Bed& bed) { return !bed.fences_exactly(); });
  return some;
}

INSTANTIATE_TEST_SUITE_P(Beds, Revoke, ::testing::ValuesIn(exact_beds()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace railyard::fabric
