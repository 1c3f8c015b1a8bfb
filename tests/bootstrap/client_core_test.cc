#include "bootstrap/client_core.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "helpers.hpp"

namespace railyard::bootstrap {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A client and, by hand, the server it talks to.
class ClientCoreTest : public ::testing::Test {
 protected:
  ClientCoreTest() : client_(ClientCoreOptions{1, 4, kKey, "there:2", {}}), handshake_{1, 4, {}, {}} {
    handshake_.server_nonce[3] = std::byte{9};
  }

  void receive(FrameType type, std::span<const std::byte> payload) {
    client_.received(*make_frame(type, payload).bytes);
  }
  void receive_sealed(Seal& seal, FrameType type, std::span<const std::byte> payload) {
    const OutgoingFrame frame = make_frame(type, payload);
    client_.received(*frame.bytes);
    client_.received(seal.next(frame.digest));
  }
  void challenge() { receive(FrameType::challenge, encode(Challenge{kWireVersion, handshake_.server_nonce})); }
  void welcome() {
    challenge();
    receive(FrameType::welcome, encode(proof_of(kKey, handshake_, Side::server)));
    ASSERT_TRUE(client_.welcomed());
  }
  std::string failure() const { return client_.failure() ? client_.failure()->message() : "no failure"; }

  ClientCore client_;
  Handshake handshake_;
};

TEST_F(ClientCoreTest, ProvesItsKeyWithoutShowingIt) {
  FrameReader reader(kMostHandshake);
  const std::vector<std::byte> hello(client_.outgoing().begin(), client_.outgoing().end());
  client_.sent(hello.size());
  challenge();
  const std::vector<std::byte> proof(client_.outgoing().begin(), client_.outgoing().end());
  reader.feed(hello);
  reader.feed(proof);
  Frame frame;
  ASSERT_EQ(reader.next(frame), FrameReader::State::frame);
  EXPECT_EQ(parse_hello(frame.payload)->rank, 1);
  ASSERT_EQ(reader.next(frame), FrameReader::State::frame);
  EXPECT_EQ(parse_proof(frame.payload), proof_of(kKey, handshake_, Side::client));
  EXPECT_EQ((text_of(hello) + text_of(proof)).find(kKey), std::string::npos);
}

TEST_F(ClientCoreTest, AServerThatDoesNotKnowTheKeyIsFoundOut) {
  challenge();
  receive(FrameType::welcome, encode(proof_of("guess", handshake_, Side::server)));
  EXPECT_FALSE(client_.welcomed());
  EXPECT_EQ(client_.failure()->status(), Status::refused);
  EXPECT_THAT(failure(), AllOf(HasSubstr("there:2 does not know the job key"), HasSubstr("RAILYARD_JOB_KEY")));
}

TEST_F(ClientCoreTest, AServerThatSendsTheProofBackIsFoundOut) {
  challenge();
  receive(FrameType::welcome, encode(proof_of(kKey, handshake_, Side::client)));
  EXPECT_FALSE(client_.welcomed());
}

TEST_F(ClientCoreTest, AWelcomeWithoutAChallengeIsRefused) {
  receive(FrameType::welcome, encode(proof_of(kKey, handshake_, Side::server)));
  EXPECT_FALSE(client_.welcomed());
  EXPECT_TRUE(client_.failure());
}

TEST_F(ClientCoreTest, AnotherVersionIsNamed) {
  receive(FrameType::challenge, encode(Challenge{kWireVersion + 1, {}}));
  EXPECT_EQ(client_.failure()->status(), Status::version_mismatch);
  EXPECT_THAT(failure(), HasSubstr("there:2 speaks wire version 2, this process version 1"));
}

TEST_F(ClientCoreTest, SomethingElseAtTheAddressIsNamed) {
  client_.received(bytes_of("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_THAT(failure(), AllOf(HasSubstr("there:2 is no rendezvous of Railyard"), HasSubstr("RAILYARD_RENDEZVOUS")));
}

TEST_F(ClientCoreTest, ARefusalIsPassedOn) {
  receive(FrameType::refusal, encode(Complaint{Status::refused, -1, "not you"}, kMostRefusalText));
  EXPECT_THAT(failure(), HasSubstr("the rendezvous at there:2 refused rank 1: not you"));
}

TEST_F(ClientCoreTest, ARefusalAfterTheWelcomeIsNotBelieved) {
  welcome();
  Seal seal(kKey, handshake_, Side::server);
  receive_sealed(seal, FrameType::refusal, encode(Complaint{Status::refused, -1, "not you"}, kMostRefusalText));
  EXPECT_THAT(failure(), HasSubstr("makes no sense at this point"));
}

TEST_F(ClientCoreTest, AResultMustAnswerTheCall) {
  welcome();
  client_.enter(Call::join, 1, {});
  Seal seal(kKey, handshake_, Side::server);
  receive_sealed(seal, FrameType::result, encode_result(Call::join, 0, {}));
  ASSERT_TRUE(client_.take_result());
  client_.enter(Call::barrier, 1, {});
  receive_sealed(seal, FrameType::result, encode_result(Call::barrier, 7, {}));
  EXPECT_FALSE(client_.take_result());
  EXPECT_THAT(failure(), HasSubstr("makes no sense at this point"));
}

TEST_F(ClientCoreTest, AResultNobodyAskedForIsAnError) {
  welcome();
  Seal seal(kKey, handshake_, Side::server);
  receive_sealed(seal, FrameType::result, encode_result(Call::join, 0, {}));
  EXPECT_TRUE(client_.failure());
}

TEST_F(ClientCoreTest, AChangedMessageIsFoundOut) {
  welcome();
  client_.enter(Call::join, 1, {});
  Seal wrong("guess", handshake_, Side::server);
  receive_sealed(wrong, FrameType::result, encode_result(Call::join, 0, {}));
  EXPECT_EQ(client_.failure()->status(), Status::refused);
  EXPECT_THAT(failure(), HasSubstr("was changed on its way"));
}

TEST_F(ClientCoreTest, AFailureCarriesTheRankItIsAbout) {
  welcome();
  client_.enter(Call::join, 1, {});
  Seal seal(kKey, handshake_, Side::server);
  receive_sealed(seal, FrameType::failure, encode(Complaint{Status::peer_lost, 3, "rank 3 is gone"}, kMostText));
  EXPECT_EQ(client_.failure()->status(), Status::peer_lost);
  EXPECT_EQ(client_.failure()->where().peer, 3);
  EXPECT_EQ(failure(), "rank 3 is gone");
}

}  // namespace
}  // namespace railyard::bootstrap
