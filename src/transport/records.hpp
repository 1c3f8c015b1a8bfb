/// What callers hand to an engine: records that travel in frames, and transfers between memory and memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "memory/region.hpp"
#include "railyard/operations.hpp"
#include "transport/operation.hpp"
#include "transport/vector.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

struct PutRecord {
  std::uint32_t exposed_region = 0;
  std::uint64_t offset = 0;
  std::span<const std::byte> bytes;
};
struct SignalRecord {
  std::uint32_t exposed_region = 0;
  std::uint64_t index = 0;
  SignalOp op = SignalOp::add;
  std::uint64_t value = 0;
};
/// A message for the peer's Inbox, which alone knows what kind, number and word say. The body may lie in two places.
struct MessageRecord {
  std::uint8_t kind = 0;
  std::uint32_t number = 0;
  std::uint64_t word = 0;
  std::span<const std::byte> body;
  std::span<const std::byte> more = {};
  bool goes_on = false;  ///< another one follows at once: they leave together
  bool ends = false;     ///< what `goes_on` began: it does not wait for company
};
struct AtomicRecord {
  std::uint32_t exposed_region = 0;
  std::uint64_t offset = 0;
  AtomicOp op = AtomicOp::add;
  wire::AtomicBody body;
  wire::WordKind kind = wire::WordKind::bits;
};
/// A transfer between local memory and a peer's region.
struct Bulk {
  std::byte* local = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t remote_offset = 0;
  RemoteMemory remote;
  std::shared_ptr<memory::Region> region;
  std::shared_ptr<const void> keep;
  std::uint64_t* counter = nullptr;
  std::uint64_t counter_value = 0;
};

/// Blocks of one vector.
struct VectorWork {
  RemoteMemory remote;
  std::span<const Block> blocks;
  std::shared_ptr<const void> keep;
};

}  // namespace railyard::transport
