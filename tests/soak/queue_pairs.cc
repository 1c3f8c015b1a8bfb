/// Soak for verbs rails: how many queue pairs and completion queues two processes have with N channels between them on
/// m shared links, as the kernel counts them (`rdma resource show`): rails x m and rails; none when all is closed; and
/// as many after two thousand channels as before. Rails are those of the environment. `queue_pairs --cycles 2048`
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "holdings.hpp"
#include "railyard/channel.hpp"
#include "railyard/context.hpp"
#include "rdma_objects.hpp"

namespace {

using namespace railyard;        // NOLINT(google-build-using-namespace)
using namespace railyard::soak;  // NOLINT(google-build-using-namespace)

constexpr std::uint32_t kProcesses = 2;
constexpr std::uint64_t kSlack = 8 << 20U;
constexpr std::size_t kPools = 8;  ///< regions that a process may make one time or another, and keeps

struct Options {
  std::uint32_t channels = 64;
  std::vector<std::uint32_t> shared_links = {1, 2, 4};
  std::uint32_t cycles = 2048;
};

[[noreturn]] void give_up(const std::string& what) {
  fmt::print(stderr, "queue_pairs: {}\n", what);
  std::exit(1);
}

class ProcessBarrier {
 public:
  explicit ProcessBarrier(std::uint32_t size) : size_(size) {}
  void meet(const std::function<void()>& meanwhile) {
    const std::uint32_t round = round_.load();
    if (arrived_.fetch_add(1) + 1 == size_) {
      arrived_ = 0;
      ++round_;
    }
    while (round_.load() == round) meanwhile();
  }

 private:
  std::uint32_t size_;
  std::atomic<std::uint32_t> arrived_{0};
  std::atomic<std::uint32_t> round_{0};
};

struct Board {
  std::array<Handle, kProcesses> handles;
  std::atomic<std::uint32_t> rails{0};
  ProcessBarrier pair{kProcesses};
  ProcessBarrier with_counter{kProcesses + 1};
};

void rest() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

class Process {
 public:
  Process(const Options& options, Board& board, std::uint32_t me) : options_(options), board_(board), me_(me) {}

  void run() {
    std::uint32_t done = 0;
    for (std::size_t i = 0; i < options_.shared_links.size(); ++i) {
      open(options_.shared_links[i]);
      meet_counter();  // only what a context has
      while (out_.size() < options_.channels / 2 || in_.size() < options_.channels / 2) open_channels();
      for (auto& channel : out_) carry(*channel, true);
      for (auto& channel : in_) carry(*channel, false);
      meet_counter();  // with all channels
      close_channels();
      meet_counter();  // with none
      const auto until = static_cast<std::uint32_t>(options_.cycles * (i + 1) / options_.shared_links.size());
      come_and_go(until - done);
      done = until;
      meet_counter();  // after they came and went
      listener_.reset();
      context_.reset();
      meet_counter();  // nothing at all
    }
  }

 private:
  void open(std::uint32_t shared_links) {
    auto settings = Settings::from_environment();
    if (!settings) give_up(settings.error().text());
    settings->shared_memory = "off";
    settings->workers = 1;
    settings->shared_links = shared_links;
    auto context = Context::open(*settings);
    if (!context) give_up(context.error().text());
    context_ = std::move(*context);
    auto listener = context_->listen();  // opens the rails
    if (!listener) give_up(listener.error().text());
    listener_ = std::move(*listener);
    board_.rails = static_cast<std::uint32_t>(context_->statistics().engines.front().rails.size());
    board_.handles[me_] = listener_->handle();
  }
  void meet_counter() {
    board_.with_counter.meet(rest);
    board_.with_counter.meet(rest);  // it has counted
  }

  /// One step of one channel each way.
  void open_channels() {
    if (out_.size() < options_.channels / 2) {
      if (!attempt_) attempt_ = board_.handles[1 - me_];
      auto channel = context_->connect(*attempt_);
      if (!channel) give_up("connect: " + channel.error().text());
      if (*channel) {
        out_.push_back(std::move(*channel));
        attempt_.reset();
      }
    }
    auto channel = listener_->accept();
    if (!channel) give_up("accept: " + channel.error().text());
    if (*channel) in_.push_back(std::move(*channel));
  }
  void carry(Channel& channel, bool sends) {
    const std::array slots{ReceiveSlot{message_, 0}};
    auto request = sends ? channel.send(message_, 0) : channel.receive(slots);
    if (!request || *request == nullptr) give_up("a message is refused");
    if (const auto done = channel.wait(*request); !done) give_up(done.error().text());
  }
  void close_channels() {
    board_.pair.meet(rest);  // nobody closes what the other still uses
    out_.clear();
    in_.clear();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (context_->statistics().routes != 0) {
      if (std::chrono::steady_clock::now() > until) give_up("links are left a minute after the last channel closed");
      rest();
    }
  }
  /// Each cycle makes its queue pairs anew: there is no other channel.
  void come_and_go(std::uint32_t cycles) {
    std::optional<Holdings> before;
    std::uint64_t resident = 0;
    const Options all = options_;
    options_.channels = 2;
    for (std::uint32_t cycle = 0; cycle < cycles; cycle += 2) {
      if (cycle >= cycles / 2 && !before) {  // what is kept for the next time is there by now
        before = Holdings::now();
        resident = resident_bytes();
      }
      while (out_.empty() || in_.empty()) open_channels();
      carry(*out_[0], true);
      carry(*in_[0], false);
      close_channels();
      board_.pair.meet(rest);
    }
    options_ = all;
    if (!before) return;
    if (const std::string left = Holdings::now().beyond(*before, kSlack); !left.empty())
      give_up("holds more than before:" + left);
    if (resident_bytes() > resident + kSlack)
      give_up(fmt::format("resident memory grew by {} bytes in {} cycles", resident_bytes() - resident, cycles / 2));
    fmt::print("{} bytes more of resident memory after the last {} cycles\n", resident_bytes() - resident, cycles / 2);
    std::fflush(stdout);
  }

  Options options_;
  Board& board_;
  std::uint32_t me_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Listener> listener_;
  std::optional<Handle> attempt_;
  std::vector<std::byte> message_ = std::vector<std::byte>(1000);  // always the same: registrations are kept
  std::vector<std::unique_ptr<Channel>> out_;
  std::vector<std::unique_ptr<Channel>> in_;
};

/// What the kernel says a process has.
struct Objects {
  std::size_t connected = 0;  ///< queue pairs of type RC
  std::size_t datagram = 0;   ///< and UD
  std::size_t completion_queues = 0;
  std::size_t others = 0;

  bool beyond(const Objects& before) const {
    return connected > before.connected || datagram > before.datagram || completion_queues > before.completion_queues ||
           others > before.others + (before.others == 0 ? 0 : kPools);
  }

  static Objects of(pid_t process) {
    Objects objects;
    objects.connected = rdma_objects("qp", process, " type RC ");
    objects.datagram = rdma_objects("qp", process, " type UD ");
    objects.completion_queues = rdma_objects("cq", process);
    objects.others = rdma_objects("pd", process) + rdma_objects("mr", process);
    return objects;
  }
  std::string text() const {
    return fmt::format("{} RC and {} UD queue pairs, {} completion queues, {} domains and regions", connected, datagram,
                       completion_queues, others);
  }
};

class Counter {
 public:
  Counter(const Options& options, Board& board, std::vector<pid_t> processes)
      : options_(options), board_(board), processes_(std::move(processes)) {}

  bool run() {
    for (const std::uint32_t shared_links : options_.shared_links) {
      const std::vector<Objects> idle = look();
      const std::uint32_t rails = board_.rails;
      expect(idle, 0, rails, "with no channel yet");
      const std::vector<Objects> busy = look();
      expect(busy, std::size_t{rails} * std::min(shared_links, options_.channels), rails,
             fmt::format("{} channels on {} shared links, {} rails", options_.channels, shared_links, rails));
      const std::vector<Objects> closed = look();
      expect(closed, 0, rails, "all channels closed");
      expect_no_more(look(), closed, fmt::format("{} cycles later", options_.cycles / options_.shared_links.size()));
      expect_no_more(look(), std::vector<Objects>(kProcesses), "all closed");
    }
    return good_;
  }

 private:
  /// Waits for the processes, counts, and lets them go on.
  std::vector<Objects> look() {
    board_.with_counter.meet([this] { check_alive(); });
    std::vector<Objects> seen;
    for (const pid_t process : processes_) seen.push_back(Objects::of(process));
    board_.with_counter.meet(rest);
    return seen;
  }
  void check_alive() {
    rest();
    int status = 0;
    if (::waitpid(-1, &status, WNOHANG) <= 0) return;
    for (const pid_t process : processes_) ::kill(process, SIGKILL);
    give_up("a process ended too early");
  }
  void expect(const std::vector<Objects>& seen, std::size_t connected, std::size_t rails, const std::string& when) {
    for (const Objects& objects : seen) {
      const bool right =
          objects.connected == connected && objects.datagram == rails && objects.completion_queues == rails;
      fmt::print("{}: {}{}\n", when, objects.text(), right ? "" : fmt::format(", not {} and {}", connected, rails));
      good_ = good_ && right;
    }
  }
  void expect_no_more(const std::vector<Objects>& seen, const std::vector<Objects>& before, const std::string& when) {
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const bool right = !seen[i].beyond(before[i]);
      fmt::print("{}: {}{}\n", when, seen[i].text(), right ? "" : ", not " + before[i].text());
      good_ = good_ && right;
    }
    std::fflush(stdout);
  }

  Options options_;
  Board& board_;
  std::vector<pid_t> processes_;
  bool good_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"counts the queue pairs of two processes with many channels"};
  app.add_option("--channels", options.channels);
  app.add_option("--shared-links", options.shared_links, "one after another")->delimiter(',');
  app.add_option("--cycles", options.cycles, "of connect and close, shared out over these");
  CLI11_PARSE(app, argc, argv);

  auto* const board =
      new (::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board;
  std::vector<pid_t> children;
  for (std::uint32_t me = 0; me < kProcesses; ++me) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    Process(options, *board, me).run();
    std::exit(0);
  }
  bool good = Counter(options, *board, children).run();
  for (const pid_t child : children) {
    int status = 0;
    good = ::waitpid(child, &status, 0) == child && status == 0 && good;
  }
  fmt::print("{}\n", good ? "all well" : "not well");
  return good ? 0 : 1;
}
