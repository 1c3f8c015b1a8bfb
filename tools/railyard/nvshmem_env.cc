/// `railyard nvshmem-env`: what to set so that NVSHMEM loads Railyard's transport, and how to go back.
#include "nvshmem_env.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "commands.hpp"
#include "elf_dynamic.hpp"
#include "json.hpp"
#include "text.hpp"

namespace railyard::tool {
namespace fs = std::filesystem;

namespace {

constexpr const char* kHostLibrary = "libnvshmem_host.so.3";
constexpr const char* kHostName = "nvshmem_transport_libfabric.so";
constexpr int kMajors[] = {3, 4};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

/// Python keeps the wheels of an environment in lib/python3.N/site-packages.
void add_python(const fs::path& root, std::vector<std::string>& places) {
  std::error_code ignored;
  for (const auto& version : fs::directory_iterator(root / "lib", ignored)) {
    if (!version.path().filename().string().starts_with("python3")) continue;
    for (const char* const packages : {"site-packages", "dist-packages"})
      places.push_back(version.path() / packages / "nvidia/nvshmem/lib");
  }
}

/// "3.4.5" out of libnvshmem_host.so.3.4.5, which the library's name leads to.
std::string version_in(const fs::path& library) {
  std::error_code failed;
  const std::string name = fs::canonical(library, failed).filename().string();
  const std::size_t at = name.find(".so.");
  if (failed || at == std::string::npos) return "";
  const std::string version = name.substr(at + 4);
  return std::ranges::count(version, '.') > 0 ? version : "";
}

int number(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// Of the transports that lie beside the library; else what is known of its version.
int major_of(const fs::path& folder, const std::string& version) {
  int found = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const std::size_t at = name.find(".so.");
    if (!name.starts_with("nvshmem_transport_") || at == std::string::npos) continue;
    found = std::max(found, number(std::string_view(name).substr(at + 4)));
  }
  if (found != 0 || version.empty()) return found;
  if (!version.starts_with("3.")) return 0;
  const int minor = number(std::string_view(version).substr(2));
  return minor <= 4 ? 3 : minor == 5 ? 4 : 0;
}

/// Whether a library lies in a search path of `origin`'s.
bool leads_to(const std::string& search, const fs::path& origin, const std::string& name) {
  std::string path;
  for (std::size_t from = 0; from <= search.size(); from += path.size() + 1) {
    path = search.substr(from, search.find(':', from) - from);
    std::string folder = path;
    for (const std::string_view word : {"${ORIGIN}", "$ORIGIN"}) {
      if (const std::size_t at = folder.find(word); at != std::string::npos)
        folder.replace(at, word.size(), origin.string());
    }
    std::error_code ignored;
    if (!folder.empty() && fs::exists(fs::path(folder) / name, ignored)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> nvshmem_places() {
  std::vector<std::string> places;
  for (const char* const name : {"NVSHMEM_HOME", "NVSHMEM_PREFIX"}) {
    if (const std::string root = variable(name); !root.empty()) places.push_back(root + "/lib");
  }
  const std::string path = variable("LD_LIBRARY_PATH");
  for (std::size_t from = 0; from < path.size();) {
    const std::size_t end = std::min(path.find(':', from), path.size());
    if (end > from) places.push_back(path.substr(from, end - from));
    from = end + 1;
  }
  for (const char* const name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const std::string root = variable(name); !root.empty()) add_python(root, places);
  }
  if (const std::string home = variable("HOME"); !home.empty()) add_python(home + "/.local", places);
  add_python("/usr/local", places);
  places.insert(places.end(), {"/usr/lib/python3/dist-packages/nvidia/nvshmem/lib", "/usr/local/nvshmem/lib",
                               "/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvshmem/12",
                               "/usr/lib/x86_64-linux-gnu/nvshmem/13", "/usr/lib64", "/usr/lib"});
  return places;
}

Result<NvshmemHost> find_nvshmem(const std::string& path, const std::vector<std::string>& places) {
  NvshmemHost host;
  std::error_code ignored;
  if (!path.empty()) {
    host.path = fs::is_directory(path, ignored) ? (fs::path(path) / kHostLibrary).string() : path;
  } else {
    for (const std::string& place : places) {
      if (!fs::exists(fs::path(place) / kHostLibrary, ignored)) continue;
      host.path = fs::path(place) / kHostLibrary;
      break;
    }
    if (host.path.empty()) {
      return Error(Status::not_found,
                   fmt::format("no {} in {}: name it with --host-library", kHostLibrary, fmt::join(places, ", ")));
    }
  }
  auto dynamic = read_elf_dynamic(host.path);
  if (!dynamic) return std::move(dynamic.error());
  const fs::path folder = fs::absolute(host.path, ignored).parent_path();
  host.version = version_in(host.path);
  host.major = major_of(folder, host.version);
  if (std::ranges::find(kMajors, host.major) == std::end(kMajors)) {
    return Error(Status::unsupported,
                 fmt::format("{} ({}) has transports of major {}; Railyard has {}", host.path,
                             host.version.empty() ? "version unknown" : host.version,
                             host.major == 0 ? "unknown" : std::to_string(host.major), fmt::join(kMajors, " and ")));
  }
  // A runpath takes the rpath's effect away, and comes after LD_LIBRARY_PATH.
  if (dynamic->rpath && !dynamic->runpath) host.rpath = *dynamic->rpath;
  host.has_stock_transport = leads_to(host.rpath, folder, fmt::format("{}.{}", kHostName, host.major));
  return host;
}

Result<std::string> find_transport(int major, const std::string& folder) {
  std::vector<fs::path> places;
  std::error_code ignored;
  if (!folder.empty()) {
    places.emplace_back(folder);
  } else {
    const fs::path root = fs::read_symlink("/proc/self/exe", ignored).parent_path().parent_path();
    for (const auto& entry : fs::directory_iterator(root / "lib", ignored))
      if (entry.is_directory(ignored)) places.push_back(entry.path() / "railyard-nvshmem");
    for (const char* const library : {"lib", "lib64"}) places.push_back(root / library / "railyard-nvshmem");
  }
  const std::string name = fmt::format("librailyard-nvshmem-{}.so", major);
  for (const fs::path& place : places)
    if (fs::exists(place / name, ignored)) return fs::absolute(place / name, ignored).string();
  return Error(Status::not_found, fmt::format("no {}{}: name its folder with --transport", name,
                                              folder.empty() ? " beside this command" : " in " + folder));
}

std::vector<Variable> nvshmem_variables(const NvshmemHost& host, const std::string& transport) {
  // Loading a kernel while another runs holds up all that is submitted to the GPU until that one ends. One that waits
  // for a put would wait for ever, because the GPU itself copies the bytes.
  // So does work of another stream in the same hardware queue.
  std::vector<Variable> variables{{"NVSHMEM_REMOTE_TRANSPORT", "libfabric"},
                                  {"CUDA_MODULE_LOADING", "EAGER"},
                                  {"CUDA_DEVICE_MAX_CONNECTIONS", "32"}};
  if (host.has_stock_transport) {
    variables.push_back({"LD_PRELOAD", transport, true});
  } else {
    variables.push_back({"LD_LIBRARY_PATH", fs::path(transport).parent_path(), true});
  }
  return variables;
}

namespace {

struct NvshmemLine {
  std::string host;
  std::string transport;
  std::string json;
};

std::string why(const NvshmemHost& host) {
  if (host.has_stock_transport)
    return fmt::format("its RPATH {} leads to a libfabric transport of its own, so ours is preloaded", host.rpath);
  return host.rpath.empty()
             ? "it has no RPATH: LD_LIBRARY_PATH is enough"
             : fmt::format("nothing in its RPATH {} is in the way: LD_LIBRARY_PATH is enough", host.rpath);
}

/// For `eval`: what people read are comments.
std::string shell_text(const NvshmemHost& host, const std::string& transport, const std::vector<Variable>& variables) {
  std::string text = fmt::format(
      "# NVSHMEM {}: {}, transports of major {}\n# {}\n# Railyard's: {}\n"
      "# CUDA_*: a kernel that waits for a put must not hold up the GPU's copies\n",
      host.version.empty() ? "of unknown version" : host.version, host.path, host.major, why(host), transport);
  std::string back = "unset NVSHMEM_REMOTE_TRANSPORT CUDA_MODULE_LOADING CUDA_DEVICE_MAX_CONNECTIONS";
  for (const Variable& each : variables) {
    if (each.is_list) {
      text += fmt::format("export {0}='{1}'${{{0}:+:${0}}}\n", each.name, each.value);
      back += fmt::format("; {} without {}", each.name, each.value);
    } else {
      text += fmt::format("export {}='{}'\n", each.name, each.value);
    }
  }
  return text + fmt::format("# Back to NVSHMEM's own: {}\n", back);
}

std::string json_text(const NvshmemHost& host, const std::string& transport, const std::vector<Variable>& variables) {
  JsonWriter json;
  json.begin_object();
  json.field("host_library", std::string_view(host.path));
  json.field("version", std::string_view(host.version));
  json.field("transport_major", host.major);
  json.field("rpath", std::string_view(host.rpath));
  json.field("stock_transport_in_rpath", host.has_stock_transport);
  json.field("transport", std::string_view(transport));
  json.key("environment").begin_object();
  for (const Variable& each : variables) json.field(each.name, std::string_view(each.value));
  json.end_object();
  json.end_object();
  return json.finish();
}

int run_nvshmem_env(const NvshmemLine& line) {
  constexpr const char* kCommand = "nvshmem-env";
  if (!line.json.empty()) {
    if (auto writable = check_writable(line.json); !writable) return report_error(kCommand, writable.error());
  }
  const auto host = find_nvshmem(line.host, nvshmem_places());
  if (!host) return report_error(kCommand, host.error());
  const auto transport = find_transport(host->major, line.transport);
  if (!transport) return report_error(kCommand, transport.error());
  const auto variables = nvshmem_variables(*host, *transport);
  if (line.json != "-") fmt::print("{}", shell_text(*host, *transport, variables));
  if (line.json.empty()) return kExitOk;
  if (auto written = write_text(line.json, json_text(*host, *transport, variables)); !written)
    return report_error(kCommand, written.error());
  return kExitOk;
}

}  // namespace

void add_nvshmem_env_command(CLI::App& app, int& exit_code) {
  auto line = std::make_shared<NvshmemLine>();
  CLI::App* command = app.add_subcommand("nvshmem-env", "What to set so that NVSHMEM loads Railyard's transport");
  command
      ->add_option("--host-library", line->host,
                   "NVSHMEM's libnvshmem_host.so.3, or its folder; by default it is looked for")
      ->type_name("FILE");
  command->add_option("--transport", line->transport, "The folder of librailyard-nvshmem-N.so")->type_name("FOLDER");
  command->add_option("--json", line->json, "Also as JSON to FILE; - is the standard output")->type_name("FILE");
  command->footer(
      "Prints lines for a shell: eval \"$(railyard nvshmem-env)\". Nothing is changed or loaded.\n"
      "Examples:\n"
      "  railyard nvshmem-env\n"
      "  railyard nvshmem-env --host-library /opt/nvshmem/lib --json -\n"
      "Exit codes: 0 printed; 2 an argument makes no sense; 3 no NVSHMEM, one of another major, or no transport.");
  command->callback([line, &exit_code] { exit_code = run_nvshmem_env(*line); });
}

}  // namespace railyard::tool
