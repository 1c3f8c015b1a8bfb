/// `railyard topo` on the saved machines: every device is drawn, once, and no box covers another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "json_reader.hpp"
#include "run_command.hpp"

namespace railyard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> all_machines() {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(RAILYARD_SOURCE_DIR) + "/tests/topology/machines"))
    files.push_back(entry.path().string());
  return files;
}

struct Drawn {
  double x, y, width, height;
};

/// The boxes of devices: those that are as large as one, each with its frame left out.
std::vector<Drawn> device_boxes(const std::string& svg) {
  static constexpr const char* kBegin = "<rect x=\"";
  std::vector<Drawn> boxes;
  for (auto at = svg.find(kBegin); at != std::string::npos; at = svg.find(kBegin, at + 1)) {
    Drawn box{};
    const int read = std::sscanf(svg.c_str() + at, "<rect x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\"", &box.x,
                                 &box.y, &box.width, &box.height);
    if (read == 4 && box.width == 112 && box.height == 40) boxes.push_back(box);
  }
  return boxes;
}

bool overlap(const Drawn& a, const Drawn& b) {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

TEST(Topo, DrawsEverySavedMachine) {
  const auto machines = all_machines();
  ASSERT_GE(machines.size(), 13U);
  for (const std::string& file : machines) {
    const ScratchFolder scratch;
    const Outcome outcome = railyard_command(
        {"topo", "--topology", file, "--svg", scratch.file("a.svg"), "--json", scratch.file("a.json")});
    ASSERT_EQ(outcome.exit_code, 0) << file << outcome.errors;
    const auto json = JsonReader::read(read_file(scratch.file("a.json")));
    ASSERT_TRUE(json) << file;
    const std::size_t devices = (*json)["gpus"].array().size() + (*json)["nics"].array().size();
    for (const Json& nic : (*json)["nics"].array()) EXPECT_THAT(outcome.output, HasSubstr("NIC " + nic["name"].text()));
    for (std::size_t i = 0; i < (*json)["gpus"].array().size(); ++i)
      EXPECT_THAT(outcome.output, HasSubstr("GPU " + std::to_string(i) + "  "));
    const auto boxes = device_boxes(read_file(scratch.file("a.svg")));
    EXPECT_EQ(boxes.size(), devices) << file;
    for (std::size_t i = 0; i < boxes.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(overlap(boxes[i], boxes[j])) << file;
  }
}

TEST(Topo, SaysWhichRailServesWhichGpu) {
  const std::string dgx = std::string(RAILYARD_SOURCE_DIR) + "/tests/topology/machines/dgx.xml";
  const Outcome outcome = railyard_command({"topo", "--topology", dgx, "--ascii"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("NUMA node 0 (socket 0)"), HasSubstr("<- mlx5_1 (PCIe switch)"),
                                    HasSubstr("NIC mlx5_1  0000:16:00.0  -> GPU 1"), HasSubstr("spare")));
  EXPECT_THAT(outcome.output, Not(HasSubstr("├")));
  const Outcome by_hand = railyard_command({"topo", "--topology", dgx}, {{"RAILYARD_GPU_RAILS", "0=mlx5_8"}});
  EXPECT_THAT(by_hand.output, HasSubstr("mlx5_8 (machine), by RAILYARD_GPU_RAILS"));
}

TEST(Topo, DrawsThisMachine) {
  const Outcome outcome = railyard_command({"topo"}, on_loopback());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("NIC lo"));
}

TEST(Topo, NamesWhatIsWrong) {
  const Outcome file = railyard_command({"topo", "--topology", "/nonexistent.xml"});
  EXPECT_EQ(file.exit_code, 3);
  EXPECT_THAT(file.errors, HasSubstr("/nonexistent.xml"));
  EXPECT_EQ(railyard_command({"topo", "--svg", "-", "--json", "-"}).exit_code, 2);
  EXPECT_EQ(railyard_command({"topo", "--svg", "/nonexistent/a.svg"}).exit_code, 3);
}

}  // namespace
}  // namespace railyard::testing
