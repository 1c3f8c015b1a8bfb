#include "rendezvous/address.hpp"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include "rendezvous/test_bytes.hpp"

namespace railyard::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// What came of an attempt to connect to the first endpoint: 0, or the system's number.
int reach(const Address& address) {
  const auto endpoints = resolve(address);
  EXPECT_TRUE(endpoints) << endpoints.error().text();
  const Connecting connecting = start_connecting(endpoints->front());
  if (!connecting.socket) return connecting.code;
  pollfd wait{connecting.socket.get(), POLLOUT, 0};
  EXPECT_EQ(poll(&wait, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())), 1);
  int code = 0;
  socklen_t length = sizeof(code);
  EXPECT_EQ(getsockopt(connecting.socket.get(), SOL_SOCKET, SO_ERROR, &code, &length), 0);
  return code;
}

TEST(Address, EveryFormIsReadAndWritten) {
  for (const char* text :
       {"10.0.0.1:7777", "node7.cluster:1", "[::1]:65535", "localhost:0", "unix:/tmp/meet", "unix:@name"}) {
    const auto address = Address::parse(text);
    ASSERT_TRUE(address) << address.error().text();
    EXPECT_EQ(address->text(), text);
  }
  EXPECT_EQ(Address::parse("[::1]:5")->host, "::1");
  EXPECT_EQ(Address::parse("unix:@name")->kind, Address::Kind::unix_abstract);
  EXPECT_EQ(Address::parse("unix:/a")->path, "/a");
}

TEST(Address, WhatIsNoneIsSaidClearly) {
  for (const char* text :
       {"", "node7", "node7:", ":5", "node7:port", "node7:70000", "node7:-1", "node7:5x", "::1:5", "unix:", "unix:@"}) {
    const auto address = Address::parse(text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.status(), Status::invalid);
    EXPECT_THAT(address.error().message(), AllOf(HasSubstr(std::string("'") + text + "'"), HasSubstr("host:port")))
        << text;
  }
  EXPECT_THAT(Address::parse("unix:/" + std::string(200, 'x')).error().message(), HasSubstr("at most 106 characters"));
}

TEST(Address, TheLongestPathWorks) {
  const std::string folder = ::testing::TempDir() + "railyard-" + std::to_string(getpid());
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  std::string path = folder + "/";
  path += std::string(106 - path.size(), 'x');
  const auto address = Address::parse("unix:" + path);
  ASSERT_TRUE(address);
  const auto listener = listen_at(*address, 1);
  ASSERT_TRUE(listener) << listener.error().text();
  EXPECT_EQ(reach(*address), 0);
  unlink(path.c_str());
  rmdir(folder.c_str());
}

TEST(Listen, PortZeroIsReplacedByTheOneTheSystemPicked) {
  const auto listener = listen_at(Address::parse("127.0.0.1:0").value(), 1);
  ASSERT_TRUE(listener);
  EXPECT_NE(listener->address.port, 0);
  EXPECT_EQ(reach(listener->address), 0);
}

TEST(Listen, AnAddressInUseIsNamed) {
  const auto listener = listen_at(Address::parse("127.0.0.1:0").value(), 1);
  ASSERT_TRUE(listener);
  const auto again = listen_at(listener->address, 1);
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message(), AllOf(HasSubstr(listener->address.text()), HasSubstr("in use")));
}

TEST(Listen, ASocketFileIsPrivateAndAnAbandonedOneIsReplaced) {
  const auto address =
      Address::parse("unix:" + ::testing::TempDir() + "railyard-file-" + std::to_string(getpid())).value();
  {
    const auto listener = listen_at(address, 1);
    ASSERT_TRUE(listener) << listener.error().text();
    struct stat status {};
    ASSERT_EQ(stat(address.path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600U);
    EXPECT_THAT(listen_at(address, 1).error().message(), HasSubstr("in use"));
  }
  // The listener is closed and its file is still there: what a killed process leaves.
  EXPECT_TRUE(listen_at(address, 1));
  unlink(address.path.c_str());
}

TEST(Listen, AnOrdinaryFileInTheWayIsLeftAlone) {
  const auto address =
      Address::parse("unix:" + ::testing::TempDir() + "railyard-plain-" + std::to_string(getpid())).value();
  FILE* file = fopen(address.path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  fputs("precious", file);
  fclose(file);
  EXPECT_FALSE(listen_at(address, 1));
  EXPECT_EQ(std::filesystem::file_size(address.path), 8U);
  unlink(address.path.c_str());
}

TEST(Connect, NobodyThereIsAnError) {
  const auto listener = listen_at(Address::parse("127.0.0.1:0").value(), 1);
  const Address address = listener->address;
  const_cast<Listener&>(*listener).socket.reset();
  EXPECT_EQ(reach(address), ECONNREFUSED);
  EXPECT_EQ(reach(Address::parse("unix:@nobody-listens-here").value()), ECONNREFUSED);
  EXPECT_EQ(resolve(Address::parse("no-such-host.invalid:5").value()).status(), Status::not_found);
}

}  // namespace
}  // namespace railyard::rendezvous
