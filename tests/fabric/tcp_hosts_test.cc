/// Tcp rails of two hosts: network namespaces with a cable between them, which one thread is in by turns. Needs root.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "base/log.hpp"
#include "fabric/tcp/device_account.hpp"
#include "fabric/tcp/driver.hpp"

namespace railyard::fabric {
namespace {

bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

/// A host with one NIC, "rya0" or "ryb0".
struct TestHost {
  Fd network;
  std::string nic;
  std::unique_ptr<Rail> rail;
  bool up = true;
  bool lost = false;
  bool refused = false;     ///< the last loss was told as proof that nobody is there
  bool unverified = false;  ///< it was told as a refusal that proves nothing
  std::string why;          ///< the last loss
  std::size_t arrived = 0;
  std::size_t sent = 0;

  void enter() const { ASSERT_EQ(::setns(network.get(), CLONE_NEWNET), 0); }
  bool do_here(const std::string& command) const {
    enter();
    return run(command);
  }
  void open_rail() {
    enter();
    Settings settings;
    settings.interfaces = nic;
    auto offers = discover_tcp(settings);
    ASSERT_TRUE(offers) << offers.error().message();
    ASSERT_EQ(offers->size(), 1u);
    auto opened = open_tcp(offers->front(), settings);
    ASSERT_TRUE(opened) << opened.error().message();
    rail = std::move(*opened);
  }
  void poll() {
    enter();
    rail->ring();
    std::array<Event, 32> events;
    for (std::size_t i = 0, count = rail->poll(events); i < count; ++i) {
      up = (up || events[i].kind == Event::Kind::rail_up) && events[i].kind != Event::Kind::rail_down;
      if (events[i].kind == Event::Kind::lost) {
        lost = true;
        refused = events[i].refused;
        unverified = events[i].unverified;
        why = rail->describe_error(events[i].error);
      }
      arrived += events[i].kind == Event::Kind::received;
      sent += events[i].kind == Event::Kind::sent;
    }
  }
};

class TcpHosts : public ::testing::Test {
 protected:
  /// The test's body, in a thread that never comes back to this network.
  void in_network(const std::function<void()>& body) {
    if (!run("unshare -n ip link add ry0 type veth peer name ry1"))
      GTEST_SKIP() << "needs root and the ip command, to make interfaces in a namespace";
    std::thread([&] {
      for (TestHost* host : {&a_, &b_}) {
        ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
        host->network = Fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
        ASSERT_TRUE(host->network);
        ASSERT_TRUE(run("ip link set lo up"));
      }
      a_.nic = "rya0";
      b_.nic = "ryb0";
      // So that the two do not know their NICs by the same number.
      ASSERT_TRUE(b_.do_here("ip link add other0 type veth peer name other1"));
      body();
      a_.rail.reset();
      b_.rail.reset();
    }).join();
  }
  void lay_cable() {
    const std::string there = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(b_.network.get());
    ASSERT_TRUE(a_.do_here("ip link add rya0 type veth peer name ryb0 netns " + there));
    for (const TestHost* host : {&a_, &b_})
      ASSERT_TRUE(host->do_here("ip link set " + host->nic + " addrgenmode none up")) << host->nic;
  }
  void give_addresses(const std::string& first, const std::string& second) {
    const auto more = [](const std::string& text) { return text.find(':') == std::string::npos ? "" : " nodad"; };
    ASSERT_TRUE(a_.do_here("ip addr add " + first + " dev rya0" + more(first)));
    ASSERT_TRUE(b_.do_here("ip addr add " + second + " dev ryb0" + more(second)));
  }
  bool poll_until(const std::function<bool()>& done) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!done()) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      a_.poll();
      b_.poll();
    }
    return true;
  }
  /// A link from the first host's rail to the second's that has carried `count` messages.
  void connect_and_send(std::uint32_t epoch, std::size_t count = 1) {
    a_.enter();
    const auto remote = a_.rail->connect(b_.rail->address(), {1, epoch, 0});
    ASSERT_TRUE(remote) << remote.error().message();
    link_ = *remote;
    a_.lost = false;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t arrived = b_.arrived, sent = a_.sent;
      PostContext to, from;
      ASSERT_EQ(b_.rail->receive({target_.data(), target_.size()}, &to), Post::posted);
      Post answer = Post::busy;
      ASSERT_TRUE(poll_until([&] {
        if (answer == Post::busy) answer = a_.rail->send(link_, {source_.data(), source_.size()}, &from);
        return answer == Post::failed || a_.lost || (b_.arrived > arrived && a_.sent > sent);
      })) << "message "
          << i;
      ASSERT_TRUE(answer == Post::posted && !a_.lost) << "message " << i << ": " << a_.rail->failure();
    }
  }

  TestHost a_, b_;
  RemoteId link_ = 0;
  std::vector<std::byte> source_ = std::vector<std::byte>(60'000);
  std::vector<std::byte> target_ = std::vector<std::byte>(60'000);
};

TEST_F(TcpHosts, ReachEachOtherByIPv6) {
  in_network([&] {
    lay_cable();
    give_addresses("fd00::1/64", "fd00::2/64");
    a_.open_rail();
    b_.open_rail();
    connect_and_send(1);
  });
}

TEST_F(TcpHosts, ReachEachOtherByAddressesOfTheLinkAlone) {
  in_network([&] {
    lay_cable();
    give_addresses("fe80::a/64", "fe80::b/64");
    a_.open_rail();
    b_.open_rail();
    connect_and_send(1);
  });
}

TEST_F(TcpHosts, ANicThatIsMadeAnewIsListenedOnAgain) {
  in_network([&] {
    lay_cable();
    give_addresses("10.9.0.1/24", "10.9.0.2/24");
    a_.open_rail();
    b_.open_rail();
    ASSERT_NO_FATAL_FAILURE(connect_and_send(1));
    ASSERT_TRUE(a_.do_here("ip link del rya0"));
    ASSERT_TRUE(poll_until([&] { return !a_.up && !b_.up; }));
    a_.rail->disconnect(link_);
    lay_cable();
    give_addresses("10.9.0.1/24", "10.9.0.2/24");
    ASSERT_TRUE(poll_until([&] { return a_.up && b_.up; }));
    connect_and_send(2);
  });
}

/// A second device of the host answers for the rail's address, as a macvlan's parent does: packets that arrive there
/// meet no socket that is bound to the rail's device, and the kernel refuses them. The process is alive all the same.
TEST_F(TcpHosts, APacketAtTheWrongNicOfThePeerIsNoProofThatItsProcessIsGone) {
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view line) { warnings.emplace_back(line); });
  in_network([&] {
    lay_cable();
    const std::string parent = "02:00:00:00:00:0b", own = "02:00:00:00:00:0c";
    ASSERT_TRUE(b_.do_here("ip link set ryb0 address " + parent));
    if (!b_.do_here("ip link add link ryb0 name ryb1 address " + own +
                    " type macvlan mode bridge && ip link set ryb1 addrgenmode none up"))
      GTEST_SKIP() << "this kernel has no macvlan";
    ASSERT_TRUE(a_.do_here("ip addr add 10.9.0.1/24 dev rya0"));
    ASSERT_TRUE(b_.do_here("ip addr add 10.9.0.2/24 dev ryb1"));
    b_.nic = "ryb1";
    a_.open_rail();
    b_.open_rail();
    // What an ARP answer of the parent's leaves behind.
    const auto point_at = [&](const std::string& address) {
      ASSERT_TRUE(a_.do_here("ip neigh replace 10.9.0.2 lladdr " + address + " dev rya0 nud permanent")) << address;
    };
    for (const std::uint32_t epoch : {1U, 3U}) {  // before a link has ever led there, and after
      ASSERT_NO_FATAL_FAILURE(point_at(parent));
      a_.enter();
      const auto remote = a_.rail->connect(b_.rail->address(), {1, epoch, 0});
      ASSERT_TRUE(remote) << remote.error().message();
      a_.lost = false;
      ASSERT_TRUE(poll_until([&] { return a_.lost; }));
      EXPECT_FALSE(a_.refused) << "epoch " << epoch << ": " << a_.why;
      EXPECT_FALSE(a_.unverified) << "the process has answered";
      EXPECT_NE(a_.why.find("arp_ignore=1"), std::string::npos) << a_.why;
      EXPECT_NE(a_.rail->liveness(*remote), Liveness::gone);
      a_.rail->disconnect(*remote);
      ASSERT_NO_FATAL_FAILURE(point_at(own));
      ASSERT_NO_FATAL_FAILURE(connect_and_send(epoch + 1));
      a_.rail->disconnect(link_);
    }
    ASSERT_FALSE(warnings.empty()) << "nobody was told what to do";
    EXPECT_NE(warnings.front().find("no link to 10.9.0.2 comes about"), std::string::npos) << warnings.front();
  });
  set_log_sink({});
}

/// Both ends are this process's, so each NIC has an account of its own: they have other names.
TEST_F(TcpHosts, WhatLeavesByTheNicIsInItsAccountAndRaisesNoAlarm) {
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view line) { warnings.emplace_back(line); });
  in_network([&] {
    lay_cable();
    give_addresses("10.9.0.1/24", "10.9.0.2/24");
    a_.open_rail();
    b_.open_rail();
    const auto account = tcp::DeviceAccount::of("rya0");
    a_.enter();
    const auto counted = tcp::bytes_sent_by("rya0");
    ASSERT_TRUE(counted);
    const std::size_t messages = 1 + tcp::DeviceAccount::kWindowBytes / source_.size();
    ASSERT_NO_FATAL_FAILURE(connect_and_send(1, messages));
    EXPECT_GE(account->total(), tcp::DeviceAccount::kWindowBytes);
    EXPECT_EQ(tcp::DeviceAccount::of("ryb0")->total(), 0u) << "it sends next to nothing";
    a_.enter();
    EXPECT_GE(*tcp::bytes_sent_by("rya0") - *counted, account->total());
  });
  set_log_sink({});
  EXPECT_TRUE(warnings.empty()) << warnings.front();
}

TEST_F(TcpHosts, WhatStaysOnTheHostIsInNoAccount) {
  in_network([&] {
    lay_cable();
    give_addresses("10.9.0.1/24", "10.9.0.2/24");
    a_.open_rail();
    // The second rail is on the same NIC of the same host: the kernel takes the short way.
    const Fd other_end = std::exchange(b_.network, Fd(::fcntl(a_.network.get(), F_DUPFD_CLOEXEC, 0)));
    b_.nic = "rya0";
    b_.open_rail();
    const auto account = tcp::DeviceAccount::of("rya0");
    ASSERT_NO_FATAL_FAILURE(connect_and_send(1, 1 + tcp::DeviceAccount::kWindowBytes / source_.size()));
    EXPECT_EQ(account->total(), 0u);
  });
}

}  // namespace
}  // namespace railyard::fabric
