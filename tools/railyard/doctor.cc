/// `railyard doctor`: what on this machine may bite, what it means and what to do.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "base/ports.hpp"
#include "commands.hpp"
#include "doctor_checks.hpp"
#include "json.hpp"
#include "ranks.hpp"
#include "text.hpp"

namespace railyard::tool {

namespace {

struct DoctorLine {
  std::string root = "/";
  std::string process = "self";
  std::vector<std::string> peers;
  int timeout_ms = 3000;
  bool strict = false;
  bool all = false;
  std::string json;
};

std::size_t count(const Findings& findings, Verdict verdict) {
  return static_cast<std::size_t>(std::ranges::count(findings, verdict, &Finding::verdict));
}

void print_findings(const Findings& findings, bool all, int rank) {
  const std::string who = rank < 0 ? "" : fmt::format("rank {}: ", rank);
  for (const Finding& one : findings) {
    if (!all && one.verdict == Verdict::not_applicable) continue;
    fmt::print("{}{:<4}  {:<14}  {}\n", who, to_string(one.verdict), one.check, one.found);
    if (!one.meaning.empty()) fmt::print("{}      {:<14}  {}\n", who, "", one.meaning);
    if (!one.fix.empty()) fmt::print("{}      {:<14}  To do: {}\n", who, "", one.fix);
  }
  fmt::print("{}{} ok, {} warnings, {} failures, {} not applicable\n", who, count(findings, Verdict::ok),
             count(findings, Verdict::warn), count(findings, Verdict::fail), count(findings, Verdict::not_applicable));
}

std::string doctor_json(const Findings& findings, int exit_code) {
  static constexpr const char* kNames[] = {"ok", "not_applicable", "warn", "fail"};
  JsonWriter json;
  json.begin_object().field("healthy", exit_code == kExitOk);
  json.key("findings").begin_array();
  for (const Finding& one : findings) {
    json.begin_object()
        .field("check", std::string_view(one.check))
        .field("verdict", kNames[static_cast<std::size_t>(one.verdict)])
        .field("found", std::string_view(one.found))
        .field("meaning", std::string_view(one.meaning))
        .field("fix", std::string_view(one.fix))
        .end_object();
  }
  return json.end_array().end_object().finish();
}

int run_doctor(const DoctorLine& line) {
  if (!line.json.empty()) {
    if (auto writable = check_writable(line.json); !writable) return report_error("doctor", writable.error());
  }
  const HostFiles host(line.root, line.process);
  if (!host.exists("proc/" + line.process))
    return report_error(
        "doctor", Error(Status::not_found, fmt::format("no folder {}", host.path("proc/" + line.process).string())));
  Findings findings;
  // What cannot be parsed is a finding: the other checks go on with the defaults.
  const auto parsed = Settings::from_environment();
  const Settings settings = parsed ? *parsed : Settings();
  check_software(host, settings, findings);
  check_variables(host, findings);
  check_limits(host, findings);
  check_memory(host, findings);
  check_processors(host, findings);
  check_network(host, findings);
  check_rdma(host, findings);
  const auto ports = PortRange::parse(settings.ports);
  for (const std::string& peer : line.peers)
    findings.push_back(check_peer(peer, line.timeout_ms, ports ? *ports : PortRange()));
  const bool in_world = host.is_this_host() && parsed && inside_a_world(settings);
  int rank = settings.rank;
  if (in_world) {
    const auto met = check_ranks(host, settings, line.timeout_ms, findings);
    if (met) rank = *met;
    if (!met)
      findings.push_back({"rendezvous", Verdict::fail, met.error().text(), "The ranks of this job do not meet.",
                          "See the error; RAILYARD_RENDEZVOUS must be an address of rank 0 that all hosts reach"});
  }
  const std::size_t bad = count(findings, Verdict::fail) + (line.strict ? count(findings, Verdict::warn) : 0);
  const int exit_code = bad == 0 ? kExitOk : kExitFailed;
  if (line.json != "-") print_findings(findings, line.all, in_world ? rank : -1);
  if (!line.json.empty()) {
    if (auto written = write_text(line.json, doctor_json(findings, exit_code)); !written)
      return report_error("doctor", written.error());
  }
  return exit_code;
}

}  // namespace

void add_doctor_command(CLI::App& app, int& exit_code) {
  auto line = std::make_shared<DoctorLine>();
  CLI::App* doctor = app.add_subcommand("doctor", "What on this machine may bite, what it means and what to do");
  doctor
      ->add_option("--peer", line->peers,
                   "Also whether HOST can be connected to; with :PORT, whether somebody listens there. Repeatable")
      ->type_name("HOST[:PORT]")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  doctor->add_option("--timeout-ms", line->timeout_ms, "How long one connection may take")
      ->check(CLI::Range(1, 600000))
      ->capture_default_str()
      ->type_name("MS");
  doctor->add_option("--pid", line->process, "Limits, variables and signal handlers of that process instead")
      ->check(CLI::PositiveNumber)
      ->type_name("PID");
  doctor->add_option("--root", line->root, "Read proc, sys and dev/shm below DIR: of another machine, saved there")
      ->type_name("DIR");
  doctor->add_flag("--all", line->all, "Show also what does not apply to this machine");
  doctor->add_flag("--strict", line->strict, "Warnings count as failures in the exit code");
  doctor->add_option("--json", line->json, "Write the findings as JSON to FILE; - is the standard output")
      ->type_name("FILE");
  doctor->footer(
      "As a rank of a world (railyard launch, mpirun, or RAILYARD_RANK and RAILYARD_RENDEZVOUS on each host) every "
      "rank\n"
      "also connects to every other by each of its NICs and sends 64 KiB, so that a firewall between hosts shows, a "
      "path\n"
      "that loses long packets, a NIC whose MTU differs, or a route that leaves by another NIC.\n"
      "Examples:\n"
      "  railyard doctor\n"
      "  railyard doctor --all --json -\n"
      "  railyard launch -n 2 -- railyard doctor\n"
      "Exit codes: 0 no failure (there may be warnings); 1 a failure, or a warning with --strict; 2 a bad argument;\n"
      "3 a file cannot be read or written.");
  doctor->callback([line, &exit_code] { exit_code = run_doctor(*line); });
}

}  // namespace railyard::tool
