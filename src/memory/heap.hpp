/// Heap: memory that other processes of the same user on the same machine can map.
///
/// It is an unnamed file in memory, found through its owner's descriptor: nothing has to be removed, and it is gone
/// with the last process that has it mapped, however that ends. Its size is sealed, so that no process can cut it short
/// under another one (which would be a signal at the next access).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/bytes.hpp"
#include "base/fd.hpp"
#include "base/identity.hpp"
#include "railyard/result.hpp"

namespace railyard::memory {

/// Where a heap is, as its owner tells its peers. Nothing of it is believed: see `Heap::map`.
struct HeapName {
  std::string boot;                 ///< which machine, and since when it has been up
  std::uint64_t pid_namespace = 0;  ///< where `pid` means the owner
  std::int32_t pid = 0;
  std::int32_t fd = -1;  ///< the owner's descriptor
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;  ///< of the whole file
  Identity identity;        ///< also in the file's last bytes

  /// Names this process alone, and no file.
  static HeapName of_process();
  /// Whether `pid` means the owner in this process too.
  Result<void> check_here() const;
  void write(ByteWriter& writer) const;
  static HeapName read(ByteReader& reader);
};

/// Zeroed memory of our own, or a peer's. Unmapped at the end.
class Heap {
 public:
  Heap() = default;
  /// Makes one of at least `bytes`.
  static Result<Heap> open(std::size_t bytes);
  /// Maps a peer's: only where the name is of this machine and process space, and the file behind it is the one that
  /// was named, sealed, and holds the identity. An error says what did not fit.
  static Result<Heap> map(const HeapName& name);

  Heap(Heap&& other) noexcept
      : file_(std::move(other.file_)), memory_(std::exchange(other.memory_, {})), name_(std::move(other.name_)) {}
  Heap& operator=(Heap&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(memory_, other.memory_);
    std::swap(name_, other.name_);
    return *this;
  }
  ~Heap();

  explicit operator bool() const noexcept { return !memory_.empty(); }
  /// What may be used: all but the identity.
  std::span<std::byte> memory() const noexcept { return memory_.first(memory_.size() - kTail); }
  const HeapName& name() const noexcept { return name_; }

 private:
  static constexpr std::size_t kTail = 64;  ///< a line at the end, for the identity
  Result<void> map_file(const Fd& file, std::size_t bytes);

  Fd file_;  ///< the owner's; a peer needs none once it has mapped
  std::span<std::byte> memory_;
  HeapName name_;
};

}  // namespace railyard::memory
