/// Runs a command's body as every rank of a world: of the one it is in, or of one that it starts on this machine.
#pragma once

#include <functional>

#include "railyard/bootstrap.hpp"
#include "railyard/settings.hpp"

namespace railyard::tool {

/// What a rank does; its answer is the rank's exit code.
using RankBody = std::function<int(const Settings& settings, Bootstrap& bootstrap)>;

/// Whether a launcher started this process as a rank.
bool inside_a_world(const Settings& settings);

/// Inside a world (railyard launch, a PMIx launcher) this process is one of its ranks. Elsewhere `ranks` processes are
/// forked, in the namespaces of RAILYARD_LAB_NETNS where that is set. Settings that leave no rail are reported once,
/// for all ranks. Returns the exit code of the whole.
int run_ranks(const char* command, int ranks, const Settings& settings, const RankBody& body);

/// Each rank on a core of its own, where there are two: a scheduler that moves them is not what is measured.
void pin_rank(const char* command, int rank);

}  // namespace railyard::tool
