/// What one transport holds between the host's calls: its lanes, and the memory that was registered.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "host_bootstrap.hpp"
#include "lane.hpp"
#include "railyard/settings.hpp"

namespace railyard::nvshmem {

class State {
 public:
  explicit State(Settings settings) : settings_(std::move(settings)) {}

  /// Before `connect`: which GPU is this PE's.
  void set_gpu(const abi::PcieId& gpu);
  /// Opens both lanes. Collective. A second call finds them open.
  Result<void> connect(abi::Bootstrap* bootstrap, int pe, int pes);

  Result<void> register_memory(abi::MemHandle& handle, std::span<std::byte> memory, bool local_only);
  Result<void> release(const abi::MemHandle& handle);

  /// The lane of a queue, as the host numbers these. Null before `connect`.
  Lane* lane(int queue) const { return lanes_[queue == abi::kHostQueue ? 0 : 1].get(); }
  Result<void> progress();
  /// Completes what it can and closes.
  void finish();
  /// For a person.
  std::string describe();

 private:
  struct Registration {
    std::span<std::byte> memory;
    bool local_only = false;
  };
  Result<std::vector<std::vector<std::byte>>> expose(std::uint32_t number, std::span<std::byte> memory);

  Settings settings_;
  std::optional<std::string> gpu_;
  std::unique_ptr<HostBootstrap> bootstrap_;
  std::unique_ptr<Lane> lanes_[kLanes];  ///< the host's, its proxy's
  std::mutex mutex_;                     ///< of what follows
  std::uint32_t registrations_made_ = 0;
  bool advised_ = false;
  std::map<std::uint32_t, Registration> registrations_;
};

}  // namespace railyard::nvshmem
