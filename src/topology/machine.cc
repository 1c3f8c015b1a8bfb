#include "topology/machine.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "base/shared_library.hpp"
#include "topology/hwloc_library.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace railyard::topology {

namespace {

struct GpuVendor {
  unsigned id;
  const char* name;
};
constexpr std::array kGpuVendors = {GpuVendor{0x10de, "NVIDIA"}, GpuVendor{0x1002, "AMD"}, GpuVendor{0x8086, "Intel"}};

// VGA, 3D, another display (AMD's and Intel's accelerators of some years), processing accelerator.
constexpr std::array kGpuClasses = {0x0300U, 0x0302U, 0x0380U, 0x1200U};

/// Components of hwloc that would start a GPU's driver in this process, and see no more than the driver shows it.
constexpr std::array kDriverComponents = {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"};

struct DestroyTopology {
  const HwlocLibrary* library;
  void operator()(hwloc_topology_t topology) const { library->destroy(topology); }
};
using PciAttributes = hwloc_obj_attr_u::hwloc_pcidev_attr_s;
using Topology = std::unique_ptr<hwloc_topology, DestroyTopology>;

PciAddress address_of(const PciAttributes& device) { return {device.domain, device.bus, device.dev, device.func}; }

bool is_io(const hwloc_obj& object) {
  return object.type == HWLOC_OBJ_BRIDGE || object.type == HWLOC_OBJ_PCI_DEVICE || object.type == HWLOC_OBJ_OS_DEVICE;
}

std::string_view info_of(const hwloc_obj& object, std::string_view name) {
  for (unsigned i = 0; i < object.infos_count; ++i)
    if (name == object.infos[i].name) return object.infos[i].value;
  return {};
}

PciLocation location_of(const HwlocLibrary& library, const hwloc_obj& device) {
  PciLocation location;
  location.path = "/sys/bus/pci/devices/" + address_of(device.attr->pcidev).text();
  const hwloc_obj* above = device.parent;
  for (; above != nullptr && is_io(*above); above = above->parent) {
    if (above->type != HWLOC_OBJ_BRIDGE) continue;
    const auto& bridge = above->attr->bridge;
    if (bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) {
      location.bridges.insert(location.bridges.begin(), address_of(bridge.upstream.pci).text());
    } else {
      location.root =
          fmt::format("pci{:04x}:{:02x}", bridge.downstream.pci.domain, bridge.downstream.pci.secondary_bus);
    }
  }
  // Near several nodes of a package (their memory, or parts of it) is near none of them, but near the package.
  if (above != nullptr && above->nodeset != nullptr && library.weight(above->nodeset) == 1)
    location.numa = library.first(above->nodeset);
  for (; above != nullptr; above = above->parent)
    if (above->type == HWLOC_OBJ_PACKAGE) location.socket = static_cast<int>(above->os_index);
  return location;
}

template <typename Visit>
void for_each_at(const HwlocLibrary& library, hwloc_topology_t topology, int depth, Visit visit) {
  const auto count = static_cast<unsigned>(library.count(topology, depth));
  for (unsigned i = 0; i < count; ++i) visit(*library.object(topology, depth, i));
}

/// A name for each port that is up, as verbs rails are called; one for the device where hwloc knows nothing of ports.
std::vector<std::string> port_names(const hwloc_obj& device) {
  constexpr unsigned kMostPorts = 8;
  std::vector<std::string> names;
  bool known = false;
  for (unsigned port = 1; port <= kMostPorts; ++port) {
    const std::string_view state = info_of(device, fmt::format("Port{}State", port));
    known |= !state.empty();
    if (state.starts_with('4'))  // active
      names.push_back(port == 1 ? std::string(device.name) : fmt::format("{}:{}", device.name, port));
  }
  if (!known) names.emplace_back(device.name);
  return names;
}

void add_nics(const HwlocLibrary& library, hwloc_topology_t topology, Machine& machine) {
  std::vector<Nic> interfaces;
  for_each_at(library, topology, HWLOC_TYPE_DEPTH_OS_DEVICE, [&](const hwloc_obj& object) {
    const auto kind = object.attr->osdev.type;
    const hwloc_obj* const above = object.parent;
    if (object.name == nullptr || above == nullptr || above->type != HWLOC_OBJ_PCI_DEVICE) return;
    const PciLocation location = location_of(library, *above);
    if (kind == HWLOC_OBJ_OSDEV_NETWORK) interfaces.push_back({object.name, "tcp", 0, location});
    if (kind == HWLOC_OBJ_OSDEV_OPENFABRICS)
      for (std::string& name : port_names(object)) machine.nics.push_back({std::move(name), "verbs", 0, location});
  });
  if (machine.nics.empty()) machine.nics = std::move(interfaces);
  std::ranges::sort(machine.nics, comes_before);
}

void add_device(const HwlocLibrary& library, const hwloc_obj& device, Machine& machine) {
  const PciAttributes& pci = device.attr->pcidev;
  const PciAddress address = address_of(pci);
  PciLocation location = location_of(library, device);
  machine.devices[address] = location;
  if (!is_gpu(pci.class_id, pci.vendor_id)) return;
  const auto* const vendor = std::ranges::find(kGpuVendors, pci.vendor_id, &GpuVendor::id);
  const std::string_view model = info_of(device, "PCIDevice");
  machine.gpus.push_back(
      {address, vendor->name,
       model.empty() ? fmt::format("{:04x}:{:04x}", pci.vendor_id, pci.device_id) : std::string(model),
       std::move(location)});
}

Error hwloc_error(const std::string& what) {
  const int number = errno;
  return Error(Status::io, fmt::format("hwloc cannot read {}: {}", what, std::strerror(number)));
}

/// hwloc's PCI plugin keeps some hundred bytes when it is unloaded, and then nobody can say whose they are: not for the
/// leak checker.
int load_unchecked(const HwlocLibrary& library, hwloc_topology_t topology) {
#ifdef __SANITIZE_ADDRESS__
  const __lsan::ScopedDisabler not_ours;
#endif
  return library.load(topology);
}

/// `file` empty: this host.
Result<Topology> load_topology(const HwlocLibrary& library, const std::string& file) {
  const std::string what = file.empty() ? "this machine's topology" : "'" + file + "'";
  const KeepSignals keep;  // it loads plugins

  hwloc_topology_t made = nullptr;
  if (library.init(&made) != 0) return hwloc_error(what);
  Topology topology(made, {&library});
  // Other processes may have other cpusets: what they have is part of the machine, too.
  library.set_flags(made, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  library.set_io_types_filter(made, HWLOC_TYPE_FILTER_KEEP_ALL);
  for (const char* const component : kDriverComponents)
    library.set_components(made, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  if (!file.empty() && library.set_xml(made, file.c_str()) != 0) return hwloc_error(what);
  if (load_unchecked(library, made) != 0) return hwloc_error(what);
  return topology;
}

/// hwloc trusts a saved machine: some that are damaged end the process (a processor without a cpuset, in 2.9). A child
/// tries it first. It is for the command, which has one thread when it reads such a file.
Result<void> try_in_child(const HwlocLibrary& library, const std::string& file) {
  constexpr unsigned kPatience = 60;  // seconds
  const pid_t child = ::fork();
  if (child < 0) return {};  // not a reason to refuse a file that is probably good
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(0);
    ::alarm(kPatience);
    static_cast<void>(load_topology(library, file));
    ::_exit(0);  // whether it can be read is asked again
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status == 0) return {};
  return Error(Status::invalid,
               fmt::format("'{}' is no machine that hwloc could read: it is damaged, and hwloc dies of it; "
                           "save it again with `lstopo FILE.xml`",
                           file));
}

Result<Machine> read_topology(const std::string& file) {
  auto found = hwloc_library();
  if (!found) return std::move(found.error());
  const HwlocLibrary& library = **found;
  if (!file.empty()) {
    if (auto survived = try_in_child(library, file); !survived) return std::move(survived.error());
  }
  auto loaded = load_topology(library, file);
  if (!loaded) return std::move(loaded.error());
  hwloc_topology_t const made = loaded->get();

  Machine machine;
  for_each_at(library, made, HWLOC_TYPE_DEPTH_PCI_DEVICE,
              [&](const hwloc_obj& device) { add_device(library, device, machine); });
  std::ranges::sort(machine.gpus, {}, &Gpu::address);
  add_nics(library, made, machine);
  return machine;
}

}  // namespace

bool is_gpu(unsigned pci_class, unsigned vendor) {
  return std::ranges::find(kGpuClasses, pci_class) != kGpuClasses.end() &&
         std::ranges::find(kGpuVendors, vendor, &GpuVendor::id) != kGpuVendors.end();
}

Result<Machine> read_machine() { return read_topology({}); }

Result<Machine> read_saved_machine(const std::string& file) {
  if (file.empty()) return Error(Status::invalid, "no name of a saved topology");
  return read_topology(file);
}

}  // namespace railyard::topology
