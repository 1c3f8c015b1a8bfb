/// The state of an interface, from the kernel to the event. Interfaces are made in a network namespace of the test's
/// own.
#include "fabric/link_watch.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "fabric/beds.hpp"

namespace railyard::fabric {
namespace {

bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

/// Until the kernel says that the interface carries: a new pair's carrier is told some time after `ip link set up`.
bool carries(const std::string& interface) {
  return run("timeout 60 sh -c 'until ip -o link show " + interface + " | grep -q \"state UP\"; do sleep 0.01; done'");
}

bool namespaces_allowed() { return run("unshare -n ip link add ry0 type veth peer name ry1"); }

std::optional<bool> next_change(LinkWatch& watch) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < give_up)
    if (const auto change = watch.changed()) return change;
  return std::nullopt;
}

void watch_a_pair() {
  ASSERT_EQ(::unshare(CLONE_NEWNET), 0);  // of this thread only
  ASSERT_TRUE(run("ip link add ry0 type veth peer name ry1 && ip link set ry0 up && ip link set ry1 up"));
  ASSERT_TRUE(carries("ry0"));
  auto watch = LinkWatch::open("ry0");
  ASSERT_TRUE(watch.ok()) << watch.error().text();
  EXPECT_EQ(watch->changed(), std::nullopt);
  ASSERT_TRUE(run("ip link set ry0 down"));
  EXPECT_EQ(next_change(*watch), false);
  EXPECT_EQ(watch->changed(), std::nullopt);
  ASSERT_TRUE(run("ip link set ry0 up"));
  EXPECT_EQ(next_change(*watch), true);
  ASSERT_TRUE(run("ip link set ry1 down"));  // the cable, as it were
  EXPECT_EQ(next_change(*watch), false);
  ASSERT_TRUE(run("ip link set ry1 up"));
  EXPECT_EQ(next_change(*watch), true);
  ASSERT_TRUE(run("ip link del ry0"));
  EXPECT_EQ(next_change(*watch), false);
  auto down = LinkWatch::open("ry0");
  ASSERT_TRUE(down.ok()) << down.error().text();
  ASSERT_TRUE(run("ip link add ry2 type veth peer name ry3 && ip link set ry2 up"));
  EXPECT_EQ(down->changed(), std::nullopt) << "another interface's change";
}

TEST(LinkWatch, SeesAnInterfaceGoAndComeBack) {
  if (!namespaces_allowed()) GTEST_SKIP() << "needs root and the ip command, to make interfaces in a namespace";
  std::thread(watch_a_pair).join();
}

/// Runs by itself in the namespace that the next test makes: libfabric lists interfaces once per process.
TEST(InterfaceState, DISABLED_InANamespaceOfItsOwn) {
  for (const char* endpoints : {"connected", "datagram"}) {
    auto rails = open_rails(settings_for({"veth", "tcp", "ry0", endpoints}, 1));
    ASSERT_TRUE(rails.ok()) << rails.error().text();
    Rail& rail = *(*rails)[0];
    std::vector<std::pair<Rail*, Event>> log;
    const auto told = [&](Event::Kind kind) {
      return pump({&rail}, log, [&] { return !log.empty() && log.back().second.kind == kind; });
    };
    ASSERT_TRUE(run("ip link set ry1 down"));
    EXPECT_TRUE(told(Event::Kind::rail_down)) << endpoints;
    ASSERT_TRUE(run("ip link set ry1 up"));
    EXPECT_TRUE(told(Event::Kind::rail_up)) << endpoints;
    EXPECT_EQ(log.size(), 2u) << endpoints;
  }
}

TEST(InterfaceState, IsReportedByTheRail) {
  if (!namespaces_allowed()) GTEST_SKIP() << "needs root and the ip command, to make interfaces in a namespace";
  std::array<char, 4096> self{};
  ASSERT_GT(::readlink("/proc/self/exe", self.data(), self.size() - 1), 0);
  EXPECT_TRUE(run(std::string("unshare -n sh -c 'ip link set lo up && ip link add ry0 type veth peer name ry1 && "
                              "ip addr add 198.51.100.1/24 dev ry0 && ip link set ry0 up && ip link set ry1 up && "
                              "until ip -o link show ry0 | grep -q \"state UP\"; do sleep 0.01; done && exec ") +
                  self.data() +
                  " --gtest_also_run_disabled_tests --gtest_filter=InterfaceState.DISABLED_InANamespaceOfItsOwn'"));
}

}  // namespace
}  // namespace railyard::fabric
