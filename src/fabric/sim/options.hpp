/// What a simulated world is made of: one RailOptions per rail, plain numbers, everything else follows from the seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace railyard::fabric::sim {

/// One rail: how fast, how late, how orderly, and what it says it can do. Times are virtual nanoseconds.
struct RailOptions {
  int process = 0;            ///< whose it is
  int number = 0;             ///< which of that process's rails
  std::string plane = "sim";  ///< rails of one plane reach each other

  // The wire.
  double bandwidth = 12.5e9;      ///< bytes per second, each way
  std::int64_t latency = 2'000;   ///< first bit out to first bit in
  std::int64_t jitter = 200;      ///< most that is added to the latency of a packet; alone it changes no order
  std::int64_t post_delay = 100;  ///< from a post until the rail looks at the source
  std::size_t mtu = 4096;         ///< a write or read travels and lands in pieces of this size
  std::size_t interleave = 1;     ///< writes that are sent piece by piece in turns; 1: one after the other

  // Disorder: what the fault kinds turn up.
  double reorder_probability = 0;       ///< share of packets that others may overtake
  std::int64_t reorder_delay = 20'000;  ///< most that such a packet is late
  double delay_probability = 0;         ///< share of packets that are very late, and others behind them where in order
  std::int64_t delay = 500'000;
  double busy_probability = 0;  ///< share of posts answered busy although there is room
  double late_probability = 0;  ///< share of local completions that come late
  std::int64_t late_delay = 500'000;
  std::int64_t completion_delay = 100;  ///< most that any other local completion takes

  // Room.
  std::size_t depth = 256;           ///< sends on the control lane, and as many writes and reads on the data lane
  std::size_t receive_depth = 4096;  ///< posted receives
  std::size_t not_ready = 64;        ///< messages that wait for a receive; the next ones wait in the network
  std::int64_t not_ready_retry = 5'000;

  // What `capabilities` says, and the rail keeps to.
  std::size_t max_message = 16 * 1024;
  std::size_t max_write = std::size_t{1} << 30U;
  std::size_t inject_bytes = 0;
  bool delivery_complete = true;
  bool needs_local_registration = false;
  bool binds_registrations = false;
  bool virtual_addresses = false;
  bool progresses_alone = true;          ///< false: packets wait at the target until it polls
  bool immediate_takes_receive = false;  ///< a write with immediate uses up a posted receive at its target
  bool tells_rate = true;                ///< line_rate is known
};

struct FabricOptions {
  std::uint64_t seed = 1;
  std::vector<RailOptions> rails;
};

}  // namespace railyard::fabric::sim
