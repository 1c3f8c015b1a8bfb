#include "demo_report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/bytes.hpp"
#include "json.hpp"
#include "text.hpp"

namespace railyard::tool {

namespace {

constexpr double kMega = 1e6;
constexpr double kNano = 1e9;

std::uint64_t to_nanoseconds(double seconds) { return static_cast<std::uint64_t>(seconds * kNano); }

std::vector<std::byte> encode(const DemoResult& result) {
  ByteWriter out;
  out.text(result.provider);
  out.u32(static_cast<std::uint32_t>(result.phases.size()));
  for (const DemoPhase& phase : result.phases) {
    out.text(phase.name);
    out.u64(phase.operations);
    out.u64(phase.bytes);
    out.u64(to_nanoseconds(phase.seconds));
    for (const std::uint32_t n : phase.latency.buckets()) out.u32(n);
  }
  out.u32(static_cast<std::uint32_t>(result.rails.size()));
  for (const DemoRail& rail : result.rails) {
    out.text(rail.name);
    out.u64(rail.bytes);
    out.u64(rail.bulk_bytes);
  }
  out.u64(to_nanoseconds(result.bulk_seconds));
  out.u64(result.bytes_checked);
  out.u64(result.signals_checked);
  out.u64(result.atomics_checked);
  out.text(result.failure);
  return out.take();
}

DemoPhase decode_phase(ByteReader& in) {
  DemoPhase phase;
  phase.name = in.text();
  phase.operations = in.u64();
  phase.bytes = in.u64();
  phase.seconds = static_cast<double>(in.u64()) / kNano;
  std::array<std::uint32_t, Histogram::kBuckets> buckets{};
  for (std::uint32_t& n : buckets) n = in.u32();
  phase.latency = Histogram::from_buckets(buckets);
  return phase;
}

Result<DemoResult> decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  DemoResult result;
  result.provider = in.text();
  const std::uint32_t phases = in.u32();
  for (std::uint32_t i = 0; i < phases && in.ok(); ++i) result.phases.push_back(decode_phase(in));
  const std::uint32_t rails = in.u32();
  for (std::uint32_t i = 0; i < rails && in.ok(); ++i) {
    DemoRail rail;
    rail.name = in.text();
    rail.bytes = in.u64();
    rail.bulk_bytes = in.u64();
    result.rails.push_back(rail);
  }
  result.bulk_seconds = static_cast<double>(in.u64()) / kNano;
  result.bytes_checked = in.u64();
  result.signals_checked = in.u64();
  result.atomics_checked = in.u64();
  result.failure = in.text();
  if (!in.done()) return Error(Status::version_mismatch, "the ranks of this demo run different programs");
  return result;
}

void merge(DemoResult& all, const DemoResult& one) {
  if (all.provider.empty()) all.provider = one.provider;
  all.phases.resize(std::max(all.phases.size(), one.phases.size()));
  for (std::size_t i = 0; i < one.phases.size(); ++i) {
    DemoPhase& phase = all.phases[i];
    phase.name = one.phases[i].name;
    phase.operations += one.phases[i].operations;
    phase.bytes += one.phases[i].bytes;
    // The ranks work at the same time: together they took as long as the longest.
    phase.seconds = std::max(phase.seconds, one.phases[i].seconds);
    phase.latency.merge(one.phases[i].latency);
  }
  all.rails.resize(std::max(all.rails.size(), one.rails.size()));
  for (std::size_t i = 0; i < one.rails.size(); ++i) {
    all.rails[i].name = one.rails[i].name;
    all.rails[i].bytes += one.rails[i].bytes;
    all.rails[i].bulk_bytes += one.rails[i].bulk_bytes;
  }
  all.bulk_seconds = std::max(all.bulk_seconds, one.bulk_seconds);
  all.bytes_checked += one.bytes_checked;
  all.signals_checked += one.signals_checked;
  all.atomics_checked += one.atomics_checked;
  if (all.failure.empty()) all.failure = one.failure;
}

std::string rail_table(const DemoSummary& summary, bool unicode) {
  using Align = Table::Align;
  constexpr std::size_t kBarWidth = 30;
  Table table({{"rail", Align::right}, {"name"}, {"bytes sent", Align::right}, {"all-to-all", Align::right}, {""}});
  double most = 0;
  double total_rate = 0;
  double total_bytes = 0;
  for (const DemoRail& rail : summary.all.rails) {
    most = std::max(most, summary.rail_rate(rail));
    total_rate += summary.rail_rate(rail);
    total_bytes += static_cast<double>(rail.bytes);
  }
  for (std::size_t i = 0; i < summary.all.rails.size(); ++i) {
    const DemoRail& rail = summary.all.rails[i];
    const double rate = summary.rail_rate(rail);
    table.add({fmt::format("{}", i), rail.name, readable_bytes(static_cast<double>(rail.bytes)),
               fmt::format("{} MB/s", readable_number(rate / kMega)),
               bar(most > 0 ? rate / most : 0, kBarWidth, unicode)});
  }
  table.rule();
  table.add({"all", "", readable_bytes(total_bytes), fmt::format("{} MB/s", readable_number(total_rate / kMega)), ""});
  return table.text();
}

std::string phase_table(const DemoSummary& summary) {
  using Align = Table::Align;
  Table table({{"phase"},
               {"operations", Align::right},
               {"bytes", Align::right},
               {"rate", Align::right},
               {"p50", Align::right},
               {"p90", Align::right},
               {"p99", Align::right}});
  for (const DemoPhase& phase : summary.all.phases) {
    table.add({phase.name, fmt::format("{}", phase.operations), readable_bytes(static_cast<double>(phase.bytes)),
               fmt::format("{} MB/s", readable_number(summary.phase_rate(phase) / kMega)),
               readable_nanoseconds(phase.latency.quantile(0.5)), readable_nanoseconds(phase.latency.quantile(0.9)),
               readable_nanoseconds(phase.latency.quantile(0.99))});
  }
  return table.text();
}

}  // namespace

Result<DemoSummary> summarise(const DemoResult& mine, Bootstrap& bootstrap) {
  auto all = bootstrap.allgather(encode(mine), {});
  if (!all) return std::move(all.error());
  DemoSummary summary;
  summary.ranks = bootstrap.size();
  for (const auto& bytes : *all) {
    auto one = decode(bytes);
    if (!one) return std::move(one.error());
    merge(summary.all, *one);
  }
  return summary;
}

std::string demo_table(const DemoSummary& summary, bool unicode) {
  std::string out =
      fmt::format("Railyard {}: {} ranks{}, {} rails ({})\n\n", RAILYARD_VERSION, summary.ranks,
                  summary.started_by_others ? "" : " on this machine", summary.all.rails.size(), summary.all.provider);
  out += rail_table(summary, unicode) + '\n' + phase_table(summary) + '\n';
  if (summary.all.failure.empty()) {
    out += fmt::format("Verified: {} byte for byte, {} signals in number and order, {} atomics in their sum.\n",
                       readable_bytes(static_cast<double>(summary.all.bytes_checked)), summary.all.signals_checked,
                       summary.all.atomics_checked);
  }
  return out;
}

std::string demo_json(const DemoSummary& summary) {
  JsonWriter json;
  json.begin_object()
      .field("version", RAILYARD_VERSION)
      .field("ranks", summary.ranks)
      .field("provider", std::string_view(summary.all.provider))
      .field("verified", summary.all.failure.empty())
      .field("failure", std::string_view(summary.all.failure))
      .field("bytes_checked", summary.all.bytes_checked)
      .field("signals_checked", summary.all.signals_checked)
      .field("atomics_checked", summary.all.atomics_checked);
  json.key("rails").begin_array();
  for (const DemoRail& rail : summary.all.rails) {
    json.begin_object()
        .field("name", std::string_view(rail.name))
        .field("bytes", rail.bytes)
        .field("all_to_all_mb_per_s", summary.rail_rate(rail) / kMega)
        .end_object();
  }
  json.end_array();
  json.key("phases").begin_array();
  for (const DemoPhase& phase : summary.all.phases) {
    json.begin_object()
        .field("name", std::string_view(phase.name))
        .field("operations", phase.operations)
        .field("bytes", phase.bytes)
        .field("mb_per_s", summary.phase_rate(phase) / kMega)
        .field("p50_us", phase.latency.quantile(0.5) / 1e3)
        .field("p90_us", phase.latency.quantile(0.9) / 1e3)
        .field("p99_us", phase.latency.quantile(0.99) / 1e3)
        .end_object();
  }
  return json.end_array().end_object().finish();
}

}  // namespace railyard::tool
