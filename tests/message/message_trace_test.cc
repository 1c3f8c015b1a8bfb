/// What channels and stalled waits leave in a trace, and how long a channel's messages take in telemetry.
#include <gtest/gtest.h>

#include <filesystem>

#include "contexts.hpp"
#include "telemetry/files.hpp"
#include "telemetry/reader.hpp"
#include "telemetry/timeline.hpp"

namespace railyard {
namespace {

class MessageTrace : public ::testing::Test {
 protected:
  MessageTrace() {
    std::string pattern = (std::filesystem::temp_directory_path() / "railyard-message-trace-XXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) folder_ = pattern;
    settings_.trace = folder_ + "/";
    settings_.telemetry = folder_;
    settings_.stall_ms = 100;
  }
  ~MessageTrace() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  telemetry::Timeline recorded() const {
    for (const auto& found : telemetry::list(folder_, telemetry::kTracePrefix)) {
      auto file = telemetry::read_trace_file(found.path);
      EXPECT_TRUE(file) << file.error().text();
      if (file) return telemetry::assemble(*file);
    }
    ADD_FAILURE() << "no trace";
    return {};
  }
  static std::vector<telemetry::Span> of(const telemetry::Timeline& from, telemetry::TraceOperation what) {
    std::vector<telemetry::Span> chosen;
    for (const telemetry::Span& span : from.operations)
      if (span.what == static_cast<std::uint8_t>(what)) chosen.push_back(span);
    return chosen;
  }

  std::string folder_;
  Settings settings_ = over_network(1);
};

TEST_F(MessageTrace, SendsReceivesAndAStallAreThere) {
  constexpr int kMessages = 70;
  const std::vector<std::size_t> sizes{64, 1 << 20U};
  const auto from = open_context(settings_);
  const auto to = open_context(settings_);
  ChannelPair pair = connect(*from, *to);
  std::vector<std::byte> source(1 << 20U);
  std::vector<std::byte> memory(1 << 20U);
  for (int i = 0; i < kMessages; ++i) {
    const std::span<std::byte> message = std::span(source).first(sizes[static_cast<std::size_t>(i) % 2]);
    const std::array slots{ReceiveSlot{std::span(memory).first(message.size()), 0}};
    const auto receive = pair.in->receive(slots);
    ASSERT_TRUE(receive && *receive);
    const auto send = pair.out->send(message, 0);
    ASSERT_TRUE(send && *send);
    ASSERT_TRUE(pair.in->wait(*receive));
    ASSERT_TRUE(pair.out->wait(*send));
  }
  const std::array slots{ReceiveSlot{memory, 0}};
  const auto lonely = pair.in->receive(slots);
  ASSERT_TRUE(lonely && *lonely);
  EXPECT_EQ(pair.in->wait(*lonely, {}, Deadline::in(std::chrono::milliseconds(600))).status(), Status::timeout);

  const telemetry::Timeline seen = recorded();
  const auto sends = of(seen, telemetry::TraceOperation::send);
  const auto receives = of(seen, telemetry::TraceOperation::receive);
  ASSERT_EQ(sends.size(), static_cast<std::size_t>(kMessages));
  ASSERT_EQ(receives.size(), static_cast<std::size_t>(kMessages) + 1);
  for (std::size_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(sends[i].bytes, sizes[i % 2]) << i;
    EXPECT_EQ(receives[i].bytes, sizes[i % 2]) << i;
    EXPECT_TRUE(sends[i].ended && receives[i].ended && !sends[i].failed && !receives[i].failed) << i;
    EXPECT_GE(sends[i].end, sends[i].begin);
  }
  EXPECT_FALSE(receives.back().ended) << "nothing came for it";
  EXPECT_FALSE(seen.segments.empty());
  const auto stalls = std::ranges::count(seen.events, telemetry::TraceKind::stall, &telemetry::TraceRecord::kind);
  EXPECT_EQ(stalls, 1) << "once, however long the wait takes";

  // One in 64 of what a channel submits is timed, for its flow as well as for itself.
  const auto timed = [&] {
    for (const auto& found : telemetry::list(folder_)) {
      const auto published = telemetry::read_file(found.path);
      if (!published) continue;
      std::uint64_t channels = 0;
      std::uint64_t flows = 0;
      for (const auto* record : published->of("channel")) channels += published->distribution(*record, "latency").count;
      for (const auto* record : published->of("flow")) flows += published->distribution(*record, "latency").count;
      if (channels > 0 && flows >= channels) return true;
    }
    return false;
  };
  EXPECT_TRUE(eventually(timed));
}

}  // namespace
}  // namespace railyard
