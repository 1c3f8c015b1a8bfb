/// Where the PEs of a test meet: memory that the test shares with the processes it forks. It plays the host's
/// bootstrap: allgather and barrier, and a barrier that the plugin knows nothing of.
#pragma once

#include <sched.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include "abi.hpp"

namespace railyard::nvshmem::test {

class Board {
 public:
  static constexpr int kMostPes = 8;
  static constexpr std::size_t kMostBytes = std::size_t{64} * 1024;

  static Board* make(int pes) {
    void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : new (memory) Board(pes);
  }

  int pes() const { return pes_; }
  /// 0, or the code of a bootstrap that has failed: too long, or the others do not come.
  int gather(int pe, const void* mine, void* all, std::size_t bytes) {
    if (bytes > kMostBytes) return 1;
    const std::uint32_t round = round_.load();
    auto& slots = slots_[round % 2];  // the last round's may still be being read
    if (bytes > 0) std::memcpy(slots[static_cast<std::size_t>(pe)].data(), mine, bytes);
    if (arrived_.fetch_add(1) + 1 == pes_) {
      arrived_ = 0;
      ++round_;
    }
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(200);
    while (round_.load() == round) {
      if (std::chrono::steady_clock::now() > until) return 2;
      ::sched_yield();
    }
    for (int each = 0; each < pes_ && bytes > 0; ++each) {
      std::memcpy(static_cast<std::byte*>(all) + static_cast<std::size_t>(each) * bytes,
                  slots[static_cast<std::size_t>(each)].data(), bytes);
    }
    ++gathers;
    return 0;
  }

  std::array<std::atomic<std::uint64_t>, 16> notes{};  ///< for a case's own use; zero at the start
  std::atomic<std::uint64_t> gathers{0};

 private:
  explicit Board(int pes) : pes_(pes) {}
  int pes_;
  std::atomic<int> arrived_{0};
  std::atomic<std::uint32_t> round_{0};
  std::array<std::array<std::array<std::byte, kMostBytes>, kMostPes>, 2> slots_{};
};

}  // namespace railyard::nvshmem::test
