#include "shm/endpoint.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

namespace railyard::shm {
namespace {

struct Notes : Listener {
  int lefts = 0;
  int deaths = 0;
  int losses = 0;
  void left(Inbound&, bool died) override {
    ++lefts;
    deaths += died ? 1 : 0;
  }
  void lost(Outbound&) override { ++losses; }
};

class ShmEndpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/dev/shm/railyard-test-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Endpoint> open(const std::string& name, Listener& notes, bool can_sleep = false) {
    auto endpoint = Endpoint::open({.directory = directory_, .name = name, .can_sleep = can_sleep}, notes);
    EXPECT_TRUE(endpoint) << endpoint.error().text();
    return endpoint ? std::move(*endpoint) : nullptr;
  }
  static bool send(Outbound& to, std::uint64_t number) {
    Record* const record = to.reserve_line();
    if (record == nullptr) return false;
    record->arguments[0] = number;
    to.publish({.kind = 1, .flags = Word::kInFirst});
    return true;
  }
  /// Polls until `done`; false after a time that only a hang takes.
  static bool poll_until(Endpoint& endpoint, const std::function<void(Inbound&, std::uint64_t)>& handle,
                         const std::function<bool()>& done) {
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60); !done();) {
      const std::size_t taken = endpoint.poll([&](Inbound& from, const Arrival& arrival) {
        handle(from, arrival.record->arguments[0]);
        return true;
      });
      if (taken == 0) std::this_thread::yield();
      if (std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory_), {}));
  }
  /// Runs `body` in a child process that ends without clean-up; returns its pid.
  static pid_t child(const std::function<void()>& body) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      body();
      ::_exit(0);
    }
    return pid;
  }

  std::string directory_;
};

TEST_F(ShmEndpoint, RecordsGoBothWays) {
  Notes notes;
  auto a = open("a", notes);
  auto b = open("", notes);
  auto to_a = b->connect_name("a");
  ASSERT_TRUE(to_a) << to_a.error().text();
  ASSERT_TRUE(send(**to_a, 41));
  std::uint64_t got = 0;
  Identity sender;
  ASSERT_TRUE(poll_until(
      *a,
      [&](Inbound& from, std::uint64_t number) {
        got = number;
        sender = from.sender();
      },
      [&] { return got != 0; }));
  EXPECT_EQ(got, 41u);
  EXPECT_EQ(sender, b->identity());
  auto to_b = a->connect_identity(sender);
  ASSERT_TRUE(to_b);
  ASSERT_TRUE(send(**to_b, 42));
  ASSERT_TRUE(poll_until(
      *b,
      [&](Inbound& from, std::uint64_t number) {
        got = number;
        EXPECT_EQ(from.name(), "a");
      },
      [&] { return got == 42; }));
}

TEST_F(ShmEndpoint, ObjectsArePrivateAndGoneAfterClose) {
  Notes notes;
  {
    auto a = open("some:name", notes, true);
    EXPECT_EQ(files(), 3u);
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      struct stat status {};
      ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 0777, 0600u) << entry.path();
    }
  }
  EXPECT_EQ(files(), 0u);
}

TEST_F(ShmEndpoint, ANameInUseIsRefusedAndItsOwnerUntouched) {
  Notes notes;
  auto first = open("server", notes);
  auto second = Endpoint::open({.directory = directory_, .name = "server"}, notes);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.status(), Status::busy);
  auto client = open("", notes);
  auto to = client->connect_name("server");
  ASSERT_TRUE(to);
  EXPECT_EQ((*to)->identity(), first->identity());
  EXPECT_EQ(files(), 3u);
}

TEST_F(ShmEndpoint, ADeadOwnersNameIsFree) {
  ::waitpid(child([&] {
              Notes notes;
              auto kept = open("server", notes, true).release();
              (void)kept;
              ::raise(SIGKILL);
            }),
            nullptr, 0);
  EXPECT_EQ(files(), 3u);
  Notes notes;
  auto client = open("", notes);
  auto to = client->connect_name("server");
  ASSERT_FALSE(to);
  EXPECT_EQ(to.status(), Status::not_found);
  auto server = open("server", notes);
  EXPECT_EQ(files(), 3u) << "two identities and one name";
}

TEST_F(ShmEndpoint, AForkedChildNeitherKeepsNorEndsItsParentsEndpoint) {
  int pipes[2];
  ASSERT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
  const pid_t owner = child([&] {
    Notes notes;
    auto server = open("server", notes, true);
    // This one lives on after its parent, with everything that fork gave it.
    int started[2];
    if (::pipe2(started, O_CLOEXEC) != 0) return;
    const pid_t survivor = child([&] {
      [[maybe_unused]] const ssize_t told = ::write(started[1], "", 1);
      while (true) ::pause();
    });
    // Until it runs it holds what fork gave it.
    char byte = 0;
    [[maybe_unused]] const ssize_t heard = ::read(started[0], &byte, 1);
    // This one destroys what it was given, as a program that ends normally does.
    ::waitpid(child([&] { server.reset(); }), nullptr, 0);
    const pid_t answers[2] = {survivor, static_cast<pid_t>(files())};
    [[maybe_unused]] const ssize_t written = ::write(pipes[1], answers, sizeof answers);
    while (true) ::pause();
  });
  pid_t answers[2] = {0, 0};
  ASSERT_EQ(::read(pipes[0], answers, sizeof answers), static_cast<ssize_t>(sizeof answers));
  EXPECT_EQ(answers[1], 3) << "the child removed its parent's names";
  Notes notes;
  {
    auto client = open("", notes);
    EXPECT_TRUE(client->connect_name("server"));
    EXPECT_EQ(Endpoint::open({.directory = directory_, .name = "server"}, notes).status(), Status::busy);
  }
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  auto next = open("server", notes);
  EXPECT_EQ(files(), 2u) << "the survivor does not keep the dead one's names";
  ::kill(answers[0], SIGKILL);
  ::close(pipes[0]);
  ::close(pipes[1]);
}

TEST_F(ShmEndpoint, RemovingTheDeadSparesTheLiving) {
  Notes notes;
  auto alive = open("alive", notes, true);
  ::waitpid(child([&] {
              auto kept = open("dead", notes, true).release();
              (void)kept;
              ::raise(SIGKILL);
            }),
            nullptr, 0);
  EXPECT_EQ(files(), 6u);
  remove_dead_objects(directory_);
  EXPECT_EQ(files(), 3u);
  auto client = open("", notes);
  EXPECT_TRUE(client->connect_name("alive"));
}

TEST_F(ShmEndpoint, AnotherLayoutIsRefusedWhileItLivesAndReplacedWhenDead) {
  Notes notes;
  auto server = open("server", notes);
  std::string path;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) path = entry.path();
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  const std::uint32_t other = kLayoutVersion + 1;
  ASSERT_EQ(::pwrite(fd, &other, sizeof other, offsetof(ObjectHeader, version)), 4);
  auto client = open("", notes);
  auto to = client->connect_name("server");
  ASSERT_FALSE(to);
  EXPECT_EQ(to.status(), Status::version_mismatch);
  // The same left behind by a dead one.
  const auto left_behind = std::filesystem::path(path).parent_path() / "kept";
  std::filesystem::create_hard_link(path, left_behind);
  server.reset();
  ::close(fd);
  std::filesystem::rename(left_behind, directory_ + "/railyard-name-" + std::to_string(::geteuid()) + "-server");
  server = open("server", notes);
  EXPECT_TRUE(client->connect_name("server"));
}

TEST_F(ShmEndpoint, AFileOfAnotherSizeIsRefused) {
  Notes notes;
  auto server = open("server", notes);
  std::string path = directory_ + "/railyard-" + server->identity().text();
  ASSERT_EQ(::truncate(path.c_str(), kPage * 2), 0);
  auto client = open("", notes);
  auto to = client->connect_name("server");
  ASSERT_FALSE(to);
  EXPECT_EQ(to.status(), Status::invalid);
  ASSERT_EQ(::truncate(path.c_str(), kObjectBytes), 0);
}

TEST_F(ShmEndpoint, HundredsOfSendersAreAllHeardInOrder) {
  Notes notes;
  auto server = open("server", notes);
  constexpr std::size_t kSenders = 300;
  std::vector<std::unique_ptr<Endpoint>> senders;
  std::vector<Outbound*> ways;
  std::map<Identity, std::uint64_t> heard;
  for (std::size_t index = 0; index < kSenders; ++index) {
    senders.push_back(open("", notes));
    auto to = senders.back()->connect_name("server");
    ASSERT_TRUE(to) << to.error().text();
    ways.push_back(*to);
  }
  for (std::uint64_t number = 0; number < 5; ++number)
    for (Outbound* to : ways) ASSERT_TRUE(send(*to, number));
  std::size_t total = 0;
  ASSERT_TRUE(poll_until(
      *server,
      [&](Inbound& from, std::uint64_t number) {
        EXPECT_EQ(heard[from.sender()]++, number);
        ++total;
      },
      [&] { return total == kSenders * 5; }));
  senders.clear();
  ASSERT_TRUE(poll_until(
      *server, [](Inbound&, std::uint64_t) {}, [&] { return server->sender_count() == 0; }));
  EXPECT_EQ(notes.lefts, static_cast<int>(kSenders));
  EXPECT_EQ(notes.deaths, 0);
  // Their rings serve again.
  auto late = open("", notes);
  auto to = late->connect_name("server");
  ASSERT_TRUE(to && send(**to, 77));
  std::uint64_t got = 0;
  ASSERT_TRUE(poll_until(
      *server, [&](Inbound&, std::uint64_t number) { got = number; }, [&] { return got == 77; }));
}

TEST_F(ShmEndpoint, ARecordThatIsNotTakenStaysAndHoldsUpItsSenderAlone) {
  Notes notes;
  auto server = open("server", notes);
  auto slow = open("", notes);
  auto quick = open("", notes);
  auto from_slow = slow->connect_name("server");
  auto from_quick = quick->connect_name("server");
  ASSERT_TRUE(from_slow && from_quick);
  std::uint64_t sent = 0;
  while (send(**from_slow, sent)) ++sent;
  std::uint64_t quick_got = 0;
  std::uint64_t slow_got = 0;
  bool taking = false;
  const auto handler = [&](Inbound& from, const Arrival& arrival) {
    if (from.sender() == quick->identity()) return ++quick_got != 0;
    if (!taking) return false;
    EXPECT_EQ(arrival.record->arguments[0], slow_got);
    return ++slow_got != 0;
  };
  for (std::uint64_t number = 0; number < 20'000; ++number) {
    while (!send(**from_quick, number)) server->poll(handler);
    server->poll(handler);
  }
  while (quick_got < 20'000) server->poll(handler);
  EXPECT_EQ(slow_got, 0u);
  EXPECT_FALSE(send(**from_slow, sent));
  taking = true;
  while (slow_got < sent) server->poll(handler);
  EXPECT_TRUE(send(**from_slow, sent));
}

TEST_F(ShmEndpoint, AKilledSenderIsReadToItsLastRecordReportedAndReclaimed) {
  Notes notes;
  auto server = open("server", notes);
  const pid_t pid = child([&] {
    Notes own;
    auto sender = open("", own);
    auto to = sender->connect_name("server");
    for (std::uint64_t number = 0; number < 100; ++number) send(**to, number);
    // Half of a record more.
    (*to)->reserve_line()->arguments[0] = 100;
    ::raise(SIGKILL);
  });
  ::waitpid(pid, nullptr, 0);
  std::uint64_t heard = 0;
  ASSERT_TRUE(poll_until(
      *server, [&](Inbound&, std::uint64_t number) { EXPECT_EQ(number, heard++); },
      [&] { return notes.deaths == 1 && server->sender_count() == 0; }));
  EXPECT_EQ(heard, 100u);
  EXPECT_EQ(files(), 2u) << "only the server's own names are left";
}

TEST_F(ShmEndpoint, AKilledReceiverIsReportedAndAnotherMayTakeItsName) {
  Notes notes;
  auto client = open("", notes);
  const auto serve = [&](int signal) {
    return child([&, signal] {
      Notes own;
      auto server = open("server", own);
      bool stop = false;
      poll_until(
          *server, [&](Inbound&, std::uint64_t number) { stop = number == 9; }, [&] { return stop; });
      ::raise(signal);
    });
  };
  for (int incarnation = 0; incarnation < 3; ++incarnation) {
    const pid_t pid = serve(SIGKILL);
    Result<Outbound*> to = client->connect_name("server");
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
         !to && std::chrono::steady_clock::now() < end; to = client->connect_name("server"))
      std::this_thread::yield();
    ASSERT_TRUE(to) << to.error().text();
    ASSERT_TRUE(send(**to, 9));
    ::waitpid(pid, nullptr, 0);
    ASSERT_TRUE(poll_until(
        *client, [](Inbound&, std::uint64_t) {}, [&] { return notes.losses == incarnation + 1; }));
  }
}

TEST_F(ShmEndpoint, SenderKilledAtRandomMomentsNeverBlocksTheOthers) {
  Notes notes;
  auto server = open("server", notes);
  Notes steady_notes;
  auto steady = open("", steady_notes);
  auto to = steady->connect_name("server");
  ASSERT_TRUE(to);
  std::uint64_t next = 0;
  std::map<Identity, std::uint64_t> heard;
  for (int round = 0; round < 20; ++round) {
    const pid_t pid = child([&] {
      Notes own;
      auto sender = open("", own);
      auto way = sender->connect_name("server");
      for (std::uint64_t number = 0;; number += send(**way, number) ? 1 : 0) {
      }
    });
    const int deaths = notes.deaths;
    std::uint64_t until = next + 2000 + static_cast<std::uint64_t>(round) * 131;
    bool killed = false;
    std::uint64_t received_from_steady = heard[steady->identity()];
    ASSERT_TRUE(poll_until(
        *server,
        [&](Inbound& from, std::uint64_t number) {
          EXPECT_EQ(heard[from.sender()]++, number);
          received_from_steady = heard[steady->identity()];
        },
        [&] {
          if (next < until && send(**to, next)) ++next;
          if (!killed && next == until) {
            ::kill(pid, SIGKILL);
            ::waitpid(pid, nullptr, 0);
            killed = true;
          }
          return killed && received_from_steady == until && server->sender_count() == 1;
        }));
    EXPECT_LE(notes.deaths, deaths + 1);
  }
  // Those who were killed before anybody knew them are found by looking.
  remove_dead_objects(directory_);
  EXPECT_EQ(files(), 3u);
}

TEST_F(ShmEndpoint, ASleeperIsWokenByARecord) {
  Notes notes;
  auto sleeper = open("sleeper", notes, true);
  auto sender = open("", notes);
  auto to = sender->connect_name("sleeper");
  ASSERT_TRUE(to);
  EXPECT_FALSE(sleeper->fall_asleep()) << "the new sender is news";
  sleeper->poll([](Inbound&, const Arrival&) { return true; });
  for (std::uint64_t number = 0; number < 100; ++number) {
    sleeper->wake_up();
    ASSERT_TRUE(sleeper->fall_asleep());
    std::thread other([&] { send(**to, number); });
    pollfd bell{.fd = sleeper->bell(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&bell, 1, 60'000), 1);
    other.join();
    sleeper->wake_up();
    EXPECT_FALSE(sleeper->fall_asleep()) << "there is a record to read";
    std::size_t taken = 0;
    while (taken == 0) taken = sleeper->poll([](Inbound&, const Arrival&) { return true; });
    EXPECT_EQ(taken, 1u);
  }
}

TEST_F(ShmEndpoint, AnImpossibleWordEndsThatSenderOnly) {
  Notes notes;
  auto server = open("server", notes);
  auto honest = open("", notes);
  auto crooked = open("", notes);
  auto good = honest->connect_name("server");
  auto bad = crooked->connect_name("server");
  ASSERT_TRUE(good && bad);
  ASSERT_NE((*bad)->reserve_line(), nullptr);
  (*bad)->publish({.bytes = 0x7fffffff, .kind = 1});
  std::uint64_t got = 0;
  ASSERT_TRUE(send(**good, 5));
  ASSERT_TRUE(poll_until(
      *server, [&](Inbound&, std::uint64_t number) { got = number; }, [&] { return got == 5 && notes.deaths == 1; }));
  ASSERT_TRUE(send(**good, 6));
  ASSERT_TRUE(poll_until(
      *server, [&](Inbound&, std::uint64_t number) { got = number; }, [&] { return got == 6; }));
}

}  // namespace
}  // namespace railyard::shm
