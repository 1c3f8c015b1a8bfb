/// Checks of variables, libraries and signals.
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <sstream>

#include "base/nearest.hpp"
#include "base/shared_library.hpp"
#include "doctor_checks.hpp"
#include "fabric/rail.hpp"

namespace railyard::tool {

namespace {

/// Read by other parts than the settings.
constexpr std::array<std::string_view, 2> kOtherVariables = {"RAILYARD_LAB_NETNS", "RAILYARD_LAB_LINKS"};

/// Those of NCCL that people set for the network. One that is none of these but close to one is taken for a mistake;
/// others are NCCL's own business.
constexpr std::array<std::string_view, 28> kNcclVariables = {"NCCL_NET",
                                                             "NCCL_NET_PLUGIN",
                                                             "NCCL_DEBUG",
                                                             "NCCL_DEBUG_FILE",
                                                             "NCCL_DEBUG_SUBSYS",
                                                             "NCCL_SOCKET_IFNAME",
                                                             "NCCL_SOCKET_FAMILY",
                                                             "NCCL_IB_HCA",
                                                             "NCCL_IB_DISABLE",
                                                             "NCCL_IB_GID_INDEX",
                                                             "NCCL_IB_TC",
                                                             "NCCL_IB_SL",
                                                             "NCCL_IB_TIMEOUT",
                                                             "NCCL_IB_RETRY_CNT",
                                                             "NCCL_IB_QPS_PER_CONNECTION",
                                                             "NCCL_P2P_DISABLE",
                                                             "NCCL_P2P_LEVEL",
                                                             "NCCL_SHM_DISABLE",
                                                             "NCCL_NET_GDR_LEVEL",
                                                             "NCCL_NET_GDR_READ",
                                                             "NCCL_MIN_NCHANNELS",
                                                             "NCCL_MAX_NCHANNELS",
                                                             "NCCL_NCHANNELS_PER_NET_PEER",
                                                             "NCCL_BUFFSIZE",
                                                             "NCCL_ALGO",
                                                             "NCCL_PROTO",
                                                             "NCCL_CROSS_NIC",
                                                             "NCCL_TOPO_FILE"};
constexpr std::size_t kMistakeEdits = 2;

void check_own_variables(const HostFiles& host, Findings& out) {
  const Settings defaults;
  const auto entries = defaults.list();
  std::vector<std::string_view> known(kOtherVariables.begin(), kOtherVariables.end());
  for (const Settings::Entry& entry : entries) known.push_back(entry.name);
  std::vector<std::string> wrong;
  std::vector<std::string> fixes;
  Verdict verdict = Verdict::ok;
  std::size_t count = 0;
  for (const auto& [name, value] : host.environment()) {
    if (!name.starts_with("RAILYARD_")) continue;
    ++count;
    if (std::ranges::find(known, name) == known.end()) {
      wrong.push_back(name + " is unknown");
      fixes.push_back(fmt::format("{} instead of {}", nearest_name(name, known), name));
      verdict = std::max(verdict, Verdict::warn);
    } else if (std::ranges::find(kOtherVariables, name) == kOtherVariables.end()) {
      Settings scratch;
      if (auto set = scratch.set(name, value); !set) {
        wrong.push_back(set.error().message());
        fixes.push_back(fmt::format("see {} in `railyard info --settings`", name));
        verdict = Verdict::fail;
      }
    }
  }
  Finding finding{"variables", verdict, fmt::format("{} of Railyard are set and known", count), "", ""};
  if (!wrong.empty()) {
    finding.found = fmt::format("{}", fmt::join(wrong, "; "));
    finding.meaning = verdict == Verdict::fail ? "No world can be opened with that value."
                                               : "It has no effect: the program runs with the default.";
    finding.fix = fmt::format("{}", fmt::join(fixes, "; "));
  }
  out.push_back(std::move(finding));
}

void check_nccl_variables(const HostFiles& host, Findings& out) {
  std::vector<std::string> wrong;
  std::vector<std::string> fixes;
  std::size_t count = 0;
  for (const auto& [name, value] : host.environment()) {
    if (!name.starts_with("NCCL_")) continue;
    ++count;
    const std::string_view nearest = nearest_name(name, kNcclVariables);
    const std::size_t edits = edit_distance(name, nearest);
    if (edits == 0 || edits > kMistakeEdits) continue;
    wrong.push_back(name + " is unknown");
    fixes.push_back(fmt::format("{} instead of {}", nearest, name));
  }
  Finding finding{"nccl-variables", Verdict::ok, fmt::format("{} are set", count), "", ""};
  if (count == 0) finding = {"nccl-variables", Verdict::not_applicable, "none is set", "", ""};
  if (!wrong.empty())
    finding = {"nccl-variables", Verdict::warn, fmt::format("{}", fmt::join(wrong, "; ")),
               "NCCL ignores it without a word.", fmt::format("{}", fmt::join(fixes, "; "))};
  out.push_back(std::move(finding));
}

/// Signals whose handlers end or change a program behind its back.
void check_signals(const HostFiles& host, Findings& out) {
  static constexpr std::array kWatched = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTERM, SIGINT, SIGPIPE};
  std::istringstream in(host.read(host.of_process("status")).value_or(""));
  std::uint64_t caught = 0;
  bool known = false;
  for (std::string word; in >> word;) {
    if (word != "SigCgt:") continue;
    in >> std::hex >> caught;
    known = true;
    break;
  }
  std::vector<std::string> names;
  for (const int signal : kWatched)
    if ((caught >> static_cast<unsigned>(signal - 1) & 1U) != 0)
      names.push_back(fmt::format("SIG{}", sigabbrev_np(signal)));
  Finding finding{"signals", known ? Verdict::ok : Verdict::not_applicable,
                  known ? "no library has taken any over" : "unknown", "", ""};
  if (!names.empty())
    finding = {"signals", Verdict::warn, fmt::format("handlers for {}", fmt::join(names, ", ")),
               "A library that was loaded into the process (LD_PRELOAD, a provider) decides what a crash or an "
               "interrupt does: core files and the launcher's exit code may be missing.",
               "Look at LD_PRELOAD; for PSM set IPATH_NO_BACKTRACE=1 HFI_NO_BACKTRACE=1. A program's own handlers "
               "are no fault"};
  out.push_back(std::move(finding));
}

void check_libfabric(const Settings& settings, Findings& out) {
  const bool wanted = settings.driver == "ofi" || !settings.provider.empty();
  const KeepSignals keep;
  void* const library = open_shared_library(settings.libfabric.c_str());
  const auto version =
      library == nullptr ? nullptr : reinterpret_cast<std::uint32_t (*)()>(dlsym(library, "fi_version"));
  Finding finding{"libfabric", Verdict::ok, "", "", ""};
  if (version == nullptr) {
    finding.verdict = wanted ? Verdict::fail : Verdict::not_applicable;
    finding.found = settings.libfabric + " cannot be loaded";
    if (wanted) {
      finding.meaning = "RAILYARD_DRIVER or RAILYARD_PROVIDER ask for libfabric: no rail can be opened.";
      finding.fix = "Install libfabric1 (1.17 or newer), or name it in RAILYARD_LIBFABRIC";
    }
  } else {
    const std::uint32_t found = version();
    finding.found = fmt::format("{}.{}", found >> 16U, found & 0xffffU);
    if (found < (1U << 16U | 17U)) {
      finding.verdict = wanted ? Verdict::fail : Verdict::warn;
      finding.meaning = "Railyard is written for 1.17 and newer: providers may behave otherwise.";
      finding.fix = "Install a newer libfabric, or name one in RAILYARD_LIBFABRIC";
    }
  }
  out.push_back(std::move(finding));
}

void check_verbs_library(const HostFiles& host, Findings& out) {
  Finding finding{"libibverbs", Verdict::ok, "loads", "", ""};
  if (host.rdma_devices().empty()) {
    finding = {"libibverbs", Verdict::not_applicable, "no RDMA device", "", ""};
  } else if (open_shared_library("libibverbs.so.1") == nullptr) {
    finding = {"libibverbs", Verdict::fail, "libibverbs.so.1 cannot be loaded",
               "There are RDMA devices, and none can be used: rails go through the kernel's sockets.",
               "Install libibverbs1 and ibverbs-providers"};
  }
  out.push_back(std::move(finding));
}

void check_rails(const Settings& settings, Findings& out) {
  const auto offers = fabric::chosen_offers(settings);
  if (!offers) {
    out.push_back({"rails", Verdict::fail, offers.error().message(), "No world can be opened on this host.",
                   "See `railyard info`; RAILYARD_DRIVER and RAILYARD_INTERFACES choose rails"});
    return;
  }
  std::vector<std::string> names;
  for (const fabric::RailOffer& offer : *offers)
    names.push_back(offer.driver + " " + offer.domain + (offer.detail.empty() ? "" : " (" + offer.detail + ")"));
  Finding finding{"rails", Verdict::ok, fmt::format("{}", fmt::join(names, ", ")), "", ""};
  out.push_back(std::move(finding));
}

}  // namespace

void check_variables(const HostFiles& host, Findings& out) {
  check_own_variables(host, out);
  check_nccl_variables(host, out);
  check_signals(host, out);
}

void check_software(const HostFiles& host, const Settings& settings, Findings& out) {
  if (!host.is_this_host()) return;
  check_libfabric(settings, out);
  check_verbs_library(host, out);
  check_rails(settings, out);
}

}  // namespace railyard::tool
