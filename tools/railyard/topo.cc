/// `railyard topo`: the machine and which rails serve which GPU, drawn.
#include <fmt/core.h>

#include <memory>

#include "commands.hpp"
#include "fabric/rail.hpp"
#include "text.hpp"
#include "topo_tree.hpp"

namespace railyard::tool {

namespace {

struct TopoLine {
  std::string topology;
  std::string svg;
  std::string json;
  bool ascii = false;
};

/// Of a saved machine with its own NICs, or of this one with those that rails are opened on.
Result<topology::GpuTable> read_table(const TopoLine& line, const Settings& settings) {
  if (!line.topology.empty()) {
    auto machine = topology::read_saved_machine(line.topology);
    if (!machine) return std::move(machine.error());
    std::vector<topology::Nic> nics = machine->nics;
    return topology::make_gpu_table(settings, std::move(*machine), std::move(nics));
  }
  auto machine = topology::read_machine();
  if (!machine) return std::move(machine.error());
  auto offers = fabric::chosen_offers(settings);
  if (!offers) return std::move(offers.error());
  return topology::make_gpu_table(settings, std::move(*machine), topology::nics_of(*offers));
}

int run_topo(const TopoLine& line) {
  for (const std::string* file : {&line.svg, &line.json}) {
    if (file->empty()) continue;
    if (auto writable = check_writable(*file); !writable) return report_error("topo", writable.error());
  }
  if (line.svg == "-" && line.json == "-")
    return report_error("topo", Error(Status::invalid, "--svg and --json cannot both go to the standard output"));
  auto settings = Settings::from_environment();
  if (!settings) return report_error("topo", settings.error());
  auto table = read_table(line, *settings);
  if (!table) return report_error("topo", table.error());
  const TopoTree tree = make_topo_tree(std::move(*table));
  if (line.svg != "-" && line.json != "-") fmt::print("{}", topo_text(tree, !line.ascii && unicode_terminal()));
  if (!line.svg.empty()) {
    if (auto written = write_text(line.svg, topo_picture(tree)); !written) return report_error("topo", written.error());
  }
  if (!line.json.empty()) {
    if (auto written = write_text(line.json, topo_json(tree)); !written) return report_error("topo", written.error());
  }
  return kExitOk;
}

}  // namespace

void add_topo_command(CLI::App& app, int& exit_code) {
  auto line = std::make_shared<TopoLine>();
  CLI::App* topo = app.add_subcommand("topo", "The machine and which rails serve which GPU, drawn");
  topo->add_option("--topology", line->topology, "Of the machine saved in FILE (lstopo FILE.xml) instead of this one")
      ->type_name("FILE");
  topo->add_option("--svg", line->svg, "Also as a picture to FILE; - is the standard output")->type_name("FILE");
  topo->add_option("--json", line->json, "Also as JSON to FILE; - is the standard output")->type_name("FILE");
  topo->add_flag("--ascii", line->ascii, "Draw without line characters");
  topo->footer(
      "Behind the arrow of a GPU are the NICs that serve it, each with what lies between the two.\n"
      "RAILYARD_RAILS_PER_GPU and RAILYARD_GPU_RAILS change the assignment.\n"
      "Examples:\n"
      "  railyard topo\n"
      "  railyard topo --topology tests/topology/machines/dgx.xml --svg dgx.svg\n"
      "Exit codes: 0 drawn; 2 an argument or a setting makes no sense; 3 no rail, or a file cannot be read or "
      "written.");
  topo->callback([line, &exit_code] { exit_code = run_topo(*line); });
}

}  // namespace railyard::tool
