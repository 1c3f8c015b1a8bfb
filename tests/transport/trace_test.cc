/// What the engine records of its operations, segments, links and peers.
#include <algorithm>
#include <filesystem>

#include "failover_fixture.hpp"
#include "telemetry/timeline.hpp"

namespace railyard::transport {
namespace {

using telemetry::TraceKind;
using telemetry::TraceOperation;

class EngineTraceTest : public FailoverTest {
 protected:
  EngineTraceTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "railyard-trace-XXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) folder_ = pattern;
  }
  ~EngineTraceTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  void open_traced(std::size_t rails) {
    open(rails);
    trace_ = telemetry::Trace::open(folder_, 1U << 20U);
    ASSERT_NE(trace_, nullptr);
    engine_->begin_tracing(trace_, "rank 0");
  }
  telemetry::Timeline look() const {
    auto file = telemetry::read_trace_file(trace_->path());
    EXPECT_TRUE(file) << file.error().text();
    return file ? telemetry::assemble(*file) : telemetry::Timeline();
  }
  /// When the first event of the kind was recorded; -1: there is none.
  static std::int64_t first(const telemetry::Timeline& timeline, TraceKind kind) {
    const auto found = std::ranges::find(timeline.events, kind, &telemetry::TraceRecord::kind);
    return found == timeline.events.end() ? -1 : found->time;
  }

  std::string folder_;
  std::shared_ptr<telemetry::Trace> trace_;
};

TEST_F(EngineTraceTest, AnOperationLastsFromItsSubmissionToItsAcknowledgement) {
  open_traced(1);
  clock_.time += 100;
  const std::int64_t submitted = clock_.time;
  put_small();
  clock_.time += 100;
  rails_[0]->deliver(acknowledgement(1, 20));
  engine_->progress();
  const auto seen = look();
  ASSERT_EQ(seen.operations.size(), 1U);
  const telemetry::Span& put = seen.operations[0];
  EXPECT_EQ(put.begin, submitted);
  EXPECT_EQ(put.end, clock_.time);
  EXPECT_TRUE(put.ended);
  EXPECT_FALSE(put.failed);
  EXPECT_EQ(put.peer, flow_->peer);
  EXPECT_EQ(put.sequence, 0U);
  EXPECT_EQ(put.number, 1U);
}

TEST_F(EngineTraceTest, SegmentsAreOnTheirRails) {
  open_traced(2);
  put_four_chunks();
  Ticket ticket;
  ASSERT_TRUE(engine_->submissions().try_unordered(*flow_, bulk(1000), Operation::Kind::read, ticket));
  const auto seen = look();
  ASSERT_EQ(seen.segments.size(), 5U);
  EXPECT_EQ(std::ranges::count(seen.segments, 0, &telemetry::Span::rail), 2 + (rails_[0]->reads.empty() ? 0 : 1));
  EXPECT_EQ(seen.segments[0].bytes, 32U * 1024);
  EXPECT_TRUE(std::ranges::none_of(seen.segments, &telemetry::Span::ended));
  ASSERT_EQ(seen.operations.size(), 2U);
  EXPECT_EQ(seen.operations[0].what, static_cast<std::uint8_t>(TraceOperation::put));
  EXPECT_EQ(seen.operations[0].bytes, 4U * 32 * 1024);
  EXPECT_EQ(seen.operations[1].what, static_cast<std::uint8_t>(TraceOperation::get));
  EXPECT_FALSE(seen.operations[1].ended);
}

TEST_F(EngineTraceTest, ACutShowsDownFenceReplayAndUp) {
  open_traced(2);
  put_four_chunks();
  rails_[0]->lose(rails_[0]->writes[0].to.remote);
  pass(2);
  fenced(0, 0, 0, 0, 1);
  rails_[1]->deliver(acknowledgement(4, 20));
  put_small();  // so that the link is wanted
  rails_[0]->sends.clear();
  for (int answers = 0; answers < 3; ++answers) {
    for (int i = 0; i < 200 && rails_[0]->notices(wire::RecordKind::ping).empty(); ++i) pass(1);
    answer_pings(0, 1);
    rails_[0]->sends.clear();
  }
  pass(3);
  const auto seen = look();
  const std::int64_t down = first(seen, TraceKind::link_down);
  const std::int64_t fenced_at = first(seen, TraceKind::fenced);
  const std::int64_t replayed = first(seen, TraceKind::replay);
  const std::int64_t up = first(seen, TraceKind::link_up);
  ASSERT_GE(down, 0);
  EXPECT_GE(fenced_at, down);
  EXPECT_GE(replayed, fenced_at);
  EXPECT_GT(up, replayed);
  const auto statistics = engine_->statistics();
  EXPECT_EQ(
      static_cast<std::uint64_t>(std::ranges::count(seen.events, TraceKind::replay, &telemetry::TraceRecord::kind)),
      statistics.segments_replayed);
  EXPECT_EQ(
      static_cast<std::uint64_t>(std::ranges::count(seen.events, TraceKind::link_down, &telemetry::TraceRecord::kind)),
      statistics.links_lost);
  for (const telemetry::TraceRecord& event : seen.events) {
    const bool about_link = event.kind == TraceKind::link_down || event.kind == TraceKind::link_up;
    if (about_link || event.kind == TraceKind::replay) {
      EXPECT_EQ(event.rail, about_link ? 0 : 1);
    }
  }
  // The two chunks of the dead link are there twice: on it, and on the other.
  EXPECT_GE(std::ranges::count(seen.segments, 1, &telemetry::Span::rail), 4);
}

TEST_F(EngineTraceTest, AFenceForAPeerAndItsLossAreEvents) {
  open_traced(2);
  put_small();
  rails_[1]->deliver(notice(wire::Fence{0, {0, 0, 0}}.header()));
  pass(3);
  EXPECT_GE(first(look(), TraceKind::fence), 0);
  engine_->begin_shut_out(*flow_, "the test says so");
  pass(3);
  const auto seen = look();
  EXPECT_GE(first(seen, TraceKind::peer_lost), 0);
  ASSERT_EQ(seen.operations.size(), 1U);
  EXPECT_TRUE(seen.operations[0].ended && seen.operations[0].failed);
}

}  // namespace
}  // namespace railyard::transport
