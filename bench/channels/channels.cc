/// One measurement of channels between two processes of this machine: README.md. Prints one line of JSON.
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <new>

#include "tests.hpp"

namespace {

using namespace railyard::bench;

/// Before the context opens: its threads inherit both. One of theirs that held the engine at a lower priority than the
/// caller's would never get on.
void take_core(const Options& options, int rank) {
  if (!options.cpus.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    const std::size_t each = options.cpus.size() / 2;
    for (std::size_t i = 0; i < each; ++i) {
      CPU_SET(static_cast<std::size_t>(options.cpus[static_cast<std::size_t>(rank) * each + i]), &set);
    }
    if (sched_setaffinity(0, sizeof set, &set) != 0) fail("no such processor");
  }
  const sched_param parameters{.sched_priority = options.priority};
  if (options.priority != 0 && sched_setscheduler(0, SCHED_FIFO, &parameters) != 0) fail("the priority is not allowed");
}

/// Two that spin at real-time priority and wait for each other in vain would take the machine with them.
void limit_time(unsigned seconds) {
  alarm(seconds);
  const rlimit limit{seconds, seconds};
  setrlimit(RLIMIT_CPU, &limit);
}

/// The other process has failed, and said why: nobody is to wait for it.
void watch_child() {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t* what, void*) {
    if (what->si_code != CLD_EXITED || what->si_status != 0) _exit(1);
  };
  sigaction(SIGCHLD, &action, nullptr);
}

void allow_descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void count(Figures& figures, Side& side, const std::string& when) {
  const auto statistics = side.context().statistics();
  const FabricObjects objects = fabric_objects();
  double links = 0;
  for (const auto& engine : statistics.engines) {
    for (const auto& rail : engine.rails) links += rail.links;
  }
  figures[when + "_routes"] = statistics.routes;
  figures[when + "_private_routes"] = statistics.private_routes;
  figures[when + "_links"] = links;
  figures[when + "_endpoints"] = static_cast<double>(objects.endpoints);
  figures[when + "_queues"] = static_cast<double>(objects.queues);
  figures[when + "_listeners"] = static_cast<double>(objects.listeners);
}

Figures measure(Side& side) {
  const std::string& test = side.options().test;
  if (test == "latency") return measure_latency(side);
  if (test == "exchange") return measure_exchange(side);
  if (test == "stream") return measure_stream(side);
  if (test == "fairness") return measure_fairness(side);
  if (test == "interference") return measure_interference(side);
  return {};
}

Figures run_rank(const Options& options, Shared& shared, int rank) {
  take_core(options, rank);
  Side side(options, shared, rank);
  const double line_before = side.line();
  side.open_context();
  const double connect_us = side.connect();
  Figures figures = measure(side);
  figures["connect_us"] = connect_us;
  if (options.test == "count") measure_latency(side);  // every link is in use by then
  side.meet();
  count(figures, side, "open");
  figures["close_us"] = side.close_channels();
  side.wait_for_end();
  count(figures, side, "closed");
  side.close_context();
  const FabricObjects left = fabric_objects();
  figures["left_endpoints"] = static_cast<double>(left.endpoints);
  figures["left_queues"] = static_cast<double>(left.queues);
  figures["line_before_ns"] = line_before;
  figures["line_after_ns"] = side.line();
  return figures;
}

void print(const Options& options, const Figures& figures) {
  fmt::print(
      "{{\"test\": \"{}\", \"over\": \"{}\", \"rails\": {}, \"channels\": {}, \"streams\": {}, \"all\": {}, "
      "\"bytes\": {}, \"depth\": {}, \"set\": \"{}\"",
      options.test, options.over, options.rails, options.channels, options.streams, options.all, options.bytes,
      options.depth, fmt::join(options.settings, " "));
  for (const auto& [name, value] : figures) fmt::print(", \"{}\": {:.10g}", name, value);
  fmt::print("}}\n");
}

}  // namespace

int main(int argc, char** argv) {
  count_fabric_objects();
  Options options;
  CLI::App app("One measurement of channels between two processes: bench/channels/README.md");
  app.add_option("test", options.test, "latency, exchange, stream, fairness, interference or count")
      ->required()
      ->check(CLI::IsMember({"latency", "exchange", "stream", "fairness", "interference", "count"}));
  app.add_option("--channels", options.channels, "open channels")->check(CLI::Range(std::size_t{1}, kMostChannels));
  app.add_option("--streams", options.streams, "channels that carry traffic")
      ->check(CLI::Range(std::size_t{1}, kMostChannels));
  app.add_flag("--all", options.all, "all of them do");
  app.add_flag("--ring", options.ring, "of latency: there on one channel, back on the next, as NCCL's rings do");
  app.add_option("--bytes", options.bytes, "of a message")->check(CLI::Range(1U, 1U << 30U));
  app.add_option("--depth", options.depth, "messages of a stream under way")->check(CLI::Range(1U, 128U));
  app.add_flag("--thread", options.thread, "the bulk stream has a thread of its own");
  app.add_option("--over", options.over, "memory or tcp")->check(CLI::IsMember({"memory", "tcp"}));
  app.add_option("--rails", options.rails, "tcp rails")->check(CLI::Range(1U, 16U));
  app.add_option("--set", options.settings, "NAME=VALUE: a setting of both processes");
  app.add_option("--cpus", options.cpus, "where they run: the first half for rank 0, the second for rank 1")
      ->delimiter(',');
  app.add_option("--priority", options.priority, "real-time priority; 0: none")->check(CLI::Range(0, 99));
  app.add_option("--rounds", options.rounds, "rounds inside, after one to warm up");
  app.add_option("--round-ms", options.round_ms, "of one round");
  app.add_option("--patience", options.patience, "seconds after which it gives up");
  CLI11_PARSE(app, argc, argv);
  if (options.ring) options.streams = std::max(options.streams, 2U);
  if (options.streams > options.channels) options.channels = options.streams;
  if ((options.test == "interference" || options.test == "exchange") && options.channels < 2) options.channels = 2;

  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory");
  auto& shared = *new (memory) Shared{};
  limit_time(options.patience);
  allow_descriptors();
  watch_child();
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    limit_time(options.patience);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
    run_rank(options, shared, 1);
    std::_Exit(0);
  }
  const Figures figures = run_rank(options, shared, 0);
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) fail("the other process failed");
  print(options, figures);
  return 0;
}
