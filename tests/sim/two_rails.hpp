/// Two simulated rails that know each other, with what most tests of them need.
#pragma once

#include <gtest/gtest.h>

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
      : fabric(make_options(change, seed)), a(open(0)), b(open(1)) {
    b_from_a = a->connect(b->address()).value();
    a_from_b = b->connect(a->address()).value();
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

inline std::vector<std::byte> counting_bytes(std::size_t count, std::size_t first = 1) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((first + i * 7) & 0xffU);
  return bytes;
}

inline LocalPiece piece(std::span<std::byte> memory, void* descriptor = nullptr) {
  return LocalPiece{memory.data(), memory.size(), descriptor};
}

}  // namespace railyard::fabric::sim
