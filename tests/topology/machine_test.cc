#include "topology/machine.hpp"

#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "saved_machines.hpp"

namespace railyard::topology {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> gpu_addresses(const Machine& machine) {
  std::vector<std::string> all;
  for (const Gpu& gpu : machine.gpus) all.push_back(gpu.address.text());
  return all;
}

bool same_location(const PciLocation& a, const PciLocation& b) {
  return a.path == b.path && a.root == b.root && a.numa == b.numa && a.socket == b.socket && a.bridges == b.bridges;
}

TEST(SavedMachine, HasItsGpusAndNicsWithTheirPlaces) {
  const Machine dgx = saved_machine("dgx");
  ASSERT_EQ(dgx.gpus.size(), 8U);
  EXPECT_EQ(dgx.gpus[1].address.text(), "0000:15:00.0");
  EXPECT_EQ(dgx.gpus[1].vendor, "NVIDIA");
  EXPECT_EQ(dgx.gpus[1].model, "10de:2330");
  EXPECT_EQ(dgx.gpus[1].location.root, "pci0000:10");
  EXPECT_EQ(dgx.gpus[1].location.bridges, (std::vector<std::string>{"0000:10:01.0", "0000:11:00.0", "0000:12:02.0"}));
  EXPECT_EQ(dgx.gpus[1].location.numa, 0);
  EXPECT_EQ(dgx.gpus[7].location.numa, 1);
  EXPECT_EQ(dgx.gpus[7].location.socket, 1);
  ASSERT_EQ(dgx.nics.size(), 10U) << "RDMA devices, not the console's interface";
  EXPECT_EQ(dgx.nics[0].name, "mlx5_0");
  EXPECT_EQ(dgx.nics[0].location.root, "pci0000:10");
}

TEST(SavedMachine, IsAsItsScriptWritesIt) {
  const std::string script = std::string(RAILYARD_SOURCE_DIR) + "/tests/topology/make_machines";
  EXPECT_EQ(std::system(("'" + script + "' --check").c_str()), 0);
}

TEST(SavedMachine, HasInterfacesWhereThereIsNoRdmaDevice) {
  const Machine machine = saved_machine("virtual");
  ASSERT_EQ(machine.nics.size(), 2U);
  EXPECT_EQ(machine.nics[1].name, "eth1");
}

TEST(SavedMachine, HasANicForEveryPortThatIsUp) {
  std::vector<std::string> names;
  for (const Nic& nic : saved_machine("ports").nics) names.push_back(nic.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"mlx5_0", "mlx5_1", "mlx5_10", "mlx5_11", "mlx4_0", "mlx4_0:2", "mlx4_1"}));
}

TEST(SavedMachine, IsTheSameForAProcessWithFewCores) {
  const Machine whole = saved_machine("dgx");
  const Machine part = saved_machine("dgx_cpuset");
  EXPECT_EQ(gpu_addresses(part), gpu_addresses(whole));
  ASSERT_EQ(part.devices.size(), whole.devices.size());
  for (const auto& [address, location] : whole.devices)
    EXPECT_TRUE(same_location(part.devices.at(address), location)) << address.text();
}

TEST(SavedMachine, IsTheSameForAProcessWithOneVisibleGpu) {
  const Machine whole = saved_machine("dgx");
  for (const char* const name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
    ASSERT_EQ(::setenv(name, "3", 1), 0);
  const Machine seen = saved_machine("dgx");
  for (const char* const name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
    ::unsetenv(name);
  EXPECT_EQ(gpu_addresses(seen), gpu_addresses(whole));
}

TEST(SavedMachine, AFileThatIsNoneIsAnErrorThatNamesIt) {
  const auto missing = read_saved_machine("/nonexistent/machine.xml");
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().text(), HasSubstr("/nonexistent/machine.xml"));
  const std::string file = ::testing::TempDir() + "railyard-no-topology.xml";
  std::ofstream(file) << "this is no topology\n";
  const auto text = read_saved_machine(file);
  std::remove(file.c_str());
  ASSERT_FALSE(text);
  EXPECT_THAT(text.error().text(), HasSubstr(file));
  EXPECT_FALSE(read_saved_machine(""));
}

TEST(SavedMachine, AFileThatHwlocDiesOfIsAnErrorThatNamesIt) {
  std::ifstream in(saved_file("one_nic"));
  std::string text((std::istreambuf_iterator<char>(in)), {});
  // hwloc 2.9 looks at what the machine has without asking whether the file says so.
  const std::size_t at = text.find(" complete_cpuset=\"", text.find("type=\"Machine\""));
  ASSERT_NE(at, std::string::npos);
  text.erase(at, text.find('"', text.find('"', at) + 1) + 1 - at);
  const std::string file = ::testing::TempDir() + "railyard-damaged-machine.xml";
  std::ofstream(file) << text;
  const auto damaged = read_saved_machine(file);
  ASSERT_FALSE(damaged) << "and this process lives";
  EXPECT_THAT(damaged.error().message(), HasSubstr(file));
  std::remove(file.c_str());
}

TEST(Gpus, AreThoseOfTheThreeVendorsAndNoConsole) {
  EXPECT_TRUE(is_gpu(0x0302, 0x10de));
  EXPECT_TRUE(is_gpu(0x0300, 0x10de));
  EXPECT_TRUE(is_gpu(0x1200, 0x1002));
  EXPECT_TRUE(is_gpu(0x0380, 0x8086));
  EXPECT_FALSE(is_gpu(0x0300, 0x1a03)) << "a board's management controller";
  EXPECT_FALSE(is_gpu(0x0200, 0x8086)) << "a NIC";
  EXPECT_FALSE(is_gpu(0x0403, 0x10de)) << "the sound of a GPU";
  EXPECT_FALSE(is_gpu(0x0680, 0x10de)) << "an NVSwitch";
  EXPECT_TRUE(saved_machine("no_gpu").gpus.empty());
  EXPECT_EQ(saved_machine("no_nic").gpus.size(), 3U);
}

TEST(ThisMachine, CanBeReadAndIsTheSameEveryTime) {
  const auto first = read_machine();
  ASSERT_TRUE(first) << first.error().text();
  const auto second = read_machine();
  ASSERT_TRUE(second);
  EXPECT_EQ(gpu_addresses(*first), gpu_addresses(*second));
  EXPECT_EQ(first->devices.size(), second->devices.size());
}

}  // namespace
}  // namespace railyard::topology
