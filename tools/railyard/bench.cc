/// `railyard bench`: what Railyard reaches on this machine's rails, beside bare libfabric calls if asked.
#include <fmt/core.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench_match.hpp"
#include "bench_report.hpp"
#include "commands.hpp"
#include "ranks.hpp"
#include "report.hpp"
#include "text.hpp"

namespace railyard::tool {

namespace {

using bench::Test;

constexpr std::size_t kLargest = std::size_t{256} << 20U;

struct Line {
  std::string test;
  std::string driver;
  std::string provider;
  std::string interfaces;
  std::uint32_t rails = 0;
  std::vector<std::string> sizes;
  std::string beside;
  std::string json;
  std::string report;
  bool quick = false;
  bool rounds_given = false;
  bool no_pin = false;
  BenchOptions options;
};

const std::map<std::string, Test> kTests = {{"put", Test::put},
                                            {"get", Test::get},
                                            {"put_signal", Test::put_signal},
                                            {"atomic", Test::atomic},
                                            {"rate", Test::rate}};

std::vector<std::size_t> default_sizes(Test test) {
  switch (test) {
    case Test::put:
    case Test::get:
      return {64 * 1024, 1024 * 1024, 4 * 1024 * 1024};
    case Test::put_signal:
      return {8, 1024};
    case Test::atomic:
      return {8};
    case Test::rate:
      break;
  }
  return {8, 64};
}

bool is_stream(Test test) { return test == Test::put || test == Test::get; }

/// "64", "4K", "1M"
Result<std::size_t> parse_size(Test test, const std::string& text) {
  std::size_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, failure] = std::from_chars(text.data(), end, value);
  const std::string unit(stopped, end);
  const std::size_t factor = unit.empty()                   ? 1
                             : unit == "K" || unit == "KiB" ? 1024
                             : unit == "M" || unit == "MiB" ? 1024 * 1024
                                                            : 0;
  if (failure != std::errc() || factor == 0 || value == 0 || value > kLargest / factor) {
    return Error(Status::invalid, fmt::format("--sizes: '{}' is no size from 1 to 256M (K and M may follow)", text));
  }
  if (test == Test::atomic && value * factor != 4 && value * factor != 8) {
    return Error(Status::invalid, fmt::format("--sizes: an atomic has 4 or 8 bytes, not {}", text));
  }
  return value * factor;
}

Result<void> complete_options(Line& line) {
  line.options.test = kTests.at(line.test);
  line.options.beside_raw = line.beside == "raw";
  line.options.beside_socket = line.beside == "socket";
  for (const std::string& text : line.sizes) {
    auto size = parse_size(line.options.test, text);
    if (!size) return std::move(size.error());
    line.options.sizes.push_back(*size);
  }
  if (line.options.sizes.empty()) line.options.sizes = default_sizes(line.options.test);
  // A stream needs time for its beginning and end not to count.
  if (line.options.round_ms == 0) line.options.round_ms = is_stream(line.options.test) ? 400 : 200;
  if (line.json.empty()) return {};
  return check_writable(line.json);
}

/// The environment's settings with what the line says on top.
Result<Settings> make_settings(const Line& line) {
  auto settings = Settings::from_environment();
  if (!settings) return settings;
  const std::string rails = line.rails == 0 ? "" : fmt::format("{}", line.rails);
  // What it measures are rails into a network, also where its two ranks share a host.
  if (std::getenv("RAILYARD_SHARED_MEMORY") == nullptr) {
    if (auto set = settings->set("RAILYARD_SHARED_MEMORY", "off"); !set) return std::move(set.error());
  }
  for (const auto& [name, value] : {std::pair<const char*, const std::string&>{"RAILYARD_DRIVER", line.driver},
                                    {"RAILYARD_PROVIDER", line.provider},
                                    {"RAILYARD_INTERFACES", line.interfaces},
                                    {"RAILYARD_RAILS", rails}}) {
    if (value.empty()) continue;
    if (auto set = settings->set(name, value); !set) return std::move(set.error());
  }
  return settings;
}

/// Prints an error unless the other rank prints the same one.
int report(const Error& error, const Bootstrap& bootstrap, const bench::Referee& referee) {
  const bool silent = bootstrap.rank() != 0 && referee.both_know();
  return silent ? exit_code_for(error.status()) : report_error("bench", error);
}

int bench_rank(const Line& line, const Settings& settings, Bootstrap& bootstrap) {
  if (bootstrap.size() != 2) {
    if (bootstrap.rank() != 0) return kExitUsage;
    fmt::print(stderr, "railyard bench: a bench is between 2 ranks; this world has {}\n", bootstrap.size());
    return kExitUsage;
  }
  if (!line.no_pin) pin_rank("bench", bootstrap.rank());
  bench::Referee referee(bootstrap, Deadline::in(std::chrono::milliseconds(settings.bootstrap_timeout_ms)));
  auto match = BenchMatch::open(line.options, settings, bootstrap, referee);
  if (!match) return report(match.error(), bootstrap, referee);
  auto figures = (*match)->run();
  if (!figures) return report(figures.error(), bootstrap, referee);
  if (auto closed = (*match)->close(); !closed) return report_error("bench", closed.error());
  if (bootstrap.rank() != 0) return kExitOk;
  // With the JSON on the standard output nothing else may be there.
  fmt::print(line.json == "-" ? stderr : stdout, "{}", bench_table(line.options, settings, *figures));
  if (line.json.empty()) return kExitOk;
  if (auto written = write_text(line.json, bench_json(line.options, settings, *figures)); !written) {
    return report_error("bench", written.error());
  }
  return kExitOk;
}

/// What goes with --report and what does not.
Result<void> check_report(const Line& line) {
  if (line.report.empty() && line.test.empty())
    return Error(Status::invalid,
                 "say what to measure: put, get, put_signal, atomic or rate, or --report DIR for a page");
  if (line.report.empty() && line.quick) return Error(Status::invalid, "--quick goes with --report");
  if (!line.report.empty() && (!line.test.empty() || !line.sizes.empty() || !line.beside.empty() || !line.json.empty()))
    return Error(Status::invalid, "--report measures a set of its own: no TEST, --sizes, --beside or --json with it");
  return {};
}

int run_bench(Line line) {
  if (auto checked = check_report(line); !checked) return report_error("bench", checked.error());
  if (!line.report.empty()) {
    auto settings = make_settings(line);
    if (!settings) return report_error("bench", settings.error());
    return run_report({.folder = line.report,
                       .quick = line.quick,
                       .pin = !line.no_pin,
                       .rounds = line.rounds_given ? line.options.rounds : 0,
                       .round_ms = line.options.round_ms},
                      *settings);
  }
  if (auto completed = complete_options(line); !completed) return report_error("bench", completed.error());
  auto settings = make_settings(line);
  if (!settings) return report_error("bench", settings.error());
  return run_ranks("bench", 2, *settings,
                   [&line](const Settings& own, Bootstrap& bootstrap) { return bench_rank(line, own, bootstrap); });
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  auto line = std::make_shared<Line>();
  CLI::App* bench = app.add_subcommand("bench", "Bandwidth, round trips and rates between two ranks, data verified");
  bench->add_option("TEST", line->test, "put, get, put_signal, atomic or rate")
      ->check(CLI::IsMember({"put", "get", "put_signal", "atomic", "rate"}))
      ->type_name("");
  bench->add_option("--driver", line->driver, "The driver that opens rails (default: RAILYARD_DRIVER, or auto)")
      ->type_name("NAME");
  bench->add_option("--provider", line->provider, "The libfabric provider, such as tcp (default: the best one found)")
      ->type_name("NAME");
  bench->add_option("--interfaces", line->interfaces, "Interfaces to use, such as lo or eth0,eth1 (default: all)")
      ->type_name("LIST");
  bench->add_option("--rails", line->rails, "How many rails (default: one per NIC port)")
      ->check(CLI::Range(1, 256))
      ->type_name("N");
  bench->add_option("--sizes", line->sizes, "Bytes of one operation: 8,64K,1M (default: by test)")
      ->delimiter(',')
      ->type_name("LIST");
  bench
      ->add_option("--beside", line->beside,
                   "raw: bare libfabric calls of the same kind, in turn with ours; socket: a "
                   "bare, spinning TCP socket on the first rail's interface")
      ->check(CLI::IsMember({"raw", "socket"}))
      ->type_name("raw|socket");
  bench->add_option("--rounds", line->options.rounds, "Measured rounds of each side; figures are medians")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str()
      ->type_name("N");
  bench
      ->add_option("--round-ms", line->options.round_ms,
                   "About how long a round lasts, in milliseconds (default: by test)")
      ->check(CLI::Range(1, 60000))
      ->type_name("MS");
  bench->add_flag("--no-pin", line->no_pin, "Do not pin the two ranks to different cores");
  bench->add_option("--json", line->json, "Write the figures as JSON to FILE; - is the standard output")
      ->type_name("FILE");
  bench
      ->add_option("--report", line->report,
                   "Measure everything instead of a TEST: a page with plots in DIR, and its figures as JSON")
      ->type_name("DIR");
  bench->add_flag("--quick", line->quick, "With --report: in under a minute, with shorter rounds");
  bench->footer(
      "Tests:\n"
      "  put         MB/s of a stream of puts until all of them are complete at the target\n"
      "  get         MB/s of a stream of gets\n"
      "  put_signal  us there and back: a put with its signal, answered by another\n"
      "  atomic      us of a fetching addition (4 or 8 bytes)\n"
      "  rate        op/s of small puts until all of them are complete at the target\n"
      "With several rails raw is the sum of what each rail reaches alone (of round trips: the shortest).\n"
      "Starts its two ranks itself, unless it runs inside a world (railyard launch, mpirun) of two.\n"
      "Examples:\n"
      "  railyard bench put --provider tcp --interfaces lo --rails 1 --sizes 1M --beside raw\n"
      "  railyard bench put_signal --sizes 8,1024 --json figures.json\n"
      "  railyard launch -n 2 -- railyard bench get\n"
      "  railyard bench --report report --quick\n"
      "Exit codes: 0 measured and verified; 1 wrong data or a failed run; 2 a bad argument or setting;\n"
      "3 no rail or provider, or a file that cannot be written.");
  bench->callback([line, bench, &exit_code] {
    line->rounds_given = bench->count("--rounds") > 0;
    exit_code = run_bench(*line);
  });
}

}  // namespace railyard::tool
