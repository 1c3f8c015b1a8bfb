/// Checks of limits, memory and processors.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "doctor_checks.hpp"
#include "shm/layout.hpp"
#include "text.hpp"

namespace railyard::tool {

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();
constexpr double kMebibyte = 1024.0 * 1024.0;
constexpr double kLeastLocked = 64 * kMebibyte;
constexpr double kLeastOpenFiles = 1024;
constexpr double kLeastShared = 512 * kMebibyte;
/// A rank is at least the program's own thread and one that makes progress.
constexpr double kLeastProcessors = 2;

/// The soft limit of that name in a `limits` file.
std::optional<double> soft_limit(const HostFiles& host, const std::string& name) {
  std::istringstream in(host.read(host.of_process("limits")).value_or(""));
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream rest(line.substr(name.size()));
    std::string value;
    rest >> value;
    if (value == "unlimited") return kUnlimited;
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (end != value.c_str()) return number;
  }
  return std::nullopt;
}

std::string limit_text(double limit, bool bytes) {
  if (std::isinf(limit)) return "unlimited";
  return bytes ? readable_bytes(limit) : fmt::format("{:.0f}", limit);
}

/// "size=65536k" among the options of a mount.
std::optional<double> mount_size(const std::string& options) {
  const std::size_t at = (',' + options).find(",size=");
  if (at == std::string::npos) return std::nullopt;
  char* unit = nullptr;
  const double number = std::strtod(options.c_str() + at + std::strlen("size="), &unit);
  const double factor = *unit == 'k' ? 1024.0 : *unit == 'm' ? kMebibyte : *unit == 'g' ? 1024 * kMebibyte : 1.0;
  return number * factor;
}

void check_shared_memory_size(const HostFiles& host, Findings& out) {
  std::istringstream in(host.read("proc/mounts").value_or(""));
  std::optional<double> size;
  bool mounted = false;
  std::string device, folder, kind, options, rest;
  while (in >> device >> folder >> kind >> options && std::getline(in, rest)) {
    if (folder != "/dev/shm") continue;
    mounted = true;
    size = mount_size(options);
  }
  Finding finding{"shm-size", Verdict::ok, size ? readable_bytes(*size) : "half of the memory", "", ""};
  if (!mounted) {
    finding = {"shm-size", Verdict::fail, "/dev/shm is not mounted",
               "Ranks of this host cannot reach each other through memory: all goes through the network.",
               "mount -t tmpfs tmpfs /dev/shm, or name another folder in RAILYARD_SHARED_MEMORY_DIRECTORY"};
  } else if (size && *size < kLeastShared) {
    finding.verdict = Verdict::warn;
    finding.meaning = "Windows and rings of this host's ranks lie there; when it is full, opening a world fails.";
    finding.fix = "Start the container with --shm-size=8g (Kubernetes: an emptyDir of medium Memory on /dev/shm)";
  }
  out.push_back(std::move(finding));
}

/// Objects of processes that are gone: a name that outlived its owner.
void check_shared_memory_leftovers(const HostFiles& host, Findings& out) {
  std::vector<std::string> left;
  for (const std::string& name : host.list("dev/shm")) {
    // Bells are FIFOs: whoever reads one waits for its owner to ring.
    std::error_code failure;
    if (!name.starts_with("railyard-") || !std::filesystem::is_regular_file(host.path("dev/shm/" + name), failure))
      continue;
    shm::ObjectHeader header;
    std::ifstream in(host.path("dev/shm/" + name), std::ios::binary);
    if (!in.read(reinterpret_cast<char*>(&header), sizeof header) || header.magic != shm::kMagic) continue;
    // A process of another container may have the same number: one that lives is never called dead, at worst a dead
    // one is missed.
    if (!host.exists(fmt::format("proc/{}", header.pid))) left.push_back(name);
  }
  Finding finding{"shm-leftovers", Verdict::ok, "none of dead processes", "", ""};
  if (!left.empty()) {
    finding = {
        "shm-leftovers", Verdict::warn,
        fmt::format("{} of processes that are gone: {}", left.size(), fmt::join(left, ", ")),
        "Memory that nobody uses stays taken until it is removed or the next world opens.",
        fmt::format("rm /dev/shm/{} (after a look that no other container uses it)", fmt::join(left, " /dev/shm/"))};
  }
  out.push_back(std::move(finding));
}

void check_pages(const HostFiles& host, Findings& out) {
  const auto transparent = host.read("sys/kernel/mm/transparent_hugepage/enabled");
  std::istringstream in(host.read("proc/meminfo").value_or(""));
  std::string reserved = "0";
  for (std::string word; in >> word;)
    if (word == "HugePages_Total:") in >> reserved;
  Finding finding{"hugepages", Verdict::ok, "", "", ""};
  finding.found = fmt::format("transparent: {}; reserved: {}", transparent.value_or("not in this kernel"), reserved);
  if (!transparent && reserved == "0") {
    finding.verdict = Verdict::not_applicable;
  } else if (transparent && transparent->find("[never]") != std::string::npos && reserved == "0") {
    finding.verdict = Verdict::warn;
    finding.meaning =
        "Large windows are made of 4 KiB pages: registering them takes longer and NICs miss their caches.";
    finding.fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  }
  out.push_back(std::move(finding));
}

void check_governor(const HostFiles& host, Findings& out) {
  std::set<std::string> slow;
  std::size_t known = 0;
  for (const std::string& cpu : host.list("sys/devices/system/cpu")) {
    const std::string folder = "sys/devices/system/cpu/" + cpu + "/cpufreq/";
    const auto governor = host.read(folder + "scaling_governor");
    if (!governor) continue;
    ++known;
    // With pstate drivers "powersave" is the one that scales with the load.
    const bool pstate = host.read(folder + "scaling_driver").value_or("").find("pstate") != std::string::npos;
    if ((*governor == "powersave" && !pstate) || *governor == "conservative") slow.insert(*governor);
  }
  Finding finding{"cpu-governor", Verdict::ok, fmt::format("{} processors scale with the load", known), "", ""};
  if (known == 0) {
    finding = {"cpu-governor", Verdict::not_applicable, "the clock is not this system's to set", "", ""};
  } else if (!slow.empty()) {
    finding.verdict = Verdict::warn;
    finding.found = fmt::format("{}", fmt::join(slow, ", "));
    finding.meaning = "Processors stay at a low clock: latencies are several times what they could be.";
    finding.fix = "cpupower frequency-set -g performance";
  }
  out.push_back(std::move(finding));
}

/// Processors that the control group grants; nothing: no limit.
std::optional<double> granted_processors(const HostFiles& host) {
  if (const auto two = host.read("sys/fs/cgroup/cpu.max")) {
    std::istringstream in(*two);
    std::string quota;
    double period = 0;
    in >> quota >> period;
    if (quota == "max" || period <= 0) return std::nullopt;
    return std::strtod(quota.c_str(), nullptr) / period;
  }
  const auto quota = host.number("sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const auto period = host.number("sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

}  // namespace

void check_limits(const HostFiles& host, Findings& out) {
  const auto locked = soft_limit(host, "Max locked memory");
  Finding memlock{"memlock", Verdict::ok, locked ? limit_text(*locked, true) : "unknown", "", ""};
  if (!locked || host.rdma_devices().empty()) {
    memlock.verdict = Verdict::not_applicable;
    if (locked) memlock.found += "; no RDMA device needs locked memory here";
  } else if (*locked < kLeastLocked) {
    memlock.verdict = Verdict::fail;
    memlock.meaning = "RDMA devices register only memory that may be locked: opening a verbs rail or a window fails.";
    memlock.fix =
        "`ulimit -l unlimited`; for good: memlock in /etc/security/limits.conf, or LimitMEMLOCK=infinity in "
        "the service that starts jobs";
  }
  out.push_back(std::move(memlock));

  const auto files = soft_limit(host, "Max open files");
  Finding open_files{"open-files", Verdict::ok, files ? limit_text(*files, false) : "unknown", "", ""};
  if (!files) {
    open_files.verdict = Verdict::not_applicable;
  } else if (*files < kLeastOpenFiles) {
    open_files.verdict = Verdict::warn;
    open_files.meaning = "Each peer takes a socket for each pair of rails: jobs of some size run out of descriptors.";
    open_files.fix = "`ulimit -n 65536`; for good: nofile in /etc/security/limits.conf";
  }
  out.push_back(std::move(open_files));

  const auto scope = host.number("proc/sys/kernel/yama/ptrace_scope");
  Finding ptrace{"ptrace-scope", Verdict::ok, scope ? fmt::format("{:.0f}", *scope) : "no such limit here", "", ""};
  if (!scope) {
    ptrace.verdict = Verdict::not_applicable;
  } else if (*scope >= 1) {
    ptrace.verdict = Verdict::warn;
    ptrace.meaning = "Ranks of one host may not read each other's memory: large messages are copied twice.";
    ptrace.fix = "sysctl -w kernel.yama.ptrace_scope=0 (containers: --cap-add=SYS_PTRACE)";
  }
  out.push_back(std::move(ptrace));
}

void check_memory(const HostFiles& host, Findings& out) {
  check_shared_memory_size(host, out);
  check_shared_memory_leftovers(host, out);
  check_pages(host, out);
}

void check_processors(const HostFiles& host, Findings& out) {
  check_governor(host, out);
  const auto granted = granted_processors(host);
  Finding finding{"cpu-limit", Verdict::ok, "no limit", "", ""};
  if (granted) finding.found = fmt::format("{:.1f} processors", *granted);
  if (granted && *granted < kLeastProcessors) {
    finding.verdict = Verdict::warn;
    finding.meaning =
        "A rank has its own thread and one for progress: over the limit both stand still for a while, "
        "and peers see it as a stall.";
    finding.fix =
        "Grant at least two processors for each rank (Kubernetes: limits.cpu), or set "
        "RAILYARD_PROGRESS=caller";
  }
  out.push_back(std::move(finding));
}

}  // namespace railyard::tool
