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
#include "railyard/operations.hpp"
#include "railyard/result.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

struct Flow;

/// Signals or counters in the memory of a GPU. The engine knows their values and only ever writes there. The host sees
/// a value once it is in the GPU's memory: what a host thread has seen, a kernel sees too.
///
/// Words that kernels change too have two halves, each with one kind of writer: the engine writes `words`, and kernels
/// add to `adds` by the GPU's atomics. What a word holds is their sum, so no add is lost to a write. The engine reads
/// `adds` when a host thread wants to know (`want`), and before it sets a word: what it writes from then on is less
/// what kernels had added by then.
class MirroredWords {
 public:
  /// `words`: in memory of `device`. `shown`: as many of the host's. `adds`: as many beside `words`, or none.
  MirroredWords(std::span<std::uint64_t> words, int device, std::span<std::uint64_t> shown,
                std::span<std::uint64_t> adds = {})
      : words_(words),
        device_(device),
        shown_(shown),
        adds_(adds),
        latest_(words.size()),
        written_(adds.size()),
        added_(adds.size()),
        base_(adds.size()),
        set_(adds.size()),
        wanted_(adds.size()) {}

  std::span<std::uint64_t> words() const { return words_; }
  std::span<std::uint64_t> adds() const { return adds_; }
  int device() const { return device_; }
  /// What every change of the engine's so far has made of them: written with the progress lock held.
  std::span<std::uint64_t> latest() { return latest_; }
  /// Changes `latest`. False: no such word.
  bool apply(std::uint64_t index, SignalOp op, std::uint64_t value);

  // ---- With kernels that add ----

  /// Whether the word was set since the last call: what kernels have added is to be read before it is written.
  bool take_set(std::size_t index) {
    if (set_.empty() || !set_[index]) return false;
    set_[index] = false;
    return true;
  }
  /// What kernels have added is known. `setting`: the word that is about to be written does without it.
  /// Whether it is news.
  bool learn(std::size_t index, std::uint64_t added, bool setting);
  /// What the engine's half is to be.
  std::uint64_t half(std::size_t index) const { return adds_.empty() ? latest_[index] : latest_[index] - base_[index]; }
  /// From any thread: a host thread wants to know what the word holds now.
  void want(std::size_t index) {
    // Relaxed: whoever finds it reads the GPU's memory after that.
    wanted_[index].store(true, std::memory_order_relaxed);
    any_wanted_.store(true, std::memory_order_relaxed);
  }
  bool any_wanted() const { return any_wanted_.load(std::memory_order_relaxed); }
  /// The first word that is wanted after those of the last call, and up to `most` from there on, wanted no more. No
  /// words: none is.
  struct Range {
    std::size_t first = 0;
    std::size_t words = 0;
  };
  Range take_wanted(std::size_t most);

  /// When the kernels' half is looked at for threads that wait: one look at a time. With the progress lock held.
  struct Looks {
    bool under_way = false;
    std::int64_t began = 0;
    std::int64_t next = 0;         ///< not before
    std::int64_t idle_since = 0;   ///< looks have found nothing new
    std::uint64_t words_done = 0;  ///< by the engine, when it began
  } looks;

  /// The engine's half of the word is in the GPU's memory. Release: what came before is visible to whoever reads it.
  void show(std::size_t index, std::uint64_t value) {
    if (!adds_.empty()) value = (written_[index] = value) + added_[index];
    std::atomic_ref<std::uint64_t>(shown_[index]).store(value, std::memory_order_release);
  }

 private:
  std::span<std::uint64_t> words_;
  int device_;
  std::span<std::uint64_t> shown_;
  std::span<std::uint64_t> adds_;
  std::vector<std::uint64_t> latest_;
  std::vector<std::uint64_t> written_;  ///< the engine's halves that are there
  std::vector<std::uint64_t> added_;    ///< what was last seen of the kernels'
  std::vector<std::uint64_t> base_;     ///< what kernels had added when the word was set
  std::vector<bool> set_;
  std::vector<std::atomic<bool>> wanted_;
  std::atomic<bool> any_wanted_{false};
  std::size_t looked_up_to_ = 0;
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

  /// Opens what changes there need; the first call of all. Before kernels run: the first copy of a GPU may wait for
  /// those that do.
  Result<void> prepare(int device);
  /// Begins an atomic on a word that lies where `find_word` says.
  void change(std::byte* word, int device, std::uint8_t code, const wire::AtomicBody& body, Waiter waiter);
  /// Begins to store eight bytes, with nobody waiting, if that can be at once. Whatever is begun on that GPU after it
  /// is over after it.
  bool store_ahead(std::byte* to, int device, std::uint64_t value);
  /// Begins to write the latest value of a word. Changes that come while a write of the same word is under way share
  /// the next one.
  void write(MirroredWords& words, std::size_t index, Waiter waiter);
  /// Begins to read what kernels have added to a word; then the host sees it.
  void read(MirroredWords& words, std::size_t index, Waiter waiter);
  /// Words that kernels add to: they are read when they are wanted, until `unwatch`.
  void watch(MirroredWords& words) { watched_.push_back(&words); }
  void unwatch(MirroredWords& words) { std::erase(watched_, &words); }

  /// Nothing is under way or wanted, and everybody has been told.
  bool empty() const { return !prepared_ || (waiting_.size() + begun_.size() == 0 && ended_.empty() && !any_wanted()); }
  /// Moves changes on. `now`: nanoseconds.
  void advance(std::int64_t now);
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
    bool refresh = false;   ///< nothing is written: what kernels have added to `index` is read
    std::size_t words = 1;  ///< from `index` on, so many
    bool look = false;      ///< a refresh for threads that wait
    int device = -1;
    std::byte* word = nullptr;
    std::uint8_t code = 0;
    wire::AtomicBody body;
    MirroredWords* mirrored = nullptr;  ///< `index` of these; null: an atomic
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
  bool any_wanted() const {
    for (const MirroredWords* words : watched_)
      if (words->any_wanted()) return true;
    return false;
  }
  void begin_waiting();
  void begin_look(MirroredWords& words);
  void end_look(MirroredWords& words, bool news);
  bool begin(Change& change);
  bool begin_read(Change& change);
  bool begin_write(Change& change, std::uint64_t value, bool with_next = false);
  /// Whether the change is over.
  bool step(Change& change, Outcome& outcome);
  void end(Change& change, Outcome outcome);

  bool prepared_ = false;  ///< most processes have no words in GPU memory: a pass is not to pay for them
  fabric::DeviceCopies copies_{1};
  Changes waiting_;  ///< in the order they came
  Changes begun_;
  std::unordered_set<std::uintptr_t> busy_;               ///< lines of those begun
  std::unordered_map<const std::byte*, Change*> writes_;  ///< those waiting, by word
  std::vector<MirroredWords*> watched_;                   ///< kernels add to them
  std::vector<std::byte*> pinned_;                        ///< a word each, free
  std::vector<std::byte*> pinned_looks_;                  ///< a look each, free
  std::int64_t now_ = 0;
  std::uint64_t words_done_ = 0;  ///< changes that have ended, looks apart
  std::vector<End> ended_;
};

}  // namespace railyard::transport
