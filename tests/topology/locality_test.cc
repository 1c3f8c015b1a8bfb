#include "topology/locality.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace railyard::topology {
namespace {

Nic nic(const std::string& name, const std::string& root) {
  return {name, "tcp", 0, {root.empty() ? "" : "/x", root, -1, -1, {}}};
}

std::vector<std::vector<std::string>> names(const std::vector<std::vector<Nic>>& groups) {
  std::vector<std::vector<std::string>> all;
  for (const auto& group : groups) {
    all.emplace_back();
    for (const Nic& member : group) all.back().push_back(member.name);
  }
  return all;
}

using Names = std::vector<std::vector<std::string>>;

TEST(Locality, NicsBelowOneHostBridgeAreOneGroup) {
  const auto groups = group_by_locality(
      {nic("a", "pci0000:17"), nic("b", "pci0000:9a"), nic("c", "pci0000:17"), nic("d", "pci0000:9a")});
  EXPECT_EQ(names(groups), (Names{{"a", "c"}, {"b", "d"}}));
}

TEST(Locality, NicsOnNoBusAreOneGroupAfterTheOthers) {
  const auto groups = group_by_locality({nic("bond0", ""), nic("eth0", "pci0000:17"), nic("lo", "")});
  EXPECT_EQ(names(groups), (Names{{"eth0"}, {"bond0", "lo"}}));
}

TEST(Locality, NoNicIsLostOrDoubled) {
  EXPECT_TRUE(group_by_locality({}).empty());
  std::vector<Nic> many;
  for (int i = 0; i < 100; ++i)
    many.push_back(nic(std::to_string(i), i % 7 == 0 ? "" : "pci0000:" + std::to_string(i % 7)));
  std::size_t total = 0;
  for (const auto& group : group_by_locality(many)) total += group.size();
  EXPECT_EQ(total, many.size());
}

}  // namespace
}  // namespace railyard::topology
