// T4: several processes behind one interface are told apart. T9: one of them is killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <set>

#include "base/log.hpp"
#include "contexts.hpp"

namespace railyard {
namespace {

constexpr std::size_t kMost = 6;

/// What the processes of a test tell each other.
struct Board {
  std::array<Handle, kMost> handles;
  std::array<std::atomic<bool>, kMost> listens;
  std::atomic<int> done;
  std::atomic<bool> killed;
  std::atomic<bool> wants_child;
  std::atomic<pid_t> child;
};

Board* make_board() {
  void* const memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) Board;
}

/// A process of the test: what it finds wrong is its exit status and on standard error.
pid_t start(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  set_log_level(LogLevel::error);
  ::alarm(60);
  ::_exit(body() && !::testing::Test::HasFailure() ? 0 : 1);
}
bool ended_well(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

struct Note {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t sequence = 0;
};

/// One process of many, connected with each of the others both ways.
class Member {
 public:
  Member(Board& board, std::uint32_t me, std::uint32_t members, const Settings& settings)
      : board_(board), me_(me), members_(members), context_(open_context(settings)) {}

  bool meet() {
    auto listener = context_->listen();
    if (!listener) return false;
    listener_ = std::move(*listener);
    board_.handles[me_] = listener_->handle();
    board_.listens[me_].store(true);
    out_.resize(members_);
    for (std::uint32_t other = 0; other < members_; ++other) {
      if (!eventually([&] { return board_.listens[other].load(); })) return false;
    }
    auto handles = board_.handles;
    return eventually([&] {
      for (std::uint32_t other = 0; other < members_; ++other) {
        if (other == me_ || out_[other]) continue;
        auto channel = context_->connect(handles[other]);
        EXPECT_TRUE(channel) << channel.error().text();
        if (channel) out_[other] = std::move(*channel);
      }
      auto accepted = listener_->accept();
      EXPECT_TRUE(accepted) << accepted.error().text();
      if (accepted && *accepted) in_.push_back(std::move(*accepted));
      return in_.size() == members_ - 1 && connected() == members_ - 1;
    });
  }
  bool talk(std::uint32_t messages) {
    for (std::uint32_t sequence = 0; sequence < messages; ++sequence) {
      std::vector<std::vector<std::byte>> sources;
      std::vector<std::pair<Channel*, Request*>> requests;
      std::vector<std::vector<std::byte>> targets(in_.size(), std::vector<std::byte>(kBytes));
      for (std::size_t i = 0; i < in_.size(); ++i) {
        const std::array slots{ReceiveSlot{targets[i], 0}};
        requests.emplace_back(in_[i].get(), must(in_[i]->receive(slots)));
      }
      for (std::uint32_t other = 0; other < members_; ++other) {
        if (other == me_) continue;
        sources.push_back(pattern(kBytes, me_ * 1000 + other));
        const Note note{me_, other, sequence};
        std::memcpy(sources.back().data(), &note, sizeof note);
        requests.emplace_back(out_[other].get(), must(out_[other]->send(sources.back(), 0)));
      }
      for (auto [channel, request] : requests) {
        if (!waited(*channel, request)) return false;
      }
      std::set<std::uint32_t> from;
      for (const auto& target : targets) {
        Note note;
        std::memcpy(&note, target.data(), sizeof note);
        auto expected = pattern(kBytes, note.from * 1000 + me_);
        std::memcpy(expected.data(), &note, sizeof note);
        EXPECT_EQ(note.to, me_) << "somebody else's message";
        EXPECT_EQ(note.sequence, sequence);
        EXPECT_EQ(target, expected);
        from.insert(note.from);
      }
      EXPECT_EQ(from.size(), members_ - 1U) << "two channels lead to the same process";
    }
    return true;
  }
  /// Everybody's links are its own: one set for each other process.
  void check_links() {
    std::set<std::string> peers;
    for (const auto& channel : in_) peers.insert(channel->statistics().peer);
    EXPECT_EQ(peers.size(), members_ - 1U);
    EXPECT_TRUE(eventually([&] { return context_->statistics().routes == members_ - 1; }))
        << context_->statistics().routes << " sets of links to " << members_ - 1 << " processes";
  }
  void leave() {
    board_.done.fetch_add(1);
    EXPECT_TRUE(eventually([&] { return board_.done.load() == static_cast<int>(members_); }));
    out_.clear();
    in_.clear();
  }

 private:
  static constexpr std::size_t kBytes = 20'000;
  std::size_t connected() const {
    return static_cast<std::size_t>(std::ranges::count_if(out_, [](const auto& each) { return each != nullptr; }));
  }

  Board& board_;
  std::uint32_t me_;
  std::uint32_t members_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Listener> listener_;
  std::vector<std::unique_ptr<Channel>> out_;
  std::vector<std::unique_ptr<Channel>> in_;
};

class ProcessesT4 : public ::testing::TestWithParam<std::string> {};

TEST_P(ProcessesT4, BehindOneInterfaceAreToldApart) {
  Settings settings = GetParam() == "Memory" ? over_memory() : over_network(1);
  settings.workers = 1;
  for (const std::uint32_t members : {2U, 5U}) {
    Board* const board = make_board();
    std::vector<pid_t> children;
    for (std::uint32_t me = 0; me < members; ++me) {
      children.push_back(start([&, me] {
        Member member(*board, me, members, settings);
        if (!member.meet() || !member.talk(5)) return false;
        member.check_links();
        if (!member.talk(5)) return false;
        member.leave();
        return true;
      }));
    }
    for (const pid_t child : children) EXPECT_TRUE(ended_well(child)) << members << " processes";
    ::munmap(board, sizeof(Board));
  }
}
INSTANTIATE_TEST_SUITE_P(Rails, ProcessesT4, ::testing::Values("Memory", "Tcp1"),
                         [](const auto& info) { return info.param; });

// ---- T9 ----

constexpr std::size_t kChannels = 8;

/// A program that outlives the process that starts it.
pid_t start_sleeper() {
  std::array<const char*, 3> arguments = {"sleep", "60", nullptr};
  pid_t child = -1;
  const int refused =
      ::posix_spawnp(&child, arguments[0], nullptr, nullptr, const_cast<char* const*>(arguments.data()), environ);
  return refused == 0 ? child : -1;
}

/// Takes every channel that comes and sends back what it gets, until the test is over.
bool echo(Board& board, std::uint32_t me, const Settings& settings) {
  const auto context = open_context(settings);
  auto listener = context->listen();
  if (!listener) return false;
  board.handles[me] = (*listener)->handle();
  board.listens[me].store(true);
  struct Accepted {
    std::unique_ptr<Channel> channel;
    std::vector<std::byte> memory = std::vector<std::byte>(5000);
    Request* receive = nullptr;
    Request* send = nullptr;
  };
  std::vector<std::unique_ptr<Accepted>> accepted_channels;
  while (board.done.load() == 0) {
    if (board.wants_child.load() && board.child.load() == 0) board.child.store(start_sleeper());
    if (auto accepted = (*listener)->accept(); accepted && *accepted) {
      accepted_channels.push_back(std::make_unique<Accepted>());
      accepted_channels.back()->channel = std::move(*accepted);
    }
    for (auto& accepted_channel : accepted_channels) {
      if (accepted_channel->send != nullptr) {
        const auto sent = accepted_channel->channel->test(accepted_channel->send);
        if (!sent) continue;
        if (*sent) accepted_channel->send = nullptr;
      } else if (accepted_channel->receive == nullptr) {
        const std::array slots{ReceiveSlot{accepted_channel->memory, 0}};
        const auto receive = accepted_channel->channel->receive(slots);
        if (receive) accepted_channel->receive = *receive;
      } else if (const auto done = accepted_channel->channel->test(accepted_channel->receive); done && *done) {
        accepted_channel->receive = nullptr;
        const auto send = accepted_channel->channel->send(accepted_channel->memory, 0);
        if (send) accepted_channel->send = *send;
      }
    }
  }
  return true;
}

class ProcessesT9 : public ::testing::TestWithParam<std::string> {};

TEST_P(ProcessesT9, AKilledPeerIsToldToEachOfItsChannelsAndTheOthersGoOn) {
  Settings settings = GetParam() == "Memory" ? over_memory() : over_network(2);
  settings.log = "error";
  Board* const board = make_board();
  const pid_t victim = start([&] { return echo(*board, 0, settings); });
  const pid_t friendly = start([&] { return echo(*board, 1, settings); });
  set_log_level(LogLevel::error);
  {
    const auto context = open_context(settings);
    std::array<std::vector<std::unique_ptr<Channel>>, 2> channels;
    for (std::size_t peer = 0; peer < 2; ++peer) {
      ASSERT_TRUE(eventually([&] { return board->listens[peer].load(); }));
      for (std::size_t i = 0; i < kChannels; ++i) {
        Handle handle = board->handles[peer];
        std::unique_ptr<Channel> channel;
        ASSERT_TRUE(eventually([&] {
          auto connected = context->connect(handle);
          EXPECT_TRUE(connected) << connected.error().text();
          if (connected) channel = std::move(*connected);
          return !connected || channel != nullptr;
        }));
        ASSERT_NE(channel, nullptr);
        channels[peer].push_back(std::move(channel));
      }
    }
    const auto message = pattern(5000, 4);
    std::vector<std::byte> target(5000);
    const std::array slots{ReceiveSlot{target, 0}};
    const auto round_trip = [&](Channel& channel) {
      Request* const receive = must(channel.receive(slots));
      Request* const send = must(channel.send(message, 0));
      return waited(channel, send) && waited(channel, receive) && target == message;
    };
    for (auto& each : channels) {
      for (auto& channel : each) ASSERT_TRUE(round_trip(*channel));
    }
    // Half of the victim's channels wait for something, the others have nothing under way.
    std::vector<Request*> waiting;
    for (std::size_t i = 0; i < kChannels / 2; ++i) waiting.push_back(must(channels[0][i]->receive(slots)));
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    const auto killed_at = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < kChannels / 2; ++i) {
      const auto done = channels[0][i]->wait(waiting[i], {}, Deadline::in(test_patience() * std::chrono::seconds(10)));
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().status(), Status::peer_lost) << done.error().text();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - killed_at, test_patience() * std::chrono::seconds(10));
    for (std::size_t i = kChannels / 2; i < kChannels; ++i) {
      const auto sent = channels[0][i]->send(message, 0);
      ASSERT_FALSE(sent);
      EXPECT_EQ(sent.error().status(), Status::peer_lost) << sent.error().text();
    }
    std::uint64_t lost = 0;
    for (const auto& engine : context->statistics().engines) lost += engine.peers_lost;
    EXPECT_LE(lost, 2U) << "one loss for each set of links";
    for (auto& channel : channels[1]) EXPECT_TRUE(round_trip(*channel));
    board->done.store(1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(victim, &status, 0), victim);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(ended_well(friendly));
  ::munmap(board, sizeof(Board));
}
INSTANTIATE_TEST_SUITE_P(Rails, ProcessesT9, ::testing::Values("Memory", "Tcp2"),
                         [](const auto& info) { return info.param; });

class ProcessesWithAChild : public ::testing::TestWithParam<std::string> {};

/// A child that had the sockets would keep them open: the kernel would say nothing of its parent's end.
TEST_P(ProcessesWithAChild, AKilledPeerIsToldAtOnce) {
  if (on_verbs()) GTEST_SKIP() << "queue pairs are no descriptors that a child would get";
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  if (GetParam() == "ofi")
    GTEST_SKIP() << "the listener's descriptor is not looked for under the thread sanitizer: the child has it";
#endif
#endif
  Settings settings = over_network(2);
  settings.driver = GetParam();
  settings.provider = GetParam() == "ofi" ? "tcp" : "";
  settings.log = "error";
  settings.peer_timeout_ms = 30'000;
  Board* const board = make_board();
  const pid_t victim = start([&] { return echo(*board, 0, settings); });
  set_log_level(LogLevel::error);
  {
    const auto context = open_context(settings);
    ASSERT_TRUE(eventually([&] { return board->listens[0].load(); }));
    Handle handle = board->handles[0];
    std::unique_ptr<Channel> channel;
    ASSERT_TRUE(eventually([&] {
      auto connected = context->connect(handle);
      if (connected) channel = std::move(*connected);
      return !connected || channel != nullptr;
    }));
    ASSERT_NE(channel, nullptr);
    std::vector<std::byte> target(5000);
    const std::array slots{ReceiveSlot{target, 0}};
    // Until every link stands: libfabric's sockets are kept from children once their rail has seen them connect.
    const auto message = pattern(5000, 4);
    for (int i = 0; i < 100; ++i) {
      Request* const answer = must(channel->receive(slots));
      ASSERT_TRUE(waited(*channel, must(channel->send(message, 0))));
      ASSERT_TRUE(waited(*channel, answer));
    }
    Request* const waiting = must(channel->receive(slots));
    board->wants_child.store(true);
    ASSERT_TRUE(eventually([&] { return board->child.load() != 0; }));
    ASSERT_GT(board->child.load(), 0);

    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    const auto killed_at = std::chrono::steady_clock::now();
    const auto done = channel->wait(waiting, {}, Deadline::in(test_patience() * std::chrono::seconds(20)));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().status(), Status::peer_lost) << done.error().text();
    EXPECT_LT(std::chrono::steady_clock::now() - killed_at, test_patience() * std::chrono::seconds(2));
    EXPECT_EQ(::kill(board->child.load(), 0), 0) << "the child had ended: this shows nothing";
  }
  if (board->child.load() > 0) ::kill(board->child.load(), SIGKILL);
  int status = 0;
  EXPECT_EQ(::waitpid(victim, &status, 0), victim);
  EXPECT_TRUE(WIFSIGNALED(status));
  ::munmap(board, sizeof(Board));
}
INSTANTIATE_TEST_SUITE_P(Rails, ProcessesWithAChild, ::testing::Values("tcp", "ofi"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace railyard
