/// What is published: the one list of groups and their fields. docs/operating.md shows it; a test compares the two.
#pragma once

#include <cstdint>
#include <span>

#include "telemetry/layout.hpp"

namespace railyard::telemetry {

struct Field {
  const char* name;
  Kind kind;
  const char* unit;  ///< "bytes", "seconds"; empty: a number of things
  const char* help;
  bool octaves = false;  ///< a histogram's buckets
};
/// Words that its values take.
constexpr std::uint32_t words_of(const Field& field) {
  if (field.kind != Kind::histogram) return 1;
  return field.octaves ? Octaves::kWords : Buckets::kWords;
}

enum class Group : std::uint8_t { context, rail, link, flow, window, channel };

struct GroupSchema {
  Group group;
  const char* name;
  const char* labels;  ///< what tells its records apart
  std::span<const Field> fields;
};

/// Fields by their place in the group, for writers.
namespace context_field {
enum : std::uint32_t {
  operations_completed,
  operations_outstanding,
  operations_queued,
  acknowledgements_sent,
  held_out_of_order,
  dropped_stale,
  dropped_malformed,
  backpressure,
  links_suspected,
  links_lost,
  links_rejoined,
  fences,
  segments_replayed,
  peers_lost,
  peers_stalled,
  direct_puts,
  direct_gets,
  direct_atomics,
  direct_bytes_put,
  direct_bytes_got,
  direct_wakes,
  passes,
  stalls,
  waiting,
  waiting_for_peer,
  waiting_since,
  put_latency,
  get_latency,
  atomic_latency,
  message_latency,
  count
};
}  // namespace context_field
namespace rail_field {
enum : std::uint32_t {
  bytes_sent,
  bytes_received,
  frames_sent,
  writes_sent,
  reads_sent,
  bytes_in_flight,
  rate,
  up,
  links,
  links_down,
  deadline,
  sees_one_sided,
  links_suspected,
  links_lost,
  segments_replayed,
  chunk_latency,
  frame_latency,
  count
};
}  // namespace rail_field
namespace link_field {
enum : std::uint32_t {
  bytes_delivered,
  bytes_in_flight,
  frames_in_flight,
  rate,
  state,
  epoch,
  failures,
  chunk_latency,
  frame_latency,
  count
};
}  // namespace link_field
namespace flow_field {
enum : std::uint32_t {
  operations_submitted,
  operations_completed,
  operations_outstanding,
  operations_queued,
  segments_unacknowledged,
  credits,
  bytes_in_flight,
  failed,
  latency,
  count
};
}  // namespace flow_field
namespace window_field {
enum : std::uint32_t {
  bytes,
  puts,
  gets,
  signals,
  atomics,
  bytes_put,
  bytes_got,
  direct_puts,
  direct_gets,
  direct_atomics,
  direct_bytes_put,
  direct_bytes_got,
  put_latency,
  get_latency,
  atomic_latency,
  count
};
}  // namespace window_field
namespace channel_field {
enum : std::uint32_t {
  messages_sent,
  messages_received,
  bytes_sent,
  bytes_received,
  eager_sent,
  unexpected,
  latency,
  count
};
}  // namespace channel_field

std::span<const GroupSchema> schema();
const GroupSchema& schema(Group group);

/// What a context waits for: the value of its field `waiting`.
enum class Waiting : std::uint8_t { nothing, ticket, quiet, signal, barrier, room, channel };
const char* to_string(Waiting waiting);

}  // namespace railyard::telemetry
