/// What rails and engines count: of a world (`World::statistics`), of a context (`Context::statistics`).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace railyard {

/// One rail as it stands now.
struct RailStatistics {
  std::string name;              ///< "tcp eth0", "sim 3"
  std::string provider;          ///< the driver's name for what is below it
  std::uint64_t bytes_sent = 0;  ///< of messages, acknowledgements and chunks
  std::uint64_t bytes_received = 0;
  /// False: peers' puts and gets may go by without this side being told, so both sums are the least they can be. So it
  /// is where a NIC does it alone (verbs, libfabric).
  bool sees_one_sided = true;
  std::uint64_t frames_sent = 0;  ///< messages with small operations: not acknowledgements
  std::uint64_t writes_sent = 0;  ///< direct writes (chunks)
  std::uint64_t reads_sent = 0;
  double rate = 0;               ///< measured delivery rate, bytes per second; 0: not measured yet
  bool up = true;                ///< its interface can carry something
  std::uint32_t links = 0;       ///< to peers this process has talked to
  std::uint32_t links_down = 0;  ///< of them, those that carry nothing now
  double deadline = 0;           ///< seconds without an answer after which its slowest link is given up
  // What went wrong with its links.
  std::uint64_t links_suspected = 0;    ///< times that one was late
  std::uint64_t links_lost = 0;         ///< times that one was given up
  std::uint64_t segments_replayed = 0;  ///< segments that went out by it and, as it lost them, once more
};

/// What the engine counted since the world opened.
struct WorldStatistics {
  std::uint64_t operations_completed = 0;
  std::uint64_t acknowledgements_sent = 0;
  std::uint64_t held_out_of_order = 0;  ///< messages that arrived before their turn
  std::uint64_t dropped_stale = 0;      ///< messages with an unknown or stale id
  std::uint64_t dropped_malformed = 0;  ///< messages that failed a check
  std::uint64_t backpressure = 0;       ///< times a queue was full
  std::uint64_t links_suspected = 0;
  std::uint64_t links_lost = 0;
  std::uint64_t links_rejoined = 0;
  std::uint64_t fences = 0;             ///< dead links that their target has shut out
  std::uint64_t segments_replayed = 0;  ///< segments that went out again on another link
  std::uint64_t peers_lost = 0;
  std::uint64_t peers_stalled = 0;  ///< times that a peer was silent though its process lived
  // By loads and stores on the memory of peers on this host: no rail sees these.
  std::uint64_t direct_puts = 0;  ///< and signals
  std::uint64_t direct_gets = 0;
  std::uint64_t direct_atomics = 0;
  std::uint64_t direct_bytes_put = 0;
  std::uint64_t direct_bytes_got = 0;
  std::uint64_t direct_wakes = 0;  ///< peers that slept in a wait when a signal was stored there, and were woken
  std::vector<RailStatistics> rails;
};

}  // namespace railyard
