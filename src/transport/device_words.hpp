/// DeviceWords: words in the memory of GPUs that this process changes, for its peers and for itself. Memory that the
/// processor cannot touch has no locked instructions: a change is a read by the copy engine, the change, and one write.
/// One owner makes that an atomic: whoever holds the progress lock makes every change, one at a time to each word.
///
/// Nothing here waits for the device: changes are begun, and `advance` finds out which are over. They have a queue of
/// their own on each GPU, on which nothing but words travels between host and device. So they never stand behind a copy
/// within the GPU, which may itself wait for kernels that wait for one of these words.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fabric/device_copies.hpp"
#include "railyard/result.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

struct Flow;

/// Signals or counters in the memory of a GPU. The engine knows their values and only ever writes there. The host sees
/// a value once it is in the GPU's memory: what a host thread has seen, a kernel sees too.
class MirroredWords {
 public:
  /// `words`: in memory of `device`. `shown`: as many of the host's.
  MirroredWords(std::span<std::uint64_t> words, int device, std::span<std::uint64_t> shown)
      : words_(words), device_(device), shown_(shown), latest_(words.size()) {}

  std::span<std::uint64_t> words() const { return words_; }
  int device() const { return device_; }
  /// What every change so far has made of them: written with the progress lock held.
  std::span<std::uint64_t> latest() { return latest_; }
  /// The word of that number is in the GPU's memory. Release: what came before is visible to whoever reads it.
  void show(std::size_t index, std::uint64_t value) const {
    std::atomic_ref<std::uint64_t>(shown_[index]).store(value, std::memory_order_release);
  }

 private:
  std::span<std::uint64_t> words_;
  int device_;
  std::span<std::uint64_t> shown_;
  std::vector<std::uint64_t> latest_;
};

/// How a change of this process's own ended, for the thread that waits for it.
struct OwnWord {
  std::atomic<bool> over{false};  ///< release: the rest is there
  bool good = false;
  std::uint64_t before = 0;
};

/// With the progress lock held.
class DeviceWords {
 public:
  /// Who is told. Both may be null: nobody.
  struct Waiter {
    Flow* flow = nullptr;
    std::shared_ptr<OwnWord> own = {};
  };
  enum class Outcome : std::uint8_t { done, unknown_code, failed };
  struct End {
    Waiter waiter;
    Outcome outcome = Outcome::done;
    std::uint64_t before = 0;
  };

  /// Opens what changes there need. Before kernels run: the first copy of a GPU may wait for those that do.
  Result<void> prepare(int device);
  /// Begins an atomic on a word that lies where `find_word` says.
  void change(std::byte* word, int device, std::uint8_t code, const wire::AtomicBody& body, Waiter waiter);
  /// Begins to store eight bytes, with nobody waiting, if that can be at once. Whatever is begun on that GPU after it
  /// is over after it.
  bool store_ahead(std::byte* to, int device, std::uint64_t value);
  /// Begins to write the latest value of a word. Changes that come while a write of the same word is under way share
  /// the next one.
  void write(MirroredWords& words, std::size_t index, Waiter waiter);

  /// Nothing is under way, and everybody has been told.
  bool empty() const { return waiting_.empty() && begun_.empty() && ended_.empty(); }
  /// Moves changes on.
  void advance();
  /// What has ended since the last call.
  std::vector<End> take_ended() { return std::exchange(ended_, {}); }
  /// Until nothing is under way in this memory: a few trips to the GPU.
  void settle(std::span<const std::byte> memory);
  /// That flow is not told any more.
  void forget(const Flow& flow);

 private:
  enum class Step : std::uint8_t { waiting, reading, writing };
  struct Change {
    Step step = Step::waiting;
    int device = -1;
    std::byte* word = nullptr;
    std::uint8_t code = 0;
    wire::AtomicBody body;
    MirroredWords* mirrored = nullptr;  ///< a write of `index`; null: an atomic
    std::size_t index = 0;
    std::uint64_t value = 0;
    std::uint64_t before = 0;
    std::byte* pinned = nullptr;
    fabric::DeviceCopies::Ticket ticket;
    std::vector<Waiter> waiters;
  };
  using Changes = std::list<Change>;

  /// The eight bytes around a word: no two changes of them are under way at a time.
  static std::uintptr_t line_of(const std::byte* word) {
    return reinterpret_cast<std::uintptr_t>(word) & ~std::uintptr_t{7};
  }
  void begin_waiting();
  bool begin(Change& change);
  bool begin_write(Change& change, std::uint64_t value, bool with_next = false);
  /// Whether the change is over.
  bool step(Change& change, Outcome& outcome);
  void end(Change& change, Outcome outcome);
  std::byte* take_pinned();

  fabric::DeviceCopies copies_{1};
  Changes waiting_;  ///< in the order they came
  Changes begun_;
  std::unordered_set<std::uintptr_t> busy_;               ///< lines of those begun
  std::unordered_map<const std::byte*, Change*> writes_;  ///< those waiting, by word
  std::vector<std::byte*> pinned_;                        ///< eight bytes each, free
  std::vector<End> ended_;
};

}  // namespace railyard::transport
