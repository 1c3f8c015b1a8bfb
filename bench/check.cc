#include "bench/check.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "bench/pattern.hpp"

namespace railyard::bench {

namespace {

std::uint64_t seed_of(const Plan& plan, int writer) {
  return plan.round.serial * 1000003 + plan.contestant * 101 + static_cast<std::uint64_t>(writer);
}

}  // namespace

std::size_t covered(const Round& round) {
  return round.bytes * static_cast<std::size_t>(std::min<std::uint64_t>(round.count, round.slots));
}

void prepare(Contestant& contestant, const Plan& plan, int rank) {
  const Round& round = plan.round;
  const std::size_t bytes = round.bytes * round.slots;
  if (round.test == Test::atomic) {
    if (rank == 1) std::memset(contestant.exposed().data(), 0, sizeof(std::uint64_t));
  } else if (round.test == Test::get) {
    if (rank == 1) fill_pattern(contestant.exposed().first(bytes), seed_of(plan, rank));
  } else if (rank == 0 || round.test == Test::put_signal) {
    fill_pattern(contestant.buffer().first(bytes), seed_of(plan, rank));
  }
}

Result<void> verify(Contestant& contestant, const Plan& plan, int rank) {
  const Round& round = plan.round;
  if (round.test == Test::atomic) {
    std::uint64_t word = 0;
    std::memcpy(&word, contestant.exposed().data(), round.bytes);
    if (rank == 0 || !contestant.changes_words() || word == round.count) return {};
    return Error(Status::rail_failed,
                 fmt::format("{}: the word holds {} after {} additions of one", contestant.name(), word, round.count));
  }
  const bool receives = round.test == Test::put_signal || rank == (round.test == Test::get ? 0 : 1);
  if (!receives) return {};
  const auto memory = round.test == Test::get ? contestant.buffer() : contestant.exposed();
  const auto wrong = find_difference(memory.first(covered(round)), seed_of(plan, 1 - rank));
  if (!wrong) return {};
  return Error(Status::rail_failed, fmt::format("{}: wrong data at byte {} of {} after {} operations of {} bytes",
                                                contestant.name(), *wrong, covered(round), round.count, round.bytes));
}

}  // namespace railyard::bench
