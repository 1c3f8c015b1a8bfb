/// SimFabric: a whole network in one thread on a virtual clock, from one seed. Any number of processes and rails.
///
/// Bytes are really copied, from the source when a packet leaves and to the target when it lands, so what a test finds
/// in memory is what a network would have left there. Nothing here depends on real time, on addresses or on the order
/// of a hash table: the same seed and the same calls give the same run, and `trace` shows it.
///
/// State is in pools (ports, links, operations, packets). A pair of rails costs nothing until one connects to the
/// other.
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
  std::uint64_t connects = 0;                   ///< links begun
  std::uint64_t links_lost = 0;                 ///< `lost` events
  std::uint64_t dropped = 0;                    ///< packets that a rail in a bad state did not carry
  std::uint64_t held = 0;                       ///< packets that one held back for long
  std::uint64_t retransmitted = 0;              ///< packets that went out again after a black hole had them
  std::uint64_t fenced = 0;                     ///< packets that a fence kept from landing
  std::uint64_t stale = 0;                      ///< accesses refused when their link was gone: nobody's mistake
  std::uint64_t completions_lost = 0;           ///< operations that succeeded without a completion
  std::uint64_t refused = 0;                    ///< accesses refused where programs ask for what they may not have
  std::uint64_t late_successes = 0;             ///< told after their link was given up
  std::uint64_t partial_writes = 0;             ///< packets of failed writes that left some of their bytes
  std::uint64_t pauses = 0;                     ///< times that a process stopped
  std::uint64_t intrusions = 0;                 ///< arrivals that nobody had sent
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
  /// The same, if that is within so many nanoseconds; otherwise nothing happens.
  bool step_within(std::int64_t nanoseconds);
  /// Packets that have left and not landed.
  std::size_t packets_in_network() const { return packets_.size() - free_packets_.size(); }
  /// From now on the rail is in this state. `FabricOptions::changes` does the same at a given time.
  void set_state(std::uint32_t rail, RailState state);
  RailState state(std::uint32_t rail) const { return ports_[rail].state; }
  /// The process is gone: its rails stop at this instant. What they have sent may still land.
  void kill(int process, Death how);
  bool alive(int process) const { return !dead_[static_cast<std::size_t>(process)]; }
  /// The process does nothing for so long. Whoever plays it must not call for it while `paused`.
  void pause(int process, std::int64_t nanoseconds);
  bool paused(int process) const { return now() < paused_until_[static_cast<std::size_t>(process)]; }
  /// The longest time that the process has been stopped for.
  std::int64_t longest_pause(int process) const { return longest_pause_[static_cast<std::size_t>(process)]; }

  /// Whether `poll` has something for a rail of this process.
  bool ready(int process) const { return ready_[static_cast<std::size_t>(process)] != 0; }
  /// Whether it has something for any process that would poll.
  bool anything_ready() const;

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
    std::uint32_t link = kNone;
    std::uint32_t generation = 0;  ///< of the link: a later one under the same number is not this operation's
    LinkTag tag;
    std::uint32_t next = kNone;  ///< operations of its link whose completion is still to come
    std::uint32_t previous = kNone;
    PostContext* context = nullptr;
    LocalChunk local;
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
    bool swallowed = false;   ///< a chunk or an answer of it is gone: it does not end by itself
    bool completing = false;  ///< its completion is scheduled, delivered or lost
    bool scheduled = false;   ///< its completion is scheduled
    bool listed = false;      ///< its link knows it
    bool finished = false;    ///< its completion was polled
  };

  struct Packet {
    std::uint32_t operation = 0;
    std::uint32_t to = 0;  ///< port
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::int64_t wire_time = 0;  ///< what it took to leave
    std::int64_t launched = 0;   ///< when it left
    bool request = false;
    bool held = false;       ///< a rail held it back: no other does so again
    bool at_target = false;  ///< waits for the receiver's wire
    std::uint8_t tries = 0;  ///< how often it was sent again
    std::unique_ptr<std::byte[]> payload;
    std::size_t capacity = 0;
  };

  struct PostedReceive {
    LocalChunk buffer;
    PostContext* context = nullptr;
  };

  struct Entry {
    Event event;
    std::uint32_t operation = kNone;
    std::uint32_t link = kNone;  ///< that is lost
    std::uint32_t generation = 0;
    LinkTag from;  ///< whose message or write it tells of
  };

  /// One way between two ports.
  struct SimLink {
    enum class State : std::uint8_t { connecting, standing, broken };
    State state = State::connecting;
    bool breaking = false;  ///< news of its end is on the way to its owner
    bool spoilt = false;    ///< it lost a packet and nobody was told: nothing gets through any more
    std::uint32_t from = 0;
    std::uint32_t to = 0;
    std::uint32_t generation = 0;      ///< how many links had this number before
    RemoteId remote = 0;               ///< its owner's name for it
    std::uint32_t operations = kNone;  ///< the first whose completion is still to come
    std::array<std::uint32_t, kLanes> in_flight{};
    LinkTag tag;
  };

  /// A link as its target knows it, also when the other end has forgotten it.
  struct Incoming {
    LinkName id;
    std::uint32_t epoch = 0;
    std::uint32_t link = 0;
    std::uint32_t generation = 0;
  };

  /// What one end of a link is to learn, later.
  struct Notice {
    enum class Kind : std::uint8_t {
      attempt,  ///< a connection request goes out once more
      request,  ///< a connection request arrives
      lost,     ///< the owner learns that its link is broken
      ended,    ///< the target learns that a link has ended
    };
    Kind kind = Kind::attempt;
    bool refused = false;
    std::uint32_t link = 0;
    std::uint32_t generation = 0;
    std::uint32_t port = 0;  ///< the target
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
    std::array<std::uint32_t, kLanes> in_flight{};  ///< where all links share one queue
    Fifo<PostedReceive> receives;
    Fifo<std::uint32_t> not_ready;  ///< operations whose message or immediate waits for a receive
    Fifo<std::uint32_t> arrived;    ///< packets that wait for a poll, where the rail does not progress alone
    Fifo<Entry> completions;
    std::vector<Floor> floors;           ///< by `to`
    std::vector<std::uint32_t> remotes;  ///< links by RemoteId; kNone: free
    std::vector<RemoteId> free_remotes;
    std::vector<Incoming> incoming;
    std::vector<LinkTag> fences;       ///< by `id`: epochs up to the epoch are shut out
    std::vector<std::byte> overheard;  ///< a message that arrived here once, for intruders
    std::string failure;
    RailState state;
    bool open = false;
    bool silent = false;  ///< closed, and nobody answers for it
    /// What a process that was killed still had in hand: nothing waits for it when what is left of that process goes.
    std::vector<PostContext*> orphans;
  };

  // Posting (posts.cc), called by SimRail.
  Post post(std::uint32_t port, RemoteId remote, const Operation& operation);
  Post post_receive(std::uint32_t port, const LocalChunk& buffer, PostContext* context);
  std::size_t poll(std::uint32_t port, std::span<Event> events);
  std::uint32_t& in_flight(std::uint32_t port, SimLink& link, Lane lane);
  SimLink* link_to_post(std::uint32_t port, RemoteId remote, Post& answer);
  void discard_departures(std::uint32_t port);
  void stop(std::uint32_t port);
  void close(std::uint32_t port);
  bool refuse_at_random(std::uint32_t port);
  int check_post(std::uint32_t port, const Operation& operation) const;

  // Links (links.cc).
  RemoteId connect(std::uint32_t port, std::uint32_t to, LinkTag tag);
  void disconnect(std::uint32_t port, RemoteId remote);
  void attempt(std::uint32_t index);
  void take_request_to_connect(std::uint32_t index);
  void break_link(std::uint32_t index, std::int64_t nanoseconds, bool refused);
  void break_link_of(const Operation& operation, std::int64_t nanoseconds, bool refused);
  void spoil_link_of(const Operation& operation);
  SimLink* link_of(const Operation& operation);
  void tell(Notice::Kind kind, std::uint32_t link, std::int64_t nanoseconds, bool refused = false);
  void take_news(std::uint32_t index);
  void take_loss(std::uint32_t index, bool refused, bool unwanted = false);
  void take_end(const Notice& notice);
  void fail_contexts(std::uint32_t index, int fault);
  bool succeeds_late(const Operation& operation);
  void leave_in_part(std::uint32_t index);
  Liveness liveness(std::uint32_t port, RemoteId remote) const;
  void end_link(std::uint32_t index);
  void free_link(std::uint32_t index);
  void end_links(std::uint32_t port);
  void enlist(std::uint32_t index);
  void strike(std::uint32_t index);

  // Fences (fences.cc).
  bool fence(std::uint32_t port, LinkTag tag);
  bool fenced(const Port& port, LinkTag tag) const;
  void shut_out(std::uint32_t port, LinkTag tag);
  bool anything_unpolled(std::uint32_t port, LinkTag tag, bool not_landed_too);

  // Outages (outages.cc).
  Carry way_back(const Operation& operation) const;
  std::int64_t hold(std::uint32_t port);
  void drop(std::uint32_t packet, Carry why);
  void land_in_part(const Packet& packet);
  void resume(int process);
  void intrude(const Intrusion& intrusion);
  void intrude_message(std::uint32_t port, bool overheard);
  void swallow(std::uint32_t packet, std::uint32_t port);
  bool swallowed_again(std::uint32_t packet);
  void turn_away(std::uint32_t packet);
  void refuse_access(std::uint32_t index, int fault);
  void count_refusal(int fault);

  // The wire (wire.cc).
  void start_departing(std::uint32_t port, Lane lane);
  void depart(std::uint32_t port, Lane lane);
  void depart_chunk(std::uint32_t port_index, std::uint32_t index);
  const std::byte* source_of_chunk(Operation& operation, std::size_t bytes);
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
  std::int64_t trouble_of_news(Operation& operation);
  void complete_in(std::uint32_t index, std::int64_t nanoseconds);
  void complete(std::uint32_t index);
  void deliver(std::uint32_t port, const Event& event, std::uint32_t operation);
  void deliver(std::uint32_t port, const Entry& entry);
  void finish(std::uint32_t index);
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
  std::vector<SimLink> links_;
  std::vector<std::uint32_t> free_links_;
  std::vector<Notice> notices_;
  std::vector<std::uint32_t> free_notices_;
  std::vector<bool> dead_;                   ///< by process
  std::vector<std::int64_t> paused_until_;   ///< by process
  std::vector<std::int64_t> longest_pause_;  ///< by process
  std::vector<std::uint32_t> ready_;         ///< by process: entries and packets that a poll would find
  std::uint64_t ready_total_ = 0;
  FabricStatistics statistics_;
  std::uint64_t trace_ = 0;
};

}  // namespace railyard::fabric::sim
