/// What every rail over libfabric is made of, whatever its endpoints: a domain, registrations, names, and the state of
/// its interface. `DatagramRail` and `ConnectedRail` add the endpoints.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fabric/base_rail.hpp"
#include "fabric/ofi/fid.hpp"
#include "fabric/ofi/info.hpp"
#include "fabric/ofi/keys.hpp"
#include "fabric/ofi/landing.hpp"

namespace railyard::fabric::ofi {

class OfiRail : public BaseRail {
 public:
  OfiRail(const OfiRail&) = delete;
  OfiRail& operator=(const OfiRail&) = delete;

  Result<Registration> register_memory(std::span<std::byte> memory, Access access) override;
  void revoke(const Registration& registration) override;
  void deregister(const Registration& registration) override;
  std::string describe_error(int error) const override;

 protected:
  static constexpr std::size_t kReadBatch = 32;  ///< completions of one call to libfabric
  static constexpr unsigned kSlowLook = 64;      ///< what seldom happens is looked for every so many polls
  /// Immediates of many peers may arrive between two polls: room for them beyond this rail's own operations.
  static constexpr std::size_t kLandingRoom = 16384;

  OfiRail() = default;
  /// Opens fabric and domain, and says what the rail can do.
  Result<void> open_domain(const RailOffer& offer, const Choice& choice);
  /// A queue of the wanted size, or of the largest that the provider grants, but not under the least.
  Result<Fid<fid_cq>> open_queue(std::size_t wanted, std::size_t least);
  Error set_up_error(const char* step, int code) const;
  /// The name by which libfabric reaches an endpoint.
  Result<std::vector<std::byte>> name_of(fid& endpoint) const;
  /// Where a registration is bound to, on providers that want that.
  virtual fid_ep* endpoint_for(Lane lane) = 0;
  void close_registrations();
  /// Has peers' operations end that may be half-way through registered memory: closing a registration turns away new
  /// ones only.
  virtual void cut_off_peers() {}

  /// After this the rail does nothing any more.
  void give_up(int code);
  /// Fills `events` from the queue: `read_entry(entry, event)` turns a completion into an event, `read_failure(event)`
  /// an error; each answers false for what means nothing to the caller.
  template <typename ReadEntry, typename ReadFailure>
  std::size_t read_completions(fid_cq& queue, std::span<Event> events, ReadEntry&& read_entry,
                               ReadFailure&& read_failure);
  /// What came in: a message or a write's immediate. False for an event of the target side that nobody asked for.
  bool read_arrival(const fi_cq_data_entry& entry, Event& event);
  /// Reads one error completion; false: there was none.
  bool read_error(fid_cq& queue, fi_cq_err_entry& entry) const;

  std::size_t depth_ = 0;     ///< bound of the transmits of a lane, and of the receives
  std::size_t receives_ = 0;  ///< posted on the control lane
  int broken_ = 0;            ///< why the rail can do nothing any more
  unsigned turn_ = 0;
  LandingReceives landing_;

  Info info_;
  Fid<fid_fabric> fabric_object_;
  Fid<fid_domain> domain_;

 private:
  /// A registration as libfabric holds it; its key goes back only after it is closed.
  struct Held {
    Fid<fid_mr> object;
    bool own_key = false;
    bool remote = false;
    std::uint64_t key = 0;
  };

  void set_capabilities(const RailOffer& offer, const Choice& choice);
  Result<std::uint64_t> hold(std::span<std::byte> memory, Lane lane, std::uint64_t access);
  void release(std::uint64_t id);
  bool is_remote(const Registration& registration) const;
  Error registration_error(const char* step, std::span<std::byte> memory, Lane lane, int code) const;

  KeyPool keys_;
  std::uint64_t next_held_ = 1;
  std::unordered_map<std::uint64_t, Held> held_;
};

constexpr std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }

/// What the completion of an operation of this side reports.
constexpr Event::Kind own_kind(std::uint64_t flags) {
  if ((flags & FI_SEND) != 0) return Event::Kind::sent;
  return (flags & FI_WRITE) != 0 ? Event::Kind::written : Event::Kind::read;
}

/// Whether a completion is of an operation of this side. Some providers repeat the immediate in the completion of the
/// write that carried it.
constexpr bool is_own(std::uint64_t flags) {
  return (flags & (FI_SEND | FI_WRITE | FI_READ)) != 0 && (flags & (FI_REMOTE_WRITE | FI_RECV)) == 0;
}

template <typename ReadEntry, typename ReadFailure>
std::size_t OfiRail::read_completions(fid_cq& queue, std::span<Event> events, ReadEntry&& read_entry,
                                      ReadFailure&& read_failure) {
  std::array<fi_cq_data_entry, kReadBatch> entries;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
  std::size_t count = 0;
  while (count < events.size()) {
    const std::size_t room = std::min(events.size() - count, kReadBatch);
    const ssize_t read = fi_cq_read(&queue, entries.data(), room);
    if (read > 0) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(read); ++i)
        if (read_entry(entries[i], events[count])) ++count;
      if (static_cast<std::size_t>(read) < room) break;
    } else if (read == -FI_EAVAIL) {
      if (read_failure(events[count])) ++count;
    } else {
      if (read != -FI_EAGAIN && read != 0) give_up(static_cast<int>(-read));
      break;
    }
  }
  return count;
}

// A PostContext is the room that FI_CONTEXT2 asks for, at its start.
static_assert(sizeof(fi_context2) <= sizeof(PostContext::driver));

}  // namespace railyard::fabric::ofi
