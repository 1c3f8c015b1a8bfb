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
#include "transport/revocation.hpp"
#include "transport/submissions.hpp"

namespace railyard::transport {

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(EngineParts parts);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- Its parts, for those who use them: each says by which thread, and with what held ----

  Peers& peers() { return peers_; }
  const Peers& peers() const { return peers_; }
  /// What peers may touch here.
  ExposedMemory& exposed() { return exposed_; }
  Submissions& submissions() { return submissions_; }
  Completions& completions() { return completions_; }
  const Completions& completions() const { return completions_; }
  Revocation& revocation() { return revocation_; }
  const Losses& losses() const { return losses_; }
  const Health& health() const { return health_; }
  const Handshakes& handshakes() const { return handshakes_; }
  /// How threads sleep until there is something to do, and are woken.
  Waiting& waiting() { return core_.waiting; }
  const Waiting& waiting() const { return core_.waiting; }

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
  const EngineTrace& trace() const { return core_.trace; }
  /// Null: nothing is published. Stays what it is between `begin_publishing` and `end_publishing`.
  EngineTelemetry* telemetry() const { return core_.telemetry.get(); }
  /// A failed operation to that peer that nobody has asked about, once.
  std::optional<Error> untold_failure(std::uint32_t flow) const {
    const Flow* const known = peers_.existing(flow);
    return known == nullptr ? std::nullopt : completions_.untold_failure(*known);
  }
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

  // ---- Worlds, routes and flows ----

  /// A world joins: its ranks can be talked to, and may talk to us.
  const Ranks* join(Ranks ranks);
  /// Takes leave of its ranks and closes the flows to them. Makes passes, and gives the progress lock up between them.
  void leave(const Ranks& ranks);
  /// Ends a flow and what it has under way; with the last one, its route. Says nothing to the peer.
  void close_flow(Flow& flow);
  /// Gives a peer up that does not answer. Returns at once; the passes that follow shut the peer's links out, and then
  /// every flow of the route fails (`Inbox::on_failed`). From that moment nothing of the peer's lands, and no rail
  /// holds an operation of these flows. `cause` is the flow on whose behalf: the others are told that it was not their
  /// doing. Where the flow has failed already, that was told when it did.
  void begin_shut_out(Flow& cause, const std::string& why) { losses_.begin(*cause.route, why, &cause); }
  /// Finds out whether a world's peer is still there, also where nothing was ever sent to it: if not, it is lost.
  void check_on(std::uint32_t id);
  void check_on(Route& route) { probes_.check_on(route); }
  /// Says that the peer's memory is used past the engine, which watches over the peer all the same.
  void use_directly(Flow& flow);
  /// Memory that operations under way may still use, whatever becomes of their caller: until the engine has ended.
  void keep(std::shared_ptr<const void> used) { core_.kept.push_back(std::move(used)); }
  /// A small message of the user's left or arrived on the flow: whoever sends such only waits for each.
  void note_small(Flow& flow) const { Scheduler::note_small(flow, core_.now); }
  /// Lets go of what a flow keeps back (`FlowSender::corked`).
  void push(Flow& flow) { transmitter_.push(flow); }
  /// Keeps back what is submitted between the two on any flow: frames of several flows leave in one system call.
  void begin_batch() { core_.rails.hold(true); }
  void end_batch() { core_.rails.hold(false); }

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
  /// `pass`, but not while a thread sleeps on the rails and nothing of ours is under way there: what comes wakes it,
  /// and a pass would take the rails from it.
  bool pass_unattended(Pace& pace) {
    if (!core_.waiting.attended() || completions_.outstanding() != 0) return pass(pace);
    pace.passed(false);
    return false;
  }
  [[gnu::noinline, gnu::cold]] void publish();
  void expect_flows();
  void part_with_late();
  void retire();
  bool retire(Route& route);
  static void log_ended(const Flow& flow);

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
  Revocation revocation_{{core_, links_, completions_, failover_, [this] { return poll_once(); }}};
  Inbound inbound_{{core_, peers_, exposed_, completions_, reports_, transmitter_, notices_, applier_}};

  std::uint32_t leaving_ = 0;            ///< flows and routes that wait for what the rails still hold
  std::int64_t publish_at_ = INT64_MAX;  ///< when telemetry is next
  std::int64_t due_at_ = 0;              ///< the next look at the links, or publishing
};

}  // namespace railyard::transport

#include "transport/engine_waits.hpp"  // IWYU pragma: export
