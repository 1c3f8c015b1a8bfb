/// What tests of the verbs double share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "doubles/verbs/bare.hpp"
#include "doubles/verbs/verbs_double.hpp"

namespace railyard::verbs_double {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two devices; nothing may be left, and nothing may have been done that a test did not announce.
class VerbsDoubleTest : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_THAT(network_.violations(), IsEmpty());
    EXPECT_EQ(network_.alive(), 0u);
  }
  /// One violation, of which this is a part, was meant.
  void expect_violation(const std::string& part) {
    const auto found = network_.violations();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_THAT(found[0], HasSubstr(part));
    network_.forget_violations();
  }
  /// Polls until something comes; fails after seconds.
  static ibv_wc wait(const End& end) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < deadline) {
      if (const auto completion = end.poll()) return *completion;
    }
    ADD_FAILURE() << "no completion came";
    return {};
  }

  Network network_{{.devices = 2}};
  fabric::verbs::Library& calls_ = network_.library();
};

inline std::byte byte(int value) { return static_cast<std::byte>(value); }

}  // namespace railyard::verbs_double
