#include "report.hpp"

#include <fmt/core.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "commands.hpp"
#include "fabric/rail.hpp"
#include "ranks.hpp"
#include "report_measure.hpp"
#include "text.hpp"
#include "topo_tree.hpp"

namespace railyard::tool {

namespace {

/// What follows "NAME :" in the first line of the file that begins so.
std::string value_in(const char* file, std::string_view name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t colon = line.find(':');
    const std::size_t at = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    if (at != std::string::npos) return line.substr(at);
  }
  return "unknown";
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return std::string(text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts));
}

std::string changed_settings(const Settings& settings) {
  std::string out;
  for (const Settings::Entry& setting : settings.list()) {
    // Which part of the report uses shared memory is the report's own choice.
    if (setting.value == setting.by_default || setting.name == "RAILYARD_JOB_KEY" ||
        setting.name == "RAILYARD_SHARED_MEMORY")
      continue;
    out += fmt::format("{}{}={}", out.empty() ? "" : " ", setting.name, setting.value);
  }
  return out.empty() ? "none" : out;
}

std::string machine_picture(const Settings& settings) {
  auto table = topology::find_gpu_table(settings);
  return table && !table->gpus.empty() ? topo_picture(make_topo_tree(std::move(*table))) : "";
}

/// Makes the figures one after another; ends at the first that fails.
class Reporter {
 public:
  Reporter(const ReportOptions& options, const Settings& settings) : options_(options), settings_(settings) {}

  int make(std::vector<ReportFigure>& figures) {
    for (const auto& step :
         {&Reporter::latency, &Reporter::bandwidth, &Reporter::scaling, &Reporter::percentiles, &Reporter::failover}) {
      ReportFigure figure;
      if (const int code = (this->*step)(figure); code != kExitOk) return code;
      figures.push_back(std::move(figure));
    }
    return kExitOk;
  }

 private:
  BenchOptions bench(bench::Test test, std::vector<std::size_t> sizes) const {
    const std::uint32_t length = is_latency(test) ? 40 : 80;
    return {.test = test,
            .sizes = std::move(sizes),
            .rounds = options_.rounds != 0 ? options_.rounds
                      : options_.quick     ? 3U
                                           : 7U,
            .round_ms = options_.round_ms != 0 ? options_.round_ms
                        : options_.quick       ? length
                                               : 4 * length,
            .beside_raw = false};
  }

  /// One world: with shared memory or over this many rails (0: as set). Its first series gets the name.
  int measure(const std::string& name, const ReportBody& body, bool shared, std::uint32_t rails,
              ReportFindings& found) {
    ++step_;
    fmt::print(stderr, "railyard bench: report, step {} of {}: {}\n", step_, kSteps, name);
    Settings settings = settings_;
    auto set = settings.set("RAILYARD_SHARED_MEMORY", shared ? "on" : "off");
    if (set && rails != 0) set = settings.set("RAILYARD_RAILS", fmt::format("{}", rails));
    if (set && cuts_) set = settings.set("RAILYARD_DRIVER", "tcp");
    // The cut is what the figure shows: its log lines are no news.
    if (set && cuts_) set = settings.set("RAILYARD_LOG", "error");
    if (!set) return report_error("bench", set.error());
    return measure_in_world(settings, options_.pin, body, found);
  }
  int add(ReportFigure& figure, const std::string& name, const ReportBody& body, bool shared) {
    ReportFindings found;
    if (const int code = measure(name, body, shared, 0, found); code != kExitOk) return code;
    found.series.front().name = name;
    figure.series.push_back(std::move(found.series.front()));
    return kExitOk;
  }

  int latency(ReportFigure& figure) {
    figure = {.id = "latency",
              .title = "Latency over size",
              .note = "",
              .x = ReportAxis::bytes,
              .x_label = "bytes of a put",
              .y_label = "us there and back",
              .log_y = true,
              .series = {},
              .marks = {}};
    figure.note = "A put with its signal, answered by another: the full round trip. Medians; the scale is logarithmic.";
    const BenchOptions options = bench(bench::Test::put_signal, {8, 64, 512, 4096, 32768, 262144, 1048576});
    if (const int code = add(figure, "put_signal over rails", bench_body(options, false), false)) return code;
    return add(figure, "put_signal, shared memory", bench_body(options, false), true);
  }

  int bandwidth(ReportFigure& figure) {
    figure = {.id = "bandwidth",
              .title = "Bandwidth over size",
              .note = "",
              .x = ReportAxis::bytes,
              .x_label = "bytes of a put or get",
              .y_label = "MB/s (10^6 bytes)",
              .log_y = true,
              .series = {},
              .marks = {}};
    figure.note = "A stream until all of it is complete at the target. Medians; the scale is logarithmic.";
    const std::vector<std::size_t> sizes{4096, 16384, 65536, 262144, 1048576, 4194304};
    const auto put = bench_body(bench(bench::Test::put, sizes), false);
    const auto get = bench_body(bench(bench::Test::get, sizes), false);
    if (const int code = add(figure, "put over rails", put, false)) return code;
    if (const int code = add(figure, "get over rails", get, false)) return code;
    return add(figure, "put, shared memory", put, true);
  }

  int scaling(ReportFigure& figure) {
    figure = {.id = "rails",
              .title = "Rails",
              .note = "",
              .x = ReportAxis::count,
              .x_label = "rails",
              .y_label = "MB/s (10^6 bytes)",
              .log_y = false,
              .series = {},
              .marks = {}};
    figure.note =
        "Puts of 1 MiB over one and more rails. Both ranks are on this machine, where rails of a kernel's "
        "network share its cores: this shows what a rail costs, not what NICs add up to.";
    figure.series = {{"all rails", {}}, {"the rail that carried most", {}}, {"the rail that carried least", {}}};
    for (const std::uint32_t rails : {1U, 2U, 4U}) {
      ReportFindings found;
      const auto body = bench_body(bench(bench::Test::put, {1048576}), true);
      if (const int code =
              measure(fmt::format("puts over {} rail{}", rails, rails == 1 ? "" : "s"), body, false, rails, found))
        return code;
      double most = 0;
      double least = -1;
      for (std::size_t i = 1; i < found.series.size(); ++i) {
        const double rate = found.series[i].points.front().y;
        most = std::max(most, rate);
        least = least < 0 ? rate : std::min(least, rate);
      }
      figure.series[0].points.push_back({static_cast<double>(rails), found.series[0].points.front().y});
      figure.series[1].points.push_back({static_cast<double>(rails), most});
      figure.series[2].points.push_back({static_cast<double>(rails), std::max(least, 0.0)});
    }
    return kExitOk;
  }

  int percentiles(ReportFigure& figure) {
    figure = {.id = "percentiles",
              .title = "Latency by percentile",
              .note = "",
              .x = ReportAxis::quantile,
              .x_label = "share of the operations that took no longer",
              .y_label = "us",
              .log_y = true,
              .series = {},
              .marks = {}};
    figure.note = "The traffic of railyard demo between two ranks over rails, each operation timed and checked.";
    ReportFindings found;
    const auto body = percentiles_body(options_.quick ? 0.5 : 2);
    if (const int code = measure("percentiles", body, false, 0, found); code != kExitOk) return code;
    figure.series = std::move(found.series);
    return kExitOk;
  }

  int failover(ReportFigure& figure) {
    figure = {.id = "failover",
              .title = "A failover",
              .note = "",
              .x = ReportAxis::seconds,
              .x_label = "seconds",
              .y_label = "MB/s (10^6 bytes)",
              .log_y = false,
              .series = {},
              .marks = {}};
    figure.note =
        "Puts of 256 KiB over four tcp rails, in steps of 10 ms. The connections of one rail are cut again and "
        "again for a third of the time. No put fails, and the target's memory is compared at the end.";
    ReportFindings found;
    cuts_ = true;
    const int code = measure("a rail is cut", failover_body(options_.quick ? 1.5 : 4.5), false, 4, found);
    cuts_ = false;
    if (code != kExitOk) return code;
    figure.series = std::move(found.series);
    figure.marks = std::move(found.marks);
    return kExitOk;
  }

  static constexpr int kSteps = 10;
  const ReportOptions& options_;
  const Settings& settings_;
  int step_ = 0;
  bool cuts_ = false;
};

}  // namespace

std::vector<ReportFact> describe_machine(const Settings& settings) {
  utsname kernel{};
  uname(&kernel);
  const auto offers = fabric::chosen_offers(settings);
  std::string rails;
  if (offers) {
    for (const auto& offer : *offers)
      rails += fmt::format("{}{} {}", rails.empty() ? "" : ", ", offer.provider, offer.label(offer.domain));
  }
  std::string memory = value_in("/proc/meminfo", "MemTotal");
  if (const double kib = std::strtod(memory.c_str(), nullptr); kib > 0) memory = readable_bytes(kib * 1024);
  return {{"time", "Measured", utc_now()},
          {"version", "Railyard", RAILYARD_VERSION},
          {"host", "Host", kernel.nodename},
          {"kernel", "Kernel", fmt::format("{} {} {}", kernel.sysname, kernel.release, kernel.machine)},
          {"cpu", "Processor", value_in("/proc/cpuinfo", "model name")},
          {"cores", "Cores online", fmt::format("{}", sysconf(_SC_NPROCESSORS_ONLN))},
          {"memory", "Memory", memory},
          {"rails", "Rails", rails.empty() ? "none" : rails},
          {"settings", "Settings that differ from the default", changed_settings(settings)}};
}

int run_report(const ReportOptions& options, const Settings& settings) {
  if (inside_a_world(settings)) {
    return report_error("bench", Error(Status::invalid, "--report starts its ranks itself: run it outside a world"));
  }
  std::error_code failure;
  std::filesystem::create_directories(options.folder, failure);
  const std::string page = options.folder + "/index.html";
  const std::string json = options.folder + "/report.json";
  for (const std::string* file : {&page, &json}) {
    if (auto writable = check_writable(*file); !writable) return report_error("bench", writable.error());
  }
  ReportData data;
  data.command = fmt::format("railyard bench --report{}", options.quick ? " --quick" : "");
  data.machine = describe_machine(settings);
  data.topology = machine_picture(settings);
  if (const int code = Reporter(options, settings).make(data.figures); code != kExitOk) return code;
  for (const auto& [file, text] : {std::pair{page, report_page(data)}, {json, report_json(data)}}) {
    if (auto written = write_text(file, text); !written) return report_error("bench", written.error());
  }
  fmt::print("Report: {}\n", page);
  return kExitOk;
}

}  // namespace railyard::tool
