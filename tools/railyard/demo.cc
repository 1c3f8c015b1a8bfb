/// `railyard demo`: verified traffic between ranks of this machine, over several rails on loopback. What ./run starts.
#include <fmt/core.h>

#include <memory>
#include <string>

#include "commands.hpp"
#include "demo_report.hpp"
#include "demo_traffic.hpp"
#include "ranks.hpp"
#include "text.hpp"

namespace railyard::tool {

namespace {

struct Line {
  int ranks = 4;
  std::uint32_t rails = 4;
  double seconds = 2;
  bool in_world = false;
  bool ascii = false;
  std::string json;
  std::string svg = "railyard-demo.svg";
};

int show(const Line& line, const DemoSummary& summary) {
  // With the JSON on the standard output nothing else may be there.
  std::FILE* out = line.json == "-" ? stderr : stdout;
  fmt::print(out, "{}", demo_table(summary, !line.ascii && unicode_terminal()));
  if (!line.svg.empty()) {
    if (auto written = write_text(line.svg, demo_picture(summary)); !written)
      return report_error("demo", written.error());
    fmt::print(out, "Picture: {}\n", line.svg);
  }
  if (!line.json.empty()) {
    if (auto written = write_text(line.json, demo_json(summary)); !written)
      return report_error("demo", written.error());
  }
  if (summary.all.failure.empty()) return kExitOk;
  fmt::print(stderr, "railyard demo: VERIFICATION FAILED: {}\n", summary.all.failure);
  return kExitFailed;
}

int demo_rank(const Line& line, const Settings& settings, Bootstrap& bootstrap) {
  auto world = World::open({.settings = &settings, .bootstrap = &bootstrap});
  if (!world) return report_error("demo", world.error());
  auto traffic = DemoTraffic::open(*world, bootstrap, line.seconds);
  if (!traffic) return report_error("demo", traffic.error());
  auto result = traffic->run();
  if (!result) return report_error("demo", result.error());
  if (auto closed = traffic->close(); !closed) return report_error("demo", closed.error());
  auto summary = summarise(*result, bootstrap);
  if (!summary) return report_error("demo", summary.error());
  summary->started_by_others = line.in_world;
  if (bootstrap.rank() != 0) return summary->all.failure.empty() ? kExitOk : kExitFailed;
  return show(line, *summary);
}

int run_demo(Line line) {
  for (const std::string* file : {&line.json, &line.svg}) {
    if (file->empty()) continue;
    if (auto writable = check_writable(*file); !writable) return report_error("demo", writable.error());
  }
  auto settings = Settings::from_environment();
  if (!settings) return report_error("demo", settings.error());
  // An embedded default for what the environment leaves open: it must run on any machine, without a network, and show
  // rails at work. Ranks that a launcher started may be on several hosts: they use the rails that their world has.
  line.in_world = inside_a_world(*settings);
  const std::string rails = fmt::format("{}", line.rails);
  for (const auto& [name, value] : {std::pair<const char*, std::string>{"RAILYARD_DRIVER", "tcp"},
                                    {"RAILYARD_INTERFACES", "lo"},
                                    {"RAILYARD_RAILS", rails},
                                    {"RAILYARD_SHARED_MEMORY", "off"}}) {
    // Whoever names a libfabric provider wants libfabric.
    const bool driver = std::string_view(name) == "RAILYARD_DRIVER";
    if (line.in_world && std::string_view(name) != "RAILYARD_SHARED_MEMORY") continue;
    if (std::getenv(name) != nullptr || (driver && std::getenv("RAILYARD_PROVIDER") != nullptr)) continue;
    if (auto set = settings->set(name, value); !set) return report_error("demo", set.error());
  }
  return run_ranks("demo", line.ranks, *settings,
                   [&line](const Settings& own, Bootstrap& bootstrap) { return demo_rank(line, own, bootstrap); });
}

}  // namespace

void add_demo_command(CLI::App& app, int& exit_code) {
  auto line = std::make_shared<Line>();
  CLI::App* demo =
      app.add_subcommand("demo", "Verified traffic between ranks of this machine, as a table and a picture");
  demo->add_option("-n,--ranks", line->ranks, "How many ranks")
      ->check(CLI::Range(2, 64))
      ->capture_default_str()
      ->type_name("N");
  demo->add_option("--rails", line->rails, "How many rails on loopback")
      ->check(CLI::Range(1, 64))
      ->capture_default_str()
      ->type_name("N");
  demo->add_option("--seconds", line->seconds, "About how long each of the four phases lasts")
      ->check(CLI::Range(0.05, 600.0))
      ->capture_default_str()
      ->type_name("S");
  demo->add_flag("--ascii", line->ascii, "Draw bars without block characters");
  demo->add_option("--svg", line->svg, "Where the picture goes; '' for none")->capture_default_str()->type_name("FILE");
  demo->add_option("--json", line->json, "Write the figures as JSON to FILE; - is the standard output")
      ->type_name("FILE");
  demo->footer(
      "Puts with signals of 1 byte to 1 MiB, gets, fetching additions, and an all-to-all; every byte, signal and sum\n"
      "is checked. Needs no root and no configuration; RAILYARD_PROVIDER, RAILYARD_INTERFACES and RAILYARD_RAILS "
      "change\n"
      "where it runs. Started as a rank of a world (railyard launch, mpirun), it uses that world's own rails and as\n"
      "many ranks as there are.\n"
      "Examples:\n"
      "  railyard demo\n"
      "  railyard demo -n 8 --rails 2 --json demo.json\n"
      "Exit codes: 0 all verified; 1 something was wrong; 2 a bad argument or setting; 3 no rail.");
  demo->callback([line, &exit_code] { exit_code = run_demo(*line); });
}

}  // namespace railyard::tool
