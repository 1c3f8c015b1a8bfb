/// Two simulated rails that know each other, with what most tests of them need.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "fabric/sim/fabric.hpp"

namespace railyard::fabric::sim {

struct TwoRails {
  explicit TwoRails(const std::function<void(RailOptions&)>& change = {}, std::uint64_t seed = 1)
      : TwoRails(make_options(change, seed)) {}
  explicit TwoRails(const FabricOptions& options) : fabric(options), a(open(0)), b(open(1)) {
    b_from_a = a->connect(b->address(), {}).value();
    a_from_b = b->connect(a->address(), {}).value();
    // A link stands after the longer latency of its ends.
    fabric.advance(std::max(options.rails[0].latency, options.rails[1].latency));
  }

  static FabricOptions make_options(const std::function<void(RailOptions&)>& change, std::uint64_t seed) {
    FabricOptions options;
    options.seed = seed;
    for (int process = 0; process < 2; ++process) {
      RailOptions rail;
      rail.process = process;
      if (change) change(rail);
      options.rails.push_back(rail);
    }
    return options;
  }
  std::unique_ptr<Rail> open(std::size_t index) { return std::move(fabric.open_rail(index)).value(); }

  /// Everything that `rail` reports until the world is silent.
  std::vector<Event> settle(Rail& rail) {
    std::vector<Event> all;
    do {
      collect(rail, all);
    } while (fabric.step());
    collect(rail, all);
    return all;
  }
  static void collect(Rail& rail, std::vector<Event>& all) {
    std::array<Event, 16> events;
    while (const std::size_t count = rail.poll(events)) all.insert(all.end(), events.begin(), events.begin() + count);
  }
  /// Lets the world run until this rail has something to say.
  Event next(Rail& rail) {
    std::array<Event, 1> event;
    while (rail.poll(event) == 0) {
      if (!fabric.step()) {
        ADD_FAILURE() << "nothing happens any more";
        return {};
      }
    }
    return event[0];
  }

  SimFabric fabric;
  std::unique_ptr<Rail> a;
  std::unique_ptr<Rail> b;
  RemoteId b_from_a = 0;
  RemoteId a_from_b = 0;
};

/// Both ends of a write or read: local memory at A, a registered region at B.
struct Regions {
  Regions(TwoRails& world, std::size_t bytes)
      : rails(world),
        here(bytes),
        there(bytes),
        here_registration(world.a->register_memory(here, {}).value()),
        there_registration(world.b->register_memory(there, {.remote = true}).value()) {}
  ~Regions() {
    if (rails.a) rails.a->revoke(here_registration);
    if (rails.b && !gone) rails.b->revoke(there_registration);
  }
  Regions(const Regions&) = delete;
  Regions& operator=(const Regions&) = delete;

  LocalChunk local(std::size_t offset, std::size_t bytes) {
    return {here.data() + offset, bytes, here_registration.descriptor[static_cast<std::size_t>(Lane::data)]};
  }
  RemoteChunk remote(std::size_t offset) const {
    return {rails.b_from_a, there_registration.remote_base + offset, there_registration.key};
  }

  TwoRails& rails;
  std::vector<std::byte> here;
  std::vector<std::byte> there;
  Registration here_registration;
  Registration there_registration;
  bool gone = false;
};

inline std::vector<std::byte> counting_bytes(std::size_t count, std::size_t first = 1) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((first + i * 7) & 0xffU);
  return bytes;
}

inline LocalChunk chunk(std::span<std::byte> memory, void* descriptor = nullptr) {
  return LocalChunk{memory.data(), memory.size(), descriptor};
}

}  // namespace railyard::fabric::sim
