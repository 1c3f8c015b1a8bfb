/// What the streams over other libraries share: numbered messages whose bytes follow from their number, and a file with
/// a line "NANOSECONDS BYTES" for every 5 ms in which something was verified. The file is complete at any moment: a job
/// that hangs is killed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace peers {

constexpr std::size_t kMessage = 256 * 1024;
constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ULL;

inline std::int64_t wall_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// The message: its number, when it was sent, and bytes that follow from its number.
inline void fill(std::byte* memory, std::uint64_t number) {
  const std::int64_t now = wall_clock_ns();
  std::memcpy(memory, &number, 8);
  std::memcpy(memory + 8, &now, 8);
  std::uint64_t word = number;
  for (std::size_t at = 16; at < kMessage; at += 8) {
    word += kStep;
    std::memcpy(memory + at, &word, 8);
  }
}

/// Whether its bytes fit its number.
inline bool is_right(const std::byte* memory) {
  std::uint64_t word;
  std::memcpy(&word, memory, 8);
  std::uint64_t difference = 0;
  for (std::size_t at = 16; at < kMessage; at += 8) {
    word += kStep;
    std::uint64_t held;
    std::memcpy(&held, memory + at, 8);
    difference |= held ^ word;
  }
  return difference == 0;
}

class TimeLine {
 public:
  explicit TimeLine(const char* path) : file_(std::fopen(path, "w")) {}
  ~TimeLine() {
    if (file_ != nullptr) std::fclose(file_);
  }
  TimeLine(const TimeLine&) = delete;
  TimeLine& operator=(const TimeLine&) = delete;

  void add(std::size_t bytes) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto slice = std::chrono::duration_cast<std::chrono::milliseconds>(now).count() / kSliceMs;
    if (slice != slice_) flush();
    slice_ = slice;
    bytes_ += bytes;
  }
  void flush() {
    if (bytes_ == 0 || file_ == nullptr) return;
    std::fprintf(file_, "%lld %zu\n", static_cast<long long>(slice_) * kSliceMs * 1'000'000, bytes_);
    std::fflush(file_);
    bytes_ = 0;
  }

 private:
  static constexpr long long kSliceMs = 5;
  std::FILE* file_;
  long long slice_ = 0;
  std::size_t bytes_ = 0;
};

/// Which messages have come.
class Arrivals {
 public:
  void note(const std::byte* memory) {
    if (!is_right(memory)) {
      ++corrupt_;
      return;
    }
    std::uint64_t number;
    std::int64_t sent;
    std::memcpy(&number, memory, 8);
    std::memcpy(&sent, memory + 8, 8);
    longest_ns_ = std::max(longest_ns_, wall_clock_ns() - sent);
    if (number >= seen_.size()) seen_.resize(number + 1);
    doubled_ += seen_[number] ? 1 : 0;
    come_ += seen_[number] ? 0 : 1;
    seen_[number] = true;
  }
  std::uint64_t come() const { return come_; }
  void print(std::uint64_t sent) const {
    std::printf(
        "sent %llu, arrived %llu, missing %lld, double %llu, corrupt %llu; longest from sending to arrival %.3f s\n",
        static_cast<unsigned long long>(sent), static_cast<unsigned long long>(come_),
        static_cast<long long>(sent - come_), static_cast<unsigned long long>(doubled_),
        static_cast<unsigned long long>(corrupt_), static_cast<double>(longest_ns_) * 1e-9);
  }

 private:
  std::vector<bool> seen_;
  std::uint64_t come_ = 0;
  std::uint64_t doubled_ = 0;
  std::uint64_t corrupt_ = 0;
  std::int64_t longest_ns_ = 0;
};

}  // namespace peers
