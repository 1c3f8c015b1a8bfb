// The atomics of a program: on words of its own, where every value is known, and on words that all ranks change.
#include <array>

#include "sim/program.hpp"

namespace railyard::sim {

namespace {

constexpr std::array kOwnOperations = {
    AtomicOp::add,  AtomicOp::increment,    AtomicOp::bit_and, AtomicOp::bit_or, AtomicOp::bit_xor, AtomicOp::set,
    AtomicOp::swap, AtomicOp::compare_swap, AtomicOp::fetch,   AtomicOp::min,    AtomicOp::max};

}  // namespace

std::uint32_t Program::take_cell() {
  if (free_cells_.empty()) return UINT32_MAX;
  const std::uint32_t cell = free_cells_.back();
  free_cells_.pop_back();
  cells_[cell] = 0xdbdbdbdbdbdbdbdbULL;
  return cell;
}

bool Program::do_atomic_own(Pair& pair) {
  const std::size_t which = draw(Layout::kOwnWords);
  OwnWord& word = pair.words[which];
  const AtomicOp op = kOwnOperations[draw(kOwnOperations.size())];
  const std::uint64_t mask = word.width == 4 ? UINT32_MAX : UINT64_MAX;
  const std::uint64_t operand = stage_.random.next() & mask;
  const std::uint64_t compare = percent(50) ? word.value : stage_.random.next() & mask;
  const bool fetches = op == AtomicOp::fetch || op == AtomicOp::swap || percent(50);
  const std::uint32_t cell = fetches ? take_cell() : UINT32_MAX;
  if (fetches && cell == UINT32_MAX) return false;
  ++operations_;
  const std::size_t offset = stage_.layout.own_word(static_cast<std::size_t>(rank_), which);
  const auto ticket =
      window().atomic_word(pair.flow.target(), offset, op, word.width == 4 ? WordType::int32 : WordType::int64, operand,
                           compare, fetches ? &cell_word(cell) : nullptr);
  if (!accepted(ticket, Kind::atomic_own, pair)) {
    if (fetches) free_cells_.push_back(cell);
    return false;
  }
  const std::uint64_t before = word.apply(op, operand, compare);
  Outstanding& added = track(Kind::atomic_own, pair, ticket.value());
  added.position = pair.flow.mark();
  added.cell = cell;
  added.expected = before;
  added.order = word.width;
  if (fetches) added.fetch = Outstanding::Fetch::own;
  return true;
}

bool Program::do_atomic_add(Pair& pair) {
  const int target = pair.flow.target();
  Target& there = stage_.targets[static_cast<std::size_t>(target)];
  ++operations_;
  if (percent(25)) {
    const auto value = static_cast<std::uint32_t>(stage_.random.next());
    const auto ticket =
        window().atomic<std::uint32_t>(target, stage_.layout.shared_word(Layout::kSumWord), AtomicOp::add, value);
    if (!accepted(ticket, Kind::atomic_add, pair)) return false;
    there.words.submitted_sum(rank_, value);
    track(Kind::atomic_add, pair, ticket.value()).position = pair.flow.mark();
    return true;
  }
  const bool fetches = percent(60);
  const std::uint32_t cell = fetches ? take_cell() : UINT32_MAX;
  if (fetches && cell == UINT32_MAX) return false;
  const std::size_t offset = stage_.layout.shared_word(Layout::kAddWord);
  const AtomicOp op = percent(50) ? AtomicOp::add : AtomicOp::increment;
  const auto ticket = fetches ? window().fetch_atomic<std::uint64_t>(target, offset, op, &cell_word(cell), 1)
                              : window().atomic<std::uint64_t>(target, offset, op, 1);
  if (!accepted(ticket, Kind::atomic_add, pair)) {
    if (fetches) free_cells_.push_back(cell);
    return false;
  }
  there.words.submitted_add(rank_);
  Outstanding& added = track(Kind::atomic_add, pair, ticket.value());
  added.position = pair.flow.mark();
  if (fetches) {
    added.fetch = Outstanding::Fetch::add;
    added.cell = cell;
    added.order = pair.fetched_adds++;
  }
  return true;
}

bool Program::do_atomic_swap(Pair& pair) {
  const std::uint32_t cell = take_cell();
  if (cell == UINT32_MAX) return false;
  const std::uint64_t value = (static_cast<std::uint64_t>(rank_ + 1) << 32U) | ++operations_;
  const auto ticket = window().fetch_atomic<std::uint64_t>(
      pair.flow.target(), stage_.layout.shared_word(Layout::kSwapWord), AtomicOp::swap, &cell_word(cell), value);
  if (!accepted(ticket, Kind::atomic_swap, pair)) {
    free_cells_.push_back(cell);
    return false;
  }
  stage_.targets[static_cast<std::size_t>(pair.flow.target())].words.submitted_swap(value);
  Outstanding& added = track(Kind::atomic_swap, pair, ticket.value());
  added.position = pair.flow.mark();
  added.fetch = Outstanding::Fetch::swap;
  added.cell = cell;
  return true;
}

bool Program::do_atomic_compare(Pair& pair) {
  const std::uint32_t cell = take_cell();
  if (cell == UINT32_MAX) return false;
  const std::uint64_t value = (static_cast<std::uint64_t>(rank_ + 1) << 32U) | ++operations_;
  const auto ticket =
      window().fetch_atomic<std::uint64_t>(pair.flow.target(), stage_.layout.shared_word(Layout::kCompareWord),
                                           AtomicOp::compare_swap, &cell_word(cell), value, pair.compare_seen);
  if (!accepted(ticket, Kind::atomic_compare_swap, pair)) {
    free_cells_.push_back(cell);
    return false;
  }
  stage_.targets[static_cast<std::size_t>(pair.flow.target())].words.submitted_compare(value);
  Outstanding& added = track(Kind::atomic_compare_swap, pair, ticket.value());
  added.position = pair.flow.mark();
  added.fetch = Outstanding::Fetch::compare;
  added.cell = cell;
  added.expected = pair.compare_seen;
  added.brought = value;
  return true;
}

}  // namespace railyard::sim
