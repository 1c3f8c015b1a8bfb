/// The comparison of what rails have sent with what the kernel counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "fabric/tcp/device_account.hpp"

namespace railyard::fabric::tcp {
namespace {

constexpr std::uint64_t kMany = std::uint64_t{256} << 20U;
constexpr std::int64_t kLater = DeviceAccount::kWindowNs;

/// A device that sends a given share of what it is handed.
class Account : public ::testing::Test {
 protected:
  std::optional<DeviceAccount::Disagreement> send(std::uint64_t bytes, double share, std::int64_t after = kLater,
                                                  std::size_t connections = 1) {
    counted_ += static_cast<std::uint64_t>(static_cast<double>(bytes) * share);
    now_ += after;
    return account_.add(bytes, connections, now_);
  }

  std::uint64_t counted_ = 12'345;
  bool known_ = true;
  int looks_ = 0;
  std::int64_t now_ = 1;
  DeviceAccount account_{"eth0", [this](const std::string& device) -> std::optional<std::uint64_t> {
                           EXPECT_EQ(device, "eth0");
                           ++looks_;
                           if (!known_) return std::nullopt;
                           return counted_;
                         }};
};

TEST_F(Account, ADeviceThatSendsWhatItIsGivenRaisesNoAlarm) {
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(send(kMany, 1.03));
  EXPECT_EQ(account_.total(), 50 * kMany);
}

TEST_F(Account, OthersMaySendThroughTheDeviceToo) {
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(send(kMany, 40.0));
}

TEST_F(Account, BytesThatLeaveElsewhereAreToldOnce) {
  EXPECT_FALSE(send(kMany, 1.0));
  EXPECT_FALSE(send(kMany, 0.0));  // once may be chance: a queue, a connection that died
  const auto told = send(kMany, 0.25);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->ours, kMany);
  EXPECT_EQ(told->kernels, kMany / 4);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(send(kMany, 0.0));
}

TEST_F(Account, AThirdOfTheTrafficIsMissed) {
  EXPECT_FALSE(send(kMany, 1.0));
  EXPECT_FALSE(send(kMany, 0.66));
  EXPECT_TRUE(send(kMany, 0.66));
}

TEST_F(Account, AWindowThatAgreesTakesTheSuspicionAway) {
  EXPECT_FALSE(send(kMany, 1.0));
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(send(kMany, 0.0));
    EXPECT_FALSE(send(kMany, 1.0));
  }
}

TEST_F(Account, WhatSocketsMayHoldIsNotMissing) {
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(send(kMany, 0.5, kLater, 64));
}

TEST_F(Account, TheKernelIsAskedRarely) {
  EXPECT_FALSE(send(kMany, 1.0));
  ASSERT_EQ(looks_, 1);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(send(kMany, 1.0, kLater / 2000));  // much, but soon
  EXPECT_EQ(looks_, 1);
  EXPECT_FALSE(send(kMany, 1.0));
  EXPECT_EQ(looks_, 2);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(send(1 << 20, 0.0));  // late, but little
  EXPECT_EQ(looks_, 2);
}

TEST_F(Account, ACounterThatBeginsAnewIsNoAlarm) {
  EXPECT_FALSE(send(kMany, 1.0));
  for (int i = 0; i < 3; ++i) {
    counted_ = 0;
    EXPECT_FALSE(send(kMany, 0.1));
    EXPECT_FALSE(send(kMany, 1.0));
  }
}

TEST_F(Account, AKernelThatDoesNotCountIsAskedOnce) {
  known_ = false;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(send(kMany, 0.0));
  EXPECT_EQ(looks_, 1);
}

TEST(DeviceCounters, RailsOfADeviceShareOneAccount) {
  const auto one = DeviceAccount::of("ry-test0");
  EXPECT_EQ(one, DeviceAccount::of("ry-test0"));
  EXPECT_NE(one, DeviceAccount::of("ry-test1"));
}

TEST(DeviceCounters, TheKernelCountsLoopback) {
  EXPECT_TRUE(bytes_sent_by("lo"));
  EXPECT_FALSE(bytes_sent_by("no-such-device"));
}

}  // namespace
}  // namespace railyard::fabric::tcp
