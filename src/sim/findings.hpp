/// What a run found wrong, counted by kind, with the first few in words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace railyard::sim {

enum class Finding : std::uint8_t {
  lost,       ///< an operation that never took effect or never completed
  doubled,    ///< one that took effect more than once
  early,      ///< a signal, completion or answer before the bytes it stands for
  ghost,      ///< bytes that changed after their operation was over and its place had been given back
  corrupt,    ///< wrong bytes or a wrong value
  violation,  ///< a broken rule of the rails' contract: a bad key, memory left registered
};
inline constexpr std::size_t kFindings = 6;

const char* to_string(Finding finding);

class Findings {
 public:
  static constexpr std::size_t kMostNotes = 8;

  void add(Finding finding, std::string note) {
    ++counts_[static_cast<std::size_t>(finding)];
    if (notes_.size() < kMostNotes) notes_.push_back(std::string(to_string(finding)) + ": " + std::move(note));
  }
  void add(const Findings& more) {
    for (std::size_t i = 0; i < kFindings; ++i) counts_[i] += more.counts_[i];
    for (const std::string& note : more.notes_) {
      if (notes_.size() < kMostNotes) notes_.push_back(note);
    }
  }
  std::uint64_t count(Finding finding) const { return counts_[static_cast<std::size_t>(finding)]; }
  bool clean() const {
    for (const std::uint64_t count : counts_) {
      if (count != 0) return false;
    }
    return true;
  }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::array<std::uint64_t, kFindings> counts_{};
  std::vector<std::string> notes_;
};

inline const char* to_string(Finding finding) {
  switch (finding) {
    case Finding::lost:
      return "lost";
    case Finding::doubled:
      return "doubled";
    case Finding::early:
      return "early";
    case Finding::ghost:
      return "ghost";
    case Finding::corrupt:
      return "corrupt";
    case Finding::violation:
      return "violation";
  }
  return "?";
}

}  // namespace railyard::sim
