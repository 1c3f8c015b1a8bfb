/// Lone window: memory of one rank, made by it alone. What others need to reach it is a description of some bytes,
/// which travels by whatever means the caller has. For front ends whose hosts hand memory handles round themselves.
///
/// It is a Window with one part: puts, gets and atomics name its owner's rank. They are in the same sequence as all
/// other operations to that rank, through whichever windows of the world they go: an atomic on one lone window comes
/// after the earlier puts to another. There are no signals, no counters and no barrier; `close` and the end concern
/// this rank alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "railyard/window.hpp"

namespace railyard {

class LoneWindow {
 public:
  /// Makes `memory` reachable for every rank that gets its description, until the window ends. Not collective.
  static Result<Window> open(World& world, std::span<std::byte> memory);
  /// What others need. The same bytes for all of them; never all zero.
  static Result<std::vector<std::byte>> describe(const Window& window);
  /// How many bytes that are where the world has so many rails (World::rail_count).
  static constexpr std::size_t description_bytes(std::size_t rails) {
    return kHeaderBytes + sizeof(std::uint64_t) * rails;
  }
  /// The memory that `rank` has described. Nothing is sent before the first operation.
  static Result<Window> import(World& world, int rank, std::span<const std::byte> description);

  /// Whether an operation is over; one that failed returns its error. Makes no progress.
  static Result<bool> look(const Window& window, const Ticket& ticket);
  /// Stores a value and, after it, a flag in the word behind it: memory of this process, a GPU's or not. Whoever sees
  /// the flag sees the value.
  static Result<void> store_pair(World& world, void* to, std::uint64_t value, std::uint64_t flag);

 private:
  static constexpr std::size_t kHeaderBytes = 34;
};

}  // namespace railyard
