#include "sim/word_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace railyard::sim {

namespace {

template <typename T>
T load(std::span<const std::byte> memory, std::size_t offset) {
  T value{};
  std::memcpy(&value, memory.data() + offset, sizeof value);
  return value;
}

/// How many times a value occurs more than once in a sorted list.
std::uint64_t repeats(const std::vector<std::uint64_t>& sorted) {
  std::uint64_t count = 0;
  for (std::size_t i = 1; i < sorted.size(); ++i) count += sorted[i] == sorted[i - 1] ? 1U : 0U;
  return count;
}

/// What was taken out of a word was put in, once; and where everything is known, all that was put in was taken out.
bool fits(const std::vector<std::uint64_t>& sorted_in, const std::vector<std::uint64_t>& sorted_out, bool all) {
  if (all) return sorted_in == sorted_out;
  return repeats(sorted_out) == 0 && std::ranges::includes(sorted_in, sorted_out);
}

}  // namespace

std::uint64_t OwnWord::apply(AtomicOp op, std::uint64_t operand, std::uint64_t compare) {
  const std::uint64_t before = value;
  history.push_back(before);
  switch (op) {
    case AtomicOp::add:
      value += operand;
      break;
    case AtomicOp::increment:
      value += 1;
      break;
    case AtomicOp::bit_and:
      value &= operand;
      break;
    case AtomicOp::bit_or:
      value |= operand;
      break;
    case AtomicOp::bit_xor:
      value ^= operand;
      break;
    case AtomicOp::set:
    case AtomicOp::swap:
      value = operand;
      break;
    case AtomicOp::compare_swap:
      if (value == compare) value = operand;
      break;
    case AtomicOp::fetch:
      break;
    case AtomicOp::min:
    case AtomicOp::max: {
      // As integers with a sign: the width's sign bit tells.
      const std::uint64_t flip = std::uint64_t{1} << (8 * width - 1);
      if ((op == AtomicOp::min) == ((operand ^ flip) < (value ^ flip))) value = operand;
      break;
    }
  }
  if (width == 4) value &= UINT32_MAX;
  return before;
}

void SumModel::finish(std::uint64_t found, std::uint64_t mask, int dead, const std::string& name,
                      Findings& findings) const {
  std::uint64_t expected = total_ & mask;
  if (found == expected) return;
  if (dead >= 0) {
    // Without the dead one's; then with one after the other.
    const auto& uncertain = added_[static_cast<std::size_t>(dead)];
    for (const std::uint64_t value : uncertain) expected -= value;
    for (std::size_t i = 0; (expected & mask) != found && i < uncertain.size(); ++i) expected += uncertain[i];
    if ((expected & mask) == found) return;
    expected &= mask;
  }
  findings.add(found < expected ? Finding::lost : Finding::doubled,
               fmt::format("{} holds {}, not {}", name, found, expected));
}

void SharedWords::finish(const Layout& layout, std::span<const std::byte> memory, int dead, Findings& findings) {
  adds_.finish(load<std::uint64_t>(memory, layout.shared_word(Layout::kAddWord)), UINT64_MAX, dead,
               fmt::format("rank {}: the word of adds", target_), findings);
  sums_.finish(load<std::uint32_t>(memory, layout.shared_word(Layout::kSumWord)), UINT32_MAX, dead,
               fmt::format("rank {}: the sum word", target_), findings);
  finish_fetched(findings);
  finish_swap(load<std::uint64_t>(memory, layout.shared_word(Layout::kSwapWord)), dead < 0, findings);
  finish_compare(load<std::uint64_t>(memory, layout.shared_word(Layout::kCompareWord)), dead < 0, findings);
}

void SharedWords::finish_fetched(Findings& findings) {
  std::vector<std::uint64_t> all;
  for (std::size_t source = 0; source < fetched_.size(); ++source) {
    auto& fetched = fetched_[source];
    std::ranges::sort(fetched, {}, &Fetched::order);
    for (std::size_t i = 0; i < fetched.size(); ++i) {
      all.push_back(fetched[i].before);
      if (i > 0 && fetched[i].before <= fetched[i - 1].before) {
        findings.add(Finding::corrupt, fmt::format("rank {} to {}: fetched {} and then {} from a word that only grows",
                                                   source, target_, fetched[i - 1].before, fetched[i].before));
      }
      if (fetched[i].before >= adds_.total()) {
        findings.add(Finding::doubled, fmt::format("rank {} to {}: fetched {}, but only {} adds were sent", source,
                                                   target_, fetched[i].before, adds_.total()));
      }
    }
  }
  std::ranges::sort(all);
  if (const std::uint64_t count = repeats(all); count > 0) {
    findings.add(Finding::doubled, fmt::format("rank {}: {} fetched values came twice", target_, count));
  }
}

void SharedWords::finish_swap(std::uint64_t word, bool all, Findings& findings) {
  // Everything that was ever in the word was taken out once, but for what is in it now.
  std::vector<std::uint64_t> in = swapped_in_;
  std::vector<std::uint64_t> out = swapped_out_;
  in.push_back(0);
  out.push_back(word);
  std::ranges::sort(in);
  std::ranges::sort(out);
  if (fits(in, out, all)) return;
  findings.add(
      repeats(out) > 0 ? Finding::doubled : Finding::lost,
      fmt::format("rank {}: {} swaps do not form a chain that ends in {:#x}", target_, swapped_in_.size(), word));
}

void SharedWords::finish_compare(std::uint64_t word, bool all, Findings& findings) {
  // The successful ones form a chain from zero to what the word holds; what the others found was in it.
  std::vector<std::uint64_t> out{word};
  std::vector<std::uint64_t> in{0};
  for (const Compared& one : compared_) {
    if (one.before != one.compare) continue;
    out.push_back(one.before);
    if (all) in.push_back(one.value);
  }
  if (!all) in.insert(in.end(), offered_.begin(), offered_.end());
  std::ranges::sort(in);
  std::ranges::sort(out);
  if (!fits(in, out, all)) {
    findings.add(repeats(out) > 0 ? Finding::doubled : Finding::lost,
                 fmt::format("rank {}: {} successful compare-swaps do not form a chain that ends in {:#x}", target_,
                             out.size() - 1, word));
  }
  for (const Compared& one : compared_) {
    if (!std::ranges::binary_search(in, one.before)) {
      findings.add(Finding::corrupt,
                   fmt::format("rank {}: a compare-swap found {:#x}, which was never there", target_, one.before));
    }
  }
}

}  // namespace railyard::sim
