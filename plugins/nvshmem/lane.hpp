/// Lane: what one kind of caller uses, the host's threads or its proxy. A world of its own, so that neither kind waits
/// for the other's operations, with the windows that both sides have opened.
#pragma once

#include <array>
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "handle.hpp"
#include "railyard/window.hpp"
#include "railyard/world.hpp"

namespace railyard::nvshmem {

/// A place in a PE's memory, as the host names it.
struct Remote {
  int pe = 0;
  const abi::MemDesc* memory = nullptr;
};

/// Any thread may call any of it.
class Lane {
 public:
  /// Collective. `number`: which of a handle's descriptions is this lane's.
  static Result<std::unique_ptr<Lane>> open(std::size_t number, const Settings& settings, Bootstrap& bootstrap);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Makes memory reachable for peers under this number, and ready for use here. Returns its description.
  Result<std::vector<std::byte>> expose(std::uint32_t registration, std::span<std::byte> memory);
  /// Makes memory ready for use here alone.
  Result<void> keep(std::span<std::byte> memory) { return world_.remember(memory); }
  /// The end of both.
  void end(std::uint32_t registration, std::span<std::byte> memory);

  Result<void> put(const Remote& to, const void* source, std::size_t bytes);
  /// The value is taken at the call.
  Result<void> put_value(const Remote& to, const void* value, std::size_t bytes);
  Result<void> get(const Remote& from, void* destination, std::size_t bytes);

  struct Atomic {
    AtomicOp op = AtomicOp::add;
    std::size_t bytes = 8;
    std::uint64_t operand = 0;
    std::uint64_t compare = 0;
    void* result = nullptr;  ///< an abi::FetchResult here, filled when the value is back; null: none is wanted
    std::uint64_t flag = 0;
  };
  Result<void> atomic(const Remote& on, const Atomic& request);

  Result<void> fence(int pe);
  /// Free when nothing was submitted to the PE since the last one.
  Result<void> quiet(int pe);
  /// One bounded pass, and some of the values that are back.
  Result<void> progress();

  World& world() { return world_; }

 private:
  struct Target {
    Window* window = nullptr;
    std::size_t offset = 0;
  };
  /// An atomic whose value is not back yet.
  struct Fetch {
    std::uint64_t value = 0;
    Window* window = nullptr;
    Ticket ticket{};
    int pe = 0;
    void* result = nullptr;
    std::uint64_t flag = 0;
  };
  /// A PE's memory that was used before: its handle was checked then, and its beginning tells it from all others.
  struct Known {
    std::array<std::byte, kHandleHeader> handle{};  ///< its beginning
    std::uint64_t address = 0;
    Window window;
  };
  /// What is known of a PE.
  struct Peer {
    static constexpr std::size_t kRecent = 4;
    std::atomic<Window*> any{nullptr};  ///< a window of that PE: quiet and fence are about all of them
    std::atomic<bool> submitted{false};
    std::atomic<Known*> recent[kRecent] = {};  ///< by registration; found without the lock
  };

  Lane(std::size_t number, World world);
  Result<Target> find(const Remote& place);
  /// The long way: reads the whole handle, and opens the window if it is the first time.
  Result<Target> look_up(const Remote& place);
  Result<void> submitted(int pe, Result<Ticket> ticket);
  bool exists(int pe) const { return pe >= 0 && pe < pes_; }
  Error no_such_pe(int pe) const;
  /// Hands over values that are back: of this PE (all of them), or of any (some).
  Result<void> deliver(int pe);

  const std::size_t number_;
  World world_;
  const int pes_;
  std::unique_ptr<Peer[]> peers_;
  std::mutex mutex_;  ///< of the two tables; their windows stay where they are
  std::map<std::uint32_t, Window> own_;
  std::map<std::pair<int, std::uint32_t>, Known> imported_;  ///< until the end of the lane
  std::mutex fetches_mutex_;
  std::list<Fetch> fetches_;
  std::atomic<std::size_t> fetching_{0};  ///< how many; read without the lock to find out that there is nothing to do
};

}  // namespace railyard::nvshmem
