/// `railyard doctor` on planted machines: a healthy one raises no alarm, each planted fault is found and its fix named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "doctor_checks.hpp"
#include "json_reader.hpp"
#include "run_command.hpp"
#include "shm/layout.hpp"

namespace railyard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tool::Findings;

std::string limits(const std::string& locked, const std::string& files) {
  return "Limit                     Soft Limit           Hard Limit           Units     \n"
         "Max open files            " +
         files +
         "                65536                files     \n"
         "Max locked memory         " +
         locked + "            unlimited            bytes     \n";
}

/// A host with two NICs, an RDMA device on each, and a GPU.
class PlantedHost {
 public:
  PlantedHost() {
    write("proc/self/limits", limits("unlimited", "65536"));
    write("proc/self/status", "Name:\trailyard\nSigCgt:\t0000000000000000\n");
    write("proc/self/environ",
          environ_of({"PATH=/bin", "RAILYARD_RAILS=2", "NCCL_DEBUG=INFO", "NCCL_SOMETHING_NEW=1"}));
    write("proc/mounts", "tmpfs /dev/shm tmpfs rw,size=33554432k 0 0\n");
    write("proc/meminfo", "MemTotal: 1 kB\nHugePages_Total:       0\n");
    write("proc/cmdline", "root=/dev/sda1 iommu=pt\n");
    write("proc/sys/kernel/yama/ptrace_scope", "0\n");
    write("proc/net/route",
          "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
          "eth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n"
          "eth0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"
          "eth1 0001000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n");
    write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54\n");
    write("proc/driver/nvidia/gpus/0000:17:00.0/information", "Model: H200\n");
    write("sys/module/nvidia_peermem/refcnt", "0\n");
    write("sys/kernel/iommu_groups/0/type", "identity\n");
    write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    write("sys/fs/cgroup/cpu.max", "max 100000\n");
    write("sys/class/net/lo/operstate", "unknown\n");
    for (const std::string number : {"0", "1"}) {
      write("sys/class/net/eth" + number + "/operstate", "up\n");
      write("sys/class/net/eth" + number + "/mtu", "9000\n");
      write("sys/class/net/eth" + number + "/speed", "400000\n");
      const std::string port = "sys/class/infiniband/mlx5_" + number + "/ports/1/";
      write(port + "state", "4: ACTIVE\n");
      write(port + "link_layer", "Ethernet\n");
      write(port + "gids/0", "fe80:0000:0000:0000:0202:c9ff:fe00:0001\n");
      write(port + "gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
      write(port + "gids/4", "0000:0000:0000:0000:0000:0000:0000:0000\n");
      write(port + "gid_attrs/types/0", "IB/RoCE v1\n");
      write(port + "gid_attrs/types/3", "RoCE v2\n");
      write("sys/devices/system/cpu/cpu" + number + "/cpufreq/scaling_governor", "performance\n");
      write("sys/devices/system/cpu/cpu" + number + "/cpufreq/scaling_driver", "acpi-cpufreq\n");
    }
    std::filesystem::create_directories(folder_.file("dev/shm"));
    // As a process that runs has one: nobody must wait for it to be rung.
    EXPECT_EQ(::mkfifo(folder_.file("dev/shm/railyard-1.bell").c_str(), 0600), 0);
  }

  static std::string environ_of(const std::vector<std::string>& variables) {
    std::string all;
    for (const std::string& one : variables) all += one + '\0';
    return all;
  }
  void write(const std::string& name, const std::string& content) const {
    const std::filesystem::path path = folder_.file(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
  }
  void remove(const std::string& name) const { std::filesystem::remove_all(folder_.file(name)); }
  void plant_shared_memory_of(int process) const {
    std::string object(sizeof(shm::ObjectHeader), '\0');
    const std::uint64_t magic = shm::kMagic;
    const std::int32_t pid = process;
    std::memcpy(object.data() + offsetof(shm::ObjectHeader, magic), &magic, sizeof magic);
    std::memcpy(object.data() + offsetof(shm::ObjectHeader, pid), &pid, sizeof pid);
    write("dev/shm/railyard-left", object);
  }
  std::string root() const { return folder_.file(""); }

 private:
  ScratchFolder folder_;
};

using Host = PlantedHost;

Outcome doctor(const PlantedHost& host, std::vector<std::string> more = {}) {
  std::vector<std::string> words{"doctor", "--root", host.root(), "--json", "-"};
  words.insert(words.end(), more.begin(), more.end());
  return railyard_command(words);
}

TEST(Doctor, RaisesNoAlarmOnAHealthyMachine) {
  const PlantedHost host;
  const Outcome outcome = doctor(host, {"--strict"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output << outcome.errors;
  const auto json = JsonReader::read(outcome.output);
  ASSERT_TRUE(json) << outcome.output;
  EXPECT_TRUE((*json)["healthy"].flag());
  EXPECT_GE((*json)["findings"].array().size(), 15U);
  for (const Json& finding : (*json)["findings"].array())
    EXPECT_TRUE(finding["verdict"].text() == "ok") << finding["check"].text() << ": " << finding["found"].text();
}

TEST(Doctor, RaisesNoAlarmOnAMachineWithoutDevices) {
  const PlantedHost host;
  for (const char* gone : {"sys/class/infiniband", "proc/driver", "sys/module", "sys/devices", "proc/sys"})
    host.remove(gone);
  host.write("proc/self/limits", limits("65536", "1024"));
  host.write("proc/cmdline", "quiet\n");
  const Outcome outcome = doctor(host, {"--strict"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST(Doctor, TakesPortsThatAreReservedOrOutOfTheWay) {
  const PlantedHost host;
  host.write("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
  host.write("proc/sys/net/ipv4/ip_local_reserved_ports", "8080,50000-50099\n");
  host.write("proc/sys/net/ipv4/tcp_available_congestion_control", "reno cubic\n");
  for (const char* ports : {"RAILYARD_PORTS=20000-20099", "RAILYARD_PORTS=50000-50099"}) {
    host.write("proc/self/environ", Host::environ_of({ports, "RAILYARD_CONGESTION=cubic"}));
    EXPECT_EQ(doctor(host, {"--strict"}).exit_code, 0) << ports << doctor(host).output;
  }
}

struct Fault {
  const char* name;
  void (*plant)(const PlantedHost& host);
  const char* check;
  const char* verdict;
  const char* found;
  const char* fix;
};

class DoctorFinds : public ::testing::TestWithParam<Fault> {};

TEST_P(DoctorFinds, ThePlantedFaultAndItsFix) {
  const Fault& fault = GetParam();
  const PlantedHost host;
  fault.plant(host);
  const Outcome outcome = doctor(host);
  EXPECT_EQ(outcome.exit_code, std::string(fault.verdict) == "fail" ? 1 : 0) << outcome.output;
  EXPECT_EQ(doctor(host, {"--strict"}).exit_code, 1);
  const auto json = JsonReader::read(outcome.output);
  ASSERT_TRUE(json) << outcome.output << outcome.errors;
  int alarms = 0;
  for (const Json& finding : (*json)["findings"].array()) {
    if (finding["verdict"].text() == "ok" || finding["verdict"].text() == "not_applicable") continue;
    ++alarms;
    EXPECT_EQ(finding["check"].text(), fault.check);
    EXPECT_EQ(finding["verdict"].text(), fault.verdict);
    EXPECT_THAT(finding["found"].text(), HasSubstr(fault.found));
    EXPECT_THAT(finding["fix"].text(), HasSubstr(fault.fix));
    EXPECT_FALSE(finding["meaning"].text().empty());
  }
  EXPECT_EQ(alarms, 1) << outcome.output;
}

INSTANTIATE_TEST_SUITE_P(
    Faults, DoctorFinds,
    ::testing::Values(
        Fault{"Memlock", [](const Host& h) { h.write("proc/self/limits", limits("65536", "65536")); }, "memlock",
              "fail", "64 KiB", "ulimit -l unlimited"},
        Fault{"OpenFiles", [](const Host& h) { h.write("proc/self/limits", limits("unlimited", "256")); }, "open-files",
              "warn", "256", "ulimit -n"},
        Fault{"ShmSize",
              [](const Host& h) { h.write("proc/mounts", "shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n"); },
              "shm-size", "warn", "64 MiB", "--shm-size"},
        Fault{"ShmMissing", [](const Host& h) { h.write("proc/mounts", "proc /proc proc rw 0 0\n"); }, "shm-size",
              "fail", "not mounted", "mount -t tmpfs"},
        Fault{"ShmLeftovers", [](const Host& h) { h.plant_shared_memory_of(4242); }, "shm-leftovers", "warn",
              "railyard-left", "rm /dev/shm/railyard-left"},
        Fault{"Hugepages",
              [](const Host& h) { h.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"); },
              "hugepages", "warn", "[never]", "echo madvise"},
        Fault{"Peermem", [](const Host& h) { h.remove("sys/module/nvidia_peermem"); }, "gpu-rdma", "warn",
              "neither nvidia_peermem", "modprobe nvidia_peermem"},
        Fault{"GidTable",
              [](const Host& h) { h.write("sys/class/infiniband/mlx5_1/ports/1/gid_attrs/types/3", "IB/RoCE v1\n"); },
              "roce-gid", "fail", "mlx5_1 port 1 has 0", "IP address"},
        Fault{"GidIndex",
              [](const Host& h) {
                h.write("proc/self/environ", Host::environ_of({"RAILYARD_GID_INDEX=0"}));
                h.remove("sys/class/infiniband/mlx5_1");
              },
              "roce-gid", "fail", "RAILYARD_GID_INDEX=0", "RAILYARD_GID_INDEX unset"},
        Fault{"PortDown", [](const Host& h) { h.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n"); },
              "rdma-port", "warn", "mlx5_0 port 1 is 1: DOWN", "ibstat"},
        Fault{"Mtu", [](const Host& h) { h.write("sys/class/net/eth1/mtu", "1500\n"); }, "mtu", "warn", "1500 on eth1",
              "ip link set eth1 mtu 9000"},
        Fault{"Routes",
              [](const Host& h) {
                h.write("proc/net/route",
                        "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
                        "eth0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"
                        "eth1 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n");
              },
              "routes", "warn", "eth0, eth1 share a subnet", "arp_ignore=1"},
        Fault{"PortsMalformed",
              [](const Host& h) { h.write("proc/self/environ", Host::environ_of({"RAILYARD_PORTS=50099-50000"})); },
              "ports", "fail", "RAILYARD_PORTS='50099-50000' is not allowed", "RAILYARD_PORTS=first-last"},
        Fault{"PortsOfOutgoingConnections",
              [](const Host& h) {
                h.write("proc/self/environ", Host::environ_of({"RAILYARD_PORTS=32000-33000"}));
                h.write("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
                h.write("proc/sys/net/ipv4/ip_local_reserved_ports", "8080\n");
              },
              "ports", "warn", "32768-60999", "ip_local_reserved_ports=32000-33000"},
        Fault{"Congestion",
              [](const Host& h) {
                h.write("proc/self/environ", Host::environ_of({"RAILYARD_CONGESTION=bbr"}));
                h.write("proc/sys/net/ipv4/tcp_available_congestion_control", "reno cubic\n");
              },
              "congestion", "fail", "the kernel has: reno cubic", "modprobe tcp_bbr"},
        // The command line says otherwise: what the kernel made of it counts.
        Fault{"Iommu", [](const Host& h) { h.write("sys/kernel/iommu_groups/0/type", "DMA-FQ\n"); }, "iommu", "warn",
              "translates", "iommu=pt"},
        Fault{"IommuOfADevice",
              [](const Host& h) { h.write("sys/class/infiniband/mlx5_1/device/iommu_group/type", "DMA\n"); }, "iommu",
              "warn", "translates", "iommu=pt"},
        Fault{"IommuOfAnOldKernel",
              [](const Host& h) {
                h.remove("sys/kernel/iommu_groups/0/type");
                h.write("sys/kernel/iommu_groups/0/name", "\n");
                h.write("proc/cmdline", "root=/dev/sda1 intel_iommu=on\n");
              },
              "iommu", "warn", "translates", "iommu=pt"},
        Fault{"Governor",
              [](const Host& h) { h.write("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n"); },
              "cpu-governor", "warn", "powersave", "performance"},
        Fault{"CpuLimit", [](const Host& h) { h.write("sys/fs/cgroup/cpu.max", "50000 100000\n"); }, "cpu-limit",
              "warn", "0.5 processors", "limits.cpu"},
        Fault{"PtraceScope", [](const Host& h) { h.write("proc/sys/kernel/yama/ptrace_scope", "1\n"); }, "ptrace-scope",
              "warn", "1", "ptrace_scope=0"},
        Fault{"Signals",
              [](const Host& h) { h.write("proc/self/status", "Name:\trailyard\nSigCgt:\t0000000000000400\n"); },
              "signals", "warn", "SIGSEGV", "LD_PRELOAD"},
        Fault{"MisspeltVariable",
              [](const Host& h) { h.write("proc/self/environ", Host::environ_of({"RAILYARD_INTERFACE=eth0"})); },
              "variables", "warn", "RAILYARD_INTERFACE", "RAILYARD_INTERFACES instead"},
        Fault{"WrongValue",
              [](const Host& h) { h.write("proc/self/environ", Host::environ_of({"RAILYARD_RAILS=many"})); },
              "variables", "fail", "many", "railyard info --settings"},
        Fault{"MisspeltNccl",
              [](const Host& h) { h.write("proc/self/environ", Host::environ_of({"NCCL_SOCKET_IFNAMES=eth0"})); },
              "nccl-variables", "warn", "NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME instead"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Doctor, KeptApartSubnetsAreNoFault) {
  const PlantedHost host;
  host.write("proc/net/route",
             "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
             "eth0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"
             "eth1 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n");
  host.write("proc/sys/net/ipv4/conf/all/arp_ignore", "1\n");
  host.write("proc/sys/net/ipv4/conf/all/arp_announce", "2\n");
  EXPECT_EQ(doctor(host, {"--strict"}).exit_code, 0);
}

TEST(Doctor, AKernelThatPassesDevicesThroughByDefaultIsNoFault) {
  const PlantedHost host;
  host.write("proc/cmdline", "root=/dev/sda1\n");  // nobody asked for it: sys/kernel/iommu_groups/0 is "identity"
  EXPECT_EQ(doctor(host, {"--strict"}).exit_code, 0) << doctor(host).output;
  // A device that no rail uses may be translated: one that was plugged in from outside always is.
  host.write("sys/kernel/iommu_groups/1/type", "DMA-FQ\n");
  for (const char* device :
       {"sys/class/infiniband/mlx5_0/device", "sys/class/infiniband/mlx5_1/device", "sys/bus/pci/devices/0000:17:00.0"})
    host.write(std::string(device) + "/iommu_group/type", "identity\n");
  EXPECT_EQ(doctor(host, {"--strict"}).exit_code, 0) << doctor(host).output;
}

TEST(Doctor, SharedMemoryOfALivingProcessIsNoLeftover) {
  const PlantedHost host;
  host.plant_shared_memory_of(4242);
  host.write("proc/4242/status", "Name:\tx\n");
  EXPECT_EQ(doctor(host, {"--strict"}).exit_code, 0);
}

TEST(Doctor, FindsNoFailureHere) {
  const Outcome outcome = railyard_command({"doctor", "--all"}, on_loopback());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("tcp lo"), HasSubstr("0 failures"), HasSubstr("memlock")));
}

/// The finding of that name on this machine.
tool::Finding software_finding(const std::string& check, const Settings& settings) {
  Findings all;
  tool::check_software(tool::HostFiles("/", "self"), settings, all);
  const auto found = std::ranges::find(all, check, &tool::Finding::check);
  return found == all.end() ? tool::Finding{} : *found;
}

TEST(Doctor, NamesALibfabricThatIsTooOld) {
  Settings settings;
  settings.driver = "tcp";
  settings.libfabric = RAILYARD_OLD_LIBFABRIC;
  const tool::Finding beside = software_finding("libfabric", settings);
  EXPECT_EQ(beside.verdict, tool::Verdict::warn);
  EXPECT_EQ(beside.found, "1.12");
  EXPECT_THAT(beside.meaning, HasSubstr("1.17"));
  EXPECT_THAT(beside.fix, AllOf(HasSubstr("newer libfabric"), HasSubstr("RAILYARD_LIBFABRIC")));
  // Where rails need it, no rail can be trusted.
  settings.driver = "ofi";
  EXPECT_EQ(software_finding("libfabric", settings).verdict, tool::Verdict::fail);
}

TEST(Doctor, NamesALibfabricThatIsMissing) {
  Settings settings;
  settings.driver = "tcp";
  settings.libfabric = "libfabric-that-is-not-here.so.1";
  EXPECT_EQ(software_finding("libfabric", settings).verdict, tool::Verdict::not_applicable);
  settings.driver = "ofi";
  const tool::Finding wanted = software_finding("libfabric", settings);
  EXPECT_EQ(wanted.verdict, tool::Verdict::fail);
  EXPECT_THAT(wanted.found, HasSubstr("libfabric-that-is-not-here.so.1"));
  EXPECT_THAT(wanted.fix, HasSubstr("Install libfabric1"));
}

TEST(Doctor, TellsAPeerThatAnswersFromOneThatDoesNot) {
  EXPECT_EQ(tool::check_peer("127.0.0.1", 2000).verdict, tool::Verdict::ok);
  const auto nobody = tool::check_peer("127.0.0.1:1", 2000);
  EXPECT_EQ(nobody.verdict, tool::Verdict::fail);
  EXPECT_THAT(nobody.found, HasSubstr("nobody listens"));
  const auto unknown = tool::check_peer("no-such-host.invalid", 2000);
  EXPECT_EQ(unknown.verdict, tool::Verdict::fail);
  EXPECT_EQ(tool::check_peer("[::1]:1", 2000).verdict, tool::Verdict::fail);
}

TEST(Doctor, RanksOfAWorldConnectToEachOther) {
  const Outcome outcome = railyard_command({"launch", "-n", "2", "--", RAILYARD_COMMAND, "doctor"}, on_loopback());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("rank 0: ok    peer            rank 1: lo from lo: 127.0.0.1 port "),
                                    HasSubstr("rank 1: ok    peer            rank 0: lo from lo: 127.0.0.1 port "),
                                    HasSubstr("accepts connections, 64 KiB arrived")));
}

TEST(Doctor, ARouteByAnotherNicMattersToRailsThatFollowIt) {
  tool::RouteSeen route{1, "eth0", "10.0.0.1", "eth4", "10.0.0.2", "eth1", false, true};
  EXPECT_EQ(tool::judge_route(route).verdict, tool::Verdict::ok);  // the rail does not
  EXPECT_THAT(tool::judge_route(route).found, HasSubstr("from eth0 (10.0.0.1) to eth4 there (10.0.0.2) leave by eth1"));
  route.may_bind = false;
  const tool::Finding unbound = tool::judge_route(route);
  EXPECT_EQ(unbound.check, "routes");
  EXPECT_EQ(unbound.verdict, tool::Verdict::fail);
  EXPECT_THAT(unbound.meaning, HasSubstr("no tcp rail uses this pair"));
  EXPECT_THAT(unbound.fix, AllOf(HasSubstr("ip rule add from 10.0.0.1"), HasSubstr("CAP_NET_RAW")));
  route.libfabric = true;
  const tool::Finding follows = tool::judge_route(route);
  EXPECT_EQ(follows.verdict, tool::Verdict::warn);
  EXPECT_THAT(follows.meaning, AllOf(HasSubstr("eth0 carries nothing"), HasSubstr("eth1")));
}

TEST(Doctor, RefusesWhatItCannotRead) {
  EXPECT_EQ(railyard_command({"doctor", "--root", "/nonexistent"}).exit_code, 3);
  EXPECT_EQ(railyard_command({"doctor", "--pid", "0"}).exit_code, 2);
  EXPECT_EQ(railyard_command({"doctor", "--json", "/nonexistent/x"}).exit_code, 3);
}

}  // namespace
}  // namespace railyard::testing
