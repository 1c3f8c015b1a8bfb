#include "rendezvous/frames.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <functional>

#include "rendezvous/test_bytes.hpp"

namespace railyard::rendezvous {
namespace {

constexpr FrameType kOwn = own_type(0);

Nonce nonce(int first) {
  Nonce nonce;
  for (std::size_t i = 0; i < nonce.size(); ++i) nonce[i] = static_cast<std::byte>(static_cast<std::size_t>(first) + i);
  return nonce;
}

const Handshake kHandshake{Protocol::job, bytes_of("rank 2 of 8"), nonce(1), nonce(100)};

/// Every shorter message and every longer one must be refused.
template <typename Parse>
void expect_exact(const std::vector<std::byte>& message, Parse parse) {
  ASSERT_TRUE(parse(std::span<const std::byte>(message)));
  for (std::size_t length = 0; length < message.size(); ++length) {
    // A copy of exactly that length: a read past its end is seen by the address sanitizer.
    const std::vector<std::byte> shorter(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_FALSE(parse(std::span<const std::byte>(shorter))) << length;
  }
  std::vector<std::byte> longer = message;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse(std::span<const std::byte>(longer)));
}

TEST(Frames, HelloTravels) {
  const auto bytes = encode(Hello{kWireVersion, Protocol::channel, bytes_of("claim"), nonce(7)});
  EXPECT_EQ(text_of(std::span(bytes).first(8)), "RAILYARD");
  const auto hello = parse_hello(bytes);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->protocol, Protocol::channel);
  EXPECT_EQ(text_of(hello->claim), "claim");
  EXPECT_EQ(hello->nonce, nonce(7));
  expect_exact(bytes, parse_hello);
}

TEST(Frames, HelloOfAnotherVersionIsRecognisedWhateverFollows) {
  const auto bytes = encode(Hello{kWireVersion + 1, Protocol::job, {}, nonce(7)});
  const auto hello = parse_hello(std::span(bytes).first(10));
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->version, kWireVersion + 1);
}

TEST(Frames, HelloWithoutSenseIsRefused) {
  EXPECT_TRUE(parse_hello(encode(Hello{kWireVersion, Protocol::job, std::vector<std::byte>(kMostClaim), {}})));
  EXPECT_FALSE(parse_hello(encode(Hello{kWireVersion, Protocol::job, std::vector<std::byte>(kMostClaim + 1), {}})));
  EXPECT_FALSE(parse_hello(encode(Hello{kWireVersion, static_cast<Protocol>(0), {}, {}})));
  EXPECT_FALSE(parse_hello(encode(Hello{kWireVersion, static_cast<Protocol>(3), {}, {}})));
  auto bytes = encode(Hello{});
  bytes[0] = std::byte{'r'};
  EXPECT_FALSE(parse_hello(bytes));
}

TEST(Frames, ChallengeTravels) {
  const auto bytes = encode(Challenge{kWireVersion, nonce(9)});
  EXPECT_EQ(parse_challenge(bytes)->nonce, nonce(9));
  expect_exact(bytes, parse_challenge);
  EXPECT_EQ(parse_challenge(encode(Challenge{7, {}}))->version, 7);
}

TEST(Frames, ProofTravels) {
  const auto bytes = encode(nonce(3));
  EXPECT_EQ(parse_proof(bytes), nonce(3));
  expect_exact(bytes, parse_proof);
}

TEST(Frames, ComplaintTravelsCutAndPrintable) {
  const auto bytes = encode(Complaint{Status::peer_lost, 3, "gone\n\x1b[31m"}, 100);
  const auto complaint = parse_complaint(bytes, 100);
  ASSERT_TRUE(complaint);
  EXPECT_EQ(complaint->status, Status::peer_lost);
  EXPECT_EQ(complaint->peer, 3);
  EXPECT_EQ(complaint->text, "gone??[31m");
  expect_exact(bytes, [](std::span<const std::byte> payload) { return parse_complaint(payload, 100); });
  EXPECT_EQ(parse_complaint(encode(Complaint{Status::io, -1, std::string(200, 'x')}, 10), 10)->text.size(), 10U);
  EXPECT_FALSE(parse_complaint(encode(Complaint{Status::io, -1, std::string(200, 'x')}, 200), 10));
  EXPECT_FALSE(parse_complaint(encode(Complaint{Status::ok, -1, ""}, 10), 10));
}

TEST(Proof, IsBoundToKeySideProtocolClaimAndNonces) {
  const Digest proof = proof_of(kKey, kHandshake, Side::connector);
  EXPECT_EQ(proof, proof_of(kKey, kHandshake, Side::connector));
  EXPECT_NE(proof, proof_of("other", kHandshake, Side::connector));
  EXPECT_NE(proof, proof_of(kKey, kHandshake, Side::acceptor));
  for (const auto& change : std::vector<std::function<void(Handshake&)>>{
           [](Handshake& h) { h.protocol = Protocol::channel; }, [](Handshake& h) { h.claim.back() = std::byte{'9'}; },
           [](Handshake& h) { h.connector_nonce = nonce(2); }, [](Handshake& h) { h.acceptor_nonce = nonce(2); },
           [](Handshake& h) { std::swap(h.connector_nonce, h.acceptor_nonce); }}) {
    Handshake other = kHandshake;
    change(other);
    EXPECT_NE(proof, proof_of(kKey, other, Side::connector));
  }
}

std::vector<std::byte> sealed(Seal& seal, FrameType type, std::string_view payload) {
  const OutgoingFrame frame = make_frame(type, bytes_of(payload));
  std::vector<std::byte> bytes = *frame.bytes;
  const Digest tag = seal.next(frame.digest);
  bytes.insert(bytes.end(), tag.begin(), tag.end());
  return bytes;
}

TEST(FrameReader, CutsAStreamWhereverItIsBroken) {
  EXPECT_TRUE(rc::check([](const std::vector<std::string>& payloads) {
    std::vector<std::byte> stream;
    for (const std::string& payload : payloads) {
      const OutgoingFrame frame = make_frame(kOwn, bytes_of(payload));
      stream.insert(stream.end(), frame.bytes->begin(), frame.bytes->end());
    }
    FrameReader reader(1 << 20);
    std::vector<std::string> read;
    std::size_t at = 0;
    while (at < stream.size()) {
      const auto length = std::min(stream.size() - at, *rc::gen::inRange<std::size_t>(1, 40));
      reader.feed(std::span(stream).subspan(at, length));
      at += length;
      Frame frame;
      while (reader.next(frame) == FrameReader::State::frame) {
        RC_ASSERT(frame.type == kOwn);
        read.push_back(text_of(frame.payload));
      }
    }
    RC_ASSERT(read == payloads);
  }));
}

TEST(FrameReader, RefusesLengthsNobodyMaySend) {
  Frame frame;
  for (const std::uint32_t length : {0U, 11U, UINT32_MAX}) {
    FrameReader reader(10);
    reader.feed(std::as_bytes(std::span(&length, 1)));
    EXPECT_EQ(reader.next(frame), FrameReader::State::oversize) << length;
  }
  FrameReader reader(10);
  reader.feed(*make_frame(kOwn, bytes_of("123456789")).bytes);
  EXPECT_EQ(reader.next(frame), FrameReader::State::frame);
}

TEST(FrameReader, SealedFramesComeThrough) {
  Seal seal(kKey, kHandshake, Side::connector);
  FrameReader reader(1000);
  reader.expect_seal(Seal(kKey, kHandshake, Side::connector));
  Frame frame;
  for (const char* payload : {"one", "two", ""}) {
    reader.feed(sealed(seal, kOwn, payload));
    ASSERT_EQ(reader.next(frame), FrameReader::State::frame);
    EXPECT_EQ(text_of(frame.payload), payload);
  }
}

TEST(FrameReader, AnyChangedByteIsSeen) {
  for (std::size_t place = 4; place < 4 + 1 + 5 + 32; ++place) {
    Seal seal(kKey, kHandshake, Side::connector);
    auto bytes = sealed(seal, kOwn, "hello");
    ASSERT_EQ(bytes.size(), 4U + 1 + 5 + 32);
    bytes[place] ^= std::byte{1};
    FrameReader reader(1000);
    reader.expect_seal(Seal(kKey, kHandshake, Side::connector));
    reader.feed(bytes);
    Frame frame;
    EXPECT_EQ(reader.next(frame), FrameReader::State::forged) << place;
  }
}

TEST(FrameReader, AFramePlayedAgainIsSeen) {
  Seal seal(kKey, kHandshake, Side::connector);
  const auto bytes = sealed(seal, kOwn, "hello");
  FrameReader reader(1000);
  reader.expect_seal(Seal(kKey, kHandshake, Side::connector));
  reader.feed(bytes);
  reader.feed(bytes);
  Frame frame;
  EXPECT_EQ(reader.next(frame), FrameReader::State::frame);
  EXPECT_EQ(reader.next(frame), FrameReader::State::forged);
}

TEST(FrameReader, AFrameSentBackToItsSenderIsSeen) {
  Seal seal(kKey, kHandshake, Side::connector);
  FrameReader reader(1000);
  reader.expect_seal(Seal(kKey, kHandshake, Side::acceptor));
  reader.feed(sealed(seal, kOwn, "hello"));
  Frame frame;
  EXPECT_EQ(reader.next(frame), FrameReader::State::forged);
}

}  // namespace
}  // namespace railyard::rendezvous
