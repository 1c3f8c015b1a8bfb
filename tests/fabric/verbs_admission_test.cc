/// Which CM messages count: those of rails that know a secret, for this rail, once and in order.
#include <gtest/gtest.h>

#include "base/entropy.hpp"
#include "fabric/verbs/admission.hpp"

namespace railyard::fabric::verbs {
namespace {

/// A rail as far as admission goes.
struct Rail {
  explicit Rail(std::uint64_t name, std::string_view job_key = "") {
    address.name = name;
    address.queue_pair = 7;
    EXPECT_TRUE(fill_random(address.secret));
    admission.open(address, std::as_bytes(std::span(job_key)));
  }
  std::vector<std::byte> to(const Rail& other, CmMessage::Kind kind = CmMessage::Kind::ready) {
    CmMessage message;
    message.kind = kind;
    message.from = address;
    return admission.seal(message, other.address.name);
  }
  bool admits(std::span<const std::byte> bytes) { return admission.admit(bytes).has_value(); }

  VerbsRailAddress address;
  Admission admission;
};

class VerbsAdmission : public ::testing::Test {
 protected:
  Rail a_{1};
  Rail b_{2};
  Rail c_{3};
};

TEST_F(VerbsAdmission, OneOfTheTwoHasToKnowTheOthersSecret) {
  EXPECT_FALSE(b_.admits(a_.to(b_)));
  a_.admission.know(b_.address);
  EXPECT_TRUE(b_.admits(a_.to(b_)));
  // b knows of no secret of a's, and proves its own.
  EXPECT_TRUE(a_.admits(b_.to(a_)));
  b_.admission.know(a_.address);
  EXPECT_TRUE(a_.admits(b_.to(a_)));
  EXPECT_TRUE(b_.admits(a_.to(b_)));
  EXPECT_EQ(b_.admission.unproven(), 1u);
  EXPECT_EQ(a_.admission.unproven(), 0u);
}

TEST_F(VerbsAdmission, AGuessIsNoProof) {
  VerbsRailAddress guess = b_.address;
  guess.secret.back() ^= std::byte{1};
  a_.admission.know(guess);
  EXPECT_FALSE(b_.admits(a_.to(b_)));
}

TEST_F(VerbsAdmission, NoByteOfItCanBeChangedAndNoneLeftOut) {
  a_.admission.know(b_.address);
  const auto good = a_.to(b_);
  EXPECT_LE(good.size(), CmMessage::kMostBytes);
  for (std::size_t i = 0; i < good.size(); ++i) {
    auto changed = good;
    changed[i] ^= std::byte{1};
    EXPECT_FALSE(b_.admits(changed)) << i;
    EXPECT_FALSE(b_.admits(std::span(good).first(i))) << i;
  }
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(b_.admits(longer));
  EXPECT_EQ(b_.admission.unproven(), 2 * good.size() + 1);
  EXPECT_TRUE(b_.admits(good)) << "what was dropped before has left something behind";
}

TEST_F(VerbsAdmission, EachCountsOnceAndNoneAfterALaterOne) {
  a_.admission.know(b_.address);
  c_.admission.know(b_.address);
  const auto first = a_.to(b_);
  const auto second = a_.to(b_);
  const auto third = a_.to(b_);
  EXPECT_TRUE(b_.admits(second));
  EXPECT_FALSE(b_.admits(second));
  EXPECT_FALSE(b_.admits(first));
  EXPECT_TRUE(b_.admits(c_.to(b_))) << "each sender counts for itself";
  EXPECT_TRUE(b_.admits(third));
  EXPECT_EQ(b_.admission.late(), 2u);
  EXPECT_EQ(b_.admission.unproven(), 0u);
}

TEST_F(VerbsAdmission, WhatIsForOneRailIsForNoOther) {
  a_.admission.know(b_.address);
  c_.admission.know(b_.address);
  // Under b's secret, which a and c know.
  const auto answer = b_.to(a_);
  EXPECT_FALSE(c_.admits(answer));
  EXPECT_FALSE(b_.admits(answer)) << "back at its sender";
  b_.admission.know(b_.address);
  EXPECT_FALSE(b_.admits(answer)) << "back at its sender, who calls itself";
  EXPECT_TRUE(a_.admits(answer));
}

TEST_F(VerbsAdmission, AnotherJobKeyIsAnotherSecret) {
  Rail here(4, "one");
  Rail there(5, "another");
  here.admission.know(there.address);
  EXPECT_FALSE(there.admits(here.to(there)));
  Rail like(6, "one");
  here.admission.know(like.address);
  EXPECT_TRUE(like.admits(here.to(like)));
}

}  // namespace
}  // namespace railyard::fabric::verbs
