#include "topology/assignment.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "saved_machines.hpp"

namespace railyard::topology {
namespace {

using Rails = std::vector<std::string>;

constexpr double kGigabit = 1e9 / 8;

Rails rails_of(const std::string& name, const AssignmentOptions& options = {}) {
  const Machine machine = saved_machine(name);
  return rail_names(assign_nics(machine.gpus, machine.nics, options), machine.nics);
}

void expect_path(const std::string& name, PathKind path) {
  const Machine machine = saved_machine(name);
  for (const GpuRails& gpu : assign_nics(machine.gpus, machine.nics))
    for (const AssignedNic& rail : gpu.rails)
      EXPECT_EQ(rail.path, path) << name << ' ' << gpu.gpu.text() << ' ' << to_string(rail.path);
}

/// Where a device hangs, from the outside in. What two devices have in common is how near they are.
std::vector<std::string> chain(const PciLocation& location) {
  std::vector<std::string> all{"socket" + std::to_string(location.socket), "node" + std::to_string(location.numa),
                               location.root};
  all.insert(all.end(), location.bridges.begin(), location.bridges.end());
  return all;
}

std::size_t nearness(const PciLocation& a, const PciLocation& b) {
  const auto one = chain(a);
  const auto other = chain(b);
  return static_cast<std::size_t>(std::ranges::mismatch(one, other).in1 - one.begin());
}

TEST(Assignment, DgxGivesEachGpuANicOfItsSwitchAndLeavesStorageAlone) {
  EXPECT_EQ(rails_of("dgx"), (Rails{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8"}));
  expect_path("dgx", PathKind::pci_switch);
}

TEST(Assignment, P5GivesEachGpuTheFourNicsOfItsSwitch) {
  Rails expected;
  for (int gpu = 0; gpu < 8; ++gpu) {
    const std::string card = "rdmap" + std::to_string(gpu);
    expected.push_back(card + "s0," + card + "s1," + card + "s2," + card + "s3");
  }
  EXPECT_EQ(rails_of("p5"), expected);
  expect_path("p5", PathKind::pci_switch);
}

TEST(Assignment, Mi300GivesEachGpuTheNicBesideIt) {
  EXPECT_EQ(rails_of("mi300"),
            (Rails{"bnxt_re0", "bnxt_re1", "bnxt_re2", "bnxt_re3", "bnxt_re4", "bnxt_re5", "bnxt_re6", "bnxt_re7"}));
  expect_path("mi300", PathKind::pci_switch);
}

TEST(Assignment, OneNicServesEveryGpu) { EXPECT_EQ(rails_of("one_nic"), Rails(4, "mlx5_0")); }

TEST(Assignment, OneGpuHasAllNicsThatAreEquallyNear) {
  EXPECT_EQ(rails_of("many_nics"), Rails{"mlx5_0,mlx5_1,mlx5_2,mlx5_3"});
  const Machine machine = saved_machine("many_nics");
  const auto assigned = assign_nics(machine.gpus, machine.nics);
  std::string spares;
  for (const AssignedNic& spare : assigned[0].spares) spares += machine.nics[spare.nic].name + " ";
  EXPECT_EQ(spares, "mlx5_4 mlx5_5 mlx5_6 mlx5_7 ") << "nearest first";
  EXPECT_EQ(assigned[0].spares[0].path, PathKind::numa_node);
  EXPECT_EQ(assigned[0].spares[3].path, PathKind::machine);
}

TEST(Assignment, SparesComeNearestFirst) {
  const Machine machine = saved_machine("dgx");
  const GpuRails last = assign_nics(machine.gpus, machine.nics).back();
  EXPECT_EQ(machine.nics[last.spares.front().nic].name, "mlx5_7");
  EXPECT_EQ(last.spares.front().path, PathKind::pci_switch);
  EXPECT_TRUE(std::ranges::is_sorted(last.spares, {}, &AssignedNic::path));
  // The first spares are spread, too: the GPUs of a switch fall back on each other's NICs.
  EXPECT_EQ(machine.nics[assign_nics(machine.gpus, machine.nics)[6].spares.front().nic].name, "mlx5_8");
}

TEST(Assignment, WithoutANicNoGpuHasRails) { EXPECT_EQ(rails_of("no_nic"), Rails(3)); }

TEST(Assignment, WithoutAGpuThereIsNothingToAssign) { EXPECT_EQ(rails_of("no_gpu"), Rails()); }

TEST(Assignment, SixGpusShareFourNicsEachOnItsOwnSocket) {
  EXPECT_EQ(rails_of("odd"), (Rails{"mlx5_0", "mlx5_1", "mlx5_0", "mlx5_2", "mlx5_3", "mlx5_2"}));
  expect_path("odd", PathKind::numa_node);
}

TEST(Assignment, OfSwitchesBelowASwitchTheNearestCounts) {
  EXPECT_EQ(rails_of("nested"), (Rails{"mlx5_0", "mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1", "mlx5_1"}));
}

TEST(Assignment, AGpuWithoutANicOnItsNodeUsesItsSocket) {
  EXPECT_EQ(rails_of("nodes"), (Rails{"mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1"}));
  const Machine machine = saved_machine("nodes");
  EXPECT_EQ(assign_nics(machine.gpus, machine.nics)[1].rails[0].path, PathKind::socket);
}

TEST(Assignment, AVirtualMachineSharesWhatHangsFromItsHostBridge) {
  EXPECT_EQ(rails_of("virtual"), (Rails{"eth0", "eth1", "eth0", "eth1"}));
  expect_path("virtual", PathKind::host_bridge);
}

TEST(Assignment, AProcessWithFewCoresFindsTheSame) { EXPECT_EQ(rails_of("dgx_cpuset"), rails_of("dgx")); }

TEST(Assignment, GpusSpreadOverCardsBeforePorts) {
  EXPECT_EQ(rails_of("ports", {.most_per_gpu = 1, .by_hand = {}}), (Rails{"mlx5_0", "mlx5_10", "mlx4_0", "mlx4_1"}));
  // Three ports for two GPUs: none lies idle, one is shared.
  const Rails all = rails_of("ports");
  EXPECT_EQ(all[0], "mlx5_0,mlx5_10");
  EXPECT_EQ(all[1], "mlx5_1,mlx5_11");
  EXPECT_EQ(all[2], "mlx4_0,mlx4_1");
}

TEST(Assignment, OfEquallyNearNicsNoneServesTwoMoreGpusThanAnother) {
  for (const char* const name : {"dgx", "p5", "mi300", "odd", "nested", "virtual", "ports", "one_nic", "many_nics"}) {
    const Machine machine = saved_machine(name);
    for (const std::size_t most : {0U, 1U, 2U, 3U}) {
      const auto assigned = assign_nics(machine.gpus, machine.nics, {.most_per_gpu = most, .by_hand = {}});
      const auto counts = use_counts(assigned, machine.nics);
      for (std::size_t i = 0; i < assigned.size(); ++i) {
        const PciLocation& gpu = machine.gpus[i].location;
        for (const Nic& used : machine.nics) {
          for (const Nic& other : machine.nics) {
            const std::size_t near = nearness(gpu, machine.nics[assigned[i].rails.front().nic].location);
            if (nearness(gpu, used.location) != near || nearness(gpu, other.location) != near) continue;
            EXPECT_LE(counts.at(used.name) - counts.at(other.name), 1) << name << ", at most " << most;
          }
        }
      }
    }
  }
}

TEST(Assignment, TheFirstRailIsFirstForFewOthers) {
  Machine machine = saved_machine("virtual");
  machine.gpus.resize(3);
  for (const char* const name : {"eth2", "eth3"}) {
    machine.nics.push_back(machine.nics[1]);
    machine.nics.back().name = name;
  }
  // The third has the same two as the first.
  EXPECT_EQ(rail_names(assign_nics(machine.gpus, machine.nics), machine.nics),
            (Rails{"eth0,eth1", "eth2,eth3", "eth1,eth0"}));
}

TEST(Assignment, RatesAreSharedNotNumbers) {
  Machine machine = saved_machine("odd");
  machine.nics[0].rate = 400 * kGigabit;
  machine.nics[1].rate = 200 * kGigabit;
  machine.nics[2].rate = 400 * kGigabit;
  machine.nics[3].rate = 200 * kGigabit;
  const auto counts = use_counts(assign_nics(machine.gpus, machine.nics), machine.nics);
  EXPECT_EQ(counts, (std::map<std::string, int>{{"mlx5_0", 2}, {"mlx5_1", 1}, {"mlx5_2", 2}, {"mlx5_3", 1}}));
}

TEST(Assignment, TwoSlowNicsAreWorthAFastOne) {
  Machine machine = saved_machine("virtual");
  machine.gpus.resize(2);
  machine.nics.push_back(machine.nics[1]);
  machine.nics[2].name = "eth2";
  machine.nics[0].rate = 200 * kGigabit;
  machine.nics[1].rate = machine.nics[2].rate = 100 * kGigabit;
  EXPECT_EQ(rail_names(assign_nics(machine.gpus, machine.nics), machine.nics), (Rails{"eth0", "eth1,eth2"}));
}

TEST(Assignment, AConsolesNicServesNoGpuHoweverNear) {
  Machine machine = saved_machine("one_nic");
  machine.nics[0].rate = 400 * kGigabit;
  machine.nics.push_back({"eno1", "tcp", kGigabit, machine.gpus[0].location});
  EXPECT_EQ(rail_names(assign_nics(machine.gpus, machine.nics), machine.nics), Rails(4, "mlx5_0"));
  EXPECT_EQ(assign_nics(machine.gpus, machine.nics)[0].spares.size(), 1U);
  // A rate that nobody knows says nothing.
  machine.nics[1].rate = 0;
  EXPECT_EQ(rail_names(assign_nics(machine.gpus, machine.nics), machine.nics)[0], "eno1");
}

TEST(Assignment, ANicOnNoBusIsEquallyFarFromAll) {
  const Machine machine = saved_machine("no_nic");
  const std::vector<Nic> nics = {{"bond0", "tcp", 0, {}}};
  const auto assigned = assign_nics(machine.gpus, nics);
  EXPECT_EQ(rail_names(assigned, nics), Rails(3, "bond0"));
  EXPECT_EQ(assigned[0].rails[0].path, PathKind::machine);
}

TEST(Assignment, ByHandWinsAndTheOthersKeepOutOfItsWay) {
  const Machine machine = saved_machine("dgx");
  AssignmentOptions options;
  options.by_hand = {{}, {0, 4}};  // GPU 1: mlx5_0, which would be GPU 0's, and a storage NIC
  const auto assigned = assign_nics(machine.gpus, machine.nics, options);
  const Rails names = rail_names(assigned, machine.nics);
  EXPECT_EQ(names[0], "mlx5_1");
  EXPECT_EQ(names[1], "mlx5_0,mlx5_4");
  EXPECT_FALSE(assigned[0].by_hand);
  EXPECT_TRUE(assigned[1].by_hand);
  EXPECT_EQ(names[2], "mlx5_2");
}

// ---- any machine ----

struct RandomMachine {
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
};

/// Sockets, nodes, host bridges and up to two levels of switches with devices strewn over them.
RandomMachine random_machine(std::mt19937& random, bool equal_rates) {
  const auto below = [&](std::uint32_t most) { return static_cast<std::uint32_t>(random() % most); };
  RandomMachine machine;
  const std::uint32_t sockets = 1 + below(2);
  const std::uint32_t nodes = 1 + below(2);
  const std::uint32_t bridges = 1 + below(3);
  const std::uint32_t devices = 1 + below(24);
  for (std::uint32_t i = 0; i < devices; ++i) {
    const std::uint32_t socket = below(sockets);
    const std::uint32_t node = socket * nodes + below(nodes);
    const std::uint32_t bridge = node * bridges + below(bridges);
    const PciAddress address{0, 0x10 + bridge, i, 0};
    PciLocation location{"/sys/bus/pci/devices/" + address.text(),
                         "pci0000:" + std::to_string(10 + bridge),
                         static_cast<int>(node),
                         static_cast<int>(socket),
                         {}};
    std::string port = std::to_string(bridge);
    for (std::uint32_t level = below(3); level > 0; --level) {
      port += "." + std::to_string(below(2));
      location.bridges.push_back(port);
    }
    if (below(2) == 0) {
      machine.gpus.push_back({address, "NVIDIA", "", location});
    } else {
      constexpr int kRates[] = {0, 100, 200, 400};
      machine.nics.push_back(
          {"nic" + std::to_string(i), "verbs", equal_rates ? 0 : kRates[below(4)] * kGigabit, location});
    }
  }
  return machine;
}

double rate_of(const Nic& nic, const std::vector<Nic>& nics) {
  double fastest = 1;
  for (const Nic& other : nics) fastest = std::max(fastest, other.rate);
  return nic.rate > 0 ? nic.rate : fastest;
}

TEST(AnyMachine, EveryNicIsARailOrASpareOfEveryGpuOnce) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const RandomMachine machine = random_machine(random, round % 2 == 0);
    for (const GpuRails& gpu : assign_nics(machine.gpus, machine.nics)) {
      EXPECT_EQ(gpu.rails.empty(), machine.nics.empty());
      std::vector<std::size_t> all;
      for (const auto& list : {gpu.rails, gpu.spares})
        for (const AssignedNic& rail : list) all.push_back(rail.nic);
      std::ranges::sort(all);
      ASSERT_EQ(all.size(), machine.nics.size());
      EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
    }
  }
}

TEST(AnyMachine, RailsAreTheNearest) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    const RandomMachine machine = random_machine(random, round % 2 == 0);
    const auto assigned = assign_nics(machine.gpus, machine.nics);
    for (std::size_t i = 0; i < assigned.size(); ++i)
      for (const AssignedNic& rail : assigned[i].rails)
        for (const Nic& other : machine.nics)
          ASSERT_GE(nearness(machine.gpus[i].location, machine.nics[rail.nic].location),
                    nearness(machine.gpus[i].location, other.location));
  }
}

TEST(AnyMachine, NoGpuWouldDoBetterOnAnEquallyNearNic) {
  std::mt19937 random(3);
  for (int round = 0; round < 1000; ++round) {
    const RandomMachine machine = random_machine(random, round % 2 == 0);
    const auto assigned =
        assign_nics(machine.gpus, machine.nics, {.most_per_gpu = static_cast<std::size_t>(round % 3), .by_hand = {}});
    const auto counts = use_counts(assigned, machine.nics);
    for (std::size_t i = 0; i < assigned.size(); ++i) {
      for (const AssignedNic& rail : assigned[i].rails) {
        for (const AssignedNic& spare : assigned[i].spares) {
          const Nic& used = machine.nics[rail.nic];
          const Nic& other = machine.nics[spare.nic];
          if (nearness(machine.gpus[i].location, used.location) != nearness(machine.gpus[i].location, other.location))
            continue;
          // What it would be used after a move is no less than what the rail is used now.
          ASSERT_GE((counts.at(other.name) + 1) / rate_of(other, machine.nics) * 1.0000001,
                    counts.at(used.name) / rate_of(used, machine.nics))
              << "round " << round << ": " << used.name << " and " << other.name;
        }
      }
    }
  }
}

TEST(AnyMachine, TheOrderOfEnumerationDoesNotMatter) {
  std::mt19937 random(4);
  for (int round = 0; round < 500; ++round) {
    RandomMachine machine = random_machine(random, round % 2 == 0);
    std::map<PciAddress, std::string> expected;
    const auto describe = [&](const GpuRails& gpu) {
      std::string text;
      for (const auto& list : {gpu.rails, gpu.spares}) {
        for (const AssignedNic& rail : list) text += machine.nics[rail.nic].name + " ";
        text += "; ";
      }
      return text;
    };
    for (const GpuRails& gpu : assign_nics(machine.gpus, machine.nics)) expected[gpu.gpu] = describe(gpu);
    std::ranges::shuffle(machine.gpus, random);
    std::ranges::shuffle(machine.nics, random);
    for (const GpuRails& gpu : assign_nics(machine.gpus, machine.nics)) ASSERT_EQ(describe(gpu), expected[gpu.gpu]);
  }
}

}  // namespace
}  // namespace railyard::topology
