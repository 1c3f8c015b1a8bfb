/// What a Window holds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerator/accelerator.hpp"
#include "memory/heap.hpp"
#include "railyard/window.hpp"
#include "shm/distance.hpp"
#include "transport/engine.hpp"
#include "transport/stall.hpp"
#include "window/world_state.hpp"

namespace railyard::window_detail {

/// Marks a ticket whose source was free at once: the bytes travelled inside a message.
inline constexpr std::uint32_t kSourceFree = UINT32_MAX;

/// Zeroed pages of our own.
class Pages {
 public:
  Pages() = default;
  static Result<Pages> open(std::size_t bytes);
  static Result<Pages> open_words(std::size_t count);
  Pages(Pages&& other) noexcept : memory_(std::exchange(other.memory_, {})) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Pages();
  std::span<std::byte> memory() const { return memory_; }
  std::span<std::uint64_t> words() const {
    return {reinterpret_cast<std::uint64_t*>(memory_.data()), memory_.size() / sizeof(std::uint64_t)};
  }

 private:
  std::span<std::byte> memory_;
};

/// What operations under way point into: lives until the last of them is done.
struct Storage {
  memory::Heap heap;  ///< data, signals and barrier words, where peers may map them; else:
  Pages pages;
  Pages own_signals;   ///< whole pages, so that devices can be given them
  Pages own_counters;  ///< the same
  std::vector<std::uint64_t> own_barrier_words;
  /// Signals and counters that the caller wants in the memory of a GPU; the pages above are what the host sees of them.
  std::optional<transport::MirroredWords> device_signals;
  std::optional<transport::MirroredWords> device_counters;
  /// The window's own memory of a GPU, which peers keep for as long as they have it mapped, and its name for them.
  std::unique_ptr<accelerator::Mapping> device_memory;
  std::unique_ptr<accelerator::Shared> device_share;
  transport::Sleepers own_sleepers;
  std::size_t rails = 0;                   ///< most rails of any rank
  std::vector<transport::RemoteKey> keys;  ///< rank-major
};

/// Where the parts of a window lie in its heap. Both sides work it out from what they know: the data comes first.
struct HeapLayout {
  HeapLayout(std::uint64_t data, std::uint64_t signals, std::uint64_t barrier_words);
  std::uint64_t signals_at = 0;
  std::uint64_t barrier_at = 0;
  std::uint64_t sleepers_at = 0;
  std::uint64_t bytes = 0;
};

/// Where the parts of a window lie in memory of a GPU that it has allocated itself. Peers know all of it but the
/// counters, which are the last. Of signals and counters there are two halves each (transport::MirroredWords).
struct DeviceLayout {
  DeviceLayout(std::uint64_t data, std::uint64_t signals, std::uint64_t counters = 0);
  std::uint64_t signals_at = 0;
  std::uint64_t signal_adds_at = 0;
  std::uint64_t counters_at = 0;
  std::uint64_t counter_adds_at = 0;
  std::uint64_t bytes = 0;
};

/// Memory of a GPU that a window has allocated: kernels of ranks on the same host may map it and store there.
struct DeviceShare {
  memory::HeapName owner;  ///< names a process; no file
  accelerator::ShareHandle handle;
  bool signals = false;  ///< they lie there too
};

/// A rank's part of the window that this process can touch: its own, or a peer's that it has mapped.
struct alignas(64) DirectPart {
  // What a small put looks at lies in two lines.
  transport::ExposedRegion data;
  /// To the rank whose mapped part it is, once the engine watches over it for this (begin_touching). Release: whoever
  /// reads it sees the flow whole.
  mutable std::atomic<const transport::Flow*> flow{nullptr};
  const transport::Sleepers* sleepers = nullptr;  ///< of that rank, in waits for these signals and words
  memory::Heap heap;                              ///< the mapping; none for this rank's own
  transport::ExposedRegion barrier;
  mutable shm::Distance distance;
};

/// A peer's part of the window.
struct PeerPart {
  std::uint64_t bytes = 0;
  std::uint32_t exposed_region = 0;
  std::uint32_t barrier_exposed_region = 0;
  std::uint32_t signals = 0;
  bool on_device = false;              ///< its data is memory of a GPU
  const DirectPart* direct = nullptr;  ///< null: reached by the engine alone
  std::optional<DeviceShare> share = {};
};

class Blocks;

class WindowState {
 public:
  explicit WindowState(WorldState& world) : world_(world), home_(world.home()), engine_(world.engine()) {
    home_.add_window(use_);
  }
  ~WindowState() { shut(); }

  /// Makes this rank's part. Local.
  Result<void> begin(std::span<std::byte> memory, std::size_t bytes, const WindowOptions& options);
  std::vector<std::byte> contribution() const;
  Result<void> finish(std::span<const std::vector<std::byte>> all);

  void log_made() const;

  /// Takes the window down; every later call is an error that says so. `together`: all ranks are done with it.
  void shut(bool together = false);

  WorldState& world() { return world_; }
  transport::Engine& engine() { return engine_; }
  std::shared_ptr<const void> keep_storage() const { return storage_; }

  // Checks. Each error names the call, the limit and what was asked for.
  [[gnu::hot]] Result<void> check_open(const char* call) const;
  [[gnu::hot]] Result<void> check_rank(const char* call, int rank) const;
  Result<void> check_range(const char* call, int rank, std::size_t offset, const void* memory, std::size_t bytes) const;
  Result<void> check_signal(const char* call, int rank, std::size_t index) const;
  Result<void> check_counter(const char* call, std::size_t index) const;
  /// An enumeration's value that has no name.
  static Error unknown(const char* call, const char* what, int value, const char* known);

  /// The engine's flow to a rank.
  std::uint32_t flow_of(int rank) const { return world_.flow_of(rank); }
  [[gnu::always_inline]] transport::Flow* existing_flow(int rank) const {
    return engine_.peers().existing(flow_of(rank));
  }
  /// An error of the engine's with the ranks of this world, its text with both.
  Error in_our_terms(Error error) const;
  /// A rank of this world that is lost (not one that has left); -1: none is.
  int lost_rank() const;
  /// Operations to ranks of this world that are not complete.
  std::uint64_t outstanding() const;

  bool is_self(int rank) const { return rank == world_.rank; }
  /// Which of `parts_` is a rank's; too large: this window has none of it.
  std::size_t index_of(int rank) const {
    return static_cast<std::size_t>(static_cast<std::uint32_t>(rank) - static_cast<std::uint32_t>(first_rank_));
  }
  bool holds(int rank) const { return index_of(rank) < parts_.size(); }
  const PeerPart& part(int rank) const { return parts_[index_of(rank)]; }
  transport::RemoteMemory remote(int rank) const {
    return {part(rank).exposed_region,
            std::span(storage_->keys).subspan(index_of(rank) * storage_->rails, storage_->rails), part(rank).on_device};
  }
  const transport::ExposedRegion& exposed_region() const { return exposed_region_; }
  std::uint32_t exposed_region_number() const { return exposed_region_id_; }
  std::span<std::byte> memory() const { return exposed_region_.memory; }
  std::span<std::uint64_t> signals() const { return exposed_region_.signals; }
  std::span<std::uint64_t> counters() const { return counters_; }
  /// Where kernels read them; `signals` and `counters` are what the host reads.
  std::span<std::uint64_t> signals_of_kernels() const {
    return storage_->device_signals ? storage_->device_signals->words() : signals();
  }
  std::span<std::uint64_t> counters_of_kernels() const {
    return storage_->device_counters ? storage_->device_counters->words() : counters();
  }
  bool counters_on_device() const { return storage_->device_counters.has_value(); }
  /// The GPU whose memory the window has allocated; -1: none.
  int allocated_device() const { return storage_->device_memory != nullptr ? exposed_region_.device : -1; }
  /// What kernels add to; empty: the engine alone changes these words.
  std::span<std::uint64_t> signal_adds() const {
    return storage_->device_signals ? storage_->device_signals->adds() : std::span<std::uint64_t>();
  }
  std::span<std::uint64_t> counter_adds() const {
    return storage_->device_counters ? storage_->device_counters->adds() : std::span<std::uint64_t>();
  }
  /// What this rank's word holds; where kernels may have added to it, after a trip to the GPU.
  std::uint64_t read_signal(std::size_t index);
  std::uint64_t read_counter(std::size_t index);
  /// A host thread waits for a word that kernels may add to: the next pass finds out what it holds.
  void want_signal(std::size_t index) const {
    if (!signal_adds().empty()) storage_->device_signals->want(index);
  }
  void want_counter(std::size_t index) const {
    if (!counter_adds().empty()) storage_->device_counters->want(index);
  }
  /// The whole of what a rank's part lies in, where this process has it mapped as memory that ranks share.
  std::span<std::byte> heap(int rank) const {
    const memory::Heap* heap = is_self(rank)                  ? &storage_->heap
                               : part(rank).direct != nullptr ? &part(rank).direct->heap
                                                              : nullptr;
    return heap != nullptr && *heap ? heap->memory() : std::span<std::byte>();
  }
  /// Each round's word has a line of its own: its writer is another rank.
  static constexpr std::size_t kWordsPerRound = 8;
  const std::uint64_t& barrier_word(std::size_t round) const {
    return barrier_exposed_region_.signals[round * kWordsPerRound];
  }
  /// Where this rank is in a barrier. It stays there when its time runs out: the peers have been told already.
  struct Barrier {
    std::uint64_t epoch = 0;  ///< barriers entered so far
    bool inside = false;      ///< the last one is not over
    bool told = false;        ///< this round's peer knows that we are here
    std::size_t round = 0;
    int distance = 1;
  };
  Barrier& barrier() { return barrier_; }
  bool may_relax() const { return may_relax_; }
  /// Others than this window's calls are about to touch mapped memory of peers: the engine watches over these.
  void expect_touching() {
    for (int rank = 0; rank < world_.size; ++rank) {
      if (!is_self(rank) && (part(rank).direct != nullptr || part(rank).share)) begin_touching(rank);
    }
  }

  /// The one way in for every put and signal.
  struct Put {
    const char* call = "put";
    int rank = 0;
    std::size_t offset = 0;
    const void* source = nullptr;
    std::size_t bytes = 0;
    const SignalUpdate* signal = nullptr;
    const CounterUpdate* counter = nullptr;
    Order order = Order::ordered;
    std::uint32_t exposed_region = 0;  ///< 0: the peer's data and signals; else this one's signals
  };
  Result<Ticket> put(const Put& request);
  Result<Ticket> get(int rank, std::size_t offset, void* destination, std::size_t bytes);
  Result<Ticket> atomic(int rank, std::size_t offset, AtomicOp op, WordType type, transport::wire::AtomicBody body,
                        void* before);
  void count(const CounterUpdate& counter);
  /// This rank's own, in turn with what the engine applies.
  Result<void> reset_signal(std::size_t index);
  Result<void> reset_counter(std::size_t index);

  // lone_window.cc
  /// This rank's part is all there is.
  void stand_alone();
  /// All there is is a part of that rank, which it has described.
  Result<void> import(int rank, std::span<const std::byte> description);
  Result<std::vector<std::byte>> describe() const;
  Result<void> check_collective(const char* call) const;
  /// Stores a value and, after it, a flag, in memory of this process that may be a GPU's.
  static Result<void> store_pair(WorldState& world, void* to, std::uint64_t value, std::uint64_t flag);

  // vector.cc
  Result<Ticket> put_blocks(const char* call, int rank, const Blocks& blocks, const SignalUpdate* signal);
  Result<Ticket> get_blocks(const char* call, int rank, const Blocks& blocks);

  // window.cc
  /// Whether the operation is over, and how. Reads atomics only.
  Result<bool> look(const Ticket& ticket, Completion completion) const;
  Result<void> wait(const char* call, const Ticket& ticket, Completion completion, Deadline deadline);

  // waits.cc
  enum class Wanted : std::uint8_t { any, all };
  /// Waits for the conditions; the first of them that was met.
  Result<SignalMet> wait_signals(const char* call, std::span<const SignalCondition> conditions, Wanted wanted,
                                 Deadline deadline);
  Error bad_conditions(const char* call, std::span<const SignalCondition> conditions) const;
  Result<void> run_barrier(Deadline deadline);

  /// Waits until `done`, which looks at a word that peers change.
  template <typename Done>
  bool wait_for_word(Done&& done, std::int64_t nanoseconds) {
    if (!has_direct_peers_) return engine_.wait_until(done, nanoseconds, sleepers_);
    return engine_.wait_for_word(done, nanoseconds, use_.direct().mine().pace, sleepers_, [this] { warm_up(); });
  }
  bool comes_shortly(const SignalCondition& condition, std::uint64_t& held);
  bool makes_sense(const SignalCondition& condition) {
    return condition.index < signals().size() && condition.comparison <= Comparison::greater_equal &&
           condition.from >= SignalCondition::kAnyRank && condition.from < world_.size;
  }
  /// After a change of a signal here: other threads of this process may sleep until it comes.
  void wake_own() {
    if (sleepers_->any()) engine_.waiting().nudge();
  }
  /// After a change of memory that its threads may wait for, past the engine.
  void wake(int rank) { is_self(rank) ? engine_.waiting().nudge() : engine_.wake_peer(flow_of(rank)); }
  /// What this process stored into peers' memory is there before anything that follows.
  void settle() const {
    if (has_direct_peers_) std::atomic_thread_fence(std::memory_order_seq_cst);
  }

  std::int64_t nanoseconds(Deadline deadline) const {
    return deadline.nanoseconds(std::int64_t{engine_.settings().timeout_ms} * 1'000'000);
  }
  /// A wait for a rank's answer, which is reported when it takes long. `wait` takes nanoseconds, and says whether it is
  /// over.
  template <typename Wait>
  bool wait_watched(const char* call, int rank, telemetry::Waiting what, std::int64_t nanoseconds, Wait&& wait) {
    return transport::wait_watched(engine_, nanoseconds, what, world_.world_rank(rank), wait,
                                   [&] { return waits_for(call, rank); });
  }
  /// The same until the deadline. By default it covers what it takes to find out that the rank is lost (`await_loss`).
  template <typename Wait>
  bool wait_for_rank(const char* call, int rank, telemetry::Waiting what, Deadline deadline, Wait&& wait) {
    const std::int64_t away = engine_.health().away();
    return wait_watched(call, rank, what, nanoseconds(deadline), wait) ||
           await_loss(
               deadline, away, [&] { return time_to_loss(rank); }, wait);
  }
  std::string waits_for(const char* call, int rank);
  /// A wait whose deadline is over. By default it goes on while a rank that it waits for is about to be found lost: the
  /// peer's time-out and that of the wait are often equal, and the wait may have begun first; and the peer's stands
  /// still while this process is away. `away`: what `Engine::away` said at the start. `left`: the time to the loss.
  /// `wait`: as in `wait_watched`. True: it is over.
  bool await_loss(Deadline deadline, std::int64_t away, const std::function<std::int64_t()>& left,
                  const std::function<bool(std::int64_t)>& wait);
  /// For how much longer a rank may be silent before it is lost; INT64_MAX: nobody doubts it.
  std::int64_t time_to_loss(int rank);
  /// Until nothing is outstanding, to whichever rank.
  bool wait_for_all(Deadline deadline);
  /// What is under way to a rank, for the error of a wait that ran out of time.
  Error timed_out(const char* call, int rank, std::int64_t nanoseconds);
  bool is_lone() const { return lone_; }

 private:
  // window_state.cc
  Result<void> take_memory(std::span<std::byte> memory, std::size_t bytes, const WindowOptions& options);
  bool take_heap(std::size_t bytes, std::size_t signals);
  Result<void> take_device(std::size_t bytes, const WindowOptions& options);
  Result<void> take_own_words(std::size_t signals);
  Result<void> place_words(const WindowOptions& options);
  void reach_directly(int rank, const memory::HeapName& name, bool signals_in_heap);
  std::size_t barrier_words() const;
  PeerPart& part_of(int rank) { return parts_[index_of(rank)]; }

  // direct.cc: what this process does on memory it can touch, its own or a peer's.
  /// Whether an operation may go past the engine now.
  [[gnu::always_inline]] bool may_touch(int rank) {
    if (is_self(rank)) return true;
    const transport::Flow* flow = existing_flow(rank);
    if (flow == nullptr || !flow->direct.load(std::memory_order_relaxed)) return begin_touching(rank);
    // Acquire: what the engine brought there before took effect before what follows; and a loss, which leaves nothing
    // outstanding, is seen by the second.
    return flow->outstanding.load(std::memory_order_acquire) == 0 && !flow->failed.load(std::memory_order_acquire);
  }
  bool begin_touching(int rank);
  void warm_up() const;
  /// Signals in memory that the caller brought cannot be reached; and what precedes a signal goes the signal's way.
  static bool takes(const DirectPart& part, const Put& request) {
    return request.signal == nullptr || request.signal->index < signals_of(part, request).signals.size();
  }
  static const transport::ExposedRegion& signals_of(const DirectPart& part, const Put& request) {
    return request.exposed_region == 0 ? part.data : part.barrier;
  }
  bool put_at_once(const DirectPart& part, const Put& request);
  Result<Ticket> put_mapped(const Put& request);
  void put_directly(const DirectPart& part, const Put& request);
  void put_traced(const DirectPart& part, const Put& request);
  void note_direct(int rank, transport::EngineTrace::What what, std::size_t bytes, std::int64_t began) const;
  std::int64_t trace_clock() const { return traced_ ? engine_.trace().now() : 0; }
  Result<Ticket> atomic_natively(const char* call, int rank, std::size_t offset, AtomicOp op,
                                 transport::wire::WordKind kind, const transport::wire::AtomicBody& body, void* before);
  bool atomic_directly(const DirectPart& part, std::size_t offset, std::uint8_t code,
                       const transport::wire::AtomicBody& body, std::uint64_t& before);
  void used_directly(DirectUse::What what, std::size_t bytes);

  // on_device.cc: memory of GPUs, which the processor never touches.
  /// Whether the data of a rank's part, or these bytes of the caller's, are memory of a GPU.
  bool on_device(const PeerPart& peer, const void* memory, std::size_t bytes) const {
    return gpus_ && (peer.on_device || (!is_on_host(memory, bytes) && is_on_device(memory)));
  }
  /// Without asking a driver, which takes longer than a small put. False says nothing. The first is for what lies where
  /// others did before it.
  [[gnu::always_inline]] bool is_on_host_again(const void* memory, std::size_t bytes) const {
    return memory::OwnStack::holds(memory) || engine_.cache().remembered().hold_again(memory, bytes);
  }
  bool is_on_host(const void* memory, std::size_t bytes) const {
    const auto* const at = static_cast<const std::byte*>(memory);
    const std::span<std::byte> own = exposed_region_.memory;
    return bytes == 0 || memory::OwnStack::holds(at) || engine_.cache().remembered().hold(at, bytes) ||
           (exposed_region_.device < 0 && at >= own.data() && at < own.data() + own.size());
  }
  static bool is_on_device(const void* memory);
  Result<void> copy_at_home(const char* call, void* to, const void* from, std::size_t bytes);
  Result<Ticket> put_at_home(const Put& request);
  bool signals_at_home(const Put& request) const {
    return request.signal != nullptr && request.exposed_region == 0 && storage_->device_signals.has_value();
  }
  Result<void> zero(const char* what, std::span<std::byte> device_memory, int device);
  Result<std::span<std::uint64_t>> take_words(const char* what, std::span<std::uint64_t> words, Pages& shown,
                                              std::optional<transport::MirroredWords>& mirrored);
  Result<std::span<std::uint64_t>> mirror_words(std::span<std::uint64_t> words, std::span<std::uint64_t> adds,
                                                int device, Pages& shown,
                                                std::optional<transport::MirroredWords>& mirrored);
  Result<void> change_own(const char* call, transport::MirroredWords& words, std::size_t index, SignalOp op,
                          std::uint64_t value);
  Result<Ticket> atomic_at_home(const char* call, std::size_t offset, std::uint8_t code,
                                const transport::wire::AtomicBody& body, void* before);
  void read_adds(const char* call, transport::MirroredWords& words, std::size_t index);
  template <typename Begin>
  Result<std::uint64_t> await_own(const char* call, Begin&& begin);

  /// The same as `check_put`, without the words for what is wrong.
  bool is_good(const Put& request) const {
    const std::size_t rank = index_of(request.rank);
    if (rank >= parts_.size()) return false;
    const PeerPart& peer = parts_[rank];
    return request.offset <= peer.bytes && request.bytes <= peer.bytes - request.offset &&
           (request.source != nullptr || request.bytes == 0) &&
           (request.signal == nullptr || ((request.exposed_region != 0 || request.signal->index < peer.signals) &&
                                          request.signal->op <= SignalOp::set)) &&
           request.order <= Order::relaxed && (request.counter == nullptr || request.counter->index < counters_.size());
  }
  // operations.cc
  Result<Ticket> put_by_engine(const Put& request);
  Result<Ticket> put_bulk(const Put& request, const transport::SignalRecord* signal, bool device);
  Result<Ticket> get_by_engine(int rank, std::size_t offset, void* destination, std::size_t bytes);
  Result<void> check_put(const Put& request) const;
  Result<void> check_reach(const char* call, int rank, const transport::Flow& flow, const transport::Bulk& work) const;
  transport::Bulk bulk(int rank, std::size_t offset, void* local, std::size_t bytes);
  // vector.cc
  Result<void> check_blocks(const char* call, int rank, const Blocks& blocks, const SignalUpdate* signal) const;
  bool any_on_device(int rank, const Blocks& blocks) const;
  std::size_t copy_blocks(const DirectPart& part, const Blocks& blocks, bool put);
  Result<void> copy_blocks_at_home(const char* call, const Blocks& blocks, bool put);
  Result<void> register_blocks(const char* call, const transport::Flow& flow, const Blocks& blocks,
                               const transport::RemoteMemory& remote, std::span<transport::Block> batch);
  template <typename Attempt>
  Result<Ticket> submit_blocks(const char* call, int rank, const Blocks& blocks, bool device, bool put,
                               Attempt&& attempt);

  template <typename Attempt>
  Result<void> submit_bulk(const char* call, int rank, transport::Bulk work, Attempt&& attempt);
  template <typename Attempt>
  Result<void> submit(const char* call, int rank, Attempt&& attempt);

  WorldState& world_;
  WorldEngine& home_;
  transport::Engine& engine_;
  WindowUse use_;
  std::shared_ptr<Storage> storage_;
  std::shared_ptr<memory::Region> region_;
  transport::ExposedRegion exposed_region_;
  transport::ExposedRegion barrier_exposed_region_;
  // Sleeps of this process for which code and objects were read ahead. Relaxed: they publish nothing.
  std::atomic<std::uint64_t> code_touched_{0};
  std::atomic<std::uint64_t> route_touched_{0};
  transport::Sleepers* sleepers_ = nullptr;  ///< of this rank: in the heap, if there is one, for peers to see
  std::uint32_t exposed_region_id_ = 0;
  std::uint32_t barrier_exposed_region_id_ = 0;
  std::span<std::uint64_t> counters_;
  std::vector<PeerPart> parts_;  ///< of all ranks; of a lone window one
  int first_rank_ = 0;           ///< whose part is the first
  bool lone_ = false;            ///< made without the other ranks (lone_window.hpp)
  std::vector<std::unique_ptr<const DirectPart>> direct_parts_;
  bool has_direct_peers_ = false;
  bool own_signals_ = true;  ///< not the caller's
  Barrier barrier_;
  bool per_rank_ = false;
  bool native_atomics_ = false;
  bool may_relax_ = true;
  bool traced_ = engine_.trace().on();
  bool gpus_ = false;       ///< memory of GPUs may be brought
  bool on_device_ = false;  ///< this rank's data is
};

/// For the layers above.
class WindowAccess {
 public:
  static WindowState& state(const Window& window) { return *window.state_; }
  static Window make(std::unique_ptr<WindowState> state) { return Window(std::move(state)); }
};

}  // namespace railyard::window_detail
