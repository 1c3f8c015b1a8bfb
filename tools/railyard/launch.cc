/// `railyard launch`: starts the ranks of a job on this machine.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "commands.hpp"
#include "launcher/launcher.hpp"
#include "railyard/settings.hpp"

namespace railyard::tool {

namespace {

struct LaunchArguments {
  int ranks = 1;
  bool tag_output = false;
  bool keep_going = false;
  double grace_seconds = 5;
  std::vector<std::string> environment;
  std::vector<std::string> command;
};

int run_launch(const LaunchArguments& arguments) {
  // A mistyped RAILYARD_* name or value is reported before anything starts.
  const auto settings = Settings::from_environment();
  if (!settings) return report_error("launch", settings.error());
  apply_log_settings(*settings);

  launcher::LaunchOptions options;
  options.ranks = arguments.ranks;
  options.tag_output = arguments.tag_output;
  options.keep_going = arguments.keep_going;
  options.grace_ns = static_cast<std::int64_t>(arguments.grace_seconds * 1e9);
  for (const std::string& variable : arguments.environment) {
    const std::size_t equals = variable.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return report_error("launch", Error(Status::invalid, fmt::format("--env '{}' is not NAME=VALUE", variable)));
    }
    options.environment.emplace_back(variable.substr(0, equals), variable.substr(equals + 1));
  }
  const auto report = launcher::launch_command(options, arguments.command);
  return report ? report->exit_code : report_error("launch", report.error());
}

}  // namespace

void add_launch_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<LaunchArguments>();
  CLI::App* launch = app.add_subcommand("launch", "start a program as a world of N ranks on this machine");
  launch->add_option("-n,--ranks", arguments->ranks, "how many ranks")->required()->check(CLI::Range(1, 1 << 20));
  launch->add_flag("--tag-output", arguments->tag_output, "put [rank] in front of every line that a rank writes");
  launch->add_option("--env", arguments->environment, "NAME=VALUE for every rank; may be given several times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  launch
      ->add_option("--grace", arguments->grace_seconds,
                   "seconds that ranks get to end by themselves when one has failed, and again when told to end")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
  launch->add_flag("--keep-going", arguments->keep_going,
                   "when a rank has failed, let the others run on until they end by themselves");
  launch->add_option("command", arguments->command, "the program and its arguments, after --")->required();
  launch->positionals_at_end();
  launch->footer(
      "Exit code: 0, or that of the first rank that failed (128 and the signal's number where a signal ended it);\n"
      "127: no such program; 126: it cannot be executed.\n"
      "Example: railyard launch -n 4 --tag-output -- ./my-program --its-option");
  launch->callback([arguments, &exit_code] { exit_code = run_launch(*arguments); });
}

}  // namespace railyard::tool
