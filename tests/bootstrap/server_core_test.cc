#include "bootstrap/server_core.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bootstrap/client_core.hpp"
#include "helpers.hpp"

namespace railyard::bootstrap {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kSecond = 1'000'000'000;

/// A server core and client cores joined by hand, with no socket and no clock.
class ServerCoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  void TearDown() override { set_log_sink({}); }

  explicit ServerCoreTest(std::int32_t size = 2, bool wrong_key_ends = false) : core_(options(size, wrong_key_ends)) {}

  static ServerCoreOptions options(std::int32_t size, bool wrong_key_ends) {
    ServerCoreOptions options;
    options.wrong_key_ends = wrong_key_ends;
    options.size = size;
    options.job_key = kKey;
    options.where = "here:1";
    options.most_unauthenticated = 8;
    return options;
  }

  struct Peer {
    ClientCore core;
    ConnectionId id;
  };
  Peer connect(std::int32_t rank, std::int32_t size = 2, const std::string& key = kKey) {
    Nonce nonce{};
    nonce[0] = static_cast<std::byte>(++nonces_);
    return {ClientCore(ClientCoreOptions{rank, size, key, "here:1", nonce}), core_.connected("5.6.7.8:9", now_)};
  }
  /// Passes bytes both ways until nothing moves.
  void settle(std::vector<Peer*> peers) {
    for (bool moved = true; moved;) {
      moved = false;
      for (Peer* peer : peers) {
        while (!peer->core.outgoing().empty()) {
          const std::vector<std::byte> bytes(peer->core.outgoing().begin(), peer->core.outgoing().end());
          peer->core.sent(bytes.size());
          core_.received(peer->id, bytes, now_);
          moved = true;
        }
        while (!core_.outgoing(peer->id).empty()) {
          const std::vector<std::byte> bytes(core_.outgoing(peer->id).begin(), core_.outgoing(peer->id).end());
          core_.sent(peer->id, bytes.size());
          peer->core.received(bytes);
          moved = true;
        }
      }
    }
  }
  /// A peer whose hello is answered and whose proof is under way.
  Peer connect_and_be_challenged(std::int32_t rank) {
    Peer peer = connect(rank);
    const std::vector<std::byte> hello(peer.core.outgoing().begin(), peer.core.outgoing().end());
    peer.core.sent(hello.size());
    core_.received(peer.id, hello, now_);
    EXPECT_FALSE(core_.outgoing(peer.id).empty());
    return peer;
  }
  void send_raw(ConnectionId id, const OutgoingFrame& frame) { core_.received(id, *frame.bytes, now_); }
  std::optional<Complaint> refusal(ConnectionId id) {
    FrameReader reader(kMostHandshake);
    while (!core_.outgoing(id).empty()) {
      const auto bytes = core_.outgoing(id);
      reader.feed(bytes);
      core_.sent(id, bytes.size());
    }
    Frame frame;
    while (reader.next(frame) == FrameReader::State::frame) {
      if (frame.type == FrameType::refusal) return parse_complaint(frame.payload, kMostRefusalText);
    }
    return std::nullopt;
  }
  static std::string failure(const Peer& peer) {
    return peer.core.failure() ? peer.core.failure()->message() : "no failure";
  }

  std::int64_t now_ = 1000 * kSecond;
  int nonces_ = 0;
  ServerCore core_;
};

TEST_F(ServerCoreTest, TwoRanksMeetAndGather) {
  Peer a = connect(0);
  Peer b = connect(1);
  settle({&a, &b});
  ASSERT_TRUE(a.core.welcomed());
  ASSERT_TRUE(b.core.welcomed());
  a.core.enter(Call::join, 1, bytes_of("a"));
  b.core.enter(Call::join, 1, bytes_of("b"));
  settle({&a, &b});
  ASSERT_TRUE(a.core.take_result());
  ASSERT_TRUE(b.core.take_result());
  a.core.enter(Call::allgather, 1, bytes_of("left"));
  b.core.enter(Call::allgather, 1, bytes_of("right"));
  settle({&a, &b});
  const auto result = b.core.take_result();
  ASSERT_TRUE(result);
  EXPECT_EQ(text_of(result->contributions[0]), "left");
  EXPECT_EQ(text_of(result->contributions[1]), "right");
}

TEST_F(ServerCoreTest, AWrongKeyIsRefusedClearlyAndTheOthersGoOn) {
  Peer wrong = connect(1, 2, "guess");
  Peer a = connect(0);
  settle({&wrong, &a});
  EXPECT_EQ(wrong.core.failure()->status(), Status::refused);
  EXPECT_THAT(failure(wrong), AllOf(HasSubstr("here:1 refused rank 1"), HasSubstr("RAILYARD_JOB_KEY")));
  EXPECT_TRUE(core_.finished(wrong.id));
  Peer b = connect(1);
  settle({&a, &b});
  EXPECT_TRUE(a.core.welcomed());
  EXPECT_TRUE(b.core.welcomed());
}

class WrongKeyEndsTest : public ServerCoreTest {
 protected:
  WrongKeyEndsTest() : ServerCoreTest(2, true) {}
};

TEST_F(WrongKeyEndsTest, AWrongKeyEndsTheJobWhereTheUserWantsThat) {
  Peer a = connect(0);
  settle({&a});
  a.core.enter(Call::join, 60 * kSecond, bytes_of("a"));
  settle({&a});
  EXPECT_FALSE(a.core.failure());
  Peer wrong = connect(1, 2, "guess");
  settle({&wrong, &a});
  ASSERT_TRUE(a.core.failure());
  EXPECT_EQ(a.core.failure()->status(), Status::refused);
  EXPECT_THAT(failure(a), AllOf(HasSubstr("rank 1"), HasSubstr("RAILYARD_JOB_KEY"), HasSubstr("a process at")));
}

TEST_F(WrongKeyEndsTest, AWrongKeyForARankThatIsHereEndsNothing) {
  Peer a = connect(0);
  Peer b = connect(1);
  settle({&a, &b});
  Peer wrong = connect(1, 2, "guess");
  settle({&wrong, &a, &b});
  a.core.enter(Call::join, kSecond, bytes_of("a"));
  b.core.enter(Call::join, kSecond, bytes_of("b"));
  settle({&a, &b});
  EXPECT_TRUE(a.core.take_result());
  EXPECT_TRUE(b.core.take_result());
}

TEST_F(ServerCoreTest, TheProofOfOneConnectionIsWorthNothingOnAnother) {
  // What an eavesdropper has: rank 0's hello and proof.
  Nonce nonce{};
  const Hello hello{kWireVersion, 0, 2, nonce};
  const ConnectionId first = core_.connected("x", now_);
  send_raw(first, make_frame(FrameType::hello, encode(hello)));
  FrameReader reader(kMostHandshake);
  reader.feed(core_.outgoing(first));
  Frame frame;
  ASSERT_EQ(reader.next(frame), FrameReader::State::frame);
  const Nonce server_nonce = parse_challenge(frame.payload)->nonce;
  const Digest proof = proof_of(kKey, {0, 2, nonce, server_nonce}, Side::client);

  const ConnectionId second = core_.connected("x", now_);
  send_raw(second, make_frame(FrameType::hello, encode(hello)));
  send_raw(second, make_frame(FrameType::proof, encode(proof)));
  EXPECT_EQ(refusal(second)->status, Status::refused);
  // The rightful owner is not harmed by the copy.
  send_raw(first, make_frame(FrameType::proof, encode(proof)));
  EXPECT_FALSE(core_.finished(first));
}

TEST_F(ServerCoreTest, AnotherVersionIsRefusedByName) {
  const ConnectionId id = core_.connected("x", now_);
  send_raw(id, make_frame(FrameType::hello, encode(Hello{kWireVersion + 6, 0, 2, {}})));
  const auto complaint = refusal(id);
  ASSERT_TRUE(complaint);
  EXPECT_EQ(complaint->status, Status::version_mismatch);
  EXPECT_THAT(complaint->text,
              AllOf(HasSubstr(fmt::format("version {}", kWireVersion + 6)), HasSubstr("same release")));
}

TEST_F(ServerCoreTest, AnotherSizeIsRefused) {
  Peer peer = connect(1, 3);
  settle({&peer});
  EXPECT_THAT(failure(peer), AllOf(HasSubstr("3 ranks"), HasSubstr("RAILYARD_SIZE")));
}

TEST_F(ServerCoreTest, ASecondProcessWithTheSameRankIsRefused) {
  Peer a = connect(0);
  settle({&a});
  a.core.enter(Call::join, 1, bytes_of("pid 42 on node7"));
  settle({&a});
  Peer again = connect(0);
  settle({&a, &again});
  EXPECT_EQ(again.core.failure()->status(), Status::refused);
  EXPECT_THAT(failure(again),
              AllOf(HasSubstr("rank 0 is here already (pid 42 on node7)"), HasSubstr("RAILYARD_RANK=0")));
  EXPECT_FALSE(a.core.failure());
}

TEST_F(ServerCoreTest, GarbageIsRefusedAndClosed) {
  const ConnectionId id = core_.connected("x", now_);
  core_.received(id, bytes_of("GET / HTTP/1.1\r\n\r\n"), now_);
  EXPECT_TRUE(core_.finished(id));
  const ConnectionId other = core_.connected("x", now_);
  send_raw(other, make_frame(FrameType::enter, bytes_of("too early")));
  EXPECT_TRUE(core_.finished(other));
  EXPECT_EQ(refusal(other)->status, Status::invalid);
}

TEST_F(ServerCoreTest, AnUnauthenticatedPeerGetsOnlyASmallFrame) {
  const ConnectionId id = core_.connected("x", now_);
  send_raw(id, make_frame(FrameType::hello, std::vector<std::byte>(kMostHandshake)));
  EXPECT_TRUE(core_.finished(id));
}

TEST_F(ServerCoreTest, AnUnauthenticatedPeerWhoSaysNothingIsDroppedInTime) {
  const ConnectionId id = core_.connected("x", now_);
  const std::int64_t due = core_.deadline();
  EXPECT_LT(due, RankGroup::kNever);
  core_.tick(due - 1);
  EXPECT_TRUE(core_.take_dropped().empty());
  core_.tick(due);
  EXPECT_THAT(core_.take_dropped(), ::testing::ElementsAre(id));
  EXPECT_EQ(core_.connections(), 0U);
}

TEST_F(ServerCoreTest, AFloodOfUnauthenticatedPeersIsBoundedAndDoesNotKeepARankOut) {
  Peer a = connect(0);
  settle({&a});
  for (int i = 0; i < 1000; ++i) {
    core_.connected("flood", now_);
    ASSERT_LE(core_.connections(), 9U);
  }
  Peer b = connect(1);
  settle({&a, &b});
  EXPECT_TRUE(b.core.welcomed());
  for (int i = 0; i < 1000; ++i) core_.connected("flood", now_);
  a.core.enter(Call::join, 1, {});
  b.core.enter(Call::join, 1, {});
  settle({&a, &b});
  EXPECT_TRUE(a.core.take_result());
}

TEST_F(ServerCoreTest, AFloodOfSilentPeersBetweenChallengeAndProofDropsNoRank) {
  Peer a = connect_and_be_challenged(0);
  Peer b = connect_and_be_challenged(1);
  for (int i = 0; i < 1000; ++i) {
    core_.connected("flood", now_);
    ASSERT_LE(core_.connections(), 8U);
  }
  settle({&a, &b});
  EXPECT_TRUE(a.core.welcomed());
  EXPECT_TRUE(b.core.welcomed());
}

TEST_F(ServerCoreTest, AFloodOfPeersThatSayHelloWaitsForTheRanksInMidHandshake) {
  Peer a = connect_and_be_challenged(0);
  Peer b = connect_and_be_challenged(1);
  while (core_.has_room(now_)) {
    connect_and_be_challenged(0);
    ASSERT_LE(core_.connections(), 8U);
  }
  EXPECT_EQ(core_.connections(), 8U);
  EXPECT_TRUE(core_.take_dropped().empty());
  settle({&a, &b});
  EXPECT_TRUE(a.core.welcomed());
  EXPECT_TRUE(b.core.welcomed());
}

TEST_F(ServerCoreTest, AChallengedPeerMakesRoomOnceItHadTimeForItsProof) {
  const Peer first = connect_and_be_challenged(0);
  while (core_.has_room(now_)) connect_and_be_challenged(0);
  now_ += ServerCore::kLeastStayNs - 1;
  EXPECT_FALSE(core_.has_room(now_));
  now_ += 1;
  EXPECT_TRUE(core_.has_room(now_));
  EXPECT_TRUE(core_.take_dropped().empty()) << "only a newcomer drops somebody";
  core_.connected("later", now_);
  EXPECT_THAT(core_.take_dropped(), ::testing::ElementsAre(first.id));
}

TEST_F(ServerCoreTest, WithoutDescriptorsEvenAYoungPeerMakesRoomButNoMember) {
  Peer a = connect(0);
  settle({&a});
  const Peer challenged = connect_and_be_challenged(1);
  const ConnectionId silent = core_.connected("silent", now_);
  EXPECT_TRUE(core_.drop_unauthenticated());
  EXPECT_TRUE(core_.drop_unauthenticated());
  EXPECT_FALSE(core_.drop_unauthenticated());
  EXPECT_THAT(core_.take_dropped(), ::testing::ElementsAre(silent, challenged.id));
}

TEST_F(ServerCoreTest, ADeadRankIsNamedToThoseWhoWait) {
  Peer a = connect(0);
  Peer b = connect(1);
  settle({&a, &b});
  b.core.enter(Call::join, 1, bytes_of("pid 8 on node9"));
  settle({&b});
  a.core.enter(Call::join, 60 * kSecond, {});
  settle({&a, &b});
  ASSERT_TRUE(a.core.take_result() || b.core.take_result());
  a.core.enter(Call::barrier, 60 * kSecond, {});
  settle({&a});
  core_.closed(b.id, "its connection closed");
  settle({&a});
  EXPECT_EQ(a.core.failure()->status(), Status::peer_lost);
  EXPECT_EQ(a.core.failure()->where().peer, 1);
  EXPECT_EQ(failure(a), "rank 1 (pid 8 on node9) is gone: its connection closed");
}

TEST_F(ServerCoreTest, AMemberThatBreaksTheProtocolIsLostToTheOthers) {
  Peer a = connect(0);
  Peer b = connect(1);
  settle({&a, &b});
  a.core.enter(Call::join, 60 * kSecond, {});
  settle({&a});
  core_.received(b.id, *make_frame(FrameType::enter, bytes_of("not sealed")).bytes, now_);
  core_.received(b.id, std::vector<std::byte>(32), now_);
  settle({&a});
  EXPECT_THAT(failure(a), AllOf(HasSubstr("rank 1"), HasSubstr("a frame whose seal does not fit")));
  EXPECT_TRUE(core_.finished(b.id));
}

TEST_F(ServerCoreTest, ACallWhileOneIsUnderWayIsAnError) {
  Peer a = connect(0);
  settle({&a});
  a.core.enter(Call::join, 60 * kSecond, {});
  a.core.enter(Call::barrier, 60 * kSecond, {});
  settle({&a});
  EXPECT_THAT(failure(a), HasSubstr("makes no sense at this point"));
}

TEST_F(ServerCoreTest, TheTimeOfACallIsWatched) {
  Peer a = connect(0);
  settle({&a});
  a.core.enter(Call::join, 3 * kSecond, {});
  settle({&a});
  EXPECT_EQ(core_.deadline(), now_ + 3 * kSecond);
  core_.tick(now_ + 3 * kSecond);
  settle({&a});
  EXPECT_EQ(a.core.failure()->status(), Status::timeout);
  EXPECT_THAT(failure(a), HasSubstr("rank 1 of 2 did not arrive within 3 s at here:1"));
}

TEST_F(ServerCoreTest, TheSameRanksMayMeetAgain) {
  for (int round = 0; round < 10; ++round) {
    Peer a = connect(0);
    Peer b = connect(1);
    settle({&a, &b});
    a.core.enter(Call::join, 60 * kSecond, {});
    b.core.enter(Call::join, 60 * kSecond, {});
    settle({&a, &b});
    ASSERT_TRUE(a.core.take_result()) << failure(a);
    ASSERT_TRUE(b.core.take_result()) << failure(b);
    a.core.leave();
    b.core.leave();
    settle({&a, &b});
    core_.closed(a.id, "");
    core_.closed(b.id, "");
    EXPECT_EQ(core_.connections(), 0U);
  }
}

TEST_F(ServerCoreTest, ARankMayBeAheadOfTheOthers) {
  Peer a = connect(0);
  Peer b = connect(1);
  settle({&a, &b});
  a.core.enter(Call::join, 60 * kSecond, {});
  b.core.enter(Call::join, 60 * kSecond, {});
  settle({&a, &b});
  ASSERT_TRUE(a.core.take_result());
  ASSERT_TRUE(b.core.take_result());
  // Rank 0 closes and comes again while rank 1 is still in the first rank group.
  a.core.leave();
  settle({&a});
  Peer again = connect(0);
  settle({&again});
  ASSERT_TRUE(again.core.welcomed()) << failure(again);
  again.core.enter(Call::join, 60 * kSecond, {});
  settle({&again});
  b.core.leave();
  settle({&b});
  Peer b_again = connect(1);
  settle({&b_again});
  b_again.core.enter(Call::join, 60 * kSecond, {});
  settle({&again, &b_again});
  EXPECT_TRUE(again.core.take_result()) << failure(again);
}

TEST_F(ServerCoreTest, ARankThatComesAndGoesWithoutEndIsRefused) {
  Peer b = connect(1);
  settle({&b});
  std::string last;
  for (int i = 0; i < 6; ++i) {
    Peer a = connect(0);
    settle({&a});
    last = failure(a);
    a.core.leave();
    settle({&a});
    core_.closed(a.id, "");
  }
  EXPECT_THAT(last, HasSubstr("come and gone too often"));
}

TEST_F(ServerCoreTest, TheLauncherCanTellThatAProcessEnded) {
  Peer a = connect(0);
  settle({&a});
  a.core.enter(Call::join, 60 * kSecond, {});
  settle({&a});
  core_.process_ended(-1, "nonsense");
  core_.process_ended(2, "nonsense");
  core_.process_ended(1, "its process exited with code 3");
  settle({&a});
  EXPECT_THAT(failure(a), HasSubstr("rank 1 ended before it arrived at here:1: its process exited with code 3"));
}

}  // namespace
}  // namespace railyard::bootstrap
