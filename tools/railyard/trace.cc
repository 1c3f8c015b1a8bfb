/// `railyard trace`: what operations, rails and links did, for Perfetto and chrome://tracing.
#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "railyard/settings.hpp"
#include "telemetry/files.hpp"
#include "text.hpp"
#include "trace_json.hpp"

namespace railyard::tool {
namespace {

struct TraceOptions {
  std::string output = "railyard-trace.json";
  std::string json;
  std::string directory;
  std::vector<std::string> files;
  int pid = 0;
  std::string buffer;
  std::vector<std::string> command;
};

/// A directory in memory that goes with its owner.
class TraceDirectory {
 public:
  TraceDirectory() {
    for (const std::string& parent : {telemetry::directory_of("on"), std::filesystem::temp_directory_path().string()}) {
      std::string name = parent + "/railyard.trace-XXXXXX";
      if (::mkdtemp(name.data()) == nullptr) continue;
      path_ = name;
      return;
    }
  }
  ~TraceDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TraceDirectory(const TraceDirectory&) = delete;
  TraceDirectory& operator=(const TraceDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

volatile pid_t traced_program = 0;

/// The program's exit code, as a shell tells it. Signals that would end this process go to the program: what it has
/// done until then is still to be written.
int run_program(const TraceOptions& options, const std::string& directory) {
  ::setenv("RAILYARD_TRACE", (directory + "/").c_str(), 1);
  if (!options.buffer.empty()) ::setenv("RAILYARD_TRACE_BYTES", options.buffer.c_str(), 1);
  std::vector<char*> words;
  for (const std::string& word : options.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_t child = -1;
  if (const int failure = ::posix_spawnp(&child, words[0], nullptr, nullptr, words.data(), environ); failure != 0) {
    fmt::print(stderr, "railyard trace: {}: {}\n", options.command[0], std::strerror(failure));
    return failure == ENOENT ? 127 : 126;
  }
  traced_program = child;
  struct sigaction pass_on {};
  pass_on.sa_handler = [](int signal) { ::kill(traced_program, signal); };
  for (const int signal : {SIGTERM, SIGHUP}) ::sigaction(signal, &pass_on, nullptr);
  struct sigaction leave {};
  leave.sa_handler = [](int) {};  // the terminal has told the program already
  for (const int signal : {SIGINT, SIGQUIT}) ::sigaction(signal, &leave, nullptr);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  for (const int signal : {SIGTERM, SIGHUP, SIGINT, SIGQUIT}) ::signal(signal, SIG_DFL);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Says how far it is, where somebody looks.
void show_progress(std::string_view what, std::size_t done, std::size_t all) {
  if (::isatty(STDERR_FILENO) == 0 || all < 2) return;
  fmt::print(stderr, "\r{} {} of {}{}", what, done, all, done == all ? "\n" : "");
}

Result<std::vector<TracedProcess>> read_all(const TraceOptions& options, const std::string& recorded_in) {
  std::vector<telemetry::Found> found;
  for (const std::string& file : options.files) found.push_back({.path = file});
  if (options.files.empty()) {
    const std::string directory = !recorded_in.empty()         ? recorded_in
                                  : !options.directory.empty() ? options.directory
                                                               : telemetry::directory_of("on");
    for (telemetry::Found& each : telemetry::list(directory, telemetry::kTracePrefix))
      if (options.pid == 0 || each.pid == options.pid) found.push_back(std::move(each));
  }
  std::vector<TracedProcess> processes;
  for (std::size_t i = 0; i < found.size(); ++i) {
    show_progress("reading trace", i + 1, found.size());
    auto file = telemetry::read_trace_file(found[i].path);
    if (!file) return std::move(file.error());
    TracedProcess process{found[i].path, found[i].alive, std::move(*file), {}};
    if (!options.files.empty())
      process.alive = telemetry::is_alive(process.path, static_cast<pid_t>(process.file.pid), process.file.started);
    process.timeline = telemetry::assemble(process.file);
    process.file.records.shrink_to_fit();
    processes.push_back(std::move(process));
  }
  return processes;
}

Result<void> write_output(const std::string& output, const std::vector<TracedProcess>& processes) {
  const bool standard = output == "-";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(standard ? nullptr : std::fopen(output.c_str(), "we"),
                                                               [](std::FILE* file) { return std::fclose(file); });
  std::FILE* const file = standard ? stdout : opened.get();
  const auto failed = [&] { return Error(Status::io, fmt::format("{}: {}", output, std::strerror(errno))); };
  if (file == nullptr) return failed();
  const bool written = write_trace(
      processes, [&](std::string_view part) { return std::fwrite(part.data(), 1, part.size(), file) == part.size(); });
  if (!written || std::fflush(file) != 0) return failed();
  return {};
}

/// What is there and, as truthfully, what is not.
void tell(const TraceOptions& options, const std::vector<TracedProcess>& processes) {
  std::size_t operations = 0;
  std::size_t segments = 0;
  std::size_t events = 0;
  for (const TracedProcess& process : processes) {
    operations += process.timeline.operations.size();
    segments += process.timeline.segments.size();
    events += process.timeline.events.size();
  }
  fmt::print(stderr,
             "{}: {} process{}, {} operations, {} segments, {} events; open it in Perfetto or chrome://tracing\n",
             options.output == "-" ? "standard output" : options.output, processes.size(),
             processes.size() == 1 ? "" : "es", operations, segments, events);
  for (const TracedProcess& process : processes) {
    const auto& file = process.file;
    if (file.overwritten != 0) {
      fmt::print(stderr,
                 "{}: {} of {} records were overwritten by newer ones; --buffer (RAILYARD_TRACE_BYTES) keeps more\n",
                 process_label(process), file.overwritten, file.recorded);
    }
    if (file.missing != 0)
      fmt::print(stderr, "{}: {} records were not whole and are left out\n", process_label(process), file.missing);
  }
}

int run_trace(const TraceOptions& options) {
  const bool records = !options.command.empty();
  if (records && options.output == "-")
    return report_error("trace", Error(Status::invalid, "--output -: the program writes there; name a file"));
  for (const std::string& path : {options.output, options.json}) {
    if (path.empty()) continue;
    if (auto writable = check_writable(path); !writable) return report_error("trace", writable.error());
  }
  if (records) {
    // A mistyped RAILYARD_* name or value is reported before anything starts.
    auto settings = Settings::from_environment();
    if (settings && !options.buffer.empty()) {
      if (auto set = settings->set("RAILYARD_TRACE_BYTES", options.buffer); !set)
        return report_error("trace", set.error());
    }
    if (!settings) return report_error("trace", settings.error());
  }
  std::unique_ptr<TraceDirectory> own;
  std::string directory;
  int program = kExitOk;
  if (records) {
    directory = options.directory;
    if (directory.empty()) {
      own = std::make_unique<TraceDirectory>();
      directory = own->path();
    }
    std::error_code ignored;
    if (!std::filesystem::is_directory(directory, ignored)) {
      return report_error("trace", Error(Status::io, directory.empty() ? "no directory for the records can be made"
                                                                       : fmt::format("{}: no directory", directory)));
    }
    program = run_program(options, directory);
  }
  auto processes = read_all(options, directory);
  if (!processes) return report_error("trace", processes.error());
  if (processes->empty()) {
    fmt::print(stderr, "railyard trace: {}\n",
               records ? "nothing was recorded: no process opened a world or a context"
                       : "no trace is here: set RAILYARD_TRACE=on for the processes, or name their --directory");
    return program != kExitOk ? program : kExitFailed;
  }
  if (auto written = write_output(options.output, *processes); !written) return report_error("trace", written.error());
  if (!options.json.empty()) {
    if (auto written = write_text(options.json, trace_summary_json(*processes)); !written)
      return report_error("trace", written.error());
  }
  tell(options, *processes);
  return program;
}

}  // namespace

void add_trace_command(CLI::App& app, int& exit_code) {
  auto line = std::make_shared<TraceOptions>();
  CLI::App* const trace = app.add_subcommand("trace", "What operations, rails and links did, for Perfetto");
  trace->add_option("-o,--output", line->output, "Where the trace goes; -: the standard output")
      ->type_name("FILE")
      ->capture_default_str();
  trace->add_option("--json", line->json, "Write what is in it, and what was overwritten, as JSON to FILE")
      ->type_name("FILE");
  trace->add_option("--buffer", line->buffer, "Keep so much of each process, such as 64M: 64 bytes for each record")
      ->type_name("SIZE");
  auto* const files =
      trace->add_option("--file", line->files, "Convert this file of a process; may be given several times")
          ->type_name("FILE")
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  trace->add_option("--directory", line->directory, "Where the files of processes are; with PROGRAM: are kept")
      ->type_name("DIR")
      ->excludes(files);
  auto* const pid = trace->add_option("--pid", line->pid, "Convert that of this process alone")
                        ->check(CLI::PositiveNumber)
                        ->excludes(files);
  trace->add_option("command", line->command, "The program to run and trace, with its arguments, after --")
      ->excludes(files)
      ->excludes(pid);
  trace->positionals_at_end();
  trace->footer(
      "Without a program, the traces of processes that run or ran with RAILYARD_TRACE are converted.\n"
      "Exit code: the program's (128 and the signal's number where a signal ended it; 127: no such program).\n"
      "Examples: railyard trace -- railyard launch -n 2 -- ./my-program\n"
      "          RAILYARD_TRACE=on ./my-program & railyard trace -o now.json");
  trace->callback([line, &exit_code] { exit_code = run_trace(*line); });
}

}  // namespace railyard::tool
