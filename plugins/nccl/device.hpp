/// Device: what NCCL takes for one NIC. All rails below one host bridge, used together.
///
/// One logical device rather than NCCL's virtual ones (makeVDevice): NCCL fuses only ports of one card unless the user
/// names the groups, at most 4 of them (8 since version 12), and splits no message itself; so the plugin would have to
/// do here what the library does anyway, and a rail that is slow, dead or missing at the peer would show in NCCL's
/// plans.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "abi.h"
#include "railyard/channel.hpp"
#include "railyard/context.hpp"
#include "railyard/settings.hpp"
#include "topology/locality.hpp"

namespace railyard::nccl {

/// What a rail whose speed nobody knows counts for, in Mb/s: loopback and the virtual NICs of cloud machines. NCCL
/// derives the number of its channels and its algorithms from it; 10 Gb/s, its own guess, leaves it with one or two
/// channels.
inline constexpr int kUnknownSpeed = 40'000;

class Device {
 public:
  Device(int number, std::vector<topology::Nic> nics, const Settings& settings);

  /// Pointers in it are good for as long as the device.
  nccl_properties_v12 properties() const;
  /// Asked for, and every rail of the device reaches it, of every GPU of this process.
  bool takes_gpu_memory() const;
  /// "eth0 (tcp, 25 Gb/s) + eth1 (tcp, speed unknown)"
  std::string description() const;
  /// Those of the process, with this device's interfaces.
  const Settings& settings() const noexcept { return settings_; }

  // ---- what the plugin keeps here, under its lock ----

  std::unique_ptr<Context> context;  ///< null: not in use
  std::size_t comms = 0;             ///< that use the context now
  std::set<const void*> connecting;  ///< handles whose connect has been begun

 private:
  bool registers_dma_bufs() const;

  int number_;
  std::vector<topology::Nic> nics_;
  Settings settings_;
  std::string name_;
  std::string pci_path_;
  std::uint64_t guid_;
};

/// The devices of this machine, as the settings choose them.
Result<std::vector<std::unique_ptr<Device>>> find_devices(const Settings& settings);

}  // namespace railyard::nccl
