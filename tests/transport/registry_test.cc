// Registry: who may share a route, and which one is meant.
#include "transport/registry.hpp"

#include <gtest/gtest.h>

#include <deque>

#include "transport/flow.hpp"

namespace railyard::transport {
namespace {

class RegistryTest : public ::testing::Test {
 protected:
  static Identity identity(std::uint8_t number) {
    Identity made;
    made.bytes[0] = number;
    return made;
  }
  static RouteKey key(std::uint8_t peer, std::uint32_t number = 0, std::uint32_t engine = 0,
                      std::uint32_t service_class = 0) {
    return {identity(peer), engine, service_class, number};
  }
  Route* add(const RouteKey& key, std::uint64_t instance, std::size_t flows = 1) {
    auto route = std::make_unique<Route>();
    route->key = key;
    route->instance = instance;
    route->name = RouteName::make(identity(99), key.peer, ++sessions_, 0, static_cast<std::uint16_t>(key.number));
    for (; flows != 0; --flows) route->flows.push_back(&flows_.emplace_back());
    return registry_.add(std::move(route));
  }
  static fabric::LinkName link(const Route& route) { return RouteName::of_link(route.name.in, 7); }

  std::deque<Flow> flows_;
  Registry registry_;
  std::uint64_t sessions_ = 0;
};

TEST_F(RegistryTest, PeersEnginesClassesAndNumbersNeverShare) {
  Route* const first = add(key(1), 10);
  EXPECT_EQ(registry_.find(key(1)), first);
  EXPECT_EQ(registry_.find(key(2)), nullptr) << "another process, wherever it runs";
  EXPECT_EQ(registry_.find(key(1, 1)), nullptr);
  EXPECT_EQ(registry_.find(key(1, 0, 1)), nullptr);
  EXPECT_EQ(registry_.find(key(1, 0, 0, 1)), nullptr);
}

TEST_F(RegistryTest, AServiceClassIsAMarkWhereItFitsOne) {
  EXPECT_EQ(key(1, 0, 0, 0xb8).traffic_class(), 0xb8);
  EXPECT_EQ(key(1, 0, 0, 0xbb).traffic_class(), 0xb8) << "the lower bits are ECN's";
  for (const std::uint32_t none : {0U, 1U, 3U, 256U, 0xffffffb8U})
    EXPECT_EQ(key(1, 0, 0, none).traffic_class(), 0) << none;
}

TEST_F(RegistryTest, APrivateRouteIsNeverJoined) {
  add(key(1, RouteKey::kPrivate), 10);
  EXPECT_EQ(registry_.find(key(1, RouteKey::kPrivate)), nullptr);
  EXPECT_EQ(registry_.find(key(1, RouteKey::kPrivate), 10), nullptr);
}

TEST_F(RegistryTest, OfTwoRoutesOfOneKeyTheLowerInstanceIsMeant) {
  Route* const high = add(key(1), 20);
  Route* const low = add(key(1), 10);
  EXPECT_EQ(registry_.find(key(1)), low);
  EXPECT_EQ(registry_.find(key(1), 20), high);
  EXPECT_EQ(registry_.find(key(1), 15), nullptr);
  registry_.remove(*low);
  EXPECT_EQ(registry_.find(key(1)), high);
}

TEST_F(RegistryTest, ARouteThatIsOverOrClosingIsNotJoined) {
  Route* const route = add(key(1), 10);
  route->over = true;
  EXPECT_EQ(registry_.find(key(1)), nullptr);
  route->over = false;
  route->closing = true;
  EXPECT_EQ(registry_.find(key(1)), nullptr);
  EXPECT_EQ(registry_.find(key(1), 10), nullptr);
  EXPECT_EQ(registry_.least_used(key(1), 1), 0U) << "its number is free for another";
}

TEST_F(RegistryTest, ARouteWhoseFlowsHaveAllSaidTheirLastWordIsNotJoined) {
  Route* const route = add(key(1), 10, 2);
  route->flows[0]->parting = true;
  EXPECT_EQ(registry_.find(key(1)), route);
  route->flows[1]->parting = true;
  EXPECT_EQ(registry_.find(key(1)), nullptr) << "the peer may have dropped its end";
  EXPECT_EQ(registry_.find(key(1), 10), nullptr);
  EXPECT_EQ(registry_.known(key(1), 10), route);
}

TEST_F(RegistryTest, TheLeastUsedNumberIsNextAndOfEqualsTheLowest) {
  EXPECT_EQ(registry_.least_used(key(1), 4), 0U);
  add(key(1, 0), 1, 2);
  add(key(1, 1), 2, 1);
  add(key(1, 3), 3, 1);
  EXPECT_EQ(registry_.least_used(key(1), 4), 2U) << "nobody uses it";
  add(key(1, 2), 4, 1);
  EXPECT_EQ(registry_.least_used(key(1), 4), 1U);
  EXPECT_EQ(registry_.least_used(key(1), 1), 0U) << "only as many as both ends want";
  EXPECT_EQ(registry_.least_used(key(2), 4), 0U);
}

TEST_F(RegistryTest, APeersLinkIsKnownByTheNameOfItsRouteUntilThatIsGone) {
  Route* const first = add(key(1), 10);
  Route* const second = add(key(1, 1), 11);
  EXPECT_EQ(registry_.find_inbound(link(*first)), first);
  EXPECT_EQ(registry_.find_inbound(link(*second)), second);
  const fabric::LinkName name = link(*first);
  registry_.remove(*first);
  EXPECT_EQ(registry_.find_inbound(name), nullptr);
  EXPECT_EQ(registry_.find_inbound(link(*second)), second);
  EXPECT_EQ(registry_.size(), 1U);
}

}  // namespace
}  // namespace railyard::transport
