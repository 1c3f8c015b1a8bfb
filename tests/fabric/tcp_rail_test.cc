/// What is particular to rails over our own sockets: shared connections, exact keys, refusals that cost nothing else.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "fabric/tcp/handshake.hpp"
#include "fabric/tcp/rail.hpp"
#include "fabric/two_rails.hpp"
#include "sanitized.hpp"

namespace railyard::fabric {
namespace {

std::set<int> descriptors_now() {
  std::set<int> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(entry.path().filename());
    if (::fcntl(number, F_GETFD) >= 0) open.insert(number);
  }
  return open;
}

class TcpRailTest : public TwoRails {
 protected:
  static constexpr LinkTag kThere{11, 1, 22};
  static constexpr LinkTag kBack{22, 1, 11};

  void face_each_other(std::uint32_t epoch = 1) {
    a_.rail->disconnect(a_.peer);
    b_.rail->disconnect(b_.peer);
    pump_until([n = 0]() mutable { return n++ == 200; });
    connect(a_, b_, {kThere.id, epoch, kThere.facing});
    connect(b_, a_, {kBack.id, epoch, kBack.facing});
    ASSERT_TRUE(delivers());
    ASSERT_TRUE(delivers_back());
  }
  bool delivers_back() {
    std::swap(a_, b_);
    const bool answer = delivers();
    std::swap(a_, b_);
    return answer;
  }
  Post write(PostContext& context, const Registration& to, std::size_t offset, std::size_t bytes,
             WriteOptions options = {}) {
    return insist([&] {
      return a_.rail->write({a_.peer, to.remote_base + offset, to.key}, a_.chunk(0, bytes, kData), options, &context);
    });
  }
  void settle() {
    for (int i = 0; i < 50; ++i) pump_until([n = 0]() mutable { return n++ == 20; });
  }
};
INSTANTIATE_TEST_SUITE_P(Beds, TcpRailTest, ::testing::Values(kSockets),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(TcpRailTest, EveryDescriptorIsClosedInChildren) {
  ASSERT_TRUE(delivers());
  ASSERT_TRUE(delivers_back());
  std::size_t sockets = 0;
  for (const int number : descriptors_now()) {
    std::array<char, 64> target{};
    const std::string link = "/proc/self/fd/" + std::to_string(number);
    if (::readlink(link.c_str(), target.data(), target.size() - 1) <= 0) continue;
    const std::string_view what(target.data());
    if (!what.starts_with("socket:") && what.find("eventpoll") == std::string_view::npos) continue;
    ++sockets;
    EXPECT_NE(::fcntl(number, F_GETFD) & FD_CLOEXEC, 0) << what;
  }
  EXPECT_GE(sockets, 8u);
}

/// A child that was forked and starts no program keeps the sockets open, and with them what an epoll set watches: such
/// an event would name a connection that is gone.
TEST_P(TcpRailTest, AConnectionThatEndsIsWatchedNoMoreThoughAForkedChildHasItsSocket) {
  ASSERT_TRUE(delivers());
  const auto watched = [&] {
    std::ifstream file("/proc/self/fdinfo/" + std::to_string(a_.rail->descriptor()));
    std::size_t count = 0;
    for (std::string line; std::getline(file, line);) count += line.starts_with("tfd:") ? 1 : 0;
    return count;
  };
  const std::size_t before = watched();
  ASSERT_GE(before, 2u);
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  ASSERT_GT(child, 0);
  a_.rail->disconnect(a_.peer);
  b_.rail->disconnect(b_.peer);
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  pump_until([&] { return watched() < before || std::chrono::steady_clock::now() > give_up; });
  EXPECT_LT(watched(), before);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

/// Traffic over shared memory beside it would pay for each system call.
TEST_P(TcpRailTest, AnIdleRailMakesNoSystemCallInEveryPass) {
#ifdef RAILYARD_SANITIZED
  GTEST_SKIP() << "under sanitizers everything but a system call is slow";
#endif
  ASSERT_TRUE(delivers());
  std::array<Event, 8> events;
  for (int i = 0; i < 5'000; ++i) ASSERT_EQ(a_.rail->poll(events), 0u);
  const Fd set(::epoll_create1(EPOLL_CLOEXEC));
  const auto time_of = [](auto&& call) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 20'000; ++i) call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::array<double, 7> ratios{};
  for (double& ratio : ratios) {
    const double polls = time_of([&] { a_.rail->poll(events); });
    epoll_event one{};
    ratio = polls / time_of([&] { ::epoll_wait(set.get(), &one, 1, 0); });
  }
  std::ranges::sort(ratios);
  EXPECT_LT(ratios[3], 0.5);
}

/// The kernel tells by this option whether it would acknowledge what comes before anybody has answered it.
TEST_P(TcpRailTest, WhatWakesASleeperIsNotAcknowledgedAheadOfItsAnswer) {
  face_each_other();
  ASSERT_TRUE(delivers());
  for (const auto* side : {&a_, &b_}) {
    pump_until([&] { return side->rail->arm(); });
    ASSERT_TRUE(side->rail->arm());
  }
  // Longer than the kernel keeps an acknowledgement back: it has nothing left to regret.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  int connections = 0;
  for (const int descriptor : descriptors_now()) {
    tcp_info info{};
    socklen_t length = sizeof info;
    if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || info.tcpi_state != TCP_ESTABLISHED)
      continue;
    ++connections;
    int quick = 1;
    length = sizeof quick;
    ASSERT_EQ(::getsockopt(descriptor, IPPROTO_TCP, TCP_QUICKACK, &quick, &length), 0);
    EXPECT_EQ(quick, 0);
  }
  EXPECT_GE(connections, 2);
}

TEST_P(TcpRailTest, LinksThatFaceEachOtherShareOneConnection) {
  a_.rail->disconnect(a_.peer);
  b_.rail->disconnect(b_.peer);
  settle();
  const std::size_t before = descriptors_now().size();
  for (std::uint32_t round = 1; round <= 30; ++round) {
    // Both connect at once, or one after the other.
    connect(a_, b_, {kThere.id, round, kThere.facing});
    if (round % 3 == 0) {
      ASSERT_TRUE(delivers());
    }
    connect(b_, a_, {kBack.id, round, kBack.facing});
    ASSERT_TRUE(delivers()) << round;
    ASSERT_TRUE(delivers_back()) << round;
    settle();
    EXPECT_EQ(descriptors_now().size(), before + 2) << "round " << round;
    a_.rail->disconnect(a_.peer);
    if (round % 2 == 0) settle();
    b_.rail->disconnect(b_.peer);
    settle();
    EXPECT_EQ(descriptors_now().size(), before) << "round " << round;
  }
  EXPECT_EQ(seen(a_, Event::Kind::lost), 0u);
  EXPECT_EQ(seen(b_, Event::Kind::lost), 0u);
}

TEST_P(TcpRailTest, AQuietEndOfOneLinkLeavesTheFacingOne) {
  face_each_other();
  log_.clear();
  a_.rail->disconnect(a_.peer);
  ASSERT_TRUE(pump_until([&] { return seen(b_, Event::Kind::left) == 1; }));
  EXPECT_EQ(find(b_, Event::Kind::left)->link.id, kThere.id);
  EXPECT_TRUE(delivers_back());
  EXPECT_EQ(seen(b_, Event::Kind::lost), 0u);
  connect(a_, b_, {kThere.id, 2, kThere.facing});
  EXPECT_TRUE(delivers());
}

TEST_P(TcpRailTest, AFenceCostsTheFacingLinkAReconnectAndNothingElse) {
  face_each_other();
  log_.clear();
  bool done = false;
  ASSERT_TRUE(pump_until([&] { return done || (done = b_.rail->fence(kThere)); }));
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1 && seen(b_, Event::Kind::lost) == 1; }));
  a_.rail->disconnect(a_.peer);
  b_.rail->disconnect(b_.peer);
  connect(b_, a_, {kBack.id, 2, kBack.facing});
  connect(a_, b_, {kThere.id, 2, kThere.facing});
  EXPECT_TRUE(delivers());
  EXPECT_TRUE(delivers_back());
}

TEST_P(TcpRailTest, ARefusedOperationIsToBlameAndTheLinkGoesOn) {
  face_each_other();
  log_.clear();
  std::array<PostContext, 5> contexts;
  Registration wrong = b_.registration;
  wrong.key ^= 1;
  ASSERT_EQ(write(contexts[0], wrong, 0, 1 << 20), Post::posted);
  // The first fragments are inside, the last is not: nothing of it may land.
  fill(std::span(a_.memory), 1);
  ASSERT_EQ(write(contexts[1], b_.registration, 4096, 1 << 20, {.with_immediate = true}), Post::posted);
  ASSERT_EQ(write(contexts[2], b_.registration, UINT64_MAX - 5, 8), Post::posted);
  ASSERT_EQ(a_.rail->read({a_.peer, 1 << 20, b_.registration.key}, a_.chunk(0, 8, kData), &contexts[3]), Post::posted);
  ASSERT_EQ(write(contexts[4], b_.registration, 0, 64), Post::posted);
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::failed) == 4 && seen(a_, Event::Kind::written) == 1; }));
  for (const auto& [rail, event] : log_) {
    if (event.kind != Event::Kind::failed) continue;
    EXPECT_EQ(event.blame, Blame::operation);
    EXPECT_EQ(event.error, tcp::kNoSuchRegion);
  }
  EXPECT_EQ(find(a_, Event::Kind::written)->context, &contexts[4]);
  EXPECT_TRUE(std::all_of(b_.memory.begin() + 4096, b_.memory.end(), [](std::byte x) { return x == std::byte{0}; }));
  EXPECT_EQ(seen(b_, Event::Kind::landed), 0u);
  EXPECT_EQ(seen(a_, Event::Kind::lost), 0u);
  EXPECT_TRUE(delivers());
}

TEST_P(TcpRailTest, RevokedMemoryIsNotTouchedInTheMiddleOfAWrite) {
  face_each_other();
  std::size_t failures = 0;
  for (unsigned round = 1; round <= 40; ++round) {
    log_.clear();
    std::vector<std::byte> memory(1 << 20);
    auto registration = b_.rail->register_memory(memory, {.remote = true});
    ASSERT_TRUE(registration.ok());
    std::fill(a_.memory.begin(), a_.memory.end(), static_cast<std::byte>(round));
    std::array<PostContext, 8> contexts;
    for (PostContext& context : contexts) ASSERT_EQ(write(context, *registration, 0, 1 << 20), Post::posted);
    pump_until([n = 0u, round]() mutable { return n++ == round % 13; });
    b_.rail->revoke(*registration);
    std::fill(memory.begin(), memory.end(), std::byte{0xee});
    ASSERT_TRUE(pump_until([&] {
      return std::ranges::all_of(contexts, [&](const PostContext& context) { return told(a_, &context) == 1; });
    }));
    EXPECT_TRUE(std::ranges::all_of(memory, [](std::byte x) { return x == std::byte{0xee}; })) << "round " << round;
    failures += seen(a_, Event::Kind::failed);
    EXPECT_EQ(seen(a_, Event::Kind::lost), 0u);
  }
  EXPECT_GT(failures, 0u);
  EXPECT_TRUE(delivers());
}

TEST_P(TcpRailTest, RevokedMemoryIsNotReadInTheMiddleOfARead) {
  face_each_other();
  std::size_t failures = 0;
  for (unsigned round = 1; round <= 40; ++round) {
    log_.clear();
    std::vector<std::byte> memory(1 << 20, static_cast<std::byte>(round));
    auto registration = b_.rail->register_memory(memory, {.remote = true});
    ASSERT_TRUE(registration.ok());
    std::array<PostContext, 8> contexts;
    for (PostContext& context : contexts)
      ASSERT_EQ(insist([&] {
                  return a_.rail->read({a_.peer, 0, registration->key}, a_.chunk(0, 1 << 20, kData), &context);
                }),
                Post::posted);
    pump_until([n = 0u, round]() mutable { return n++ == round % 13; });
    b_.rail->revoke(*registration);
    memory.assign(memory.size(), std::byte{0xee});
    ASSERT_TRUE(pump_until([&] {
      for (const auto& [rail, event] : log_) {
        // Whatever is reported as read was there before.
        if (event.kind != Event::Kind::read) continue;
        EXPECT_EQ(std::ranges::count(a_.memory, std::byte{0xee}), 0) << "round " << round;
      }
      return std::ranges::all_of(contexts, [&](const PostContext& context) { return told(a_, &context) == 1; });
    }));
    failures += seen(a_, Event::Kind::failed);
    EXPECT_EQ(seen(a_, Event::Kind::lost), 0u);
  }
  EXPECT_GT(failures, 0u);
  EXPECT_TRUE(delivers());
}

TEST_P(TcpRailTest, KeysAreRandomAndOnlyForDestinations) {
  std::vector<std::uint64_t> keys;
  for (int i = 0; i < 64; ++i) {
    auto registration = a_.rail->register_memory(a_.memory, {.remote = true});
    ASSERT_TRUE(registration.ok());
    keys.push_back(registration->key);
    a_.rail->revoke(*registration);
  }
  std::ranges::sort(keys);
  EXPECT_EQ(std::ranges::adjacent_find(keys, [](auto x, auto y) { return y - x < (std::uint64_t{1} << 32); }),
            keys.end());
  auto local = a_.rail->register_memory(a_.memory, {});
  ASSERT_TRUE(local.ok());
  EXPECT_EQ(local->key, 0u);
  PostContext context;
  ASSERT_EQ(write(context, *local, 0, 8), Post::posted);
  ASSERT_TRUE(pump_until([&] { return told(a_, &context) == 1; }));
  EXPECT_EQ(seen(a_, Event::Kind::failed), 1u);
}

TEST_P(TcpRailTest, AMessageDoesNotWaitForAllTheDataBeforeIt) {
  face_each_other();
  log_.clear();
  constexpr std::size_t kWrites = 64;
  std::array<PostContext, kWrites> writes;
  for (PostContext& context : writes)
    ASSERT_EQ(write(context, b_.registration, 0, 1 << 20, {.with_immediate = true}), Post::posted);
  PostContext sent;
  PostContext received;
  ASSERT_EQ(b_.rail->receive(b_.chunk(0, 64, kControl), &received), Post::posted);
  ASSERT_EQ(a_.rail->send(a_.peer, a_.chunk(0, 8, kControl), &sent), Post::posted);
  ASSERT_TRUE(pump_until([&] { return seen(b_, Event::Kind::landed) == kWrites && told(b_, &received) == 1; }));
  std::size_t before = 0;
  for (const auto& [rail, event] : log_) {
    if (event.kind == Event::Kind::landed) ++before;
    if (event.kind == Event::Kind::received) break;
  }
  EXPECT_LT(before, kWrites / 4);
}

TEST_P(TcpRailTest, ABadSourceIsTheOperationsFault) {
  ASSERT_TRUE(delivers());
  PostContext context;
  ASSERT_EQ(insist([&] {
              return a_.rail->write({a_.peer, b_.at(0), b_.registration.key},
                                    {reinterpret_cast<void*>(0x1000), 4096, nullptr}, {}, &context);
            }),
            Post::posted);
  ASSERT_TRUE(pump_until([&] { return told(a_, &context) == 1; }));
  EXPECT_EQ(find(a_, Event::Kind::failed)->blame, Blame::operation);
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; }));
  a_.rail->disconnect(a_.peer);
  connect(a_, b_, {0, 1});
  EXPECT_TRUE(delivers());
}

TEST_P(TcpRailTest, AStoppedProcessIsAliveAndAKilledOneIsLost) {
  const std::vector<std::byte> address = b_.rail->address();
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto rails = open_bed(GetParam(), 1);
    if (!rails.ok()) ::_exit(1);
    const auto own = (*rails)[0]->address();
    if (::write(pipe[1], own.data(), own.size()) != static_cast<ssize_t>(own.size())) ::_exit(1);
    std::array<Event, 8> events;
    for (;;) (*rails)[0]->poll(events);
  }
  std::vector<std::byte> there(256);
  const ssize_t got = ::read(pipe[0], there.data(), there.size());
  ASSERT_GT(got, 0);
  there.resize(static_cast<std::size_t>(got));
  auto remote = a_.rail->connect(there, {900, 1});
  ASSERT_TRUE(remote.ok());
  PostContext sent;
  ASSERT_EQ(insist([&] { return a_.rail->send(*remote, a_.chunk(0, 8, kControl), &sent); }), Post::posted);
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  // Long enough for the last word to be old: what answers from here on is the kernel.
  std::this_thread::sleep_for(std::chrono::seconds(4));
  EXPECT_EQ(a_.rail->liveness(*remote), Liveness::alive);
  log_.clear();
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; }));
  a_.rail->disconnect(*remote);
  log_.clear();
  remote = a_.rail->connect(there, {900, 2});
  ASSERT_TRUE(remote.ok());
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; }));
  EXPECT_TRUE(find(a_, Event::Kind::lost)->refused);
  EXPECT_EQ(a_.rail->liveness(*remote), Liveness::gone);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

/// Whoever refuses may be a packet filter, or another machine at the peer's address.
TEST_P(TcpRailTest, ARefusalWhereNoConnectionEverLedIsNoProofThatAProcessIsGone) {
  auto gone = open_bed(GetParam(), 1);
  ASSERT_TRUE(gone.ok());
  const auto address = gone->front()->address();
  gone->clear();
  const auto remote = a_.rail->connect(address, {900, 1});
  ASSERT_TRUE(remote.ok());
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; }));
  EXPECT_FALSE(find(a_, Event::Kind::lost)->refused);
  EXPECT_TRUE(find(a_, Event::Kind::lost)->unverified);
  EXPECT_NE(a_.rail->liveness(*remote), Liveness::gone);
}

/// A neighbour entry or a packet filter that is being changed refuses once, and so does whoever has the port for a
/// moment: the link comes about all the same.
TEST_P(TcpRailTest, OneRefusalIsTriedAgain) {
  Settings settings = settings_for(GetParam(), 1);
  auto rails = open_rails(settings);
  ASSERT_TRUE(rails.ok());
  const auto known = tcp::TcpRailAddress::parse(rails->front()->address(), "test");
  ASSERT_TRUE(known);
  auto remote = a_.rail->connect(known->pack(), {900, 1});
  ASSERT_TRUE(remote.ok());
  PostContext word;
  ASSERT_TRUE(pump({a_.rail.get(), rails->front().get()}, log_,
                   [&] { return a_.rail->send(*remote, a_.chunk(0, 8, kControl), &word) == Post::posted; }));
  a_.rail->disconnect(*remote);
  rails->clear();
  // At its port sits somebody who rejects whoever comes, and counts.
  const Fd other(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int again = 1;
  ASSERT_EQ(::setsockopt(other.get(), SOL_SOCKET, SO_REUSEADDR, &again, sizeof again), 0);
  ASSERT_EQ(::bind(other.get(), known->endpoint.get(), known->endpoint.length), 0);
  ASSERT_EQ(::listen(other.get(), 8), 0);
  log_.clear();
  remote = a_.rail->connect(known->pack(), {900, 2});
  ASSERT_TRUE(remote.ok());
  std::vector<Fd> met;
  const auto rejection = tcp::pack_rejection();
  ASSERT_TRUE(pump_until([&] {
    if (Fd one(::accept4(other.get(), nullptr, nullptr, SOCK_CLOEXEC)); one) {
      EXPECT_EQ(seen(a_, Event::Kind::lost), 0u) << "given up after " << met.size() << " attempts";
      (void)::send(one.get(), rejection.data(), rejection.size(), MSG_NOSIGNAL);
      met.push_back(std::move(one));
    }
    return seen(a_, Event::Kind::lost) == 1;
  }));
  EXPECT_EQ(met.size(), 3u);
  EXPECT_TRUE(find(a_, Event::Kind::lost)->refused) << "three times in a row is believed";
}

}  // namespace
}  // namespace railyard::fabric
