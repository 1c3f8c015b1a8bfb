// Handshakes of two set-up objects over real sockets: those that come about, and those that one end gives up.
#include "message/channel_setup.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "message/channel_setup_bed.hpp"
#include "rendezvous/epoll_set.hpp"

namespace railyard::message {
namespace {

using rendezvous::EpollSet;
using rendezvous::kNever;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

TEST_F(ChannelSetupTest, ThreeSetupMessagesArriveInTheirOrder) {
  Handle handle = open_listener();
  EXPECT_FALSE(connector->begun(handle));
  EXPECT_EQ(meet(*connector, handle, "hello"), "welcome hello");
  EXPECT_TRUE(connector->begun(handle));
  EXPECT_THAT(host.ready, IsEmpty());
  ASSERT_TRUE(connector->finish(handle, bytes_of("ready")));
  EXPECT_FALSE(connector->begun(handle));
  ASSERT_TRUE(drive([&] { return !host.ready.empty(); }));
  EXPECT_EQ(host.ready.begin()->second, "ready");
  EXPECT_EQ(host.ready.begin()->first, host.hellos.begin()->first);
  EXPECT_THAT(host.gone, IsEmpty());
  EXPECT_EQ(listener->counts().handshakes, 1U);
}

TEST_F(ChannelSetupTest, OneProcessMayMeetItself) {
  Handle handle = open_listener();
  EXPECT_EQ(meet(*listener, handle, "me"), "welcome me");
  ASSERT_TRUE(listener->finish(handle, {}));
  EXPECT_TRUE(drive([&] { return host.ready.size() == 1; }));
}

TEST_F(ChannelSetupTest, AConnectorWaitsForAListenerWhoseProcessMakesNoProgress) {
  Handle handle = open_listener();
  ASSERT_TRUE(connector->begin(handle, bytes_of("early")));
  for (int i = 0; i < 50; ++i) {
    clock.jump(std::chrono::milliseconds(1000));
    for (int pass = 0; pass < 20; ++pass) connector->progress();
    const auto welcome = connector->welcome(handle);
    ASSERT_TRUE(welcome) << welcome.error().text();
    ASSERT_FALSE(*welcome);
  }
  EXPECT_EQ(outcome(*connector, handle), "welcome early");
}

TEST_F(ChannelSetupTest, AnAnswerThatIsThereCountsEvenAfterTheDeadline) {
  std::vector<Handle> handles(2 * EpollSet::kMostEvents, open_listener());  // more than one look finds
  for (Handle& handle : handles) ASSERT_TRUE(connector->begin(handle, bytes_of("hello")));
  const auto alone = [](ChannelSetup& setup) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (std::chrono::steady_clock::now() < until) setup.progress();
  };
  // The listener has the last word, and the connector has not looked since.
  for (int round = 0; round < 100 && host.hellos.size() < handles.size(); ++round) {
    alone(*connector);
    alone(*listener);
  }
  ASSERT_EQ(host.hellos.size(), handles.size());
  clock.jump(std::chrono::seconds(61));  // the connector's process slept
  connector->progress();
  for (Handle& handle : handles) {
    const auto welcome = connector->welcome(handle);
    ASSERT_TRUE(welcome) << welcome.error().text();
    ASSERT_TRUE(*welcome);
  }
}

TEST_F(ChannelSetupTest, TheLongestSetupMessagesArriveWholeAndLongerOnesAreRefused) {
  const std::string longest(kMostSetupMessage, 'x');
  host.answer = [&](std::uint64_t) -> Result<std::vector<std::byte>> { return bytes_of(longest); };
  Handle handle = open_listener();
  EXPECT_EQ(connector->begin(handle, bytes_of(longest + "x")).status(), Status::out_of_range);
  EXPECT_FALSE(connector->begun(handle));
  EXPECT_EQ(meet(*connector, handle, longest), longest);
  EXPECT_EQ(host.hellos.begin()->second, longest);
  EXPECT_EQ(connector->finish(handle, bytes_of(longest + "x")).status(), Status::out_of_range);
  ASSERT_TRUE(connector->finish(handle, bytes_of(longest)));
  ASSERT_TRUE(drive([&] { return !host.ready.empty(); }));
  EXPECT_EQ(host.ready.begin()->second, longest);

  host.answer = [&](std::uint64_t) -> Result<std::vector<std::byte>> { return bytes_of(longest + "x"); };
  EXPECT_THAT(meet(*connector, handle, "again"),
              HasSubstr("its welcome has 262145 bytes, the longest set-up message 262144"));
  EXPECT_TRUE(drive([&] { return host.gone.size() == 1; }));
}

TEST_F(ChannelSetupTest, ASetupMessageThatGoesOutInChunksArrivesWhole) {
  Handle handle = open_listener();
  const std::string hello(kMostSetupMessage - 100, 'h');
  ASSERT_TRUE(connector->begin(handle, bytes_of(hello)));
  for (int i = 0; i < 20; ++i) listener->progress();  // lets it in
  squeeze_sockets();
  EXPECT_EQ(outcome(*connector, handle), "welcome " + hello);
  ASSERT_TRUE(connector->finish(handle, bytes_of(hello)));
  ASSERT_TRUE(drive([&] { return !host.ready.empty(); }));
  EXPECT_EQ(host.ready.begin()->second, hello);
}

TEST_F(ChannelSetupTest, TwoHundredMeetAtOneListener) {
  std::vector<Handle> handles(200, open_listener());
  for (std::size_t i = 0; i < handles.size(); ++i) {
    ASSERT_TRUE(connector->begin(handles[i], bytes_of(std::to_string(i))));
  }
  for (std::size_t i = 0; i < handles.size(); ++i) {
    ASSERT_EQ(outcome(*connector, handles[i]), "welcome " + std::to_string(i));
    ASSERT_TRUE(connector->finish(handles[i], bytes_of(std::to_string(i))));
  }
  ASSERT_TRUE(drive([&] { return host.ready.size() == handles.size(); }));
  EXPECT_EQ(host.ready, host.hellos);
}

TEST_F(ChannelSetupTest, TwoHundredMeetAtTwoHundredListeners) {
  std::vector<KeepingHost> hosts(200);
  std::vector<Handle> handles;
  for (KeepingHost& each : hosts) handles.push_back(listener->open_listener(each).value());
  for (std::size_t i = 0; i < handles.size(); ++i) {
    ASSERT_TRUE(connector->begin(handles[i], bytes_of(std::to_string(i))));
  }
  for (std::size_t i = 0; i < handles.size(); ++i) {
    ASSERT_EQ(outcome(*connector, handles[i]), "welcome " + std::to_string(i));
    ASSERT_TRUE(connector->finish(handles[i], {}));
  }
  ASSERT_TRUE(
      drive([&] { return std::ranges::all_of(hosts, [](const auto& each) { return each.ready.size() == 1; }); }));
  for (std::size_t i = 0; i < hosts.size(); ++i) EXPECT_EQ(hosts[i].hellos.begin()->second, std::to_string(i));
}

TEST_F(ChannelSetupTest, TheTextOfARefusalArrives) {
  host.answer = [](std::uint64_t) -> Result<std::vector<std::byte>> {
    return Error(Status::version_mismatch, "channels of version 3 only");
  };
  Handle handle = open_listener();
  EXPECT_THAT(meet(*connector, handle, "hello"),
              AllOf(StartsWith("error: version mismatch: the listener at 127.0.0.1:"),
                    HasSubstr("refused: channels of version 3 only")));
  EXPECT_FALSE(connector->begun(handle));
  drive_to_rest();
  EXPECT_THAT(host.gone, IsEmpty()) << "an inbound connection that was refused does not go";
}

TEST_F(ChannelSetupTest, CallsOutOfTurnAreErrorsAndChangeNothing) {
  Handle handle = open_listener();
  EXPECT_EQ(connector->welcome(handle).status(), Status::invalid);
  EXPECT_EQ(connector->finish(handle, {}).status(), Status::invalid);
  connector->abandon(handle);
  Handle nonsense;
  EXPECT_THAT(connector->begin(nonsense, {}).error().text(), HasSubstr("not a Railyard handle"));
  EXPECT_FALSE(connector->begun(nonsense));
  listener->close_listener(nonsense);

  ASSERT_TRUE(connector->begin(handle, bytes_of("hello")));
  EXPECT_THAT(connector->finish(handle, {}).error().text(), HasSubstr("after its welcome"));
  ASSERT_TRUE(connector->begin(handle, bytes_of("other"))) << "goes on with what was begun";
  EXPECT_EQ(outcome(*connector, handle), "welcome hello");
  EXPECT_THAT(connector->welcome(handle).error().text(), HasSubstr("taken already"));
  ASSERT_TRUE(connector->finish(handle, {}));
  EXPECT_TRUE(drive([&] { return host.ready.size() == 1; }));
}

TEST_F(ChannelSetupTest, ACopyMadeMidwayGetsItsOwnHandshakeInAnotherProcess) {
  Handle handle = open_listener();
  ASSERT_TRUE(connector->begin(handle, bytes_of("first")));
  Handle copy = handle;
  const auto second = open();
  EXPECT_FALSE(second->begun(copy));
  steps.emplace_back([&] { second->progress(); });
  EXPECT_EQ(meet(*second, copy, "second"), "welcome second");
  EXPECT_EQ(outcome(*connector, handle), "welcome first");
  ASSERT_TRUE(connector->finish(handle, bytes_of("first")));
  ASSERT_TRUE(second->finish(copy, bytes_of("second")));
  ASSERT_TRUE(drive([&] { return host.ready.size() == 2; }));
  EXPECT_EQ(host.ready, host.hellos);
}

TEST_F(ChannelSetupTest, ACopyMadeMidwayNamesTheSameHandshakeHereAndBeginsItsOwnOnceThatIsOver) {
  Handle handle = open_listener();
  EXPECT_EQ(meet(*connector, handle, "first"), "welcome first");
  Handle copy = handle;
  EXPECT_TRUE(connector->begun(copy));
  ASSERT_TRUE(connector->finish(handle, {}));
  EXPECT_FALSE(connector->begun(copy));
  EXPECT_EQ(meet(*connector, copy, "second"), "welcome second");
  EXPECT_EQ(meet(*connector, handle, "third"), "welcome third");
}

TEST_F(ChannelSetupTest, AHandshakeOfAnotherHandleInTheSamePlaceIsNotMistaken) {
  Handle handle = open_listener();
  ASSERT_TRUE(connector->begin(handle, {}));
  Handle other = open_listener();
  set_handshake(other, handshake_of(handle));
  EXPECT_FALSE(connector->begun(other));
  connector->abandon(other);
  EXPECT_EQ(outcome(*connector, handle), "welcome ");
}

TEST_F(ChannelSetupTest, AClosedListenerEndsEveryHandshakeAndCallsItsHostNoMore) {
  std::vector<Handle> handles(4, open_listener());
  ASSERT_TRUE(connector->begin(handles[0], bytes_of("accepted")));
  ASSERT_TRUE(drive([&] { return !host.hellos.empty(); }));
  EXPECT_EQ(outcome(*connector, handles[0]), "welcome accepted");
  ASSERT_TRUE(connector->begin(handles[1], bytes_of("begun")));
  for (int i = 0; i < 3; ++i) listener->progress();
  ASSERT_TRUE(connector->begin(handles[2], bytes_of("not let in")));
  listener->close_listener(handles[0]);
  EXPECT_THAT(outcome(*connector, handles[1]), StartsWith("error: "));
  EXPECT_THAT(outcome(*connector, handles[2]), StartsWith("error: "));
  EXPECT_THAT(meet(*connector, handles[3], "afterwards"), StartsWith("error: "));
  drive_to_rest();
  EXPECT_THAT(connector->finish(handles[0], {}).error().text(), HasSubstr("the listener was closed"));
  EXPECT_FALSE(connector->begun(handles[0]));
  EXPECT_THAT(host.hellos, SizeIs(1));
  EXPECT_THAT(host.ready, IsEmpty());
  EXPECT_THAT(host.gone, IsEmpty());
  EXPECT_FALSE(listener->progress()) << "nothing is left to do";
}

TEST_F(ChannelSetupTest, AListenerThatIsClosedLeavesTheOthersOpen) {
  Handle closed = open_listener();
  Handle open = open_listener();
  ASSERT_TRUE(connector->begin(open, {}));
  listener->close_listener(closed);
  EXPECT_THAT(meet(*connector, closed, ""), AllOf(StartsWith("error: not found"), HasSubstr("no such listener here")));
  EXPECT_EQ(outcome(*connector, open), "welcome ");
  EXPECT_EQ(listener->counts().unknown, 1U);
}

TEST_F(ChannelSetupTest, AListenerCanBeOpenedAgainAfterTheLastWasClosed) {
  for (int round = 0; round < 3; ++round) {
    Handle handle = open_listener();
    EXPECT_EQ(meet(*connector, handle, "hello"), "welcome hello");
    connector->abandon(handle);
    listener->close_listener(handle);
  }
}

TEST_F(ChannelSetupTest, AHostMayCloseItsListenerWhileItIsCalled) {
  Handle handle = open_listener();
  const Handle own_handle = handle;
  host.answer = [&](std::uint64_t) -> Result<std::vector<std::byte>> {
    listener->close_listener(own_handle);
    return bytes_of("too late");
  };
  EXPECT_THAT(meet(*connector, handle, "hello"), HasSubstr("the listener was closed"));
  EXPECT_THAT(host.gone, IsEmpty());
}

TEST_F(ChannelSetupTest, AHostThatClosedItsListenerIsNotCalledForWhatHadArrived) {
  struct OnceHost : KeepingHost {
    void on_ready(std::uint64_t handshake, std::span<const std::byte> setup_message) override {
      KeepingHost::on_ready(handshake, setup_message);
      setup->close_listener(own_handle);
    }
    ChannelSetup* setup = nullptr;
    Handle own_handle;
  } once;
  once.setup = listener.get();
  once.own_handle = listener->open_listener(once).value();
  std::vector<Handle> handles(5, once.own_handle);
  for (Handle& handle : handles) EXPECT_EQ(meet(*connector, handle, "hello"), "welcome hello");
  for (Handle& handle : handles) ASSERT_TRUE(connector->finish(handle, {}));
  drive_to_rest();
  EXPECT_EQ(once.ready.size(), 1U);
}

TEST_F(ChannelSetupTest, AHostMayUseTheSetupWhileItIsCalled) {
  KeepingHost other;
  Handle back;
  host.answer = [&](std::uint64_t) -> Result<std::vector<std::byte>> {
    back = listener->open_listener(other).value();
    listener->progress();
    return bytes_of("come");
  };
  Handle handle = open_listener();
  EXPECT_EQ(meet(*connector, handle, "hello"), "come");
  EXPECT_EQ(meet(*connector, back, "hello"), "welcome hello");
}

TEST_F(ChannelSetupTest, WhoIsGivenUpBeforeTheHostHeardOfItNeverWasThere) {
  Handle handle = open_listener();
  ASSERT_TRUE(connector->begin(handle, bytes_of("hello")));
  connector->abandon(handle);
  EXPECT_FALSE(connector->begun(handle));
  drive_to_rest();
  ASSERT_TRUE(connector->begin(handle, bytes_of("hello")));
  for (int i = 0; i < 2; ++i) connector->progress();
  connector->abandon(handle);
  drive_to_rest();
  EXPECT_THAT(host.hellos, IsEmpty());
  EXPECT_THAT(host.gone, IsEmpty());
}

TEST_F(ChannelSetupTest, WhoIsGivenUpLaterGoesOnce) {
  Handle handle = open_listener();
  ASSERT_TRUE(connector->begin(handle, {}));
  ASSERT_TRUE(drive([&] { return !host.hellos.empty(); }));
  connector->abandon(handle);  // its welcome is on the way
  EXPECT_TRUE(drive([&] { return host.gone.size() == 1; }));
  EXPECT_EQ(meet(*connector, handle, "again"), "welcome again");
  connector->abandon(handle);  // it has the welcome
  EXPECT_TRUE(drive([&] { return host.gone.size() == 2; }));
  EXPECT_EQ(host.hellos.size(), 2U);
  EXPECT_TRUE(host.ready.empty());
}

TEST_F(ChannelSetupTest, WhoGoesWhileTheHostDecidesGoesOnlyIfItWasAccepted) {
  bool accept = false;
  Handle handle = open_listener();
  host.answer = [&](std::uint64_t) -> Result<std::vector<std::byte>> {
    connector->abandon(handle);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (std::chrono::steady_clock::now() < until) listener->progress();
    if (accept) return bytes_of("come");
    return Error(Status::busy, "not now");
  };
  ASSERT_TRUE(connector->begin(handle, {}));
  ASSERT_TRUE(drive([&] { return host.hellos.size() == 1; }));
  drive_to_rest();
  EXPECT_THAT(host.gone, IsEmpty());
  accept = true;
  ASSERT_TRUE(connector->begin(handle, {}));
  EXPECT_TRUE(drive([&] { return host.gone.size() == 1; }));
}

TEST_F(ChannelSetupTest, WhoTakesTooLongToBeReadyGoesAndLearnsIt) {
  Handle handle = open_listener();
  EXPECT_EQ(meet(*connector, handle, "hello"), "welcome hello");
  clock.jump(std::chrono::seconds(61));
  EXPECT_TRUE(drive([&] { return host.gone.size() == 1; }));
  drive_to_rest();
  const auto finished = connector->finish(handle, {});
  EXPECT_EQ(finished.status(), Status::timeout);
  EXPECT_THAT(finished.error().text(), HasSubstr("the connector took too long"));
}

TEST_F(ChannelSetupTest, AnEndingSetupSendsWhatItOwes) {
  const std::string setup_message(kMostSetupMessage, 'r');
  // A tenth of a second is little on a busy machine: one of several tries does.
  for (int tries = 0; host.ready.empty() && tries < 5; ++tries) {
    if (!connector) connector = open();
    host.gone.clear();
    Handle handle = open_listener();
    ASSERT_EQ(meet(*connector, handle, "hello"), "welcome hello");
    squeeze_sockets();
    ASSERT_TRUE(connector->finish(handle, bytes_of(setup_message)));
    std::thread closing([ending = std::move(connector)]() mutable { ending.reset(); });
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (host.ready.empty() && host.gone.empty() && std::chrono::steady_clock::now() < until) listener->progress();
    closing.join();
  }
  ASSERT_FALSE(host.ready.empty());
  EXPECT_EQ(host.ready.begin()->second, setup_message);
}

TEST_F(ChannelSetupTest, AnEndingSetupWaitsForNobodyLongerThanATenthOfASecond) {
  Handle handle = open_listener();
  EXPECT_EQ(meet(*connector, handle, "hello"), "welcome hello");
  squeeze_sockets();
  ASSERT_TRUE(connector->finish(handle, bytes_of(std::string(kMostSetupMessage, 'r'))));
  const auto start = std::chrono::steady_clock::now();
  connector.reset();
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(90));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST_F(ChannelSetupTest, NoDescriptorIsLeftBehind) {
  const std::size_t before = open_descriptors();
  for (int round = 0; round < 20; ++round) {
    std::vector<Handle> handles(6, open_listener());
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(meet(*connector, handles[i], "hello"), "welcome hello");
    for (std::size_t i = 3; i < 5; ++i) ASSERT_TRUE(connector->begin(handles[i], {}));
    ASSERT_TRUE(connector->finish(handles[0], {}));
    connector->abandon(handles[1]);
    connector->abandon(handles[3]);
    if (round % 2 == 0) drive_to_rest();
    listener->close_listener(handles[5]);
    drive_to_rest();
    connector->abandon(handles[2]);
    connector->abandon(handles[4]);
    drive_to_rest();
    EXPECT_EQ(open_descriptors(), before) << "round " << round;
  }
  Handle handle = open_listener();
  EXPECT_EQ(meet(*connector, handle, "hello"), "welcome hello");
  listener.reset();
  connector.reset();
  EXPECT_EQ(open_descriptors(), before - 4) << "and the two epoll sets with their timers";
}

TEST(EpollSetAlarms, AnAlarmMakesTheDescriptorReadableAndNothingElseDoes) {
  const SteadyClock clock;
  auto set = EpollSet::open(clock);
  ASSERT_TRUE(set.ok()) << set.error().text();
  EpollSet& watch = **set;
  const auto readable = [&](int timeout_ms) {
    pollfd one{watch.descriptor(), POLLIN, 0};
    return ::poll(&one, 1, timeout_ms) == 1;
  };
  const std::uint64_t early = watch.new_id();
  const std::uint64_t late = watch.new_id();
  constexpr std::int64_t kSoon = 20'000'000;
  watch.set_alarm(late, clock.now() + 1000 * kSoon);
  EXPECT_FALSE(readable(50));
  watch.set_alarm(early, clock.now() + kSoon);
  ASSERT_TRUE(readable(10'000));
  EXPECT_TRUE(watch.poll(0).empty()) << "the timer is no socket";
  EXPECT_EQ(watch.take_alarm(clock.now()), early);
  EXPECT_EQ(watch.take_alarm(clock.now()), std::nullopt);
  EXPECT_FALSE(readable(50)) << "the later alarm has not come";
  watch.set_alarm(late, clock.now() + kSoon);  // an alarm moved to the front
  ASSERT_TRUE(readable(10'000));
  watch.set_alarm(late, kNever);  // gone before it was taken
  EXPECT_TRUE(watch.poll(0).empty());
  EXPECT_FALSE(readable(50));
}

TEST_F(ChannelSetupTest, WithoutListenerOrHandshakeThereIsNothingToDo) {
  EXPECT_FALSE(connector->progress());
  Handle handle = open_listener();
  listener->close_listener(handle);
  EXPECT_FALSE(listener->progress());
}

}  // namespace
}  // namespace railyard::message
