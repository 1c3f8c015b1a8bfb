/// Messages over channels of a Yard that say which channel they are of.
#pragma once

#include <array>
#include <vector>

#include "contexts.hpp"
#include "yard.hpp"

namespace railyard::message {

/// One message each way at the same time; false where one of them did not arrive as it was.
inline bool exchange(Yard& yard, const Ends& ends, std::uint32_t name, std::size_t bytes = 100) {
  const std::array messages{pattern(bytes, 2 * name), pattern(bytes, 2 * name + 1)};
  std::array<std::vector<std::byte>, 2> targets{std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)};
  const std::array channels{ends.out.get(), ends.in.get()};
  std::array<Request*, 4> requests{};
  for (std::size_t end = 0; end < 2; ++end) {
    const std::array slots{ReceiveSlot{targets[end], 0}};
    requests[end] = must(channels[end]->receive(slots, false));
    requests[2 + end] = must(channels[end]->send(messages[end], 0, nullptr));
  }
  const auto done = [&] {
    bool all = true;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i] == nullptr) continue;
      const auto tested = channels[i % 2]->test(requests[i], {});
      EXPECT_TRUE(tested) << tested.error().text();
      if (!tested) return true;
      if (*tested) requests[i] = nullptr;
      all = all && *tested;
    }
    return all;
  };
  if (!yard.until(done)) return false;
  return targets[0] == messages[1] && targets[1] == messages[0];
}

}  // namespace railyard::message
