/// Bare libfabric as a competent user would write it: what Railyard is measured against.
///
/// One reliable datagram endpoint on one interface to one peer, one completion queue, windowed posts, batched queue
/// reads, no flags beyond the provider's defaults. Own set-up, sharing nothing with the library but the way to
/// libfabric, which is found at run time.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/contestant.hpp"
#include "fabric/ofi/library.hpp"
#include "railyard/result.hpp"

namespace railyard::bench {

/// Both memories end in so many bytes that no operation of a test uses: for saying that a round is over.
inline constexpr std::size_t kSpareBytes = 64;

/// Closes a libfabric object with its owner.
struct FidCloser {
  template <typename T>
  void operator()(T* object) const {
    fi_close(&object->fid);
  }
};
template <typename T>
using Fid = std::unique_ptr<T, FidCloser>;
struct InfoCloser {
  void operator()(fi_info* info) const { fabric::ofi::library().freeinfo(info); }
};

/// Which interface, in libfabric's words.
struct RawDomain {
  std::string provider;
  std::string domain;
  std::string fabric;
};

class RawRail final : public Contestant {
 public:
  /// Opens an endpoint there and registers both memories (equally long, with their spare bytes), which must outlive it.
  /// `atomics` asks for FI_ATOMIC too and does without where the provider has none. No wait lasts longer than
  /// `timeout_ms`.
  static Result<std::unique_ptr<RawRail>> open(const RawDomain& where, std::span<std::byte> exposed,
                                               std::span<std::byte> buffer, bool atomics, std::uint32_t timeout_ms);

  /// What the peer's `connect` needs.
  std::vector<std::byte> contribution() const;
  Result<void> connect(std::span<const std::byte> contribution);
  const RawDomain& where() const { return where_; }
  bool has_atomics() const { return has_atomics_; }

  std::string name() const override;
  bool changes_words() const override { return has_atomics_; }
  std::span<std::byte> exposed() override { return exposed_; }
  std::span<std::byte> buffer() override { return buffer_; }
  Result<double> run_source(const Round& round) override;
  Result<void> run_target(const Round& round) override;

 private:
  enum class Kind : std::uint8_t { write, write_data, read, fetch_add, send };

  RawRail() = default;
  Result<void> open_endpoint(bool atomics);
  Result<void> find_domain(bool atomics);
  Result<void> register_memory(std::span<std::byte> memory, std::uint64_t access, Fid<fid_mr>& registration);
  Result<void> register_all();
  Result<void> keep_receives();

  /// Posts one operation on `bytes` at `offset` of both memories; false: no room now, nothing happened.
  Result<bool> post(Kind kind, std::size_t offset, std::size_t bytes);
  /// The same, polling until there is room.
  Result<void> post_now(Kind kind, std::size_t offset, std::size_t bytes);
  /// Reads the queue once, in a batch, and counts what it held.
  Result<void> poll();
  Error queue_error();
  template <typename Condition>
  Result<void> poll_until(const char* what, Condition done);

  Result<void> stream(const Round& round, Kind kind);
  Result<void> ping_pong(const Round& round, Kind kind, bool first);
  Result<void> fetch_loop(const Round& round);
  /// Tells the peer that this side is done, in the spare bytes at the end of its memory.
  Result<void> notify();
  Result<void> drain();
  std::size_t spare_offset() const { return exposed_.size() - kSpareBytes; }

  RawDomain where_;
  std::int64_t timeout_ns_ = 0;
  bool has_atomics_ = false;
  bool uses_receives_ = false;
  std::uint32_t patience_ = 0;  ///< empty polls in a row before the core is offered to others, as our engine does
  std::uint32_t empty_polls_ = 0;
  std::span<std::byte> exposed_;
  std::span<std::byte> buffer_;

  // Closed from the last to the first: a registration bound to the endpoint goes before it.
  std::unique_ptr<fi_info, InfoCloser> info_;
  Fid<fid_fabric> fabric_;
  Fid<fid_domain> domain_;
  Fid<fid_cq> queue_;
  Fid<fid_av> addresses_;
  Fid<fid_ep> endpoint_;
  Fid<fid_mr> exposed_registration_;
  Fid<fid_mr> buffer_registration_;
  Fid<fid_mr> message_registration_;
  std::uint64_t next_key_ = 1;

  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::uint64_t peer_base_ = 0;
  std::uint64_t peer_key_ = 0;

  std::vector<fi_context2> contexts_;
  std::vector<fi_context2*> free_contexts_;
  std::vector<fi_context2> receive_contexts_;
  std::vector<fi_context2*> free_receives_;
  std::vector<std::byte> messages_;  ///< a slot for each receive
  std::uint64_t posted_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t landed_ = 0;    ///< writes with data that arrived here
  std::uint64_t received_ = 0;  ///< messages that arrived here
};

}  // namespace railyard::bench
