// The checks must be able to fail: each is shown right and wrong memory, signals and words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "sim/buffers.hpp"
#include "sim/flow_model.hpp"
#include "sim/pattern.hpp"
#include "sim/signal_model.hpp"
#include "sim/word_model.hpp"

namespace railyard::sim {
namespace {

TEST(SimPattern, KnowsItsOwnBytes) {
  std::vector<std::byte> bytes(1003);
  const Pattern pattern(7, 1, 42);
  pattern.fill(bytes);
  EXPECT_TRUE(pattern.matches(bytes));
  EXPECT_TRUE(pattern.matches(std::span(bytes).subspan(16), 16));
  for (std::size_t i = 0; i < bytes.size(); i += 97) EXPECT_EQ(bytes[i], pattern.at(i));
  EXPECT_FALSE(Pattern(7, 1, 43).matches(bytes));
  EXPECT_FALSE(Pattern(7, 2, 42).matches(bytes));
  EXPECT_FALSE(Pattern(8, 1, 42).matches(bytes));
  bytes[1002] ^= std::byte{1};
  EXPECT_FALSE(pattern.matches(bytes));
}

TEST(SimBuffers, AreSpoiltWhenGivenBackAndGuarded) {
  Buffers buffers(false);
  const std::uint32_t buffer = buffers.take(2'000);
  const auto memory = buffers.memory(buffer);
  EXPECT_GE(memory.size(), 2'000U);
  std::ranges::fill(memory, std::byte{1});
  EXPECT_TRUE(buffers.intact_around(buffer));
  *(memory.data() + memory.size()) = std::byte{1};
  EXPECT_FALSE(buffers.intact_around(buffer));
  buffers.give(buffer, 2'000);
  EXPECT_EQ(memory[0], Buffers::kSpoilt);
  EXPECT_EQ(buffers.take(Layout::kLargeBytes), Buffers::kNone);
}

/// One flow of rank 1 to rank 0 over a window's memory that the test writes to in the network's place.
struct FlowBed {
  FlowBed() : layout(2, false), memory(layout.bytes()), flow(1, 0, layout, memory, findings) {}

  FlowModel::PutId put(std::size_t bytes, bool relaxed = false) {
    slot = flow.take_slot(bytes, random);
    return put_again(bytes, relaxed);
  }
  FlowModel::PutId put_again(std::size_t bytes, bool relaxed = false) {
    pattern = Pattern(1, 1, ++operation);
    return flow.put(slot, bytes, pattern, relaxed, "put", operation);
  }
  std::span<std::byte> place() { return std::span(memory).subspan(flow.slot_offset(slot)); }
  void land(std::size_t bytes) { pattern.fill(place().first(bytes)); }
  std::uint64_t count(Finding finding) const { return findings.count(finding); }

  Layout layout;
  std::vector<std::byte> memory;
  Findings findings;
  FlowModel flow;
  Random random{3};
  Pattern pattern;
  std::uint32_t slot = 0;
  std::uint64_t operation = 0;
};

TEST(SimFlowModel, BytesThatAreThereInTimeAreFine) {
  FlowBed bed;
  bed.put(300);
  const auto signal = bed.flow.mark();
  bed.land(300);
  bed.flow.confirm(signal, "a signal");
  bed.flow.finish();
  EXPECT_TRUE(bed.findings.clean());
  EXPECT_TRUE(bed.flow.all_visible());
}

TEST(SimFlowModel, ASignalBeforeTheBytesIsEarly) {
  FlowBed bed;
  bed.put(300);
  const auto signal = bed.flow.mark();
  bed.land(299);
  bed.flow.confirm(signal, "a signal");
  EXPECT_EQ(bed.count(Finding::early), 1U);
  EXPECT_EQ(bed.count(Finding::corrupt), 0U);
  EXPECT_THAT(bed.findings.notes().front(),
              testing::HasSubstr("byte 299 is still the old one at the evidence of a signal"));
}

TEST(SimFlowModel, ASignalCoversOnlyWhatCameBefore) {
  FlowBed bed;
  const auto signal = bed.flow.mark();
  bed.put(300);
  bed.flow.confirm(signal, "a signal");
  EXPECT_TRUE(bed.findings.clean());
}

TEST(SimFlowModel, WrongBytesAreCorrupt) {
  FlowBed bed;
  const auto id = bed.put(300);
  bed.land(300);
  bed.place()[100] ^= std::byte{1};
  bed.flow.confirm_put(id, "its completion");
  EXPECT_EQ(bed.count(Finding::corrupt), 1U);
}

TEST(SimFlowModel, BytesBesideTheSlotAreCorrupt) {
  FlowBed bed;
  const auto id = bed.put(300);
  bed.land(300);
  bed.memory[bed.flow.slot_offset(bed.slot) - 1] = std::byte{0};
  bed.flow.confirm_put(id, "its completion");
  EXPECT_EQ(bed.count(Finding::corrupt), 1U);
}

TEST(SimFlowModel, ARelaxedPutIsDueOnlyBehindAFence) {
  FlowBed bed;
  bed.put(300, true);
  bed.flow.confirm(bed.flow.mark(), "a signal without a fence");
  EXPECT_TRUE(bed.findings.clean());
  bed.flow.fence();
  bed.flow.confirm(bed.flow.mark(), "a signal behind a fence");
  EXPECT_EQ(bed.count(Finding::early), 1U);
}

TEST(SimFlowModel, BehindAFenceTheLaterPutWins) {
  for (const bool right : {true, false}) {
    FlowBed bed;
    const auto first = bed.put(300);
    const Pattern old = bed.pattern;
    bed.flow.fence();
    const auto second = bed.put_again(300);
    bed.land(150);  // half of the second is there when the first is seen to be complete
    old.fill(bed.place().first(0));
    std::vector<std::byte> image(300);
    old.fill(image);
    std::copy(image.begin() + 150, image.end(), bed.place().begin() + 150);
    bed.flow.confirm_put(first, "its completion");
    EXPECT_TRUE(bed.findings.clean());
    if (right) bed.land(300);
    bed.flow.confirm_put(second, "its completion");
    EXPECT_EQ(bed.count(Finding::early), right ? 0U : 1U);
  }
}

TEST(SimFlowModel, AnythingThatLandsAfterwardsIsAGhost) {
  for (const bool given_back : {true, false}) {
    FlowBed bed;
    const auto id = bed.put(300);
    bed.land(300);
    bed.flow.confirm_put(id, "its completion");
    if (given_back) {
      // The slot is taken for another put that never happens: its old bytes are gone. The first write lands again.
      std::uint32_t again = FlowModel::kNone;
      for (int i = 0; i < 100 && again != bed.slot; ++i) again = bed.flow.take_slot(300, bed.random);
      ASSERT_EQ(again, bed.slot);
      bed.land(300);
    } else {
      bed.place()[5] ^= std::byte{1};
    }
    bed.flow.finish();
    EXPECT_EQ(bed.count(Finding::ghost), 1U);
  }
}

TEST(SimFlowModel, TheSameBytesLandingOnceMoreAreAGhost) {
  // The target's program has put something else there as soon as it saw the signal.
  FlowBed bed;
  bed.put(300);
  const auto signal = bed.flow.mark();
  bed.land(300);
  bed.flow.confirm(signal, "a signal");
  bed.land(300);
  bed.flow.finish();
  EXPECT_EQ(bed.count(Finding::ghost), 1U);
}

TEST(SimFlowModel, ADeadSourcesLastPutsNeedNotBeThere) {
  FlowBed bed;
  bed.put(300);
  bed.flow.finish(false);
  EXPECT_TRUE(bed.findings.clean());
}

TEST(SimFlowModel, AWriteBehindTheUsedPartIsAGhost) {
  FlowBed bed;
  const auto id = bed.put(300);
  bed.land(300);
  bed.flow.confirm_put(id, "its completion");
  bed.place()[301] = std::byte{1};
  bed.flow.finish();
  EXPECT_EQ(bed.count(Finding::ghost), 1U);
}

TEST(SimFlowModel, APutNeverSeenIsLost) {
  FlowBed bed;
  bed.put(300);
  bed.flow.finish();
  EXPECT_EQ(bed.count(Finding::lost), 1U);
}

TEST(SimFlowModel, QuietCoversEverything) {
  FlowBed bed;
  bed.put(10, true);
  bed.flow.confirm_all("quiet");
  EXPECT_EQ(bed.count(Finding::early), 1U);
}

TEST(SimFlowModel, AGetMustBringWhatWasPut) {
  FlowBed bed;
  const auto id = bed.put(300);
  std::vector<std::byte> got(300);
  bed.pattern.fill(got);
  bed.flow.check_read(id, got, "a get");
  EXPECT_TRUE(bed.findings.clean());
  got[7] ^= std::byte{1};
  bed.flow.check_read(id, got, "a get");
  EXPECT_EQ(bed.findings.count(Finding::corrupt) + bed.findings.count(Finding::early), 1U);
}

TEST(SimFlowModel, ASlotThatIsReadIsNotUsedAgain) {
  FlowBed bed;
  const auto id = bed.put(300);
  bed.land(300);
  bed.flow.begin_read(id);
  bed.flow.confirm_put(id, "its completion");
  for (int i = 0; i < 100; ++i) EXPECT_NE(bed.flow.take_slot(300, bed.random), bed.slot);
  bed.flow.end_read(id);
  EXPECT_TRUE(bed.findings.clean());
}

struct SignalBed : FlowBed {
  SignalBed() : signal(flow, "a signal") {
    for (const std::uint64_t value : {5U, 8U, 20U}) signal.submitted(value, flow.mark());
  }
  SignalModel signal;
};

TEST(SimSignalModel, EveryStepAndLeapsAreFine) {
  SignalBed bed;
  for (const std::uint64_t value : {0U, 5U, 5U, 20U}) bed.signal.observe(value, bed.findings);
  bed.signal.finish(20, true, bed.findings);
  EXPECT_TRUE(bed.findings.clean());
}

TEST(SimSignalModel, TooMuchIsDoubled) {
  SignalBed bed;
  bed.signal.observe(25, bed.findings);
  EXPECT_EQ(bed.count(Finding::doubled), 1U);
}

TEST(SimSignalModel, GoingBackIsDoubled) {
  SignalBed bed;
  bed.signal.observe(8, bed.findings);
  bed.signal.observe(5, bed.findings);
  EXPECT_EQ(bed.count(Finding::doubled), 1U);
}

TEST(SimSignalModel, OneLeftOutIsLost) {
  SignalBed bed;
  bed.signal.observe(3, bed.findings);  // the second without the first
  EXPECT_EQ(bed.count(Finding::lost), 1U);
}

TEST(SimSignalModel, TooLittleAtTheEndIsLost) {
  SignalBed bed;
  bed.signal.finish(8, true, bed.findings);
  EXPECT_EQ(bed.count(Finding::lost), 1U);
}

TEST(SimSignalModel, ADeadSourcesLastSignalsNeedNotBeThereButOnlyInOrder) {
  SignalBed bed;
  bed.signal.finish(8, false, bed.findings);
  EXPECT_TRUE(bed.findings.clean());
  SignalBed other;
  other.signal.finish(3, false, other.findings);
  EXPECT_EQ(other.count(Finding::lost), 1U);
}

TEST(SimSignalModel, SeeingItMakesThePutsBeforeItDue) {
  FlowBed bed;
  SignalModel signal(bed.flow, "a signal");
  bed.put(100);
  signal.submitted(1, bed.flow.mark());
  signal.observe(1, bed.findings);
  EXPECT_EQ(bed.count(Finding::early), 1U);
}

TEST(SimOwnWord, DoesWhatTheLibraryPromises) {
  OwnWord word;
  EXPECT_EQ(word.apply(AtomicOp::add, 5, 0), 0U);
  EXPECT_EQ(word.apply(AtomicOp::increment, 99, 0), 5U);
  EXPECT_EQ(word.apply(AtomicOp::bit_or, 9, 0), 6U);
  EXPECT_EQ(word.apply(AtomicOp::bit_and, 13, 0), 15U);
  EXPECT_EQ(word.apply(AtomicOp::bit_xor, 1, 0), 13U);
  EXPECT_EQ(word.apply(AtomicOp::compare_swap, 3, 11), 12U);
  EXPECT_EQ(word.apply(AtomicOp::compare_swap, 3, 12), 12U);
  EXPECT_EQ(word.apply(AtomicOp::fetch, 77, 77), 3U);
  EXPECT_EQ(word.apply(AtomicOp::swap, UINT64_MAX, 0), 3U);
  EXPECT_EQ(word.apply(AtomicOp::set, 1, 0), UINT64_MAX);
  for (const std::uint64_t held : {13U, 12U, 3U, 1U}) EXPECT_TRUE(word.ever_held(held));
  EXPECT_FALSE(word.ever_held(4));
  OwnWord narrow{UINT32_MAX, 4};
  narrow.apply(AtomicOp::add, 2, 0);
  EXPECT_EQ(narrow.value, 1U);
}

/// The shared words of a target, as its memory holds them.
struct WordBed {
  WordBed() : layout(2, false), memory(layout.bytes()), words(0, 2) {}
  void hold(Layout::SharedWord word, std::uint64_t value) {
    std::memcpy(memory.data() + layout.shared_word(word), &value, sizeof value);
  }
  void finish(int dead = -1) { words.finish(layout, memory, dead, findings); }

  Layout layout;
  std::vector<std::byte> memory;
  SharedWords words;
  Findings findings;
};

TEST(SimSharedWords, WhatFitsSomeOrderIsFine) {
  WordBed bed;
  for (int i = 0; i < 3; ++i) bed.words.submitted_add(0);
  bed.words.fetched_add(1, 0, 0);
  bed.words.fetched_add(0, 0, 2);
  bed.hold(Layout::kAddWord, 3);
  bed.words.submitted_sum(0, UINT32_MAX);
  bed.words.submitted_sum(0, 2);
  bed.hold(Layout::kSumWord, 1);
  bed.words.submitted_swap(10);
  bed.words.submitted_swap(20);
  bed.words.fetched_swap(20);
  bed.words.fetched_swap(0);
  bed.hold(Layout::kSwapWord, 10);
  bed.words.fetched_compare(0, 7, 0);
  bed.words.fetched_compare(0, 8, 7);
  bed.words.fetched_compare(7, 9, 7);
  bed.hold(Layout::kCompareWord, 9);
  bed.finish();
  EXPECT_TRUE(bed.findings.clean()) << bed.findings.notes().front();
}

TEST(SimSharedWords, AnAddTwiceIsDoubledAnAddLessIsLost) {
  for (const bool twice : {true, false}) {
    WordBed bed;
    bed.words.submitted_add(0);
    bed.hold(Layout::kAddWord, twice ? 2 : 0);
    bed.finish();
    EXPECT_EQ(bed.findings.count(twice ? Finding::doubled : Finding::lost), 1U);
  }
}

TEST(SimSharedWords, TheSameValueFetchedTwiceIsDoubled) {
  WordBed bed;
  bed.words.submitted_add(0);
  bed.words.submitted_add(0);
  bed.words.fetched_add(0, 0, 1);
  bed.words.fetched_add(1, 0, 1);
  bed.hold(Layout::kAddWord, 2);
  bed.finish();
  EXPECT_EQ(bed.findings.count(Finding::doubled), 1U);
}

TEST(SimSharedWords, FetchesOfOneSourceKeepTheirOrder) {
  WordBed bed;
  bed.words.submitted_add(0);
  bed.words.submitted_add(0);
  bed.words.fetched_add(0, 1, 0);
  bed.words.fetched_add(0, 0, 1);
  bed.hold(Layout::kAddWord, 2);
  bed.finish();
  EXPECT_EQ(bed.findings.count(Finding::corrupt), 1U);
}

TEST(SimSharedWords, SwapsMustFormAChain) {
  WordBed bed;
  bed.words.submitted_swap(10);
  bed.words.submitted_swap(20);
  bed.words.fetched_swap(0);
  bed.words.fetched_swap(0);
  bed.hold(Layout::kSwapWord, 20);
  bed.finish();
  EXPECT_EQ(bed.findings.count(Finding::doubled), 1U);
}

TEST(SimSharedWords, CompareSwapsMustFormAChain) {
  WordBed bed;
  bed.words.fetched_compare(0, 7, 0);
  bed.hold(Layout::kCompareWord, 0);
  bed.finish();
  EXPECT_FALSE(bed.findings.clean());
  WordBed other;
  other.words.fetched_compare(0, 7, 5);
  other.finish();
  EXPECT_EQ(other.findings.count(Finding::corrupt), 1U);
}

TEST(SimSharedWords, OfADeadSourceAnyNumberMayBeThereInOrder) {
  constexpr int kDead = 1;
  for (const std::uint64_t sum : {7U, 10U, 14U, 11U, 3U}) {
    WordBed bed;
    bed.words.submitted_sum(0, 7);
    bed.words.submitted_sum(kDead, 3);
    bed.words.submitted_sum(kDead, 4);
    bed.hold(Layout::kSumWord, sum);
    bed.words.submitted_swap(10);
    bed.words.submitted_swap(20);
    bed.words.fetched_swap(0);  // by the other one; what the second has fetched nobody knows
    bed.hold(Layout::kSwapWord, 20);
    bed.words.submitted_compare(5);
    bed.hold(Layout::kCompareWord, 5);
    bed.finish(kDead);
    const bool fits = sum == 7 || sum == 10 || sum == 14;
    EXPECT_EQ(bed.findings.clean(), fits) << sum;
  }
  WordBed bed;
  bed.words.submitted_swap(10);
  bed.words.fetched_swap(10);
  bed.hold(Layout::kSwapWord, 10);
  bed.finish(kDead);
  EXPECT_EQ(bed.findings.count(Finding::doubled), 1U);
}

TEST(SimSharedWords, AWrongSumShows) {
  WordBed bed;
  bed.words.submitted_sum(0, 5);
  bed.hold(Layout::kSumWord, 4);
  bed.finish();
  EXPECT_EQ(bed.findings.count(Finding::lost), 1U);
}

}  // namespace
}  // namespace railyard::sim
