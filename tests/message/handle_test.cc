#include "message/handle.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "message/channel_setup_bed.hpp"

namespace railyard::message {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

HandleContents some_contents() {
  HandleContents contents;
  for (std::size_t i = 0; i < contents.secret.size(); ++i) contents.secret[i] = static_cast<std::byte>(i + 1);
  contents.listener = 0x1122334455667788;
  contents.machine = 0x99aabbccddeeff00;
  contents.port = 4711;
  contents.addresses = {address_of("192.0.2.1"), address_of("fd00::2"), address_of("127.0.0.1")};
  return contents;
}

TEST(Handle, SaysWhatWasPutIntoIt) {
  const auto contents = read_handle(make_handle(some_contents()));
  ASSERT_TRUE(contents) << contents.error().text();
  EXPECT_EQ(*contents, some_contents());
}

TEST(Handle, CarriesFourAddressesAtMost) {
  HandleContents contents = some_contents();
  contents.addresses = std::vector<IpAddress>(6, address_of("192.0.2.9"));
  EXPECT_EQ(read_handle(make_handle(contents)).value().addresses.size(), kMostAddresses);
}

TEST(Handle, TheHandshakeIsTheConnectorsAndChangesNothingElse) {
  Handle handle = make_handle(some_contents());
  EXPECT_EQ(handshake_of(handle), 0U);
  set_handshake(handle, 0xfedcba9876543210);
  EXPECT_EQ(handshake_of(handle), 0xfedcba9876543210);
  EXPECT_EQ(read_handle(handle).value(), some_contents());
  set_handshake(handle, 0);
  EXPECT_EQ(handle.bytes, make_handle(some_contents()).bytes);
}

TEST(Handle, BytesOfSomethingElseAreCalledSo) {
  Handle handle;
  EXPECT_THAT(read_handle(handle).error().text(), HasSubstr("not a Railyard handle: its bytes are all zero"));
  handle.bytes.fill(std::byte{0x5a});
  const auto read = read_handle(handle);
  EXPECT_EQ(read.status(), Status::invalid);
  EXPECT_THAT(read.error().text(),
              HasSubstr("not a Railyard handle: its bytes begin with something else; pass the 128"));
}

TEST(Handle, OneOfAnotherVersionNamesBoth) {
  Handle handle = make_handle(some_contents());
  handle.bytes[8] = std::byte{7};
  const auto read = read_handle(handle);
  EXPECT_EQ(read.status(), Status::version_mismatch);
  EXPECT_THAT(read.error().text(), HasSubstr("a handle of version 7, this process reads version 1"));
}

TEST(Handle, EveryDamagedBitIsFoundOut) {
  for (std::size_t i = 0; i < 120; ++i) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      Handle handle = make_handle(some_contents());
      handle.bytes[i] ^= static_cast<std::byte>(1U << bit);
      EXPECT_FALSE(read_handle(handle)) << "byte " << i << " bit " << bit;
    }
  }
}

TEST(Handle, SenselessFieldsAreRefusedEvenWithARightChecksum) {
  const auto refused = [](const std::function<void(HandleContents&)>& change) {
    HandleContents contents = some_contents();
    change(contents);
    return read_handle(make_handle(contents)).status() == Status::invalid;
  };
  EXPECT_TRUE(refused([](HandleContents& contents) { contents.addresses.clear(); }));
  EXPECT_TRUE(refused([](HandleContents& contents) { contents.port = 0; }));
  EXPECT_TRUE(refused([](HandleContents& contents) { contents.listener = 0; }));
}

std::vector<InterfaceAddress> some_interfaces() {
  return {{"lo", 1, true, true, address_of("127.0.0.1")},       {"lo", 1, true, true, address_of("::1")},
          {"eth1", 3, true, false, address_of("fe80::3")},      {"eth0", 2, true, false, address_of("fd00::2")},
          {"eth0", 2, true, false, address_of("192.0.2.2")},    {"eth1", 3, true, false, address_of("192.0.2.3")},
          {"eth2", 4, false, false, address_of("192.0.2.4")},   {"eth3", 5, true, false, address_of("169.254.7.7")},
          {"docker0", 6, true, false, address_of("172.17.0.1")}};
}

std::vector<std::string> chosen(std::string_view interfaces, std::size_t most = kMostAddresses) {
  std::vector<std::string> texts;
  for (const IpAddress& address : choose_addresses(some_interfaces(), interfaces, most))
    texts.push_back(address.text());
  return texts;
}

TEST(OwnAddresses, WhatOthersReachComesFirstAndLoopbackIsNeverLeftOut) {
  EXPECT_THAT(chosen(""), ElementsAre("192.0.2.2", "192.0.2.3", "172.17.0.1", "127.0.0.1"));
  EXPECT_THAT(chosen("", 9),
              ElementsAre("192.0.2.2", "192.0.2.3", "172.17.0.1", "fd00::2", "169.254.7.7", "fe80::3", "127.0.0.1"));
}

TEST(OwnAddresses, TheSettingChoosesAsItDoesForRails) {
  EXPECT_THAT(chosen("eth1"), ElementsAre("192.0.2.3", "fe80::3", "127.0.0.1"));
  EXPECT_THAT(chosen("^docker0, eth0", 9), ElementsAre("192.0.2.3", "169.254.7.7", "fe80::3", "127.0.0.1"));
  EXPECT_THAT(chosen("lo"), ElementsAre("127.0.0.1"));
}

TEST(OwnAddresses, ASettingThatNamesNoInterfaceWithAnAddressChoosesAll) {
  EXPECT_THAT(chosen("mlx5_0"), ElementsAre("192.0.2.2", "192.0.2.3", "172.17.0.1", "127.0.0.1"));
  EXPECT_THAT(chosen("eth2"), ElementsAre("192.0.2.2", "192.0.2.3", "172.17.0.1", "127.0.0.1"));
}

TEST(OwnAddresses, ThoseOfThisMachineCanBeListed) {
  const auto found = list_addresses();
  EXPECT_TRUE(std::ranges::any_of(found, [](const InterfaceAddress& entry) { return entry.address.loopback(); }));
}

std::vector<std::string> tried(bool same_machine, std::vector<IpAddress> addresses) {
  std::vector<std::string> texts;
  for (const Target& target : order_targets(addresses, same_machine, some_interfaces())) {
    texts.push_back(target.address.text() + (target.scope == 0 ? "" : fmt::format("%{}", target.scope)));
  }
  return texts;
}

TEST(Targets, APeerOnTheSameMachineIsTriedByLoopbackFirst) {
  const std::vector<IpAddress> addresses = {address_of("192.0.2.1"), address_of("fd00::1"), address_of("127.0.0.1")};
  EXPECT_THAT(tried(true, addresses), ElementsAre("127.0.0.1", "192.0.2.1", "fd00::1"));
  EXPECT_THAT(tried(false, addresses), ElementsAre("192.0.2.1", "fd00::1", "127.0.0.1"));
}

TEST(Targets, ALinkLocalAddressIsTriedOnEveryLinkOfThisMachine) {
  EXPECT_THAT(tried(false, {address_of("fe80::9"), address_of("169.254.1.1")}),
              ElementsAre("fe80::9%3", "169.254.1.1"));
}

TEST(Targets, ReadAsAddressAndPort) {
  EXPECT_EQ((Target{address_of("192.0.2.1")}.text(80)), "192.0.2.1:80");
  EXPECT_EQ((Target{address_of("fd00::1")}.text(80)), "[fd00::1]:80");
  EXPECT_EQ((Target{address_of("fe80::1"), 1}.text(80)), "[fe80::1%lo]:80");
}

}  // namespace
}  // namespace railyard::message
