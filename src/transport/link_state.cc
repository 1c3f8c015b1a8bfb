#include "transport/link_state.hpp"

#include <fmt/format.h>

namespace railyard::transport {

const char* to_string(LinkState state) {
  static constexpr std::array kNames{"connecting", "up", "suspect", "down", "trying"};
  static_assert(kNames.size() == kLinkStates);
  return kNames[static_cast<std::size_t>(state)];
}

const char* to_string(LinkEvent event) {
  static constexpr std::array kNames{"taken", "late", "answered", "proven", "lost", "due", "unreachable", "ended"};
  static_assert(kNames.size() == kLinkEvents);
  return kNames[static_cast<std::size_t>(event)];
}

const char* to_string(LinkAction action) {
  static constexpr std::array kNames{"none", "probe", "leave", "connect", "retry", "rejoin", "disconnect"};
  return kNames[static_cast<std::size_t>(action)];
}

std::string link_state_diagram() {
  std::string text = "stateDiagram-v2\n    [*] --> connecting\n";
  for (std::size_t from = 0; from < kLinkStates; ++from) {
    for (std::size_t event = 0; event < kLinkEvents; ++event) {
      const auto state = static_cast<LinkState>(from);
      const LinkStep found = step(state, static_cast<LinkEvent>(event));
      if (found == LinkStep{state, LinkAction::none}) continue;
      text += fmt::format("    {} --> {}: {}", to_string(state), to_string(found.next),
                          to_string(static_cast<LinkEvent>(event)));
      if (found.action != LinkAction::none) text += fmt::format(" / {}", to_string(found.action));
      text += '\n';
    }
  }
  return text;
}

}  // namespace railyard::transport
