/// Ranks with a window and a proxy each; threads of the test play the kernels' part.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/random.hpp"
#include "device/proxy.hpp"
#include "railyard/device.hpp"
#include "sanitized.hpp"
#include "window/process_world.hpp"

namespace railyard {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Node {
  World& world;
  Window& window;
  DeviceProxy& proxy;
  device::Window kernel;
  int peer = 0;  ///< the next rank
};

/// Long enough for a machine that is busy with other tests; a hang ends with it.
inline DeviceOptions patient(DeviceOptions options = {}) {
  options.budget = seconds(60 * test_patience());
  return options;
}

inline void run_node(World& world, std::size_t bytes, const WindowOptions& window_options, const DeviceOptions& options,
                     const std::function<void(Node&)>& body) {
  auto window = must(Window::allocate(world, bytes, window_options));
  {
    auto proxy = must(DeviceProxy::open(window, options));
    Node node{world, window, proxy, proxy.handle(), (world.rank() + 1) % world.size()};
    must(window.barrier());
    body(node);
    must(window.barrier());
    static_cast<void>(proxy.close(Deadline::in(seconds(30))));  // tests of failure leave some behind
  }
  must(window.close());
}

/// Over the rails, ranks as threads.
inline void run_proxied(int size, std::size_t bytes, const DeviceOptions& options,
                        const std::function<void(Node&)>& body, std::uint32_t rails = 2) {
  run_ranks(size, loopback_settings(rails), [&](World& world) { run_node(world, bytes, {}, options, body); });
}

/// Ranks as processes that have mapped each other's windows: kernels write these by themselves.
inline void run_mapped(int size, std::size_t bytes, const DeviceOptions& options,
                       const std::function<void(Node&)>& body) {
  run_processes(size, [&](World& world, ProcessRendezvous&) { run_node(world, bytes, {}, options, body); });
}

/// Where a kernel's operations go: over the rails, into mapped memory, or by the proxy into mapped memory.
enum class Bed : std::uint8_t { proxied, mapped, mapped_by_proxy };
inline constexpr Bed kBeds[] = {Bed::proxied, Bed::mapped, Bed::mapped_by_proxy};
inline std::string name_of_bed(const ::testing::TestParamInfo<Bed>& info) {
  static constexpr const char* kNames[] = {"proxied", "mapped", "mapped_by_proxy"};
  return kNames[static_cast<std::size_t>(info.param)];
}

class OnEveryBed : public ::testing::TestWithParam<Bed> {
 protected:
  static void run(int size, std::size_t bytes, const std::function<void(Node&)>& body, DeviceOptions options = {}) {
    options = patient(options);
    if (GetParam() == Bed::proxied) return run_proxied(size, bytes, options, body);
    options.direct = GetParam() == Bed::mapped;
    run_mapped(size, bytes, options, body);
  }
};

inline std::vector<std::byte> device_pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> made(bytes);
  Random random(seed);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.next());
  return made;
}

inline bool device_holds(const Window& window, std::size_t offset, std::span<const std::byte> expected) {
  return expected.empty() || std::memcmp(window.local().data() + offset, expected.data(), expected.size()) == 0;
}

}  // namespace railyard
