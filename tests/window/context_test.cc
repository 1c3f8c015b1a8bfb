/// Several worlds on one context: what they share, and what they keep apart.
#include "railyard/context.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstring>
#include <numeric>

#include "process_world.hpp"
#include "railyard/channel.hpp"
#include "window/window_state.hpp"

namespace railyard {
namespace {

struct Way {
  const char* name;
  std::uint32_t rails;
  const char* shared_memory;
  const char* progress = "auto";
};

class ContextTest : public ::testing::TestWithParam<Way> {
 protected:
  Settings settings() const {
    Settings settings = loopback_settings(GetParam().rails);
    settings.shared_memory = GetParam().shared_memory;
    settings.progress = GetParam().progress;
    return settings;
  }
  bool over_rails() const { return std::string_view(GetParam().shared_memory) == "off"; }
};
INSTANTIATE_TEST_SUITE_P(Rails, ContextTest,
                         ::testing::Values(Way{"1rail", 1, "off"}, Way{"3rails", 3, "off"}, Way{"direct", 2, "on"},
                                           Way{"callers", 2, "off", "caller"}),
                         [](const auto& info) { return std::string(info.param.name); });

/// One process of a job, with a context. It is as many ranks as it opens worlds.
class Process {
 public:
  Process(const Settings& settings, int number) : number_(number), context_(must(Context::open(settings))) {}

  Context& context() { return *context_; }
  int number() const { return number_; }
  void close_context() { context_.reset(); }
  /// A world of all who meet there, in which this process is that rank.
  World open(ThreadRendezvous& rendezvous, int rank) {
    bootstraps_.push_back(std::make_unique<ThreadBootstrap>(rendezvous, rank));
    return must(World::open({.context = context_.get(), .bootstrap = bootstraps_.back().get()}));
  }

 private:
  int number_;
  std::unique_ptr<Context> context_;
  std::vector<std::unique_ptr<ThreadBootstrap>> bootstraps_;
};

void run_contexts(int count, const Settings& settings, const std::function<void(Process&)>& body) {
  std::vector<std::thread> threads;
  for (int number = 0; number < count; ++number) {
    threads.emplace_back([&, number] {
      Process process(settings, number);
      body(process);
    });
  }
  for (auto& thread : threads) thread.join();
}

/// Every rank signals every other, and finds what they put.
void exchange(World& world, Window& window, std::uint64_t round) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::size_t each = window.local().size() / ranks;
  const std::vector<std::byte> mine(each,
                                    static_cast<std::byte>(round * 16 + static_cast<std::uint64_t>(world.rank())));
  for (int peer = 0; peer < world.size(); ++peer) {
    must(window.put_signal(peer, static_cast<std::size_t>(world.rank()) * each, mine.data(), each,
                           {static_cast<std::size_t>(world.rank()), 1}));
  }
  for (int peer = 0; peer < world.size(); ++peer) {
    must(window.wait_signal(static_cast<std::size_t>(peer), Comparison::greater_equal, round + 1, {}, peer));
    const auto got = window.local().subspan(static_cast<std::size_t>(peer) * each, each);
    const auto wanted = static_cast<std::byte>(round * 16 + static_cast<std::uint64_t>(peer));
    EXPECT_TRUE(std::ranges::all_of(got, [wanted](std::byte byte) { return byte == wanted; }))
        << "rank " << world.rank() << " from " << peer << " in round " << round;
  }
  must(window.quiet());
  must(window.barrier());
}

TEST_P(ContextTest, WorldsOfTheSameProcessesKeepTheirRanksAndTheirSignals) {
  constexpr int kProcesses = 3;
  ThreadRendezvous forward(kProcesses);
  ThreadRendezvous backward(kProcesses);
  ThreadRendezvous pair(2);
  run_contexts(kProcesses, settings(), [&](Process& process) {
    const int here = process.number();
    World first = process.open(forward, here);
    auto window = must(Window::allocate(first, 9000));
    exchange(first, window, 0);
    World second = process.open(backward, kProcesses - 1 - here);
    std::optional<World> third;
    if (here != 1) third.emplace(process.open(pair, here / 2));
    auto other = must(Window::allocate(second, 60'000));
    EXPECT_EQ(second.rank(), kProcesses - 1 - here);
    for (int rank = 0; rank < kProcesses; ++rank) EXPECT_EQ(first.translate(rank, second), kProcesses - 1 - rank);
    for (std::uint64_t round = 0; round < 8; ++round) {
      exchange(second, other, round);
      exchange(first, window, round + 1);
    }
    if (third) {
      EXPECT_EQ(first.translate(2, *third), 1);
      EXPECT_EQ(first.translate(1, *third), -1) << "that process is not in it";
      auto part = must(third->split(0, -third->rank()));
      EXPECT_EQ(part->rank(), 1 - third->rank());
      EXPECT_EQ(second.translate(0, *part), 0);
      auto apart = must(Window::allocate(*part, 128));
      for (std::uint64_t round = 0; round < 4; ++round) exchange(*part, apart, round);
    }
    must(second.barrier());
    const ContextStatistics statistics = process.context().statistics();
    ASSERT_EQ(statistics.engines.size(), 1U) << "one engine for all worlds, and nobody uses channels";
    EXPECT_EQ(first.rail_count(), second.rail_count());
  });
}

/// Threads that each use a world of their own.
TEST_P(ContextTest, WorldsAreUsedAtTheSameTime) {
  constexpr int kProcesses = 2;
  constexpr int kWorlds = 4;
  std::vector<std::unique_ptr<ThreadRendezvous>> places;
  for (int i = 0; i < kWorlds; ++i) places.push_back(std::make_unique<ThreadRendezvous>(kProcesses));
  run_contexts(kProcesses, settings(), [&](Process& process) {
    std::vector<std::unique_ptr<ThreadBootstrap>> bootstraps;
    std::vector<std::thread> users;
    for (int i = 0; i < kWorlds; ++i) {
      const int rank = (process.number() + i) % 2;
      bootstraps.push_back(std::make_unique<ThreadBootstrap>(*places[static_cast<std::size_t>(i)], rank));
      users.emplace_back([&process, bootstrap = bootstraps.back().get(), i] {
        for (int again = 0; again < 3; ++again) {
          World world = must(World::open({.context = &process.context(), .bootstrap = bootstrap}));
          auto window = must(Window::allocate(world, static_cast<std::size_t>(64) << static_cast<unsigned>(3 * i)));
          for (std::uint64_t round = 0; round < 10; ++round) exchange(world, window, round);
          must(world.barrier());
        }
      });
    }
    for (auto& user : users) user.join();
  });
}

TEST_P(ContextTest, AWorldThatEndsIsNoLossToTheOthers) {
  ThreadRendezvous kept(2);
  ThreadRendezvous ended(2);
  run_contexts(2, settings(), [&](Process& process) {
    World world = process.open(kept, process.number());
    auto window = must(Window::allocate(world, 4096));
    std::optional<World> other(process.open(ended, 1 - process.number()));
    std::optional<Window> gone(must(Window::allocate(*other, 4096)));
    exchange(*other, *gone, 0);
    exchange(world, window, 0);
    if (process.number() == 0) {
      gone.reset();
      other.reset();
    }
    must(window.barrier());
    for (std::uint64_t round = 1; round < 20; ++round) exchange(world, window, round);
    if (process.number() == 1) {
      const std::uint64_t value = 1;
      Result<void> told;
      while (told.ok()) {
        if (auto put = gone->put(1, 0, &value, sizeof value); !put) told = std::move(put.error());
        if (told.ok()) told = gone->quiet(1);
      }
      EXPECT_EQ(told.error().where().peer, 1) << "process 0 was rank 1 there: " << told.error().text();
      must(window.quiet());
    }
    exchange(world, window, 20);
    EXPECT_EQ(world.statistics().peers_lost, 0U);
  });
}

/// Whoever speaks to a rank for the first time when that has left is told so, and does not wait for it.
TEST_P(ContextTest, WhoeverSpeaksTooLateIsToldThatTheWorldHasEnded) {
  if (!over_rails()) GTEST_SKIP() << "memory that is mapped stays there";
  ThreadRendezvous kept(2);
  ThreadRendezvous ended(2);
  run_contexts(2, settings(), [&](Process& process) {
    World world = process.open(kept, process.number());
    auto window = must(Window::allocate(world, 64));
    std::optional<World> other(process.open(ended, process.number()));
    std::optional<Window> silent(must(Window::allocate(*other, 64)));
    if (process.number() == 0) {
      silent.reset();
      other.reset();
    }
    must(world.barrier());
    if (process.number() == 1) {
      const std::uint64_t value = 1;
      Result<void> told;
      const auto began = std::chrono::steady_clock::now();
      while (told.ok()) {
        if (auto put = silent->put(0, 0, &value, sizeof value); !put) told = std::move(put.error());
        if (told.ok()) told = silent->quiet(0);
      }
      EXPECT_NE(told.error().status(), Status::timeout) << told.error().text();
      // A refused operation is no end; the goodbye is.
      while (told.error().status() != Status::peer_lost) {
        ASSERT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20)) << told.error().text();
        auto waited = silent->wait_signal(0, Comparison::equal, 1, Deadline::in(std::chrono::milliseconds(50)), 0);
        ASSERT_FALSE(waited.ok());
        told = std::move(waited.error());
      }
      EXPECT_NE(told.error().text().find("has closed its world"), std::string::npos) << told.error().text();
    }
    must(world.barrier());
    exchange(world, window, 0);
    EXPECT_EQ(world.statistics().peers_lost, 0U);
  });
}

TEST_P(ContextTest, WorldsComeAndGoAndLeaveNothing) {
  constexpr int kTimes = 40;
  ThreadRendezvous kept(2);
  ThreadRendezvous brief(2);
  run_contexts(2, settings(), [&](Process& process) {
    World world = process.open(kept, process.number());
    auto window = must(Window::allocate(world, 64));
    transport::Engine& engine = window_detail::WorldAccess::state(world).engine();
    const auto routes = [&] {
      const transport::ProgressGuard hold(engine.progress_lock());
      engine.progress();
      return engine.peers().registry().size();
    };
    exchange(world, window, 0);
    const std::size_t before = routes();
    for (int i = 0; i < kTimes; ++i) {
      World other = process.open(brief, i % 2 == 0 ? process.number() : 1 - process.number());
      auto short_lived = must(Window::allocate(other, 512));
      exchange(other, short_lived, 0);
    }
    exchange(world, window, 1);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (routes() != before && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(routes(), before);
    EXPECT_EQ(engine.peers().worlds().size(), 1U);
    must(window.barrier());
  });
}

TEST_P(ContextTest, OutlivesNoWorldAndIsOutlivedByAny) {
  ThreadRendezvous place(2);
  run_contexts(2, settings(), [&](Process& process) {
    World world = process.open(place, process.number());
    process.close_context();
    auto window = must(Window::allocate(world, 512));
    exchange(world, window, 0);
  });
}

/// A rank that knows the number of a region of another world is refused.
TEST_P(ContextTest, MemoryOfOneWorldIsClosedToTheRanksOfAnother) {
  ThreadRendezvous one(2);
  ThreadRendezvous two(2);
  std::atomic<std::uint32_t> region{0};
  run_contexts(2, settings(), [&](Process& process) {
    World world = process.open(one, process.number());
    World other = process.open(two, process.number());
    auto window = must(Window::allocate(world, 64));
    auto elsewhere = must(Window::allocate(other, 64));
    transport::Engine& engine = window_detail::WorldAccess::state(world).engine();
    if (process.number() == 1) {
      region = window_detail::WindowAccess::state(window).exposed_region_number();
      must(window.barrier());
      must(elsewhere.barrier());
      EXPECT_TRUE(std::ranges::all_of(window.local(), [](std::byte byte) { return byte == std::byte{0}; }));
      return;
    }
    must(window.barrier());
    const std::uint64_t value = ~std::uint64_t{0};
    const transport::PutRecord put{region, 0, std::as_bytes(std::span(&value, 1))};
    for (World* from : {&other, &world}) {
      const std::uint32_t id = window_detail::WorldAccess::state(*from).flow_of(1);
      std::uint64_t number = 0;
      transport::Flow* flow = nullptr;
      {
        const transport::ProgressGuard hold(engine.progress_lock());
        flow = must(engine.peers().flow(id));
        if (from == &other) {
          ASSERT_TRUE(engine.submissions().try_records(*flow, &put, nullptr, number));
        }
      }
      if (from != &other) continue;
      EXPECT_TRUE(engine.wait_until([&] { return flow->completed.load() >= number; }, 10'000'000'000));
      const auto failure = flow->failure_of(number);
      ASSERT_TRUE(failure.has_value()) << "a rank of another world wrote there";
      EXPECT_EQ(failure->status(), Status::not_found) << failure->text();
    }
    must(elsewhere.barrier());
  });
}

/// Process 2 is killed: rank 2 of one world, rank 0 of the other. Each names its own.
TEST_P(ContextTest, ALostProcessIsNamedByItsRankInEachWorld) {
  ProcessRendezvous* const forward = ProcessRendezvous::make();
  ProcessRendezvous* const backward = ProcessRendezvous::make();
  std::vector<pid_t> children;
  const Settings mine = settings();
  for (int number = 0; number < 3; ++number) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    {
      auto context = must(Context::open(mine));
      ProcessBootstrap one(*forward, number, 3);
      ProcessBootstrap two(*backward, 2 - number, 3);
      World first = must(World::open({.context = context.get(), .bootstrap = &one}));
      World second = must(World::open({.context = context.get(), .bootstrap = &two}));
      auto window = must(Window::allocate(first, 64));
      auto other = must(Window::allocate(second, 64));
      must(window.barrier());
      must(other.barrier());
      if (number == 2) ::raise(SIGKILL);
      const auto until_lost = [](Window& of, int rank) {
        Result<void> told;
        const std::uint64_t value = 1;
        while (told.ok()) {
          if (auto put = of.put(rank, 0, &value, sizeof value); !put) told = std::move(put.error());
          if (told.ok()) told = of.quiet(rank);
        }
        EXPECT_EQ(told.error().status(), Status::peer_lost) << told.error().text();
        EXPECT_EQ(told.error().where().peer, rank) << told.error().text();
      };
      until_lost(other, 0);
      until_lost(window, 2);
      const auto hopeless = other.barrier();
      ASSERT_FALSE(hopeless.ok());
      EXPECT_EQ(hopeless.error().where().peer, 0) << hopeless.error().text();
      const auto also = window.barrier();
      ASSERT_FALSE(also.ok());
      EXPECT_EQ(also.error().where().peer, 2) << also.error().text();
      const std::uint64_t value = 7;
      must(window.put(1 - number, 0, &value, sizeof value));
      must(window.quiet(1 - number));
      ++forward->notes[0];
      while (forward->notes[0] != 2) first.progress();  // whoever leaves is one more that barriers can name
    }
    ::fflush(nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  for (int number = 0; number < 3; ++number) {
    int status = 0;
    ASSERT_EQ(::waitpid(children[static_cast<std::size_t>(number)], &status, 0),
              children[static_cast<std::size_t>(number)]);
    if (number == 2) {
      EXPECT_TRUE(WIFSIGNALED(status));
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "process " << number << ": status " << status;
    }
  }
  ::munmap(forward, sizeof *forward);
  ::munmap(backward, sizeof *backward);
}

TEST(ContextMisuse, AWorldHasTheSettingsOfItsContext) {
  const Settings settings = loopback_settings(1);
  auto context = must(Context::open(settings));
  const auto world = World::open({.context = context.get(), .settings = &settings});
  ASSERT_FALSE(world.ok());
  EXPECT_EQ(world.error().status(), Status::invalid);
  EXPECT_NE(world.error().text().find("context"), std::string::npos) << world.error().text();
}

TEST(ContextMisuse, WhatCannotBeOpenedIsSaidToTheFirstUserAndTriedAgain) {
  Settings settings = loopback_settings(1);
  settings.interfaces = "nosuch0";
  auto context = must(Context::open(settings));
  ThreadRendezvous alone(1);
  ThreadBootstrap bootstrap(alone, 0);
  for (int i = 0; i < 2; ++i) {
    const auto world = World::open({.context = context.get(), .bootstrap = &bootstrap});
    ASSERT_FALSE(world.ok());
    EXPECT_NE(world.error().text().find("nosuch0"), std::string::npos) << world.error().text();
    EXPECT_FALSE(context->listen().ok());
  }
  EXPECT_TRUE(context->statistics().engines.empty());
}

TEST(ContextOfBoth, WorldsAndChannelsShareAContext) {
  ThreadRendezvous place(2);
  constexpr auto kBytes = static_cast<std::ptrdiff_t>(Handle::kBytes);
  std::vector<std::byte> handles(2 * Handle::kBytes);
  run_contexts(2, loopback_settings(2), [&](Process& process) {
    World world = process.open(place, process.number());
    auto window = must(Window::allocate(world, 4096));
    auto listener = must(process.context().listen());
    const auto& mine = listener->handle().bytes;
    std::ranges::copy(mine, handles.begin() + process.number() * kBytes);
    must(world.barrier());
    Handle theirs;
    std::copy_n(handles.begin() + (1 - process.number()) * kBytes, Handle::kBytes, theirs.bytes.begin());
    std::unique_ptr<Channel> out;
    std::unique_ptr<Channel> in;
    while (out == nullptr || in == nullptr) {
      if (out == nullptr) out = must(process.context().connect(theirs));
      if (in == nullptr) in = must(listener->accept());
    }
    for (std::uint64_t round = 0; round < 10; ++round) {
      const std::vector<std::byte> message(10'000, static_cast<std::byte>(round));
      std::vector<std::byte> got(message.size());
      Request* const send = must(out->send(message, 0));
      const ReceiveSlot slot{got, 0};
      Request* const receive = must(in->receive(std::span(&slot, 1)));
      ASSERT_TRUE(send != nullptr && receive != nullptr);
      exchange(world, window, round);
      must(in->wait(receive));
      must(out->wait(send));
      EXPECT_EQ(got, message);
    }
    EXPECT_GE(process.context().statistics().engines.size(), 2U);
    EXPECT_EQ(process.context().statistics().channels, 2U);
    must(world.barrier());
  });
}

}  // namespace
}  // namespace railyard
