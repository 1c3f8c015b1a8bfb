/// `railyard doctor` between ranks with RDMA ports, on the double: messages arrive, and a way that carries none is
/// named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "doctor_checks.hpp"
#include "doubles/verbs/verbs_double.hpp"
#include "window/thread_world.hpp"

namespace railyard::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tool::Finding;
using tool::Findings;
using tool::Verdict;

constexpr int kPatienceMs = 1000;

/// What each of two ranks finds, the first with the ports `first`, the second with `second`.
std::vector<Findings> between(const std::string& first, const std::string& second, const std::string& driver) {
  ThreadRendezvous rendezvous(2);
  std::vector<Findings> found(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      ThreadBootstrap bootstrap(rendezvous, rank);
      Settings settings;
      settings.driver = driver;
      settings.interfaces = rank == 0 ? first : second;
      const auto tried =
          tool::check_rdma_ranks(bootstrap, settings, kPatienceMs, found[static_cast<std::size_t>(rank)]);
      EXPECT_TRUE(tried.ok()) << tried.error().text();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return found;
}

auto is(const char* check, Verdict verdict, const std::string& found) {
  return AllOf(Field("check", &Finding::check, check), Field("verdict", &Finding::verdict, verdict),
               Field("found", &Finding::found, HasSubstr(found)));
}

TEST(DoctorRdma, MessagesOfFullPacketsArrive) {
  verbs_double::Network network({.devices = 4});
  const auto found = between("fake0,fake1", "fake2,fake3", "verbs");
  EXPECT_THAT(found[0],
              ElementsAre(is("rdma-peer", Verdict::ok, "rank 1: fake2 from fake0: 8192 bytes arrived, MTU 1024"),
                          is("rdma-peer", Verdict::ok, "rank 1: fake3 from fake1: 8192 bytes arrived")));
  EXPECT_THAT(found[1],
              ElementsAre(is("rdma-peer", Verdict::ok, "rank 0: fake0 from fake2: 8192 bytes arrived, MTU 1024"),
                          is("rdma-peer", Verdict::ok, "rank 0: fake1 from fake3: 8192 bytes arrived")));
  EXPECT_THAT(network.violations(), IsEmpty());
  EXPECT_EQ(network.alive(), 0U);
}

TEST(DoctorRdma, AWayThatCarriesNothingIsNamed) {
  verbs_double::Network network({.devices = 2});
  network.cut_path(0, 1);
  const auto found = between("fake0", "fake1", "verbs");
  EXPECT_THAT(found[0], ElementsAre(is("rdma-peer", Verdict::fail, "rank 1: fake1 from fake0")));
  EXPECT_THAT(found[1], ElementsAre(is("rdma-peer", Verdict::fail, "rank 0: fake0 from fake1")));
  EXPECT_THAT(found[0][0].fix, AllOf(HasSubstr("GID"), HasSubstr("4791"), HasSubstr("MTU")));
  EXPECT_EQ(network.alive(), 0U);
}

TEST(DoctorRdma, PortsOfDifferentMtuAreNamed) {
  verbs_double::Network network({.devices = 2});
  network.options(1).active_mtu = IBV_MTU_4096;
  const auto found = between("fake0", "fake1", "verbs");
  EXPECT_THAT(found[0], ElementsAre(is("rdma-peer", Verdict::ok, "MTU 1024"),
                                    is("rdma-mtu", Verdict::warn, "fake1 has an MTU of 4096, fake0 here 1024")));
}

TEST(DoctorRdma, OtherDriversHaveNothingToTry) {
  verbs_double::Network network({.devices = 2});
  EXPECT_THAT(between("lo", "lo", "tcp"), Each(IsEmpty()));
}

}  // namespace
}  // namespace railyard::testing
