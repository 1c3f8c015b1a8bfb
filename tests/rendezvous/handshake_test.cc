#include "rendezvous/handshake.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rendezvous/test_bytes.hpp"

namespace railyard::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A connecting end and, by hand, the acceptor it talks to.
class ConnectingEndTest : public ::testing::Test {
 protected:
  ConnectingEndTest() : handshake_{Protocol::job, bytes_of("rank 1"), {}, {}}, end_(options(), {}) {
    handshake_.acceptor_nonce[3] = std::byte{9};
  }
  static ConnectingEnd::Options options() {
    return {Protocol::job, bytes_of("rank 1"), kKey, 1000, make_frame(own_type(0), bytes_of("first"))};
  }

  void receive(FrameType type, Bytes payload) {
    end_.feed(*make_frame(type, payload).bytes);
    news_ = end_.next(frame_);
  }
  void receive_sealed(Seal& seal, FrameType type, Bytes payload) {
    const OutgoingFrame frame = make_frame(type, payload);
    end_.feed(*frame.bytes);
    end_.feed(seal.next(frame.digest));
    news_ = end_.next(frame_);
  }
  void challenge() { receive(FrameType::challenge, encode(Challenge{kWireVersion, handshake_.acceptor_nonce})); }
  void prove() {
    challenge();
    receive(FrameType::proof, encode(proof_of(kKey, handshake_, Side::acceptor)));
    ASSERT_TRUE(end_.proven());
  }
  std::vector<std::byte> said() {
    std::vector<std::byte> all;
    while (!end_.outgoing().empty()) {
      all.insert(all.end(), end_.outgoing().begin(), end_.outgoing().end());
      end_.sent(end_.outgoing().size());
    }
    return all;
  }
  Failure::Kind kind() const { return end_.failure() ? end_.failure()->kind : Failure::Kind::late; }
  std::string failure() const { return end_.failure() ? end_.failure()->complaint.text : "no failure"; }

  Handshake handshake_;
  ConnectingEnd end_;
  ConnectingEnd::News news_ = ConnectingEnd::News::nothing;
  Frame frame_;
};

TEST_F(ConnectingEndTest, ProvesItsKeyWithoutShowingItAndSealsWhatFollows) {
  FrameReader reader(kMostHandshake);
  auto all = said();
  challenge();
  const auto more = said();
  all.insert(all.end(), more.begin(), more.end());
  reader.feed(all);
  ASSERT_EQ(reader.next(frame_), FrameReader::State::frame);
  EXPECT_EQ(text_of(parse_hello(frame_.payload)->claim), "rank 1");
  ASSERT_EQ(reader.next(frame_), FrameReader::State::frame);
  EXPECT_EQ(parse_proof(frame_.payload), proof_of(kKey, handshake_, Side::connector));
  reader.expect_seal(Seal(kKey, handshake_, Side::connector));
  ASSERT_EQ(reader.next(frame_), FrameReader::State::frame);
  EXPECT_EQ(text_of(frame_.payload), "first");
  EXPECT_EQ(text_of(all).find(kKey), std::string::npos);
}

TEST_F(ConnectingEndTest, AnAcceptorThatDoesNotKnowTheKeyIsFoundOut) {
  challenge();
  receive(FrameType::proof, encode(proof_of("guess", handshake_, Side::acceptor)));
  EXPECT_FALSE(end_.proven());
  EXPECT_EQ(kind(), Failure::Kind::wrong_key);
  EXPECT_EQ(end_.failure()->complaint.status, Status::refused);
}

TEST_F(ConnectingEndTest, AnAcceptorThatSendsTheProofBackIsFoundOut) {
  challenge();
  receive(FrameType::proof, encode(proof_of(kKey, handshake_, Side::connector)));
  EXPECT_FALSE(end_.proven());
}

TEST_F(ConnectingEndTest, AProofWithoutAChallengeIsRefused) {
  receive(FrameType::proof, encode(proof_of(kKey, handshake_, Side::acceptor)));
  EXPECT_FALSE(end_.proven());
  EXPECT_EQ(kind(), Failure::Kind::foreign);
}

TEST_F(ConnectingEndTest, AFrameOfTheProtocolBeforeTheProofIsNotBelieved) {
  challenge();
  receive(own_type(1), bytes_of("come in"));
  EXPECT_EQ(news_, ConnectingEnd::News::failure);
  EXPECT_FALSE(end_.proven());
}

TEST_F(ConnectingEndTest, AnotherVersionIsNamed) {
  receive(FrameType::challenge, encode(Challenge{kWireVersion + 1, {}}));
  EXPECT_EQ(kind(), Failure::Kind::version);
  EXPECT_THAT(failure(), AllOf(HasSubstr(fmt::format("version {}", kWireVersion + 1)),
                               HasSubstr(fmt::format("this process version {}", kWireVersion))));
}

TEST_F(ConnectingEndTest, SomethingElseAtTheAddressIsNamed) {
  end_.feed(bytes_of("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_EQ(end_.next(frame_), ConnectingEnd::News::failure);
  EXPECT_EQ(kind(), Failure::Kind::foreign);
}

TEST_F(ConnectingEndTest, ItsOwnHelloMeansThatNobodyListens) {
  end_.feed(said());
  EXPECT_EQ(end_.next(frame_), ConnectingEnd::News::failure);
  EXPECT_EQ(kind(), Failure::Kind::nobody);
}

TEST_F(ConnectingEndTest, ARefusalIsPassedOn) {
  receive(FrameType::refusal, encode(Complaint{Status::refused, 2, "not you"}, kMostRefusalText));
  EXPECT_EQ(kind(), Failure::Kind::refused);
  EXPECT_EQ(failure(), "not you");
  EXPECT_EQ(end_.failure()->complaint.peer, 2);
}

TEST_F(ConnectingEndTest, ARefusalAfterTheProofIsAFrameOfNobodysProtocol) {
  prove();
  Seal seal(kKey, handshake_, Side::acceptor);
  receive_sealed(seal, FrameType::refusal, encode(Complaint{Status::refused, -1, "not you"}, kMostRefusalText));
  EXPECT_EQ(news_, ConnectingEnd::News::frame);
  EXPECT_EQ(frame_.type, FrameType::refusal);
}

TEST_F(ConnectingEndTest, FramesArriveAndAChangedOneIsFoundOut) {
  prove();
  Seal seal(kKey, handshake_, Side::acceptor);
  receive_sealed(seal, own_type(1), bytes_of("come in"));
  EXPECT_EQ(news_, ConnectingEnd::News::frame);
  EXPECT_EQ(text_of(frame_.payload), "come in");
  Seal wrong("guess", handshake_, Side::acceptor);
  receive_sealed(wrong, own_type(1), {});
  EXPECT_EQ(kind(), Failure::Kind::forged);
}

TEST_F(ConnectingEndTest, AFailureIsTheAcceptorsOwnWord) {
  prove();
  Seal seal(kKey, handshake_, Side::acceptor);
  receive_sealed(seal, FrameType::failure, encode(Complaint{Status::peer_lost, 3, "rank 3 is gone"}, kMostText));
  EXPECT_EQ(kind(), Failure::Kind::told);
  EXPECT_EQ(end_.failure()->complaint.peer, 3);
  EXPECT_EQ(failure(), "rank 3 is gone");
}

}  // namespace
}  // namespace railyard::rendezvous
