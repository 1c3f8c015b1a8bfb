#include "topology/pci.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace railyard::topology {
namespace {

namespace fs = std::filesystem;

/// A /sys of our own.
class Sys : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "railyard-sys-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = fs::canonical(pattern);
  }
  void TearDown() override { fs::remove_all(root_); }

  void add(const std::string& kind, const std::string& name, const std::string& device) {
    fs::create_directories(root_ / device);
    fs::create_directories(root_ / "class" / kind / name);
    fs::create_directory_symlink(root_ / device, root_ / "class" / kind / name / "device");
  }
  PciLocation find(const std::string& name) const { return find_pci_location(name, root_.string()); }

  fs::path root_;
};

TEST_F(Sys, FindsAnInterfaceByItsName) {
  add("net", "eth0", "devices/pci0000:17/0000:17:01.0/0000:18:00.1");
  const PciLocation location = find("eth0");
  EXPECT_EQ(location.path, (root_ / "devices/pci0000:17/0000:17:01.0/0000:18:00.1").string());
  EXPECT_EQ(location.root, "pci0000:17");
}

TEST_F(Sys, FindsAnRdmaDeviceByItsName) {
  add("infiniband", "mlx5_0", "devices/pci0000:9a/0000:9a:00.0");
  EXPECT_EQ(find("mlx5_0").root, "pci0000:9a");
}

TEST_F(Sys, FindsAnRdmaDeviceWhoseNameEndsWithItsKindOfEndpoint) {
  add("infiniband", "rdmap0s6", "devices/pci0000:00/0000:00:06.0");
  EXPECT_EQ(find("rdmap0s6-rdm").root, "pci0000:00");
}

TEST_F(Sys, CutsOffWhatHangsBelowThePciFunction) {
  add("net", "eth0", "devices/pci0000:00/0000:00:03.0/virtio2");
  EXPECT_EQ(find("eth0").path, (root_ / "devices/pci0000:00/0000:00:03.0").string());
}

TEST_F(Sys, NearProcessorsAreThoseThatTheKernelNames) {
  const auto near = [&](const char* list) {
    const fs::path folder = root_ / "bus/pci/devices/0000:1b:00.0";
    fs::create_directories(folder);
    std::ofstream(folder / "local_cpulist") << list << '\n';
    return near_processors(*parse_pci_address("00000000:1B:00.0"), root_.string());
  };
  EXPECT_EQ(near("0-2,8,10-11"), (std::vector<int>{0, 1, 2, 8, 10, 11}));
  EXPECT_EQ(near("5"), std::vector<int>{5});
  for (const char* const nonsense : {"", "x", "3-", "3-1", "-1", "1;2", "0-99999999", "1,,2"})
    EXPECT_TRUE(near(nonsense).empty()) << nonsense;
  EXPECT_TRUE(near_processors(*parse_pci_address("0000:1c:00.0"), root_.string()).empty());
}

TEST_F(Sys, ADeviceOnNoPciBusIsNowhere) {
  add("net", "vmbus0", "devices/vmbus/1234-5678");
  fs::create_directories(root_ / "class/net/lo");
  for (const char* const name : {"vmbus0", "lo", "none", "", ".", "..", "../net/vmbus0", "a/b"})
    EXPECT_TRUE(find(name).path.empty() && find(name).root.empty()) << name;
}

TEST(PciPath, TheLastBridgeAndTheLastFunctionCount) {
  const PciLocation location =
      parse_pci_path("/sys/devices/platform/pci0000:00/0000:00:01.0/pci10000:e0/10000:e0:06.0/net");
  EXPECT_EQ(location.path, "/sys/devices/platform/pci0000:00/0000:00:01.0/pci10000:e0/10000:e0:06.0");
  EXPECT_EQ(location.root, "pci10000:e0");
}

TEST(PciPath, NamesTheBridgesBetweenTheHostBridgeAndTheDevice) {
  const PciLocation location =
      parse_pci_path("/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:04.0/0000:1b:00.0");
  EXPECT_EQ(location.bridges, (std::vector<std::string>{"0000:17:01.0", "0000:18:00.0", "0000:19:04.0"}));
  EXPECT_TRUE(parse_pci_path("/sys/devices/pci0000:17/0000:17:01.0").bridges.empty());
  EXPECT_TRUE(parse_pci_path("/sys/devices/pci0000:00/0000:00:01.0/pci10000:e0/10000:e0:06.0").bridges.empty());
}

TEST(PciAddresses, AreReadInEveryUsualForm) {
  for (const char* const text : {"0000:1b:00.3", "00000000:1B:00.3", "1b:00.3", "0000:1B:00.3"}) {
    const auto address = parse_pci_address(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address->text(), "0000:1b:00.3");
  }
  EXPECT_EQ(parse_pci_address("10000:e0:06.0")->domain, 0x10000U);
  for (const char* const text :
       {"", "0", "1b:00", "0000:1b:00", "000:1b:00.0", "0000:1b:00.0 ", "gg:00.0", "0000:1b-00.0"})
    EXPECT_FALSE(parse_pci_address(text)) << text;
}

TEST(PciPath, WhatOnlyLooksSimilarIsNoPciPath) {
  for (const char* const path : {"", "/", "/sys/devices/pci0000:00", "/sys/devices/0000:00:00", "/0000:00:zz.0"})
    EXPECT_TRUE(parse_pci_path(path).path.empty()) << path;
}

}  // namespace
}  // namespace railyard::topology
