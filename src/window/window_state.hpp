/// What a Window holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "railyard/window.hpp"
#include "transport/engine.hpp"
#include "window/world_state.hpp"

namespace railyard::window_detail {

/// Marks a ticket whose source was free at once: the bytes travelled inside a message.
inline constexpr std::uint32_t kSourceFree = UINT32_MAX;

/// Zeroed pages of our own.
class Pages {
 public:
  Pages() = default;
  static Result<Pages> open(std::size_t bytes);
  Pages(Pages&& other) noexcept : memory_(std::exchange(other.memory_, {})) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Pages();
  std::span<std::byte> memory() const { return memory_; }

 private:
  std::span<std::byte> memory_;
};

/// What operations under way point into: lives until the last of them is done.
struct Storage {
  Pages pages;
  std::vector<std::uint64_t> own_signals;
  std::vector<std::uint64_t> own_counters;
  std::vector<std::uint64_t> barrier_words;
  std::size_t rails = 0;                   ///< most rails of any rank
  std::vector<transport::RemoteKey> keys;  ///< rank-major
};

/// A peer's part of the window.
struct PeerPart {
  std::uint64_t bytes = 0;
  std::uint32_t exposure = 0;
  std::uint32_t barrier_exposure = 0;
  std::uint32_t signals = 0;
};

class WindowState {
 public:
  explicit WindowState(WorldState& world) : world_(world), engine_(*world.engine) {}
  ~WindowState() { shut(); }

  /// Makes this rank's part. Local.
  Result<void> begin(std::span<std::byte> memory, std::size_t bytes, const WindowOptions& options);
  std::vector<std::byte> contribution() const;
  Result<void> finish(std::span<const std::vector<std::byte>> all);

  /// Takes the window down; every later call is an error that says so.
  void shut();

  WorldState& world() { return world_; }
  transport::Engine& engine() { return engine_; }

  // Checks. Each error names the call, the limit and what was asked for.
  Result<void> check_open(const char* call) const;
  Result<void> check_rank(const char* call, int rank) const;
  Result<void> check_range(const char* call, int rank, std::size_t offset, const void* memory, std::size_t bytes) const;
  Result<void> check_signal(const char* call, int rank, std::size_t index) const;
  Result<void> check_counter(const char* call, std::size_t index) const;

  bool is_self(int rank) const { return rank == world_.rank; }
  const PeerPart& part(int rank) const { return parts_[static_cast<std::size_t>(rank)]; }
  transport::RemoteMemory remote(int rank) const {
    return {part(rank).exposure,
            std::span(storage_->keys).subspan(static_cast<std::size_t>(rank) * storage_->rails, storage_->rails)};
  }
  const transport::Exposure& exposure() const { return exposure_; }
  std::span<std::byte> memory() const { return exposure_.memory; }
  std::span<std::uint64_t> signals() const { return exposure_.signals; }
  std::span<std::uint64_t> counters() const { return counters_; }
  std::uint64_t* barrier_words() { return storage_->barrier_words.data(); }
  std::uint64_t next_barrier() { return ++barriers_; }
  bool may_relax() const { return may_relax_; }

  /// The one way in for every put and signal to another rank.
  struct Put {
    const char* call = "put";
    int rank = 0;
    std::size_t offset = 0;
    const void* source = nullptr;
    std::size_t bytes = 0;
    const SignalUpdate* signal = nullptr;
    const CounterUpdate* counter = nullptr;
    Order order = Order::ordered;
    std::uint32_t exposure = 0;  ///< 0: the peer's data and signals; else this one's signals
  };
  Result<Ticket> put(const Put& request);
  Result<Ticket> get(int rank, std::size_t offset, void* destination, std::size_t bytes);
  Result<Ticket> atomic(int rank, std::size_t offset, AtomicOp op, const transport::wire::AtomicBody& body,
                        void* before);
  void count(const CounterUpdate& counter);

  std::int64_t nanoseconds(Deadline deadline) const {
    return deadline.nanoseconds(std::int64_t{engine_.settings().timeout_ms} * 1'000'000);
  }
  /// What is under way to a rank, for the error of a wait that ran out of time.
  Error timed_out(const char* call, int rank, std::int64_t nanoseconds);

 private:
  Result<Ticket> put_to_self(const Put& request);
  transport::Bulk bulk(int rank, std::size_t offset, void* local, std::size_t bytes);
  template <typename Attempt>
  Result<void> submit_bulk(const char* call, int rank, transport::Bulk work, Attempt&& attempt);
  template <typename Attempt>
  Result<void> submit(const char* call, int rank, Attempt&& attempt);

  WorldState& world_;
  transport::Engine& engine_;
  std::shared_ptr<Storage> storage_;
  std::shared_ptr<memory::Region> region_;
  transport::Exposure exposure_;
  transport::Exposure barrier_exposure_;
  std::uint32_t exposure_id_ = 0;
  std::uint32_t barrier_exposure_id_ = 0;
  std::span<std::uint64_t> counters_;
  std::vector<PeerPart> parts_;
  std::uint64_t barriers_ = 0;
  bool per_rank_ = false;
  bool may_relax_ = true;
};

}  // namespace railyard::window_detail
