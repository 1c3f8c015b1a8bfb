#include "launcher/supervision.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.hpp"
#include "bootstrap/protocol.hpp"

namespace railyard::launcher {

namespace {

/// SIGCHLD may go to another thread of the program: children are looked at so often in any case.
constexpr int kTickMs = 100;
/// How long the output of a rank that has ended is waited for, should somebody else hold its pipe.
constexpr std::int64_t kDrainNs = 500'000'000;
/// What shells answer for a program that does not exist, and for one that cannot be executed.
constexpr int kExitNoProgram = 127;
constexpr int kExitNotExecutable = 126;

std::string describe_end(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return fmt::format("exited with code {}", info.si_status);
  return fmt::format("was ended by signal {} ({}){}", info.si_status, strsignal(info.si_status),
                     info.si_code == CLD_DUMPED ? " and left a core file" : "");
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      pollfd wait{fd, POLLOUT, 0};
      poll(&wait, 1, -1);
      continue;
    }
    if (count <= 0) return;  // nobody reads it any more
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

void wait_for(pid_t pid) {
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

Supervision::Supervision(const LaunchOptions& options, const SignalWatch& signals, bootstrap::Server& server)
    : options_(options), signals_(signals), server_(server) {}

Supervision::~Supervision() {
  signal_all(SIGKILL);
  for (const Rank& rank : ranks_) {
    if (rank.running) wait_for(rank.pid);
  }
}

void Supervision::let_go() {
  server_.abandon();
  for (Rank& rank : ranks_) rank.streams.clear();
  ::close(signals_.fd().get());
}

Result<void> Supervision::start(ChildPlan plan, const Environment& job, const std::vector<Fd>& namespaces) {
  plan.capture_output = options_.tag_output;
  plan.signals = signals_.before();
  plan.let_go = [this] { let_go(); };
  for (std::int32_t rank = 0; rank < options_.ranks; ++rank) {
    plan.rank = rank;
    plan.environment = options_.environment;
    plan.environment.insert(plan.environment.end(), job.begin(), job.end());
    plan.environment.emplace_back("RAILYARD_RANK", std::to_string(rank));
    // A terminal belongs to the launcher's process group: a rank that read from it would be stopped.
    plan.keep_input = rank == 0 && isatty(STDIN_FILENO) == 0;
    if (!namespaces.empty()) {
      plan.network_namespace = namespaces[static_cast<std::size_t>(rank) % namespaces.size()].get();
    }
    auto child = start_child(plan);
    if (!child) return std::move(child.error());
    if (child->not_executed != 0) {
      note_not_executed(rank, plan.command.front(), child->not_executed);
      return {};
    }
    Rank& started = ranks_.emplace_back();
    started.pid = child->pid;
    started.running = true;
    ++running_;
    if (options_.tag_output) {
      started.streams.push_back({std::move(child->output), LineTagger(rank), STDOUT_FILENO});
      started.streams.push_back({std::move(child->errors), LineTagger(rank), STDERR_FILENO});
    }
  }
  return {};
}

void Supervision::note_not_executed(std::int32_t rank, const std::string& program, int code) {
  report_.first_failed = rank;
  report_.exit_code = code == ENOENT ? kExitNoProgram : kExitNotExecutable;
  report_.failure = fmt::format("cannot execute '{}': {}", program, std::strerror(code));
  log_error("{}", report_.failure);
  signal_all(SIGKILL);
}

LaunchReport Supervision::run() {
  while (running_ > 0 || any_stream_open()) {
    wait_for_news();
    for (int signal = signals_.next(); signal != 0; signal = signals_.next()) handle_signal(signal);
    reap();
    press_on();
  }
  if (interrupted_by_ != 0) report_.exit_code = 128 + interrupted_by_;
  // Said last, too: what the other ranks wrote as they ended has buried the first line.
  if (report_.first_failed >= 0 && failed_ > 1)
    log_error("the first failure: {} ({} of {} ranks failed or were ended)", report_.failure, failed_, ranks_.size());
  return report_;
}

bool Supervision::any_stream_open() const {
  return std::ranges::any_of(ranks_, [](const Rank& rank) { return !rank.streams.empty(); });
}

void Supervision::wait_for_news() {
  std::vector<pollfd> waits = {{signals_.fd().get(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    for (const Stream& stream : rank.streams) waits.push_back({stream.fd.get(), POLLIN, 0});
  }
  if (poll(waits.data(), waits.size(), kTickMs) <= 0) return;
  std::size_t next = 1;
  for (Rank& rank : ranks_) {
    for (Stream& stream : rank.streams) {
      if (waits[next++].revents != 0) pass_on(stream);
    }
    std::erase_if(rank.streams, [](const Stream& stream) { return !stream.fd; });
  }
}

void Supervision::pass_on(Stream& stream) {
  const ssize_t count = ::read(stream.fd.get(), buffer_.data(), buffer_.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count > 0) {
    write_all(stream.destination, stream.tagger.feed({buffer_.data(), static_cast<std::size_t>(count)}));
  } else {
    end_stream(stream);
  }
}

void Supervision::end_stream(Stream& stream) {
  write_all(stream.destination, stream.tagger.finish());
  stream.fd.reset();
}

void Supervision::handle_signal(int signal) {
  if (signal == SIGCHLD) return;
  // Asked a second time: whoever asks is done waiting.
  if (interrupted_by_ != 0) signal = SIGKILL;
  if (interrupted_by_ == 0) interrupted_by_ = signal;
  signal_all(signal);
  stage_ = signal == SIGKILL ? Stage::forced : Stage::asked;
  next_step_ns_ = clock_.now() + options_.grace_ns;
}

/// To the whole group of each rank. Its leader is not reaped yet, so its number is still its own.
void Supervision::signal_all(int signal) const {
  for (const Rank& rank : ranks_) {
    if (rank.running) kill(-rank.pid, signal);
  }
}

void Supervision::reap() {
  for (std::size_t index = 0; index < ranks_.size(); ++index) {
    Rank& rank = ranks_[index];
    if (!rank.running) continue;
    siginfo_t info{};
    const int answer = waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG | WNOWAIT);
    if (answer != 0 || info.si_pid == 0) continue;
    // Before it is reaped, while its number cannot be another's: end what it left behind.
    kill(-rank.pid, SIGKILL);
    wait_for(rank.pid);
    rank.running = false;
    rank.drain_until = clock_.now() + kDrainNs;
    --running_;
    note_end(static_cast<std::int32_t>(index), rank.pid, info);
  }
}

void Supervision::note_end(std::int32_t rank, pid_t pid, const siginfo_t& info) {
  const std::string how = describe_end(info);
  server_.process_ended(rank, fmt::format("its process {}", how));
  if (info.si_code == CLD_EXITED && info.si_status == 0) return;
  ++failed_;
  // Those who end because of the first failure or because we told them to are no news.
  if (report_.first_failed >= 0 || interrupted_by_ != 0) {
    log_info("rank {} (pid {}) {}", rank, pid, how);
    return;
  }
  report_.first_failed = rank;
  report_.exit_code = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  report_.failure = fmt::format("rank {} (pid {}) {}", rank, pid, how);
  if (running_ == 0 || options_.keep_going) {
    log_error("{}{}", report_.failure, running_ == 0 ? "" : fmt::format("; {} run on", running_));
    return;
  }
  log_error("{}; {} will be ended in {}", report_.failure,
            running_ == 1 ? std::string("one rank still runs and") : fmt::format("{} ranks still run and", running_),
            bootstrap::show_duration(static_cast<std::uint64_t>(options_.grace_ns)));
  stage_ = Stage::grace;
  next_step_ns_ = clock_.now() + options_.grace_ns;
}

/// Ends those who were given time and used it up.
void Supervision::press_on() {
  const std::int64_t now = clock_.now();
  for (Rank& rank : ranks_) {
    if (rank.running || now < rank.drain_until) continue;
    for (Stream& stream : rank.streams) end_stream(stream);
    rank.streams.clear();
  }
  if (stage_ == Stage::running || stage_ == Stage::forced || running_ == 0 || now < next_step_ns_) return;
  const bool ask = stage_ == Stage::grace;
  signal_all(ask ? SIGTERM : SIGKILL);
  stage_ = ask ? Stage::asked : Stage::forced;
  next_step_ns_ = now + options_.grace_ns;
}

}  // namespace railyard::launcher
