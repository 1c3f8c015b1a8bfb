#include "railyard/settings.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <variant>

#include "base/log.hpp"
#include "base/nearest.hpp"
#include "base/ports.hpp"

namespace railyard {

namespace {

constexpr std::int64_t kKilo = 1024;
constexpr std::int64_t kMega = 1024 * 1024;
constexpr std::int64_t kMostRanks = 1 << 20;

using Field = std::variant<std::string Settings::*, std::uint32_t Settings::*, std::int32_t Settings::*>;

enum class Kind : std::uint8_t {
  text,    ///< anything
  choice,  ///< one of `choices`
  number,  ///< a whole number in [least, most]
  size,    ///< the same, with K or M allowed after it
  secret,  ///< anything, never shown
};

/// Everything there is to know about one setting. This table is the only place that lists them.
struct Descriptor {
  std::string_view name;
  Field field;
  Kind kind;
  std::string_view meaning;
  std::int64_t least = 0;
  std::int64_t most = 0;
  std::string_view choices =
      {};  ///< separated by one space; "" between two spaces or at the start: empty is one of them
};

// The window's bound: a write's immediate carries 13 bits of sequence, and a receiver must tell old from new in them.
constexpr std::int64_t kMostWindow = 1 << 12;

constexpr Descriptor kSettings[] = {
    {"RAILYARD_DRIVER", &Settings::driver, Kind::text,
     "the driver that opens rails: tcp (sockets), verbs, ofi (libfabric), shm (this host alone); auto: verbs where an "
     "RDMA port is up, else tcp, else shm"},
    {"RAILYARD_PROVIDER", &Settings::provider, Kind::text,
     "a libfabric provider, which the driver ofi uses; empty: the best one found"},
    {"RAILYARD_LIBFABRIC", &Settings::libfabric, Kind::text,
     "the library that ofi rails are made with, loaded when they are wanted: a name or a path"},
    {"RAILYARD_INTERFACES", &Settings::interfaces, Kind::text,
     "comma list of interfaces or NICs to use; ^a,b: all but these; empty: all"},
    {"RAILYARD_ENDPOINTS", &Settings::endpoints, Kind::choice,
     "endpoints of libfabric rails; auto: connected ones where the provider has them", 0, 0, "auto connected datagram"},
    {"RAILYARD_GID_INDEX", &Settings::gid_index, Kind::number,
     "which GID of its port a verbs rail uses; -1: the best of RoCE v2", -1, 65535},
    {"RAILYARD_TRAFFIC_CLASS", &Settings::traffic_class, Kind::number,
     "the traffic class in what verbs and tcp rails send: its DSCP times 4; over tcp, links of a service class from 4 "
     "to 255 have that one instead",
     0, 255},
    {"RAILYARD_SERVICE_LEVEL", &Settings::service_level, Kind::number, "the service level of verbs rails", 0, 15},
    {"RAILYARD_PORTS", &Settings::ports, Kind::text,
     "the TCP ports that a process may listen at, first-last: what a firewall lets through; empty: the kernel chooses"},
    {"RAILYARD_PACING_MBPS", &Settings::pacing_mbps, Kind::number,
     "most megabits a second that one connection of a tcp rail sends; 0: no limit", 0, 4'000'000},
    {"RAILYARD_CONGESTION", &Settings::congestion, Kind::text,
     "the congestion control of tcp rails, one of net.ipv4.tcp_available_congestion_control; empty: the kernel's, and "
     "reno on loopback"},
    {"RAILYARD_RAILS", &Settings::rails, Kind::number,
     "how many rails; 0: one per NIC port; more than there are NICs: shared out", 0, 256},
    {"RAILYARD_RAILS_PER_GPU", &Settings::rails_per_gpu, Kind::number,
     "most NICs that serve one GPU; 0: its fair share of those near it", 0, 256},
    {"RAILYARD_GPU_RAILS", &Settings::gpu_rails, Kind::text,
     "which NICs serve which GPU, by its number or PCI address: 0=mlx5_0,mlx5_1;0000:9a:00.0=mlx5_2; other GPUs and "
     "empty: as the topology says"},
    {"RAILYARD_BATCH", &Settings::batch, Kind::number, "most completions, posts or releases of one queue in one pass",
     1, 4096},
    {"RAILYARD_INLINE_BYTES", &Settings::inline_bytes, Kind::size, "puts up to this size travel inside a message", 0,
     64 * kKilo},
    {"RAILYARD_EAGER_BYTES", &Settings::eager_bytes, Kind::size,
     "single messages up to this size need no grant and travel inside frames; 0: none", 0, 64 * kKilo},
    {"RAILYARD_SHARED_LINKS", &Settings::shared_links, Kind::number,
     "links for each pair of rails that all channels to a peer share; 0: every channel has its own", 0, 64},
    {"RAILYARD_WORKERS", &Settings::workers, Kind::number,
     "engines that the channels of a process are spread over, with a thread each; 0: as many as suit the machine", 0,
     64},
    {"RAILYARD_WINDOW", &Settings::window, Kind::number, "most unacknowledged segments of one flow", 2, kMostWindow},
    {"RAILYARD_CHUNK_MIN", &Settings::chunk_min, Kind::size, "smallest chunk a large operation is cut into", 256,
     1024 * kMega},
    {"RAILYARD_CHUNK_MAX", &Settings::chunk_max, Kind::size, "largest chunk a large operation is cut into", 256,
     1024 * kMega},
    {"RAILYARD_TIMEOUT_MS", &Settings::timeout_ms, Kind::number,
     "default deadline of every wait, in milliseconds; 0: do not wait", 0, UINT32_MAX},
    {"RAILYARD_BOOTSTRAP_TIMEOUT_MS", &Settings::bootstrap_timeout_ms, Kind::number,
     "how long ranks wait for each other while a world is set up, in milliseconds", 1, UINT32_MAX},
    {"RAILYARD_GPU", &Settings::gpu, Kind::choice,
     "whether memory of GPUs is found and copied; auto: where their driver is in the process or wanted", 0, 0,
     "auto off"},
    {"RAILYARD_SHARED_MEMORY", &Settings::shared_memory, Kind::choice,
     "whether peers on this host are reached through shared memory; off: like any other", 0, 0, "on off"},
    {"RAILYARD_SHARED_MEMORY_DIRECTORY", &Settings::shared_memory_directory, Kind::text,
     "where shared-memory objects lie, in memory and the same for all ranks of a host"},
    {"RAILYARD_FAILOVER", &Settings::failover, Kind::choice,
     "whether what a failed rail carried moves to others; off: it fails, with its flows", 0, 0, "on off"},
    {"RAILYARD_ACK_DEADLINE_MS", &Settings::ack_deadline_ms, Kind::number,
     "least time without an acknowledgement before a link is suspected, in milliseconds", 1, 60000},
    {"RAILYARD_PEER_TIMEOUT_MS", &Settings::peer_timeout_ms, Kind::number,
     "silence of a peer that owes an answer after which it is lost, in milliseconds", 1, UINT32_MAX},
    {"RAILYARD_THREADS", &Settings::threads, Kind::choice, "whether several threads use the library", 0, 0,
     "single multiple"},
    {"RAILYARD_PROGRESS", &Settings::progress, Kind::choice,
     "who moves things on while the program makes no call: nobody (caller) or a thread that sleeps while there is "
     "nothing to do; auto: a thread where RAILYARD_THREADS is multiple",
     0, 0, "auto caller thread"},
    {"RAILYARD_WAIT", &Settings::wait, Kind::choice,
     "how waits pass their time: poll without a break (spin), let others have the core (yield), or sleep in the kernel "
     "(sleep); auto: one after the other, the longer a wait takes",
     0, 0, "auto spin yield sleep"},
    {"RAILYARD_LOG", &Settings::log, Kind::choice, "what is written to stderr", 0, 0, "error warn info debug"},
    {"RAILYARD_LOG_FORMAT", &Settings::log_format, Kind::choice,
     "lines for people (text), or one JSON object for each message (json)", 0, 0, "text json"},
    {"RAILYARD_TELEMETRY", &Settings::telemetry, Kind::text,
     "whether counters are published for `railyard top` and `export`: on, off, or the directory (with a /) that their "
     "file lies in, best in memory; on: /dev/shm"},
    {"RAILYARD_SUMMARY", &Settings::summary, Kind::choice,
     "whether each context writes to stderr what it moved when it ends", 0, 0, "0 1"},
    {"RAILYARD_TRACE", &Settings::trace, Kind::text,
     "whether operations, segments and events are recorded for `railyard trace`: off, on, or the directory (with a /) "
     "that the file lies in, best in memory; on: /dev/shm"},
    {"RAILYARD_TRACE_BYTES", &Settings::trace_bytes, Kind::size,
     "how much of a trace is kept, in 64 bytes for each entry: the newest", 4 * kKilo, 2048 * kMega},
    {"RAILYARD_STALL_MS", &Settings::stall_ms, Kind::number,
     "a wait that takes longer logs once what it waits for, in milliseconds; 0: never", 0, UINT32_MAX},
    {"RAILYARD_NCCL_GIN", &Settings::nccl_gin, Kind::choice,
     "whether the NCCL plugin offers one-sided operations (GIN, RMA) beside its network; off: NCCL has those of its "
     "own",
     0, 0, "off on"},
    {"RAILYARD_NCCL_GPU_MEMORY", &Settings::nccl_gpu_memory, Kind::choice,
     "whether the NCCL plugin takes the memory of GPUs where rails reach it; off: NCCL stages in host memory", 0, 0,
     "off on"},
    {"RAILYARD_BOOTSTRAP", &Settings::bootstrap, Kind::choice,
     "how ranks find each other; empty: what the environment offers", 0, 0, " tcp pmix single"},
    {"RAILYARD_RENDEZVOUS", &Settings::rendezvous, Kind::text,
     "where ranks meet: host:port, [ipv6]:port, unix:/path or unix:@name"},
    {"RAILYARD_RENDEZVOUS_HOST", &Settings::rendezvous_host, Kind::choice, "who serves the rendezvous", 0, 0,
     "rank0 launcher"},
    {"RAILYARD_JOB_KEY", &Settings::job_key, Kind::secret, "secret shared by the ranks of a job"},
    {"RAILYARD_WRONG_KEY", &Settings::wrong_key, Kind::choice,
     "what rank 0 does when a process with another job key claims a rank: log it and wait for the real one (wait), as "
     "anybody can make such a claim; or end the job at once (end), where only the job's own processes reach it",
     0, 0, "wait end"},
    {"RAILYARD_RANK", &Settings::rank, Kind::number, "this process's rank; set by the launcher", 0, kMostRanks - 1},
    {"RAILYARD_SIZE", &Settings::size, Kind::number, "how many ranks the job has; set by the launcher", 1, kMostRanks},
};

/// Variables with our prefix that other parts read: the laboratory's namespaces and links.
constexpr std::string_view kOthers[] = {"RAILYARD_LAB_NETNS", "RAILYARD_LAB_LINKS"};

constexpr std::string_view kPrefix = "RAILYARD_";

const Descriptor* find_descriptor(std::string_view name) {
  const auto* found = std::ranges::find(kSettings, name, &Descriptor::name);
  return found == std::end(kSettings) ? nullptr : found;
}

std::string_view nearest_setting(std::string_view name) {
  std::array<std::string_view, std::size(kSettings)> names;
  std::ranges::transform(kSettings, names.begin(), &Descriptor::name);
  return nearest_name(name, names);
}

std::vector<std::string_view> split_choices(std::string_view choices) {
  std::vector<std::string_view> words;
  for (;;) {
    const std::size_t space = choices.find(' ');
    words.push_back(choices.substr(0, space));
    if (space == std::string_view::npos) return words;
    choices.remove_prefix(space + 1);
  }
}

std::string show_choices(std::string_view choices) {
  std::string shown;
  for (const std::string_view word : split_choices(choices)) {
    if (!shown.empty()) shown += ", ";
    shown += word.empty() ? "(empty)" : std::string(word);
  }
  return shown;
}

Error bad_value(const Descriptor& setting, std::string_view value) {
  std::string allowed;
  switch (setting.kind) {
    case Kind::choice:
      allowed = "one of: " + show_choices(setting.choices);
      break;
    case Kind::size:
      allowed =
          fmt::format("a whole number from {} to {}, K (1024) or M (1048576) may follow", setting.least, setting.most);
      break;
    default:
      allowed = fmt::format("a whole number from {} to {}", setting.least, setting.most);
      break;
  }
  return Error(Status::invalid, fmt::format("{}='{}' is not allowed; use {}", setting.name, value, allowed));
}

/// The number that `value` spells, or nothing.
std::optional<std::int64_t> parse_number(const Descriptor& setting, std::string_view value) {
  std::int64_t unit = 1;
  if (setting.kind == Kind::size && !value.empty()) {
    const char last = value.back();
    if (last == 'K' || last == 'k') unit = kKilo;
    if (last == 'M' || last == 'm') unit = kMega;
    if (unit != 1) value.remove_suffix(1);
  }
  std::int64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [stopped, failure] = std::from_chars(value.data(), end, number);
  if (failure != std::errc() || stopped != end) return std::nullopt;
  // Checked before it is multiplied, so that it cannot overflow.
  if (number < setting.least / unit || number > setting.most / unit) return std::nullopt;
  number *= unit;
  if (number < setting.least || number > setting.most) return std::nullopt;
  return number;
}

Result<void> assign(Settings& settings, const Descriptor& setting, std::string_view value) {
  if (const auto* text = std::get_if<std::string Settings::*>(&setting.field)) {
    if (setting.kind == Kind::choice) {
      const auto words = split_choices(setting.choices);
      if (std::ranges::find(words, value) == words.end()) return bad_value(setting, value);
    }
    settings.*(*text) = value;
    return {};
  }
  const auto number = parse_number(setting, value);
  if (!number) return bad_value(setting, value);
  if (const auto* natural = std::get_if<std::uint32_t Settings::*>(&setting.field)) {
    settings.*(*natural) = static_cast<std::uint32_t>(*number);
  } else {
    settings.*(std::get<std::int32_t Settings::*>(setting.field)) = static_cast<std::int32_t>(*number);
  }
  return {};
}

std::string show(const Settings& settings, const Descriptor& setting) {
  std::string shown = std::visit([&](auto field) { return fmt::format("{}", settings.*field); }, setting.field);
  if (setting.kind == Kind::secret) return shown.empty() ? "" : "(set, not shown)";
  // A rank or size nobody gave.
  return std::holds_alternative<std::int32_t Settings::*>(setting.field) && shown == "-1" ? "" : shown;
}

bool same(const Settings& a, const Settings& b, const Descriptor& setting) {
  return std::visit([&](auto field) { return a.*field == b.*field; }, setting.field);
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// What no single value shows.
Result<void> check_together(const Settings& settings) {
  if (settings.chunk_min > settings.chunk_max) {
    return Error(Status::invalid, fmt::format("RAILYARD_CHUNK_MIN={} is more than RAILYARD_CHUNK_MAX={}",
                                              settings.chunk_min, settings.chunk_max));
  }
  for (const auto& [name, value] :
       {std::pair("RAILYARD_TELEMETRY", &settings.telemetry), std::pair("RAILYARD_TRACE", &settings.trace)}) {
    if (*value == "on" || *value == "off" || value->find('/') != std::string::npos) continue;
    return Error(Status::invalid,
                 fmt::format("{}='{}' is not allowed; use on, off or a directory with a / in its path", name, *value));
  }
  if (auto ports = PortRange::parse(settings.ports); !ports) return std::move(ports.error());
  if (settings.rank >= 0 && settings.size >= 0 && settings.rank >= settings.size) {
    return Error(Status::out_of_range,
                 fmt::format("RAILYARD_RANK={} is outside a job of RAILYARD_SIZE={}: ranks are 0 to {}", settings.rank,
                             settings.size, settings.size - 1));
  }
  return {};
}

}  // namespace

Result<Settings> Settings::from_environment() {
  Settings settings;
  std::vector<std::string_view> unknown;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view line = *variable;
    const std::size_t equals = line.find('=');
    if (!line.starts_with(kPrefix) || equals == std::string_view::npos) continue;
    const std::string_view name = line.substr(0, equals);
    if (const Descriptor* setting = find_descriptor(name)) {
      if (auto assigned = assign(settings, *setting, line.substr(equals + 1)); !assigned) {
        return std::move(assigned.error());
      }
      settings.from_environment_.emplace_back(name);
    } else if (std::ranges::find(kOthers, name) == std::end(kOthers)) {
      unknown.push_back(name);
    }
  }
  if (auto checked = check_together(settings); !checked) return std::move(checked.error());
  // Nobody may have set the log's level or format yet: they are among these settings.
  if (!unknown.empty()) set_log_format(settings.log_format == "json" ? LogFormat::json : LogFormat::text);
  for (const std::string_view name : unknown) {
    if (settings.log != "error") log_warn("unknown setting {} ignored; did you mean {}?", name, nearest_setting(name));
  }
  return settings;
}

Result<void> Settings::set(std::string_view name, std::string_view value) {
  const Descriptor* setting = find_descriptor(name);
  if (setting == nullptr) {
    return Error(Status::not_found, fmt::format("no setting {}; did you mean {}?", name, nearest_setting(name)));
  }
  if (auto assigned = assign(*this, *setting, value); !assigned) return assigned;
  std::erase(from_environment_, name);
  if (!contains(set_, name)) set_.emplace_back(name);
  return {};
}

std::vector<Settings::Entry> Settings::list() const {
  const Settings defaults;
  std::vector<Entry> entries;
  for (const Descriptor& setting : kSettings) {
    Entry entry{std::string(setting.name), show(*this, setting), show(defaults, setting), std::string(setting.meaning),
                "default"};
    if (setting.kind == Kind::choice) entry.meaning += ": " + show_choices(setting.choices);
    if (contains(from_environment_, setting.name)) {
      entry.source = "environment";
    } else if (contains(set_, setting.name) || !same(*this, defaults, setting)) {
      // A program may also write the field itself.
      entry.source = "set";
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace railyard
