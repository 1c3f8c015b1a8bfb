// Those who connect without a right to: none of them gets in, none of them harms a handshake, all of them are counted.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <random>

#include "message/channel_setup_bed.hpp"
#include "message/setup_listeners.hpp"
#include "message/setup_wire.hpp"
#include "rendezvous/handshake.hpp"

namespace railyard::message {
namespace {

using rendezvous::EpollSet;
using rendezvous::FrameType;
using rendezvous::Hello;
using rendezvous::make_frame;
using rendezvous::Protocol;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class UnauthenticatedTest : public ChannelSetupTest {
 protected:
  UnauthenticatedTest() : handle(open_listener()), port(read_handle(handle).value().port) {}

  /// Sends it and listens until the listener closes.
  std::string say(std::span<const std::byte> bytes) {
    RawSocket socket;
    EXPECT_TRUE(socket.connect("127.0.0.1", port));
    socket.send(bytes);
    EXPECT_TRUE(drive([&] {
      socket.read();
      return socket.ended;
    }));
    return socket.received;
  }
  void drive_to_rest_of_listener() {
    for (int quiet = 0; quiet < 20; ++quiet) {
      if (listener->progress() && listener_moves_ < 100'000) {
        quiet = 0;
        ++listener_moves_;
      }
    }
  }
  void expect_others_still_meet() {
    Handle good = handle;
    const std::size_t before = host.hellos.size();
    EXPECT_EQ(meet(*connector, good, "honest"), "welcome honest");
    EXPECT_EQ(host.hellos.size(), before + 1);
    connector->abandon(good);
  }

  Handle handle;
  std::uint16_t port;

 private:
  int listener_moves_ = 0;
};

TEST_F(UnauthenticatedTest, AWrongSecretIsRefusedAndCounted) {
  Handle wrong = changed(handle, [](HandleContents& contents) { contents.secret[0] ^= std::byte{1}; });
  EXPECT_THAT(meet(*connector, wrong, "let me in"),
              AllOf(StartsWith("error: refused"), HasSubstr("the handle's secret is not the listener's")));
  EXPECT_TRUE(host.hellos.empty());
  EXPECT_EQ(listener->counts().forged, 1U);
  EXPECT_THAT(log, HasSubstr("turned 127.0.0.1:"));
  listener->close_listener(wrong);  // nor can it close the listener
  expect_others_still_meet();
}

TEST_F(UnauthenticatedTest, AnUnknownListenerIsRefusedAndCounted) {
  Handle wrong = changed(handle, [](HandleContents& contents) { ++contents.listener; });
  EXPECT_THAT(meet(*connector, wrong, "hello"), HasSubstr("there is no such listener here"));
  EXPECT_EQ(listener->counts().unknown, 1U);
  expect_others_still_meet();
}

TEST_F(UnauthenticatedTest, AConnectorOfAnotherVersionIsToldBoth) {
  const auto request = *make_frame(FrameType::hello, encode(Hello{9, Protocol::channel, {}, {}})).bytes;
  EXPECT_THAT(say(request), AllOf(HasSubstr("version 9 of the handshake"),
                                  HasSubstr(fmt::format("version {} here", rendezvous::kWireVersion))));
  EXPECT_EQ(listener->counts().malformed, 1U);
  expect_others_still_meet();
}

TEST_F(UnauthenticatedTest, RandomBytesOversizedFramesAndMessagesOutOfTurnAreTurnedAway) {
  const auto count = [this] { return listener->counts().malformed; };
  EXPECT_THAT(say(bytes_of("GET / HTTP/1.1\r\n\r\n")), HasSubstr("a length that nobody may send"));
  EXPECT_EQ(count(), 1U);
  EXPECT_THAT(say(*make_frame(FrameType::hello, std::vector<std::byte>(1024)).bytes),
              HasSubstr("a length that nobody may send"));
  EXPECT_THAT(say(*make_frame(FrameType::hello, bytes_of("hello?")).bytes), HasSubstr("no hello of Railyard"));
  EXPECT_THAT(say(*make_frame(kHello, bytes_of("a set-up message")).bytes), HasSubstr("no hello of Railyard"));
  auto twice = *make_frame(FrameType::hello, encode(Hello{rendezvous::kWireVersion,
                                                          Protocol::channel,
                                                          claim_of_listener(read_handle(handle).value().listener),
                                                          {}}))
                    .bytes;
  const auto once = twice;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_THAT(say(twice), HasSubstr("no proof"));
  EXPECT_EQ(count(), 5U);

  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    std::vector<std::byte> noise(5 + random() % 2000);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    noise[3] = std::byte{0xff};
    say(noise);
  }
  EXPECT_EQ(count(), 55U);
  EXPECT_TRUE(host.hellos.empty());
  expect_others_still_meet();
}

TEST_F(UnauthenticatedTest, WhoSpeaksOutOfTurnIsTurnedAwayBeforeTheHostHearsOfIt) {
  const HandleContents contents = read_handle(handle).value();
  rendezvous::ConnectingEnd end(
      {Protocol::channel, claim_of_listener(contents.listener), key_of_listener(contents.secret),
       kMostSetupMessageFrame, make_frame(kHello, bytes_of("hello"))},
      {});
  RawSocket socket;
  ASSERT_TRUE(socket.connect("127.0.0.1", port));
  const auto send = [&] {
    while (!end.outgoing().empty()) {
      const auto bytes = end.outgoing();
      socket.send(bytes);
      end.sent(bytes.size());
    }
  };
  send();
  ASSERT_TRUE(drive([&] {
    socket.read();
    return !socket.received.empty();
  }));
  end.feed(bytes_of(std::exchange(socket.received, {})));
  rendezvous::Frame frame;
  end.next(frame);
  end.send(kReady, {});  // with its hello, before any welcome
  send();
  ASSERT_TRUE(drive([&] {
    socket.read();
    return socket.ended;
  }));
  end.feed(bytes_of(socket.received));
  while (end.next(frame) == rendezvous::ConnectingEnd::News::frame) {
  }
  ASSERT_TRUE(end.failure());
  EXPECT_THAT(end.failure()->complaint.text, HasSubstr("makes no sense at this point"));
  EXPECT_TRUE(host.hellos.empty());
  EXPECT_TRUE(host.gone.empty());
  EXPECT_EQ(listener->counts().malformed, 1U);
}

TEST_F(UnauthenticatedTest, AChangedSetupMessageIsNeverBelieved) {
  // Everything the connector sends up to and with its set-up message, with one byte changed in each run.
  const std::size_t request = 4 + 1 + 8 + 2 + 1 + 4 + 8 + 32;
  const std::size_t proof = 4 + 1 + 32;
  const std::size_t setup_message = 4 + 1 + 5 + 32;
  for (std::size_t at = 0; at < request + proof + setup_message; at += at < request + proof ? 7 : 3) {
    Relay relay("127.0.0.1", port);
    relay.to_listener = [at](std::span<std::byte> bytes, std::size_t passed) {
      if (at >= passed && at < passed + bytes.size()) bytes[at - passed] ^= std::byte{0x20};
    };
    steps = {[&] { relay.step(); }};
    Handle through = changed(handle, [&](HandleContents& contents) { contents.port = relay.port(); });
    ASSERT_TRUE(connector->begin(through, bytes_of("hello")));
    // A changed length can leave the listener waiting for more, until it has waited long enough.
    drive_to_rest();
    clock.jump(std::chrono::seconds(11));
    drive_to_rest();
    EXPECT_TRUE(host.hellos.empty()) << "byte " << at;
    connector->abandon(through);
    drive_to_rest();
  }
  steps.clear();
  EXPECT_GT(listener->counts().forged, 10U);
  expect_others_still_meet();
}

TEST_F(UnauthenticatedTest, AChangedAnswerIsNeverBelieved) {
  const std::size_t challenge = 4 + 1 + 8 + 2 + 32;
  const std::size_t proof = 4 + 1 + 32;
  const std::size_t setup_message = 4 + 1 + 13 + 32;
  for (std::size_t at = 0; at < challenge + proof + setup_message; at += 3) {
    Relay relay("127.0.0.1", port);
    relay.to_connector = [at](std::span<std::byte> bytes, std::size_t passed) {
      if (at >= passed && at < passed + bytes.size()) bytes[at - passed] ^= std::byte{0x20};
    };
    steps = {[&] { relay.step(); }};
    Handle through = changed(handle, [&](HandleContents& contents) { contents.port = relay.port(); });
    ASSERT_TRUE(connector->begin(through, bytes_of("hello")));
    drive_to_rest();
    const auto welcome = connector->welcome(through);
    EXPECT_TRUE(!welcome || !*welcome) << "byte " << at;
    connector->abandon(through);
    drive_to_rest();
  }
  steps.clear();
}

TEST_F(UnauthenticatedTest, WhatWasHeardOnceCannotBePlayedAgain) {
  std::vector<std::byte> heard;
  Relay relay("127.0.0.1", port);
  relay.to_listener = [&](std::span<std::byte> bytes, std::size_t) {
    heard.insert(heard.end(), bytes.begin(), bytes.end());
  };
  steps = {[&] { relay.step(); }};
  Handle through = changed(handle, [&](HandleContents& contents) { contents.port = relay.port(); });
  EXPECT_EQ(meet(*connector, through, "hello"), "welcome hello");
  connector->abandon(through);
  drive_to_rest();
  steps.clear();
  EXPECT_THAT(say(heard), HasSubstr("the handle's secret is not the listener's"));
  EXPECT_EQ(host.hellos.size(), 1U);
}

TEST_F(UnauthenticatedTest, WhoDoesNotProveItselfInTimeIsDropped) {
  RawSocket silent;
  ASSERT_TRUE(silent.connect("127.0.0.1", port));
  RawSocket slow;
  ASSERT_TRUE(slow.connect("127.0.0.1", port));
  const auto request = *make_frame(FrameType::hello, encode(Hello{})).bytes;
  drive_to_rest();
  for (std::size_t second = 0; second < 6; ++second) {
    slow.send(std::span(request).subspan(second, 1));
    clock.jump(std::chrono::seconds(1));
    drive_to_rest();
    silent.read();
    EXPECT_FALSE(silent.ended);
  }
  clock.jump(std::chrono::seconds(4));
  EXPECT_TRUE(drive([&] {
    silent.read();
    slow.read();
    return silent.ended && slow.ended;
  }));
  EXPECT_EQ(listener->counts().late, 2U);
}

TEST_F(UnauthenticatedTest, AHelloThatArrivedInTimeCountsHoweverLateTheListenerLooks) {
  std::vector<Handle> handles(2 * EpollSet::kMostEvents, handle);  // more than one look finds
  for (Handle& good : handles) ASSERT_TRUE(connector->begin(good, bytes_of("hello")));
  for (int i = 0; i < 10; ++i) connector->progress();
  drive_to_rest_of_listener();  // lets them in, hears their requests
  // A call takes longer than that where everything is slow.
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  for (int calls = 0; calls < 50 || std::chrono::steady_clock::now() < until; ++calls) connector->progress();
  ASSERT_TRUE(host.hellos.empty());
  clock.jump(std::chrono::seconds(20));
  listener->progress();
  EXPECT_EQ(host.hellos.size(), handles.size());
  EXPECT_EQ(listener->counts().late, 0U);
}

TEST_F(UnauthenticatedTest, AConnectorDroppedForItsSlownessMeetsAllTheSame) {
  Handle good = handle;
  ASSERT_TRUE(connector->begin(good, bytes_of("hello")));
  for (int i = 0; i < 5; ++i) listener->progress();
  clock.jump(std::chrono::seconds(11));  // the connector's process slept
  for (int i = 0; i < 5; ++i) listener->progress();
  EXPECT_EQ(outcome(*connector, good), "welcome hello");
}

TEST_F(UnauthenticatedTest, ACrowdOfUnauthenticatedPeersIsBoundedAndKeepsNobodyOutForLong) {
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const std::size_t crowd = SetupListeners::kMostUnauthenticated + 200;
  if (files.rlim_cur < 2 * crowd + 500) {
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4 * crowd);
    if (files.rlim_cur < 2 * crowd + 500 || setrlimit(RLIMIT_NOFILE, &files) != 0)
      GTEST_SKIP() << "too few descriptors";
  }
  std::vector<RawSocket> unauthenticated_peers(crowd);
  for (RawSocket& unauthenticated : unauthenticated_peers) ASSERT_TRUE(unauthenticated.connect("127.0.0.1", port));
  const std::size_t before = open_descriptors();
  drive_to_rest_of_listener();
  EXPECT_LE(open_descriptors(), before + SetupListeners::kMostUnauthenticated);
  clock.jump(std::chrono::seconds(2));
  expect_others_still_meet();
  EXPECT_GE(listener->counts().late, 100U);
  clock.jump(std::chrono::seconds(20));
  drive_to_rest_of_listener();
  EXPECT_LE(open_descriptors(), before + 2);
}

TEST_F(UnauthenticatedTest, OutOfDescriptorsTheOldestUnauthenticatedPeerMakesRoom) {
  expect_others_still_meet();  // a sanitizer needs descriptors at the first call of each kind
  std::vector<RawSocket> unauthenticated_peers(20);
  for (RawSocket& unauthenticated : unauthenticated_peers) ASSERT_TRUE(unauthenticated.connect("127.0.0.1", port));
  drive_to_rest_of_listener();
  Handle good = handle;
  ASSERT_TRUE(connector->begin(good, bytes_of("hello")));
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit none{open_descriptors() - 1, files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(outcome(*connector, good), "welcome hello");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_GE(listener->counts().late, 1U);
}

}  // namespace
}  // namespace railyard::message
