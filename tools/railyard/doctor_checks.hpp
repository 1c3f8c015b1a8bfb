/// What `railyard doctor` looks at: many small checks, each with a verdict, what it means and what to do.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/ports.hpp"
#include "railyard/bootstrap.hpp"
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

/// How a connection leaves.
struct PeerWay {
  std::string address;    ///< of ours; empty: whichever the kernel takes
  std::string device;     ///< the NIC that it is bound to, as rails do where they may; empty: none
  std::size_t bytes = 0;  ///< to send over it, for a PeerAnswers there
};
/// Whether a connection to `peer` ("host", "host:port") is let through. `ports`: what rails listen at. Where bytes are
/// to be sent and do not arrive, the finding is of the check `path-mtu`.
Finding check_peer(const std::string& peer, int timeout_ms, const PortRange& ports = {}, const PeerWay& way = {});

/// What the kernel's routes say of the way from a NIC of ours to one of a peer.
struct RouteSeen {
  std::size_t rank = 0;
  std::string own;          ///< the NIC
  std::string own_address;  ///< its
  std::string peer;         ///< the NIC there
  std::string peer_address;
  std::string device;      ///< by which packets leave
  bool libfabric = false;  ///< a rail of libfabric is on the NIC, else one of tcp
  bool may_bind = true;    ///< the kernel lets sockets be bound to a device
};
/// For a way that leaves by another NIC than the rail's own.
Finding judge_route(const RouteSeen& route);

/// As a rank of a world: whether all others are reached, also by long packets, by each NIC that rails may use. Returns
/// which rank this is.
Result<int> check_ranks(const HostFiles& host, const Settings& settings, int timeout_ms, Findings& out);
/// Part of it: the same for RDMA ports, where verbs rails would be opened. All ranks take part.
Result<void> check_rdma_ranks(Bootstrap& bootstrap, const Settings& settings, int timeout_ms, Findings& out);

}  // namespace railyard::tool
