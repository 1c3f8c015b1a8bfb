#include "bench_report.hpp"

#include <fmt/core.h>

#include "json.hpp"
#include "text.hpp"

namespace railyard::tool {

namespace {

const char* what_it_measures(bench::Test test) {
  switch (test) {
    case bench::Test::put:
      return "a stream of puts until all are complete at the target, MB/s (10^6 bytes)";
    case bench::Test::get:
      return "a stream of gets, MB/s (10^6 bytes)";
    case bench::Test::put_signal:
      return "full round trip of a put with its signal, there and back, us";
    case bench::Test::atomic:
      return "full round trip of a fetching addition, us";
    case bench::Test::rate:
      break;
  }
  return "small puts until all are complete at the target, operations per second";
}

const char* what_was_verified(bench::Test test) {
  return test == bench::Test::atomic ? "every fetched value and the word's sum" : "every byte of the last pass";
}

std::string rails_table(const BenchReport& report) {
  using Align = Table::Align;
  Table table({{"bytes", Align::right},
               {"rail", Align::right},
               {"name"},
               {"sent MB/s", Align::right},
               {"received MB/s", Align::right}});
  for (const BenchRow& row : report.rows)
    for (std::size_t i = 0; i < row.by_rail.size(); ++i)
      table.add({i == 0 ? fmt::format("{}", row.bytes) : "", fmt::format("{}", i), row.by_rail[i].name,
                 readable_number(row.by_rail[i].sent), readable_number(row.by_rail[i].received)});
  return table.text();
}

/// No rail sees what ranks of one host do on each other's memory.
std::string direct_text(const WorldStatistics& counted) {
  if (counted.direct_puts + counted.direct_gets + counted.direct_atomics == 0) return "";
  return fmt::format("Direct stores and loads, past every rail: {} puts and signals ({}), {} gets ({}), {} atomics.\n",
                     counted.direct_puts, readable_bytes(static_cast<double>(counted.direct_bytes_put)),
                     counted.direct_gets, readable_bytes(static_cast<double>(counted.direct_bytes_got)),
                     counted.direct_atomics);
}

}  // namespace

std::string bench_table(const BenchOptions& options, const Settings& settings, const BenchReport& report) {
  using Align = Table::Align;
  const char* unit = test_unit(options.test);
  std::string out = fmt::format("{}: {}\n", test_name(options.test), what_it_measures(options.test));
  out += fmt::format("driver {}, provider {}, {} rail{}, medians of {} rounds of about {} ms\n\n", settings.driver,
                     report.provider, report.rails, report.rails == 1 ? "" : "s", options.rounds, options.round_ms);
  Table table({{"bytes", Align::right},
               {fmt::format("ours {}", unit), Align::right},
               {fmt::format("raw {}", unit), Align::right},
               {"ours/raw", Align::right},
               {"verified"}});
  for (const BenchRow& row : report.rows) {
    table.add(
        {fmt::format("{}", row.bytes), readable_number(row.ours), row.raw ? readable_number(*row.raw) : "-",
         row.raw ? fmt::format("{:.3f}", row.ours / *row.raw) : "-",
         fmt::format("{} rounds, {}", row.rounds_verified, readable_bytes(static_cast<double>(row.bytes_verified)))});
  }
  out += table.text();
  out += fmt::format("\nVerified after each round: {}.\n", what_was_verified(options.test));
  out += fmt::format("\nRails of rank 0:\n{}", rails_table(report));
  out += direct_text(report.counted);
  for (const std::string& note : report.notes) out += note + '\n';
  return out;
}

std::string bench_json(const BenchOptions& options, const Settings& settings, const BenchReport& report) {
  JsonWriter json;
  json.begin_object()
      .field("test", test_name(options.test))
      .field("driver", std::string_view(settings.driver))
      .field("provider", std::string_view(report.provider))
      .field("rails", std::uint64_t{report.rails});
  json.key("rows").begin_array();
  for (const BenchRow& row : report.rows) {
    json.begin_object()
        .field("bytes", std::uint64_t{row.bytes})
        .field("unit", test_unit(options.test))
        .field("ours", row.ours);
    json.key("raw");
    row.raw ? json.value(*row.raw) : json.null();
    json.key("ratio");
    row.raw ? json.value(row.ours / *row.raw) : json.null();
    json.key("by_rail").begin_array();
    for (const RailFigure& rail : row.by_rail) {
      json.begin_object()
          .field("name", std::string_view(rail.name))
          .field("sent_mb_per_second", rail.sent)
          .field("received_mb_per_second", rail.received)
          .end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().key("direct").begin_object();
  json.field("puts", report.counted.direct_puts)
      .field("gets", report.counted.direct_gets)
      .field("atomics", report.counted.direct_atomics)
      .field("bytes_put", report.counted.direct_bytes_put)
      .field("bytes_got", report.counted.direct_bytes_got);
  return json.end_object().end_object().finish();
}

}  // namespace railyard::tool
