/// `railyard info`: what was found on this machine, and every setting.
#include <fmt/core.h>

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/pmix.hpp"
#include "commands.hpp"
#include "fabric/rail.hpp"
#include "info_gpus.hpp"
#include "json.hpp"
#include "railyard/settings.hpp"
#include "text.hpp"
#include "topology/gpu_rails.hpp"
#include "topology/pci.hpp"

namespace railyard::tool {

namespace {

struct InfoOptions {
  bool settings = false;
  std::string json;
  std::string topology;
};

/// Everything `info` shows, gathered before anything is printed.
struct Findings {
  Settings settings;
  std::string bootstrap;
  std::vector<fabric::RailOffer> offers;
  std::vector<std::unique_ptr<fabric::Rail>> rails;
  topology::GpuTable gpus;
  std::string gpus_unknown;  ///< why nobody can tell which GPUs there are
  std::string problem;       ///< why no rail could be found or opened
  int exit_code = kExitOk;
};

/// How a world opened now would meet its ranks; nothing is contacted.
std::string describe_bootstrap(const Settings& settings) {
  const bool pmix = bootstrap::started_by_pmix();
  std::string kind = settings.bootstrap;
  if (kind.empty()) kind = !settings.rendezvous.empty() ? "tcp" : pmix ? "pmix" : "single";
  if (kind == "tcp") {
    return fmt::format("tcp: ranks meet at {}",
                       settings.rendezvous.empty() ? "(RAILYARD_RENDEZVOUS is not set)" : settings.rendezvous);
  }
  if (kind == "pmix") return pmix ? "pmix: the launcher of this job" : "pmix (not started by a PMIx launcher)";
  return "single: a world of one rank (start several with railyard launch)";
}

std::string direct_text(const Settings& settings) {
  return settings.shared_memory == "off"
             ? "through the network, like any other (RAILYARD_SHARED_MEMORY=off)"
             : "direct loads and stores on windows that Railyard allocates, else the rail \"shared memory\"; "
               "`railyard bench` counts them apart";
}

/// What the GPUs of this host would use. Not to know is no failure: rails work without it.
void gather_gpus(Findings& found) {
  auto machine = topology::read_machine();
  if (!machine) {
    found.gpus_unknown = machine.error().text();
    return;
  }
  std::vector<topology::Nic> nics;
  if (!machine->gpus.empty())
    if (auto offers = fabric::chosen_offers(found.settings)) nics = topology::nics_of(*offers);
  auto table = topology::make_gpu_table(found.settings, std::move(*machine), std::move(nics));
  if (table) {
    found.gpus = std::move(*table);
  } else if (found.problem.empty()) {
    found.problem = table.error().text();
    found.exit_code = exit_code_for(table.status());
  }
}

Findings gather(Settings settings) {
  Findings found;
  found.settings = std::move(settings);
  found.bootstrap = describe_bootstrap(found.settings);
  auto offers = fabric::discover(found.settings);
  if (!offers) {
    found.problem = offers.error().text();
    found.exit_code = exit_code_for(offers.status());
    gather_gpus(found);
    return found;
  }
  found.offers = std::move(*offers);
  auto rails = fabric::open_rails(found.settings);
  if (rails) {
    found.rails = std::move(*rails);
  } else {
    found.problem = rails.error().text();
    found.exit_code = exit_code_for(rails.status());
  }
  gather_gpus(found);
  return found;
}

/// What of the rail a user may have to know; what goes without saying is left out.
std::string capability_text(const fabric::Capabilities& can) {
  std::string out = can.progresses_alone ? "progresses by itself" : "progresses when polled";
  if (can.delivery_complete) out += ", delivery complete";
  if (can.inject_bytes > 0) out += fmt::format(", injects {}", readable_bytes(static_cast<double>(can.inject_bytes)));
  if (can.needs_local_registration) out += ", registers sources";
  if (can.binds_registrations) out += ", binds registrations to endpoints";
  if (can.native_atomics) out += ", native atomics";
  if (can.device_memory) out += ", takes dma-bufs";
  return out;
}

std::string size_text(std::size_t bytes) {
  return bytes >= (std::size_t{1} << 50U) ? "no limit" : readable_bytes(static_cast<double>(bytes));
}

std::string line_rate_text(double bytes_per_second) {
  return bytes_per_second > 0 ? fmt::format("{} Gb/s", readable_number(bytes_per_second * 8e-9)) : "unknown";
}

void print_rails(const Findings& found) {
  if (!found.offers.empty()) {
    Table offers({{"interface"},
                  {"driver"},
                  {"provider"},
                  {"fabric"},
                  {"line rate", Table::Align::right},
                  {"kind"},
                  {"PCI"},
                  {"NUMA"},
                  {"detail"}});
    for (const auto& offer : found.offers) {
      const auto location = topology::find_pci_location(offer.domain);
      offers.add({offer.domain, offer.driver, offer.provider, offer.fabric, line_rate_text(offer.line_rate),
                  offer.loopback ? "loopback" : "network", location.path.empty() ? "-" : location.function(),
                  location.numa < 0 ? "-" : fmt::format("{}", location.numa), offer.detail});
    }
    fmt::print("Found on this machine:\n{}\n", offers.text());
  }
  if (!found.rails.empty()) {
    Table rails({{"rail", Table::Align::right},
                 {"name"},
                 {"largest write"},
                 {"largest message"},
                 {"depth", Table::Align::right},
                 {"capabilities"}});
    for (std::size_t i = 0; i < found.rails.size(); ++i) {
      const fabric::Capabilities& can = found.rails[i]->capabilities();
      rails.add({fmt::format("{}", i), found.rails[i]->name(), size_text(can.max_write), size_text(can.max_message),
                 fmt::format("{}", can.depth), capability_text(can)});
    }
    fmt::print("A process started now would open:\n{}\n", rails.text());
  }
  if (const std::string gpus = gpu_table_text(found.gpus); !gpus.empty())
    fmt::print("Rails that serve each GPU:\n{}\n", gpus);
  if (!found.gpus_unknown.empty()) fmt::print("GPUs: unknown, {}\n", found.gpus_unknown);
  fmt::print("Bootstrap: {}\n", found.bootstrap);
  fmt::print("Ranks of one host: {}\n", direct_text(found.settings));
}

void print_settings(const Settings& settings) {
  Table table({{"setting"}, {"value"}, {"default"}, {"from"}, {"meaning"}});
  for (const Settings::Entry& entry : settings.list()) {
    const auto shown = [](const std::string& value) { return value.empty() ? std::string("(empty)") : value; };
    table.add({entry.name, shown(entry.value), shown(entry.by_default), entry.source, entry.meaning});
  }
  fmt::print("\nSettings (environment variables):\n{}", table.text());
}

void write_offers(JsonWriter& json, const Findings& found) {
  json.key("found").begin_array();
  for (const auto& offer : found.offers) {
    const auto location = topology::find_pci_location(offer.domain);
    json.begin_object()
        .field("driver", std::string_view(offer.driver))
        .field("provider", std::string_view(offer.provider))
        .field("domain", std::string_view(offer.domain))
        .field("fabric", std::string_view(offer.fabric))
        .field("line_rate_bytes_per_second", offer.line_rate)
        .field("loopback", offer.loopback)
        .field("pci", std::string_view(location.path.empty() ? std::string() : location.function()))
        .field("numa", location.numa)
        .field("detail", std::string_view(offer.detail))
        .end_object();
  }
  json.end_array();
}

void write_rails(JsonWriter& json, const Findings& found) {
  json.key("rails").begin_array();
  for (const auto& rail : found.rails) {
    const fabric::Capabilities& can = rail->capabilities();
    json.begin_object()
        .field("number", rail->number())
        .field("name", std::string_view(rail->name()))
        .field("fabric", std::string_view(rail->fabric()))
        .field("driver", std::string_view(can.driver))
        .field("provider", std::string_view(can.provider))
        .field("line_rate_bytes_per_second", can.line_rate)
        .field("max_write", std::uint64_t{can.max_write})
        .field("max_message", std::uint64_t{can.max_message})
        .field("inject_bytes", std::uint64_t{can.inject_bytes})
        .field("depth", std::uint64_t{can.depth})
        .field("delivery_complete", can.delivery_complete)
        .field("needs_local_registration", can.needs_local_registration)
        .field("binds_registrations", can.binds_registrations)
        .field("virtual_addresses", can.virtual_addresses)
        .field("progresses_alone", can.progresses_alone)
        .end_object();
  }
  json.end_array();
}

std::string to_json(const Findings& found) {
  JsonWriter json;
  json.begin_object().field("version", RAILYARD_VERSION);
  write_offers(json, found);
  write_rails(json, found);
  write_gpus(json, found.gpus);
  json.field("bootstrap", std::string_view(found.bootstrap));
  json.field("direct_stores", found.settings.shared_memory != "off");
  json.key("settings").begin_array();
  for (const Settings::Entry& entry : found.settings.list()) {
    json.begin_object()
        .field("name", std::string_view(entry.name))
        .field("value", std::string_view(entry.value))
        .field("default", std::string_view(entry.by_default))
        .field("source", std::string_view(entry.source))
        .field("meaning", std::string_view(entry.meaning))
        .end_object();
  }
  json.end_array();
  for (const auto& [name, text] :
       {std::pair("gpus_unknown", &found.gpus_unknown), std::pair("problem", &found.problem)}) {
    json.key(name);
    if (text->empty()) {
      json.null();
    } else {
      json.value(std::string_view(*text));
    }
  }
  return json.end_object().finish();
}

/// The GPUs of a machine saved in a file, with that machine's NICs.
int show_saved_machine(const InfoOptions& options, const Settings& settings) {
  auto machine = topology::read_saved_machine(options.topology);
  if (!machine) return report_error("info", machine.error());
  std::vector<topology::Nic> nics = machine->nics;
  auto table = topology::make_gpu_table(settings, std::move(*machine), std::move(nics));
  if (!table) return report_error("info", table.error());
  if (options.json != "-") {
    const std::string text = gpu_table_text(*table);
    fmt::print("{}", text.empty() ? "No GPU in that machine.\n" : text);
  }
  if (options.json.empty()) return kExitOk;
  JsonWriter json;
  json.begin_object();
  write_gpus(json, *table);
  if (auto written = write_text(options.json, json.end_object().finish()); !written)
    return report_error("info", written.error());
  return kExitOk;
}

int run_info(const InfoOptions& options) {
  auto settings = Settings::from_environment();
  if (!settings) return report_error("info", settings.error());
  if (!options.json.empty()) {
    if (auto writable = check_writable(options.json); !writable) return report_error("info", writable.error());
  }
  if (!options.topology.empty()) return show_saved_machine(options, *settings);
  const Findings found = gather(std::move(*settings));
  // With the JSON on the standard output nothing else may be there.
  if (options.json != "-") {
    print_rails(found);
    if (options.settings) print_settings(found.settings);
  }
  if (!options.json.empty()) {
    if (auto written = write_text(options.json, to_json(found)); !written) return report_error("info", written.error());
  }
  if (!found.problem.empty()) fmt::print(stderr, "railyard info: {}\n", found.problem);
  return found.exit_code;
}

}  // namespace

void add_info_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* info = app.add_subcommand("info", "What was found on this machine: rails, capabilities, settings");
  info->add_flag("--settings", options->settings, "Also every setting: value, default, where it comes from, meaning");
  info->add_option("--json", options->json, "Write it all as JSON to FILE; - is the standard output")
      ->type_name("FILE");
  info->add_option("--topology", options->topology,
                   "Instead: which rails would serve which GPU of the machine saved in FILE (lstopo FILE.xml)")
      ->type_name("FILE");
  info->footer(
      "Examples:\n"
      "  railyard info\n"
      "  railyard info --settings\n"
      "  RAILYARD_RAILS_PER_GPU=2 railyard info --topology machine.xml\n"
      "  RAILYARD_PROVIDER=tcp RAILYARD_INTERFACES=lo railyard info --json -\n"
      "Exit codes: 0 rails found; 2 a setting makes no sense; 3 no rail could be found or opened.");
  info->callback([options, &exit_code] { exit_code = run_info(*options); });
}

}  // namespace railyard::tool
