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

Finding less_or_more(std::uint64_t found, std::uint64_t expected) {
  return found < expected ? Finding::lost : Finding::doubled;
}

}  // namespace

std::uint64_t OwnWord::apply(AtomicOp op, std::uint64_t operand, std::uint64_t compare) {
  const std::uint64_t before = value;
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
  }
  if (width == 4) value &= UINT32_MAX;
  return before;
}

void SharedWords::finish(const Layout& layout, std::span<const std::byte> memory, Findings& findings) {
  finish_add(load<std::uint64_t>(memory, layout.shared_word(Layout::kAddWord)), findings);
  finish_swap(load<std::uint64_t>(memory, layout.shared_word(Layout::kSwapWord)), findings);
  finish_compare(load<std::uint64_t>(memory, layout.shared_word(Layout::kCompareWord)), findings);
  const auto sum = load<std::uint32_t>(memory, layout.shared_word(Layout::kSumWord));
  if (sum != sum_) {
    findings.add(less_or_more(sum, sum_), fmt::format("rank {}: the sum word holds {}, not {}", target_, sum, sum_));
  }
}

void SharedWords::finish_add(std::uint64_t word, Findings& findings) {
  if (word != adds_) {
    findings.add(less_or_more(word, adds_), fmt::format("rank {}: {} adds made {}", target_, adds_, word));
  }
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
      if (fetched[i].before >= adds_) {
        findings.add(Finding::doubled, fmt::format("rank {} to {}: fetched {}, but only {} adds were sent", source,
                                                   target_, fetched[i].before, adds_));
      }
    }
  }
  std::ranges::sort(all);
  if (const std::uint64_t count = repeats(all); count > 0) {
    findings.add(Finding::doubled, fmt::format("rank {}: {} fetched values came twice", target_, count));
  }
}

void SharedWords::finish_swap(std::uint64_t word, Findings& findings) {
  // Everything that was ever in the word was taken out once, but for what is in it now.
  std::vector<std::uint64_t> in = swapped_in_;
  std::vector<std::uint64_t> out = swapped_out_;
  in.push_back(0);
  out.push_back(word);
  std::ranges::sort(in);
  std::ranges::sort(out);
  if (in == out) return;
  findings.add(
      repeats(out) > 0 ? Finding::doubled : Finding::lost,
      fmt::format("rank {}: {} swaps do not form a chain that ends in {:#x}", target_, swapped_in_.size(), word));
}

void SharedWords::finish_compare(std::uint64_t word, Findings& findings) {
  // The successful ones form a chain from zero to what the word holds; what the others found was in it.
  std::vector<std::uint64_t> out{word};
  std::vector<std::uint64_t> in{0};
  for (const Compared& one : compared_) {
    if (one.before != one.compare) continue;
    out.push_back(one.before);
    in.push_back(one.value);
  }
  std::ranges::sort(in);
  std::ranges::sort(out);
  if (in != out) {
    findings.add(repeats(out) > 0 ? Finding::doubled : Finding::lost,
                 fmt::format("rank {}: {} successful compare-swaps do not form a chain that ends in {:#x}", target_,
                             in.size() - 1, word));
  }
  for (const Compared& one : compared_) {
    if (!std::ranges::binary_search(in, one.before)) {
      findings.add(Finding::corrupt,
                   fmt::format("rank {}: a compare-swap found {:#x}, which was never there", target_, one.before));
    }
  }
}

}  // namespace railyard::sim
