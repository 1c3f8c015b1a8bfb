/// What a verbs rail knows of a peer that is silent: whether its process lives.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>

#include <cstdlib>
#include <thread>

#include "base/log.hpp"
#include "fabric/verbs_rails.hpp"

namespace railyard::fabric {
namespace {

class VerbsLiveness : public VerbsRails {
 protected:
  void on_infiniband() {
    for (const std::size_t device : {0u, 1u, 2u}) network_.options(device).infiniband = true;
  }
  Side& open_at_last_gid(std::size_t device) {
    Settings settings = settings_of("fake" + std::to_string(device));
    settings.gid_index = 3;
    Side& side = sides_.emplace_back();
    side.rail = std::move(open_rails(settings)->front());
    side.registration = *side.rail->register_memory(side.memory, {.remote = true});
    feed(side, 4);
    return side;
  }
  /// Asks until the answer is this one; nobody but `asking` polls, unless `all`.
  bool answers(Side& asking, RemoteId link, Liveness wanted, bool all = false) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (asking.rail->liveness(link) != wanted) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      for (Side& side : sides_)
        if (side.rail && (all || &side == &asking)) poll(side);
    }
    return true;
  }
  /// The answers of a while in which nobody but `asking` polls.
  static std::size_t count_answers(Side& asking, RemoteId link, Liveness which) {
    std::size_t count = 0;
    for (int i = 0; i < 300; ++i) {
      if (asking.rail->liveness(link) == which) ++count;
      for (int polls = 0; polls < 100; ++polls) poll(asking);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return count;
  }
  /// The process ends without a word.
  void end_silently(Side& side, std::size_t device) {
    network_.lose_every(device, 1);
    side.rail->stop();
  }
};

TEST_F(VerbsLiveness, OnInfiniBandASilentProcessIsKnownToLiveAndADeadOneToBeGone) {
  on_infiniband();
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId link = connect(a, b, {1, 1, 2});
  ASSERT_TRUE(delivers(a, b, link));
  ASSERT_TRUE(answers(a, link, Liveness::alive, true));
  // From here on b is silent.
  ASSERT_TRUE(answers(a, link, Liveness::alive));
  EXPECT_EQ(count_answers(a, link, Liveness::gone), 0u);
  EXPECT_GT(count_answers(a, link, Liveness::alive), 200u);
  end_silently(b, 1);
  EXPECT_TRUE(answers(a, link, Liveness::gone));
}

/// A new link is asked about as well: the process that is silent does not answer its call.
TEST_F(VerbsLiveness, OnInfiniBandItIsKnownBeforeANewLinkStands) {
  on_infiniband();
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId first = connect(a, b, {1, 1, 2});
  ASSERT_TRUE(delivers(a, b, first));
  ASSERT_TRUE(answers(a, first, Liveness::alive, true));
  a.rail->disconnect(first);
  const RemoteId second = connect(a, b, {1, 2, 2});
  EXPECT_TRUE(answers(a, second, Liveness::alive));
  end_silently(b, 1);
  EXPECT_TRUE(answers(a, second, Liveness::gone));
}

TEST_F(VerbsLiveness, AnIPv6AddressOfAPortIsWhereItsLivenessPortIs) {
  if (std::system("grep -q '^0*1 ' /proc/net/if_inet6 2>/dev/null") != 0) GTEST_SKIP() << "there is no ::1 here";
  network_.options(1).address = "::1";
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId link = connect(a, b, {1, 1, 2});
  ASSERT_TRUE(delivers(a, b, link));
  ASSERT_TRUE(answers(a, link, Liveness::alive));
  EXPECT_EQ(count_answers(a, link, Liveness::gone), 0u);
  end_silently(b, 1);
  EXPECT_TRUE(answers(a, link, Liveness::gone));
}

/// Whose number means something on the interface of whoever connects alone.
TEST_F(VerbsLiveness, SoIsAnAddressOfTheLinkAlone) {
  if (std::system("unshare -n ip link add ry0 type veth peer name ry1 >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "needs root and the ip command, to make interfaces in a namespace";
  network_.options(0).address = "fe80::a";
  network_.options(1).address = "fe80::b";
  std::thread([&] {
    ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
    for (const char* command :
         {"link set lo up", "link add other0 type veth peer name other1", "link add ry0 type veth peer name ry1",
          "link set ry0 addrgenmode none up", "link set ry1 up", "addr add fe80::a/64 dev ry0 nodad",
          "addr add fe80::b/64 dev ry0 nodad"})
      ASSERT_EQ(std::system((std::string("ip ") + command + " >/dev/null 2>&1").c_str()), 0) << command;
    Side& a = open_at_last_gid(0);
    Side& b = open_at_last_gid(1);
    const RemoteId link = connect(a, b, {1, 1, 2});
    ASSERT_TRUE(delivers(a, b, link));
    ASSERT_TRUE(answers(a, link, Liveness::alive));
    end_silently(b, 1);
    EXPECT_TRUE(answers(a, link, Liveness::gone));
  }).join();
}

/// Any address that a peer names may lead somewhere else: to a host where that port is refused, or taken.
class VerbsLivenessElsewhere : public VerbsLiveness {
 protected:
  /// A link to b, whose address has been changed.
  RemoteId connect_with(Side& a, Side& b, std::uint16_t host_port, std::vector<ibv_gid> hosts) {
    auto address = verbs::VerbsRailAddress::parse(b.rail->address(), true, "");
    EXPECT_TRUE(address.ok());
    address->host_port = host_port;
    address->hosts = std::move(hosts);
    auto link = a.rail->connect(address->pack(), {1, 1, 2});
    EXPECT_TRUE(link.ok()) << link.error().text();
    return *link;
  }
  static ibv_gid loopback() {
    ibv_gid gid{};
    (void)::inet_pton(AF_INET6, "::ffff:127.0.0.1", gid.raw);
    return gid;
  }
  static verbs::LivenessPort listener() {
    const Secret other{std::byte{1}};
    auto opened = verbs::LivenessPort::open({loopback(), 0, 0}, *PortRange::parse(""), other);
    EXPECT_TRUE(opened.ok());
    return std::move(*opened);
  }
};

TEST_F(VerbsLivenessElsewhere, NothingIsBelievedThatHasNotProvenTheSecret) {
  on_infiniband();
  enum class Who : std::uint8_t { refuses, keeps_silent, answers };
  for (const Who who : {Who::refuses, Who::keeps_silent, Who::answers}) {
    Side& a = open(0);
    Side& b = open(1);
    verbs::LivenessPort other = listener();
    const std::uint16_t port = other.port();
    if (who == Who::refuses) other = {};
    const RemoteId link = connect_with(a, b, port, {loopback()});
    ASSERT_TRUE(delivers(a, b, link));
    for (int i = 0; i < 100; ++i) {
      pump_for(std::chrono::milliseconds(2));
      if (who == Who::answers) other.sweep();
    }
    EXPECT_EQ(count_answers(a, link, Liveness::unknown), 300u) << static_cast<int>(who);
    close(a);
    close(b);
  }
}

TEST_F(VerbsLivenessElsewhere, TheAddressesOfAPeerAreTriedUntilOneLeadsThere) {
  on_infiniband();
  Side& a = open(0);
  Side& b = open(1);
  const auto own = verbs::VerbsRailAddress::parse(b.rail->address(), true, "");
  ASSERT_TRUE(own.ok() && own->host_port != 0 && !own->hosts.empty());
  ibv_gid other_loopback = loopback();
  other_loopback.raw[15] = 77;
  const verbs::LivenessEndpoint taken{other_loopback, 0, 0};
  const auto in_the_way = verbs::LivenessPort::open(
      taken, *PortRange::parse(std::to_string(own->host_port) + "-" + std::to_string(own->host_port)), {});
  EXPECT_FALSE(in_the_way.ok()) << "the rail's port is at every address";
  ibv_gid multicast{};
  (void)::inet_pton(AF_INET6, "ff02::1", multicast.raw);
  const RemoteId link = connect_with(a, b, own->host_port, {multicast, own->hosts.front()});
  ASSERT_TRUE(delivers(a, b, link));
  EXPECT_TRUE(answers(a, link, Liveness::alive, true));
}

TEST_F(VerbsLivenessElsewhere, WhereNoneLeadsThereTheLogSaysSoOnce) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) {
    if (line.find("liveness port") != std::string_view::npos) lines.emplace_back(line);
  });
  on_infiniband();
  Side& a = open(0);
  for (const std::size_t device : {1u, 2u}) {
    Side& peer = open(device);
    const std::uint16_t closed = listener().port();
    ASSERT_TRUE(delivers(a, peer, connect_with(a, peer, closed, {loopback()})));
    ASSERT_TRUE(pump([&] { return !lines.empty(); }));
  }
  pump_for(std::chrono::milliseconds(500));
  set_log_sink({});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines.front(), ::testing::HasSubstr("127.0.0.1"));
  EXPECT_THAT(lines.front(), ::testing::HasSubstr("RAILYARD_PEER_TIMEOUT_MS"));
}

/// The port may be reached over another network than the one that carries the traffic. A process that lives behind a
/// dead cable is none to wait for.
TEST_F(VerbsLiveness, APathThatDoesNotAcknowledgeIsNotSpokenForFromBesideIt) {
  on_infiniband();
  network_.retry_time(std::chrono::milliseconds(2));
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId link = connect(a, b, {1, 1, 2});
  ASSERT_TRUE(delivers(a, b, link));
  ASSERT_TRUE(answers(a, link, Liveness::alive, true));
  network_.cut_path(0, 1);
  ASSERT_FALSE(fill(a, b, link, 1).empty());
  ASSERT_TRUE(pump([&] { return a.lost(link) == 1; }));
  a.rail->disconnect(link);
  a.log.clear();
  const RemoteId second = connect(a, b, {1, 2, 2});
  EXPECT_EQ(count_answers(a, second, Liveness::alive), 0u);
  network_.mend_path(0, 1);
  ASSERT_TRUE(
      pump([&] { return a.rail->send(second, a.chunk(0, 8), a.fresh()) == Post::posted || a.lost(second) > 0; }));
  ASSERT_EQ(a.lost(second), 0u) << a.rail->describe_error(a.log.back().error);
  EXPECT_TRUE(answers(a, second, Liveness::alive));
}

TEST(VerbsRailAddress, NamesABoundedNumberOfHosts) {
  verbs::VerbsRailAddress address;
  address.queue_pair = 1;
  address.infiniband = true;
  address.host_port = 4711;
  for (std::size_t i = 0; i <= verbs::VerbsRailAddress::kMostHosts; ++i) {
    const auto bytes = address.pack();
    const auto parsed = verbs::VerbsRailAddress::parse(bytes, true, "test");
    EXPECT_TRUE(parsed.ok()) << i;
    EXPECT_TRUE(!parsed || *parsed == address);
    for (std::size_t kept = 0; kept < bytes.size(); ++kept)
      EXPECT_FALSE(verbs::VerbsRailAddress::parse(std::span(bytes).first(kept), true, "test").ok()) << kept;
    address.hosts.emplace_back().raw[15] = static_cast<std::uint8_t>(i);
  }
  EXPECT_FALSE(verbs::VerbsRailAddress::parse(address.pack(), true, "test").ok());
}

}  // namespace
}  // namespace railyard::fabric
