/// What is published agrees with what was moved; a wait that takes long says once what it waits for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "base/log.hpp"
#include "process_world.hpp"
#include "telemetry/files.hpp"
#include "telemetry/reader.hpp"

namespace railyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Telemetry : public ::testing::Test {
 protected:
  Telemetry() {
    std::string pattern = (std::filesystem::temp_directory_path() / "railyard-telemetry-XXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) folder_ = pattern;
  }
  ~Telemetry() override {
    set_log_sink({});
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Settings settings() const {
    Settings made = loopback_settings(2);
    made.telemetry = folder_;
    return made;
  }
  /// What this process publishes.
  telemetry::Snapshot look() const {
    for (const auto& found : telemetry::list(folder_))
      if (found.pid == ::getpid()) return must(telemetry::read_file(found.path));
    ADD_FAILURE() << "no file of this process";
    return {};
  }
  bool empty() const { return std::filesystem::is_empty(folder_); }

  std::string folder_;
};

std::uint64_t total(const telemetry::Snapshot& from, std::string_view group, std::string_view field) {
  std::uint64_t sum = 0;
  for (const auto* record : from.of(group)) sum += from.value(*record, field);
  return sum;
}

TEST_F(Telemetry, AgreesWithWhatWasMoved) {
  constexpr std::size_t kBytes = 3 << 20U;
  constexpr int kTimes = 40;
  run_ranks(2, settings(), [&](World& world) {
    std::vector<std::byte> memory(kBytes);
    std::vector<std::byte> mine(kBytes);
    auto window = must(Window::adopt(world, memory));
    if (world.rank() == 0) {
      for (int i = 0; i < kTimes; ++i) {
        must(window.put(1, 0, mine.data(), kBytes));
        must(window.wait(must(window.put(1, 0, mine.data(), 8))));
        std::uint64_t before = 0;
        must(window.wait(must(window.fetch_atomic<std::uint64_t>(1, 8, AtomicOp::add, &before, 1))));
      }
      must(window.wait(must(window.get(1, 0, mine.data(), kBytes))));
      must(window.quiet());
    }
    must(window.barrier());
    if (world.rank() == 0) {
      constexpr std::uint64_t kData = kTimes * kBytes + kBytes;  // the get's leave rank 1
      // Published a moment later at most, by whoever makes passes.
      telemetry::Snapshot seen;
      const auto caught_up = [&] {
        world.progress();
        seen = look();
        // Both ranks are in this process: what one sent the other received.
        return total(seen, "rail", "bytes_sent") >= kData && total(seen, "rail", "bytes_received") >= kData;
      };
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!caught_up() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      EXPECT_GE(total(seen, "rail", "bytes_sent"), kData);
      EXPECT_LE(total(seen, "rail", "bytes_sent"), kData + kData / 50);
      EXPECT_GE(total(seen, "rail", "bytes_received"), kData);
      EXPECT_LE(total(seen, "rail", "bytes_received"), kData + kData / 50);
      EXPECT_GE(total(seen, "context", "operations_completed"), 3U * kTimes + 1);
      EXPECT_EQ(seen.of("context").size(), 2U);
      EXPECT_EQ(seen.of("rail").size(), 2 * world.rail_count());
      EXPECT_EQ(seen.of("flow").size(), 2U);
      EXPECT_EQ(seen.of("link").size(), 2 * world.rail_count());
      for (const auto* link : seen.of("link")) EXPECT_LE(seen.value(*link, "state"), 1U) << link->label("peer");
      std::uint64_t puts = 0;
      std::uint64_t atomics = 0;
      for (const auto* context : seen.of("context")) {
        puts += seen.distribution(*context, "put_latency").count;
        atomics += seen.distribution(*context, "atomic_latency").count;
      }
      EXPECT_GT(puts, 0U);
      EXPECT_GT(puts + atomics, 1U);
    }
    must(window.barrier());
    must(window.close());
  });
  EXPECT_TRUE(empty()) << "a file outlived its worlds";
}

/// The records of windows that `which` says, once they have come to that.
template <typename Which>
std::vector<const telemetry::RecordInfo*> windows_of(const telemetry::Snapshot& from, Which&& which) {
  std::vector<const telemetry::RecordInfo*> chosen;
  for (const auto* window : from.of("window"))
    if (which(*window)) chosen.push_back(window);
  return chosen;
}

std::uint64_t sampled(const telemetry::Snapshot& from, std::string_view group, std::string_view field) {
  std::uint64_t sum = 0;
  for (const auto* record : from.of(group)) sum += from.distribution(*record, field).count;
  return sum;
}

TEST_F(Telemetry, EachWindowCountsWhatItWasUsedFor) {
  constexpr std::size_t kBytes = 256 << 10U;
  constexpr std::uint64_t kTimes = 70;  // more than one in 64 is timed
  run_ranks(2, settings(), [&](World& world) {
    std::vector<std::byte> mine(kBytes);
    auto first = must(Window::allocate(world, kBytes));
    auto second = must(Window::allocate(world, 4096));
    auto unused = must(Window::allocate(world, 64));
    if (world.rank() == 0) {
      for (std::uint64_t i = 0; i < kTimes; ++i) {
        must(first.put(1, 0, mine.data(), kBytes));
        must(second.put_signal(1, 0, mine.data(), 16, {0, 1}));
        must(second.signal(1, {1, 1}));
        std::uint64_t before = 0;
        must(second.wait(must(second.fetch_atomic<std::uint64_t>(1, 64, AtomicOp::add, &before, 1))));
        must(first.wait(must(first.get(1, 0, mine.data(), 512))));
      }
      must(first.quiet());
      telemetry::Snapshot seen;
      // Rank 1 is in this process, too, and only signals.
      const auto used = [&](const auto& window) { return seen.value(window, "puts") != 0; };
      std::vector<const telemetry::RecordInfo*> windows;
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      do {
        world.progress();
        seen = look();
        windows = windows_of(seen, used);
      } while ((windows.size() < 2 || total(seen, "window", "puts") < 2 * kTimes) &&
               std::chrono::steady_clock::now() < until);
      EXPECT_EQ(windows.size(), 2U) << "one for each window that was used";
      if (windows.size() == 2) {
        const auto& bulk = *windows[seen.value(*windows[0], "bytes") == kBytes ? 0 : 1];
        const auto& small = *windows[seen.value(*windows[0], "bytes") == kBytes ? 1 : 0];
        EXPECT_NE(bulk.label("window"), small.label("window"));
        EXPECT_EQ(seen.value(bulk, "puts"), kTimes);
        EXPECT_EQ(seen.value(bulk, "bytes_put"), kTimes * kBytes);
        EXPECT_EQ(seen.value(bulk, "gets"), kTimes);
        EXPECT_EQ(seen.value(bulk, "bytes_got"), kTimes * 512);
        EXPECT_EQ(seen.value(bulk, "signals") + seen.value(bulk, "atomics"), 0U);
        EXPECT_EQ(seen.value(small, "puts"), kTimes);
        EXPECT_EQ(seen.value(small, "bytes_put"), kTimes * 16);
        EXPECT_EQ(seen.value(small, "signals"), kTimes);
        EXPECT_EQ(seen.value(small, "atomics"), kTimes);
        EXPECT_EQ(seen.value(small, "gets"), 0U);
        EXPECT_EQ(total(seen, "window", "direct_puts"), 0U);
        // Histograms are there from the first publish on, which may come after all of the above: go on until then. What
        // belongs to the links and flows in between is timed as well.
        const std::array<std::pair<const char*, const char*>, 6> timed{{{"window", "put_latency"},
                                                                        {"window", "get_latency"},
                                                                        {"window", "atomic_latency"},
                                                                        {"rail", "chunk_latency"},
                                                                        {"link", "chunk_latency"},
                                                                        {"flow", "latency"}}};
        const auto missing = [&] {
          std::string names;
          for (const auto& [group, field] : timed)
            if (sampled(seen, group, field) == 0) names += std::string(" ") + group + "." + field;
          return names;
        };
        while (!missing().empty() && std::chrono::steady_clock::now() < until) {
          for (std::uint64_t i = 0; i < kTimes; ++i) {
            must(first.wait(must(first.put(1, 0, mine.data(), kBytes))));
            std::uint64_t before = 0;
            must(second.wait(must(second.fetch_atomic<std::uint64_t>(1, 64, AtomicOp::add, &before, 1))));
            must(first.wait(must(first.get(1, 0, mine.data(), 512))));
          }
          seen = look();
        }
        EXPECT_EQ(missing(), "");
      }
    }
    must(first.barrier());
    must(unused.close());
    must(second.close());
    must(first.close());
    if (world.rank() == 0) {
      world.progress();
      EXPECT_TRUE(windows_of(look(), [](const auto& window) { return window.label("window") == "2"; }).empty());
    }
  });
  EXPECT_TRUE(empty());
}

TEST_F(Telemetry, SmallPutsAloneTimeTheirRailsAndLinks) {
  constexpr std::uint64_t kTimes = 2000;
  run_ranks(2, settings(), [&](World& world) {
    auto window = must(Window::allocate(world, 4096));
    if (world.rank() == 0) {
      std::uint64_t word = 1;
      telemetry::Snapshot seen;
      // The histograms are there once the links have been published for the first time.
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      do {
        must(window.wait(must(window.put_signal(1, 0, &word, 8, {0, 1}))));
        world.progress();
        seen = look();
      } while (seen.of("link").empty() && std::chrono::steady_clock::now() < until);
      const std::uint64_t before = sampled(seen, "rail", "frame_latency");
      for (std::uint64_t i = 0; i < kTimes; ++i) must(window.wait(must(window.put_signal(1, 0, &word, 8, {0, 1}))));
      seen = look();
      EXPECT_GT(sampled(seen, "rail", "frame_latency"), before + kTimes / 500);
      EXPECT_GT(sampled(seen, "link", "frame_latency"), kTimes / 500);
      // One in 256, and the next one after each publish.
      EXPECT_LT(sampled(seen, "rail", "frame_latency"), before + kTimes / 2);
      EXPECT_EQ(sampled(seen, "rail", "chunk_latency"), 0U) << "there was no chunk";
      EXPECT_EQ(sampled(seen, "link", "chunk_latency"), 0U);
    }
    must(window.barrier());
    must(window.close());
  });
}

TEST_F(Telemetry, CountsDirectStores) {
  run_processes(
      2,
      [&](int) {
        Settings made = settings();
        made.shared_memory = "on";
        return made;
      },
      [&](World& world, ProcessRendezvous&) {
        auto window = must(Window::allocate(world, 4096));
        std::vector<std::byte> mine(512);
        for (int i = 0; i < 1000; ++i) must(window.put_signal(1 - world.rank(), 0, mine.data(), mine.size(), {0, 1}));
        must(window.wait_signal(0, Comparison::equal, 1000));
        must(window.barrier());
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        telemetry::Snapshot seen = look();
        while (total(seen, "context", "direct_puts") < 1000 && std::chrono::steady_clock::now() < until) {
          world.progress();
          seen = look();
        }
        EXPECT_EQ(total(seen, "context", "direct_bytes_put"), 512'000U);
        EXPECT_GE(total(seen, "context", "direct_puts"), 1000U);
        ASSERT_EQ(seen.of("window").size(), 1U);
        EXPECT_EQ(total(seen, "window", "direct_bytes_put"), 512'000U);
        EXPECT_EQ(total(seen, "window", "direct_puts"), total(seen, "context", "direct_puts"));
        EXPECT_EQ(seen.rank, world.rank());
        must(window.barrier());
        must(window.close());
        // What a window did stays in the sums of its world.
        EXPECT_GE(world.statistics().direct_puts, 1000U);
        EXPECT_EQ(world.statistics().direct_bytes_put, 512'000U);
      });
  EXPECT_TRUE(empty());
}

/// Lines of the log about stalls.
class StallLines {
 public:
  StallLines() {
    set_log_level(LogLevel::warn);
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::scoped_lock hold(mutex_);
      if (line.find("stalled for") != std::string_view::npos && line.find(" in ") != std::string_view::npos)
        lines_.emplace_back(line);
    });
  }
  ~StallLines() { set_log_sink({}); }
  std::vector<std::string> get(std::string_view call) {
    const std::scoped_lock hold(mutex_);
    std::vector<std::string> chosen;
    for (const std::string& line : lines_)
      if (line.find(call) != std::string::npos) chosen.push_back(line);
    return chosen;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST_F(Telemetry, AStalledWaitIsShownAndReportedOnce) {
  Settings made = settings();
  made.stall_ms = 150;
  made.log = "warn";
  run_ranks(2, made, [&](World& world) {
    auto window = must(Window::allocate(world, 4096));
    std::uint64_t value = 1;
    must(window.put_signal(1 - world.rank(), 0, &value, 8, {0, 1}));
    must(window.wait_signal(0, Comparison::equal, 1));
    must(window.barrier());
    if (world.rank() == 1) {
      StallLines stalls;
      const auto waited = window.wait_signal(0, Comparison::equal, 7, Deadline::in(std::chrono::milliseconds(3500)), 0);
      EXPECT_EQ(waited.status(), Status::timeout);
      const auto lines = stalls.get("wait_signal");
      EXPECT_EQ(lines.size(), 1U) << "once, however long it takes";
      EXPECT_THAT(
          lines.empty() ? "" : lines[0],
          AllOf(HasSubstr("wait_signal: signal 0 holds 1, not == 7"), HasSubstr("for rank 0"), HasSubstr("sequence"),
                HasSubstr("credits left"), HasSubstr("last message from rank 0"), HasSubstr("rail 0 (tcp lo")));
    } else {
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(3);
      bool shown = false;
      while (!shown && std::chrono::steady_clock::now() < until) {
        const telemetry::Snapshot seen = look();
        for (const auto* context : seen.of("context"))
          shown |= seen.value(*context, "waiting") == 3 && seen.signed_value(*context, "waiting_for_peer") == 0;
        world.progress();
      }
      EXPECT_TRUE(shown) << "that somebody waits for rank 0";
    }
    must(window.barrier());
    const telemetry::Snapshot seen = look();
    EXPECT_GE(total(seen, "context", "stalls"), 1U);
    must(window.barrier());
    must(window.close());
  });
}

/// The number in front of " s", after that text; -1: it is not there.
double seconds_after(const std::string& line, std::string_view text) {
  const std::size_t at = line.find(text);
  return at == std::string::npos ? -1 : std::strtod(line.c_str() + at + text.size(), nullptr);
}

/// Nobody makes a pass while all sleep, and time goes on.
TEST_F(Telemetry, AStalledWaitTellsHowLongAgoThingsReallyWere) {
  Settings made = settings();
  made.stall_ms = 600;
  made.log = "warn";
  std::atomic<bool> over{false};
  run_ranks(2, made, [&](World& world) {
    auto window = must(Window::allocate(world, 4096));
    std::uint64_t value = 1;
    must(window.put_signal(1 - world.rank(), 0, &value, 8, {0, 1}));
    must(window.wait_signal(0, Comparison::equal, 1));
    must(window.barrier());
    if (world.rank() == 1) {
      StallLines stalls;
      const auto waited = window.wait_signal(0, Comparison::equal, 7, Deadline::in(std::chrono::milliseconds(900)), 0);
      EXPECT_EQ(waited.status(), Status::timeout);
      const auto lines = stalls.get("wait_signal");
      over = true;
      over.notify_all();
      const std::string line = lines.empty() ? "" : lines[0];
      const double stalled = seconds_after(line, "stalled for ");
      EXPECT_GT(stalled, 0) << line;
      EXPECT_GE(seconds_after(line, "has been up since "), 0.8 * stalled) << line;
      // Once a second whoever waits asks whether the other is still there, and has an answer.
      const bool asked = stalled > 0.9;
      EXPECT_TRUE(asked || seconds_after(line, "last message from rank 0 ") >= 0.8 * stalled) << line;
    } else {
      over.wait(false);
    }
    must(window.barrier());
    must(window.close());
  });
}

TEST_F(Telemetry, NobodyIsToldWhereStallsAreOff) {
  Settings made = settings();
  made.stall_ms = 0;
  StallLines stalls;
  run_ranks(2, made, [&](World& world) {
    auto window = must(Window::allocate(world, 64));
    if (world.rank() == 0) {
      EXPECT_EQ(window.wait_signal(0, Comparison::equal, 7, Deadline::in(std::chrono::milliseconds(600))).status(),
                Status::timeout);
    }
    must(window.barrier());
    must(window.close());
  });
  EXPECT_TRUE(stalls.get("").empty());
}

TEST_F(Telemetry, OffMakesNoFile) {
  Settings made = settings();
  made.telemetry = "off";
  run_ranks(2, made, [&](World& world) {
    auto window = must(Window::allocate(world, 64));
    must(window.barrier());
    must(window.close());
  });
  EXPECT_TRUE(empty());
}

}  // namespace
}  // namespace railyard
