/// The telemetry file: what is written is read, live, after a crash, and never by a child's doing; it goes with its
/// owner, and without it nothing fails.
#include "telemetry/store.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "telemetry/files.hpp"
#include "telemetry/reader.hpp"

namespace railyard::telemetry {
namespace {

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "railyard-telemetry-XXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) folder_ = pattern;
  }
  ~StoreTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path());
    return names;
  }
  /// What a process of its own leaves that opens a store with one rail, and ends as `end` does.
  template <typename End>
  int in_child(End&& end) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto store = Store::open(folder_);
      auto rail = store->add(Group::rail, {{"rail", "3"}});
      rail.set(rail_field::bytes_sent, std::uint64_t{4711});
      store->published();
      end();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  }

  std::string folder_;
};

TEST_F(StoreTest, WhatIsWrittenIsRead) {
  const auto store = Store::open(folder_);
  store->set_rank(2, 5);
  auto context = store->add(Group::context, {{"context", "world 0"}});
  auto rail = store->add(Group::rail, {{"context", "world 0"}, {"rail", "1"}, {"device", "tcp eth1\t=\n10.0.0.1"}});
  rail.set(rail_field::bytes_sent, std::uint64_t{1} << 40U);
  rail.set(rail_field::rate, 2.5e9);
  count_in(context.histogram(context_field::get_latency, context_field::put_latency), 5000);
  const auto seen = read_file(store->path());
  ASSERT_TRUE(seen) << seen.error().text();
  EXPECT_EQ(seen->rank, 2);
  EXPECT_EQ(seen->size, 5);
  EXPECT_EQ(seen->pid, static_cast<std::uint32_t>(::getpid()));
  EXPECT_EQ(seen->started, start_time(::getpid()));
  ASSERT_EQ(seen->of("rail").size(), 1U);
  const RecordInfo& there = *seen->of("rail").front();
  EXPECT_EQ(there.label("rail"), "1");
  EXPECT_EQ(there.label("device"), "tcp eth1 = 10.0.0.1");
  EXPECT_EQ(seen->value(there, "bytes_sent"), std::uint64_t{1} << 40U);
  EXPECT_EQ(seen->real(there, "rate"), 2.5e9);
  EXPECT_EQ(seen->value(there, "no such field"), 0U);
  const RecordInfo& above = *seen->of("context").front();
  EXPECT_EQ(seen->distribution(above, "get_latency").count, 1U);
  EXPECT_EQ(seen->distribution(above, "get_latency").sum, 5000U);
  EXPECT_EQ(seen->distribution(above, "put_latency").count, 0U);
}

TEST_F(StoreTest, EveryFieldOfEveryGroupHasAPlaceOfItsOwn) {
  const auto store = Store::open(folder_);
  for (const GroupSchema& group : schema()) {
    auto record = store->add(group.group, {{"context", "x"}});
    ASSERT_TRUE(record);
    for (std::uint32_t i = 0; i < group.fields.size(); ++i)
      if (group.fields[i].kind != Kind::histogram) record.set(i, std::uint64_t{i} + 100);
    const auto seen = read(store->copy());
    ASSERT_TRUE(seen);
    const RecordInfo& there = *seen->of(group.name).front();
    for (std::uint32_t i = 0; i < group.fields.size(); ++i) {
      ASSERT_NE(seen->field(there, group.fields[i].name), nullptr) << group.fields[i].name;
      const bool plain = group.fields[i].kind != Kind::histogram;
      EXPECT_EQ(seen->value(there, group.fields[i].name), plain ? i + 100 : 0) << group.fields[i].name;
      EXPECT_EQ(seen->field(there, group.fields[i].name)->help, group.fields[i].help) << "the help is cut off";
    }
  }
}

TEST_F(StoreTest, TheFileIsPrivateAndGoesWithItsOwner) {
  {
    const auto store = Store::open(folder_);
    ASSERT_EQ(files().size(), 1U);
    EXPECT_EQ(std::filesystem::status(files()[0]).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    EXPECT_TRUE(list(folder_).at(0).alive);
  }
  EXPECT_TRUE(files().empty());
}

TEST_F(StoreTest, ExitLeavesNothingThoughContextsAreOpen) {
  Settings settings;
  settings.telemetry = folder_;
  const pid_t child = ::fork();
  if (child == 0) {
    static auto store = Store::of_process(settings);
    static auto never_closed = store->add(Group::rail, {{"rail", "0"}});
    static const auto* const kept = new std::shared_ptr<Store>(store);  // never given back
    if (kept == nullptr) ::_exit(2);
    if (files().size() != 1) ::_exit(1);
    ::exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(files().empty());
}

TEST_F(StoreTest, AKilledProcessCanStillBeRead) {
  const int status = in_child([] { ::raise(SIGKILL); });
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto found = list(folder_);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_FALSE(found[0].alive);
  const auto seen = read_file(found[0].path);
  ASSERT_TRUE(seen) << seen.error().text();
  EXPECT_EQ(seen->value(*seen->of("rail").at(0), "bytes_sent"), 4711U);
}

TEST_F(StoreTest, FilesOfTheDeadAreKeptForAWhileAndNotForEver) {
  for (int i = 0; i < 20; ++i) in_child([] { ::raise(SIGKILL); });
  EXPECT_GE(files().size(), 16U);
  const auto living = Store::open(folder_);
  EXPECT_EQ(files().size(), 17U) << "the last sixteen, and its own";
  for (const auto& found : list(folder_)) {
    if (!found.alive)
      std::filesystem::last_write_time(found.path,
                                       std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  }
  EXPECT_EQ(clean(folder_), 16U);
  ASSERT_EQ(files().size(), 1U);
  EXPECT_EQ(files()[0], living->path()) << "what lives is never cleaned";
}

TEST_F(StoreTest, AChildWritesNothingOfItsParents) {
  const auto store = Store::open(folder_);
  auto rail = store->add(Group::rail, {{"rail", "0"}});
  rail.set(rail_field::bytes_sent, std::uint64_t{1});
  const pid_t child = ::fork();
  if (child == 0) {
    rail.set(rail_field::bytes_sent, std::uint64_t{2});
    rail = Record();
    ::exit(0);  // its end takes nothing away either
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const auto seen = read_file(store->path());
  ASSERT_TRUE(seen);
  ASSERT_EQ(seen->of("rail").size(), 1U);
  EXPECT_EQ(seen->value(*seen->of("rail")[0], "bytes_sent"), 1U);
}

TEST_F(StoreTest, AChildThatOutlivesItsParentDoesNotMakeItSeemAlive) {
  int lives[2];
  ASSERT_EQ(::pipe(lives), 0);
  in_child([&] {
    if (::fork() == 0) {
      ::close(lives[1]);
      char end = 0;
      (void)!::read(lives[0], &end, 1);  // until the test is done
      ::_exit(0);
    }
    ::raise(SIGKILL);
  });
  ASSERT_EQ(list(folder_).size(), 1U);
  EXPECT_FALSE(list(folder_)[0].alive);
  ::close(lives[0]);
  ::close(lives[1]);
}

TEST_F(StoreTest, WithoutAFileEverythingGoesOn) {
  const auto store = Store::open("/nowhere/at/all");
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->path(), "");
  auto rail = store->add(Group::rail, {{"rail", "0"}});
  rail.set(rail_field::bytes_sent, std::uint64_t{9});
  const auto seen = read(store->copy());
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->value(*seen->of("rail")[0], "bytes_sent"), 9U);
}

/// Longer files than a process may write are a signal, which would end the user's program.
TEST_F(StoreTest, ALimitOnTheLengthOfFilesIsNoReasonToDie) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{1000, 1000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    const auto store = Store::open(folder_);
    auto rail = store->add(Group::rail, {{"rail", "3"}});
    rail.set(rail_field::bytes_sent, std::uint64_t{4711});
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(files().empty());
}

TEST_F(StoreTest, OffIsOff) {
  Settings settings;
  settings.telemetry = "off";
  EXPECT_EQ(Store::of_process(settings), nullptr);
  settings.telemetry = folder_;
  const auto first = Store::of_process(settings);
  EXPECT_EQ(Store::of_process(settings), first) << "one for a process";
  EXPECT_EQ(files().size(), 1U);
}

TEST_F(StoreTest, AFullFileDropsAndCounts) {
  const auto store = Store::open(folder_);
  std::vector<Record> records;
  std::uint32_t words = 0;
  for (const Field& field : schema(Group::flow).fields) words += words_of(field);
  const std::uint32_t most = std::min(kMostRecords, kMostWords / words);
  for (std::uint32_t i = 0; i < most + 10; ++i)
    records.push_back(store->add(Group::flow, {{"flow", std::to_string(i)}}));
  EXPECT_GE(most, 700U) << "what the documents say there is room for";
  EXPECT_TRUE(records[most - 1]);
  EXPECT_FALSE(records.back());
  for (Record& record : records) record.set(flow_field::failed, std::uint64_t{1});
  auto seen = read(store->copy());
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->records.size(), most);
  EXPECT_EQ(seen->dropped, 10U);
  records.clear();
  const auto again = store->add(Group::flow, {{"flow", "again"}});
  ASSERT_TRUE(again);
  seen = read(store->copy());
  ASSERT_EQ(seen->records.size(), 1U);
  EXPECT_EQ(seen->records[0].label("flow"), "again");
  EXPECT_EQ(seen->value(seen->records[0], "failed"), 0U) << "nothing is left of who had it before";
}

TEST_F(StoreTest, ThreadsAddAndLeaveWhileSomebodyReads) {
  const auto store = Store::open(folder_);
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 3000; ++i) {
        const std::string name(static_cast<std::size_t>(20 + i % 100), static_cast<char>('a' + thread));
        auto flow = store->add(Group::flow, {{"peer", name}});
        flow.set(flow_field::operations_submitted, name.size());
      }
      done = true;
    });
  }
  while (!done) {
    const auto seen = read_file(store->path());
    ASSERT_TRUE(seen) << seen.error().text();
    for (const RecordInfo* flow : seen->of("flow")) {
      const std::string_view name = flow->label("peer");
      EXPECT_EQ(name.find_first_not_of(name.front()), std::string_view::npos) << "of two: " << name;
    }
  }
  for (auto& thread : threads) thread.join();
}

TEST(Buckets, HoldWhatTheySay) {
  std::uint32_t last = 0;
  for (std::uint64_t value = 0; value < (std::uint64_t{1} << 41U); value += 1 + value / 7) {
    const std::uint32_t bucket = Buckets::of(value);
    ASSERT_LT(bucket, Buckets::kCount);
    ASSERT_GE(bucket, last);
    last = bucket;
    if (value >= (std::uint64_t{1} << Buckets::kMostBits)) continue;
    ASSERT_LT(value, Buckets::end_of(bucket)) << value;
    ASSERT_GE(value, bucket == 0 ? 0 : Buckets::end_of(bucket - 1)) << value;
  }
  EXPECT_EQ(Buckets::of(UINT64_MAX), Buckets::kCount - 1);
}

TEST(Buckets, OctavesHoldWhatTheySay) {
  for (std::uint64_t value = 0; value < 100'000; ++value) {
    const std::uint32_t bucket = Octaves::of(value);
    ASSERT_LT(bucket, Octaves::kCount);
    ASSERT_LT(value, Octaves::end_of(bucket)) << value;
    ASSERT_GE(value, bucket == 0 ? 0 : Octaves::end_of(bucket - 1)) << value;
  }
  EXPECT_EQ(Octaves::of(UINT64_MAX), Octaves::kCount - 1);
  Distribution times{2, 0, std::vector<std::uint64_t>(Octaves::kCount)};
  times.buckets[Octaves::of(1000)] = 2;
  EXPECT_EQ(times.percentile(0.5), 1024U);
}

TEST(Buckets, PercentilesAreKnownToAQuarter) {
  Distribution times{100, 0, std::vector<std::uint64_t>(Buckets::kCount)};
  for (std::uint64_t i = 1; i <= 100; ++i) ++times.buckets[Buckets::of(i * 1000)];
  for (const double part : {0.1, 0.5, 0.9, 0.99}) {
    const double exact = part * 100'000;
    EXPECT_GE(static_cast<double>(times.percentile(part)), exact);
    EXPECT_LE(static_cast<double>(times.percentile(part)), exact * 1.3);
  }
  EXPECT_EQ(Distribution{}.percentile(0.5), 0U);
}

}  // namespace
}  // namespace railyard::telemetry
