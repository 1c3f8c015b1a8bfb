/// What `railyard top` shows: tables from two looks at the host, with rates of what changed between them.
#pragma once

#include <cstdint>
#include <string>

#include "top_host.hpp"

namespace railyard::tool {

/// How the processes are ordered.
enum class TopOrder : std::uint8_t { pid, sent, received, operations, outstanding };
/// How much is shown of each.
enum class TopDetail : std::uint8_t { processes, rails, links, windows, latency };

struct TopView {
  TopOrder order = TopOrder::pid;
  TopDetail detail = TopDetail::rails;
  int pid = 0;  ///< of one process alone; 0: all
  bool colour = false;
};

const char* to_string(TopOrder order);
const char* to_string(TopDetail detail);

/// `before`: an earlier look; the same as `now`: there are no rates yet, and totals are shown for them.
std::string top_text(const SeenHost& before, const SeenHost& now, const TopView& view);
std::string top_json(const SeenHost& before, const SeenHost& now);

}  // namespace railyard::tool
