#include "bootstrap/rank_group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/bytes.hpp"
#include "helpers.hpp"

namespace railyard::bootstrap {
namespace {

using namespace rendezvous;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kSecond = 1'000'000'000;

class RankGroupTest : public ::testing::Test {
 protected:
  explicit RankGroupTest(std::int32_t size = 4) : job_(make_job(size)), group_(job_) {}

  static Job make_job(std::int32_t size) {
    Job job;
    job.size = size;
    job.where = "10.0.0.1:7777";
    job.ended.resize(static_cast<std::size_t>(size));
    job.refused.resize(static_cast<std::size_t>(size));
    return job;
  }
  RankGroup::Outcome join(std::int32_t rank, std::int64_t now = 0, std::int64_t timeout = 60 * kSecond) {
    group_.take_seat(rank, "1.2.3.4:5");
    return enter(rank, Call::join, 0, fmt::format("pid {} on node", 100 + rank), now, timeout);
  }
  RankGroup::Outcome enter(std::int32_t rank, Call call, std::uint64_t sequence, const std::string& content = "",
                           std::int64_t now = 0, std::int64_t timeout = 60 * kSecond) {
    return group_.enter(rank, Enter{call, sequence, static_cast<std::uint64_t>(timeout), bytes_of(content)}, now);
  }
  void end_process(std::int32_t rank, const std::string& how) {
    job_.ended[static_cast<std::size_t>(rank)] = how;
    job_.ended_in_order.push_back(rank);
  }
  void join_all() {
    for (std::int32_t rank = 0; rank < job_.size; ++rank) join(rank);
  }

  static std::optional<Complaint> failure_of(const RankGroup::Outcome& outcome) {
    if (!outcome.frame.bytes) return std::nullopt;
    FrameReader reader(kMostFrameToClient);
    reader.feed(*outcome.frame.bytes);
    Frame frame;
    if (reader.next(frame) != FrameReader::State::frame || frame.type != FrameType::failure) return std::nullopt;
    return parse_complaint(frame.payload, kMostText);
  }
  static std::string text_of_failure(const RankGroup::Outcome& outcome) {
    const auto failure = failure_of(outcome);
    return failure ? failure->text : "no failure";
  }
  std::optional<GatherResult> result_of(const RankGroup::Outcome& outcome) const {
    if (!outcome.frame.bytes) return std::nullopt;
    FrameReader reader(kMostFrameToClient);
    reader.feed(*outcome.frame.bytes);
    Frame frame;
    if (reader.next(frame) != FrameReader::State::frame || frame.type != kResult) return std::nullopt;
    return parse_result(frame.payload, job_.size);
  }

  Job job_;
  RankGroup group_;
};

class GroupOfEight : public RankGroupTest {
 protected:
  GroupOfEight() : RankGroupTest(8) {}
};

TEST_F(RankGroupTest, AllgatherGivesEverybodyEverything) {
  EXPECT_THAT(join(0).recipients, IsEmpty());
  EXPECT_THAT(join(1).recipients, IsEmpty());
  EXPECT_THAT(join(2).recipients, IsEmpty());
  EXPECT_THAT(join(3).recipients, ElementsAre(0, 1, 2, 3));
  enter(2, Call::allgather, 1, "c");
  enter(0, Call::allgather, 1, "a");
  enter(3, Call::allgather, 1, "");
  const auto outcome = enter(1, Call::allgather, 1, "b");
  EXPECT_THAT(outcome.recipients, ElementsAre(0, 1, 2, 3));
  const auto result = result_of(outcome);
  ASSERT_TRUE(result);
  EXPECT_THAT(result->contributions, ElementsAre(bytes_of("a"), bytes_of("b"), bytes_of("c"), bytes_of("")));
  EXPECT_EQ(group_.deadline(), RankGroup::kNever);
}

TEST_F(GroupOfEight, TheTimeoutNamesWhoDidNotArrive) {
  for (const std::int32_t rank : {0, 1, 2, 4, 5, 6}) join(rank);
  EXPECT_EQ(group_.deadline(), 60 * kSecond);
  EXPECT_THAT(group_.tick(60 * kSecond - 1).recipients, IsEmpty());
  const auto outcome = group_.tick(60 * kSecond);
  EXPECT_THAT(outcome.recipients, ElementsAre(0, 1, 2, 4, 5, 6));
  EXPECT_EQ(failure_of(outcome)->status, Status::timeout);
  EXPECT_EQ(failure_of(outcome)->peer, 3);
  EXPECT_EQ(text_of_failure(outcome),
            "rank 3 and rank 7 of 8 did not arrive within 60 s at 10.0.0.1:7777; check that they were started and can "
            "reach that address");
}

TEST_F(RankGroupTest, TheTimeoutTellsOfAWrongKey) {
  join(0);
  join(1);
  join(2);
  job_.refused[3] = true;
  EXPECT_THAT(text_of_failure(group_.tick(60 * kSecond)),
              AllOf(HasSubstr("rank 3 of 4 did not arrive"), HasSubstr("check that it was started"),
                    HasSubstr("called itself rank 3 was turned away: its RAILYARD_JOB_KEY differs")));
}

TEST_F(RankGroupTest, TheShortestDeadlineCounts) {
  join(0, 0, 60 * kSecond);
  join(1, 5 * kSecond, 2 * kSecond);
  EXPECT_EQ(group_.deadline(), 7 * kSecond);
  EXPECT_THAT(text_of_failure(group_.tick(7 * kSecond)), HasSubstr("within 2 s"));
}

TEST_F(RankGroupTest, NoTimeoutIsNever) {
  group_.take_seat(0, "");
  group_.enter(0, Enter{Call::join, 0, Enter::kNoTimeout, {}}, 5);
  EXPECT_EQ(group_.deadline(), RankGroup::kNever);
}

TEST_F(RankGroupTest, ALateCallIsNamedWithTheRankThatMissesIt) {
  join_all();
  enter(0, Call::barrier, 1);
  enter(1, Call::barrier, 1);
  enter(3, Call::barrier, 1);
  EXPECT_THAT(text_of_failure(group_.tick(60 * kSecond)),
              AllOf(HasSubstr("rank 2 of 4 did not enter barrier 1 within 60 s"), HasSubstr("pid 102 on node")));
}

TEST_F(RankGroupTest, DifferentCallsAreAnErrorForAll) {
  join_all();
  enter(0, Call::barrier, 1);
  const auto outcome = enter(2, Call::allgather, 1);
  EXPECT_THAT(outcome.recipients, ElementsAre(0, 2));
  EXPECT_EQ(failure_of(outcome)->status, Status::invalid);
  EXPECT_THAT(text_of_failure(outcome),
              AllOf(HasSubstr("rank 2 (pid 102 on node) made allgather"),
                    HasSubstr("rank 0 (pid 100 on node) made barrier"), HasSubstr("same order")));
}

TEST_F(RankGroupTest, ACallOutOfSequenceIsAnErrorForAll) {
  join_all();
  enter(0, Call::barrier, 1);
  EXPECT_THAT(text_of_failure(enter(1, Call::barrier, 2)), HasSubstr("as its call number 2"));
}

TEST_F(RankGroupTest, AfterAFailureEverybodyWhoCallsIsToldTheSame) {
  join_all();
  enter(0, Call::barrier, 1);
  const std::string text = text_of_failure(group_.lose(2, "its connection closed"));
  EXPECT_EQ(text, "rank 2 (pid 102 on node) is gone: its connection closed");
  const auto outcome = enter(1, Call::barrier, 1);
  EXPECT_THAT(outcome.recipients, ElementsAre(1));
  EXPECT_EQ(text_of_failure(outcome), text);
  EXPECT_EQ(failure_of(outcome)->peer, 2);
}

TEST_F(RankGroupTest, OneThatIsLostBetweenCallsIsReportedAtTheNext) {
  join_all();
  EXPECT_THAT(group_.lose(3, "its connection closed").recipients, IsEmpty());
  EXPECT_EQ(failure_of(enter(0, Call::barrier, 1))->status, Status::peer_lost);
}

TEST_F(RankGroupTest, OneThatLeavesWhileOthersWaitIsNamed) {
  join_all();
  enter(0, Call::barrier, 1);
  const auto outcome = group_.leave(1);
  EXPECT_THAT(outcome.recipients, ElementsAre(0));
  EXPECT_THAT(text_of_failure(outcome), HasSubstr("rank 1 (pid 101 on node) closed its bootstrap while rank 0 waited"));
}

TEST_F(RankGroupTest, ACallAfterSomebodyLeftIsAnError) {
  join_all();
  EXPECT_THAT(group_.leave(1).recipients, IsEmpty());
  EXPECT_THAT(text_of_failure(enter(0, Call::barrier, 1)),
              HasSubstr("rank 1 (pid 101 on node) has closed its bootstrap"));
}

TEST_F(RankGroupTest, AProcessThatEndsBeforeItArrivesIsReportedAtOnce) {
  join(0);
  end_process(2, "its process exited with code 7");
  const auto outcome = group_.process_ended(2);
  EXPECT_THAT(outcome.recipients, ElementsAre(0));
  EXPECT_EQ(text_of_failure(outcome),
            "rank 2 ended before it arrived at 10.0.0.1:7777: its process exited with code 7");
}

TEST_F(RankGroupTest, AProcessThatEndedBeforeAnybodyArrivedIsReportedToTheFirst) {
  end_process(2, "its process exited with code 0");
  EXPECT_THAT(group_.process_ended(2).recipients, IsEmpty());
  EXPECT_THAT(join(0).recipients, ElementsAre(0));
}

TEST_F(RankGroupTest, OfSeveralProcessesThatEndedTheFirstIsNamed) {
  end_process(2, "its process exited with code 7");
  end_process(0, "its process exited with code 1");
  EXPECT_THAT(text_of_failure(join(1)), HasSubstr("rank 2 ended before it arrived"));
}

TEST_F(RankGroupTest, AProcessThatEndsAfterItLeftIsNoFailure) {
  join_all();
  enter(0, Call::barrier, 1);
  enter(1, Call::barrier, 1);
  enter(2, Call::barrier, 1);
  enter(3, Call::barrier, 1);
  group_.leave(3);
  end_process(3, "its process exited with code 0");
  EXPECT_THAT(group_.process_ended(3).recipients, IsEmpty());
}

TEST_F(RankGroupTest, TooMuchTogetherIsAnErrorForAll) {
  join_all();
  // 4 ranks cannot reach the total with contributions within the limit of one: the rank group trusts only what it
  // counts.
  const std::string most(kMostGathered / 2, 'x');
  enter(0, Call::allgather, 1, most);
  enter(1, Call::allgather, 1, most);
  const auto outcome = enter(2, Call::allgather, 1, "x");
  EXPECT_THAT(outcome.recipients, ElementsAre(0, 1, 2));
  EXPECT_EQ(failure_of(outcome)->status, Status::out_of_range);
}

TEST_F(RankGroupTest, IsOverWhenAllHaveComeAndGone) {
  EXPECT_FALSE(group_.over());
  join_all();
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_FALSE(group_.over());
    group_.leave(rank);
  }
  EXPECT_TRUE(group_.over());
}

TEST_F(RankGroupTest, AFailedOneIsOverWhenThoseWhoCameHaveGone) {
  join(0);
  join(1);
  group_.tick(60 * kSecond);
  group_.leave(0);
  EXPECT_FALSE(group_.over());
  group_.lose(1, "its connection closed");
  EXPECT_TRUE(group_.over());
}

}  // namespace
}  // namespace railyard::bootstrap
