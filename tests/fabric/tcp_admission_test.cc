/// Who knows a rail's port but not its secret gets nothing, costs next to nothing, and does not disturb those who do.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <ctime>
#include <filesystem>

#include "base/fd.hpp"
#include "fabric/tcp/handshake.hpp"
#include "fabric/two_rails.hpp"

namespace railyard::fabric {
namespace {

constexpr std::size_t kSlots = 32;  ///< for connections that have proven nothing

std::size_t descriptor_count() {
  const std::filesystem::directory_iterator list("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(list), end(list)));
}

double cpu_seconds() {
  timespec spent{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

class TcpAdmission : public TwoRails {
 protected:
  tcp::TcpRailAddress target() const { return *tcp::TcpRailAddress::parse(b_.rail->address(), "test"); }
  Fd connect_to_rail() const {
    const tcp::TcpRailAddress there = target();
    Fd socket(::socket(there.endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    return ::connect(socket.get(), there.endpoint.get(), there.endpoint.length) == 0 ? std::move(socket) : Fd();
  }
  /// What the rail does with a connection that says this: the bytes of its answer, until it closes.
  std::vector<std::byte> answer_to(std::span<const std::byte> bytes) {
    const Fd socket = connect_to_rail();
    EXPECT_TRUE(static_cast<bool>(socket));
    EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    std::vector<std::byte> answer;
    std::array<std::byte, 256> room{};
    pump_until([&, patience = 0]() mutable {
      const ssize_t got = ::recv(socket.get(), room.data(), room.size(), MSG_DONTWAIT);
      if (got > 0) answer.insert(answer.end(), room.begin(), room.begin() + got);
      return got == 0 || (got < 0 && errno != EAGAIN) || ++patience > 20000;
    });
    return answer;
  }
  tcp::Hello hello() const {
    tcp::Hello hello;
    hello.nonce.fill(std::byte{7});
    hello.from.fill(std::byte{9});
    hello.tag = {4711, 1};
    return hello;
  }
  /// Messages for each second of our own processor time: others on the machine do not count.
  double rate(std::size_t messages) {
    const double began = cpu_seconds();
    for (std::size_t i = 0; i < messages; ++i) {
      if (!delivers()) return 0;
      log_.clear();
    }
    return static_cast<double>(messages) / (cpu_seconds() - began);
  }
};
INSTANTIATE_TEST_SUITE_P(Beds, TcpAdmission, ::testing::Values(kSockets),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(TcpAdmission, AWrongSecretIsRejected) {
  tcp::TcpRailAddress address = target();
  address.secret[3] ^= std::byte{1};
  auto remote = a_.rail->connect(address.pack(), {99, 1});
  ASSERT_TRUE(remote.ok());
  ASSERT_TRUE(pump_until([&] { return seen(a_, Event::Kind::lost) == 1; }));
  EXPECT_EQ(find(a_, Event::Kind::lost)->remote, *remote);
  EXPECT_TRUE(delivers());
}

TEST_P(TcpAdmission, TheJobsKeyIsPartOfTheSecret) {
  Settings settings = settings_for(GetParam(), 1);
  settings.job_key = "another job";
  auto rails = open_rails(settings);
  ASSERT_TRUE(rails.ok());
  Rail& other = *rails->front();
  auto remote = other.connect(b_.rail->address(), {99, 1});
  ASSERT_TRUE(remote.ok());
  std::vector<std::pair<Rail*, Event>> log;
  ASSERT_TRUE(pump({&other, b_.rail.get()}, log, [&] {
    return std::ranges::any_of(log, [](const auto& one) { return one.second.kind == Event::Kind::lost; });
  }));
}

TEST_P(TcpAdmission, ARecordedGreetingIsChallengedAndProvesNothing) {
  const Secret key = admission_key(target().secret, {});
  const auto greeting = hello().pack(key);
  std::vector<std::byte> both(greeting.begin(), greeting.end());
  // A proof over another challenge, as it was recorded.
  const tcp::Transcript recorded{hello(), {}};
  const auto proof = recorded.proof(key);
  both.insert(both.end(), proof.begin(), proof.end());
  EXPECT_EQ(answer_to(both).size(), tcp::kChallengeBytes) << "more than a challenge came back";
  EXPECT_EQ(seen(b_, Event::Kind::left), 0u);
}

TEST_P(TcpAdmission, NoiseIsRejected) {
  const std::vector<std::byte> noise(tcp::kHelloBytes, std::byte{0x41});
  EXPECT_LE(answer_to(noise).size(), tcp::kVerdictBytes);
  EXPECT_TRUE(delivers());
}

TEST_P(TcpAdmission, HalvesOfGreetingsHoldAFewSlotsForAWhile) {
  ASSERT_TRUE(delivers());
  const std::size_t before = descriptor_count();
  const auto greeting = hello().pack(admission_key(target().secret, {}));
  std::vector<Fd> unauthenticated;
  for (int i = 0; i < 200; ++i) {
    unauthenticated.push_back(connect_to_rail());
    ASSERT_TRUE(static_cast<bool>(unauthenticated.back()));
    (void)::send(unauthenticated.back().get(), greeting.data(), greeting.size() / 2, MSG_NOSIGNAL);
    pump_until([n = 0]() mutable { return n++ == 20; });
  }
  EXPECT_TRUE(delivers());
  EXPECT_LE(descriptor_count(), before + unauthenticated.size() + kSlots);
  // A new link gets through at once, and none of them ever becomes one.
  connect(a_, b_, {50, 1});
  EXPECT_TRUE(delivers());
  EXPECT_EQ(seen(b_, Event::Kind::left), 0u);
}

/// Far more at once than there are slots: each needs a round trip for its proof, and none is pushed out by those who
/// come after it.
TEST_P(TcpAdmission, ACrowdWithTheSecretIsAdmittedWithoutPushingEachOtherOut) {
  struct Client {
    Fd socket;
    tcp::Transcript transcript;
    bool proven = false;
    bool admitted = false;
  };
  constexpr std::size_t kClients = 200;
  const Secret key = admission_key(target().secret, {});
  ASSERT_TRUE(delivers());
  const std::size_t before = descriptor_count();
  std::vector<Client> clients(kClients);
  std::uint8_t number = 0;
  std::size_t pushed_out = 0;
  const auto begin = [&](Client& client) {
    client = {};
    client.transcript.hello = hello();
    client.transcript.hello.nonce.fill(std::byte{number});
    client.transcript.hello.nonce[0] = static_cast<std::byte>(pushed_out);
    client.transcript.hello.tag.id = {4711, ++number};
    client.socket = connect_to_rail();
    ASSERT_TRUE(static_cast<bool>(client.socket));
    const auto greeting = client.transcript.hello.pack(key);
    ASSERT_EQ(::send(client.socket.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(greeting.size()));
  };
  for (Client& client : clients) ASSERT_NO_FATAL_FAILURE(begin(client));
  const auto step = [&](Client& client) {
    std::array<std::byte, tcp::kVerdictBytes> room{};
    const std::size_t wanted = client.proven ? tcp::kVerdictBytes : tcp::kChallengeBytes;
    const ssize_t got = ::recv(client.socket.get(), room.data(), wanted, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got != static_cast<ssize_t>(wanted)) {
      ++pushed_out;
      return begin(client);
    }
    if (client.proven) {
      const auto verdict = tcp::parse_verdict(std::span(room).first<tcp::kVerdictBytes>(), client.transcript, key);
      client.admitted = verdict && verdict->authentic && verdict->verdict == tcp::Verdict::accepted;
      EXPECT_TRUE(client.admitted);
      return;
    }
    client.transcript.challenge = *tcp::parse_challenge(std::span(room).first<tcp::kChallengeBytes>());
    const auto proof = client.transcript.proof(key);
    EXPECT_EQ(::send(client.socket.get(), proof.data(), proof.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(proof.size()));
    client.proven = true;
  };
  const auto admitted = [](const Client& client) { return client.admitted; };
  for (bool first = true; !std::ranges::all_of(clients, admitted); first = false) {
    // The rail has had time for all of them before the first one answers.
    pump_until([n = 0]() mutable { return n++ == 1000; });
    if (first) {
      EXPECT_LE(descriptor_count(), before + kClients + kSlots);
    }
    for (Client& client : clients)
      if (!client.admitted) step(client);
    ASSERT_LE(pushed_out, kClients);
  }
  // A machine that stops for two seconds costs those who have a slot at that time.
  EXPECT_LE(pushed_out, kSlots);
}

TEST_P(TcpAdmission, ARecordedGreetingHoldsOneSlotHoweverOftenItIsSent) {
  const auto greeting = hello().pack(admission_key(target().secret, {}));
  std::vector<Fd> recorded;
  for (std::size_t i = 0; i < 2 * kSlots; ++i) {
    recorded.push_back(connect_to_rail());
    ASSERT_TRUE(static_cast<bool>(recorded.back()));
    (void)::send(recorded.back().get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
  }
  pump_until([n = 0]() mutable { return n++ == 2000; });
  std::array<std::byte, 256> room{};
  const auto challenged = [&](const Fd& one) {
    return ::recv(one.get(), room.data(), room.size(), MSG_DONTWAIT) == static_cast<ssize_t>(tcp::kChallengeBytes);
  };
  EXPECT_LE(std::ranges::count_if(recorded, challenged), 2) << "one, and another when its time is over";
  connect(a_, b_, {50, 1});
  EXPECT_TRUE(delivers());
}

/// 10,000 connections with halves of messages, as fast as another process can make them.
[[noreturn]] void attack(const tcp::TcpRailAddress& there, std::span<const std::byte> half) {
  std::array<int, 400> open{};
  open.fill(-1);
  for (std::size_t i = 0; i < 10000; ++i) {
    int& one = open[i % open.size()];
    if (one >= 0) ::close(one);
    one = ::socket(there.endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)::connect(one, there.endpoint.get(), there.endpoint.length);
    ::usleep(0);
    (void)::send(one, half.data(), 1 + i % half.size(), MSG_NOSIGNAL);
  }
  for (;;) ::pause();
}

TEST_P(TcpAdmission, AFloodLeavesTrafficAtItsRateAndDescriptorsBounded) {
  ASSERT_TRUE(delivers());
  const std::size_t before = descriptor_count();
  const tcp::TcpRailAddress there = target();
  std::array<std::byte, tcp::kHelloBytes - 1> half{};
  const auto greeting = hello().pack({});
  std::copy_n(greeting.begin(), half.size(), half.begin());
  constexpr std::size_t kMessages = 10000;
  (void)rate(kMessages);
  double ratio = 0;
  std::vector<double> ratios;
  std::size_t most = 0;
  // The machine has other work as well, and interrupts are charged to whoever runs: one good round of several will do.
  // An attack that costs what it did before admission leaves a tenth in every one.
  for (int round = 0; round < 8 && (round < 3 || ratio < 0.6); ++round) {
    const double alone = rate(kMessages);
    const pid_t attacker = ::fork();
    ASSERT_GE(attacker, 0);
    if (attacker == 0) attack(there, half);
    ratios.push_back(rate(kMessages) / alone);
    ratio = std::max(ratio, ratios.back());
    most = std::max(most, descriptor_count());
    // A genuine link gets in all the same.
    const RemoteId old = a_.peer;
    connect(a_, b_, {60, static_cast<std::uint32_t>(round)});
    EXPECT_TRUE(delivers());
    a_.rail->disconnect(old);
    ASSERT_EQ(::kill(attacker, SIGKILL), 0);
    ASSERT_EQ(::waitpid(attacker, nullptr, 0), attacker);
  }
  ::testing::Test::RecordProperty("ratio", std::to_string(ratio));
  std::printf("rate under attack / alone: %.3f at best; all:", ratio);
  for (const double one : ratios) std::printf(" %.3f", one);
  std::printf("\n");
  EXPECT_GE(ratio, 0.6);
  EXPECT_LE(most, before + kSlots + 8);
  EXPECT_EQ(seen(a_, Event::Kind::lost), 0u);
}

}  // namespace
}  // namespace railyard::fabric
