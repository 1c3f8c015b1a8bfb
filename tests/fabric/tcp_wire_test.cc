/// Handshake, frames and addresses of tcp rails, as bytes.
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "fabric/tcp/frames.hpp"
#include "fabric/tcp/handshake.hpp"

namespace railyard::fabric::tcp {
namespace {

Hello some_hello() {
  Hello hello;
  hello.nonce.fill(std::byte{1});
  hello.from.fill(std::byte{2});
  hello.tag = {0x1122334455667788, 9, 0x99aabbccddeeff00, 0xb8};
  return hello;
}
const Secret kSecret = [] {
  Secret secret{};
  secret.fill(std::byte{42});
  return secret;
}();

TEST(TcpHandshake, AGreetingSaysWhoAndForWhichLink) {
  const auto parsed = Hello::parse(some_hello().pack(kSecret), kSecret);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->from, some_hello().from);
  EXPECT_EQ(parsed->tag.id, some_hello().tag.id);
  EXPECT_EQ(parsed->tag.epoch, 9u);
  EXPECT_EQ(parsed->tag.facing, some_hello().tag.facing);
  EXPECT_EQ(parsed->tag.traffic_class, 0xb8);
  EXPECT_FALSE(parsed->insists);
}

TEST(TcpHandshake, NoBitOfAGreetingCanBeChanged) {
  const auto good = some_hello().pack(kSecret);
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    EXPECT_FALSE(Hello::parse(bad, kSecret).has_value()) << bit;
  }
  Secret other = kSecret;
  other[31] ^= std::byte{1};
  EXPECT_FALSE(Hello::parse(good, other).has_value());
}

TEST(TcpHandshake, AProofIsGoodForOneChallenge) {
  Transcript transcript{some_hello(), {}};
  transcript.challenge.fill(std::byte{3});
  const auto proof = transcript.proof(kSecret);
  EXPECT_TRUE(transcript.proves(proof, kSecret));
  Transcript other = transcript;
  other.challenge[0] ^= std::byte{1};
  EXPECT_FALSE(other.proves(proof, kSecret));
  other = transcript;
  other.hello.tag.epoch += 1;
  EXPECT_FALSE(other.proves(proof, kSecret));
  for (std::size_t i = 0; i < proof.size(); ++i) {
    auto bad = proof;
    bad[i] ^= std::byte{0x80};
    EXPECT_FALSE(transcript.proves(bad, kSecret)) << i;
  }
}

TEST(TcpHandshake, AVerdictIsAuthenticOnlyFromWhoKnowsTheSecret) {
  const Transcript transcript{some_hello(), {}};
  const auto verdict = transcript.verdict(Verdict::fenced, kSecret);
  const auto received = parse_verdict(verdict, transcript, kSecret);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->verdict, Verdict::fenced);
  EXPECT_TRUE(received->authentic);
  auto other = verdict;
  other[6] = static_cast<std::byte>(Verdict::accepted);
  EXPECT_FALSE(parse_verdict(other, transcript, kSecret)->authentic);
  EXPECT_FALSE(parse_verdict(pack_rejection(), transcript, kSecret)->authentic);
}

TEST(TcpFrames, WhatIsPackedIsParsed) {
  Frame frame;
  frame.kind = FrameKind::write;
  frame.last = true;
  frame.immediate = true;
  frame.patient = true;
  frame.length = 4096;
  frame.number = 77;
  frame.word = 0xdeadbeef;
  frame.key = 0x0123456789abcdef;
  frame.offset = 1 << 20;
  std::array<std::byte, Frame::kBytes> bytes{};
  frame.pack(bytes);
  const auto parsed = Frame::parse(bytes);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->kind, frame.kind);
  EXPECT_TRUE(parsed->last && parsed->immediate && parsed->patient);
  EXPECT_EQ(parsed->length, frame.length);
  EXPECT_EQ(parsed->number, frame.number);
  EXPECT_EQ(parsed->word, frame.word);
  EXPECT_EQ(parsed->key, frame.key);
  EXPECT_EQ(parsed->offset, frame.offset);
}

TEST(TcpFrames, WhatNobodyWouldSendIsRefused) {
  const auto refused = [](const Frame& frame) {
    std::array<std::byte, Frame::kBytes> bytes{};
    frame.pack(bytes);
    return !Frame::parse(bytes).has_value();
  };
  Frame frame;
  frame.kind = static_cast<FrameKind>(0);
  EXPECT_TRUE(refused(frame));
  frame.kind = static_cast<FrameKind>(10);
  EXPECT_TRUE(refused(frame));
  frame.kind = FrameKind::message;
  frame.length = kMostMessageBytes + 1;
  EXPECT_TRUE(refused(frame));
  frame.kind = FrameKind::write;
  frame.length = kFragmentBytes + 1;
  EXPECT_TRUE(refused(frame));
  frame.length = 0;  // a fragment of nothing, for ever
  frame.word = 10;
  EXPECT_TRUE(refused(frame));
  frame.length = 4096;
  frame.word = UINT32_MAX;
  EXPECT_TRUE(refused(frame));
  frame.kind = FrameKind::acknowledge;
  EXPECT_TRUE(refused(frame));
}

}  // namespace
}  // namespace railyard::fabric::tcp
