#include "rendezvous/acceptor.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rendezvous/acceptor_bed.hpp"

namespace railyard::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::size_t kSlots = 8;
constexpr std::size_t kMostFrame = 1024 * 1024;

/// Lets everybody in who knows the key of "here", and writes down what it is told.
class WritingProtocol final : public AcceptingProtocol {
 public:
  Result<std::string> key_of(ConnectionId id, Bytes claim) override {
    if (text_of(claim) != "here") return Error(Status::not_found, "nobody of that name");
    heard.push_back(fmt::format("{} claims", id));
    return std::string(kKey);
  }
  Complaint wrong_key(ConnectionId id) override {
    heard.push_back(fmt::format("{} has another key", id));
    return {Status::refused, -1, "not our key"};
  }
  std::optional<Complaint> proven(ConnectionId id) override {
    heard.push_back(fmt::format("{} knows the key", id));
    return refuse_with;
  }
  void received(ConnectionId id, Frame& frame) override {
    heard.push_back(fmt::format("{} says {}", id, text_of(frame.payload)));
    if (on_frame) on_frame(id);
  }
  void late(ConnectionId id) override { heard.push_back(fmt::format("{} is late", id)); }
  void lost(ConnectionId id, std::string_view why) override { heard.push_back(fmt::format("{} is gone: {}", id, why)); }

  std::vector<std::string> heard;
  std::optional<Complaint> refuse_with;
  std::function<void(ConnectionId)> on_frame;
};

class AcceptorTest : public AcceptorBed {
 protected:
  static AcceptorOptions options() {
    AcceptorOptions options;
    options.who = "the test";
    options.most_frame = kMostFrame;
    options.most_unauthenticated = kSlots;
    return options;
  }
  Acceptor& acceptor() override { return acceptor_; }
  Peer connect(const std::string& key = kKey) { return AcceptorBed::connect(Protocol::job, bytes_of("here"), key); }
  Peer connect_and_be_challenged() {
    Peer peer = connect();
    be_challenged(peer);
    return peer;
  }

  WritingProtocol protocol_;
  Acceptor acceptor_{options(), protocol_, clock_};
};

TEST_F(AcceptorTest, WhoKnowsTheKeyIsLetInAndHeard) {
  Peer a = connect();
  a.end.send(own_type(0), bytes_of("too early"));  // behind its hello: no frame of a protocol yet
  Peer b = connect();
  settle({&b});
  ASSERT_TRUE(b.let_in());
  b.end.send(own_type(0), bytes_of("something"));
  settle({&b});
  acceptor_.send(b.id, own_type(1), bytes_of("an answer"));
  settle({&b});
  ASSERT_EQ(b.frames.size(), 1U);
  EXPECT_EQ(text_of(b.frames[0].payload), "an answer");
  EXPECT_THAT(protocol_.heard, ElementsAre("2 claims", "2 knows the key", "2 says something"));
  settle({&a});
  EXPECT_FALSE(a.let_in());
  EXPECT_TRUE(acceptor_.finished(a.id));
  EXPECT_EQ(acceptor_.counts().malformed, 1U);
}

TEST_F(AcceptorTest, AWrongKeyIsRefusedInTheProtocolsWords) {
  Peer wrong = connect("guess");
  settle({&wrong});
  EXPECT_EQ(wrong.failure(), "not our key");
  EXPECT_EQ(wrong.status(), Status::refused);
  EXPECT_TRUE(acceptor_.finished(wrong.id));
  EXPECT_EQ(acceptor_.counts().forged, 1U);
  EXPECT_THAT(protocol_.heard,
              ElementsAre("1 claims", "1 has another key", "1 is gone: it sent a proof of another key"));
}

TEST_F(AcceptorTest, WhoMeansSomebodyElseOrIsNotWantedIsTold) {
  Peer elsewhere = AcceptorBed::connect(Protocol::job, bytes_of("there"));
  settle({&elsewhere});
  EXPECT_EQ(elsewhere.failure(), "nobody of that name");
  EXPECT_EQ(acceptor_.counts().unknown, 1U);
  Peer channel = AcceptorBed::connect(Protocol::channel, bytes_of("here"));
  settle({&channel});
  EXPECT_THAT(channel.failure(), HasSubstr("another kind of listener"));
  protocol_.refuse_with = Complaint{Status::busy, 3, "not now"};
  Peer known = connect();
  settle({&known});
  EXPECT_EQ(known.failure(), "not now");
  EXPECT_EQ(known.end.failure()->complaint.peer, 3);
  EXPECT_FALSE(known.let_in());
  EXPECT_THAT(protocol_.heard, ElementsAre("3 claims", "3 knows the key"));
}

TEST_F(AcceptorTest, TheProofOfOneConnectionIsWorthNothingOnAnother) {
  // What an eavesdropper has: somebody's hello and proof.
  const Hello hello{kWireVersion, Protocol::job, bytes_of("here"), {}};
  const ConnectionId first = connected();
  send_raw(first, make_frame(FrameType::hello, encode(hello)));
  FrameReader reader(kMostHandshake);
  reader.feed(outgoing(first));
  Frame frame;
  ASSERT_EQ(reader.next(frame), FrameReader::State::frame);
  const Nonce nonce = parse_challenge(frame.payload)->nonce;
  const Digest proof = proof_of(kKey, {Protocol::job, bytes_of("here"), {}, nonce}, Side::connector);

  const ConnectionId second = connected();
  send_raw(second, make_frame(FrameType::hello, encode(hello)));
  send_raw(second, make_frame(FrameType::proof, encode(proof)));
  EXPECT_EQ(refusal(second)->status, Status::refused);
  // The rightful owner is not harmed by the copy.
  send_raw(first, make_frame(FrameType::proof, encode(proof)));
  EXPECT_FALSE(acceptor_.finished(first));
}

TEST_F(AcceptorTest, AnotherVersionIsRefusedByName) {
  const ConnectionId id = connected();
  send_raw(id, make_frame(FrameType::hello, encode(Hello{kWireVersion + 6, Protocol::job, {}, {}})));
  const auto complaint = refusal(id);
  ASSERT_TRUE(complaint);
  EXPECT_EQ(complaint->status, Status::version_mismatch);
  EXPECT_THAT(complaint->text,
              AllOf(HasSubstr(fmt::format("version {}", kWireVersion + 6)), HasSubstr("same release")));
}

TEST_F(AcceptorTest, GarbageIsRefusedAndClosed) {
  const ConnectionId id = connected();
  acceptor_.received(id, bytes_of("GET / HTTP/1.1\r\n\r\n"));
  EXPECT_TRUE(acceptor_.finished(id));
  const ConnectionId other = connected();
  send_raw(other, make_frame(own_type(0), bytes_of("too early")));
  EXPECT_TRUE(acceptor_.finished(other));
  EXPECT_EQ(refusal(other)->status, Status::invalid);
}

TEST_F(AcceptorTest, AnUnauthenticatedPeerGetsOnlyASmallFrame) {
  const ConnectionId id = connected();
  send_raw(id, make_frame(FrameType::hello, std::vector<std::byte>(kMostHandshake)));
  EXPECT_TRUE(acceptor_.finished(id));
}

TEST_F(AcceptorTest, AnUnauthenticatedPeerWhoSaysNothingIsDroppedInTime) {
  const ConnectionId id = connected();
  ASSERT_LT(acceptor_.deadline(), Acceptor::kNever);
  clock_.now_ns = acceptor_.deadline() - 1;
  acceptor_.tick();
  EXPECT_TRUE(acceptor_.take_dropped().empty());
  ++clock_.now_ns;
  EXPECT_THAT(acceptor_.late(), ElementsAre(id));
  acceptor_.tick();
  EXPECT_THAT(acceptor_.take_dropped(), ElementsAre(id));
  EXPECT_EQ(acceptor_.connections(), 0U);
  EXPECT_EQ(acceptor_.counts().late, 1U);
}

TEST_F(AcceptorTest, WhoIsLetInHasAllTheTimeUnlessTheProtocolSaysOtherwise) {
  Peer peer = connect();
  settle({&peer});
  EXPECT_EQ(acceptor_.deadline(), Acceptor::kNever);
  acceptor_.set_deadline(peer.id, clock_.now_ns + 5);
  clock_.now_ns += 5;
  acceptor_.tick();
  acceptor_.tick();
  EXPECT_THAT(protocol_.heard, ElementsAre("1 claims", "1 knows the key", "1 is late"));
}

TEST_F(AcceptorTest, AFloodOfUnauthenticatedPeersIsBoundedAndKeepsNobodyOut) {
  Peer a = connect();
  settle({&a});
  for (int i = 0; i < 1000; ++i) {
    connected();
    ASSERT_LE(acceptor_.connections(), kSlots + 1);
  }
  Peer b = connect();
  settle({&a, &b});
  EXPECT_TRUE(b.let_in());
  for (int i = 0; i < 1000; ++i) connected();
  b.end.send(own_type(0), bytes_of("still here"));
  settle({&b});
  EXPECT_EQ(protocol_.heard.back(), fmt::format("{} says still here", b.id));
}

TEST_F(AcceptorTest, AFloodOfSilentPeersBetweenChallengeAndProofDropsNobody) {
  Peer a = connect_and_be_challenged();
  Peer b = connect_and_be_challenged();
  for (int i = 0; i < 1000; ++i) {
    connected();
    ASSERT_LE(acceptor_.connections(), kSlots);
  }
  settle({&a, &b});
  EXPECT_TRUE(a.let_in());
  EXPECT_TRUE(b.let_in());
}

TEST_F(AcceptorTest, AFloodOfPeersThatSayHelloWaitsForThoseInMidHandshake) {
  Peer a = connect_and_be_challenged();
  Peer b = connect_and_be_challenged();
  while (acceptor_.has_room()) {
    connect_and_be_challenged();
    ASSERT_LE(acceptor_.connections(), kSlots);
  }
  EXPECT_EQ(acceptor_.connections(), kSlots);
  EXPECT_TRUE(acceptor_.take_dropped().empty());
  settle({&a, &b});
  EXPECT_TRUE(a.let_in());
  EXPECT_TRUE(b.let_in());
}

TEST_F(AcceptorTest, AChallengedPeerMakesRoomOnceItHadTimeForItsProof) {
  const Peer first = connect_and_be_challenged();
  while (acceptor_.has_room()) connect_and_be_challenged();
  clock_.now_ns += Acceptor::kLeastStayNs - 1;
  EXPECT_FALSE(acceptor_.has_room());
  clock_.now_ns += 1;
  EXPECT_TRUE(acceptor_.has_room());
  EXPECT_TRUE(acceptor_.take_dropped().empty()) << "only a newcomer drops somebody";
  connected();
  EXPECT_THAT(acceptor_.take_dropped(), ElementsAre(first.id));
  EXPECT_EQ(protocol_.heard.back(), "1 is gone: it made room for others before its proof");
}

TEST_F(AcceptorTest, WithoutDescriptorsEvenAYoungPeerMakesRoomButNobodyWhoWasLetIn) {
  Peer a = connect();
  settle({&a});
  const Peer challenged = connect_and_be_challenged();
  const ConnectionId silent = connected();
  EXPECT_TRUE(acceptor_.drop_unauthenticated());
  EXPECT_TRUE(acceptor_.drop_unauthenticated());
  EXPECT_FALSE(acceptor_.drop_unauthenticated());
  EXPECT_THAT(acceptor_.take_dropped(), ElementsAre(silent, challenged.id));
}

TEST_F(AcceptorTest, WhoBreaksTheFrameFormatIsLost) {
  Peer peer = connect();
  settle({&peer});
  acceptor_.received(peer.id, *make_frame(own_type(0), bytes_of("not sealed")).bytes);
  acceptor_.received(peer.id, std::vector<std::byte>(32));
  EXPECT_EQ(protocol_.heard.back(), "1 is gone: it sent a frame whose seal does not fit");
  EXPECT_TRUE(acceptor_.finished(peer.id));
  settle({&peer});
  EXPECT_EQ(peer.end.failure()->kind, Failure::Kind::told);
  EXPECT_EQ(acceptor_.counts().forged, 1U);
  acceptor_.closed(peer.id, "its connection closed");
  EXPECT_EQ(protocol_.heard.size(), 3U) << "it has gone once";
}

TEST_F(AcceptorTest, AProtocolMayEndAConnectionWhileItHearsIt) {
  for (const bool drop : {false, true}) {
    Peer peer = connect();
    settle({&peer});
    protocol_.on_frame = [&](ConnectionId id) { drop ? acceptor_.drop(id) : acceptor_.close(id); };
    const std::size_t before = protocol_.heard.size();
    peer.end.send(own_type(0), bytes_of("one"));
    peer.end.send(own_type(0), bytes_of("two"));
    settle({&peer});
    EXPECT_EQ(protocol_.heard.size(), before + 1) << "not after its end, and it is not told of what it did itself";
  }
}

}  // namespace
}  // namespace railyard::rendezvous
