/// Soak: four ranks, all-to-all verified traffic on loopback rails; one is killed with SIGKILL at a random moment:
/// while the world and the window are made, in the midst of traffic, while the window is closed. The others must be
/// told `peer_lost` with that rank's number within the deadline, go on with each other unharmed to the end, and leave
/// no descriptor, mapping or shared-memory object. Starts its ranks itself: a launcher would end the job.
///
/// With --pauses nobody is killed: ranks are stopped with SIGSTOP at random moments, now and then for longer than the
/// deadline, and go on. That is no loss: nobody is told of any, and everybody ends with whole data.
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "base/fd.hpp"
#include "bootstrap/server.hpp"
#include "survivor.hpp"

extern char** environ;

namespace {

using namespace railyard;        // NOLINT(google-build-using-namespace)
using namespace railyard::soak;  // NOLINT(google-build-using-namespace)

struct Options {
  int rounds = 20;
  int first = 0;
  int ranks = 4;
  std::uint64_t seed = 1;
  int deadline_ms = 2000;
  int limit_s = 60;
  int pauses = 0;
};
/// Of the pauses, as many in one job.
constexpr int kPausesOfAJob = 25;

/// Beyond the deadline for the machine's sake: it is shared, and a process may wait for its turn.
constexpr std::int64_t kScheduling = 3'000'000'000;

enum class Moment : std::uint8_t { setup, traffic, close };
constexpr std::array<const char*, 3> kMoments = {"setup", "traffic", "close"};

/// What one rank has told.
struct Rank {
  pid_t pid = -1;
  Fd control;
  std::string unread;
  std::vector<std::string> lines;

  /// It has told what it still holds: its last words.
  bool over() const { return told("clean") || told("left"); }
  bool told(std::string_view start) const {
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.starts_with(start); });
  }
};

/// A line "error DURING STATUS PEER NANOSECONDS TEXT".
struct Complained {
  std::string during;
  Status status = Status::ok;
  int peer = -1;
  std::int64_t when = 0;
};
std::vector<Complained> complaints(const Rank& rank) {
  std::vector<Complained> all;
  for (const std::string& line : rank.lines) {
    std::istringstream words(line);
    std::string error;
    Complained one;
    int status = 0;
    if (!(words >> error >> one.during >> status >> one.peer >> one.when) || error != "error") continue;
    one.status = static_cast<Status>(status);
    all.push_back(one);
  }
  return all;
}

/// One job, from its first process to its last.
class Job {
 public:
  Job(const Options& options, int round)
      : options_(options), random_(options.seed * 1'000'003 + static_cast<std::uint64_t>(round)) {
    victim_ = static_cast<int>(random_.below(static_cast<std::uint64_t>(options.ranks)));
    const std::uint64_t dice = random_.below(10);
    moment_ = dice < 2 ? Moment::setup : dice < 8 ? Moment::traffic : Moment::close;
    served_by_rank0_ = random_.below(2) == 0;
    rendezvous_ = fmt::format("unix:@railyard-killed-{}-{}", ::getpid(), round);
    ranks_.resize(static_cast<std::size_t>(options.ranks));
  }
  ~Job() {
    for (Rank& rank : ranks_) {
      if (rank.pid < 0) continue;
      ::kill(rank.pid, SIGKILL);
      ::waitpid(rank.pid, nullptr, 0);
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Ranks are stopped and go on.
  void run_with_pauses(int pauses) {
    victim_ = -1;
    moment_ = Moment::traffic;
    if (!start()) return fail("cannot start the ranks");
    wait_for("the ranks to be at work", [](const Rank& rank) { return rank.told("traffic"); });
    for (int i = 0; i < pauses && failures_.empty(); ++i) {
      const pid_t pid = ranks_[random_.below(ranks_.size())].pid;
      ::kill(pid, SIGSTOP);
      const auto deadline_us = static_cast<std::uint64_t>(options_.deadline_ms) * 1000;
      sleep_us(i == pauses / 2 ? deadline_us * 3 / 2 : random_.below(50'000));
      ::kill(pid, SIGCONT);
      sleep_us(random_.below(50'000));
    }
    stop_all();
    wait_for("the ranks' end", [](const Rank& rank) { return rank.over(); });
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (!complaints(ranks_[i]).empty()) fail(fmt::format("rank {} was told of a loss, and there was none", i));
    }
    judge_rest();
    end_all();
  }

  void run() {
    if (!start()) return fail("cannot start the ranks");
    kill_one();
    wait_for("the survivors' notice",
             [&](const Rank& rank) { return moment_ == Moment::close || !complaints(rank).empty() || rank.over(); });
    sleep_us(50'000 + random_.below(100'000));  // traffic between the others, which know by now
    stop_all();
    wait_for("the survivors' end", [](const Rank& rank) { return rank.over(); });
    judge();
    end_all();
  }

  const std::vector<std::string>& failures() const { return failures_; }
  std::string title() const {
    return fmt::format("rank {} killed during {}, rendezvous by {}", victim_,
                       kMoments[static_cast<std::size_t>(moment_)], served_by_rank0_ ? "rank 0" : "the launcher");
  }
  std::string everything() const {
    std::string text;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      for (const std::string& line : ranks_[i].lines) text += fmt::format("  rank {}: {}\n", i, line);
    }
    return text;
  }
  Moment moment() const { return moment_; }
  const std::vector<double>& notices_ms() const { return notices_ms_; }
  std::uint64_t verified_bytes() const { return verified_bytes_; }

 private:
  bool is_victim(const Rank& rank) const { return victim_ >= 0 && &rank == &ranks_[static_cast<std::size_t>(victim_)]; }
  void fail(std::string what) { failures_.push_back(std::move(what)); }
  static void sleep_us(std::uint64_t microseconds) {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }

  bool start() {
    if (!served_by_rank0_) {
      bootstrap::ServerOptions server;
      server.address = bootstrap::Address::parse(rendezvous_).value();
      server.size = options_.ranks;
      server.job_key = kKey;
      auto opened = bootstrap::Server::open(server);
      if (!opened || !(*opened)->start()) return false;
      server_ = std::move(*opened);
    }
    for (int rank = 0; rank < options_.ranks; ++rank) {
      if (!start_rank(rank)) return false;
    }
    return true;
  }

  bool start_rank(int number) {
    Rank& rank = ranks_[static_cast<std::size_t>(number)];
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return false;
    rank.control = Fd(ends[0]);
    const Fd other(ends[1]);
    ::setenv("RAILYARD_RANK", std::to_string(number).c_str(), 1);
    ::setenv("RAILYARD_SIZE", std::to_string(options_.ranks).c_str(), 1);
    ::setenv("RAILYARD_RENDEZVOUS", rendezvous_.c_str(), 1);
    ::setenv("RAILYARD_RENDEZVOUS_HOST", served_by_rank0_ ? "rank0" : "launcher", 1);
    ::setenv("RAILYARD_JOB_KEY", kKey, 1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, other.get(), kControl);
    std::array<const char*, 3> arguments = {"killed_rank", "--survivor", nullptr};
    const int refused = ::posix_spawn(&rank.pid, "/proc/self/exe", &actions, nullptr,
                                      const_cast<char* const*>(arguments.data()), environ);
    posix_spawn_file_actions_destroy(&actions);
    return refused == 0;
  }

  /// At a moment after the victim has reached the part in question.
  void kill_one() {
    Rank& victim = ranks_[static_cast<std::size_t>(victim_)];
    const auto reached = [&](std::string_view line) {
      wait_for(
          "the ranks to be at work", [&, line](const Rank& rank) { return rank.told(line); }, true);
    };
    if (moment_ == Moment::setup) {
      reached("opening");
      sleep_us(random_.below(30'000));
    } else {
      reached("traffic");
      sleep_us(random_.below(200'000));
    }
    if (moment_ == Moment::close) {
      stop_all();
      wait_for(
          "the victim to close", [&](const Rank& rank) { return !is_victim(rank) || rank.told("closing"); }, true);
      sleep_us(random_.below(2'000));
    }
    killed_ = steady_ns();
    ::kill(victim.pid, SIGKILL);
    ::waitpid(victim.pid, nullptr, 0);
    victim.pid = -1;
    if (server_) server_->process_ended(victim_, "it was killed by signal 9");
  }

  void stop_all() {
    for (const Rank& rank : ranks_) ::send(rank.control.get(), "s", 1, MSG_NOSIGNAL);
  }

  /// Reads what the ranks tell until `enough` holds for every survivor (or, asked so, for the victim too).
  template <typename Enough>
  void wait_for(const char* what, Enough enough, bool with_victim = false) {
    const std::int64_t until = steady_ns() + options_.limit_s * 1'000'000'000LL;
    for (;;) {
      bool all = true;
      for (const Rank& rank : ranks_) all &= (is_victim(rank) && !with_victim) || enough(rank);
      if (all) return;
      if (steady_ns() > until) return fail(fmt::format("waited {} s in vain for {}", options_.limit_s, what));
      if (!listen()) return fail(fmt::format("a rank ended before {}", what));
    }
  }

  /// False: a rank that should be there has closed its socket.
  bool listen() {
    std::vector<pollfd> sockets;
    for (const Rank& rank : ranks_) sockets.push_back({rank.control.get(), POLLIN, 0});
    ::poll(sockets.data(), sockets.size(), 100);
    bool all_there = true;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (sockets[i].revents != 0 && !read(ranks_[i])) all_there &= is_victim(ranks_[i]) || ranks_[i].over();
    }
    return all_there;
  }

  static bool read(Rank& rank) {
    std::array<char, 4096> buffer;
    const ssize_t bytes = ::recv(rank.control.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (bytes <= 0) {
      rank.control.reset();
      return false;
    }
    rank.unread.append(buffer.data(), static_cast<std::size_t>(bytes));
    for (std::size_t end; (end = rank.unread.find('\n')) != std::string::npos; rank.unread.erase(0, end + 1)) {
      rank.lines.push_back(rank.unread.substr(0, end));
    }
    return true;
  }

  void judge() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (is_victim(ranks_[i])) continue;
      judge_complaints(static_cast<int>(i));
    }
    judge_rest();
  }

  void judge_rest() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (is_victim(ranks_[i])) continue;
      if (!ranks_[i].told("clean")) fail(fmt::format("rank {} did not let go of everything", i));
      judge_pairs(static_cast<int>(i));
    }
  }

  bool is_true(const Complained& one) const {
    // Where rank 0 serves, nobody watches processes: of one that never came it is only known that it did not.
    if (one.status == Status::timeout) return one.during == "open" && moment_ == Moment::setup && served_by_rank0_;
    // A rank that could not open or close its world leaves, and is a loss for those that came further.
    const bool others_leave = moment_ != Moment::traffic || one.during == "close";
    const bool refused = one.status == Status::not_found || one.status == Status::invalid;  // its window, or its key
    if (refused && one.peer >= 0 && one.peer != victim_) {
      // Such a one ends its window first, and refuses what still comes.
      return others_leave && !complaints(ranks_[static_cast<std::size_t>(one.peer)]).empty();
    }
    return one.status == Status::peer_lost && (one.peer == victim_ || others_leave);
  }

  /// Whoever was told of a loss was told the truth, in time. In traffic everybody must have been told.
  void judge_complaints(int number) {
    const auto all = complaints(ranks_[static_cast<std::size_t>(number)]);
    if (moment_ != Moment::close && all.empty()) fail(fmt::format("rank {} was not told of the loss", number));
    for (const Complained& one : all) {
      if (!is_true(one)) {
        fail(fmt::format("rank {} was told {} of rank {} during {}", number, to_string(one.status), one.peer,
                         one.during));
      }
      const std::int64_t took = one.when - killed_;
      if (one.during != "close") notices_ms_.push_back(static_cast<double>(took) / 1e6);
      if (took > options_.deadline_ms * 1'000'000LL + kScheduling) {
        fail(fmt::format("rank {} was told after {} ms, the deadline is {}", number, took / 1'000'000,
                         options_.deadline_ms));
      }
    }
  }

  void judge_pairs(int number) {
    int whole = 0;
    for (const std::string& line : ranks_[static_cast<std::size_t>(number)].lines) {
      std::istringstream words(line);
      std::string pair, how;
      int peer = -1;
      std::uint64_t received = 0, bytes = 0;
      if (!(words >> pair >> peer >> how >> received >> bytes) || pair != "pair") continue;
      whole += how == "whole" && peer != victim_ ? 1 : 0;
      verified_bytes_ += bytes;
      for (std::uint64_t wrong; words >> wrong;) {
        if (wrong != 0) fail(fmt::format("rank {}: wrong data from rank {}: {}", number, peer, line));
      }
    }
    const int others = options_.ranks - (victim_ >= 0 ? 2 : 1);
    if (moment_ == Moment::traffic && whole != others) {
      fail(fmt::format("rank {} finished with {} of {} others", number, whole, others));
    }
  }

  /// Each survivor ends by itself with 0.
  void end_all() {
    for (Rank& rank : ranks_) {
      if (rank.pid < 0 || !failures_.empty()) continue;
      int status = 0;
      ::waitpid(rank.pid, &status, 0);
      rank.pid = -1;
      if (status != 0) fail(fmt::format("a survivor ended with status {:#x}", status));
    }
  }

  static constexpr const char* kKey = "a key of the soak";
  const Options& options_;
  Random random_;
  int victim_ = 0;
  Moment moment_ = Moment::traffic;
  bool served_by_rank0_ = false;
  std::string rendezvous_;
  std::unique_ptr<bootstrap::Server> server_;
  std::vector<Rank> ranks_;
  std::int64_t killed_ = 0;
  std::vector<std::string> failures_;
  std::vector<double> notices_ms_;
  std::uint64_t verified_bytes_ = 0;
};

/// Objects that stay: those of a rank that was killed last go with the next look at the directory.
std::set<std::string> objects_left(const SharedMemoryDirectory& memory) {
  constexpr int kTries = 50;
  std::set<std::string> left = memory.objects();
  for (int i = 0; i < kTries && !left.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    left = memory.objects();
  }
  return left;
}

int kill_many(const Options& options) {
  const SharedMemoryDirectory memory;
  std::array<int, kMoments.size()> rounds{};
  std::vector<double> notices;
  std::uint64_t bytes = 0;
  int failed = 0;
  for (int round = options.first; round < options.first + options.rounds; ++round) {
    Job job(options, round);
    job.run();
    ++rounds[static_cast<std::size_t>(job.moment())];
    notices.insert(notices.end(), job.notices_ms().begin(), job.notices_ms().end());
    bytes += job.verified_bytes();
    if (job.failures().empty()) continue;
    ++failed;
    fmt::print("FAILED: round {} of seed {}: {}\n  {}\n{}", round, options.seed, job.title(),
               fmt::join(job.failures(), "\n  "), job.everything());
    std::fflush(stdout);
  }
  std::sort(notices.begin(), notices.end());
  fmt::print(
      "{} ranks killed ({} during setup, {} during traffic, {} during close), {} rounds failed; {:.1f} GB verified; ",
      options.rounds, rounds[0], rounds[1], rounds[2], failed, static_cast<double>(bytes) / 1e9);
  if (!notices.empty()) {
    fmt::print("told after {:.1f} ms (median), {:.1f} ms (longest)", notices[notices.size() / 2], notices.back());
  }
  const auto left = objects_left(memory);
  fmt::print("; {} objects left in /dev/shm{}{}\n", left.size(), left.empty() ? "" : ": ", fmt::join(left, " "));
  return failed == 0 && left.empty() ? 0 : 1;
}

int pause_many(const Options& options) {
  int failed = 0;
  int paused = 0;
  std::uint64_t bytes = 0;
  for (int round = options.first; paused < options.pauses; ++round) {
    const int pauses = std::min(kPausesOfAJob, options.pauses - paused);
    Job job(options, round);
    job.run_with_pauses(pauses);
    paused += pauses;
    bytes += job.verified_bytes();
    if (job.failures().empty()) continue;
    ++failed;
    fmt::print("FAILED: round {} of seed {}: {} pauses\n  {}\n{}", round, options.seed, pauses,
               fmt::join(job.failures(), "\n  "), job.everything());
    std::fflush(stdout);
  }
  fmt::print("{} ranks stopped and set going again, {} jobs failed; {:.1f} GB verified\n", paused, failed,
             static_cast<double>(bytes) / 1e9);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bool survivor = false;
  CLI::App app{"kills one rank of a job at a random moment, again and again"};
  app.add_option("--rounds", options.rounds, "how many jobs");
  app.add_option("--first", options.first, "number of the first one, to see one again");
  app.add_option("--ranks", options.ranks, "ranks of a job")->check(CLI::Range(3, 64));
  app.add_option("--seed", options.seed, "of victims and moments");
  app.add_option("--deadline-ms", options.deadline_ms, "RAILYARD_PEER_TIMEOUT_MS of the ranks");
  app.add_option("--pauses", options.pauses, "stop ranks so many times and let them go on, instead of killing any");
  app.add_option("--limit", options.limit_s, "seconds after which a job that does not go on has failed");
  app.add_flag("--survivor", survivor, "be one rank of a job (used by the program itself)");
  CLI11_PARSE(app, argc, argv);
  if (survivor) return Survivor::run();
  ::setenv("RAILYARD_INTERFACES", "lo", 0);
  ::setenv("RAILYARD_RAILS", "2", 0);
  ::setenv("RAILYARD_SHARED_MEMORY", "off", 0);
  ::setenv("RAILYARD_LOG", "error", 0);
  for (const char* deadline : {"RAILYARD_PEER_TIMEOUT_MS", "RAILYARD_BOOTSTRAP_TIMEOUT_MS"}) {
    ::setenv(deadline, std::to_string(options.deadline_ms).c_str(), 1);
  }
  return options.pauses > 0 ? pause_many(options) : kill_many(options);
}
