/// `railyard`: the command. Parses the line, runs one subcommand, returns its exit code.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "base/nearest.hpp"
#include "commands.hpp"

#ifndef RAILYARD_VERSION
#error "RAILYARD_VERSION comes from the build"
#endif

namespace railyard::tool {

namespace {

/// What is wrong with the first word, if it names no subcommand; CLI11 would only say that one is required.
std::string unknown_subcommand(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return "";
  const std::string word = argv[1];
  std::vector<std::string_view> known;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(command->get_name());
  if (std::ranges::find(known, word) != known.end()) return "";
  return fmt::format("no subcommand '{}': did you mean '{}'? There are {}.", word, nearest_name(word, known),
                     fmt::join(known, ", "));
}

constexpr const char* kFooter = R"(Examples:
  railyard demo                                   verified traffic between 4 ranks of this machine
  railyard info --settings                        what was found here and every setting
  railyard bench put --rails 2 --sizes 1048576    bandwidth over two rails
  railyard bench put_signal --beside raw          round trip, beside bare libfabric calls
  railyard launch -n 4 -- ./my-program            start my-program as a world of 4 ranks
  railyard doctor                                 what on this machine may bite, and what to do
  railyard topo --svg machine.svg                 the machine and the rails of its GPUs
  railyard top                                    all Railyard processes of this host, live
  railyard export --prometheus                    the same for Prometheus
  railyard trace -- ./my-program                  what its operations, rails and links did, for Perfetto
  railyard sim --schedules 1000 --seed 1          the engine on simulated rails

Exit codes: 0 all well; 1 the run found a failure; 2 an argument or a setting makes no sense;
3 this machine cannot do it (no rail, unknown provider, file not writable).
`railyard launch` and `railyard trace` pass on the code of the program that they start.)";

int run(int argc, char** argv) {
  CLI::App app{"Railyard: one-sided data movement over every path between the processes of a cluster", "railyard"};
  app.set_version_flag("--version", std::string("railyard ") + RAILYARD_VERSION);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);

  int exit_code = kExitOk;
  add_demo_command(app, exit_code);
  add_info_command(app, exit_code);
  add_bench_command(app, exit_code);
  add_launch_command(app, exit_code);
  add_sim_command(app, exit_code);
  add_doctor_command(app, exit_code);
  add_topo_command(app, exit_code);
  add_top_command(app, exit_code);
  add_export_command(app, exit_code);
  add_trace_command(app, exit_code);
  add_nvshmem_env_command(app, exit_code);
  app.footer(kFooter);  // after the subcommands, which would take it over

  if (const std::string problem = unknown_subcommand(app, argc, argv); !problem.empty()) {
    fmt::print(stderr, "railyard: {}\nRun with --help for more information.\n", problem);
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 answers --help and --version through the same way; those are no errors.
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace railyard::tool

int main(int argc, char** argv) {
  try {
    return railyard::tool::run(argc, argv);
  } catch (const std::exception& error) {
    // The library throws nothing; this is memory running out or a defect of the command itself.
    fmt::print(stderr, "railyard: {}\n", error.what());
    return railyard::tool::kExitFailed;
  }
}
