/// The set-up messages by which two processes open a channel. What each says is checked before it is believed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/identity.hpp"
#include "railyard/result.hpp"

namespace railyard::message {

/// From the one that connects.
struct Hello {
  Identity identity;
  std::uint32_t worker_index = 0;  ///< which of its workers
  std::uint32_t service_class = 0;
  std::uint32_t shared_links = 0;  ///< for each pair of rails; 0: this channel wants its own
  std::uint16_t flow = 0;          ///< what the listener is to call the channel's flow
  std::uint64_t session = 0;       ///< what its frames must say
  std::uint32_t number = 0;        ///< which shared links it has already and would rather use
  std::uint64_t instance = 0;      ///< of that route; 0: it has none
  std::vector<std::byte> contribution;
};

/// From the one that listens: on which links the channel is to run, and how to know that both ends mean the same ones.
struct Welcome {
  Identity identity;
  std::uint32_t worker_index = 0;
  std::uint16_t flow = 0;
  std::uint64_t session = 0;
  std::uint32_t number = 0;    ///< which of the shared links; RouteKey::kPrivate: its own
  std::uint64_t instance = 0;  ///< of the route
  std::uint64_t digest = 0;    ///< of its links' ends
  std::vector<std::byte> contribution;
};

std::vector<std::byte> write_setup_message(const Hello& hello);
std::vector<std::byte> write_setup_message(const Welcome& welcome);
Result<Hello> read_hello(std::span<const std::byte> bytes);
Result<Welcome> read_welcome(std::span<const std::byte> bytes);

}  // namespace railyard::message
