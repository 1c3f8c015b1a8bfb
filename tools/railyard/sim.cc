// `railyard sim`: random schedules on a simulated network, each from a seed, everything they did checked.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "commands.hpp"
#include "fabric/sim/faults.hpp"
#include "json.hpp"
#include "sim/campaign.hpp"
#include "sim/memory_use.hpp"
#include "sim/queue_pairs.hpp"
#include "sim_goodput.hpp"
#include "sim_queue_pairs.hpp"
#include "text.hpp"

namespace railyard::tool {

namespace {

constexpr std::uint32_t kMostScheduleRanks = 256;
constexpr std::uint32_t kMostMemoryRanks = 16'384;
constexpr std::uint32_t kMostGoodputRanks = 4'096;
constexpr std::uint32_t kMostQueuePairRanks = 4'096;
constexpr std::uint32_t kMostRails = 16;
constexpr std::uint64_t kMostSchedules = 1'000'000'000;

struct SimOptions {
  std::uint64_t schedules = 1'000;
  std::uint64_t seed = 1;
  std::string faults;
  std::string programs;
  std::string ranks;
  std::uint32_t rails = 0;
  std::uint32_t operations = 0;
  bool memory = false;
  bool goodput = false;
  bool queue_pairs = false;
  bool no_fence = false;
  std::string json;
  std::string svg;
};

std::string footer() {
  std::string text =
      "Examples:\n"
      "  railyard sim --schedules 10000                     what CI runs\n"
      "  railyard sim --schedules 1 --seed 77               one schedule again, exactly\n"
      "  railyard sim --faults reorder,busy --ranks 16      these faults only, in a larger world\n"
      "  railyard sim --memory --ranks 64,512,4096          bytes per peer\n"
      "  railyard sim --goodput --svg goodput.svg           what failing rails cost a large world\n"
      "  railyard sim --queue-pairs --ranks 256,512         what a large job costs a NIC\n\n"
      "Fault kinds (comma list); by default each schedule draws some of them:\n  none: an orderly network";
  for (const auto& kind : fabric::sim::fault_kinds()) text += fmt::format("\n  {}: {}", kind.name, kind.meaning);
  return text;
}

Result<std::vector<std::uint32_t>> parse_ranks(const std::string& text, std::uint32_t least, std::uint32_t most) {
  std::vector<std::uint32_t> ranks;
  std::string_view rest = text;
  while (!text.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view word = rest.substr(0, comma);
    std::uint32_t number = 0;
    const auto [stopped, failure] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (failure != std::errc() || stopped != word.data() + word.size() || number < least || number > most) {
      return Error(Status::invalid, fmt::format("--ranks '{}': use numbers from {} to {}", text, least, most));
    }
    ranks.push_back(number);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return ranks;
}

/// The command that runs one seed alone, exactly as it ran here.
std::string replay_command(const SimOptions& options, std::uint64_t seed) {
  std::string command = fmt::format("railyard sim --schedules 1 --seed {}", seed);
  if (!options.faults.empty()) command += fmt::format(" --faults {}", options.faults);
  if (!options.programs.empty()) command += fmt::format(" --programs {}", options.programs);
  if (!options.ranks.empty()) command += fmt::format(" --ranks {}", options.ranks);
  if (options.rails != 0) command += fmt::format(" --rails {}", options.rails);
  if (options.operations != 0) command += fmt::format(" --operations {}", options.operations);
  if (options.no_fence) command += " --no-fence";
  return command;
}

/// A line now and then for those who wait; runs of a second print none.
class Progress {
 public:
  explicit Progress(std::uint64_t schedules) : schedules_(schedules) {}
  void show(const sim::Totals& totals) {
    const auto now = std::chrono::steady_clock::now();
    if (now - shown_ < std::chrono::seconds(5)) return;
    shown_ = now;
    fmt::print(stderr, "railyard sim: {} of {} schedules, {} operations, {} schedules with findings\n",
               totals.schedules, schedules_, totals.operations, totals.failed_schedules);
  }

 private:
  std::uint64_t schedules_;
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
};

std::string totals_json(const SimOptions& options, const sim::Totals& totals) {
  JsonWriter json;
  json.begin_object()
      .field("schedules", totals.schedules)
      .field("ops", totals.operations)
      .field("lost", totals.lost)
      .field("doubled", totals.doubled)
      .field("early", totals.early)
      .field("ghosts", totals.ghosts)
      .field("corrupt", totals.corrupt)
      .field("violations", totals.violations)
      .field("seed", options.seed)
      .field("faults", options.faults.empty() ? "drawn" : options.faults.c_str())
      .field("packets", totals.packets)
      .field("held_out_of_order", totals.held_out_of_order)
      .field("links_lost", totals.links_lost)
      .field("segments_replayed", totals.replayed)
      .field("packets_fenced", totals.packets_fenced)
      .field("deaths", totals.deaths)
      .field("virtual_seconds", totals.virtual_seconds);
  json.key("first_failing_seed");
  if (totals.first_failing_seed) {
    json.value(*totals.first_failing_seed);
  } else {
    json.null();
  }
  return json.end_object().finish();
}

void print_totals(const sim::Totals& totals) {
  using Align = Table::Align;
  Table table({{"found", Align::left}, {"count", Align::right}});
  const auto row = [&](const char* name, std::uint64_t count) { table.add({name, fmt::format("{}", count)}); };
  row("schedules", totals.schedules);
  row("operations", totals.operations);
  row("packets", totals.packets);
  row("messages that came before their turn", totals.held_out_of_order);
  row("posts answered busy", totals.busy);
  row("links lost", totals.links_lost);
  row("segments sent again", totals.replayed);
  row("late packets kept out by a fence", totals.packets_fenced);
  row("processes that died", totals.deaths);
  table.rule();
  row("lost", totals.lost);
  row("doubled", totals.doubled);
  row("early", totals.early);
  row("ghosts", totals.ghosts);
  row("corrupt", totals.corrupt);
  row("violations of the rails' contract", totals.violations);
  fmt::print("{}", table.text());
}

int run_schedules_command(const SimOptions& options) {
  sim::ScenarioOptions scenario;
  const auto ranks = parse_ranks(options.ranks, 1, kMostScheduleRanks);
  if (!ranks) return report_error("sim", ranks.error());
  if (ranks->size() > 1) {
    return report_error("sim",
                        Error(Status::invalid, "--ranks: a list of numbers goes with --memory or --queue-pairs"));
  }
  scenario.ranks = ranks->empty() ? 0 : ranks->front();
  scenario.rails = options.rails;
  scenario.operations = options.operations;
  scenario.fence = !options.no_fence;
  if (options.programs == "windows") scenario.programs = sim::Programs::windows;
  if (options.programs == "channels") scenario.programs = sim::Programs::channels;
  if (!options.faults.empty()) {
    auto kinds = fabric::sim::parse_faults(options.faults);
    if (!kinds) return report_error("sim", Error(Status::invalid, "--faults: " + kinds.error().message()));
    scenario.any_faults = false;
    scenario.faults = std::move(*kinds);
  }

  Progress progress(options.schedules);
  const auto totals = sim::run_schedules(options.seed, options.schedules, scenario,
                                         [&](const sim::Totals& so_far) { progress.show(so_far); });
  if (!totals) return report_error("sim", totals.error());
  print_totals(*totals);
  if (!options.json.empty()) {
    if (auto written = write_text(options.json, totals_json(options, *totals)); !written) {
      return report_error("sim", written.error());
    }
  }
  if (totals->clean()) return kExitOk;
  const std::uint64_t seed = *totals->first_failing_seed;
  fmt::print(stderr, "railyard sim: {} of {} schedules found something; the first is seed {}:\n",
             totals->failed_schedules, totals->schedules, seed);
  for (const std::string& note : totals->first_notes) fmt::print(stderr, "  {}\n", note);
  fmt::print(stderr, "replay it with: {}\n", replay_command(options, seed));
  if (!totals->more_seeds.empty()) fmt::print(stderr, "also: seeds {}\n", fmt::join(totals->more_seeds, ", "));
  return kExitFailed;
}

std::string memory_json(const std::vector<sim::MemoryUse>& rows) {
  JsonWriter json;
  json.begin_object().key("rows").begin_array();
  for (const sim::MemoryUse& row : rows) {
    json.begin_object()
        .field("ranks", row.ranks)
        .field("rails", row.rails)
        .field("bytes_per_rank", static_cast<std::uint64_t>(row.per_rank))
        .field("bytes_per_known_peer", static_cast<std::uint64_t>(row.per_known_peer))
        .field("bytes_per_active_peer", static_cast<std::uint64_t>(row.per_active_peer))
        .field("resident_bytes", static_cast<std::uint64_t>(row.resident))
        .end_object();
  }
  return json.end_array().end_object().finish();
}

int run_memory_command(const SimOptions& options) {
  const auto ranks = parse_ranks(options.ranks.empty() ? "64,512,4096" : options.ranks, 4, kMostMemoryRanks);
  if (!ranks) return report_error("sim", ranks.error());
  std::vector<sim::MemoryUse> rows;
  for (const std::uint32_t count : *ranks) {
    fmt::print(stderr, "railyard sim: measuring {} ranks\n", count);
    auto use = sim::measure_memory(count, options.rails == 0 ? 4 : options.rails);
    if (!use) return report_error("sim", use.error());
    rows.push_back(*use);
  }
  using Align = Table::Align;
  Table table({{"ranks", Align::right},
               {"rails", Align::right},
               {"per rank", Align::right},
               {"per known peer", Align::right},
               {"per active peer, more", Align::right},
               {"resident, all ranks", Align::right}});
  for (const sim::MemoryUse& row : rows) {
    table.add({fmt::format("{}", row.ranks), fmt::format("{}", row.rails), readable_bytes(row.per_rank),
               readable_bytes(row.per_known_peer), readable_bytes(row.per_active_peer), readable_bytes(row.resident)});
  }
  fmt::print("{}", table.text());
  if (options.json.empty()) return kExitOk;
  const auto written = write_text(options.json, memory_json(rows));
  return written ? int{kExitOk} : report_error("sim", written.error());
}

int run_goodput(const SimOptions& options) {
  const auto ranks = parse_ranks(options.ranks, 2, kMostGoodputRanks);
  if (!ranks) return report_error("sim", ranks.error());
  sim::GoodputOptions goodput;
  if (!ranks->empty()) goodput.ranks = ranks->front();
  if (options.rails != 0) goodput.rails = options.rails;
  goodput.seed = options.seed;
  return run_goodput_command(goodput, options.json, options.svg);
}

int run_queue_pairs(const SimOptions& options) {
  const auto ranks = parse_ranks(options.ranks.empty() ? "256,512,1024,2048,4096" : options.ranks,
                                 2 * sim::kRanksPerNode, kMostQueuePairRanks);
  if (!ranks) return report_error("sim", ranks.error());
  return run_queue_pairs_command(*ranks, std::max(options.rails, 1U), options.json, options.svg);
}

int run(const SimOptions& options) {
  if (options.rails > kMostRails) {
    return report_error("sim",
                        Error(Status::invalid, fmt::format("--rails {}: at most {}", options.rails, kMostRails)));
  }
  for (const std::string& file : {options.json, options.svg}) {
    if (file.empty()) continue;
    if (auto writable = check_writable(file); !writable) return report_error("sim", writable.error());
  }
  if (!options.svg.empty() && !options.goodput && !options.queue_pairs) {
    return report_error("sim", Error(Status::invalid, "--svg: a picture is drawn by --goodput and by --queue-pairs"));
  }
  // What a simulated network does to the library is no news, unless one schedule is run again to see it.
  set_log_level(options.schedules == 1 ? LogLevel::debug : LogLevel::error);
  if (options.goodput) return run_goodput(options);
  if (options.queue_pairs) return run_queue_pairs(options);
  return options.memory ? run_memory_command(options) : run_schedules_command(options);
}

}  // namespace

void add_sim_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<SimOptions>();
  CLI::App* command =
      app.add_subcommand("sim", "Random schedules on a simulated network: is anything lost, doubled, early or wrong?");
  command->add_option("--schedules", options->schedules, "How many schedules to run")
      ->check(CLI::Range(std::uint64_t{1}, kMostSchedules))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the first; each next one has the next seed")
      ->capture_default_str();
  command->add_option("--faults", options->faults, "What goes wrong: a comma list, or none; see below");
  command->add_option("--programs", options->programs, "What the ranks use: windows or channels (drawn)")
      ->check(CLI::IsMember({"windows", "channels"}));
  command->add_option("--ranks", options->ranks,
                      "Ranks of every schedule (drawn: 2 to 6); with --memory and --queue-pairs a comma list");
  command->add_option("--rails", options->rails, "Rails of every rank (drawn: 1 to 4)");
  command->add_option("--operations", options->operations,
                      "Operations of every schedule (drawn: 40 to 240, some 2500)");
  CLI::Option* memory = command->add_flag("--memory", options->memory,
                                          "Measure memory per peer instead, by default for 64, 512 and 4096 ranks");
  CLI::Option* goodput = command->add_flag(
      "--goodput", options->goodput, "Measure what failing rails cost instead, by default with 1024 ranks of 4 rails");
  command
      ->add_flag("--queue-pairs", options->queue_pairs,
                 "Count the queue pairs of one rank instead, by default for 256 to 4096 ranks of 1 rail")
      ->excludes(memory)
      ->excludes(goodput);
  command->add_option("--svg", options->svg, "Draw the picture of --goodput or --queue-pairs to this file");
  // In the manual page only: a world without fences is for those who want to see what fences are for.
  command->add_flag("--no-fence", options->no_fence, "Fences shut nothing out, to see what they are for");
  command->add_option("--json", options->json, "Write the result to this file (- is the standard output)");
  command->footer(footer());
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace railyard::tool
