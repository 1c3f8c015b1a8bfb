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
    json.end_object();
  }
  return json.end_array().end_object().finish();
}

}  // namespace railyard::tool
