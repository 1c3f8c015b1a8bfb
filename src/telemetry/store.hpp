/// Store: the telemetry of this process: the mapped file that its records live in.
///
/// Never a reason for a program to fail: where no file can be made, the records lie in plain memory and nobody else
/// sees them. The file goes when the last context is closed, or at the latest when the process exits; after a crash it
/// stays for a post-mortem, until it is an hour old or there are many (see `clean`).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "railyard/settings.hpp"
#include "telemetry/layout.hpp"
#include "telemetry/process_file.hpp"
#include "telemetry/schema.hpp"

namespace railyard::telemetry {

class Store;

/// A thing's values. Holds nothing by default: then every call is for nothing. Its owner is the only writer.
class Record {
 public:
  Record() = default;
  Record(Record&& other) noexcept
      : store_(std::move(other.store_)), entry_(std::exchange(other.entry_, nullptr)), words_(other.words_) {}
  Record& operator=(Record&& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(entry_, other.entry_);
    std::swap(words_, other.words_);
    return *this;
  }
  ~Record();

  explicit operator bool() const { return entry_ != nullptr; }
  /// For a field of one word. Relaxed: a value says nothing about any other.
  void set(std::uint32_t field, std::uint64_t value) {
    if (entry_ != nullptr) words_[field].store(value, std::memory_order_relaxed);
  }
  void set(std::uint32_t field, double value) { set(field, std::bit_cast<std::uint64_t>(value)); }
  void add(std::uint32_t field, std::uint64_t value) {
    if (entry_ != nullptr) words_[field].fetch_add(value, std::memory_order_relaxed);
  }
  /// The words of a histogram. The first histogram is the field `first`, its place in the group; all others follow,
  /// with the same buckets.
  template <typename Kept = Buckets>
  std::atomic<std::uint64_t>* histogram(std::uint32_t field, std::uint32_t first) {
    return entry_ == nullptr ? nullptr : words_ + first + (field - first) * Kept::kWords;
  }

 private:
  friend class Store;
  std::shared_ptr<Store> store_;
  RecordEntry* entry_ = nullptr;
  std::atomic<std::uint64_t>* words_ = nullptr;
};

/// One more value in a histogram, by its one writer.
template <typename Kept = Buckets>
void count_in(std::atomic<std::uint64_t>* histogram, std::uint64_t value) {
  const auto add = [](std::atomic<std::uint64_t>& word, std::uint64_t change) {
    word.store(word.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  };
  add(histogram[0], 1);
  add(histogram[1], value);
  add(histogram[2 + Kept::of(value)], 1);
}

using Labels = std::vector<std::pair<std::string_view, std::string>>;

class Store : public std::enable_shared_from_this<Store> {
 public:
  /// The process's one store, made with its first context. Null: telemetry is off, and no summary is asked for.
  static std::shared_ptr<Store> of_process(const Settings& settings);
  /// One of its own, for tests.
  static std::shared_ptr<Store> open(const std::string& directory);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Holds nothing where there is no room left; that is counted.
  Record add(Group group, const Labels& labels);
  void set_rank(int rank, int size);
  /// Values were brought up to date.
  void published();
  /// A number for a context: none comes twice in a process.
  std::uint32_t next_context() { return contexts_.fetch_add(1, std::memory_order_relaxed); }

  /// Empty: the records lie in plain memory.
  const std::string& path() const { return file_.path(); }
  /// What a reader would see now.
  std::vector<std::byte> copy() const;

  /// For the end of the process.
  void remove_file() { file_.remove(); }

 private:
  friend class Record;
  Store() = default;
  void fill();
  void give_back(RecordEntry& entry);
  Header& header() const { return *reinterpret_cast<Header*>(file_.data()); }
  RecordEntry& entry(std::uint32_t index) const;
  std::atomic<std::uint64_t>* words(std::uint32_t at) const;

  ProcessFile file_;
  std::atomic<std::uint32_t> contexts_{0};

  mutable std::mutex mutex_;  ///< of the entries: who has which
  std::uint32_t entries_ = 0;
  std::uint32_t words_used_ = 0;
  std::vector<std::vector<RecordEntry*>> free_;  ///< by group
};

}  // namespace railyard::telemetry
