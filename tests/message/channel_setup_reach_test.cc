// How a connector finds a listener: several addresses, some of them dead, slow or somebody else's.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/bytes.hpp"
#include "message/channel_setup_bed.hpp"
#include "message/setup_wire.hpp"
#include "rendezvous/connect_attempts.hpp"
#include "rendezvous/frames.hpp"

namespace railyard::message {
namespace {

using rendezvous::Challenge;
using rendezvous::ConnectAttempts;
using rendezvous::FrameType;
using rendezvous::Hello;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// Addresses and a port of the test's own in place of the handle's; as of another machine, so that they keep their
/// order.
Handle elsewhere(const Handle& handle, std::vector<std::string_view> addresses, std::uint16_t port) {
  HandleContents contents = read_handle(handle).value();
  contents.machine = ~contents.machine;
  contents.port = port;
  contents.addresses.clear();
  for (const auto& address : addresses) contents.addresses.push_back(address_of(address));
  return make_handle(contents);
}

/// Listens, and lets nobody in: its queue is full, so that a connection request gets no answer.
class FullListener {
 public:
  explicit FullListener(std::string_view host, std::uint16_t port = 0) : port_(listener_.listen(host, port, 0)) {
    for (RawSocket& inbound : inbound_) {
      const sockaddr_in name = ipv4(host, port_);
      EXPECT_EQ(fcntl(inbound.fd.get(), F_SETFL, O_NONBLOCK), 0);
      (void)::connect(inbound.fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name));
    }
  }
  std::uint16_t port() const { return port_; }

 private:
  RawSocket listener_;
  std::uint16_t port_;
  std::array<RawSocket, 3> inbound_;
};

TEST_F(ChannelSetupTest, AHandleReachesItsListenerByEveryAddressItCarries) {
  settings.interfaces = "";
  listener = open();
  const Handle issued = open_listener();
  const HandleContents contents = read_handle(issued).value();
  for (const IpAddress& address : contents.addresses) {
    if (address.link_local()) continue;
    const std::string text = address.text();
    Handle handle = elsewhere(issued, {text}, contents.port);
    EXPECT_EQ(meet(*connector, handle, "hello"), "welcome hello") << text;
  }
  Handle six = elsewhere(issued, {"::1"}, contents.port);
  EXPECT_EQ(meet(*connector, six, "hello"), "welcome hello");
}

TEST_F(ChannelSetupTest, APeerOnThisMachineIsReachedByLoopback) {
  Handle handle = changed(open_listener(), [](HandleContents& contents) {
    contents.addresses = {address_of("255.255.255.255"), address_of("127.0.0.1")};
  });
  host.answer = [](std::uint64_t) -> Result<std::vector<std::byte>> { return Error(Status::busy, "no"); };
  EXPECT_THAT(meet(*connector, handle, "hello"), HasSubstr("the listener at 127.0.0.1:"));
}

TEST_F(ChannelSetupTest, AnAddressThatRefusesOrCannotBeReachedIsFollowedByTheNext) {
  const Handle issued = open_listener();
  Relay relay("127.0.0.1", read_handle(issued).value().port);
  steps.emplace_back([&] { relay.step(); });
  Handle handle = elsewhere(issued, {"127.0.0.9", "255.255.255.255", "127.0.0.1"}, relay.port());
  EXPECT_EQ(meet(*connector, handle, "hello"), "welcome hello");
}

TEST_F(ChannelSetupTest, AnAddressThatIsSlowIsFollowedByTheNextAfterASecond) {
  const Handle issued = open_listener();
  Relay relay("127.0.0.1", read_handle(issued).value().port);
  steps.emplace_back([&] { relay.step(); });
  const FullListener full("127.0.0.9", relay.port());
  Handle handle = elsewhere(issued, {"127.0.0.9", "127.0.0.1"}, relay.port());
  const std::int64_t start = clock.now();
  ASSERT_TRUE(connector->begin(handle, bytes_of("hello")));
  clock.jump(std::chrono::milliseconds(500));
  drive_to_rest();
  if (clock.now() - start < ConnectAttempts::kFirstPatienceNs) {  // not so on a machine that is very busy
    EXPECT_TRUE(host.hellos.empty());
  }
  clock.jump(std::chrono::milliseconds(600));
  EXPECT_EQ(outcome(*connector, handle), "welcome hello");
}

TEST_F(ChannelSetupTest, TheDeadlineNamesEveryAddressAndWhatCameOfIt) {
  const FullListener full("127.0.0.1");
  RawSocket silent;
  silent.listen("127.0.0.2", full.port());
  Handle handle = elsewhere(open_listener(), {"127.0.0.1", "127.0.0.9", "127.0.0.2", "::1"}, full.port());
  ASSERT_TRUE(connector->begin(handle, {}));
  std::string said;
  for (int second = 0; second < 70 && said.empty(); ++second) {
    drive_to_rest();
    if (const auto welcome = connector->welcome(handle); !welcome) said = welcome.error().text();
    clock.jump(std::chrono::milliseconds(1100));
  }
  const auto port = full.port();
  EXPECT_THAT(said,
              StartsWith("timeout: no handshake with the listener within 60 s (RAILYARD_BOOTSTRAP_TIMEOUT_MS): "));
  EXPECT_THAT(said, HasSubstr(fmt::format("127.0.0.1:{}: no answer to the connection request; ", port)));
  EXPECT_THAT(said, HasSubstr(fmt::format("127.0.0.9:{}: Connection refused; ", port)));
  EXPECT_THAT(said, HasSubstr(fmt::format("127.0.0.2:{}: connected, but its process does not answer", port)));
  EXPECT_THAT(said, HasSubstr(fmt::format("[::1]:{}: not tried", port)));
  EXPECT_FALSE(connector->begun(handle));
}

TEST_F(ChannelSetupTest, AListenerThatIsGoneIsToldAtOnce) {
  Handle handle = open_listener();
  listener.reset();
  EXPECT_THAT(meet(*connector, handle, "hello"),
              AllOf(StartsWith("error: i/o error: cannot meet the listener: "), HasSubstr("Connection refused")));
}

TEST_F(ChannelSetupTest, AListenerThatDiesBeforeItAnswersIsToldSoonAfter) {
  Handle handle = open_listener();
  ASSERT_TRUE(connector->begin(handle, bytes_of("hello")));
  for (int i = 0; i < 20; ++i) connector->progress();
  listener.reset();
  EXPECT_THAT(outcome(*connector, handle), AllOf(StartsWith("error: "), HasSubstr("Connection refused")));
}

TEST_F(ChannelSetupTest, AFullQueueOfTheListenerIsTriedAgainUntilThereIsRoom) {
  auto full = std::make_unique<FullListener>("127.0.0.1");
  const Handle issued = open_listener();
  Handle handle = elsewhere(issued, {"127.0.0.1"}, full->port());
  ASSERT_TRUE(connector->begin(handle, bytes_of("hello")));
  for (int i = 0; i < 3; ++i) {
    clock.jump(std::chrono::milliseconds(1500));
    drive_to_rest();
    ASSERT_TRUE(connector->welcome(handle));
  }
  connector->abandon(handle);
}

TEST_F(ChannelSetupTest, AConnectionCutBeforeItsAnswerIsTriedAgain) {
  const Handle issued = open_listener();
  RawSocket cutting;
  const std::uint16_t port = cutting.listen("127.0.0.1");
  int cut = 0;
  steps.emplace_back([&] {
    if (cut < 3 && cutting.readable()) {
      cutting.accept();
      ++cut;
    }
  });
  Handle handle = elsewhere(issued, {"127.0.0.1"}, port);
  ASSERT_TRUE(connector->begin(handle, bytes_of("hello")));
  ASSERT_TRUE(drive([&] { return cut == 3; }));
  EXPECT_TRUE(connector->welcome(handle));
  connector->abandon(handle);
}

/// Answers every connection with the same bytes.
class FakeListener {
 public:
  explicit FakeListener(std::vector<std::byte> answer)
      : answer_(std::move(answer)), port_(listener_.listen("127.0.0.1")) {}
  std::uint16_t port() const { return port_; }
  void step() {
    if (listener_.readable()) inbound_.emplace_back(listener_.accept()).send(answer_);
    for (RawSocket& inbound : inbound_) inbound.read();
  }

 private:
  std::vector<std::byte> answer_;
  RawSocket listener_;
  std::uint16_t port_;
  std::list<RawSocket> inbound_;
};

std::vector<std::byte> frame(FrameType type, std::span<const std::byte> payload) {
  return *rendezvous::make_frame(type, payload).bytes;
}

class FakeListenerTest : public ChannelSetupTest {
 protected:
  std::string meet_fake(std::vector<std::byte> answer) {
    FakeListener fake(std::move(answer));
    steps = {[&] { fake.step(); }};
    Handle handle = elsewhere(open_listener(), {"127.0.0.1"}, fake.port());
    std::string said = meet(*connector, handle, "hello");
    steps.clear();
    return said;
  }
};

TEST_F(FakeListenerTest, WhatIsNoListenerOfRailyardIsCalledSo) {
  EXPECT_THAT(meet_fake(bytes_of("HTTP/1.1 400 Bad Request\r\n\r\n")), HasSubstr("is not Railyard"));
  EXPECT_THAT(meet_fake(frame(FrameType::challenge, bytes_of("RAILYARD"))), HasSubstr("is not Railyard"));
  EXPECT_THAT(meet_fake(frame(FrameType::hello, encode(Hello{}))), HasSubstr("nobody listens there"));
  EXPECT_THAT(meet_fake(frame(FrameType::refusal, bytes_of("?"))), HasSubstr("malformed refusal"));
}

TEST_F(FakeListenerTest, AListenerOfAnotherVersionIsNamedWithBothVersions) {
  EXPECT_THAT(meet_fake(frame(FrameType::challenge, encode(Challenge{7, {}}))),
              AllOf(StartsWith("error: version mismatch"), HasSubstr("it speaks version 7"),
                    HasSubstr(fmt::format("this process version {}", rendezvous::kWireVersion))));
}

TEST_F(FakeListenerTest, AListenerThatDoesNotKnowTheSecretIsNotBelieved) {
  auto answer = frame(FrameType::challenge, encode(Challenge{}));
  const auto proof = frame(FrameType::proof, rendezvous::encode(Digest{}));
  answer.insert(answer.end(), proof.begin(), proof.end());
  const auto welcome = frame(kWelcome, bytes_of("come in"));
  answer.insert(answer.end(), welcome.begin(), welcome.end());
  EXPECT_THAT(meet_fake(answer), AllOf(StartsWith("error: refused"), HasSubstr("does not know the key")));
}

TEST_F(FakeListenerTest, ASetupMessageBeforeTheProofIsNotBelieved) {
  auto answer = frame(FrameType::challenge, encode(Challenge{}));
  const auto welcome = frame(kWelcome, bytes_of("come in"));
  answer.insert(answer.end(), welcome.begin(), welcome.end());
  EXPECT_THAT(meet_fake(answer), StartsWith("error: refused"));
}

TEST_F(ChannelSetupTest, SomebodyElsesListenerIsFollowedByTheNextAddress) {
  // Another process of Railyard has the same port at an address that exists on many machines.
  KeepingHost unauthenticated;
  const auto other = open();
  const Handle theirs = other->open_listener(unauthenticated).value();
  const Handle issued = open_listener();
  Relay wrong("127.0.0.9", read_handle(theirs).value().port);
  // Not 127.0.0.1, where somebody's connection may have that port.
  Relay right("127.0.0.8", read_handle(issued).value().port, wrong.port());
  steps.emplace_back([&] {
    other->progress();
    wrong.step();
    right.step();
  });
  Handle both = elsewhere(issued, {"127.0.0.9", "127.0.0.8"}, wrong.port());
  EXPECT_EQ(meet(*connector, both, "hello"), "welcome hello");
  Handle only = elsewhere(issued, {"127.0.0.9"}, wrong.port());
  EXPECT_THAT(meet(*connector, only, "hello"),
              AllOf(StartsWith("error: not found: cannot meet the listener: 127.0.0.9:"), HasSubstr("no such listener"),
                    Not(HasSubstr("timeout"))));
  EXPECT_TRUE(unauthenticated.hellos.empty());
}

}  // namespace
}  // namespace railyard::message
