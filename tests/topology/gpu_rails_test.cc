#include "topology/gpu_rails.hpp"

#include <gmock/gmock.h>

#include <string>
#include <utility>

#include "saved_machines.hpp"

namespace railyard::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Result<GpuTable> table_of(const std::string& name, const std::string& by_hand, const std::string& most = "0") {
  Settings settings;
  if (auto set = settings.set("RAILYARD_GPU_RAILS", by_hand); !set) return std::move(set.error());
  if (auto set = settings.set("RAILYARD_RAILS_PER_GPU", most); !set) return std::move(set.error());
  Machine machine = saved_machine(name);
  std::vector<Nic> nics = machine.nics;
  return make_gpu_table(settings, std::move(machine), std::move(nics));
}

void expect_refused(const std::string& by_hand, Status status, const std::string& says) {
  const auto table = table_of("dgx", by_hand);
  ASSERT_FALSE(table) << by_hand;
  EXPECT_EQ(table.status(), status) << by_hand;
  EXPECT_THAT(table.error().text(), AllOf(HasSubstr("RAILYARD_GPU_RAILS"), HasSubstr(says))) << by_hand;
}

TEST(GpuRailsSetting, NamesGpusByNumberOrAddress) {
  const auto table = table_of("dgx", "0=mlx5_4;0000:15:00.0=mlx5_0,mlx5_9");
  ASSERT_TRUE(table) << table.error().text();
  const auto names = rail_names(table->rails, table->nics);
  EXPECT_EQ(names[0], "mlx5_4");
  EXPECT_EQ(names[1], "mlx5_0,mlx5_9");
  EXPECT_TRUE(table->rails[1].by_hand);
  EXPECT_FALSE(table->rails[2].by_hand);
}

TEST(GpuRailsSetting, WhatMakesNoSenseIsRefusedWithTheReason) {
  for (const char* const text : {"mlx5_0", "0=", "=mlx5_0", "0=mlx5_0;", ";", "0"})
    expect_refused(text, Status::invalid, "is not GPU=NIC,NIC");
  expect_refused("first=mlx5_0", Status::invalid, "'first' is neither the number nor the PCI address");
  expect_refused("8=mlx5_0", Status::not_found, "no GPU 8: this host has 8");
  expect_refused("0000:ff:00.0=mlx5_0", Status::not_found, "no GPU at 0000:ff:00.0");
  expect_refused("0=mlx5_0;13:00.0=mlx5_1", Status::invalid, "0000:13:00.0 is named twice");
  expect_refused("0=mlx5_0,mlx5_0", Status::invalid, "names mlx5_0 twice");
  expect_refused("0=mlx5_0,", Status::not_found, "no NIC ''");
  expect_refused("0=mlx6_0", Status::not_found, "did you mean mlx5_0");
}

TEST(GpuRailsSetting, IsNoMistakeOnAHostWithoutGpus) {
  const auto table = table_of("no_gpu", "7=mlx5_7");
  EXPECT_TRUE(table) << table.error().text();
  EXPECT_FALSE(table_of("no_gpu", "7")) << "but it must be readable";
  const auto no_nic = table_of("no_nic", "0=mlx5_0");
  ASSERT_FALSE(no_nic);
  EXPECT_THAT(no_nic.error().text(), HasSubstr("there is none"));
}

TEST(RailsPerGpuSetting, IsAMostNotALeast) {
  const auto one = table_of("p5", "", "1");
  ASSERT_TRUE(one);
  for (const GpuRails& gpu : one->rails) EXPECT_EQ(gpu.rails.size(), 1U);
  const auto many = table_of("p5", "", "16");
  ASSERT_TRUE(many);
  for (const GpuRails& gpu : many->rails) EXPECT_EQ(gpu.rails.size(), 4U);
}

TEST(RailsPerGpuSetting, RefusesWhatIsNoNumber) {
  for (const char* const text : {"", "-1", "many", "257", "1.5"}) {
    const auto table = table_of("dgx", "", text);
    ASSERT_FALSE(table) << text;
    EXPECT_THAT(table.error().text(), AllOf(HasSubstr("RAILYARD_RAILS_PER_GPU"), HasSubstr("from 0 to 256")));
  }
}

TEST(GpuTables, SayWhichInterfacesAGpuUses) {
  const auto table = table_of("p5", "");
  ASSERT_TRUE(table);
  const std::string gpu = table->gpus[1].address.text();
  const std::string expected = "rdmap1s0,rdmap1s1,rdmap1s2,rdmap1s3";
  EXPECT_EQ(*table->interfaces_of(gpu), expected);
  EXPECT_EQ(*table->interfaces_of("0000" + gpu), expected) << "as NVML says it";
  EXPECT_EQ(table->interfaces_of("0000:ff:00.0").status(), Status::not_found);
  EXPECT_EQ(table->interfaces_of("cuda:0").status(), Status::invalid);
}

TEST(GpuTables, TakeTheirNicsPlacesFromHwlocWhereItKnowsThem) {
  Machine machine = saved_machine("nodes");
  // What the kernel's files say of a NIC lacks the socket.
  std::vector<Nic> nics = machine.nics;
  for (Nic& nic : nics)
    nic.location = {"/sys/devices/" + nic.location.function(), nic.location.root, nic.location.numa, -1, {}};
  const auto table = make_gpu_table(Settings(), std::move(machine), std::move(nics));
  ASSERT_TRUE(table);
  EXPECT_EQ(table->rails[1].rails[0].path, PathKind::socket);
  EXPECT_THAT(table->nics[0].location.path, HasSubstr("/sys/devices/"));
}

}  // namespace
}  // namespace railyard::topology
