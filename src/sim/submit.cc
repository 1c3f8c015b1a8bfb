// What a program submits. Every function answers false when there was no room: then nothing happened.
#include <fmt/format.h>

#include <algorithm>

#include "sim/program.hpp"

namespace railyard::sim {

namespace {

constexpr std::size_t kMostShift = 16;
/// Signals that fit in one source's 16 bits of a shared word, with room to see one too many.
constexpr std::uint64_t kMostShared = 60'000;
constexpr std::uint64_t kSharedMask = 0xffff;

enum WhichSignal : int { kAdd, kSet, kShared, kSum, kSignalKinds };

}  // namespace

int Program::draw_target() {
  const Behaviour& behaviour = stage_.plan.behaviour;
  const auto ranks = stage_.plan.ranks;
  if (percent(behaviour.self_percent) || ranks == 1) return rank_;
  int target = 0;
  if (rank_ == 0 || !percent(behaviour.hot_percent)) {
    target = static_cast<int>(draw(ranks - 1));
    if (target >= rank_) ++target;
  }
  return lost_[static_cast<std::size_t>(target)] ? rank_ : target;
}

Kind Program::draw_kind() {
  const auto& weights = stage_.plan.behaviour.weights;
  std::uint64_t sum = 0;
  for (const std::uint32_t weight : weights) sum += weight;
  if (sum == 0) return Kind::put_signal;
  std::uint64_t left = draw(sum);
  std::size_t kind = 0;
  while (left >= weights[kind]) left -= weights[kind++];
  return static_cast<Kind>(kind);
}

/// Small ones mostly; often right at a limit where the library changes its way.
std::size_t Program::draw_size() {
  const Settings& settings = stage_.plan.settings;
  const std::uint64_t which = draw(100);
  std::size_t bytes = 0;
  if (which < 45) {
    bytes = 1 + draw(64);
  } else if (which < 65) {
    bytes = 1 + draw(Layout::kSmallBytes);
  } else if (which < 75) {
    bytes = settings.inline_bytes + draw(3);
  } else if (which < 87) {
    bytes = settings.chunk_min * (1 + draw(4)) + draw(3);
  } else if (which < 96 || !stage_.plan.behaviour.large) {
    bytes = 1 + draw(std::uint64_t{1} << (6 + draw(9)));
  } else {
    bytes = 1 + draw(Layout::kLargeBytes);
  }
  const std::size_t most = stage_.layout.slot_bytes(stage_.layout.slots_per_source() - 1);
  return std::clamp<std::size_t>(bytes, 1, most);
}

bool Program::prepare(Pair& pair, std::size_t bytes, Payload& payload) {
  const std::uint32_t slot = pair.flow.take_slot(bytes, stage_.random);
  return slot != FlowModel::kNone && prepare_for_slot(slot, bytes, payload);
}

bool Program::prepare_for_slot(std::uint32_t slot, std::size_t bytes, Payload& payload) {
  payload.buffer = buffers_.take(bytes);
  if (payload.buffer == Buffers::kNone) return false;
  const auto memory = buffers_.memory(payload.buffer);
  payload.slot = slot;
  payload.bytes = bytes;
  payload.shift = draw(std::min(memory.size() - bytes, kMostShift) + 1);
  payload.operation = ++operations_;
  payload.pattern = Pattern(stage_.plan.seed, static_cast<std::uint64_t>(rank_), payload.operation);
  payload.pattern.fill(memory.subspan(payload.shift, bytes));
  payload.source = memory.data() + payload.shift;
  return true;
}

void Program::abandon(const Payload& payload) { buffers_.give(payload.buffer, payload.shift + payload.bytes); }

bool Program::accepted(const Result<Ticket>& result, Kind kind, const Pair& pair) {
  if (result.ok()) {
    ++stage_.operations;
    stage_.note_change();
    return true;
  }
  if (result.status() != Status::busy && !is_peer_loss(result.error(), pair.flow.target()) && !broken_) {
    broken_ = true;
    stage_.findings.add(Finding::lost,
                        fmt::format("rank {}: a {} was refused: {}", rank_, to_string(kind), result.error().text()));
  }
  return false;
}

/// Whether the error says that the target is gone, and it is. Nothing more is submitted to it then.
bool Program::is_peer_loss(const Error& error, int target) {
  if (error.status() != Status::peer_lost || target < 0 || error.where().peer != target) return false;
  if (!stage_.may_be_lost(rank_, target)) return false;
  if (lost_[static_cast<std::size_t>(target)]) return true;
  lost_[static_cast<std::size_t>(target)] = true;
  if (Pair* pair = stage_.existing_pair(rank_, target)) pair->given_up = true;
  if (stage_.fabric().alive(target)) cut_off(target);
  return true;
}

/// This rank was told that `source` is lost. It lives and may come back, but nothing of its may land here any more: the
/// memory is used for something else.
void Program::cut_off(int source) {
  Pair* pair = stage_.existing_pair(source, rank_);
  if (pair == nullptr) return;
  const Layout& layout = stage_.layout;
  const auto from = static_cast<std::size_t>(source);
  Pair::Cut cut;
  cut.adds = window().read_signal(Layout::add_signal(from));
  cut.sets = window().read_signal(layout.set_signal(from));
  cut.shared = window().read_signal(layout.shared_signal(from)) >> Layout::shared_shift(from) & kSharedMask;
  for (std::size_t word = 0; word < Layout::kOwnWords; ++word) {
    std::memcpy(&cut.words[word], window().local().data() + layout.own_word(from, word), pair->words[word].width);
  }
  pair->cut = cut;
  pair->flow.cut();
}

bool Program::changed_since_cut(const Pair& pair) {
  const Layout& layout = stage_.layout;
  const auto from = static_cast<std::size_t>(pair.flow.source());
  bool changed = window().read_signal(Layout::add_signal(from)) != pair.cut->adds ||
                 window().read_signal(layout.set_signal(from)) != pair.cut->sets ||
                 (window().read_signal(layout.shared_signal(from)) >> Layout::shared_shift(from) & kSharedMask) !=
                     pair.cut->shared;
  for (std::size_t word = 0; word < Layout::kOwnWords; ++word) {
    std::uint64_t held = 0;
    std::memcpy(&held, window().local().data() + layout.own_word(from, word), pair.words[word].width);
    changed = changed || held != pair.cut->words[word];
  }
  return changed;
}

Program::Outstanding& Program::track(Kind kind, Pair& pair, const Ticket& ticket) {
  Outstanding& added = outstanding_.emplace_back();
  added.kind = kind;
  added.pair = &pair;
  added.ticket = ticket;
  added.operation = operations_;
  return added;
}

Program::Outstanding& Program::track_put(Kind kind, Pair& pair, const Ticket& ticket, const Payload& payload,
                                         bool relaxed) {
  Outstanding& added = track(kind, pair, ticket);
  added.source_free = false;
  added.operation = payload.operation;
  added.buffer = payload.buffer;
  added.shift = payload.shift;
  added.bytes = payload.bytes;
  added.put = pair.flow.put(payload.slot, payload.bytes, payload.pattern, relaxed, to_string(kind), payload.operation);
  return added;
}

SignalUpdate Program::draw_signal(Pair& pair, int& which) {
  const auto source = static_cast<std::size_t>(rank_);
  which = static_cast<int>(draw(kSignalKinds));
  if (which == kShared && pair.shared.newest() >= kMostShared) which = kAdd;
  switch (which) {
    case kSet:
      return {stage_.layout.set_signal(source), pair.sets.newest() + 1, SignalOp::set};
    case kShared:
      return {stage_.layout.shared_signal(source), std::uint64_t{1} << Layout::shared_shift(source), SignalOp::add};
    case kSum:
      return {stage_.layout.sum_signal(), 1 + draw(UINT32_MAX), SignalOp::add};
    default:
      return {Layout::add_signal(source), 1 + draw(std::uint64_t{1} << 40U), SignalOp::add};
  }
}

void Program::record_signal(Pair& pair, const SignalUpdate& update, int which, FlowModel::Position position) {
  switch (which) {
    case kSet:
      pair.sets.submitted(update.value, position);
      break;
    case kShared:
      pair.shared.submitted(pair.shared.newest() + 1, position);
      break;
    case kSum:
      stage_.targets[static_cast<std::size_t>(pair.flow.target())].sums.submitted(rank_, update.value);
      break;
    default:
      pair.adds.submitted(pair.adds.newest() + update.value, position);
      break;
  }
}

bool Program::do_put_signal(Kind kind, Pair& pair) {
  Payload payload;
  if (!prepare(pair, draw_size(), payload)) return false;
  int which = 0;
  const SignalUpdate update = draw_signal(pair, which);
  const std::size_t offset = pair.flow.slot_offset(payload.slot);
  const std::uint32_t counter = kind == Kind::put_signal_counter ? take_counter() : UINT32_MAX;
  const CounterUpdate count{counter, 1 + draw(1'000)};
  const auto ticket =
      counter != UINT32_MAX
          ? window().put_signal_counter(pair.flow.target(), offset, payload.source, payload.bytes, update, count)
          : window().put_signal(pair.flow.target(), offset, payload.source, payload.bytes, update);
  if (!accepted(ticket, kind, pair)) {
    abandon(payload);
    if (counter != UINT32_MAX) free_counters_.push_back(counter);
    return false;
  }
  Outstanding& added = track_put(kind, pair, ticket.value(), payload, false);
  added.position = pair.flow.mark();
  record_signal(pair, update, which, added.position);
  if (counter != UINT32_MAX) {
    added.counter = counter;
    added.counter_before = counter_values_[counter];
    added.counter_value = count.value;
  }
  return true;
}

bool Program::do_signal(Pair& pair) {
  int which = 0;
  const SignalUpdate update = draw_signal(pair, which);
  ++operations_;
  // Two ways to say the same.
  const auto ticket = percent(50) ? window().signal(pair.flow.target(), update)
                                  : window().put_signal(pair.flow.target(), 0, nullptr, 0, update);
  if (!accepted(ticket, Kind::signal, pair)) return false;
  Outstanding& added = track(Kind::signal, pair, ticket.value());
  added.position = pair.flow.mark();
  record_signal(pair, update, which, added.position);
  return true;
}

bool Program::do_put(Kind kind, Pair& pair) {
  Payload payload;
  if (!prepare(pair, draw_size(), payload)) return false;
  const std::size_t offset = pair.flow.slot_offset(payload.slot);
  const std::uint32_t counter = kind == Kind::put_counter ? take_counter() : UINT32_MAX;
  const CounterUpdate count{counter, 1 + draw(1'000)};
  const auto ticket = counter != UINT32_MAX
                          ? window().put_counter(pair.flow.target(), offset, payload.source, payload.bytes, count)
                          : window().put(pair.flow.target(), offset, payload.source, payload.bytes);
  if (!accepted(ticket, kind, pair)) {
    abandon(payload);
    if (counter != UINT32_MAX) free_counters_.push_back(counter);
    return false;
  }
  Outstanding& added = track_put(kind, pair, ticket.value(), payload, false);
  if (counter != UINT32_MAX) {
    added.counter = counter;
    added.counter_before = counter_values_[counter];
    added.counter_value = count.value;
  }
  return true;
}

bool Program::fence(Pair& pair) {
  const auto fenced = percent(80) ? window().fence(pair.flow.target()) : window().fence();
  if (!fenced.ok()) {
    if (fenced.status() != Status::busy && !is_peer_loss(fenced.error(), fenced.error().where().peer)) {
      stage_.findings.add(Finding::lost, fmt::format("rank {}: a fence was refused: {}", rank_, fenced.error().text()));
    }
    return false;
  }
  pair.flow.fence();
  return true;
}

bool Program::do_relaxed(Pair& pair) {
  bool any = false;
  for (std::uint64_t left = 1 + draw(3); left > 0; --left) {
    Payload payload;
    if (!prepare(pair, draw_size(), payload)) break;
    const auto ticket = window().put(pair.flow.target(), pair.flow.slot_offset(payload.slot), payload.source,
                                     payload.bytes, Order::relaxed);
    if (!accepted(ticket, Kind::relaxed, pair)) {
      abandon(payload);
      break;
    }
    track_put(Kind::relaxed, pair, ticket.value(), payload, true);
    any = true;
  }
  // Whether or not the signal finds room, a later one stands for these puts as well.
  if (any && fence(pair)) do_signal(pair);
  return any;
}

bool Program::do_overwrite(Pair& pair) {
  Payload first;
  if (!prepare(pair, draw_size(), first)) return false;
  const std::size_t offset = pair.flow.slot_offset(first.slot);
  const bool relaxed = percent(30);
  const Order order = relaxed ? Order::relaxed : Order::ordered;
  const auto ticket = window().put(pair.flow.target(), offset, first.source, first.bytes, order);
  if (!accepted(ticket, Kind::overwrite, pair)) {
    abandon(first);
    return false;
  }
  track_put(Kind::overwrite, pair, ticket.value(), first, relaxed);
  Payload second;
  if (!fence(pair) || !prepare_for_slot(first.slot, first.bytes, second)) return true;
  const auto again = window().put(pair.flow.target(), offset, second.source, second.bytes, order);
  if (!accepted(again, Kind::overwrite, pair)) {
    abandon(second);
    return true;
  }
  track_put(Kind::overwrite, pair, again.value(), second, relaxed);
  return true;
}

bool Program::do_put_value(Pair& pair) {
  const std::size_t bytes = 1 + draw(8);
  const std::uint32_t slot = pair.flow.take_slot(bytes, stage_.random);
  if (slot == FlowModel::kNone) return false;
  const std::uint64_t operation = ++operations_;
  const Pattern pattern(stage_.plan.seed, static_cast<std::uint64_t>(rank_), operation);
  std::array<std::byte, 8> value{};
  pattern.fill(std::span(value).first(bytes));
  const auto ticket = window().put_value(pair.flow.target(), pair.flow.slot_offset(slot), value.data(), bytes);
  value.fill(Buffers::kSpoilt);  // the value was taken at the call
  if (!accepted(ticket, Kind::put_value, pair)) return false;
  Outstanding& added = track(Kind::put_value, pair, ticket.value());
  added.put = pair.flow.put(slot, bytes, pattern, false, to_string(Kind::put_value), operation);
  return true;
}

bool Program::do_get(Pair& pair) {
  const std::size_t bytes = std::min(draw_size(), Layout::kConstantBytes);
  const std::uint32_t buffer = buffers_.take(bytes);
  if (buffer == Buffers::kNone) return false;
  ++operations_;
  const std::size_t offset = Pattern::kWord * draw((Layout::kConstantBytes - bytes) / Pattern::kWord + 1);
  const auto memory = buffers_.memory(buffer);
  const std::size_t shift = draw(std::min(memory.size() - bytes, kMostShift) + 1);
  const auto ticket = window().get(pair.flow.target(), offset, memory.data() + shift, bytes);
  if (!accepted(ticket, Kind::get, pair)) {
    buffers_.give(buffer, 0);
    return false;
  }
  Outstanding& added = track(Kind::get, pair, ticket.value());
  added.is_get = true;
  added.buffer = buffer;
  added.shift = shift;
  added.bytes = bytes;
  added.constant_offset = offset;
  return true;
}

bool Program::do_put_get(Pair& pair) {
  Payload payload;
  if (!prepare(pair, draw_size(), payload)) return false;
  const auto ticket =
      window().put(pair.flow.target(), pair.flow.slot_offset(payload.slot), payload.source, payload.bytes);
  if (!accepted(ticket, Kind::put_get, pair)) {
    abandon(payload);
    return false;
  }
  const FlowModel::PutId put = track_put(Kind::put_get, pair, ticket.value(), payload, false).put;
  if (fence(pair)) get_slot(pair, put, payload.slot, payload.bytes);
  return true;
}

bool Program::get_slot(Pair& pair, FlowModel::PutId put, std::uint32_t slot, std::size_t bytes) {
  const std::uint32_t buffer = buffers_.take(bytes);
  if (buffer == Buffers::kNone) return false;
  ++operations_;
  const auto ticket =
      window().get(pair.flow.target(), pair.flow.slot_offset(slot), buffers_.memory(buffer).data(), bytes);
  if (!accepted(ticket, Kind::put_get, pair)) {
    buffers_.give(buffer, 0);
    return false;
  }
  Outstanding& added = track(Kind::put_get, pair, ticket.value());
  added.is_get = true;
  added.put = put;
  added.buffer = buffer;
  added.bytes = bytes;
  pair.flow.begin_read(put);
  return true;
}

std::uint32_t Program::take_counter() {
  if (free_counters_.empty()) return UINT32_MAX;
  const std::uint32_t counter = free_counters_.back();
  free_counters_.pop_back();
  return counter;
}

bool Program::submit(Kind kind, Pair& pair) {
  switch (kind) {
    case Kind::put_signal:
    case Kind::put_signal_counter:
      return do_put_signal(kind, pair);
    case Kind::signal:
      return do_signal(pair);
    case Kind::put:
    case Kind::put_counter:
      return do_put(kind, pair);
    case Kind::relaxed:
      return do_relaxed(pair);
    case Kind::overwrite:
      return do_overwrite(pair);
    case Kind::put_value:
      return do_put_value(pair);
    case Kind::get:
      return do_get(pair);
    case Kind::put_get:
      return do_put_get(pair);
    case Kind::put_vector:
      return do_put_vector(pair);
    case Kind::get_vector:
      return do_get_vector(pair);
    case Kind::atomic_own:
      return do_atomic_own(pair);
    case Kind::atomic_add:
      return do_atomic_add(pair);
    case Kind::atomic_swap:
      return do_atomic_swap(pair);
    case Kind::atomic_compare_swap:
      return do_atomic_compare(pair);
  }
  return false;
}

bool Program::say_goodbye() {
  bool all = true;
  for (int target = 0; target < static_cast<int>(stage_.plan.ranks); ++target) {
    Pair* pair = stage_.existing_pair(rank_, target);
    const auto index = static_cast<std::size_t>(target);
    if (pair == nullptr || said_goodbye_[index] || lost_[index]) continue;
    const SignalUpdate update{Layout::add_signal(static_cast<std::size_t>(rank_)), 1, SignalOp::add};
    const auto ticket = window().signal(target, update);
    if (!accepted(ticket, Kind::signal, *pair)) {
      all = all && (broken_ || lost_[index]);
      continue;
    }
    Outstanding& added = track(Kind::signal, *pair, ticket.value());
    added.position = pair->flow.mark();
    record_signal(*pair, update, kAdd, added.position);
    said_goodbye_[index] = true;
  }
  return all;
}

}  // namespace railyard::sim
