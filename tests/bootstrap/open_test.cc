#include "bootstrap/open.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <thread>

#include "helpers.hpp"

namespace railyard::bootstrap {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Runs without the variables that a PMIx launcher sets.
class OpenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("PMIX_RANK");
    unsetenv("PMIX_NAMESPACE");
  }
  static Settings rendezvous(std::int32_t rank, std::int32_t size, const std::string& address) {
    Settings settings;
    settings.rendezvous = address;
    settings.rank = rank;
    settings.size = size;
    settings.job_key = kKey;
    return settings;
  }
};

TEST_F(OpenTest, NothingInTheEnvironmentIsAWorldOfOne) {
  const auto opened = open_bootstrap(Settings{});
  ASSERT_TRUE(opened);
  EXPECT_EQ((*opened)->describe(), "single");
}

TEST_F(OpenTest, SingleIsTakenWhenAskedFor) {
  Settings settings = rendezvous(3, 8, "unix:@railyard-nobody");
  settings.bootstrap = "single";
  const auto opened = open_bootstrap(settings);
  ASSERT_TRUE(opened);
  EXPECT_EQ((*opened)->size(), 1);
}

TEST_F(OpenTest, RankZeroServesWhereNobodyElseDoes) {
  const std::string address = fmt::format("unix:@railyard-open-{}", getpid());
  in_threads(4, [&](int rank) {
    auto opened = open_bootstrap(rendezvous(rank, 4, address));
    ASSERT_TRUE(opened) << opened.error().text();
    EXPECT_EQ((*opened)->rank(), rank);
    EXPECT_EQ((*opened)->describe(), "tcp " + address);
    EXPECT_TRUE(is_complete((*opened)->allgather(bytes_of(contribution(rank)), {}), 4));
    EXPECT_TRUE((*opened)->barrier({}));
  });
}

// Rank 0 takes its rendezvous down with each world: the others must find the next one, not the last.
TEST_F(OpenTest, WorldsThatRankZeroServesMayFollowEachOther) {
  const auto port = listen_at(Address::parse("127.0.0.1:0").value(), 1)->address;
  in_threads(3, [&](int rank) {
    for (int round = 0; round < 10; ++round) {
      auto opened = open_bootstrap(rendezvous(rank, 3, port.text()));
      ASSERT_TRUE(opened) << opened.error().text();
      ASSERT_TRUE(is_complete((*opened)->allgather(bytes_of(contribution(rank)), {}), 3));
      // Without it, rank 0 could be gone before the others have gathered: that is an error by design.
      ASSERT_TRUE((*opened)->barrier({}));
    }
  });
}

TEST_F(OpenTest, ALauncherThatServesIsJoinedByRankZeroToo) {
  const auto server = start_server(1, fmt::format("unix:@railyard-launcher-{}", getpid()));
  Settings settings = rendezvous(0, 1, server->address().text());
  settings.rendezvous_host = "launcher";
  const auto opened = open_bootstrap(settings);
  ASSERT_TRUE(opened) << opened.error().text();
  EXPECT_EQ((*opened)->describe(), "launcher");
}

TEST_F(OpenTest, WhatIsMissingIsNamed) {
  Settings settings;
  settings.bootstrap = "tcp";
  EXPECT_THAT(open_bootstrap(settings).error().message(), HasSubstr("RAILYARD_RENDEZVOUS is not set"));
  settings.rendezvous = "127.0.0.1:1";
  EXPECT_THAT(open_bootstrap(settings).error().message(), HasSubstr("RAILYARD_RANK is not set"));
  settings.rank = 1;
  EXPECT_THAT(open_bootstrap(settings).error().message(), HasSubstr("RAILYARD_SIZE is not set"));
  settings.size = 1;
  EXPECT_THAT(open_bootstrap(settings).error().message(), HasSubstr("RAILYARD_JOB_KEY is not set"));
  settings.job_key = "x";
  EXPECT_THAT(open_bootstrap(settings).error().message(), HasSubstr("RAILYARD_RANK=1 is outside"));
}

TEST_F(OpenTest, BadAddressesAreNamed) {
  EXPECT_THAT(open_bootstrap(rendezvous(0, 2, "nowhere")).error().message(),
              AllOf(HasSubstr("RAILYARD_RENDEZVOUS"), HasSubstr("'nowhere'"), HasSubstr("port is missing")));
  EXPECT_THAT(open_bootstrap(rendezvous(0, 2, "127.0.0.1:0")).error().message(), HasSubstr("port 0"));
  EXPECT_THAT(open_bootstrap(rendezvous(1, 2, "127.0.0.1:0")).error().message(), HasSubstr("port 0"));
}

TEST_F(OpenTest, AnAddressInUseIsNamed) {
  const auto listener = listen_at(Address::parse("127.0.0.1:0").value(), 1);
  EXPECT_THAT(open_bootstrap(rendezvous(0, 2, listener->address.text())).error().message(),
              AllOf(HasSubstr("rank 0 cannot serve"), HasSubstr(listener->address.text()), HasSubstr("in use")));
}

TEST_F(OpenTest, ManyRanksWithNoPlaceToMeetAreAnError) {
  Settings settings;
  settings.size = 4;
  settings.rank = 0;
  EXPECT_THAT(open_bootstrap(settings).error().message(),
              AllOf(HasSubstr("RAILYARD_SIZE=4"), HasSubstr("RAILYARD_RENDEZVOUS")));
}

TEST_F(OpenTest, AnUnknownWayIsAnError) {
  Settings settings;
  settings.bootstrap = "pigeon";
  EXPECT_THAT(open_bootstrap(settings).error().message(), HasSubstr("RAILYARD_BOOTSTRAP='pigeon'"));
}

}  // namespace
}  // namespace railyard::bootstrap
