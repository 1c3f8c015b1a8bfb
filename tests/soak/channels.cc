/// Soak: channels between processes come and go for some seconds. Each process connects to each other one again and
/// again, sends messages of all sizes that say whose they are, closes from either end, at times with messages under
/// way. At the end every process must hold what it held after its first round: descriptors, mappings, shared memory;
/// and its resident memory must not have grown. Exits 1 if anything was lost, mixed up or left. `channels --seconds 60
/// --seed 7`
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/random.hpp"
#include "holdings.hpp"
#include "railyard/channel.hpp"
#include "railyard/context.hpp"

namespace {

using namespace railyard;        // NOLINT(google-build-using-namespace)
using namespace railyard::soak;  // NOLINT(google-build-using-namespace)
using SoakClock = std::chrono::steady_clock;

constexpr std::size_t kMostProcesses = 8;
constexpr std::uint64_t kSlack = 8 << 20U;

struct Options {
  double seconds = 10;
  std::uint64_t seed = 1;
  std::uint32_t processes = 3;
  std::uint32_t rails = 2;
  std::uint32_t shared_links = 1;
  bool memory = false;
};

struct Board {
  std::array<Handle, kMostProcesses> handles;
  std::atomic<std::uint32_t> listening;
  std::atomic<std::uint32_t> finished;
  std::atomic<std::uint64_t> channels;
  std::atomic<std::uint64_t> messages;
};

[[noreturn]] void give_up(std::uint32_t me, const std::string& what) {
  fmt::print(stderr, "channels: process {}: {}\n", me, what);
  ::_exit(1);
}

/// What every message is: whose, which, how long; then bytes that follow from the seed.
struct Head {
  std::uint32_t from = 0;
  std::uint32_t seed = 0;
  std::uint64_t bytes = 0;
};
void fill(std::span<std::byte> message, std::uint32_t from, std::uint32_t seed) {
  std::uint32_t state = seed | 1U;
  for (std::byte& byte : message) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24U);
  }
  const Head head{from, seed, message.size()};
  std::memcpy(message.data(), &head, sizeof head);
}
bool intact(std::span<const std::byte> message) {
  Head head;
  std::memcpy(&head, message.data(), sizeof head);
  if (head.bytes != message.size()) return false;
  std::vector<std::byte> expected(message.size());
  fill(expected, head.from, head.seed);
  return std::memcmp(expected.data(), message.data(), message.size()) == 0;
}

/// A channel that this process uses: it sends what it has to and takes what comes, until it is closed from either end.
class Line {
 public:
  Line(std::unique_ptr<Channel> channel, std::uint32_t me, bool connector, Random& random)
      : channel_(std::move(channel)), me_(me), left_(connector ? 1 + random.below(20) : 0), connector_(connector) {}

  /// False: it is over.
  bool turn(Random& random, Board& board) {
    if (receive_ == nullptr) {
      target_.resize(kMostBytes);
      const std::array slots{ReceiveSlot{target_, 0}};
      const auto receive = channel_->receive(slots);
      if (!receive) return false;
      receive_ = *receive;
    }
    if (send_ == nullptr && (left_ > 0 || answers_ > 0)) {
      if (!send(random)) return false;
    }
    std::array<std::uint64_t, 1> size{};
    if (receive_ != nullptr) {
      const auto done = channel_->test(receive_, size);
      if (!done) return false;
      if (*done) {
        receive_ = nullptr;
        if (size[0] < sizeof(Head) || !intact(std::span(target_).first(size[0])))
          give_up(me_, "a message is not intact");
        board.messages.fetch_add(1, std::memory_order_relaxed);
        if (!connector_) ++answers_;
      }
    }
    if (send_ != nullptr) {
      const auto done = channel_->test(send_);
      if (!done) return false;
      if (*done) send_ = nullptr;
    }
    // Its work is done, or it has had enough in the middle of it.
    const bool finished = connector_ && left_ == 0 && send_ == nullptr;
    return !finished && !random.chance(0.0005);
  }

 private:
  static constexpr std::size_t kMostBytes = 300'000;
  bool send(Random& random) {
    const std::size_t most = random.chance(0.8) ? 4000 : kMostBytes;
    source_.resize(sizeof(Head) + random.below(most - sizeof(Head)));
    fill(source_, me_, static_cast<std::uint32_t>(random.next()));
    const auto sent = channel_->send(source_, 0);
    if (!sent) return false;
    send_ = *sent;
    if (send_ != nullptr) --(left_ > 0 ? left_ : answers_);
    return true;
  }

  // The channel goes before the memory of what it has under way.
  std::vector<std::byte> source_;
  std::vector<std::byte> target_;
  std::unique_ptr<Channel> channel_;
  std::uint32_t me_;
  std::uint64_t left_;
  std::uint64_t answers_ = 0;
  bool connector_;
  Request* send_ = nullptr;
  Request* receive_ = nullptr;
};

class Process {
 public:
  Process(const Options& options, Board& board, std::uint32_t me)
      : options_(options), board_(board), me_(me), random_(options.seed * 1000 + me) {}

  void run() {
    Settings settings;
    settings.interfaces = "lo";
    settings.rails = options_.rails;
    settings.shared_memory = options_.memory ? "on" : "off";
    settings.shared_memory_directory = std::getenv("RAILYARD_SHARED_MEMORY_DIRECTORY");
    settings.shared_links = options_.shared_links;
    settings.log = "error";
    auto context = Context::open(settings);
    if (!context) give_up(me_, context.error().text());
    context_ = std::move(*context);
    auto listener = context_->listen();
    if (!listener) give_up(me_, listener.error().text());
    listener_ = std::move(*listener);
    board_.handles[me_] = listener_->handle();
    board_.listening.fetch_add(1);
    while (board_.listening.load() != options_.processes) std::this_thread::yield();

    const auto start = SoakClock::now();
    const auto end = start + std::chrono::duration<double>(options_.seconds);
    churn(start + std::chrono::duration<double>(options_.seconds * 0.2));
    rest();
    const Holdings before = Holdings::now();
    const std::uint64_t resident = resident_bytes();
    churn(end);
    rest();
    const std::uint64_t growth = resident_bytes() > resident ? resident_bytes() - resident : 0;
    std::string left = Holdings::now().beyond(before, kSlack);
    // Connections end when both sides have seen it.
    for (const auto until = SoakClock::now() + std::chrono::seconds(5); !left.empty() && SoakClock::now() < until;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      left = Holdings::now().beyond(before, kSlack);
    }
    if (!left.empty()) give_up(me_, "holds more than before:" + left);
    if (growth > 4 * kSlack) give_up(me_, fmt::format("resident memory grew by {} bytes", growth));
    fmt::print("process {}: {} channels opened, {} bytes of growth\n", me_, context_->statistics().channels_opened,
               growth);
    std::fflush(stdout);
  }

 private:
  template <typename Time>
  void churn(Time until) {
    while (SoakClock::now() < until) {
      if (lines_.size() < 12) connect();
      turn();
    }
  }
  void connect() {
    const auto other =
        static_cast<std::uint32_t>((me_ + 1 + random_.below(options_.processes - 1)) % options_.processes);
    if (!attempts_[other].has_value()) attempts_[other] = board_.handles[other];
    auto channel = context_->connect(*attempts_[other]);
    if (!channel) give_up(me_, "connect: " + channel.error().text());
    if (*channel == nullptr) {
      if (!random_.chance(0.001)) return;
      context_->abandon(*attempts_[other]);
    } else {
      lines_.push_back(std::make_unique<Line>(std::move(*channel), me_, true, random_));
      board_.channels.fetch_add(1);
    }
    attempts_[other].reset();
  }
  void turn() {
    auto accepted = listener_->accept();
    if (!accepted) give_up(me_, "accept: " + accepted.error().text());
    if (*accepted) lines_.push_back(std::make_unique<Line>(std::move(*accepted), me_, false, random_));
    std::erase_if(lines_, [this](const auto& line) { return !line->turn(random_, board_); });
  }
  /// Closes everything and lets the others do so too.
  void rest() {
    for (auto& attempt : attempts_) {
      if (attempt) context_->abandon(*attempt);
      attempt.reset();
    }
    lines_.clear();
    const std::uint32_t goal = ++rests_ * options_.processes;
    board_.finished.fetch_add(1);
    while (board_.finished.load() < goal) turn();
    const auto until = SoakClock::now() + std::chrono::seconds(20);
    for (;;) {
      lines_.clear();
      turn();
      const ContextStatistics statistics = context_->statistics();
      if (lines_.empty() && statistics.routes == 0 && statistics.channels == 0) break;
      if (SoakClock::now() > until) {
        give_up(me_, fmt::format("{} channels and {} routes are left", statistics.channels, statistics.routes));
      }
    }
    board_.finished.fetch_add(1);
    while (board_.finished.load() < goal + options_.processes) turn();
    ++rests_;
  }

  Options options_;
  Board& board_;
  std::uint32_t me_;
  Random random_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Listener> listener_;
  std::array<std::optional<Handle>, kMostProcesses> attempts_;
  std::vector<std::unique_ptr<Line>> lines_;
  std::uint32_t rests_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"channels that come and go between processes"};
  app.add_option("--seconds", options.seconds);
  app.add_option("--seed", options.seed);
  app.add_option("--processes", options.processes)->check(CLI::Range(std::size_t{2}, kMostProcesses));
  app.add_option("--rails", options.rails);
  app.add_option("--shared-links", options.shared_links);
  app.add_flag("--memory", options.memory, "peers on this host use shared memory");
  CLI11_PARSE(app, argc, argv);

  const SharedMemoryDirectory memory;
  auto* const board =
      new (::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board;
  std::vector<pid_t> children;
  for (std::uint32_t me = 0; me < options.processes; ++me) {
    const pid_t child = ::fork();
    if (child == 0) {
      {
        Process process(options, *board, me);
        process.run();
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  bool good = true;
  while (!children.empty()) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    std::erase(children, ended);
    if (status == 0 && ended > 0) continue;
    good = false;
    // The others would wait for it.
    for (const pid_t child : children) ::kill(child, SIGKILL);
  }
  for (const std::string& name : memory.objects()) {
    fmt::print(stderr, "channels: {}/{} is left\n", memory.path(), name);
    good = false;
  }
  fmt::print("{} channels, {} messages, {}\n", board->channels.load(), board->messages.load(),
             good ? "all well" : "not well");
  return good ? 0 : 1;
}
