// The vectors of a program: several blocks, one ticket.
#include <algorithm>
#include <vector>

#include "sim/program.hpp"

namespace railyard::sim {

namespace {

constexpr std::uint64_t kMostBlocks = 6;

}  // namespace

bool Program::do_put_vector(Pair& pair) {
  std::vector<Payload> payloads;
  std::vector<PutBlock> blocks;
  for (std::uint64_t left = 1 + draw(kMostBlocks); left > 0; --left) {
    Payload payload;
    if (!prepare(pair, draw_size(), payload)) break;
    if (std::ranges::find(payloads, payload.slot, &Payload::slot) != payloads.end()) {
      abandon(payload);  // that slot has a block already
      break;
    }
    blocks.push_back({payload.source, pair.flow.slot_offset(payload.slot), payload.bytes});
    payloads.push_back(payload);
  }
  if (blocks.empty()) return false;
  int which = 0;
  const bool with_signal = percent(50);
  const SignalUpdate update = with_signal ? draw_signal(pair, which) : SignalUpdate{};
  const auto ticket = with_signal ? window().put_vector_signal(pair.flow.target(), blocks, update)
                                  : window().put_vector(pair.flow.target(), blocks);
  if (!accepted(ticket, Kind::put_vector, pair)) {
    for (const Payload& payload : payloads) abandon(payload);
    return false;
  }
  for (const Payload& payload : payloads) track_put(Kind::put_vector, pair, ticket.value(), payload, false);
  if (with_signal) {
    outstanding_.back().position = pair.flow.mark();
    record_signal(pair, update, which, outstanding_.back().position);
  }
  return true;
}

bool Program::do_get_vector(Pair& pair) {
  struct Wanted {
    std::uint32_t buffer;
    std::size_t offset;
    std::size_t bytes;
  };
  std::vector<Wanted> wanted;
  std::vector<GetBlock> blocks;
  for (std::uint64_t left = 1 + draw(kMostBlocks); left > 0; --left) {
    const std::size_t bytes = std::min(draw_size(), Layout::kConstantBytes);
    const std::uint32_t buffer = buffers_.take(bytes);
    if (buffer == Buffers::kNone) break;
    const std::size_t offset = Pattern::kWord * draw((Layout::kConstantBytes - bytes) / Pattern::kWord + 1);
    wanted.push_back({buffer, offset, bytes});
    blocks.push_back({buffers_.memory(buffer).data(), offset, bytes});
  }
  if (blocks.empty()) return false;
  ++operations_;
  const auto ticket = window().get_vector(pair.flow.target(), blocks);
  if (!accepted(ticket, Kind::get_vector, pair)) {
    for (const Wanted& each : wanted) buffers_.give(each.buffer, 0);
    return false;
  }
  for (const Wanted& each : wanted) {
    Outstanding& added = track(Kind::get_vector, pair, ticket.value());
    added.is_get = true;
    added.buffer = each.buffer;
    added.bytes = each.bytes;
    added.constant_offset = each.offset;
  }
  return true;
}

}  // namespace railyard::sim
