/// DeviceProxy: lets kernels use a window by themselves. Kernels write commands into rings in host memory; a thread of
/// the proxy takes them and issues them through the window. The calls in kernels: device.cuh.
///
///     auto proxy = DeviceProxy::open(window, {.device = 0, .device_memory = {memory, bytes}});
///     kernel<<<32, 128>>>(proxy->handle(), ...);
///     cudaDeviceSynchronize();
///     if (auto status = proxy->status(); !status) ...;
///
/// A proxy that has nothing to do spins for `spin` after its last command, then naps: a sixteenth of the time that it
/// has been idle, at most `longest_nap`. A command that finds it asleep waits that long: `wake` it before a launch. A
/// kernel in a wait keeps it awake.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "railyard/deadline.hpp"
#include "railyard/device.cuh"
#include "railyard/result.hpp"
#include "railyard/window.hpp"

namespace railyard {

struct DeviceOptions {
  static constexpr int kHost = -1;

  std::uint32_t rings = 32;          ///< a power of two, at most 4096; blocks share them out
  std::uint32_t depth = 256;         ///< commands in a ring: a power of two, at least 64
  std::uint32_t threads = 1;         ///< of the proxy; each has rings of its own
  std::uint32_t barriers = 0;        ///< that kernels have. Each takes log2(ranks) signals, rounded up,
  std::uint32_t barrier_signal = 0;  ///< from this one on: the same on all ranks, and used for nothing else
  std::chrono::nanoseconds budget = std::chrono::seconds(10);  ///< of a wait in a kernel
  std::chrono::nanoseconds spin = std::chrono::microseconds(50);
  std::chrono::nanoseconds longest_nap = std::chrono::milliseconds(5);
  int device = kHost;  ///< whose kernels; kHost: host threads play the kernel's part
  /// Memory of that device for what its blocks share: `device_bytes` of it, 128-byte aligned, valid until the proxy is
  /// closed. Not for kHost.
  std::span<std::byte> device_memory{};
  /// Kernels write memory of peers on this host by themselves where they can.
  bool direct = true;
  /// Of a put or a get in the memory of a peer's GPU, by each thread of the group that makes the call. What is longer
  /// is left to the copy engines: in the time that takes to begin, a thread copies about as much.
  std::uint64_t direct_bytes = 2048;
  /// Kernels change words in the memory of GPUs that they reach by the GPUs' atomics: at once, and atomic with all that
  /// kernels change so, but not with atomics through a proxy or of the host. For windows on whose words nothing else
  /// works: all ranks on one host, and all with this option.
  bool direct_atomics = false;
  /// The device's adds to host memory and those of processors are atomic together (the driver's "host native atomics").
  /// Otherwise signals and counters in host memory are the proxy's to change, and kernels write peers' data alone.
  bool host_atomics = false;
};

/// Movable handle. Close it, or let it end, before its window and after the last kernel that uses it.
class DeviceProxy {
 public:
  /// Local: ranks may do so at different times.
  static Result<DeviceProxy> open(Window& window, const DeviceOptions& options = {});
  /// What `device_memory` must hold.
  static std::size_t device_bytes(const Window& window, const DeviceOptions& options = {});

  DeviceProxy(DeviceProxy&&) noexcept;
  DeviceProxy& operator=(DeviceProxy&&) noexcept;
  /// Stops at once if `close` was not called: commands that were not taken are lost.
  ~DeviceProxy();
  /// Completes the commands that were posted, then stops. `timeout`: not all of them are complete; it has stopped all
  /// the same.
  Result<void> close(Deadline deadline = {});

  device::Window handle() const;
  /// The first thing that went wrong, by ring, operation and peer: an error of the proxy's stops everything; a time-out
  /// in a kernel was returned there.
  Result<void> status() const;
  /// Forgets what went wrong and goes on: what was posted since the error is dropped. No kernel may use the handle
  /// meanwhile.
  void resume();

  /// Ends its nap, as a command would. Any thread; cheap when it is awake.
  void wake();
  /// Commands taken so far.
  std::uint64_t commands() const;

  class State;
  State& state() { return *state_; }  ///< for the library's own tests

 private:
  explicit DeviceProxy(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace railyard
