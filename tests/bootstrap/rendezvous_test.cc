// The rendezvous over real sockets: server.cc and client.cc together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <deque>
#include <thread>

#include "helpers.hpp"

namespace railyard::bootstrap {
namespace {

using namespace rendezvous;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Two rounds of every call in `size` threads; returns how many ranks saw everything right.
int meet(const Address& address, int size) {
  std::atomic<int> right{0};
  in_threads(size, [&](int rank) {
    auto client = open_client(client_options(address, rank, size));
    ASSERT_TRUE(client) << client.error().text();
    EXPECT_EQ((*client)->rank(), rank);
    EXPECT_EQ((*client)->size(), size);
    for (int round = 0; round < 2; ++round) {
      const auto gathered = (*client)->allgather(bytes_of(contribution(rank)), {});
      ASSERT_TRUE(gathered) << gathered.error().text();
      ASSERT_TRUE(is_complete(gathered, size));
      const auto passed = (*client)->barrier({});
      ASSERT_TRUE(passed) << passed.error().text();
    }
    // Release by the thread's end: joined before it is read.
    right.fetch_add(1, std::memory_order_relaxed);
  });
  return right.load();
}

TEST(Rendezvous, OneRankMeetsItself) {
  const auto server = start_server(1);
  EXPECT_EQ(meet(server->address(), 1), 1);
}

TEST(Rendezvous, SixtyFourRanksGatherOverTcp) {
  const auto server = start_server(64);
  EXPECT_EQ(meet(server->address(), 64), 64);
}

TEST(Rendezvous, SixtyFourRanksGatherOverAUnixSocket) {
  const std::string path = ::testing::TempDir() + "railyard-meet-" + std::to_string(getpid());
  {
    const auto server = start_server(64, "unix:" + path);
    EXPECT_EQ(meet(server->address(), 64), 64);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Rendezvous, SixteenRanksGatherOverAnAbstractSocket) {
  const auto server = start_server(16, fmt::format("unix:@railyard-test-{}", getpid()));
  EXPECT_EQ(meet(server->address(), 16), 16);
}

// All clients of a large job at once, from one thread each for what takes time: the handshake and two collectives.
TEST(Rendezvous, FiveHundredAndTwelveRanksGather) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit before = limit;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 2048) GTEST_SKIP() << "needs 2048 open files, the limit is " << limit.rlim_cur;
  {
    const auto server = start_server(512);
    EXPECT_EQ(meet(server->address(), 512), 512);
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(Rendezvous, LargeAndEmptyContributionsGather) {
  constexpr int kSize = 4;
  const auto server = start_server(kSize);
  in_threads(kSize, [&](int rank) {
    auto client = open_client(client_options(server->address(), rank, kSize));
    ASSERT_TRUE(client) << client.error().text();
    const std::vector<std::byte> mine(rank == 2 ? 0 : (std::size_t{1} << 20U) + static_cast<std::size_t>(rank),
                                      static_cast<std::byte>(rank));
    const auto gathered = (*client)->allgather(mine, {});
    ASSERT_TRUE(gathered) << gathered.error().text();
    for (std::size_t peer = 0; peer < kSize; ++peer) {
      const std::vector<std::byte> expected(peer == 2 ? 0 : (std::size_t{1} << 20U) + peer,
                                            static_cast<std::byte>(peer));
      EXPECT_EQ((*gathered)[peer], expected);
    }
  });
}

TEST(Rendezvous, AContributionOverTheLimitIsRefusedAndTheOthersGoOn) {
  const auto server = start_server(1);
  auto client = open_client(client_options(server->address(), 0, 1));
  ASSERT_TRUE(client);
  const auto gathered = (*client)->allgather(std::vector<std::byte>(kMostContribution + 1), {});
  EXPECT_EQ(gathered.status(), Status::out_of_range);
  EXPECT_TRUE((*client)->barrier({}));
}

TEST(Rendezvous, TheServerMayComeLater) {
  const Address address = Address::parse(fmt::format("unix:@railyard-late-{}", getpid())).value();
  std::thread client([&] {
    auto opened = open_client(client_options(address, 0, 1));
    EXPECT_TRUE(opened) << opened.error().text();
  });
  std::this_thread::sleep_for(milliseconds(100));
  const auto server = start_server(1, address.text());
  client.join();
}

TEST(Rendezvous, NobodyAtTheAddressIsAClearError) {
  ClientOptions options = client_options(Address::parse("unix:@railyard-nobody").value(), 3, 8);
  options.timeout_ns = std::chrono::nanoseconds(milliseconds(200)).count();
  const auto client = open_client(options);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.status(), Status::timeout);
  EXPECT_THAT(client.error().message(),
              AllOf(HasSubstr("rank 3 could not join the rendezvous at unix:@railyard-nobody within 200 ms"),
                    HasSubstr("Connection refused"), HasSubstr("RAILYARD_RENDEZVOUS")));
}

TEST(Rendezvous, AMissingRankIsNamedToAllWhoCame) {
  const auto server = start_server(4);
  in_threads(4, [&](int rank) {
    if (rank == 2) return;
    ClientOptions options = client_options(server->address(), rank, 4);
    options.timeout_ns = std::chrono::nanoseconds(seconds(1)).count();
    const auto client = open_client(options);
    ASSERT_FALSE(client);
    EXPECT_EQ(client.status(), Status::timeout);
    EXPECT_THAT(client.error().message(), AllOf(HasSubstr("rank 2 of 4 did not arrive within "),
                                                HasSubstr(" at " + server->address().text() +
                                                          "; check that it was started and can reach that address")));
    EXPECT_EQ(client.error().where().peer, 2);
  });
}

TEST(Rendezvous, AWrongKeyIsRefusedOnBothSidesAndTheOthersMeet) {
  LogLines log;
  const auto server = start_server(2);
  ClientOptions wrong = client_options(server->address(), 1, 2);
  wrong.job_key = "guess";
  const auto refused = open_client(wrong);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.status(), Status::refused);
  EXPECT_THAT(refused.error().message(), AllOf(HasSubstr(server->address().text()), HasSubstr("RAILYARD_JOB_KEY")));
  EXPECT_THAT(log.all(), AllOf(HasSubstr("turned 127.0.0.1:"), HasSubstr("job key of rank 1")));
  EXPECT_EQ(log.all().find("guess"), std::string::npos);
  EXPECT_EQ(log.all().find(kKey), std::string::npos);
  EXPECT_EQ(meet(server->address(), 2), 2);
}

TEST(Rendezvous, ARankWithAWrongKeyIsExplainedToThoseWhoWait) {
  LogLines log;
  const auto server = start_server(2);
  std::thread waiting([&] {
    ClientOptions options = client_options(server->address(), 0, 2);
    options.timeout_ns = std::chrono::nanoseconds(seconds(2)).count();
    const auto client = open_client(options);
    ASSERT_FALSE(client);
    EXPECT_THAT(client.error().message(),
                HasSubstr("called itself rank 1 was turned away: its RAILYARD_JOB_KEY differs"));
  });
  ClientOptions wrong = client_options(server->address(), 1, 2);
  wrong.job_key = "guess";
  EXPECT_FALSE(open_client(wrong));
  waiting.join();
}

TEST(Rendezvous, NoKeyAtAllIsRefusedBeforeAnythingIsSent) {
  ClientOptions options = client_options(Address::parse("127.0.0.1:1").value(), 0, 1);
  options.job_key = "";
  EXPECT_THAT(open_client(options).error().message(), HasSubstr("RAILYARD_JOB_KEY"));
  ServerOptions server;
  server.address = Address::parse("127.0.0.1:0").value();
  EXPECT_THAT(Server::open(server).error().message(), HasSubstr("RAILYARD_JOB_KEY"));
}

TEST(Rendezvous, ADuplicateRankIsRefusedAndTheFirstGoesOn) {
  LogLines log;
  const auto server = start_server(2);
  std::atomic<int> refused{0};
  std::atomic<int> joined{0};
  const auto be_rank_0 = [&] {
    auto client = open_client(client_options(server->address(), 0, 2));
    if (client) {
      joined.fetch_add(1);
      return;
    }
    EXPECT_EQ(client.status(), Status::refused);
    EXPECT_THAT(client.error().message(), AllOf(HasSubstr("rank 0 is here already"), HasSubstr("RAILYARD_RANK=0")));
    refused.fetch_add(1);
  };
  std::thread first(be_rank_0);
  std::thread second(be_rank_0);
  while (refused.load() == 0) std::this_thread::sleep_for(milliseconds(1));
  auto other = open_client(client_options(server->address(), 1, 2));
  EXPECT_TRUE(other) << other.error().text();
  first.join();
  second.join();
  EXPECT_EQ(refused.load(), 1);
  EXPECT_EQ(joined.load(), 1);
  EXPECT_THAT(log.all(), HasSubstr("rank 0 is here already"));
}

TEST(Rendezvous, AnotherSizeIsRefusedAndTheOthersMeet) {
  LogLines log;
  const auto server = start_server(2);
  const auto refused = open_client(client_options(server->address(), 1, 3));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), AllOf(HasSubstr("3 ranks"), HasSubstr("RAILYARD_SIZE")));
  EXPECT_EQ(meet(server->address(), 2), 2);
}

TEST(Rendezvous, AnotherVersionIsRefusedAndTheOthersMeet) {
  LogLines log;
  const auto server = start_server(2);
  RawConnection connection(server->address());
  connection.send(
      make_frame(FrameType::hello, encode(Hello{kWireVersion + 1, Protocol::job, encode(Claim{0, 2}), {}})));
  const auto refusal = connection.read_refusal();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->status, Status::version_mismatch);
  EXPECT_THAT(log.all(), HasSubstr(fmt::format("version {} of the handshake does not fit version {}", kWireVersion + 1,
                                               kWireVersion)));
  EXPECT_EQ(meet(server->address(), 2), 2);
}

TEST(Rendezvous, AServerOfAnotherVersionIsNamedByTheClient) {
  auto listener = listen_at(Address::parse("127.0.0.1:0").value(), 1);
  ASSERT_TRUE(listener);
  std::thread other_version([&] {
    pollfd wait{listener->socket.get(), POLLIN, 0};
    ASSERT_EQ(poll(&wait, 1, static_cast<int>(milliseconds(kPatience).count())), 1);
    const Fd socket(::accept(listener->socket.get(), nullptr, nullptr));
    const auto frame = make_frame(FrameType::challenge, encode(Challenge{kWireVersion + 1, {}}));
    ASSERT_GT(::send(socket.get(), frame.bytes->data(), frame.bytes->size(), MSG_NOSIGNAL), 0);
    std::array<std::byte, 256> hello;
    while (::recv(socket.get(), hello.data(), hello.size(), 0) > 0) {
    }
  });
  const auto client = open_client(client_options(listener->address, 0, 1));
  EXPECT_EQ(client.status(), Status::version_mismatch);
  other_version.join();
}

TEST(Rendezvous, SomethingElseAtTheAddressIsNamedByTheClient) {
  auto listener = listen_at(Address::parse("127.0.0.1:0").value(), 1);
  ASSERT_TRUE(listener);
  std::thread web_server([&] {
    pollfd wait{listener->socket.get(), POLLIN, 0};
    ASSERT_EQ(poll(&wait, 1, static_cast<int>(milliseconds(kPatience).count())), 1);
    const Fd socket(::accept(listener->socket.get(), nullptr, nullptr));
    const std::string answer = "HTTP/1.1 400 Bad Request\r\n\r\n";
    ASSERT_GT(::send(socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL), 0);
    std::array<std::byte, 256> hello;
    while (::recv(socket.get(), hello.data(), hello.size(), 0) > 0) {
    }
  });
  const auto client = open_client(client_options(listener->address, 0, 1));
  ASSERT_FALSE(client);
  EXPECT_THAT(client.error().message(), HasSubstr("is no rendezvous of Railyard"));
  web_server.join();
}

TEST(Rendezvous, GarbageTruncationAndOversizeHarmNobody) {
  LogLines log;
  const auto server = start_server(2);
  RawConnection garbage(server->address());
  garbage.send(bytes_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_TRUE(garbage.read_refusal());
  RawConnection truncated(server->address());
  const auto hello = make_frame(FrameType::hello, encode(Hello{kWireVersion, Protocol::job, encode(Claim{0, 2}), {}}));
  truncated.send(std::span(*hello.bytes).first(20));
  truncated.close();
  RawConnection oversize(server->address());
  oversize.send(std::vector<std::byte>(4, std::byte{0xff}));
  EXPECT_TRUE(oversize.read_refusal());
  RawConnection empty(server->address());
  empty.send(std::vector<std::byte>(4, std::byte{0}));
  EXPECT_TRUE(empty.read_refusal());
  RawConnection open_until_the_end(server->address());
  open_until_the_end.send(std::span(*hello.bytes).first(7));
  EXPECT_EQ(meet(server->address(), 2), 2);
}

TEST(Rendezvous, AnUnauthenticatedPeerWhoStaysSilentIsClosed) {
  const auto server =
      start_server(1, "127.0.0.1:0", [](ServerOptions& options) { options.handshake_timeout_ns = 50'000'000; });
  RawConnection silent(server->address());
  EXPECT_TRUE(silent.read_to_end().empty());
}

TEST(Rendezvous, AFloodOfUnauthenticatedPeersDoesNotKeepTheRanksOut) {
  LogLines log;
  const auto server = start_server(4, "127.0.0.1:0", [](ServerOptions& options) { options.most_unauthenticated = 16; });
  std::atomic<bool> stop{false};
  std::thread flood([&] {
    std::deque<RawConnection> open;
    while (!stop.load()) {
      open.emplace_back(server->address());
      if (open.size() > 100) open.pop_front();
    }
  });
  EXPECT_EQ(meet(server->address(), 4), 4);
  stop.store(true);
  flood.join();
}

TEST(Rendezvous, DifferentCallsAreAnErrorForEverybody) {
  const auto server = start_server(3);
  in_threads(3, [&](int rank) {
    auto client = open_client(client_options(server->address(), rank, 3));
    ASSERT_TRUE(client) << client.error().text();
    const Status status = rank == 1 ? (*client)->barrier({}).status() : (*client)->allgather({}, {}).status();
    EXPECT_EQ(status, Status::invalid);
    // And so it stays.
    EXPECT_THAT((*client)->barrier({}).error().message(), HasSubstr("same order"));
  });
}

TEST(Rendezvous, ALateRankIsNamedInACall) {
  const auto server = start_server(3);
  std::atomic<int> given_up{0};
  in_threads(3, [&](int rank) {
    auto client = open_client(client_options(server->address(), rank, 3));
    ASSERT_TRUE(client) << client.error().text();
    if (rank == 1) {
      // Alive and busy with something else.
      while (given_up.load() < 2) std::this_thread::sleep_for(milliseconds(1));
      EXPECT_EQ((*client)->barrier({}).status(), Status::timeout);
      return;
    }
    const auto passed = (*client)->barrier(Deadline::in(milliseconds(300)));
    EXPECT_EQ(passed.status(), Status::timeout);
    EXPECT_EQ(passed.error().where().peer, 1);
    EXPECT_THAT(passed.error().message(),
                AllOf(HasSubstr("rank 1 of 3 did not enter barrier 1 within 300 ms"), HasSubstr("still connected")));
    given_up.fetch_add(1);
  });
}

TEST(Rendezvous, ARankThatClosesIsNamedToThoseWhoWait) {
  const auto server = start_server(2);
  in_threads(2, [&](int rank) {
    auto client = open_client(client_options(server->address(), rank, 2));
    ASSERT_TRUE(client) << client.error().text();
    if (rank == 1) return;
    const auto passed = (*client)->barrier({});
    EXPECT_EQ(passed.status(), Status::peer_lost);
    EXPECT_EQ(passed.error().where().peer, 1);
    EXPECT_THAT(passed.error().message(), HasSubstr("closed its bootstrap"));
  });
}

TEST(Rendezvous, ARendezvousThatGoesAwayIsAnError) {
  auto server = start_server(2);
  std::atomic<int> joined{0};
  std::thread stop([&] {
    while (joined.load() < 2) std::this_thread::sleep_for(milliseconds(1));
    server.reset();
  });
  const Address address = server->address();
  in_threads(2, [&](int rank) {
    auto client = open_client(client_options(address, rank, 2));
    ASSERT_TRUE(client) << client.error().text();
    joined.fetch_add(1);
    if (rank == 1) {
      while (joined.load() < 3) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    const auto passed = (*client)->barrier({});
    EXPECT_EQ(passed.status(), Status::peer_lost);
    EXPECT_THAT(passed.error().message(), AllOf(HasSubstr(address.text()), HasSubstr("is gone")));
    joined.fetch_add(1);
  });
  stop.join();
}

TEST(Rendezvous, TheSameRanksMeetManyTimes) {
  const auto server = start_server(3);
  in_threads(3, [&](int rank) {
    for (int round = 0; round < 20; ++round) {
      auto client = open_client(client_options(server->address(), rank, 3));
      ASSERT_TRUE(client) << client.error().text();
      ASSERT_TRUE((*client)->barrier({}));
    }
  });
}

TEST(Rendezvous, NoDescriptorIsLeftOpen) {
  const std::size_t before = open_descriptors();
  {
    LogLines log;
    const auto server = start_server(4);
    EXPECT_EQ(meet(server->address(), 4), 4);
    ClientOptions wrong = client_options(server->address(), 1, 4);
    wrong.job_key = "guess";
    EXPECT_FALSE(open_client(wrong));
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace railyard::bootstrap
