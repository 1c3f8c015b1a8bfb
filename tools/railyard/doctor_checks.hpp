/// What `railyard doctor` looks at: many small checks, each with a verdict, what it means and what to do.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/ports.hpp"
#include "railyard/settings.hpp"

namespace railyard::tool {

enum class Verdict : std::uint8_t { ok, not_applicable, warn, fail };
const char* to_string(Verdict verdict) noexcept;

struct Finding {
  std::string check;  ///< a short name that scripts can rely on
  Verdict verdict = Verdict::ok;
  std::string found;    ///< what was seen
  std::string meaning;  ///< of a warning or failure: what follows from it
  std::string fix;      ///< and what to do
};

/// The files that say how a machine is set up: of this one, or of a tree that looks like it.
class HostFiles {
 public:
  /// `process`: a number, or "self".
  HostFiles(std::filesystem::path root, std::string process) : root_(std::move(root)), process_(std::move(process)) {}

  /// Whether this is the machine that we run on.
  bool is_this_host() const { return root_ == "/"; }
  std::filesystem::path path(const std::string& name) const { return root_ / name; }
  /// The whole file, without the line end; nothing: there is none, or it cannot be read.
  std::optional<std::string> read(const std::string& name) const;
  std::optional<double> number(const std::string& name) const;
  /// Names in a folder, sorted; empty where there is none.
  std::vector<std::string> list(const std::string& name) const;
  bool exists(const std::string& name) const;
  /// "proc/self/NAME"
  std::string of_process(const std::string& name) const { return "proc/" + process_ + "/" + name; }
  /// NAME=VALUE as the process was started with.
  std::vector<std::pair<std::string, std::string>> environment() const;

  std::vector<std::string> rdma_devices() const { return list("sys/class/infiniband"); }
  bool has_nvidia_gpus() const { return !list("proc/driver/nvidia/gpus").empty(); }
  /// Interfaces that are up, loopback left out.
  std::vector<std::string> interfaces_up() const;

 private:
  std::filesystem::path root_;
  std::string process_;
};

using Findings = std::vector<Finding>;

// Each looks at one side of the machine and appends what it found.
void check_limits(const HostFiles& host, Findings& out);
void check_memory(const HostFiles& host, Findings& out);
void check_processors(const HostFiles& host, Findings& out);
void check_network(const HostFiles& host, Findings& out);
void check_rdma(const HostFiles& host, Findings& out);
void check_variables(const HostFiles& host, Findings& out);
/// Of the process that runs this: rails that can be opened, libraries, what they did to signals.
void check_software(const HostFiles& host, const Settings& settings, Findings& out);

/// Whether a connection to `peer` ("host", "host:port") is let through. `ports`: what rails listen at.
/// `from`: the address of ours to connect from; empty: whichever the kernel takes.
Finding check_peer(const std::string& peer, int timeout_ms, const PortRange& ports = {}, const std::string& from = {});
/// As a rank of a world: whether all others are reached, by each NIC that rails may use.
Result<void> check_ranks(const HostFiles& host, const Settings& settings, int timeout_ms, Findings& out);

}  // namespace railyard::tool
