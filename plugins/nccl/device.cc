#include "device.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>

#include "accelerator/accelerator.hpp"
#include "base/sha256.hpp"
#include "fabric/rail.hpp"

namespace railyard::nccl {

namespace {

constexpr double kMegabit = 1e6 / 8;
constexpr int kMostComms = 65536;
constexpr std::size_t kLongestName = 100;

std::vector<std::string> names_of(const std::vector<topology::Nic>& nics) {
  std::vector<std::string> names;
  for (const topology::Nic& nic : nics) names.push_back(nic.name);
  return names;
}

/// NCCL's topology knows devices by name, so that no two may have the same: NICs are in one group each.
std::string device_name(const std::vector<std::string>& names) {
  std::string name = fmt::format("{}", fmt::join(names, "+"));
  if (name.size() <= kLongestName) return name;
  return fmt::format("{}+{}-more", names.front().substr(0, kLongestName), names.size() - 1);
}

/// The same in every process of this machine, and on no other machine: NCCL takes equal ones for one card.
std::uint64_t device_guid(const std::string& name) {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  text += " " + name;
  const Digest digest = sha256(std::as_bytes(std::span(text)));
  std::uint64_t guid = 0;
  std::memcpy(&guid, digest.data(), sizeof(guid));
  return guid;
}

/// How many rails the settings make of `nics` NICs.
std::size_t rail_count(const Settings& settings, std::size_t nics) {
  return settings.rails == 0 ? nics : settings.rails;
}

/// NCCL may bring memory of any GPU that this process sees.
bool every_gpu_has_dma_bufs() {
  accelerator::Driver* const driver = accelerator::loaded_driver();
  for (int gpu = 0; driver != nullptr && gpu < driver->devices(); ++gpu)
    if (!driver->has_dma_bufs(gpu)) return false;
  return driver != nullptr;
}

}  // namespace

Device::Device(int number, std::vector<topology::Nic> nics, const Settings& settings)
    : number_(number), nics_(std::move(nics)), settings_(settings) {
  const std::vector<std::string> names = names_of(nics_);
  name_ = device_name(names);
  pci_path_ = nics_.front().location.path;
  guid_ = device_guid(name_);
  settings_.interfaces = fmt::format("{}", fmt::join(names, ","));
}

bool Device::takes_gpu_memory() const {
  if (settings_.nccl_gpu_memory != "on" || !accelerator::may_have_gpus() ||
      !std::ranges::all_of(nics_, &topology::Nic::device_memory))
    return false;
  return !registers_dma_bufs() || every_gpu_has_dma_bufs();
}

/// Others copy with the GPU.
bool Device::registers_dma_bufs() const { return nics_.front().provider == "verbs"; }

nccl_properties_v12 Device::properties() const {
  // Two rails on one NIC are not twice as fast; fewer rails than NICs leave some NICs out.
  const std::size_t used = std::min(nics_.size(), rail_count(settings_, nics_.size()));
  double megabits = 0;
  for (std::size_t i = 0; i < used; ++i) megabits += nics_[i].rate > 0 ? nics_[i].rate / kMegabit : kUnknownSpeed;

  nccl_properties_v12 properties{};
  // NCCL reads these strings; the ABI has no const.
  properties.name = const_cast<char*>(name_.c_str());
  properties.pciPath = pci_path_.empty() ? nullptr : const_cast<char*>(pci_path_.c_str());
  properties.guid = guid_;
  properties.ptrSupport = NCCL_POINTER_HOST;
  if (takes_gpu_memory()) properties.ptrSupport |= NCCL_POINTER_CUDA | (registers_dma_bufs() ? NCCL_POINTER_DMABUF : 0);
  properties.regIsGlobal = 0;
  properties.forceFlush = 0;
  properties.speed = static_cast<int>(std::min(std::round(megabits), 1e9));
  properties.port = 1;
  properties.latency = 0;  // as NCCL's own transports: its tables hold the latency of a network
  properties.maxComms = kMostComms;
  properties.maxRecvs = static_cast<int>(Channel::kMostSlots);
  properties.netDeviceType = NCCL_DEVICE_HOST;
  properties.netDeviceVersion = 0;
  properties.vProps.ndevs = 1;
  properties.vProps.devs[0] = number_;
  properties.maxP2pBytes = NCCL_MOST_BYTES;
  properties.maxCollBytes = NCCL_MOST_BYTES;
  properties.maxMultiRequestSize = 1;
  properties.railId = NCCL_UNDEFINED;
  properties.planeId = NCCL_UNDEFINED;
  return properties;
}

std::string Device::description() const {
  std::vector<std::string> parts;
  for (const topology::Nic& nic : nics_) {
    const std::string speed = nic.rate > 0 ? fmt::format("{:g} Gb/s", nic.rate * 8 / 1e9) : "speed unknown";
    parts.push_back(fmt::format("{} ({}, {})", nic.name, nic.provider, speed));
  }
  const std::size_t rails = rail_count(settings_, nics_.size());
  const std::string spread = rails == nics_.size() ? "" : fmt::format(", {} rails", rails);
  return fmt::format("{}{}", fmt::join(parts, " + "), spread);
}

Result<std::vector<std::unique_ptr<Device>>> find_devices(const Settings& settings) {
  auto offers = fabric::chosen_offers(settings);
  if (!offers) return std::move(offers.error());
  std::vector<std::unique_ptr<Device>> devices;
  for (auto& group : topology::group_by_locality(topology::nics_of(*offers)))
    devices.push_back(std::make_unique<Device>(static_cast<int>(devices.size()), std::move(group), settings));
  return devices;
}

}  // namespace railyard::nccl
