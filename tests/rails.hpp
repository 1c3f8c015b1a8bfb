/// The rails that tests of the upper layers run on: TCP on loopback, or, where TEST_RAILS names RDMA devices
/// ("rxe0,rxe1", see tests/lab/verbs.test), one on each of these.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>

#include "railyard/settings.hpp"

namespace railyard {

/// The devices of TEST_RAILS; empty: none are named.
inline std::string test_devices() {
  const char* const given = std::getenv("TEST_RAILS");
  return given == nullptr ? std::string() : given;
}
inline bool on_verbs() { return !test_devices().empty(); }

/// How many times as long things may take: such devices are mostly emulated in an emulated machine.
inline int test_patience() { return on_verbs() ? 10 : 1; }

/// As many rails as asked for, or as there are devices. Shared memory is as it is by default.
inline Settings test_rails(std::uint32_t rails) {
  Settings settings;
  settings.timeout_ms *= static_cast<std::uint32_t>(test_patience());
  if (const char* const log = std::getenv("RAILYARD_LOG")) settings.log = log;
  if (on_verbs()) {
    settings.driver = "verbs";
    settings.interfaces = test_devices();
    settings.rails = static_cast<std::uint32_t>(1 + std::ranges::count(settings.interfaces, ','));
  } else {
    settings.driver = "tcp";
    settings.interfaces = "lo";
    settings.rails = rails;
  }
  return settings;
}

}  // namespace railyard
