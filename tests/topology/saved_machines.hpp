/// Machines of the shapes that exist, read from tests/topology/machines, and what is said of them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "topology/assignment.hpp"
#include "topology/machine.hpp"

namespace railyard::topology {

inline std::string saved_file(const std::string& name) {
  return std::string(RAILYARD_SOURCE_DIR) + "/tests/topology/machines/" + name + ".xml";
}

inline Machine saved_machine(const std::string& name) {
  auto machine = read_saved_machine(saved_file(name));
  EXPECT_TRUE(machine) << machine.error().text();
  return machine ? std::move(*machine) : Machine();
}

/// "mlx5_0,mlx5_1" for each GPU.
inline std::vector<std::string> rail_names(const std::vector<GpuRails>& assigned, const std::vector<Nic>& nics) {
  std::vector<std::string> all;
  for (const GpuRails& gpu : assigned) {
    std::string names;
    for (const AssignedNic& rail : gpu.rails) names += (names.empty() ? "" : ",") + nics[rail.nic].name;
    all.push_back(std::move(names));
  }
  return all;
}

/// How many GPUs each NIC serves.
inline std::map<std::string, int> use_counts(const std::vector<GpuRails>& assigned, const std::vector<Nic>& nics) {
  std::map<std::string, int> counts;
  for (const Nic& nic : nics) counts[nic.name] = 0;
  for (const GpuRails& gpu : assigned)
    for (const AssignedNic& rail : gpu.rails) ++counts[nics[rail.nic].name];
  return counts;
}

}  // namespace railyard::topology
