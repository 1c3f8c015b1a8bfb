#include "message/handle_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/hosting.hpp"

namespace railyard::message {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kPatienceNs = 60'000'000'000;

std::vector<HandleListener> open_listeners(int size) {
  std::vector<HandleListener> listeners;
  for (int rank = 0; rank < size; ++rank) {
    auto made = HandleListener::open({});
    EXPECT_TRUE(made) << made.error().text();
    listeners.push_back(std::move(*made));
  }
  return listeners;
}

void in_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

TEST(HandleWorld, RanksThatHoldTheFirstHandleMeet) {
  auto listeners = open_listeners(4);
  const Handle first = listeners[0].handle();
  std::vector<std::string> keys(4);
  in_ranks(4, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    auto world = HandleWorld::open(first, std::move(listeners[index]), rank, 4, kPatienceNs);
    ASSERT_TRUE(world) << world.error().text();
    keys[index] = world->job_key;
    const std::vector<std::byte> mine(index + 1, static_cast<std::byte>(rank));
    auto all = world->bootstrap->allgather(mine, {});
    ASSERT_TRUE(all) << all.error().text();
    ASSERT_EQ(all->size(), 4U);
    for (std::size_t from = 0; from < 4; ++from)
      EXPECT_EQ((*all)[from], std::vector<std::byte>(from + 1, static_cast<std::byte>(from)));
    EXPECT_TRUE(world->bootstrap->barrier({}));
  });
  EXPECT_EQ(keys, std::vector<std::string>(4, keys[0]));
  EXPECT_EQ(keys[0].size(), 32U);
}

TEST(HandleWorld, EachHasAKeyOfItsOwn) {
  auto listeners = open_listeners(2);
  std::vector<std::string> keys;
  for (HandleListener& listener : listeners) {
    const Handle own = listener.handle();
    auto world = HandleWorld::open(own, std::move(listener), 0, 1, kPatienceNs);
    ASSERT_TRUE(world) << world.error().text();
    keys.push_back(world->job_key);
  }
  EXPECT_NE(keys[0], keys[1]);
}

// A handle has several addresses, of which some may lead nowhere from here.
TEST(HandleWorld, AnAddressThatLeadsNowhereIsPassedOver) {
  const auto here = rendezvous::Address::parse("127.0.0.1:0").value();
  bootstrap::ClientOptions client;
  client.address = rendezvous::listen_at(here, 1)->address;  // closed again
  auto listener = rendezvous::listen_at(here, 16);
  ASSERT_TRUE(listener) << listener.error().text();
  client.others = {listener->address};
  client.job_key = "a key";
  bootstrap::ServerOptions options;
  options.job_key = client.job_key;
  auto server = bootstrap::Server::open(options, std::move(*listener));
  ASSERT_TRUE(server) << server.error().text();
  auto alone = bootstrap::open_hosting(std::move(*server), client);
  ASSERT_TRUE(alone) << alone.error().text();
  EXPECT_TRUE((*alone)->barrier({}));
  EXPECT_THAT((*alone)->describe(), HasSubstr(client.address.text() + ", " + client.others[0].text()));
}

TEST(HandleWorld, WhoIsMissingIsNamed) {
  auto listeners = open_listeners(2);
  const Handle first = listeners[0].handle();
  const auto world = HandleWorld::open(first, std::move(listeners[0]), 0, 2, 300'000'000);
  ASSERT_FALSE(world);
  EXPECT_EQ(world.status(), Status::timeout);
  EXPECT_THAT(world.error().text(), HasSubstr("rank 1"));
}

TEST(HandleWorld, BytesThatAreNoHandleAreRefusedAtOnce) {
  auto listeners = open_listeners(2);
  const auto world = HandleWorld::open(Handle{}, std::move(listeners[0]), 1, 2, kPatienceNs);
  EXPECT_EQ(world.status(), Status::invalid);
  EXPECT_THAT(world.error().text(), HasSubstr("rank 0's handle: not a Railyard handle"));
  const Handle other = listeners[1].handle();
  auto own = open_listeners(1);
  const auto wrong = HandleWorld::open(other, std::move(own[0]), 0, 2, kPatienceNs);
  EXPECT_EQ(wrong.status(), Status::invalid);
  EXPECT_THAT(wrong.error().text(), HasSubstr("not that of rank 0's own listener"));
}

}  // namespace
}  // namespace railyard::message
