/// What the threads of this process did on peers' memory by themselves, by way of one window. Counted without a locked
/// instruction, which would wait for the stores before it: each of the first threads has a line of its own.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "railyard/world.hpp"
#include "transport/pace.hpp"

namespace railyard {

class DirectUse {
 public:
  enum class What : std::uint8_t { put, get, atomic };

  struct alignas(64) Line {
    transport::Pace pace;
    std::array<std::atomic<std::uint64_t>, 3> operations{};  ///< by What
    std::array<std::atomic<std::uint64_t>, 3> bytes{};
  };

  /// The calling thread's.
  [[gnu::always_inline]] Line& mine() {
    if (line_of_thread == kUnknown) line_of_thread = next_line();
    return lines_[line_of_thread];
  }
  /// The same where no other thread counts on it, and this one has counted before; null: not so.
  [[gnu::always_inline]] Line* mine_alone() { return line_of_thread < kLines - 1 ? &lines_[line_of_thread] : nullptr; }
  /// Counts one operation of the calling thread, which has a line of its own.
  [[gnu::always_inline]] static void count_alone(Line& line, What what, std::size_t bytes) {
    const auto index = static_cast<std::size_t>(what);
    add_alone(line.operations[index], 1);
    add_alone(line.bytes[index], bytes);
  }
  /// Counts one operation of the calling thread.
  [[gnu::always_inline]] void count(Line& line, What what, std::size_t bytes) {
    const auto index = static_cast<std::size_t>(what);
    add(line, line.operations[index], 1);
    if (bytes != 0) add(line, line.bytes[index], bytes);
  }
  void add_to(WorldStatistics& statistics) const;

 private:
  static constexpr std::size_t kLines = 64;
  static constexpr std::size_t kUnknown = SIZE_MAX;
  static std::size_t next_line();
  static inline std::atomic<std::size_t> threads{0};  ///< that have counted anywhere
  // Initial-exec: found by one load; the other models call a function for it.
  [[gnu::tls_model("initial-exec")]] static inline thread_local std::size_t line_of_thread = kUnknown;

  [[gnu::always_inline]] void add(const Line& line, std::atomic<std::uint64_t>& sum, std::uint64_t change) {
    if (&line == &lines_.back()) {
      sum.fetch_add(change, std::memory_order_relaxed);  // all later threads count here
    } else {
      add_alone(sum, change);
    }
  }
  [[gnu::always_inline]] static void add_alone(std::atomic<std::uint64_t>& sum, std::uint64_t change) {
    sum.store(sum.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }

  std::array<Line, kLines> lines_;
};

}  // namespace railyard
