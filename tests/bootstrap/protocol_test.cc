#include "bootstrap/protocol.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

#include "helpers.hpp"

namespace railyard::bootstrap {
namespace {

Nonce nonce(int first) {
  Nonce nonce;
  for (std::size_t i = 0; i < nonce.size(); ++i) nonce[i] = static_cast<std::byte>(static_cast<std::size_t>(first) + i);
  return nonce;
}

const Handshake kHandshake{2, 8, nonce(1), nonce(100)};

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

TEST(Protocol, HelloTravels) {
  const auto bytes = encode(Hello{kWireVersion, 3, 8, nonce(7)});
  EXPECT_EQ(text_of(std::span(bytes).first(8)), "RAILYARD");
  const auto hello = parse_hello(bytes);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->rank, 3);
  EXPECT_EQ(hello->size, 8);
  EXPECT_EQ(hello->nonce, nonce(7));
  expect_exact(bytes, parse_hello);
}

TEST(Protocol, HelloOfAnotherVersionIsRecognisedWhateverFollows) {
  const auto bytes = encode(Hello{kWireVersion + 1, 3, 8, nonce(7)});
  const auto hello = parse_hello(std::span(bytes).first(10));
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->version, kWireVersion + 1);
}

TEST(Protocol, HelloWithoutSenseIsRefused) {
  EXPECT_FALSE(parse_hello(encode(Hello{kWireVersion, -1, 8, {}})));
  EXPECT_FALSE(parse_hello(encode(Hello{kWireVersion, 8, 8, {}})));
  EXPECT_FALSE(parse_hello(encode(Hello{kWireVersion, 0, 0, {}})));
  EXPECT_FALSE(parse_hello(encode(Hello{kWireVersion, 0, kMostRanks + 1, {}})));
  auto bytes = encode(Hello{kWireVersion, 0, 8, {}});
  bytes[0] = std::byte{'r'};
  EXPECT_FALSE(parse_hello(bytes));
}

TEST(Protocol, ChallengeTravels) {
  const auto bytes = encode(Challenge{kWireVersion, nonce(9)});
  EXPECT_EQ(parse_challenge(bytes)->nonce, nonce(9));
  expect_exact(bytes, parse_challenge);
  EXPECT_EQ(parse_challenge(encode(Challenge{7, {}}))->version, 7);
}

TEST(Protocol, ProofTravels) {
  const auto bytes = encode(nonce(3));
  EXPECT_EQ(parse_proof(bytes), nonce(3));
  expect_exact(bytes, parse_proof);
}

TEST(Protocol, EnterTravels) {
  EXPECT_TRUE(rc::check([](std::uint64_t sequence, std::uint64_t timeout, const std::string& content) {
    const auto enter = parse_enter(encode(Enter{Call::allgather, sequence, timeout, bytes_of(content)}));
    RC_ASSERT(enter.has_value());
    RC_ASSERT(enter->sequence == sequence);
    RC_ASSERT(enter->timeout_ns == timeout);
    RC_ASSERT(text_of(enter->contribution) == content);
  }));
  expect_exact(encode(Enter{Call::barrier, 1, 2, bytes_of("abc")}), parse_enter);
  auto unknown = encode(Enter{Call::barrier, 1, 2, {}});
  unknown[0] = std::byte{4};
  EXPECT_FALSE(parse_enter(unknown));
  unknown[0] = std::byte{0};
  EXPECT_FALSE(parse_enter(unknown));
}

TEST(Protocol, AContributionOverTheLimitIsRefused) {
  EXPECT_TRUE(parse_enter(encode(Enter{Call::allgather, 0, 0, std::vector<std::byte>(kMostContribution)})));
  EXPECT_FALSE(parse_enter(encode(Enter{Call::allgather, 0, 0, std::vector<std::byte>(kMostContribution + 1)})));
}

TEST(Protocol, ResultTravels) {
  const std::vector<std::vector<std::byte>> contributions = {bytes_of("a"), {}, bytes_of("ccc")};
  const auto bytes = encode_result(Call::allgather, 5, contributions);
  const auto parse = [](std::span<const std::byte> payload) { return parse_result(payload, 3); };
  const auto result = parse(bytes);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->sequence, 5U);
  EXPECT_EQ(result->contributions, contributions);
  expect_exact(bytes, parse);
  EXPECT_FALSE(parse_result(bytes, 4));
  EXPECT_FALSE(parse_result(bytes, 2));
}

TEST(Protocol, OnlyAnAllgatherCarriesContributions) {
  EXPECT_TRUE(parse_result(encode_result(Call::barrier, 0, {}), 3));
  const std::vector<std::vector<std::byte>> three(3);
  EXPECT_FALSE(parse_result(encode_result(Call::barrier, 0, three), 3));
  EXPECT_FALSE(parse_result(encode_result(Call::allgather, 0, {}), 3));
}

TEST(Protocol, ComplaintTravelsCutAndPrintable) {
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

TEST(Proof, IsBoundToKeySideRankSizeAndNonces) {
  const Digest proof = proof_of(kKey, kHandshake, Side::client);
  EXPECT_EQ(proof, proof_of(kKey, kHandshake, Side::client));
  EXPECT_NE(proof, proof_of("other", kHandshake, Side::client));
  EXPECT_NE(proof, proof_of(kKey, kHandshake, Side::server));
  for (const auto& change : std::vector<std::function<void(Handshake&)>>{
           [](Handshake& h) { h.rank = 3; }, [](Handshake& h) { h.size = 9; },
           [](Handshake& h) { h.client_nonce = nonce(2); }, [](Handshake& h) { h.server_nonce = nonce(2); },
           [](Handshake& h) { std::swap(h.client_nonce, h.server_nonce); }}) {
    Handshake other = kHandshake;
    change(other);
    EXPECT_NE(proof, proof_of(kKey, other, Side::client));
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
      const OutgoingFrame frame = make_frame(FrameType::enter, bytes_of(payload));
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
        RC_ASSERT(frame.type == FrameType::enter);
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
  reader.feed(*make_frame(FrameType::enter, bytes_of("123456789")).bytes);
  EXPECT_EQ(reader.next(frame), FrameReader::State::frame);
}

TEST(FrameReader, SealedFramesComeThrough) {
  Seal seal(kKey, kHandshake, Side::client);
  FrameReader reader(1000);
  reader.expect_seal(Seal(kKey, kHandshake, Side::client));
  Frame frame;
  for (const char* payload : {"one", "two", ""}) {
    reader.feed(sealed(seal, FrameType::enter, payload));
    ASSERT_EQ(reader.next(frame), FrameReader::State::frame);
    EXPECT_EQ(text_of(frame.payload), payload);
  }
}

TEST(FrameReader, AnyChangedByteIsSeen) {
  for (std::size_t place = 4; place < 4 + 1 + 5 + 32; ++place) {
    Seal seal(kKey, kHandshake, Side::client);
    auto bytes = sealed(seal, FrameType::enter, "hello");
    ASSERT_EQ(bytes.size(), 4U + 1 + 5 + 32);
    bytes[place] ^= std::byte{1};
    FrameReader reader(1000);
    reader.expect_seal(Seal(kKey, kHandshake, Side::client));
    reader.feed(bytes);
    Frame frame;
    EXPECT_EQ(reader.next(frame), FrameReader::State::forged) << place;
  }
}

TEST(FrameReader, AFramePlayedAgainIsSeen) {
  Seal seal(kKey, kHandshake, Side::client);
  const auto bytes = sealed(seal, FrameType::enter, "hello");
  FrameReader reader(1000);
  reader.expect_seal(Seal(kKey, kHandshake, Side::client));
  reader.feed(bytes);
  reader.feed(bytes);
  Frame frame;
  EXPECT_EQ(reader.next(frame), FrameReader::State::frame);
  EXPECT_EQ(reader.next(frame), FrameReader::State::forged);
}

TEST(FrameReader, AFrameSentBackToItsSenderIsSeen) {
  Seal seal(kKey, kHandshake, Side::client);
  FrameReader reader(1000);
  reader.expect_seal(Seal(kKey, kHandshake, Side::server));
  reader.feed(sealed(seal, FrameType::enter, "hello"));
  Frame frame;
  EXPECT_EQ(reader.next(frame), FrameReader::State::forged);
}

TEST(Texts, RanksAreListed) {
  EXPECT_EQ(list_ranks(std::vector<std::int32_t>{3}), "rank 3");
  EXPECT_EQ(list_ranks(std::vector<std::int32_t>{3, 7}), "rank 3 and rank 7");
  EXPECT_EQ(list_ranks(std::vector<std::int32_t>{1, 2, 3}), "rank 1, rank 2 and rank 3");
  std::vector<std::int32_t> many(20);
  std::iota(many.begin(), many.end(), 0);
  EXPECT_THAT(list_ranks(many), ::testing::EndsWith("rank 15 and 4 more"));
}

TEST(Texts, DurationsAreShort) {
  EXPECT_EQ(show_duration(60'000'000'000), "60 s");
  EXPECT_EQ(show_duration(59'970'000'000), "60 s");
  EXPECT_EQ(show_duration(1'500'000'000), "1.5 s");
  EXPECT_EQ(show_duration(1'990'000'000), "2 s");
  EXPECT_EQ(show_duration(250'000'000), "250 ms");
  EXPECT_EQ(show_duration(0), "0 ms");
}

}  // namespace
}  // namespace railyard::bootstrap
