/// What a tcp rail hands to the kernel and when: long system calls, no packet that nobody waits for, messages first.
#include <gtest/gtest.h>
#include <linux/tcp.h>

#include <deque>
#include <functional>

#include "fabric/tcp_bed.hpp"

namespace railyard::fabric {
namespace {

constexpr std::size_t kShort = std::size_t{64} << 10U;
constexpr std::size_t kLong = std::size_t{1} << 20U;
constexpr std::size_t kFragment = std::size_t{256} << 10U;

class TcpCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    auto bed = TcpBed::open({});
    ASSERT_TRUE(bed) << bed.error().text();
    bed_ = std::move(*bed);
    ASSERT_TRUE(bed_.connect_and_send({1, 1, 0}, 8));
    auto registration = bed_.to->register_memory(target_, {.remote = true});
    ASSERT_TRUE(registration);
    registration_ = *registration;
  }
  void TearDown() override {
    bed_.from->stop();
    bed_.to->stop();
    if (bed_.to) bed_.to->revoke(registration_);
  }

  Post write(std::size_t bytes, WriteOptions options) {
    writes_.emplace_back();
    return bed_.from->write({bed_.link, registration_.remote_base, registration_.key}, {source_.data(), bytes}, options,
                            &writes_.back());
  }
  /// Bytes that the kernel has taken: of the sender, or of the receiver.
  std::uint64_t taken(bool sender) const {
    const std::uint16_t port = port_of(*bed_.to);
    for (const int socket : sockets_at(port)) {
      sockaddr_in name{};
      socklen_t length = sizeof name;
      EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&name), &length), 0);
      if ((ntohs(name.sin_port) != port) != sender) continue;
      tcp_info info{};
      length = sizeof info;
      EXPECT_EQ(::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
      return info.tcpi_bytes_sent + info.tcpi_notsent_bytes;
    }
    ADD_FAILURE() << "no connection";
    return 0;
  }
  static bool until(const std::function<bool()>& done) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done())
      if (std::chrono::steady_clock::now() > give_up) return false;
    return true;
  }
  static std::size_t poll(Rail& rail, Event::Kind kind) {
    std::array<Event, 64> events;
    std::size_t found = 0;
    for (std::size_t i = 0, count = rail.poll(events); i < count; ++i) found += events[i].kind == kind ? 1 : 0;
    return found;
  }

  TcpBed bed_;
  std::vector<std::byte> source_ = std::vector<std::byte>(kLong);
  std::vector<std::byte> target_ = std::vector<std::byte>(kLong);
  Registration registration_;
  std::deque<PostContext> writes_;
};

TEST_F(TcpCalls, AnAcknowledgementThatNobodyWaitsForCostsNoPacket) {
  constexpr int kLooks = 64;  // many more than an acknowledgement waits that is waited for
  for (const bool awaited : {false, true}) {
    const std::uint64_t before = taken(false);
    ASSERT_EQ(write(8, {.with_immediate = true, .delivery_complete = awaited}), Post::posted);
    bed_.from->ring();
    std::size_t landed = 0;
    ASSERT_TRUE(until([&] { return (landed += poll(*bed_.to, Event::Kind::landed)) == 1; }));
    for (int i = 0; i < kLooks; ++i) poll(*bed_.to, Event::Kind::landed);
    EXPECT_EQ(taken(false) != before, awaited);
    // It does come.
    std::size_t written = 0;
    ASSERT_TRUE(until([&] {
      poll(*bed_.to, Event::Kind::landed);
      return (written += poll(*bed_.from, Event::Kind::written)) == 1;
    }));
  }
}

TEST_F(TcpCalls, ItRidesOnWhatGoesThatWay) {
  const auto back = bed_.to->connect(bed_.from->address(), {2, 1, 1});
  ASSERT_TRUE(back);
  ASSERT_EQ(write(8, {.with_immediate = true}), Post::posted);
  bed_.from->ring();
  std::size_t landed = 0;
  ASSERT_TRUE(until([&] { return (landed += poll(*bed_.to, Event::Kind::landed)) == 1; }));
  PostContext sent, received;
  std::array<std::byte, 8> answer{};
  ASSERT_EQ(bed_.from->receive({target_.data(), 8}, &received), Post::posted);
  Post posted = Post::busy;
  ASSERT_TRUE(until([&] {
    posted = bed_.to->send(*back, {answer.data(), answer.size()}, &sent);
    if (posted == Post::busy) bed_.poll();
    return posted != Post::busy;
  }));
  bed_.to->ring();
  bool arrived = false;
  bool written = false;
  for (int i = 0; i < 1000 && !arrived; ++i) {
    std::array<Event, 8> events;
    for (std::size_t at = 0, count = bed_.from->poll(events); at < count; ++at) {
      arrived |= events[at].context == &received;
      written |= events[at].kind == Event::Kind::written;
    }
  }
  EXPECT_TRUE(arrived);
  EXPECT_TRUE(written);
}

TEST_F(TcpCalls, ShortDataWaitsForCompanyWhileThePeerHasEnoughToLand) {
  const auto put = [&] {
    ASSERT_EQ(write(kShort, {.with_immediate = true}), Post::posted);
    bed_.from->ring();
  };
  std::uint64_t before = taken(true);
  for (int i = 0; i < 16; ++i) {
    put();
    EXPECT_GE(taken(true) - before, kShort) << i;  // each at once
    before = taken(true);
  }
  for (int i = 0; i < 7; ++i) put();
  EXPECT_EQ(taken(true), before);
  put();
  EXPECT_GE(taken(true) - before, 8 * kShort);
  before = taken(true);
  put();
  EXPECT_EQ(taken(true), before);
  bed_.from->arm();  // whoever goes to sleep leaves nothing behind
  EXPECT_GE(taken(true) - before, kShort);
  put();
  std::size_t landed = 0;
  ASSERT_TRUE(until([&] {
    poll(*bed_.from, Event::Kind::written);
    return (landed += poll(*bed_.to, Event::Kind::landed)) == writes_.size();
  }));
}

TEST_F(TcpCalls, AMessageOvertakesDataThatTheKernelHasNotTaken) {
  // More than the kernel takes while nobody reads.
  constexpr std::size_t kWrites = 64;
  for (std::size_t i = 0; i < kWrites; ++i) ASSERT_EQ(write(kLong, {.with_immediate = true}), Post::posted);
  std::uint64_t before = 0;
  do {
    before = taken(true);
    bed_.from->ring();
  } while (taken(true) != before);
  ASSERT_LT(before, kWrites * kLong / 2);
  PostContext sent, received;
  std::array<std::byte, 8> message{}, arrived{};
  ASSERT_EQ(bed_.to->receive({arrived.data(), arrived.size()}, &received), Post::posted);
  ASSERT_EQ(bed_.from->send(bed_.link, {message.data(), message.size()}, &sent), Post::posted);
  std::size_t landed = 0;
  bool told = false;
  ASSERT_TRUE(until([&] {
    poll(*bed_.from, Event::Kind::written);
    std::array<Event, 16> events;
    for (std::size_t i = 0, count = bed_.to->poll(events); i < count; ++i) {
      told |= events[i].context == &received;
      landed += !told && events[i].kind == Event::Kind::landed ? 1 : 0;
    }
    return told;
  }));
  // What the kernel had, the fragment that was going out, and one more.
  EXPECT_LE(landed * kLong, before + 2 * kFragment);
}

}  // namespace
}  // namespace railyard::fabric
