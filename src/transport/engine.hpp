/// Engine: the transport of one process. Owns flows, links and what is under way; every guarantee of the design's
/// section 3 lives here, once, for all drivers. It owns no thread: whoever holds the progress lock moves it on, and
/// whoever has nothing to do may sleep on its rails (waiting.hpp).
///
/// One pass (`progress`): poll every rail (at most a batch each), apply what arrived in sequence, post what waits, send
/// acknowledgements that found no frame to ride on, and once a millisecond look after the links (docs/failover.md).
/// Handlers of arrivals only change state; posting happens after them (promise 7).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/id_table.hpp"
#include "base/identity.hpp"
#include "fabric/rail.hpp"
#include "memory/cache.hpp"
#include "memory/slab.hpp"
#include "railyard/window.hpp"
#include "railyard/world.hpp"
#include "transport/device_words.hpp"
#include "transport/engine_telemetry.hpp"
#include "transport/engine_trace.hpp"
#include "transport/exposed_region.hpp"
#include "transport/flow.hpp"
#include "transport/latency_sampler.hpp"
#include "transport/pace.hpp"
#include "transport/pool.hpp"
#include "transport/progress_lock.hpp"
#include "transport/registry.hpp"
#include "transport/scheduler.hpp"
#include "transport/slots.hpp"
#include "transport/vector.hpp"
#include "transport/waiting.hpp"

namespace railyard::transport {

/// A peer as the world's directory knows it.
struct PeerAddress {
  Identity identity;
  struct RailAt {
    std::string fabric;
    std::span<const std::byte> address;
  };
  std::vector<RailAt> rails;
};

struct EngineParts {
  Settings settings;
  Clock* clock = nullptr;
  std::vector<std::unique_ptr<fabric::Rail>> rails;
  /// A world's engine knows its peers by rank, and makes route and flow when one is first talked to. Of size 0: there
  /// are no ranks; whoever uses the engine opens both, for peers of its own numbering.
  int rank = 0;
  int size = 1;
  Identity identity;
  /// Looks a peer up: when a route to it is made, and when one of its links is made anew.
  std::function<Result<PeerAddress>(int)> find_peer;
};

/// A route that its user opens.
struct RouteParts {
  int peer = -1;    ///< what `find_peer` is asked for
  std::string who;  ///< for messages
  RouteName name;
  RouteKey key;
  std::uint64_t instance = 0;
};

/// A flow that its user opens.
struct FlowParts {
  Route* route = nullptr;
  std::uint16_t id = 0;  ///< from `reserve_flow`
  std::uint16_t remote_id = 0;
  std::uint64_t session_out = 0;
  std::uint64_t session_in = 0;
  Inbox* inbox = nullptr;
};

struct PutRecord {
  std::uint32_t exposed_region = 0;
  std::uint64_t offset = 0;
  std::span<const std::byte> bytes;
};
struct SignalRecord {
  std::uint32_t exposed_region = 0;
  std::uint64_t index = 0;
  SignalOp op = SignalOp::add;
  std::uint64_t value = 0;
};
/// A message for the peer's Inbox. The body may lie in two places.
struct MessageRecord {
  std::uint8_t detail = 0;
  std::uint32_t number = 0;
  std::uint64_t offset = 0;
  std::span<const std::byte> body;
  std::span<const std::byte> more = {};
};
struct AtomicRecord {
  std::uint32_t exposed_region = 0;
  std::uint64_t offset = 0;
  AtomicOp op = AtomicOp::add;
  wire::AtomicBody body;
  wire::WordKind kind = wire::WordKind::bits;
};
/// A transfer between local memory and a peer's region.
struct Bulk {
  std::byte* local = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t remote_offset = 0;
  RemoteMemory remote;
  std::shared_ptr<memory::Region> region;
  std::shared_ptr<const void> keep;
  std::uint64_t* counter = nullptr;
  std::uint64_t counter_value = 0;
};

/// Blocks of one vector.
struct VectorWork {
  RemoteMemory remote;
  std::span<const Block> blocks;
  std::shared_ptr<const void> keep;
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(EngineParts parts);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  ProgressLock& progress_lock() { return progress_lock_; }
  const Settings& settings() const { return settings_; }
  Clock& clock() const { return *clock_; }
  std::span<fabric::Rail* const> rails() const { return rail_views_; }
  memory::RegionCache& cache() { return *cache_; }
  /// The longest put that travels inside a frame.
  std::size_t inline_bytes() const { return inline_bytes_; }

  // ---- With the progress lock held ----

  /// Makes memory and signals reachable for peers; the id goes to them.
  Result<std::uint32_t> expose(const ExposedRegion& exposed_region) { return exposed_regions_.insert(exposed_region); }
  /// When this returns, no word of it is being changed any more either.
  void conceal(std::uint32_t id);
  /// Takes registered memory back: when this returns, no rail and no peer reads or writes a byte of it. Operations of
  /// our own that still need it fail with a cause; a link that carries one of them is made anew, and nothing else is
  /// lost. Polls the rails: not from an Inbox or another handler. Frames of peers are kept out by `conceal`, first;
  /// what the region cache keeps of the memory is the caller's to have forgotten.
  void revoke(memory::Region& region);
  /// The same for the sources of one flow's operations: its own alone, whoever else uses the same pages.
  void revoke(const Flow& flow);
  /// Operations under way advance no counter in this memory any more.
  void forget_counters(std::span<const std::uint64_t> counters) {
    operations_.for_each([counters](Operation& operation) {
      const std::uint64_t* const counter = operation.counter;
      if (counter >= counters.data() && counter < counters.data() + counters.size()) operation.counter = nullptr;
    });
  }

  /// Words of our own in the memory of GPUs. Whoever begins a change and does not wait for it calls `push_words`.
  DeviceWords& device_words() { return words_; }
  void push_words() { waiting_.nudge_later(); }
  /// Counters in the memory of a GPU: operations advance `MirroredWords::latest`.
  void mirror_counters(MirroredWords& counters) { mirrored_counters_.push_back(&counters); }
  void forget_mirror(MirroredWords& counters);

  /// The flow to a peer, connected on first use.
  Result<Flow*> flow(int peer);
  /// The flow if there is one already: also without the progress lock.
  Flow* existing_flow(int peer) const {
    // Acquire: pairs with the store in `make_flow`; the flow is whole when seen.
    return flows_[static_cast<std::size_t>(peer)].load(std::memory_order_acquire);
  }

  /// Routes and flows of an engine without ranks.
  Result<Route*> open_route(RouteParts parts);
  const Registry& registry() const { return registry_; }
  /// An id that no flow has; until it is released, or a flow opened with it is closed, nobody else gets it.
  Result<std::uint16_t> reserve_flow();
  void release_flow(std::uint16_t id) { free_ids_.push_back(id); }
  Flow* open_flow(const FlowParts& parts);
  /// Ends a flow and what it has under way; with the last one, its route. Says nothing to the peer.
  void close_flow(Flow& flow);
  /// Gives a peer up that does not answer. Returns at once; the passes that follow shut the peer's links out, and then
  /// every flow of the route fails (`Inbox::on_failed`). From that moment nothing of the peer's lands, and no rail
  /// holds an operation of these flows. `cause` is the flow on whose behalf: the others are told that it was not their
  /// doing. Where the flow has failed already, that was told when it did.
  void begin_shut_out(Flow& cause, const std::string& why) { lose_peer(*cause.route, why, &cause); }
  /// The same, and runs passes until it is done.
  void shut_out(Flow& cause, const std::string& why);
  std::size_t flow_count() const { return flow_storage_.size(); }

  // Each try_ answers false for "no room now": nothing was changed.

  /// Records that travel in one frame. `number` names the operation.
  bool try_records(Flow& flow, const PutRecord* put, const SignalRecord* signal, std::uint64_t& number);
  bool try_atomic(Flow& flow, const AtomicRecord& atomic, void* before, Ticket& ticket);
  bool try_message(Flow& flow, const MessageRecord& message, std::uint64_t& number);
  /// A small message of the user's left or arrived on the flow: whoever sends such only waits for each.
  void note_small(Flow& flow) const { Scheduler::note_small(flow, now_); }
  /// The longest body of a message.
  static constexpr std::size_t kMostMessage = wire::kFrameBytes - wire::kRecordsAt - wire::record_bytes(0);
  /// An ordered write over all links and, after it, a signal or a message.
  bool try_write(Flow& flow, const Bulk& bulk, const SignalRecord* signal, std::uint64_t& number);
  bool try_write(Flow& flow, const Bulk& bulk, const MessageRecord& message, std::uint64_t& number);
  /// A write outside the sequence, or a read.
  bool try_unordered(Flow& flow, const Bulk& bulk, Operation::Kind kind, Ticket& ticket);
  /// Ordered blocks and, after all of them, a signal: one operation. Not more than VectorShape::kMost, not none.
  bool try_vector(Flow& flow, const VectorWork& work, const SignalRecord* signal, std::uint64_t& number);
  /// Reads in one slot. As many at most.
  bool try_reads(Flow& flow, const VectorWork& work, Ticket& ticket);
  /// An atomic of the target's NIC, outside the sequence; `before` may be null.
  bool try_native(Flow& flow, const Bulk& at, const fabric::AtomicRequest& request, void* before, Ticket& ticket);
  static void fence(Flow& flow) { flow.sender.request_fence(); }
  /// Keeps back what is submitted between the two; it leaves with the next submission or `push`.
  static void cork(Flow& flow) { flow.sender.corked = true; }
  static void uncork(Flow& flow) { flow.sender.corked = false; }
  void push(Flow& flow);

  /// One bounded pass. Returns whether anything happened.
  bool progress();
  /// Sends every acknowledgement that is owed, for a caller that may not make progress for a while.
  void report_now() {
    if (!reporting_.empty()) report(true);
    ring();
  }
  /// Finds out whether a peer is still there, also where nothing was ever sent to it: if not, it is lost.
  void check_on(int peer);
  void check_on(Route& route);
  /// Says that the peer's memory is used past the engine, which watches over the peer all the same.
  void use_directly(Flow& flow);
  /// The longest that anybody waits for handshakes.
  static constexpr std::int64_t kHandshakeWait = 1'000'000'000;
  /// Fails everything outstanding to the peer and all that comes later.
  void fail_flow(Flow& flow, Error error);

  WorldStatistics statistics() const;
  /// What the times of links and routes are measured by.
  std::int64_t health_clock() const { return beat_; }
  /// What is submitted from now on is of this one, until another comes or it is forgotten.
  void submits(Submitter& submitter) { submitter_ = &submitter; }
  void forget(const Submitter& submitter) {
    sampler_.forget(submitter);
    if (submitter_ == &submitter) submitter_ = &nobody_;
  }
  /// From now on passes publish what the engine counts; its user ends that before anything that `more` uses goes.
  void begin_publishing(EngineTelemetry::Parts parts);
  void end_publishing();
  /// From now on all that the engine does is recorded. Before anything is submitted.
  void begin_tracing(std::shared_ptr<telemetry::Trace> trace, const std::string& context);

  // ---- Without the progress lock ----

  /// Null: nothing is published. Stays what it is between the two calls above.
  EngineTelemetry* telemetry() const { return telemetry_.get(); }
  const EngineTrace& trace() const { return trace_; }

  /// Whether a slot was ever given out under that number.
  bool slot_known(const Ticket& ticket) const { return ticket.slot - 1 < kSlots && slots_.was_taken(ticket.number); }
  bool slot_done(const Ticket& ticket) const { return slots_.done(ticket.slot - 1, ticket.number); }
  /// How an operation out of sequence that is done has failed; nothing: it has not.
  std::optional<Failure> slot_failure(const Ticket& ticket) const { return slots_.failures().find(ticket.number); }
  Status slot_status(const Ticket& ticket) const {
    const auto failure = slot_failure(ticket);
    return failure ? status_of(failure->cause) : Status::ok;
  }
  /// A failed operation to that peer that nobody has asked about, once.
  std::optional<Error> untold_failure(int peer) const;
  /// Operations of all flows that are not complete yet.
  std::uint64_t outstanding() const { return outstanding_.load(std::memory_order_acquire); }

  /// Peers whose memory is used past the engine and that do not know it yet: they could not say goodbye.
  std::uint32_t pending_handshakes() const { return pending_handshakes_.load(std::memory_order_acquire); }

  bool any_failed() const { return any_failed_.load(std::memory_order_acquire); }
  /// The peer that was lost last (not one that has left); -1: none.
  int last_lost() const { return last_lost_.load(std::memory_order_acquire); }

  /// Passes between two looks at the clock in a wait.
  static constexpr std::uint32_t kPassesPerLook = 16;
  /// Runs passes until `done` answers true; false when `nanoseconds` have gone by first.
  /// `sleepers`: counts those who sleep, for threads and peers that change what `done` looks at past the engine; null:
  /// only passes do.
  template <typename Done>
  bool wait_until(Done&& done, std::int64_t nanoseconds, Sleepers* sleepers = nullptr);
  /// The same for a word that peers may change by themselves: looks at it many times between two passes.
  template <typename Done>
  bool wait_for_word(Done&& done, std::int64_t nanoseconds, Pace& pace, Sleepers* sleepers);
  /// The pass that is due, if no other thread is making one. Returns whether anything happened.
  bool pass(Pace& pace);

  /// How threads sleep until there is something to do, and are woken.
  Waiting& waiting() { return waiting_; }
  const Waiting& waiting() const { return waiting_; }
  /// For whoever has changed a word that threads of a peer may wait for, past the engine: wakes them.
  void wake_peer(int peer);

 private:
  struct LinkRef {
    Route* route = nullptr;
    std::uint16_t index = 0;
  };
  /// What the engine keeps of one rail.
  struct RailState {
    memory::Buffer* to_post = nullptr;  ///< receive buffers that the rail had no room for yet
    std::uint32_t posted_receives = 0;
    std::uint32_t most_receives = 0;
    std::uint64_t emptied = 0;  ///< the last poll of all rails that left nothing in this one
    bool down = false;
    std::vector<LinkRef> links;  ///< by RemoteId
    RailStatistics statistics;
  };
  /// A peer's request to shut out one of its links, until it is answered.
  struct FenceRequest {
    Flow* flow = nullptr;
    wire::LinkEnds ends;
    std::uint32_t epoch = 0;
    std::int64_t not_before = 0;
  };

  explicit Engine(EngineParts parts);
  Result<void> start();

  // engine.cc
  Result<Flow*> make_flow(int peer);
  Flow* arriving_flow(std::uint32_t id);
  Result<void> connect_route(Route& route, const PeerAddress& peer, bool network_only);
  Result<void> connect_link(Route& route, Link& link, const PeerAddress& peer);
  void retire();
  bool retire_flow(Flow& flow);
  bool retire_route(Route& route);
  void drop_link(Link& link);
  void disconnect(const Link& link);
  /// Polls every rail once, at most a batch each; returns how much had happened.
  std::size_t poll_rails();
  void note_backpressure() { ++counts_.backpressure; }
  [[gnu::noinline, gnu::cold]] void publish();

  std::size_t do_chores();
  Waiting::Agenda agenda() const;

  // submit.cc
  Operation* open_frame(Flow& flow, std::size_t bytes);
  Operation* queue_frame(Flow& flow);
  Operation* queue_operation(Flow& flow, Operation::Kind kind);
  Operation* queue_bulk(Flow& flow, Operation::Kind kind, const Bulk& bulk);
  using What = telemetry::TraceOperation;
  std::uint64_t count_submission(Flow& flow, What what, std::uint64_t bytes);
  void count_slot(Flow& flow, std::uint32_t slot, What what, std::uint64_t bytes);
  void count_for_submitter(What what, std::uint64_t bytes) {
    Submitter::Count& count = submitter_->of(what);
    ++count.operations;
    count.bytes += bytes;
  }
  [[gnu::noinline, gnu::cold]] void note_submission(const Flow& flow, std::uint64_t number, What what,
                                                    std::uint64_t bytes);
  [[gnu::noinline, gnu::cold]] void note_slot(const Flow& flow, std::uint32_t slot, What what, std::uint64_t bytes);
  void count_outstanding(Flow& flow, std::int64_t change);
  template <typename Append>
  bool queue_write(Flow& flow, const Bulk& bulk, bool with_frame, Append&& append, std::uint64_t& number);
  static void append_put(Operation& frame, const PutRecord& put, bool joined = false);
  static void append_signal(Operation& frame, const SignalRecord& signal, bool joined);
  static void append_message(Operation& frame, const MessageRecord& message);
  void activate(Flow& flow);

  // vector.cc
  std::vector<Operation*> take_operations(Flow& flow, std::uint32_t count, std::uint32_t frames);
  static void queue_taken(Flow& flow, Operation& operation, Operation::Kind kind);
  static void set_block(Operation& operation, const VectorWork& work, const Block& block);

  // transmit.cc
  bool transmit();
  /// What this pass has posted leaves.
  void ring() {
    for (fabric::Rail* rail : bells_) rail->ring();
  }
  std::uint32_t transmit_flow(Flow& flow, std::uint32_t most);
  bool start_operation(Flow& flow, Operation& operation);
  bool post_frame(Flow& flow, Operation& operation);
  bool post_chunk(Flow& flow, Operation& operation);
  bool post_atomic(Flow& flow, Operation& operation);
  std::uint32_t replay(Flow& flow, std::uint32_t most);
  bool replay_segment(Flow& flow, Segment& segment);
  void queue_replies(Flow& flow);
  fabric::Post post_chunk_on(Flow& flow, Operation& operation, Link& link);
  fabric::Post post_segment(Flow& flow, Segment& segment, Link& link);
  fabric::Post hand_over(Flow& flow, Segment& segment, Link& link);
  void write_header(Flow& flow, std::byte* frame, wire::FrameKind kind, std::uint16_t records, std::uint32_t sequence,
                    std::uint32_t bytes);
  bool report(bool idle);
  bool post_acknowledgement(Flow& flow);
  bool post_report(Flow& flow, Link& link, memory::Buffer* buffer);
  std::uint32_t grant(Flow& flow);
  void post_failed(Flow& flow, Link& link);

  // notice.cc
  bool send_notice(Flow& flow, Link& link, const wire::RecordHeader& record, std::span<const std::byte> body = {});
  bool send_notice(Flow& flow, const wire::RecordHeader& record, std::span<const std::byte> body = {});
  static Flow* control_flow(const Route& route);
  static wire::LinkEnds ends_of(const Route& route, const Link& link);
  void on_notice(Flow& flow, const memory::Buffer& buffer);
  void on_pong(Route& route, wire::LinkEnds ends, std::uint32_t round);
  void on_fence(Flow& flow, wire::LinkEnds ends, std::uint32_t epoch, LossCause cause);
  void on_fenced(Flow& flow, wire::LinkEnds ends, std::uint32_t epoch, std::span<const std::byte> body);

  // refuse.cc
  void refuse(Flow& flow, std::uint32_t sequence, std::uint32_t record, std::uint32_t count, FailureCause cause);
  static FailureCause refusal_cause(const ExposedRegion* exposed_region, const wire::RecordReader::Record& record);
  bool tell_refusals();
  void tend_refusals(Flow& flow);
  void on_refused(Flow& flow, std::span<const std::byte> body);
  void on_confirmed(Flow& flow, std::uint64_t known);
  void fail_records(Flow& flow, const Segment& segment, const wire::RefusedRecords& refused);
  void note_failure(Flow& flow, std::uint64_t number, std::uint32_t sequence, FailureCause cause);
  void end_slot(std::uint32_t slot, FailureCause cause);
  void fail_operation(Operation& operation, FailureCause cause, std::uint32_t sequence);
  bool make_void(Segment& segment);
  bool post_void(Flow& flow, Operation& operation);
  void note_fault(Segment& segment);

  // notice.cc
  void note_for(Route& route);
  bool answer_notices();
  bool send_pong(Route& route, const Pong& pong);
  bool may_answer(const Pong& pong) const;
  void open_way_back(Route& route, wire::LinkEnds ends);
  bool answer_fences();
  bool answer_fence(const FenceRequest& request);
  void take_leave(Flow& flow, std::uint32_t sequence);
  bool answer_leave(Route& route);
  void say_goodbye();

  // health.cc
  void watch(Route& route);
  bool begin_watch(Route& route);
  void restart_ages(Route& route) const;
  bool at_rest(const Flow& flow) const;
  bool at_rest(const Route& route) const;
  static bool used_directly(const Route& route);
  void look_after_links();
  void look_after(Route& route);
  void begin_handshake(Route& route);
  void look_at_head(Flow& flow);
  void look_at_deliveries(Route& route, Link& link);
  void look_at_connection(Route& route, Link& link);
  std::int64_t attempt_time() const;
  void look_at_silence(Route& route);
  static bool owes(const Route& route);
  static bool forgotten(const Route& route);
  fabric::Liveness liveness(Route& route);
  void note_stall(Route& route, std::int64_t silence);
  void suspect(Route& route, Link& link);
  void start_probe(Route& route, bool answering);
  void judge(Route& route);
  void ask_again(Route& route);
  bool ask(Route& route, Link& link, bool thorough = false);
  bool carries(Link& link);
  bool is_stuck(Link& link, std::int64_t age, std::int64_t limit);
  std::int64_t stuck_after(const Link& link) const;

  // failover.cc
  void on_lost(std::size_t rail, const fabric::Event& event);
  void on_left(const fabric::LinkTag& tag);
  void on_rail_state(std::size_t rail, bool down);
  void fail_link(Route& route, Link& link, LossCause cause, const std::string& why);
  void fail_links(Route& route, LossCause cause);
  void leave(Route& route, Link& link, LossCause cause, const std::string& reason);
  std::uint32_t leave_link(Flow& flow, const Link& link);
  void ask_for_fences(Route& route, Link& link);
  void ask_for_fence(Flow& flow, Link& link);
  void release_fenced(Flow& flow, Link& link, const wire::FencedBody& report, std::span<const std::byte> bits);
  void queue_again(Flow& flow, Segment& segment);
  void segment_came_back(Flow& flow, Segment& segment, fabric::Blame blame, const std::string& why);
  void try_link(Route& route, Link& link);
  void tend_attempt(Route& route, Link& link);
  void attempt_failed(Route& route, Link& link);
  void announce_return(Route& route, Link& link);
  void finish_handshake(Route& route);
  void spread_gossip();
  static fabric::LinkTag tag_of(const Route& route, const Link& link);

  // loss.cc
  bool nobody_there(const Route& route) const;
  bool given_up_by_peer(const Route& route) const;
  bool lose_if_gone(Route& route);
  void lose_peer(Route& route, const std::string& why, const Flow* cause = nullptr);
  void part_from(Route& route);
  void begin_loss(Route& route, Loss loss);
  bool end_losses();
  bool shut_out_inbound(Route& route);
  void tell_loss(Route& route);

  // receive.cc
  void handle(std::size_t rail, const fabric::Event& event);
  void on_message(std::size_t rail, memory::Buffer* buffer, std::size_t bytes);
  void on_landed(const fabric::Event& event, std::size_t rail);
  void on_failed(std::size_t rail, const fabric::Event& event);
  void on_segment_done(Segment* segment, bool delivered);
  void accept_report(Flow& flow, const wire::FrameHeader& header);
  void release_ready(Flow& flow);
  bool release_all_ready();
  bool apply_frame(Flow& flow, const wire::FrameHeader& header, memory::Buffer& buffer);
  bool apply_records(Flow& flow, FrameProgress& frame);
  enum class Applied : std::uint8_t { yes, refused, later };
  /// `rest`: what follows in the frame.
  Applied apply_record(Flow& flow, const wire::RecordReader::Record& record, const wire::RecordReader& rest,
                       FailureCause& cause);
  void apply_reply(Flow& flow, const wire::RecordReader::Record& record);
  void report_soon(Flow& flow);
  void post_receives(std::size_t rail);
  bool post_receive(std::size_t rail, memory::Buffer& buffer);
  void give_receive(std::size_t rail, memory::Buffer* buffer);
  void give_report(memory::Buffer* buffer);
  static std::uint64_t session(const Identity& from, const Identity& to);

  // words.cc
  Applied begin_put(Flow& flow, const ExposedRegion& exposed_region, const wire::RecordReader::Record& record,
                    wire::RecordReader rest);
  bool begin_word(Flow& flow, const ExposedRegion& exposed_region, const wire::RecordReader::Record& record);
  bool end_words();
  void end_word(Flow& flow, const DeviceWords::End& end);
  void note_counter(const std::uint64_t* counter);

  // revoke.cc
  void take_back(const std::function<bool(const Operation&)>& chosen);
  void take_back_segments(const std::function<bool(const Operation&)>& chosen);

  // complete.cc
  void finish_segment(Segment* segment);
  void finish_operation(Operation* operation);
  /// Whether it took effect is not known, and it is not sent again.
  void give_up_atomic(Operation& operation, FailureCause cause);
  void release_segment(Segment* segment);
  void release_operation(Operation* operation);
  void leave_flight(Segment& segment, bool delivered);
  static void let_go(Segment& segment);
  void give_up_segment(Segment* segment);

  Settings settings_;
  Clock* clock_;
  int rank_;
  int size_;
  Identity identity_;
  std::function<Result<PeerAddress>(int)> find_peer_;
  std::size_t inline_bytes_ = 0;
  std::uint32_t window_ = 0;
  std::int64_t now_ = 0;
  bool failover_ = true;
  std::int64_t deadline_floor_ = 0;
  std::int64_t peer_timeout_ = 0;
  /// The health clock: goes on only while somebody makes progress, so that a process that was away for a while does not
  /// blame its peers for it.
  std::int64_t beat_ = 1;
  std::int64_t looked_at_ = 0;

  // Rails outlive everything registered on them.
  std::vector<std::unique_ptr<fabric::Rail>> rails_;
  std::vector<fabric::Rail*> rail_views_;
  std::vector<fabric::Rail*> bells_;  ///< rails that keep posts until they are rung
  std::vector<RailState> rail_states_;
  std::vector<fabric::Event> events_;

  std::optional<memory::Slab> frames_;    ///< what we send
  std::optional<memory::Slab> receives_;  ///< what peers send
  std::optional<memory::Slab>
      reports_;  ///< acknowledgements and notices: a pool of their own, that never waits for data
  std::unique_ptr<memory::RegionCache> cache_;

  ProgressLock progress_lock_;
  IdTable<ExposedRegion> exposed_regions_;
  std::vector<std::atomic<Flow*>> flows_;
  std::vector<std::unique_ptr<Flow>> flow_storage_;
  Registry registry_;
  std::deque<std::uint16_t> free_ids_;  ///< the one that was freed first is used first
  std::uint32_t ids_made_ = 0;
  std::uint32_t leaving_ = 0;  ///< flows and routes that wait for what the rails still hold
  Scheduler scheduler_;
  std::vector<Flow*> reporting_;  ///< owe an acknowledgement
  std::vector<Flow*> ready_;      ///< have held frames whose turn has come
  std::vector<Route*> watched_;   ///< have something under way, or a link in trouble
  bool has_chores_ = false;       ///< one of the following is not empty
  std::vector<Route*> noticing_;  ///< have pings or a goodbye to answer
  std::vector<Flow*> refusing_;   ///< have refusals to tell of, or to confirm
  std::vector<Route*> losing_;    ///< whose peers are being given up
  std::vector<FenceRequest> fence_requests_;
  std::vector<int> gossip_;  ///< lost peers that the others have not been told of
  DeviceWords words_;        ///< changes under way in the memory of GPUs
  std::vector<MirroredWords*> mirrored_counters_;
  std::uint32_t heard_flows_ = 0;
  std::uint32_t receive_budget_ = 0;  ///< receive buffers that grants share out
  std::uint32_t idle_passes_ = 0;
  std::uint64_t polls_ = 0;  ///< of all rails

  Pool<Operation> operations_;
  Pool<Segment> segments_;
  Slots slots_;
  std::atomic<std::uint64_t> outstanding_{0};
  std::atomic<std::uint32_t> pending_handshakes_{0};
  std::atomic<bool> any_failed_{false};
  std::atomic<int> last_lost_{-1};
  WorldStatistics counts_;
  std::unique_ptr<EngineTelemetry> telemetry_;
  std::int64_t publish_at_ = INT64_MAX;
  LatencySampler sampler_;
  Submitter nobody_;  ///< of what no user has claimed
  Submitter* submitter_ = &nobody_;
  EngineTrace trace_;

  Waiting waiting_;
  bool nudge_due_ = false;  ///< once what is being submitted has left
};

template <typename Done>
bool Engine::wait_until(Done&& done, std::int64_t nanoseconds, Sleepers* sleepers) {
  if (done()) return true;
  const std::int64_t start = clock_->now();
  std::int64_t news = start;
  bool moved = false;
  bool insist = false;
  for (std::uint32_t pass = 1;; ++pass) {
    if (progress_lock_.try_take()) {
      moved |= progress();
      progress_lock_.give();
    }
    if (done()) return true;
    // The clock is read now and then only: a pass that finds nothing is short.
    if (pass % kPassesPerLook != 0) continue;
    const std::int64_t now = clock_->now();
    if (now - start >= nanoseconds) return false;
    if (std::exchange(moved, false)) news = now;
    if (now - news < Waiting::kSpinNanoseconds) continue;
    // One pass between two sleeps.
    if (!waiting_.rest(now - news, nanoseconds - (now - start), insist, sleepers, std::ref(done))) continue;
    if (done()) return true;
    pass = kPassesPerLook - 1;
  }
}

template <typename Done>
bool Engine::wait_for_word(Done&& done, std::int64_t nanoseconds, Pace& pace, Sleepers* sleepers) {
  // Time counts from the first pass: most waits are over before it.
  std::int64_t start = -1;
  std::int64_t news = 0;
  bool rested = false;
  bool insist = false;
  for (;;) {
    if (rested ? done() : pace.spin(done)) return true;
    const bool moved = pass(pace);
    if (done()) return true;
    const std::int64_t now = clock_->now();
    if (start < 0) start = news = now;
    if (now - start >= nanoseconds) return false;
    if (moved) news = now;
    rested = now - news >= Waiting::kSpinNanoseconds &&
             waiting_.rest(now - news, nanoseconds - (now - start), insist, sleepers, std::ref(done));
  }
}

}  // namespace railyard::transport
