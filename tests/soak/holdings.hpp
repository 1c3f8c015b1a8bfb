/// What a process holds of the system's: descriptors, mappings, shared-memory objects. For "nothing is left".
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace railyard::soak {

struct Holdings {
  std::multiset<std::string> descriptors;  ///< what each one leads to
  std::multiset<std::string> shared;       ///< mappings of shared-memory objects
  std::uint64_t mapped_bytes = 0;          ///< all mappings but the heap, which the allocator keeps as it likes

  static Holdings now() {
    Holdings held;
    // The listing itself has a descriptor open while it goes on: its link cannot be read afterwards and is left out.
    std::set<std::filesystem::path> links;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) links.insert(entry.path());
    for (const auto& link : links) {
      std::error_code gone;
      const auto target = std::filesystem::read_symlink(link, gone);
      if (!gone) held.descriptors.insert(kind_of(target.string()));
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) held.note_mapping(line);
    return held;
  }

  /// What is held now and was not before; empty: nothing. Mappings of `slack` bytes may come and go with the allocator.
  std::string beyond(const Holdings& before, std::uint64_t slack) const {
    std::string text;
    for (const auto* lists : {&descriptors, &shared}) {
      const auto& earlier = lists == &descriptors ? before.descriptors : before.shared;
      for (const std::string& one : std::set<std::string>(lists->begin(), lists->end())) {
        const auto count = lists->count(one), was = earlier.count(one);
        if (count > was) text += fmt::format(" {} x {}", count - was, one);
      }
    }
    if (mapped_bytes > before.mapped_bytes + slack) {
      text += fmt::format(" {} bytes of mappings", mapped_bytes - before.mapped_bytes);
    }
    return text;
  }

 private:
  /// "socket:[123]" is a socket whatever its number.
  static std::string kind_of(const std::string& target) { return target.substr(0, target.find(":[")); }

  void note_mapping(const std::string& line) {
    if (line.ends_with("[heap]")) return;
    const std::size_t dash = line.find('-');
    mapped_bytes += std::stoull(line.substr(dash + 1), nullptr, 16) - std::stoull(line, nullptr, 16);
    for (const char* place : {"/dev/shm/", "/memfd:", "/SYSV"}) {
      if (const auto at = line.find(place); at != std::string::npos) shared.insert(line.substr(at));
    }
  }
};

inline std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

/// A directory for the shared-memory objects of this process and those that it starts, and of nobody else: what other
/// jobs on the machine have is not looked at.
class SharedMemoryDirectory {
 public:
  SharedMemoryDirectory() {
    std::string pattern = "/dev/shm/railyard-soak-XXXXXX";
    if (const char* const made = ::mkdtemp(pattern.data())) path_ = made;
    ::setenv("RAILYARD_SHARED_MEMORY_DIRECTORY", path_.c_str(), 1);
  }
  ~SharedMemoryDirectory() {
    std::error_code failure;
    if (!path_.empty()) std::filesystem::remove_all(path_, failure);
  }
  SharedMemoryDirectory(const SharedMemoryDirectory&) = delete;
  SharedMemoryDirectory& operator=(const SharedMemoryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::set<std::string> objects() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) names.insert(entry.path().filename());
    return names;
  }

 private:
  std::string path_;
};

}  // namespace railyard::soak
