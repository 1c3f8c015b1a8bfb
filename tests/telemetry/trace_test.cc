/// The trace file: what is recorded is read, live and after a kill; a full ring says what it has lost; and what a file
/// of any content says is put together without harm.
#include "telemetry/trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/log.hpp"
#include "telemetry/files.hpp"
#include "telemetry/timeline.hpp"
#include "telemetry/trace_reader.hpp"

namespace railyard::telemetry {
namespace {

using ::testing::HasSubstr;

class TraceTest : public ::testing::Test {
 protected:
  TraceTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "railyard-trace-XXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) folder_ = pattern;
  }
  ~TraceTest() override {
    set_log_sink({});
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::vector<Found> files() const { return list(folder_, kTracePrefix); }
  static TraceFile must_read(const std::string& path) {
    auto file = read_trace_file(path);
    EXPECT_TRUE(file) << file.error().text();
    return file ? std::move(*file) : TraceFile();
  }

  std::string folder_;
};

TraceRecord record(TraceKind kind, std::int64_t time, std::uint64_t id, std::uint64_t bytes = 0) {
  TraceRecord made;
  made.kind = kind;
  made.time = time;
  made.id = id;
  made.bytes = bytes;
  made.peer = 1;
  return made;
}

TEST_F(TraceTest, WhatIsRecordedIsRead) {
  const auto trace = Trace::open(folder_, 1U << 16U);
  ASSERT_NE(trace, nullptr);
  trace->set_rank(1, 2);
  const std::uint16_t context = trace->add_context("rank 1");
  trace->name_rail(context, 3, "tcp eth3");
  trace->record(record(TraceKind::submitted, 10, 1, 4096));
  trace->record(record(TraceKind::completed, 30, 1));
  const TraceFile seen = must_read(trace->path());
  EXPECT_EQ(seen.pid, static_cast<std::uint32_t>(::getpid()));
  EXPECT_EQ(seen.rank, 1);
  EXPECT_EQ(seen.size, 2);
  EXPECT_EQ(seen.contexts.at(context), "rank 1");
  EXPECT_EQ(seen.rails.at({context, 3}), "tcp eth3");
  ASSERT_EQ(seen.records.size(), 2U);
  EXPECT_EQ(seen.records[0].bytes, 4096U);
  EXPECT_EQ(seen.records[1].time, 30);
  EXPECT_EQ(seen.recorded, 2U);
  EXPECT_EQ(seen.overwritten + seen.missing, 0U);
}

TEST_F(TraceTest, AFullRingKeepsTheNewestAndSaysWhatItLost) {
  const auto trace = Trace::open(folder_, 64 * sizeof(TraceEntry));
  for (std::uint64_t i = 1; i <= 1000; ++i) trace->record(record(TraceKind::submitted, 1, i));
  const TraceFile seen = must_read(trace->path());
  EXPECT_EQ(seen.recorded, 1000U);
  EXPECT_EQ(seen.overwritten, 936U);
  ASSERT_EQ(seen.records.size(), 64U);
  EXPECT_EQ(seen.records.front().id, 937U);
  EXPECT_EQ(seen.records.back().id, 1000U);
}

/// Bytes of a file, to be changed as a writer would while somebody copies them.
std::vector<std::byte> bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> read{std::istreambuf_iterator<char>(in), {}};
  const auto bytes = std::as_bytes(std::span(read));
  return {bytes.begin(), bytes.end()};
}

TEST_F(TraceTest, ARecordThatIsNotWholeIsLeftOutAndCounted) {
  const auto trace = Trace::open(folder_, 64 * sizeof(TraceEntry));
  for (std::uint64_t i = 1; i <= 10; ++i) trace->record(record(TraceKind::submitted, 1, i));
  std::vector<std::byte> bytes = bytes_of(trace->path());
  const std::size_t third = bytes.size() - 62 * sizeof(TraceEntry);
  const std::uint64_t unfinished = kBeingWritten;
  std::memcpy(bytes.data() + third, &unfinished, sizeof unfinished);
  const auto seen = read_trace(bytes, 10);
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->missing, 1U);
  ASSERT_EQ(seen->records.size(), 9U);
  EXPECT_EQ(seen->records[2].id, 4U);
}

TEST_F(TraceTest, WhatMayHaveBeenOverwrittenWhileItWasCopiedIsNotTaken) {
  const auto trace = Trace::open(folder_, 64 * sizeof(TraceEntry));
  for (std::uint64_t i = 1; i <= 64; ++i) trace->record(record(TraceKind::submitted, 1, i));
  const auto seen = read_trace(bytes_of(trace->path()), 64 + 5);
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->overwritten, 5U);
  ASSERT_EQ(seen->records.size(), 59U);
  EXPECT_EQ(seen->records.front().id, 6U);
}

TEST_F(TraceTest, AKilledProcessLeavesItsTrace) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto trace = Trace::open(folder_, 1U << 16U);
    for (std::uint64_t i = 1; i <= 100; ++i) trace->record(record(TraceKind::submitted, 1, i));
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(files().size(), 1U);
  EXPECT_FALSE(files()[0].alive);
  EXPECT_EQ(must_read(files()[0].path).records.size(), 100U);
}

TEST_F(TraceTest, TheFileStaysWhenItsProcessEndsAndAChildWritesNothingToIt) {
  std::string path;
  {
    const auto trace = Trace::open(folder_, 1U << 16U);
    path = trace->path();
    trace->record(record(TraceKind::submitted, 1, 1));
    const pid_t child = ::fork();
    if (child == 0) {
      trace->record(record(TraceKind::submitted, 1, 2));
      ::_exit(trace->path().empty() ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(must_read(path).records.size(), 1U);
}

TEST_F(TraceTest, OffIsOffAndADirectoryThatIsNoneIsNoReasonToFail) {
  Settings settings;
  EXPECT_EQ(Trace::of_process(settings), nullptr);
  std::string said;
  set_log_sink([&](LogLevel, std::string_view line) { said += line; });
  settings.trace = "/nowhere/at/all";
  EXPECT_EQ(Trace::of_process(settings), nullptr);
  EXPECT_THAT(said, HasSubstr("nothing is traced: /nowhere/at/all"));
  settings.trace = folder_;
  settings.trace_bytes = 4096;
  const auto first = Trace::of_process(settings);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(Trace::of_process(settings), first) << "one for a process";
  EXPECT_EQ(files().size(), 1U);
}

TEST_F(TraceTest, ThreadsRecordWhileSomebodyReads) {
  const auto trace = Trace::open(folder_, 256 * sizeof(TraceEntry));
  std::atomic<int> left{3};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      // Every field of a record is the same number.
      for (std::uint64_t i = 1; i < 20000; ++i) {
        TraceRecord made = record(TraceKind::submitted, static_cast<std::int64_t>(i), i, i);
        made.more = made.submitter = i;
        trace->record(made);
      }
      --left;
    });
  }
  while (left > 0) {
    const TraceFile seen = must_read(trace->path());
    EXPECT_EQ(seen.records.size() + seen.overwritten + seen.missing, seen.recorded);
    for (const TraceRecord& each : seen.records) {
      ASSERT_EQ(each.id, each.bytes);
      ASSERT_EQ(each.id, each.more);
      ASSERT_EQ(each.id, static_cast<std::uint64_t>(each.time));
    }
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(TraceTest, WhatIsNoTraceIsSaidToBeNone) {
  std::string path;
  {
    const auto trace = Trace::open(folder_, 1U << 16U);
    trace->record(record(TraceKind::submitted, 1, 1));
    path = trace->path();
  }
  EXPECT_EQ(read_trace_file(folder_ + "/none").status(), Status::not_found);
  EXPECT_EQ(read_trace_file(folder_).status(), Status::invalid);
  const auto after = [&](std::size_t at, std::vector<char> bytes) {
    const std::string copy = folder_ + "/changed";
    std::filesystem::copy_file(path, copy, std::filesystem::copy_options::overwrite_existing);
    {
      std::fstream file(copy, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(at));
      file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
    const auto read = read_trace_file(copy);
    return read ? std::string("read") : read.error().message();
  };
  EXPECT_EQ(after(100, {}), "read");
  EXPECT_THAT(after(0, {'x'}), HasSubstr("does not begin as one does"));
  EXPECT_THAT(after(offsetof(TraceHeader, version), {7}), HasSubstr("version 7"));
  EXPECT_THAT(after(offsetof(TraceHeader, capacity) + 6, {1}), HasSubstr("entries are beyond its end"));
  EXPECT_THAT(after(offsetof(TraceHeader, most_names) + 3, {1}), HasSubstr("names are beyond its end"));
  std::filesystem::resize_file(path, 100);
  EXPECT_THAT(read_trace_file(path).error().message(), HasSubstr("100 bytes are too few"));
}

/// A file with these records.
TraceFile file_of(std::vector<TraceRecord> records) {
  TraceFile file;
  file.records = std::move(records);
  return file;
}

TEST(Timeline, AnAcknowledgementEndsAllOperationsUpToIt) {
  auto posted = record(TraceKind::posted, 12, 77, 200);
  posted.more = 2;
  posted.sequence = 9;
  const auto seen =
      assemble(file_of({record(TraceKind::submitted, 10, 1, 100), record(TraceKind::submitted, 11, 2, 100), posted,
                        record(TraceKind::submitted, 13, 3, 100), record(TraceKind::completed, 20, 2)}));
  ASSERT_EQ(seen.operations.size(), 3U);
  EXPECT_EQ(seen.operations[0].end, 20);
  EXPECT_EQ(seen.operations[1].end, 20);
  EXPECT_EQ(seen.operations[1].sequence, 9U) << "of the segment that carried it";
  EXPECT_TRUE(seen.operations[1].ended);
  EXPECT_FALSE(seen.operations[2].ended);
  EXPECT_FALSE(seen.operations[2].sequence);
  EXPECT_EQ(seen.operations[2].end, 20) << "the last moment that is known";
  EXPECT_EQ(seen.headless, 0U);
}

TEST(Timeline, WhatFailsWithItsFlowEndsWithIt) {
  const auto seen = assemble(file_of({record(TraceKind::submitted, 10, 1), record(TraceKind::slot_taken, 11, 5),
                                      record(TraceKind::flow_ended, 30, 0)}));
  ASSERT_EQ(seen.operations.size(), 2U);
  for (const Span& span : seen.operations) {
    EXPECT_TRUE(span.ended && span.failed);
    EXPECT_EQ(span.end, 30);
  }
}

TEST(Timeline, EndsWithoutABeginningAreCounted) {
  const auto seen = assemble(file_of({record(TraceKind::completed, 20, 2), record(TraceKind::slot_ended, 20, 2),
                                      record(TraceKind::left, 21, 4), record(TraceKind::message_ended, 21, 4)}));
  EXPECT_EQ(seen.headless, 4U);
  EXPECT_TRUE(seen.operations.empty());
  EXPECT_TRUE(seen.segments.empty());
}

}  // namespace
}  // namespace railyard::telemetry
