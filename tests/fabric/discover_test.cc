/// Which rails are offered and opened, and what is said when there are none.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/identity.hpp"
#include "fabric/beds.hpp"
#include "fabric/interface_filter.hpp"
#include "fabric/ofi/interfaces.hpp"

namespace railyard::fabric {
namespace {

Settings with(const char* provider, const char* interfaces, std::uint32_t rails = 0) {
  Settings settings;
  settings.shared_memory = "off";
  settings.provider = provider;
  settings.interfaces = interfaces;
  settings.rails = rails;
  return settings;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST(Discover, OffersEachInterfaceOnceAndLoopbackLast) {
  const auto offers = discover(with("tcp", ""));
  ASSERT_TRUE(offers.ok()) << offers.error().text();
  std::set<std::string> domains;
  bool loopback = false;
  for (const RailOffer& offer : *offers) {
    EXPECT_EQ(offer.driver, "ofi");
    EXPECT_TRUE(offer.provider == "tcp" || offer.provider.starts_with("tcp;")) << offer.provider;
    EXPECT_TRUE(domains.insert(offer.domain).second) << offer.domain << " twice";
    EXPECT_TRUE(!loopback || offer.loopback) << offer.domain << " after loopback";
    loopback = loopback || offer.loopback;
    EXPECT_EQ(offer.loopback, offer.domain == "lo");
    EXPECT_GE(offer.line_rate, 0);
  }
  EXPECT_TRUE(domains.contains("lo"));
}

TEST(Discover, InterfacesCanBeChosenOrLeftOut) {
  const auto chosen = discover(with("tcp", "lo"));
  ASSERT_TRUE(chosen.ok()) << chosen.error().text();
  ASSERT_EQ(chosen->size(), 1u);
  EXPECT_EQ((*chosen)[0].domain, "lo");
  const auto others = discover(with("tcp", "^lo"));
  if (others.ok()) {
    for (const RailOffer& offer : *others) EXPECT_NE(offer.domain, "lo");
  }
}

TEST(Discover, LoopbackIsOpenedOnlyWhereAskedForOrAlone) {
  const auto offers = discover(with("tcp", ""));
  ASSERT_TRUE(offers.ok()) << offers.error().text();
  const bool others = std::any_of(offers->begin(), offers->end(), [](const RailOffer& o) { return !o.loopback; });
  const auto rails = open_rails(with("tcp", ""));
  ASSERT_TRUE(rails.ok()) << rails.error().text();
  for (const auto& rail : *rails) EXPECT_EQ(rail->name().starts_with("tcp lo"), !others) << rail->name();
  const auto asked = open_rails(with("tcp", "lo"));
  ASSERT_TRUE(asked.ok()) << asked.error().text();
  ASSERT_EQ(asked->size(), 1u);
  EXPECT_TRUE((*asked)[0]->name().starts_with("tcp lo")) << (*asked)[0]->name();
}

TEST(Discover, MoreRailsThanInterfacesShareThem) {
  const auto rails = open_rails(with("tcp", "lo", 3));
  ASSERT_TRUE(rails.ok()) << rails.error().text();
  ASSERT_EQ(rails->size(), 3u);
  std::set<std::vector<std::byte>> addresses;
  for (const auto& rail : *rails) addresses.insert(rail->address());
  EXPECT_EQ(addresses.size(), 3u);
}

TEST(Discover, AnEmptySettingPrefersTheNetworkOverSharedMemory) {
  const auto offers = discover(with("", ""));
  ASSERT_TRUE(offers.ok()) << offers.error().text();
  for (const RailOffer& offer : *offers) {
    EXPECT_NE(offer.provider, "shm");
    EXPECT_FALSE(offer.provider.starts_with("sockets"));
    EXPECT_FALSE(offer.provider.starts_with("udp"));
  }
}

TEST(Discover, NamesOfPlacesThatEveryMachineHasCarryTheMachine) {
  for (const char* provider : {"shm", "tcp"}) {
    const auto offers = discover(with(provider, provider == std::string("tcp") ? "lo" : ""));
    ASSERT_TRUE(offers.ok()) << offers.error().text();
    EXPECT_TRUE(contains((*offers)[0].fabric, machine_word().c_str())) << (*offers)[0].fabric;
  }
}

TEST(Discover, AnUnknownProviderIsNamedWithThoseThatAreHere) {
  const auto answer = discover(with("tpc", ""));
  ASSERT_EQ(answer.status(), Status::not_found);
  const std::string text = answer.error().text();
  EXPECT_TRUE(contains(text, "'tpc'")) << text;
  EXPECT_TRUE(contains(text, "tcp")) << text;
  EXPECT_TRUE(contains(text, "shm")) << text;
  EXPECT_TRUE(contains(text, "RAILYARD_PROVIDER")) << text;
  EXPECT_EQ(open_rails(with("tpc", "")).status(), Status::not_found);
}

TEST(Discover, AProviderThatCannotCarryARailIsNamedAsSuch) {
  // The utility provider is here, but alone it carries nothing.
  const auto answer = discover(with("tcp;ofi_rxd", ""));
  ASSERT_EQ(answer.status(), Status::unsupported) << (answer.ok() ? "ok" : answer.error().text());
  EXPECT_TRUE(contains(answer.error().text(), "cannot carry a rail")) << answer.error().text();
}

TEST(Discover, AFilterThatLeavesNothingSaysWhatThereIs) {
  const auto answer = discover(with("tcp", "nosuch0"));
  ASSERT_EQ(answer.status(), Status::not_found);
  const std::string text = answer.error().text();
  EXPECT_TRUE(contains(text, "nosuch0")) << text;
  EXPECT_TRUE(contains(text, "lo")) << text;
}

TEST(Discover, AnUnknownDriverIsNamedWithThoseThereAre) {
  Settings settings;
  settings.driver = "carrier-pigeon";
  const auto answer = discover(settings);
  ASSERT_EQ(answer.status(), Status::not_found);
  EXPECT_TRUE(contains(answer.error().text(), "carrier-pigeon"));
  EXPECT_TRUE(contains(answer.error().text(), "ofi"));
  EXPECT_EQ(open_rails(settings).status(), Status::not_found);
}

TEST(Discover, PeersOfAnotherProviderAreRefused) {
  const auto tcp = open_rails(with("tcp", "lo"));
  const auto shm = open_rails(with("shm", ""));
  ASSERT_TRUE(tcp.ok() && shm.ok());
  const auto answer = (*tcp)[0]->connect((*shm)[0]->address(), {});
  ASSERT_EQ(answer.status(), Status::invalid);
  EXPECT_TRUE(contains(answer.error().text(), "shm")) << answer.error().text();
  EXPECT_TRUE(contains(answer.error().text(), "RAILYARD_PROVIDER")) << answer.error().text();
}

TEST(Discover, PrefersConnectedEndpointsAndTakesWhatTheSettingSays) {
  const auto provider_for = [](const char* provider, const char* endpoints) {
    Settings settings = with(provider, "lo");
    settings.endpoints = endpoints;
    const auto offers = discover(settings);
    return offers.ok() ? (*offers)[0].provider : offers.error().text();
  };
  EXPECT_EQ(provider_for("tcp", "auto"), "tcp");
  EXPECT_EQ(provider_for("tcp", "connected"), "tcp");
  EXPECT_EQ(provider_for("tcp", "datagram"), "tcp;ofi_rxm");
  EXPECT_EQ(provider_for("tcp;ofi_rxm", "auto"), "tcp;ofi_rxm");
  Settings settings = with("shm", "");
  EXPECT_EQ(discover(settings)->front().provider, "shm");
  settings.endpoints = "connected";
  const auto none = discover(settings);
  ASSERT_EQ(none.status(), Status::unsupported);
  EXPECT_TRUE(contains(none.error().text(), "RAILYARD_ENDPOINTS")) << none.error().text();
}

TEST(InterfaceFilter, ListsAndExcludes) {
  EXPECT_TRUE(InterfaceFilter("").takes("eth0"));
  const InterfaceFilter some("eth0, eth1");
  EXPECT_TRUE(some.takes("eth0"));
  EXPECT_TRUE(some.takes("eth1"));
  EXPECT_FALSE(some.takes("eth"));
  EXPECT_FALSE(some.takes("lo"));
  const InterfaceFilter others("^lo,docker0");
  EXPECT_FALSE(others.takes("lo"));
  EXPECT_FALSE(others.takes("docker0"));
  EXPECT_TRUE(others.takes("eth0"));
}

}  // namespace
}  // namespace railyard::fabric
