/// Two contexts in one process, and channels between them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rails.hpp"
#include "railyard/channel.hpp"
#include "railyard/context.hpp"

namespace railyard {

/// libfabric looks for providers once, at its first use: before any test.
inline const bool kStrictProviderCanBeFound = ::setenv("FI_PROVIDER_PATH", RAILYARD_STRICT_PROVIDER_DIR, 1) == 0;

inline Settings over_memory() { return test_rails(0); }
inline Settings over_network(std::uint32_t rails) {
  Settings settings = test_rails(rails);
  settings.shared_memory = "off";
  return settings;
}

/// A provider that binds every registration to one endpoint and lets nothing pass (tests/doubles).
inline Settings over_strict_provider() {
  Settings settings;
  settings.provider = "strict";
  settings.interfaces = "lo";
  settings.rails = 1;
  settings.shared_memory = "off";
  return settings;
}

inline std::unique_ptr<Context> open_context(const Settings& settings) {
  auto context = Context::open(settings);
  EXPECT_TRUE(context) << context.error().text();
  return context ? std::move(*context) : nullptr;
}

struct ChannelPair {
  std::unique_ptr<Channel> out;  ///< of the side that connected
  std::unique_ptr<Channel> in;
};

/// Connects `from` to `to`, each waiting for the other as a program would.
inline ChannelPair connect(Context& from, Context& to, const ConnectOptions& options = {}) {
  ChannelPair pair;
  auto listener = to.listen();
  EXPECT_TRUE(listener) << listener.error().text();
  if (!listener) return pair;
  Handle handle = (*listener)->handle();
  const auto until = std::chrono::steady_clock::now() + test_patience() * std::chrono::seconds(30);
  while ((!pair.out || !pair.in) && std::chrono::steady_clock::now() < until) {
    if (!pair.out) {
      auto out = from.connect(handle, options);
      EXPECT_TRUE(out) << out.error().text();
      if (!out) return pair;
      pair.out = std::move(*out);
    }
    if (!pair.in) {
      auto in = (*listener)->accept();
      EXPECT_TRUE(in) << in.error().text();
      if (!in) return pair;
      pair.in = std::move(*in);
    }
  }
  EXPECT_TRUE(pair.out && pair.in) << "no channel in time";
  return pair;
}

/// Waits for something that other threads bring about.
template <typename Done>
bool eventually(Done&& done, std::chrono::milliseconds patience = std::chrono::seconds(20)) {
  const auto until = std::chrono::steady_clock::now() + test_patience() * patience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}
/// Closing ends on both sides have disconnected, and nothing is left of any channel.
inline bool nothing_left(const Context& a, const Context& b) {
  return eventually([&] {
    const ContextStatistics here = a.statistics();
    const ContextStatistics there = b.statistics();
    return here.routes + there.routes + here.channels + there.channels == 0;
  });
}

/// Bytes that say which message they belong to.
inline std::vector<std::byte> pattern(std::size_t bytes, std::uint32_t seed) {
  std::vector<std::byte> data(bytes);
  std::uint32_t state = seed * 2654435761U + 1;
  for (std::byte& byte : data) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24U);
  }
  return data;
}

/// memcmp for memory that may be empty, and then nowhere.
inline bool same_bytes(const void* a, const void* b, std::size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

inline Request* must(Result<Request*> request) {
  EXPECT_TRUE(request) << request.error().text();
  return request ? *request : nullptr;
}

inline bool waited(Channel& channel, Request* request, std::span<std::uint64_t> sizes = {}) {
  if (request == nullptr) return false;
  auto done = channel.wait(request, sizes, Deadline::in(test_patience() * std::chrono::seconds(60)));
  EXPECT_TRUE(done) << done.error().text();
  return static_cast<bool>(done);
}

}  // namespace railyard
