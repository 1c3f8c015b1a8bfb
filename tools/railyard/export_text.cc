#include "export_text.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <map>
#include <set>

namespace railyard::tool {
namespace {

using telemetry::FieldInfo;
using telemetry::Kind;
using telemetry::RecordInfo;

/// Only what a name may hold: a to z, digits, underscores.
std::string plain_name(std::string_view name) {
  std::string out;
  for (const char c : name) out += (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ? c : '_';
  return out;
}

std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || (quotes && c == '"')) out += '\\';
    out += c;
  }
  return out;
}

/// One metric: its lines stand together, whichever process they come from.
struct Metric {
  std::string help;
  const char* type = "gauge";
  std::string lines;
};

std::string labels_of(const SeenProcess& process, const RecordInfo* record) {
  std::string text = fmt::format("pid=\"{}\"", process.now.pid);
  if (process.now.rank >= 0) text += fmt::format(",rank=\"{}\"", process.now.rank);
  text += fmt::format(",command=\"{}\"", escaped(process.now.command, true));
  if (record == nullptr) return text;
  std::set<std::string> known{"pid", "rank", "command", "le"};
  for (const auto& [key, value] : record->labels) {
    const std::string name = plain_name(key);
    if (known.insert(name).second) text += fmt::format(",{}=\"{}\"", name, escaped(value, true));
  }
  return text;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

/// Its name ends in its unit, as those of the field do; times are in seconds.
std::string metric_name(const std::string& group, const FieldInfo& field) {
  std::string name = fmt::format("railyard_{}_{}", plain_name(group), plain_name(field.name));
  if (field.unit == "nanoseconds") name += "_seconds";
  if (field.unit == "seconds") name += "_seconds";
  if (field.unit == "bytes per second") name += "_bytes_per_second";
  if (field.kind == Kind::counter) name += "_total";
  return name;
}

void add_histogram(Metric& metric, const std::string& name, const std::string& labels, const RecordInfo& record,
                   const FieldInfo& field) {
  const auto times = telemetry::Snapshot::distribution(record, field);
  std::uint64_t sum = 0;
  if (times.count == 0) return;
  // One bound for each power of two: enough for a quantile, and a quarter of the lines.
  for (std::uint32_t bucket = 0; bucket < times.buckets.size(); ++bucket) {
    sum += times.buckets[bucket];
    const std::uint64_t end = times.end_of(bucket);
    if (!std::has_single_bit(end) || end < 128) continue;
    metric.lines += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, static_cast<double>(end) * 1e-9, sum);
  }
  metric.lines += fmt::format("{}_bucket{{{},le=\"+Inf\"}} {}\n", name, labels, sum);
  metric.lines += fmt::format("{}_sum{{{}}} {}\n", name, labels, static_cast<double>(times.sum) * 1e-9);
  metric.lines += fmt::format("{}_count{{{}}} {}\n", name, labels, sum);
}

void add_record(std::map<std::string, Metric>& metrics, const SeenProcess& process, const RecordInfo& record) {
  const telemetry::GroupInfo& group = process.now.groups[record.group];
  const std::string labels = labels_of(process, &record);
  for (const FieldInfo& field : group.fields) {
    const std::string name = metric_name(group.name, field);
    Metric& metric = metrics[name];
    metric.help = field.help;
    const std::uint64_t word = record.words[field.word];
    switch (field.kind) {
      case Kind::counter:
        metric.type = "counter";
        metric.lines += fmt::format("{}{{{}}} {}\n", name, labels, word);
        break;
      case Kind::gauge: {
        const auto value = static_cast<std::int64_t>(word);
        metric.lines += field.unit == "nanoseconds"
                            ? fmt::format("{}{{{}}} {}\n", name, labels, number(static_cast<double>(value) * 1e-9))
                            : fmt::format("{}{{{}}} {}\n", name, labels, value);
        break;
      }
      case Kind::real:
        metric.lines += fmt::format("{}{{{}}} {}\n", name, labels, number(std::bit_cast<double>(word)));
        break;
      case Kind::histogram:
        metric.type = "histogram";
        add_histogram(metric, name, labels, record, field);
        break;
    }
  }
}

}  // namespace

std::string prometheus_text(const SeenHost& host) {
  std::map<std::string, Metric> metrics;
  Metric& up = metrics["railyard_process_up"];
  up.help = "1: the process lives; 0: it ended without closing its contexts, and its file is still there";
  Metric& age = metrics["railyard_process_age_seconds"];
  age.help = "time since the process last published: it makes no pass if that is long";
  for (const SeenProcess& process : host.processes) {
    const std::string labels = labels_of(process, nullptr);
    up.lines += fmt::format("railyard_process_up{{{}}} {}\n", labels, process.found.alive ? 1 : 0);
    age.lines += fmt::format("railyard_process_age_seconds{{{}}} {}\n", labels,
                             number(static_cast<double>(host.at - process.now.published) * 1e-9));
    for (const RecordInfo& record : process.now.records) add_record(metrics, process, record);
  }
  std::string text;
  for (const auto& [name, metric] : metrics) {
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n{}", name, escaped(metric.help, false), name, metric.type,
                        metric.lines);
  }
  return text;
}

}  // namespace railyard::tool
