#include "telemetry/schema.hpp"

#include <array>

namespace railyard::telemetry {
namespace {

using enum Kind;

constexpr Field kContext[] = {
    {"operations_completed", counter, "", "operations that the engine has completed"},
    {"operations_outstanding", gauge, "", "operations that are not complete yet"},
    {"operations_queued", gauge, "", "operations that wait to be sent"},
    {"acknowledgements_sent", counter, "", "acknowledgements that found no frame to ride on"},
    {"held_out_of_order", counter, "", "messages that arrived before their turn"},
    {"dropped_stale", counter, "", "messages with an unknown or stale id"},
    {"dropped_malformed", counter, "", "messages that failed a check"},
    {"backpressure", counter, "", "times that a queue was full"},
    {"links_suspected", counter, "", "links that were late"},
    {"links_lost", counter, "", "links that were given up: failovers"},
    {"links_rejoined", counter, "", "links that came back"},
    {"fences", counter, "", "dead links that their target has shut out"},
    {"segments_replayed", counter, "", "segments that went out again on another link: retries"},
    {"peers_lost", counter, "", "peers that were declared lost"},
    {"peers_stalled", counter, "", "times that a peer was silent though its process lived"},
    {"direct_puts", counter, "", "puts and signals stored into memory of peers on this host"},
    {"direct_gets", counter, "", "gets loaded from there"},
    {"direct_atomics", counter, "", "atomics done there"},
    {"direct_bytes_put", counter, "bytes", "bytes stored there: no rail counts them"},
    {"direct_bytes_got", counter, "bytes", "bytes loaded from there"},
    {"direct_wakes", counter, "", "peers that slept in a wait when a signal was stored, and were woken"},
    {"passes", counter, "", "passes of progress that were made"},
    {"stalls", counter, "", "waits that took longer than RAILYARD_STALL_MS"},
    {"waiting", gauge, "", "a long wait now: 0 none, 1 ticket, 2 quiet, 3 signal, 4 barrier, 5 room, 6 channel"},
    {"waiting_for_peer", gauge, "", "the peer that it waits for; -1: any, or not known by rank"},
    {"waiting_since", gauge, "nanoseconds", "wall clock at which that wait began, since 1970"},
    {"put_latency", histogram, "nanoseconds", "from submission to acknowledgement, sampled"},
    {"get_latency", histogram, "nanoseconds", "from submission until the bytes are here, sampled"},
    {"atomic_latency", histogram, "nanoseconds", "from submission to the answer, sampled"},
    {"message_latency", histogram, "nanoseconds", "from submission to acknowledgement, sampled"},
};

constexpr Field kRail[] = {
    {"bytes_sent", counter, "bytes", "bytes that left by this rail: messages, acknowledgements, chunks"},
    {"bytes_received", counter, "bytes", "bytes that arrived by it"},
    {"frames_sent", counter, "", "messages with small operations: not acknowledgements"},
    {"writes_sent", counter, "", "direct writes (chunks)"},
    {"reads_sent", counter, "", "direct reads"},
    {"bytes_in_flight", gauge, "bytes", "bytes of chunks that are not delivered yet"},
    {"rate", real, "bytes per second", "measured delivery rate of its fastest link; 0: not measured yet"},
    {"up", gauge, "", "1: its interface can carry something"},
    {"links", gauge, "", "links to peers that this process has talked to"},
    {"links_down", gauge, "", "of them, those that carry nothing now"},
    {"deadline", real, "seconds", "without an answer after which its slowest link is given up"},
    {"sees_one_sided", gauge, "", "0: both byte counters are lower bounds"},
    {"links_suspected", counter, "", "times that a link of it was late"},
    {"links_lost", counter, "", "times that a link of it was given up: failovers"},
    {"segments_replayed", counter, "", "segments that it lost, and that went out again: retries"},
    {"chunk_latency", histogram, "nanoseconds", "of chunks, from the rail's taking until they are delivered", true},
    {"frame_latency", histogram, "nanoseconds", "of frames, from the rail's taking to acknowledgement, sampled", true},
};

constexpr Field kLink[] = {
    {"bytes_delivered", counter, "bytes", "bytes of chunks that the peer has"},
    {"bytes_in_flight", gauge, "bytes", "bytes of chunks under way"},
    {"frames_in_flight", gauge, "", "frames under way"},
    {"rate", real, "bytes per second", "measured delivery rate"},
    {"state", gauge, "", "0 connecting, 1 up, 2 suspect, 3 down, 4 trying"},
    {"epoch", gauge, "", "how often it was made anew"},
    {"failures", gauge, "", "attempts in a row that came to nothing"},
    {"chunk_latency", histogram, "nanoseconds", "of chunks, from the rail's taking until they are delivered", true},
    {"frame_latency", histogram, "nanoseconds", "of frames, from the rail's taking to acknowledgement, sampled", true},
};

constexpr Field kFlow[] = {
    {"operations_submitted", counter, "", "operations of the sequence that were submitted"},
    {"operations_completed", counter, "", "of them, those that are complete"},
    {"operations_outstanding", gauge, "", "operations of any kind that are not complete"},
    {"operations_queued", gauge, "", "operations that wait to be sent"},
    {"segments_unacknowledged", gauge, "", "segments that were sent and not acknowledged"},
    {"credits", gauge, "", "segments that may be sent before the peer grants more"},
    {"bytes_in_flight", gauge, "bytes", "bytes of chunks under way"},
    {"failed", gauge, "", "1: the peer is lost or has left"},
    {"latency", histogram, "nanoseconds", "of its operations, from submission until they are complete, sampled", true},
};

constexpr Field kWindow[] = {
    {"bytes", gauge, "bytes", "this rank's part"},
    {"puts", counter, "", "puts over rails, with a signal and without"},
    {"gets", counter, "", "gets over rails"},
    {"signals", counter, "", "signals without a put over rails, those of barriers too"},
    {"atomics", counter, "", "atomics over rails"},
    {"bytes_put", counter, "bytes", "bytes of these puts"},
    {"bytes_got", counter, "bytes", "bytes of these gets"},
    {"direct_puts", counter, "", "puts and signals stored into memory of peers on this host"},
    {"direct_gets", counter, "", "gets loaded from there"},
    {"direct_atomics", counter, "", "atomics done there"},
    {"direct_bytes_put", counter, "bytes", "bytes stored there"},
    {"direct_bytes_got", counter, "bytes", "bytes loaded from there"},
    {"put_latency", histogram, "nanoseconds", "over rails, from submission to acknowledgement, sampled", true},
    {"get_latency", histogram, "nanoseconds", "over rails, from submission until the bytes are here, sampled", true},
    {"atomic_latency", histogram, "nanoseconds", "over rails, from submission to the answer, sampled", true},
};

constexpr Field kChannel[] = {
    {"messages_sent", counter, "", "messages sent"},
    {"messages_received", counter, "", "messages received"},
    {"bytes_sent", counter, "bytes", "bytes of messages sent"},
    {"bytes_received", counter, "bytes", "bytes of messages received"},
    {"eager_sent", counter, "", "messages that needed no grant"},
    {"unexpected", counter, "", "messages that came before their receive"},
    {"latency", histogram, "nanoseconds", "of what it submits, until the peer has acknowledged it, sampled", true},
};

static_assert(std::size(kContext) == context_field::count && std::size(kRail) == rail_field::count &&
              std::size(kLink) == link_field::count && std::size(kFlow) == flow_field::count &&
              std::size(kWindow) == window_field::count && std::size(kChannel) == channel_field::count);

constexpr GroupSchema kGroups[] = {
    {Group::context, "context", "context", kContext},
    {Group::rail, "rail", "context, rail, device, provider", kRail},
    {Group::link, "link", "context, peer, route, links, class, rail, remote_rail", kLink},
    {Group::flow, "flow", "context, peer, route, flow", kFlow},
    {Group::window, "window", "context, window", kWindow},
    {Group::channel, "channel", "context, peer, route, flow", kChannel},
};

}  // namespace

std::span<const GroupSchema> schema() { return kGroups; }
const GroupSchema& schema(Group group) { return kGroups[static_cast<std::size_t>(group)]; }

const char* to_string(Waiting waiting) {
  static constexpr std::array<const char*, 7> kNames{"nothing", "ticket", "quiet",  "signal",
                                                     "barrier", "room",   "channel"};
  const auto index = static_cast<std::size_t>(waiting);
  return index < kNames.size() ? kNames[index] : "something";
}

}  // namespace railyard::telemetry
