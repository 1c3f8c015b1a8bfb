/// What makes a bench round count: fresh data before it, and a check of every byte after it.
#pragma once

#include <cstddef>

#include "bench/contestant.hpp"
#include "bench/referee.hpp"

namespace railyard::bench {

/// The bytes that the operations of a round cover.
std::size_t covered(const Round& round);

/// Before a round: what this rank sends or offers gets content that no earlier round had.
void prepare(Contestant& contestant, const Plan& plan, int rank);

/// After a round: what this rank got must be what the other one sent.
Result<void> verify(Contestant& contestant, const Plan& plan, int rank);

}  // namespace railyard::bench
