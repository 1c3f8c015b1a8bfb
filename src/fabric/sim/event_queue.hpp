/// What will happen when, in virtual time. Equal times run in the order they were scheduled, so a run is repeatable.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace railyard::fabric::sim {

enum class Happening : std::uint8_t {
  departure_control,  ///< subject: rail
  departure_data,     ///< subject: rail
  arrival,            ///< subject: packet
  landing,            ///< subject: packet, after it waited for the receiver's wire
  completion,         ///< subject: operation; its entry is due in the poster's queue
  link_news,          ///< subject: notice
  rail_change,        ///< subject: index in FabricOptions::changes
  death,              ///< subject: index in FabricOptions::deaths
  pause,              ///< subject: index in FabricOptions::pauses
  resumption,         ///< subject: process
  intrusion,          ///< subject: index in FabricOptions::intrusions
};

struct Scheduled {
  std::int64_t time = 0;
  std::uint64_t order = 0;
  std::uint32_t subject = 0;
  Happening happening = Happening::arrival;

  bool before(const Scheduled& other) const { return time != other.time ? time < other.time : order < other.order; }
};

/// A four-way heap: shallower than a binary one, and the four children share a cache line or two.
class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  std::size_t capacity_bytes() const { return heap_.capacity() * sizeof(Scheduled); }
  const Scheduled& next() const { return heap_.front(); }

  void push(std::int64_t time, Happening happening, std::uint32_t subject) {
    const Scheduled added{time, order_++, subject, happening};
    std::size_t hole = heap_.size();
    heap_.push_back(added);
    while (hole > 0) {
      const std::size_t parent = (hole - 1) / kWays;
      if (!added.before(heap_[parent])) break;
      heap_[hole] = heap_[parent];
      hole = parent;
    }
    heap_[hole] = added;
  }

  void pop() {
    const Scheduled moved = heap_.back();
    heap_.pop_back();
    if (heap_.empty()) return;
    std::size_t hole = 0;
    for (;;) {
      const std::size_t first = hole * kWays + 1;
      if (first >= heap_.size()) break;
      const std::size_t last = std::min(first + kWays, heap_.size());
      std::size_t least = first;
      for (std::size_t child = first + 1; child < last; ++child) {
        if (heap_[child].before(heap_[least])) least = child;
      }
      if (!heap_[least].before(moved)) break;
      heap_[hole] = heap_[least];
      hole = least;
    }
    heap_[hole] = moved;
  }

 private:
  static constexpr std::size_t kWays = 4;
  std::vector<Scheduled> heap_;
  std::uint64_t order_ = 0;
};

}  // namespace railyard::fabric::sim
