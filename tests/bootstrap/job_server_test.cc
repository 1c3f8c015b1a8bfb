#include "bootstrap/job_server.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "helpers.hpp"
#include "rendezvous/acceptor_bed.hpp"

namespace railyard::bootstrap {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kSecond = 1'000'000'000;

/// A job's server and ranks joined by hand, with no socket and a clock that the test sets.
class JobServerTest : public rendezvous::AcceptorBed {
 protected:
  explicit JobServerTest(std::int32_t size = 2, bool wrong_key_ends = false)
      : server_(options(size, wrong_key_ends), clock_) {}

  static JobServerOptions options(std::int32_t size, bool wrong_key_ends) {
    JobServerOptions options;
    options.wrong_key_ends = wrong_key_ends;
    options.size = size;
    options.job_key = kKey;
    options.where = "here:1";
    options.most_unauthenticated = 8;
    return options;
  }
  rendezvous::Acceptor& acceptor() override { return server_.acceptor(); }

  struct Rank : Peer {
    std::int32_t size;
    std::uint64_t sequence = 0;

    void enter(Call call, std::uint64_t timeout_ns, std::vector<std::byte> contribution) {
      end.send(kEnter, encode(Enter{call, sequence++, timeout_ns, std::move(contribution)}));
    }
    void leave() { end.send(kLeave, {}); }
    std::optional<GatherResult> take_result() {
      if (frames.empty() || frames.front().type != kResult) return std::nullopt;
      auto result = parse_result(frames.front().payload, size);
      frames.erase(frames.begin());
      return result;
    }
  };
  Rank connect(std::int32_t rank, std::int32_t size = 2, const std::string& key = kKey) {
    return {AcceptorBed::connect(rendezvous::Protocol::job, encode(Claim{rank, size}), key), size};
  }

  JobServer server_;
};

TEST_F(JobServerTest, TwoRanksMeetAndGather) {
  Rank a = connect(0);
  Rank b = connect(1);
  settle({&a, &b});
  ASSERT_TRUE(a.let_in());
  ASSERT_TRUE(b.let_in());
  a.enter(Call::join, 1, bytes_of("a"));
  b.enter(Call::join, 1, bytes_of("b"));
  settle({&a, &b});
  ASSERT_TRUE(a.take_result());
  ASSERT_TRUE(b.take_result());
  a.enter(Call::allgather, 1, bytes_of("left"));
  b.enter(Call::allgather, 1, bytes_of("right"));
  settle({&a, &b});
  const auto result = b.take_result();
  ASSERT_TRUE(result);
  EXPECT_EQ(text_of(result->contributions[0]), "left");
  EXPECT_EQ(text_of(result->contributions[1]), "right");
}

TEST_F(JobServerTest, AWrongKeyIsRefusedClearlyAndTheOthersGoOn) {
  Rank wrong = connect(1, 2, "guess");
  Rank a = connect(0);
  settle({&wrong, &a});
  EXPECT_EQ(wrong.status(), Status::refused);
  EXPECT_THAT(wrong.failure(), AllOf(HasSubstr("job key of rank 1"), HasSubstr("RAILYARD_JOB_KEY")));
  EXPECT_TRUE(acceptor().finished(wrong.id));
  Rank b = connect(1);
  settle({&a, &b});
  EXPECT_TRUE(a.let_in());
  EXPECT_TRUE(b.let_in());
}

class WrongKeyEndsTest : public JobServerTest {
 protected:
  WrongKeyEndsTest() : JobServerTest(2, true) {}
};

TEST_F(WrongKeyEndsTest, AWrongKeyEndsTheJobWhereTheUserWantsThat) {
  Rank a = connect(0);
  settle({&a});
  a.enter(Call::join, 60 * kSecond, bytes_of("a"));
  settle({&a});
  EXPECT_FALSE(a.end.failure());
  Rank wrong = connect(1, 2, "guess");
  settle({&wrong, &a});
  ASSERT_TRUE(a.end.failure());
  EXPECT_EQ(a.status(), Status::refused);
  EXPECT_THAT(a.failure(), AllOf(HasSubstr("rank 1"), HasSubstr("RAILYARD_JOB_KEY"), HasSubstr("a process at")));
}

TEST_F(WrongKeyEndsTest, AWrongKeyForARankThatIsHereEndsNothing) {
  Rank a = connect(0);
  Rank b = connect(1);
  settle({&a, &b});
  Rank wrong = connect(1, 2, "guess");
  settle({&wrong, &a, &b});
  a.enter(Call::join, kSecond, bytes_of("a"));
  b.enter(Call::join, kSecond, bytes_of("b"));
  settle({&a, &b});
  EXPECT_TRUE(a.take_result());
  EXPECT_TRUE(b.take_result());
}

TEST_F(JobServerTest, AnotherSizeIsRefused) {
  Rank peer = connect(1, 3);
  settle({&peer});
  EXPECT_THAT(peer.failure(), AllOf(HasSubstr("3 ranks"), HasSubstr("RAILYARD_SIZE")));
}

TEST_F(JobServerTest, ASecondProcessWithTheSameRankIsRefused) {
  Rank a = connect(0);
  settle({&a});
  a.enter(Call::join, 1, bytes_of("pid 42 on node7"));
  settle({&a});
  Rank again = connect(0);
  settle({&a, &again});
  EXPECT_EQ(again.status(), Status::refused);
  EXPECT_THAT(again.failure(),
              AllOf(HasSubstr("rank 0 is here already (pid 42 on node7)"), HasSubstr("RAILYARD_RANK=0")));
  EXPECT_FALSE(a.end.failure());
}

TEST_F(JobServerTest, ADeadRankIsNamedToThoseWhoWait) {
  Rank a = connect(0);
  Rank b = connect(1);
  settle({&a, &b});
  b.enter(Call::join, 1, bytes_of("pid 8 on node9"));
  settle({&b});
  a.enter(Call::join, 60 * kSecond, {});
  settle({&a, &b});
  ASSERT_TRUE(a.take_result() || b.take_result());
  a.enter(Call::barrier, 60 * kSecond, {});
  settle({&a});
  acceptor().closed(b.id, "its connection closed");
  settle({&a});
  EXPECT_EQ(a.status(), Status::peer_lost);
  EXPECT_EQ(a.end.failure()->complaint.peer, 1);
  EXPECT_EQ(a.failure(), "rank 1 (pid 8 on node9) is gone: its connection closed");
}

TEST_F(JobServerTest, AMemberThatBreaksTheProtocolIsLostToTheOthers) {
  Rank a = connect(0);
  Rank b = connect(1);
  settle({&a, &b});
  a.enter(Call::join, 60 * kSecond, {});
  settle({&a});
  acceptor().received(b.id, *rendezvous::make_frame(kEnter, bytes_of("not sealed")).bytes);
  acceptor().received(b.id, std::vector<std::byte>(32));
  settle({&a});
  EXPECT_THAT(a.failure(), AllOf(HasSubstr("rank 1"), HasSubstr("a frame whose seal does not fit")));
  EXPECT_TRUE(acceptor().finished(b.id));
}

TEST_F(JobServerTest, ACallWhileOneIsUnderWayIsAnError) {
  Rank a = connect(0);
  settle({&a});
  a.enter(Call::join, 60 * kSecond, {});
  a.enter(Call::barrier, 60 * kSecond, {});
  settle({&a});
  EXPECT_THAT(a.failure(), HasSubstr("makes no sense at this point"));
}

TEST_F(JobServerTest, TheTimeOfACallIsWatched) {
  Rank a = connect(0);
  settle({&a});
  a.enter(Call::join, 3 * kSecond, {});
  settle({&a});
  EXPECT_EQ(server_.deadline(), clock_.now_ns + 3 * kSecond);
  clock_.now_ns += 3 * kSecond;
  server_.tick();
  settle({&a});
  EXPECT_EQ(a.status(), Status::timeout);
  EXPECT_THAT(a.failure(), HasSubstr("rank 1 of 2 did not arrive within 3 s at here:1"));
}

TEST_F(JobServerTest, TheSameRanksMayMeetAgain) {
  for (int round = 0; round < 10; ++round) {
    Rank a = connect(0);
    Rank b = connect(1);
    settle({&a, &b});
    a.enter(Call::join, 60 * kSecond, {});
    b.enter(Call::join, 60 * kSecond, {});
    settle({&a, &b});
    ASSERT_TRUE(a.take_result()) << a.failure();
    ASSERT_TRUE(b.take_result()) << b.failure();
    a.leave();
    b.leave();
    settle({&a, &b});
    acceptor().closed(a.id, "");
    acceptor().closed(b.id, "");
    EXPECT_EQ(acceptor().connections(), 0U);
  }
}

TEST_F(JobServerTest, ARankMayBeAheadOfTheOthers) {
  Rank a = connect(0);
  Rank b = connect(1);
  settle({&a, &b});
  a.enter(Call::join, 60 * kSecond, {});
  b.enter(Call::join, 60 * kSecond, {});
  settle({&a, &b});
  ASSERT_TRUE(a.take_result());
  ASSERT_TRUE(b.take_result());
  // Rank 0 closes and comes again while rank 1 is still in the first rank group.
  a.leave();
  settle({&a});
  Rank again = connect(0);
  settle({&again});
  ASSERT_TRUE(again.let_in()) << again.failure();
  again.enter(Call::join, 60 * kSecond, {});
  settle({&again});
  b.leave();
  settle({&b});
  Rank b_again = connect(1);
  settle({&b_again});
  b_again.enter(Call::join, 60 * kSecond, {});
  settle({&again, &b_again});
  EXPECT_TRUE(again.take_result()) << again.failure();
}

TEST_F(JobServerTest, ARankThatComesAndGoesWithoutEndIsRefused) {
  Rank b = connect(1);
  settle({&b});
  std::string last;
  for (int i = 0; i < 6; ++i) {
    Rank a = connect(0);
    settle({&a});
    last = a.failure();
    a.leave();
    settle({&a});
    acceptor().closed(a.id, "");
  }
  EXPECT_THAT(last, HasSubstr("come and gone too often"));
}

TEST_F(JobServerTest, TheLauncherCanTellThatAProcessEnded) {
  Rank a = connect(0);
  settle({&a});
  a.enter(Call::join, 60 * kSecond, {});
  settle({&a});
  server_.process_ended(-1, "nonsense");
  server_.process_ended(2, "nonsense");
  server_.process_ended(1, "its process exited with code 3");
  settle({&a});
  EXPECT_THAT(a.failure(), HasSubstr("rank 1 ended before it arrived at here:1: its process exited with code 3"));
}

}  // namespace
}  // namespace railyard::bootstrap
