/// LatencySampler: how long operations take, of one in 64 and one at a time, so that nobody else pays for it.
/// With the progress lock held.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "transport/submitter.hpp"

namespace railyard::transport {

struct Flow;

class LatencySampler {
 public:
  enum class Kind : std::uint8_t { put, get, atomic, message };
  using Histogram = std::atomic<std::uint64_t>;

  void start(Clock* clock, const std::array<Histogram*, 4>& histograms) {
    clock_ = clock;
    histograms_ = histograms;
    next_ = 1;
  }
  void stop() { clock_ = nullptr; }
  /// Every operation is due: somebody else wants to see each of them.
  void want_all() {
    every_ = 1;
    next_ = 1;
  }

  /// Whether the operation that is being submitted is the one to sample: asked once for each.
  bool due() { return --next_ == 0; }
  /// An operation of the flow's sequence.
  void submitted(const Flow& flow, std::uint64_t number, Kind kind, const Submitter& submitter) {
    begin(sequenced_, {&flow, number, 0, kind, 0, &submitter});
  }
  void completed(const Flow& flow, std::uint64_t number) {
    if (sequenced_.what == &flow && number >= sequenced_.number) [[unlikely]]
      end(sequenced_, &flow);
  }
  /// One that completes out of sequence.
  void took(std::uint32_t slot, const void* slots, Kind kind, const Submitter& submitter) {
    begin(in_slot_, {slots, slot, 0, kind, 0, &submitter});
  }
  /// `flow`: whose it was.
  void ended(std::uint32_t slot, const Flow* flow) {
    if (in_slot_.what != nullptr && in_slot_.number == slot) [[unlikely]]
      end(in_slot_, flow);
  }

  /// It will never end.
  void forget(std::uint32_t slot) {
    if (in_slot_.number == slot) in_slot_.what = nullptr;
  }
  /// It goes: what is under way of it is not its any more.
  void forget(const Submitter& submitter) {
    for (Sample* sample : {&sequenced_, &in_slot_})
      if (sample->submitter == &submitter) sample->submitter = nullptr;
  }

  /// Now and then: the next one is sampled, however few there are; and what did not end in all that time never will.
  void refresh() {
    for (Sample* sample : {&sequenced_, &in_slot_})
      if (++sample->refreshed > kPatience) sample->what = nullptr;
    if (clock_ != nullptr) next_ = 1;
  }

 private:
  static constexpr std::uint32_t kEvery = 64;
  static constexpr std::uint32_t kPatience = 1000;
  struct Sample {
    const void* what = nullptr;  ///< compared, never followed; null: none under way
    std::uint64_t number = 0;
    std::int64_t since = 0;
    Kind kind = Kind::put;
    std::uint32_t refreshed = 0;
    const Submitter* submitter = nullptr;
  };

  // Out of the way: what calls these is short, and mostly does not.
  [[gnu::noinline, gnu::cold]] void begin(Sample& sample, const Sample& wanted);
  [[gnu::noinline, gnu::cold]] void end(Sample& sample, const Flow* flow);

  Clock* clock_ = nullptr;  ///< null: nothing is sampled
  std::uint32_t next_ = 0;
  std::uint32_t every_ = kEvery;
  Sample sequenced_;
  Sample in_slot_;
  std::array<Histogram*, 4> histograms_{};
};

}  // namespace railyard::transport
