#include "telemetry/summary.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>

namespace railyard::telemetry {
namespace {

std::string bytes_text(std::uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto number = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; number >= 1024 && unit + 1 < kUnits.size(); ++unit) number /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", number, kUnits[unit]);
}

std::string time_text(std::uint64_t nanoseconds) {
  const auto number = static_cast<double>(nanoseconds);
  if (nanoseconds < 1000) return fmt::format("{} ns", nanoseconds);
  if (nanoseconds < 1'000'000) return fmt::format("{:.1f} us", number * 1e-3);
  return nanoseconds < 1'000'000'000 ? fmt::format("{:.1f} ms", number * 1e-6) : fmt::format("{:.1f} s", number * 1e-9);
}

std::string of_context(const Snapshot& from, const RecordInfo& context, const std::string& who) {
  const std::string_view name = context.label("context");
  const auto get = [&](const char* field) { return from.value(context, field); };
  std::string text = fmt::format("{}: {}: {} operations", who, name, get("operations_completed"));
  if (get("direct_puts") + get("direct_gets") + get("direct_atomics") != 0) {
    text += fmt::format("; direct: {} puts of {}, {} gets of {}, {} atomics", get("direct_puts"),
                        bytes_text(get("direct_bytes_put")), get("direct_gets"), bytes_text(get("direct_bytes_got")),
                        get("direct_atomics"));
  }
  text += '\n';
  for (const RecordInfo* rail : from.of("rail")) {
    if (rail->label("context") != name) continue;
    text += fmt::format("{}:   rail {} ({}): sent {}, received {}, in {} frames, {} writes, {} reads\n", who,
                        rail->label("rail"), rail->label("device"), bytes_text(from.value(*rail, "bytes_sent")),
                        bytes_text(from.value(*rail, "bytes_received")), from.value(*rail, "frames_sent"),
                        from.value(*rail, "writes_sent"), from.value(*rail, "reads_sent"));
  }
  for (const char* kind : {"put", "get", "atomic", "message"}) {
    const Distribution times = from.distribution(context, fmt::format("{}_latency", kind));
    if (times.count == 0) continue;
    text += fmt::format("{}:   {}: half within {}, 99 % within {} ({} sampled)\n", who, kind,
                        time_text(times.percentile(0.5)), time_text(times.percentile(0.99)), times.count);
  }
  std::string trouble;
  for (const char* field : {"links_suspected", "links_lost", "links_rejoined", "segments_replayed", "peers_lost",
                            "peers_stalled", "stalls", "backpressure", "dropped_stale", "dropped_malformed"}) {
    if (get(field) != 0) trouble += fmt::format("{}{} {}", trouble.empty() ? "" : ", ", field, get(field));
  }
  if (!trouble.empty()) text += fmt::format("{}:   {}\n", who, trouble);
  return text;
}

}  // namespace

std::string summary(const Snapshot& snapshot, std::string_view context) {
  std::string who = fmt::format("railyard summary[{}]", snapshot.pid);
  if (snapshot.rank >= 0) who = fmt::format("railyard summary[rank {} of {}]", snapshot.rank, snapshot.size);
  std::string text;
  for (const RecordInfo* record : snapshot.of("context"))
    if (context.empty() || record->label("context") == context) text += of_context(snapshot, *record, who);
  return text;
}

void print_summary(std::span<const std::byte> bytes, std::string_view context) {
  const auto snapshot = read(bytes);
  if (!snapshot) return;
  const std::string text = summary(*snapshot, context);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace railyard::telemetry
