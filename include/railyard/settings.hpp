/// Settings: parsed once, from the environment or by hand, into plain fields.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "railyard/result.hpp"

namespace railyard {

struct Settings {
  std::string driver =
      "auto";            ///< RAILYARD_DRIVER: tcp, verbs, ofi, shm; auto: verbs where an RDMA port is up, else tcp
  std::string provider;  ///< RAILYARD_PROVIDER: a libfabric provider; empty: the best one found
  std::string libfabric = "libfabric.so.1";  ///< RAILYARD_LIBFABRIC: the library of ofi rails; a name or a path
  std::string interfaces;                    ///< RAILYARD_INTERFACES: comma list of names to use; "^a,b": all but these
  std::string endpoints = "auto";   ///< RAILYARD_ENDPOINTS: connected, datagram; auto: connected where there are any
  std::int32_t gid_index = -1;      ///< RAILYARD_GID_INDEX: of verbs rails; -1: the best of RoCE v2
  std::uint32_t traffic_class = 0;  ///< RAILYARD_TRAFFIC_CLASS: of packets of verbs and tcp rails; DSCP times 4
  std::uint32_t service_level = 0;  ///< RAILYARD_SERVICE_LEVEL: of verbs rails
  std::string ports;                ///< RAILYARD_PORTS: "first-last" to listen at; empty: the kernel's choice
  std::uint32_t pacing_mbps = 0;    ///< RAILYARD_PACING_MBPS: most that one tcp connection sends; 0: no limit
  std::string congestion;           ///< RAILYARD_CONGESTION: congestion control of tcp rails; empty: the kernel's
  std::uint32_t rails = 0;  ///< RAILYARD_RAILS: how many; 0: one per NIC port. More than there are NICs: shared out
  std::uint32_t rails_per_gpu = 0;    ///< RAILYARD_RAILS_PER_GPU: most NICs that serve one GPU; 0: its fair share
  std::string gpu_rails;              ///< RAILYARD_GPU_RAILS: NICs of GPUs by hand, "0=nic0,nic1;0000:9a:00.0=nic2"
  std::uint32_t batch = 32;           ///< RAILYARD_BATCH: most completions, posts or releases of one queue in one pass
  std::uint32_t inline_bytes = 1024;  ///< RAILYARD_INLINE_BYTES: puts up to this size travel inside a message
  std::uint32_t eager_bytes = 16384;  ///< RAILYARD_EAGER_BYTES: messages up to this size may be copied
  std::uint32_t shared_links = 1;     ///< RAILYARD_SHARED_LINKS: per pair of rails; 0: channels do not share
  std::uint32_t workers = 0;          ///< RAILYARD_WORKERS: engines for channels; 0: as suits the machine
  std::uint32_t window = 1024;        ///< RAILYARD_WINDOW: most unacknowledged segments of one flow
  std::uint32_t chunk_min = 32 * 1024;         ///< RAILYARD_CHUNK_MIN: smallest chunk a large op is cut into
  std::uint32_t chunk_max = 1024 * 1024;       ///< RAILYARD_CHUNK_MAX: largest chunk
  std::uint32_t timeout_ms = 30000;            ///< RAILYARD_TIMEOUT_MS: default deadline of every wait
  std::uint32_t bootstrap_timeout_ms = 60000;  ///< RAILYARD_BOOTSTRAP_TIMEOUT_MS
  std::string gpu = "auto";                    ///< RAILYARD_GPU: "off": device memory is not looked for
  std::string shared_memory = "on";  ///< RAILYARD_SHARED_MEMORY: "off": peers on this host are reached like any other
  std::string shared_memory_directory = "/dev/shm";  ///< RAILYARD_SHARED_MEMORY_DIRECTORY: where its objects lie
  std::string failover = "on";                       ///< RAILYARD_FAILOVER: "off": a rail that fails ends its flows
  std::uint32_t ack_deadline_ms = 20;     ///< RAILYARD_ACK_DEADLINE_MS: least time before a link is suspected
  std::uint32_t peer_timeout_ms = 30000;  ///< RAILYARD_PEER_TIMEOUT_MS: silence after which a peer is lost
  std::string threads = "multiple";       ///< RAILYARD_THREADS: "single" skips every lock
  std::string progress = "auto";    ///< RAILYARD_PROGRESS: thread, caller; auto: a thread unless threads is single
  std::string wait = "auto";        ///< RAILYARD_WAIT: spin, yield, sleep; auto: one after the other
  std::string log = "warn";         ///< RAILYARD_LOG: error, warn, info, debug
  std::string log_format = "text";  ///< RAILYARD_LOG_FORMAT: text; json: an object for each message
  std::string telemetry = "on";     ///< RAILYARD_TELEMETRY: off, or a directory for the file that `top` reads
  std::string summary = "0";        ///< RAILYARD_SUMMARY: 1: what was moved is written to stderr at the end
  std::string trace = "off";        ///< RAILYARD_TRACE: on, or a directory: what is done is recorded for `trace`
  std::uint32_t trace_bytes = 16 * 1024 * 1024;  ///< RAILYARD_TRACE_BYTES: room for it; the newest is kept
  std::uint32_t stall_ms = 5000;          ///< RAILYARD_STALL_MS: a wait that takes longer is reported once; 0: never
  std::string nccl_gin = "off";           ///< RAILYARD_NCCL_GIN: "on": the plugin offers NCCL one-sided operations, too
  std::string nccl_gpu_memory = "off";    ///< RAILYARD_NCCL_GPU_MEMORY: "on": the plugin takes the memory of GPUs
  std::string bootstrap;                  ///< RAILYARD_BOOTSTRAP: tcp, pmix, single; empty: what the environment offers
  std::string rendezvous;                 ///< RAILYARD_RENDEZVOUS: host:port or unix:/path where ranks meet
  std::string rendezvous_host = "rank0";  ///< RAILYARD_RENDEZVOUS_HOST: who serves it: rank0, or the launcher
  std::string job_key;                    ///< RAILYARD_JOB_KEY: secret shared by the ranks of a job
  std::string wrong_key = "wait";         ///< RAILYARD_WRONG_KEY: end: a rank with another job key ends the job
  std::int32_t rank = -1;                 ///< RAILYARD_RANK
  std::int32_t size = -1;                 ///< RAILYARD_SIZE

  /// Reads every RAILYARD_* variable of the environment. A value that does not parse is an error naming it; an unknown
  /// name is reported as a warning with the nearest known one.
  static Result<Settings> from_environment();
  /// Sets one by its variable name, as the environment would.
  Result<void> set(std::string_view name, std::string_view value);

  /// One setting as `railyard info --settings` shows it.
  struct Entry {
    std::string name;
    std::string value;
    std::string by_default;
    std::string meaning;
    std::string source;  ///< "default", "environment" or "set"
  };
  std::vector<Entry> list() const;

 private:
  std::vector<std::string> from_environment_;  ///< names whose value came from the environment
  std::vector<std::string> set_;               ///< names set by hand
};

}  // namespace railyard
