/// Engine: the transport of one process. Every guarantee of the design's section 3 lives in its parts, once, for all
/// drivers; docs/engine.md says what each is for. It owns no thread: whoever holds the progress lock moves it on, and
/// whoever has nothing to do may sleep on its rails (waiting.hpp).
///
/// One pass (`progress`): poll every rail (at most a batch each), apply what arrived in sequence, post what waits, send
/// acknowledgements that found no frame to ride on, and once a millisecond look after the links (docs/failover.md).
/// Handlers of arrivals only change state; posting happens after them (promise 7).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "transport/health.hpp"
#include "transport/inbound.hpp"
#include "transport/pace.hpp"
#include "transport/submissions.hpp"

namespace railyard::transport {

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(EngineParts parts);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- Any thread ----

  ProgressLock& progress_lock() { return core_.progress_lock; }
  const Settings& settings() const { return core_.settings; }
  Clock& clock() const { return *core_.clock; }
  const Identity& identity() const { return core_.identity; }
  std::span<fabric::Rail* const> rails() const { return core_.rails.views(); }
  memory::RegionCache& cache() { return *core_.cache; }
  /// The longest put that travels inside a frame, and the longest body of a message.
  std::size_t inline_bytes() const { return core_.inline_bytes; }
  static constexpr std::size_t kMostMessage = wire::kFrameBytes - wire::kRecordsAt - wire::record_bytes(0);
  /// How threads sleep until there is something to do, and are woken.
  Waiting& waiting() { return core_.waiting; }
  const Waiting& waiting() const { return core_.waiting; }
  const EngineTrace& trace() const { return core_.trace; }
  /// Null: nothing is published. Stays what it is between `begin_publishing` and `end_publishing`.
  EngineTelemetry* telemetry() const { return core_.telemetry.get(); }
  /// What became of operations that complete out of sequence, and of those that failed.
  const Completions& completions() const { return completions_; }
  std::uint64_t outstanding() const { return completions_.outstanding(); }
  bool any_failed() const { return completions_.any_failed(); }
  /// A failed operation to that peer that nobody has asked about, once.
  std::optional<Error> untold_failure(std::uint32_t flow) const {
    const Flow* const known = existing_flow(flow);
    return known == nullptr ? std::nullopt : completions_.untold_failure(*known);
  }
  /// A flow by its id, if there is one already: a world's by `Ranks::flow_of`.
  Flow* existing_flow(std::uint32_t id) const { return peers_.existing(id); }
  /// The flow to the rank that was lost last (not one that has left); -1: none.
  int last_lost() const { return losses_.last(); }
  /// Peers whose memory is used past the engine and that do not know it yet: they could not say goodbye.
  std::uint32_t pending_handshakes() const { return handshakes_.pending(); }
  /// For whoever has changed a word that threads of a peer may wait for, past the engine: wakes them.
  [[gnu::hot]] void wake_peer(std::uint32_t flow);

  /// Runs passes until `done` answers true; false when `nanoseconds` have gone by first. `sleepers`: counts those who
  /// sleep, for threads and peers that change what `done` looks at past the engine; null: only passes do.
  template <typename Done>
  bool wait_until(Done&& done, std::int64_t nanoseconds, Sleepers* sleepers = nullptr);
  /// The same for a word that peers may change by themselves: looks at it many times between two passes. `woken` is
  /// called after each sleep.
  template <typename Done, typename Woken>
  bool wait_for_word(Done&& done, std::int64_t nanoseconds, Pace& pace, Sleepers* sleepers, Woken&& woken);
  /// The pass that is due, if no other thread is making one. Returns whether anything happened.
  bool pass(Pace& pace);

  // ---- With the progress lock held: the loop ----

  /// One bounded pass. Returns whether anything happened.
  [[gnu::hot]] bool progress();
  /// Sends every acknowledgement that is owed, for a caller that may not make progress for a while.
  void report_now();
  /// Touches what a small message on this route goes through (base/touch.hpp).
  void warm_up(const Route& route) const;

  // ---- Worlds ----

  /// Ids for the flows to so many ranks: a world's, until it has left or they are released.
  Result<std::uint16_t> reserve_flows(std::size_t ranks) { return peers_.flows().reserve(ranks); }
  void release_flows(std::uint16_t first, std::size_t ranks) { peers_.flows().release(first, ranks); }
  /// A world joins: its ranks can be talked to, and may talk to us.
  const Ranks* join(Ranks ranks);
  /// Takes leave of its ranks and closes the flows to them. Makes passes, and gives the progress lock up between them.
  void leave(const Ranks& ranks);
  std::span<const std::unique_ptr<const Ranks>> worlds() const { return peers_.worlds(); }

  // ---- Peers, routes and flows ----

  /// A world's flow by its id, connected on first use.
  Result<Flow*> flow(std::uint32_t id) { return peers_.flow(id); }
  /// Routes and flows that are no world's. `reserve_flow`: an id that no flow has; until it is released, or a flow
  /// opened with it is closed, nobody else gets it.
  const Registry& registry() const { return peers_.registry(); }
  Result<Route*> open_route(RouteParts parts) { return peers_.open_route(std::move(parts)); }
  Result<std::uint16_t> reserve_flow() { return peers_.flows().reserve(); }
  void release_flow(std::uint16_t id) { peers_.flows().release(id); }
  Flow* open_flow(const FlowParts& parts) { return peers_.open_flow(parts); }
  std::size_t flow_count() const { return peers_.flows().all().size(); }
  /// Ends a flow and what it has under way; with the last one, its route. Says nothing to the peer.
  void close_flow(Flow& flow);
  /// Fails everything outstanding to the peer and all that comes later.
  void fail_flow(Flow& flow, Error error) { completions_.fail(flow, std::move(error)); }
  /// Gives a peer up that does not answer. Returns at once; the passes that follow shut the peer's links out, and then
  /// every flow of the route fails (`Inbox::on_failed`). From that moment nothing of the peer's lands, and no rail
  /// holds an operation of these flows. `cause` is the flow on whose behalf: the others are told that it was not their
  /// doing. Where the flow has failed already, that was told when it did.
  void begin_shut_out(Flow& cause, const std::string& why) { losses_.begin(*cause.route, why, &cause); }
  /// Finds out whether a world's peer is still there, also where nothing was ever sent to it: if not, it is lost.
  void check_on(std::uint32_t id);
  void check_on(Route& route) { probes_.check_on(route); }
  /// How long this process was away, in all, while its peers' time stood still. Any thread.
  std::int64_t away() const { return health_.away(); }
  /// For how much longer the peer may be silent before it is lost, in nanoseconds; INT64_MAX: nobody doubts it.
  std::int64_t time_to_loss(const Route& route) const { return health_.time_to_loss(route); }
  /// Says that the peer's memory is used past the engine, which watches over the peer all the same.
  void use_directly(Flow& flow);

  // ---- Memory ----

  /// What peers may touch here.
  ExposedMemory& exposed() { return exposed_; }
  /// Takes registered memory back: when this returns, no rail and no peer reads or writes a byte of it. Operations of
  /// our own that still need it fail with a cause; a link that carries one of them is made anew, and nothing else is
  /// lost. Polls the rails: not from an Inbox or another handler. Frames of peers are kept out by `conceal`, first;
  /// what the region cache keeps of the memory is the caller's to have forgotten.
  void revoke(memory::Region& region);
  /// The same for operations of our own that use these bytes, by whatever region.
  void revoke(std::span<const std::byte> memory);
  /// The same for the sources of one flow's operations: its own alone, whoever else uses the same pages.
  void revoke(const Flow& flow);
  /// The same for operations that name this region: others may use the same pages by another.
  void revoke_registration(memory::Region& region);
  /// Whether a rail has yet to let go of a chunk that names the region; the chunk may have been acknowledged.
  bool holds(const memory::Region& region);
  /// Operations under way advance no counter in this memory any more.
  void forget_counters(std::span<const std::uint64_t> counters) { completions_.forget_counters(counters); }
  /// Memory that operations under way may still use, whatever becomes of their caller: until the engine has ended.
  void keep(std::shared_ptr<const void> used) { core_.kept.push_back(std::move(used)); }

  // ---- Submissions. Each try_ answers false for "no room now": nothing was changed ----

  /// Records that travel in one frame. `number` names the operation.
  bool try_records(Flow& flow, const PutRecord* put, const SignalRecord* signal, std::uint64_t& number) {
    return submissions_.try_records(flow, put, signal, number);
  }
  bool try_atomic(Flow& flow, const AtomicRecord& atomic, void* before, Ticket& ticket) {
    return submissions_.try_atomic(flow, atomic, before, ticket);
  }
  bool try_message(Flow& flow, const MessageRecord& message, std::uint64_t& number) {
    return submissions_.try_message(flow, message, number);
  }
  /// A small message of the user's left or arrived on the flow: whoever sends such only waits for each.
  void note_small(Flow& flow) const { Scheduler::note_small(flow, core_.now); }
  /// An ordered write over all links and, after it, a signal (or null) or a message.
  template <typename Last>
  bool try_write(Flow& flow, const Bulk& bulk, const Last& last, std::uint64_t& number) {
    return submissions_.try_write(flow, bulk, last, number);
  }
  /// A write outside the sequence, or a read.
  bool try_unordered(Flow& flow, const Bulk& bulk, Operation::Kind kind, Ticket& ticket) {
    return submissions_.try_unordered(flow, bulk, kind, ticket);
  }
  /// Ordered blocks and, after all of them, a signal: one operation. Not more than VectorShape::kMost, not none.
  bool try_vector(Flow& flow, const VectorWork& work, const SignalRecord* signal, std::uint64_t& number) {
    return submissions_.try_vector(flow, work, signal, number);
  }
  /// Reads in one slot. As many at most.
  bool try_reads(Flow& flow, const VectorWork& work, Ticket& ticket) {
    return submissions_.try_reads(flow, work, ticket);
  }
  /// An atomic of the target's NIC, outside the sequence; `before` may be null.
  bool try_native(Flow& flow, const Bulk& at, const fabric::AtomicRequest& request, void* before, Ticket& ticket) {
    return submissions_.try_native(flow, at, request, before, ticket);
  }
  static void fence(Flow& flow) { flow.sender.request_fence(); }
  /// Keeps back what is submitted between the two; it leaves with the next submission or `push`.
  static void cork(Flow& flow) { flow.sender.corked = true; }
  static void uncork(Flow& flow) { flow.sender.corked = false; }
  void push(Flow& flow) { transmitter_.push(flow); }
  /// Keeps back what is submitted between the two on any flow: frames of several flows leave in one system call.
  void begin_batch() { core_.rails.hold(true); }
  void end_batch() { core_.rails.hold(false); }
  /// What is submitted from now on is of this one, until another comes or it is forgotten.
  void submits(Submitter& submitter) { completions_.submits(submitter); }
  void forget(const Submitter& submitter) { completions_.forget(submitter); }

  // ---- What it tells of itself ----

  WorldStatistics statistics() const;
  /// From now on passes publish what the engine counts; its user ends that before anything that `more` uses goes.
  void begin_publishing(EngineTelemetry::Parts parts);
  void end_publishing();
  /// From now on all that the engine does is recorded. Before anything is submitted.
  void begin_tracing(std::shared_ptr<telemetry::Trace> trace, const std::string& context);

 private:
  explicit Engine(EngineParts parts);
  Result<void> start();
  std::size_t poll();
  std::size_t poll_once();
  void on_rare(RailState& rail, const fabric::Event& event);
  void on_failed(RailState& rail, const fabric::Event& event);
  std::size_t do_chores();
  [[gnu::noinline]] void do_what_is_due();
  void set_due();
  Waiting::Agenda agenda();
  /// The same, but not while a thread sleeps on the rails and nothing of ours is under way there: what comes wakes it,
  /// and a pass would take the rails from it.
  bool pass_unattended(Pace& pace) {
    if (!core_.waiting.attended() || outstanding() != 0) return pass(pace);
    pace.passed(false);
    return false;
  }
  [[gnu::noinline, gnu::cold]] void publish();
  void expect_flows();
  void part_with_late();
  void retire();
  bool retire(Route& route);
  static void log_ended(const Flow& flow);
  void withdraw_results(std::span<const std::byte> memory);
  void take_back(const std::function<bool(const Operation&)>& chosen);
  void take_back_segments(const std::function<bool(const Operation&)>& chosen);
  void stop_stuck_rails();

  Core core_;
  Links links_{core_};
  Peers peers_{core_, links_};
  ExposedMemory exposed_;
  Handshakes handshakes_;
  Completions completions_{core_, exposed_, handshakes_};
  WatchList watched_{core_};
  Poster poster_{core_};
  Reports reports_{core_, poster_};
  Transmitter transmitter_{core_, completions_, watched_, poster_};
  Submissions submissions_{core_, completions_, transmitter_};
  Refusals refusals_{core_, completions_, watched_, reports_};
  Losses losses_{core_, links_, peers_, completions_, reports_};
  Probes probes_{core_, watched_, reports_, handshakes_};
  Reconnects reconnects_{core_, links_, losses_, probes_};
  Failover failover_{
      {core_, links_, peers_, completions_, watched_, poster_, reports_, transmitter_, losses_, reconnects_}};
  FenceRequests fence_requests_{core_, reports_};
  Health health_{{core_, watched_, fence_requests_, losses_, probes_, reconnects_, failover_}};
  Notices notices_{
      {core_, peers_, watched_, reports_, refusals_, handshakes_, fence_requests_, losses_, probes_, failover_}};
  Applier applier_{core_, exposed_, completions_, transmitter_, refusals_};
  Inbound inbound_{{core_, peers_, exposed_, completions_, reports_, transmitter_, notices_, applier_}};

  std::uint32_t leaving_ = 0;            ///< flows and routes that wait for what the rails still hold
  std::int64_t publish_at_ = INT64_MAX;  ///< when telemetry is next
  std::int64_t due_at_ = 0;              ///< the next look at the links, or publishing
};

}  // namespace railyard::transport

#include "transport/engine_waits.hpp"  // IWYU pragma: export
