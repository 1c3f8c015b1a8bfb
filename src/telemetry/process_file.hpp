/// ProcessFile: memory that a process writes and others read as a file, also after it was killed. Its name says whose
/// it is, a lock on it says that its owner lives, and a child of a fork never writes to its parent's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/fd.hpp"
#include "railyard/result.hpp"

namespace railyard::telemetry {

class ProcessFile {
 public:
  ProcessFile() = default;
  /// Takes the mapping away. The file stays unless it is removed.
  ~ProcessFile();
  ProcessFile(const ProcessFile&) = delete;
  ProcessFile& operator=(const ProcessFile&) = delete;

  /// Maps a new file "PREFIX pid . start time" of that length, private to its user and zeroed.
  Result<void> create(const std::string& directory, const char* prefix, std::size_t bytes);
  /// The same without a file: nobody else sees it. False: no memory.
  bool map_memory(std::size_t bytes);

  std::byte* data() const { return memory_; }
  std::size_t size() const { return bytes_; }
  /// Empty: there is no file, or it is the parent's.
  const std::string& path() const { return path_; }
  /// False in a child of the process that made it.
  bool ours() const;
  void remove();

  /// Held across every fork: what is guarded by it is whole in the child.
  static std::mutex& mutex();

 private:
  class Mapped;
  void enlist();
  void leave_to_parent();

  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  Fd file_;  ///< holds the lock that says that its owner lives
  std::string path_;
  std::int64_t process_ = 0;
};

}  // namespace railyard::telemetry
