/// Revocation: takes memory back while operations of our own use it. When a call returns, no rail and no peer reads or
/// writes a byte of it any more. Operations that still need it fail with a cause; a link that carries one of them is
/// made anew, and nothing else is lost. Frames of peers are kept out by `ExposedMemory::conceal`, first; what the
/// region cache keeps of the memory is the caller's to have forgotten.
///
/// With the progress lock held, and not from an Inbox or another handler: it polls the rails.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "memory/region.hpp"
#include "transport/completions.hpp"
#include "transport/core.hpp"
#include "transport/failover.hpp"
#include "transport/links.hpp"

namespace railyard::transport {

class Revocation {
 public:
  struct Parts {
    Core& core;
    Links& links;
    Completions& completions;
    Failover& failover;
    std::function<std::size_t()> poll;  ///< of all rails, once: how many events there were
  };
  explicit Revocation(Parts parts) : parts_(std::move(parts)) {}

  void revoke(memory::Region& region);
  /// What uses these bytes, by whatever region.
  void revoke(std::span<const std::byte> memory);
  /// The sources of one flow's operations: its own alone, whoever else uses the same pages.
  void revoke(const Flow& flow);
  /// Operations that name this region: others may use the same pages by another.
  void revoke_registration(memory::Region& region);
  /// Whether a rail has yet to let go of a chunk that names the region; the chunk may have been acknowledged.
  bool holds(const memory::Region& region);
  /// Rails that do not let go of what they held (`Core::note_stuck`).
  void stop_stuck_rails();

 private:
  void withdraw_results(std::span<const std::byte> memory);
  void take_back(const std::function<bool(const Operation&)>& chosen);
  void take_back_segments(const std::function<bool(const Operation&)>& chosen);

  Parts parts_;
};

}  // namespace railyard::transport
