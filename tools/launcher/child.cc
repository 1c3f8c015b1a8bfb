#include "launcher/child.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

namespace railyard::launcher {

namespace {

enum class Step : int { prepare, enter_namespace, execute };

/// What a child that could not start says to its parent, through a pipe that a successful exec closes.
struct Trouble {
  Step step = Step::prepare;
  int code = 0;
};

struct Pipe {
  Fd reading;
  Fd writing;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return Error(Status::io, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

/// Arguments and environment in the form exec wants, made before the fork: after it, in a process that may have had
/// other threads, memory had better not be allocated.
struct Image {
  std::vector<std::string> variables;
  std::vector<char*> arguments;
  std::vector<char*> environment;
};

Image make_image(const ChildPlan& plan) {
  Image image;
  const auto is_set_by_plan = [&plan](std::string_view variable) {
    const std::string_view name = variable.substr(0, variable.find('='));
    for (const auto& entry : plan.environment) {
      if (entry.first == name) return true;
    }
    return false;
  };
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    if (!is_set_by_plan(*variable)) image.variables.emplace_back(*variable);
  }
  for (const auto& [name, value] : plan.environment) image.variables.push_back(fmt::format("{}={}", name, value));
  for (std::string& variable : image.variables) image.environment.push_back(variable.data());
  image.environment.push_back(nullptr);
  // exec promises not to change them.
  for (const std::string& argument : plan.command) image.arguments.push_back(const_cast<char*>(argument.c_str()));
  image.arguments.push_back(nullptr);
  return image;
}

[[noreturn]] void give_up(int report, Step step) {
  const Trouble trouble{step, errno};
  [[maybe_unused]] const ssize_t written = ::write(report, &trouble, sizeof(trouble));
  _exit(127);
}

/// In the child, with system calls only.
void prepare(const ChildPlan& plan, pid_t parent, const Pipe& output, const Pipe& errors, int report) {
  // Asked for before the parent is looked for: it may have died in between.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up(report, Step::prepare);
  if (getppid() != parent) _exit(127);
  setpgid(0, 0);
  if (plan.network_namespace >= 0 && setns(plan.network_namespace, CLONE_NEWNET) != 0) {
    give_up(report, Step::enter_namespace);
  }
  if (plan.capture_output) {
    if (dup2(output.writing.get(), STDOUT_FILENO) < 0 || dup2(errors.writing.get(), STDERR_FILENO) < 0) {
      give_up(report, Step::prepare);
    }
  }
  if (!plan.keep_input) {
    const int nothing = ::open("/dev/null", O_RDONLY);
    if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0) give_up(report, Step::prepare);
    if (nothing != STDIN_FILENO) ::close(nothing);
  }
  if (plan.open_files) setrlimit(RLIMIT_NOFILE, &*plan.open_files);
  // Nobody else's handlers: exec would reset them, a body must not inherit them.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD, SIGPIPE}) ::signal(signal, SIG_DFL);
  sigprocmask(SIG_SETMASK, &plan.signals, nullptr);
}

[[noreturn]] void run_body(const ChildPlan& plan, Pipe& output, Pipe& errors, Pipe& report) {
  output = {};
  errors = {};
  if (plan.let_go) plan.let_go();
  for (const auto& [name, value] : plan.environment) setenv(name.c_str(), value.c_str(), 1);
  report = {};
  const int code = plan.body(plan.rank);
  fflush(nullptr);
  // What the parent registered to run at exit is the parent's.
  _exit(code);
}

Error start_error(const ChildPlan& plan, const Trouble& trouble) {
  const char* const reason = std::strerror(trouble.code);
  if (trouble.step == Step::enter_namespace) {
    return Error(Status::refused,
                 fmt::format("rank {} cannot enter its network namespace: {} (this takes root)", plan.rank, reason));
  }
  return Error(Status::io, fmt::format("cannot prepare the process of rank {}: {}", plan.rank, reason));
}

}  // namespace

Result<Child> start_child(const ChildPlan& plan) {
  Pipe output;
  Pipe errors;
  if (plan.capture_output) {
    auto out = make_pipe();
    auto err = make_pipe();
    if (!out || !err) return std::move(out ? err.error() : out.error());
    output = std::move(*out);
    errors = std::move(*err);
  }
  auto report = make_pipe();
  if (!report) return std::move(report.error());
  Image image = make_image(plan);
  // What this process has buffered must not be written twice.
  fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0)
    return Error(Status::io, fmt::format("cannot start a process for rank {}: {}", plan.rank, std::strerror(errno)));
  if (pid == 0) {
    prepare(plan, parent, output, errors, report->writing.get());
    if (plan.command.empty()) run_body(plan, output, errors, *report);
    execvpe(image.arguments.front(), image.arguments.data(), image.environment.data());
    give_up(report->writing.get(), Step::execute);
  }
  // Both sides do it, so that it is done whoever comes first.
  setpgid(pid, pid);
  report->writing.reset();
  Trouble trouble;
  ssize_t got = 0;
  do {
    got = ::read(report->reading.get(), &trouble, sizeof(trouble));
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof(trouble))) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    if (trouble.step == Step::execute) return Child{-1, Fd(), Fd(), trouble.code};
    return start_error(plan, trouble);
  }
  return Child{pid, std::move(output.reading), std::move(errors.reading), 0};
}

}  // namespace railyard::launcher
