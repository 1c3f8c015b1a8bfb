/// SimFabric: a whole network in one thread on a virtual clock, from one seed. Any number of processes and rails.
///
/// Bytes are really copied, from the source when a packet leaves and to the target when it lands, so what a test finds
/// in memory is what a network would have left there. Nothing here depends on real time, on addresses or on the order
/// of a hash table: the same seed and the same calls give the same run, and `trace` shows it.
///
/// State is in three pools (ports, operations, packets). A pair of rails costs nothing until it exchanges a packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/random.hpp"
#include "fabric/rail.hpp"
#include "fabric/sim/event_queue.hpp"
#include "fabric/sim/fifo.hpp"
#include "fabric/sim/options.hpp"
#include "fabric/sim/registrations.hpp"

namespace railyard::fabric::sim {

class SimFabric;
class SimRail;

/// Moves only when the fabric does. A wait that idles takes it to the next thing that happens.
class VirtualClock final : public Clock {
 public:
  explicit VirtualClock(SimFabric& fabric) : fabric_(&fabric) {}
  std::int64_t now() const override { return now_; }
  void idle() override;

 private:
  friend class SimFabric;
  SimFabric* fabric_;
  std::int64_t now_ = 0;
};

struct FabricStatistics {
  std::uint64_t sends = 0;
  std::uint64_t writes = 0;
  std::uint64_t reads = 0;
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;                      ///< payload that left a rail
  std::uint64_t busy = 0;                       ///< posts answered busy
  std::uint64_t reordered = 0;                  ///< packets that others were allowed to overtake
  std::uint64_t receiver_not_ready = 0;         ///< arrivals that found no posted receive
  std::uint64_t registrations_left = 0;         ///< registrations alive when their rail was closed
  std::uint64_t unknown_registrations = 0;      ///< deregistrations of what was not registered
  std::array<std::uint64_t, kFaults> faults{};  ///< refused accesses, by code

  /// What only a user of the rails that breaks their contract can cause.
  std::uint64_t violations() const;
};

class SimFabric {
 public:
  explicit SimFabric(FabricOptions options);
  ~SimFabric();
  SimFabric(const SimFabric&) = delete;
  SimFabric& operator=(const SimFabric&) = delete;

  VirtualClock& clock() { return clock_; }
  std::int64_t now() const { return clock_.now_; }

  /// Opens the rail of options.rails[index], once. The fabric must outlive it.
  Result<std::unique_ptr<Rail>> open_rail(std::size_t index);

  /// Lets virtual time pass, and happen what is due.
  void advance(std::int64_t nanoseconds);
  /// Goes to the next moment at which something happens. False: nothing will, until somebody posts.
  bool step();
  /// Whether `poll` has something for a rail of this process.
  bool ready(int process) const { return ready_[static_cast<std::size_t>(process)] != 0; }
  bool anything_ready() const { return ready_total_ != 0; }

  const FabricStatistics& statistics() const { return statistics_; }
  /// A digest of everything that happened so far, in order.
  std::uint64_t trace() const { return trace_; }
  /// What the simulator itself allocated: to be taken off a measurement of what runs on it.
  std::size_t memory_bytes() const;

 private:
  friend class SimRail;
  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// A post, from `posted` until its packets are gone and its completion was polled.
  struct Operation {
    enum class Kind : std::uint8_t { send, write, read };
    Kind kind = Kind::send;
    Lane lane = Lane::control;
    std::uint32_t from = 0;  ///< port that posted it
    std::uint32_t to = 0;
    PostContext* context = nullptr;
    LocalPiece local;
    std::uint64_t address = 0;
    std::uint64_t key = 0;
    WriteOptions options;
    std::size_t departed = 0;    ///< bytes that left their source
    std::size_t landed = 0;      ///< bytes in place
    std::uint32_t packets = 0;   ///< in the network or waiting for a receive
    std::uint32_t held = kNone;  ///< the packet of a send that was copied at the post, or that waits for a receive
    int fault = kFaultNone;
    bool queued = false;      ///< in a port's departure queue
    bool requested = false;   ///< a read whose request has left
    bool completing = false;  ///< its completion is scheduled or delivered
    bool finished = false;    ///< its completion was polled
  };

  struct Packet {
    std::uint32_t operation = 0;
    std::uint32_t to = 0;  ///< port
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::int64_t wire_time = 0;  ///< what it took to leave
    bool request = false;
    std::unique_ptr<std::byte[]> payload;
    std::size_t capacity = 0;
  };

  struct PostedReceive {
    LocalPiece buffer;
    PostContext* context = nullptr;
  };

  struct Entry {
    Event event;
    std::uint32_t operation = kNone;
  };

  /// Packets of one port to another in order arrive no earlier than this.
  struct Floor {
    std::uint32_t to = 0;
    std::array<std::int64_t, kLanes> time{};
  };

  /// One end of the network: the state behind a SimRail. Stays when the rail is closed, so late packets find it closed.
  struct Port {
    explicit Port(Registrations::Terms terms) : registrations(terms) {}
    Registrations registrations;
    std::array<Fifo<std::uint32_t>, kLanes> departures;  ///< operations with something to send
    std::array<bool, kLanes> departing{};                ///< a departure is scheduled
    std::array<std::int64_t, kLanes> sends_free_at{};
    std::array<std::int64_t, kLanes> receives_free_at{};
    std::array<std::uint32_t, kLanes> in_flight{};
    Fifo<PostedReceive> receives;
    Fifo<std::uint32_t> not_ready;  ///< operations whose message or immediate waits for a receive
    Fifo<std::uint32_t> arrived;    ///< packets that wait for a poll, where the rail does not progress alone
    Fifo<Entry> completions;
    std::vector<Floor> floors;             ///< by `to`
    std::vector<std::uint64_t> connected;  ///< a bit for each port
    std::string failure;
    bool open = false;
  };

  // Posting (posts.cc), called by SimRail.
  Post post(std::uint32_t port, const Operation& operation);
  Post post_receive(std::uint32_t port, LocalPiece buffer, PostContext* context);
  std::size_t poll(std::uint32_t port, std::span<Event> events);
  void connect(std::uint32_t port, RemoteId remote);
  void disconnect(std::uint32_t port, RemoteId remote);
  bool connected(const Port& port, RemoteId remote) const;
  void stop(std::uint32_t port);
  void close(std::uint32_t port);
  bool refuse_at_random(std::uint32_t port);
  int check_post(std::uint32_t port, const Operation& operation) const;

  // The wire (wire.cc).
  void start_departing(std::uint32_t port, Lane lane);
  void depart(std::uint32_t port, Lane lane);
  void depart_piece(std::uint32_t port_index, std::uint32_t index);
  const std::byte* source_of_piece(Operation& operation, std::size_t bytes);
  void launch(std::uint32_t port, std::uint32_t packet);
  std::int64_t arrival_time(std::uint32_t from, std::uint32_t to, Lane lane, std::int64_t wire_time);
  void arrive(std::uint32_t packet);
  void reach(std::uint32_t packet);
  void land(std::uint32_t packet);
  void land_send(std::uint32_t packet);
  void land_write(std::uint32_t packet);
  void land_read(std::uint32_t packet);
  void take_request(std::uint32_t packet);
  void offer_receives(std::uint32_t port);
  bool take_receive(std::uint32_t port, PostedReceive& taken);

  // Endings (endings.cc).
  void fail(std::uint32_t index, int fault);
  void settle(std::uint32_t index);
  void complete_in(std::uint32_t index, std::int64_t nanoseconds);
  void complete(std::uint32_t index);
  void deliver(std::uint32_t port, const Event& event, std::uint32_t operation);
  void release(std::uint32_t index);
  std::int64_t completion_delay(const RailOptions& options);

  std::uint32_t take_packet(std::size_t bytes);
  void give_packet(std::uint32_t packet);
  std::int64_t wire_time(std::uint32_t port, std::size_t bytes) const;
  std::int64_t latency(std::uint32_t from, std::uint32_t to) const;
  void dispatch(const Scheduled& next);
  void note(std::uint64_t what, std::uint64_t who, std::uint64_t how_much);
  std::uint64_t draw(std::int64_t most) { return random_.below(static_cast<std::uint64_t>(most) + 1); }
  const RailOptions& options(std::uint32_t port) const { return options_.rails[port]; }

  FabricOptions options_;
  Random random_;
  VirtualClock clock_;
  EventQueue queue_;
  std::vector<Port> ports_;
  std::vector<Operation> operations_;
  std::vector<std::uint32_t> free_operations_;
  std::vector<Packet> packets_;
  std::vector<std::uint32_t> free_packets_;
  std::vector<std::uint32_t> ready_;  ///< by process: entries and packets that a poll would find
  std::uint64_t ready_total_ = 0;
  FabricStatistics statistics_;
  std::uint64_t trace_ = 0;
};

}  // namespace railyard::fabric::sim
