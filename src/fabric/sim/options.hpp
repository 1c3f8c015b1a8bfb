/// What a simulated world is made of: one RailOptions per rail, plain numbers, everything else follows from the seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fabric/rail.hpp"

namespace railyard::fabric::sim {

/// What becomes of packets in one direction of a rail.
enum class Carry : std::uint8_t {
  everything,
  late,     ///< held back for long, as by a switch or a retransmission; they land in the end
  nothing,  ///< a black hole: they do not get through, and for long nobody is told
  errors,   ///< they are gone, and after a while their sender is told
};

/// A rail's condition. Links are reliable: one that lost a packet for good carries nothing more until it is connected
/// anew.
struct RailState {
  Carry out = Carry::everything;
  Carry in = Carry::everything;

  bool operator==(const RailState&) const = default;
  /// Whether anything gets through at all, sooner or later.
  bool carries() const { return out <= Carry::late || in <= Carry::late; }
};

/// At `time` the rail goes over to another state.
struct RailChange {
  std::int64_t time = 0;
  std::uint32_t rail = 0;  ///< index in FabricOptions::rails
  RailState state;
};

/// How the others learn that a process is dead.
enum class Death : std::uint8_t {
  told,    ///< its machine closes its links and refuses new ones
  silent,  ///< its machine went with it: silence
};

/// At `time` the process is gone.
struct ProcessDeath {
  std::int64_t time = 0;
  int process = 0;
  Death how = Death::told;
};

/// From `time` on the process is stopped for so long: it calls nothing and polls nothing. Its kernel and its NICs go
/// on.
struct ProcessPause {
  std::int64_t time = 0;
  int process = 0;
  std::int64_t length = 0;
};

/// At `time` something reaches a rail that no process of the world has sent.
struct Intrusion {
  enum class Kind : std::uint8_t {
    garbage,        ///< a message of random bytes
    wrong_session,  ///< a message that was sent before, changed, in the name of no session
    immediate,      ///< a write's immediate for a flow that does not exist
    connection,     ///< a connection under a made-up name, given up again
  };
  std::int64_t time = 0;
  std::uint32_t rail = 0;
  Kind kind = Kind::garbage;
};

/// What the programs on the network do besides careful work. To the network it only means that an access which a target
/// refuses may be nobody's mistake.
struct ProgramFaults {
  bool deregisters = false;  ///< memory is taken back while peers use it
  bool refusals = false;     ///< operations that their targets must refuse
  bool aborts = false;       ///< channels whose memory is taken back and used again before they are closed

  bool any() const { return deregisters || refusals || aborts; }
};

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
  std::size_t mtu = 4096;         ///< a write or read travels and lands in chunks of this size
  std::size_t interleave = 1;     ///< writes that are sent chunk by chunk in turns; 1: one after the other

  // Disorder: what the fault kinds turn up.
  double reorder_probability = 0;       ///< share of packets that others may overtake
  std::int64_t reorder_delay = 20'000;  ///< most that such a packet is late
  double delay_probability = 0;         ///< share of packets that are very late, and others behind them where in order
  std::int64_t delay = 500'000;
  double busy_probability = 0;  ///< share of posts answered busy although there is room
  double late_probability = 0;  ///< share of local completions that come late
  std::int64_t late_delay = 500'000;
  std::int64_t completion_delay = 100;  ///< most that any other local completion takes

  // Loss, while the rail's state is not what it should be.
  double lost_completion_probability = 0;  ///< share of operations that succeed without ever saying so; in any state
  std::int64_t error_delay = 200'000;      ///< until an error is told
  std::int64_t hold_least = 1'000'000;     ///< how late a packet is that was held back
  std::int64_t hold_most = 50'000'000;
  std::int64_t connect_retry = 1'000'000'000;  ///< a connection request that got no answer goes out again
  bool retransmits = false;  ///< what a black hole swallowed is sent again and again, as by a socket, for a while
  std::int64_t retransmit = 200'000;  ///< the first time after so long; then after twice as long, and so on
  std::int64_t give_up = 0;           ///< so long after a packet was lost for good its link is told broken; 0: never
  bool completes_unsent = true;  ///< a plain completion comes although a black hole has the bytes, as from a socket
  bool knows_interface = false;  ///< `rail_down` and `rail_up` events
  double late_success_probability = 0;  ///< share of what a link still held at its end that is told as a success
  std::int64_t late_success_delay = 0;  ///< the longest until then
  double partial_probability = 0;       ///< share of writes that leave a part behind when they fail
  bool knows_liveness = true;           ///< `liveness` has an answer while anything gets through
  bool writes_confirmed = false;        ///< a write completes when its target has answered, as a queue pair's does
  bool refusal_breaks_link = false;     ///< an access that the target refuses costs the link, as a queue pair's does

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
  Fencing fencing = Fencing::exact;
  std::int64_t packet_lifetime = 0;  ///< for a timed fence: an older packet does not reach its target
};

struct FabricOptions {
  std::uint64_t seed = 1;
  std::vector<RailOptions> rails;
  std::vector<RailChange> changes = {};   ///< in any order
  std::vector<ProcessDeath> deaths = {};  ///< in any order
  std::vector<ProcessPause> pauses = {};  ///< in any order
  std::vector<Intrusion> intrusions = {};
  ProgramFaults programs = {};
  bool fence_works = true;  ///< false: a fence says yes and shuts nothing out, to show what it is for
};

}  // namespace railyard::fabric::sim
