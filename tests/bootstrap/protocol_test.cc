#include "bootstrap/protocol.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

#include "helpers.hpp"

namespace railyard::bootstrap {
namespace {

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

TEST(Protocol, ClaimTravels) {
  const auto bytes = encode(Claim{3, 8});
  const auto claim = parse_claim(bytes);
  ASSERT_TRUE(claim);
  EXPECT_EQ(claim->rank, 3);
  EXPECT_EQ(claim->size, 8);
  expect_exact(bytes, parse_claim);
  EXPECT_LE(bytes.size(), rendezvous::kMostClaim);
}

TEST(Protocol, AClaimWithoutSenseIsRefused) {
  EXPECT_FALSE(parse_claim(encode(Claim{-1, 8})));
  EXPECT_FALSE(parse_claim(encode(Claim{8, 8})));
  EXPECT_FALSE(parse_claim(encode(Claim{0, 0})));
  EXPECT_FALSE(parse_claim(encode(Claim{0, kMostRanks + 1})));
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
