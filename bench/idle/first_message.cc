/// The first message after both sides have been idle, beside a wake-up without Railyard in the same processes:
/// README.md.
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "railyard/window.hpp"

namespace {

using railyard::Comparison;
using railyard::Window;
using railyard::World;

constexpr int kFollowing = 20;  ///< round trips right after the first: what is usual
constexpr int kWarm = 4;        ///< of these are not counted

struct Options {
  std::int64_t idle_ms = 1000;
  int rounds = 31;
  bool pipe = false;  ///< the wake-up to compare with: a byte in a pipe, the answer in shared memory. Else TCP sockets
};

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

template <class T>
T must(railyard::Result<T> result) {
  if (!result) throw std::runtime_error(result.error().text());
  return std::move(*result);
}
void must(railyard::Result<void> result) {
  if (!result) throw std::runtime_error(result.error().text());
}

/// One way to exchange 8 bytes: rank 0 asks, rank 1 answers with the time at which it saw the question.
class Way {
 public:
  virtual ~Way() = default;
  virtual std::int64_t ask(bool asleep) = 0;  ///< whether the peer sleeps; waits awake; what the answer holds
  virtual void answer(bool asleep) = 0;       ///< waits in the kernel, or awake
};

class Ours final : public Way {
 public:
  Ours(Window& window, int peer) : window_(window), peer_(peer) {}
  std::int64_t ask(bool /*asleep*/) override {
    must(window_.put_signal(peer_, 0, &sent_, sizeof sent_, {.index = 0}));
    must(window_.wait_signal(0, Comparison::greater_equal, ++count_));
    std::int64_t held = 0;
    std::memcpy(&held, window_.local().data(), sizeof held);
    return held;
  }
  void answer(bool /*asleep*/) override {  // it falls asleep by itself
    must(window_.wait_signal(0, Comparison::greater_equal, ++count_, railyard::Deadline::never()));
    sent_ = now();
    must(window_.put_signal(peer_, 0, &sent_, sizeof sent_, {.index = 0}));
  }

 private:
  Window& window_;
  int peer_;
  std::uint64_t count_ = 0;
  std::int64_t sent_ = 0;
};

void sleep_on(int descriptor) {
  pollfd watched{descriptor, POLLIN, 0};
  while (::poll(&watched, 1, -1) < 1)
    if (errno != EINTR) fail("poll");
}

/// Awake, but not for ever on a core that the peer may need.
template <class Done>
void spin(Done done) {
  constexpr std::int64_t kSpin = 200'000;  // nanoseconds
  for (const std::int64_t begin = now(); !done();)
    if (now() - begin > kSpin) ::sched_yield();
}

class Sockets final : public Way {
 public:
  explicit Sockets(int socket) : socket_(socket) {
    const int one = 1;
    if (::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0) fail("TCP_NODELAY");
  }
  ~Sockets() override { ::close(socket_); }
  std::int64_t ask(bool /*asleep*/) override {
    send(0);
    return receive();
  }
  void answer(bool asleep) override {
    if (asleep) sleep_on(socket_);
    receive();
    send(now());
  }

 private:
  void send(std::int64_t word) const {
    if (::send(socket_, &word, sizeof word, MSG_NOSIGNAL) != sizeof word) fail("send");
  }
  std::int64_t receive() const {
    std::int64_t word = 0;
    spin([&] {
      const ssize_t got = ::recv(socket_, &word, sizeof word, MSG_DONTWAIT);
      if (got != sizeof word && errno != EAGAIN) fail("recv");
      return got == sizeof word;
    });
    return word;
  }

  int socket_;
};

/// Two words in shared memory, and a pipe to wake whoever sleeps.
class Pipe final : public Way {
 public:
  struct Words {
    alignas(128) std::atomic<std::int64_t> asked;
    alignas(128) std::atomic<std::int64_t> answered;
  };
  Pipe(int pipe, int memory) : pipe_(pipe) {
    void* const mapped = ::mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (mapped == MAP_FAILED) fail("mmap");
    words_ = static_cast<Words*>(mapped);
  }
  std::int64_t ask(bool asleep) override {
    words_->asked.store(1, std::memory_order_release);
    if (asleep && ::write(pipe_, "", 1) != 1) fail("write");
    return take(words_->answered);
  }
  void answer(bool asleep) override {
    char byte = 0;
    if (asleep) sleep_on(pipe_);
    if (asleep && ::read(pipe_, &byte, 1) != 1) fail("read");
    take(words_->asked);
    words_->answered.store(now(), std::memory_order_release);
  }

 private:
  static std::int64_t take(std::atomic<std::int64_t>& word) {
    std::int64_t held = 0;
    spin([&] { return (held = word.load(std::memory_order_acquire)) != 0; });
    word.store(0, std::memory_order_relaxed);
    return held;
  }

  int pipe_;
  Words* words_ = nullptr;
};

/// What rank 1 tells rank 0 of itself, so that the two meet without Railyard.
struct Rendezvous {
  std::uint16_t port = 0;
  std::int32_t process = 0;
  std::int32_t pipe = -1;
  std::int32_t memory = -1;
};

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = port;
  return address;
}

int reopen(std::int32_t process, std::int32_t descriptor, int flags) {
  const int opened = ::open(fmt::format("/proc/{}/fd/{}", process, descriptor).c_str(), flags | O_CLOEXEC);
  if (opened < 0) fail("open of the other rank's descriptor");
  return opened;
}

/// Rank 1's half.
std::unique_ptr<Way> offer(Window& window, bool pipe) {
  Rendezvous rendezvous;
  rendezvous.process = ::getpid();
  int ends[2] = {-1, -1};
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0 || ::pipe2(ends, O_CLOEXEC) != 0)
    fail("a socket and a pipe");
  rendezvous.port = address.sin_port;
  rendezvous.pipe = ends[1];
  rendezvous.memory = ::memfd_create("first-message", MFD_CLOEXEC);
  if (::ftruncate(rendezvous.memory, sizeof(Pipe::Words)) != 0) fail("shared memory");
  must(window.put_signal(0, sizeof(std::int64_t), &rendezvous, sizeof rendezvous, {.index = 1}));
  must(window.quiet());
  if (pipe) return std::make_unique<Pipe>(ends[0], rendezvous.memory);
  const int accepted = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (accepted < 0) fail("accept");
  ::close(listener);
  return std::make_unique<Sockets>(accepted);
}

/// Rank 0's.
std::unique_ptr<Way> take_up(Window& window, bool pipe) {
  must(window.wait_signal(1, Comparison::greater_equal, 1));
  Rendezvous rendezvous;
  std::memcpy(&rendezvous, window.local().data() + sizeof(std::int64_t), sizeof rendezvous);
  if (pipe) {
    return std::make_unique<Pipe>(reopen(rendezvous.process, rendezvous.pipe, O_WRONLY),
                                  reopen(rendezvous.process, rendezvous.memory, O_RDWR));
  }
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(rendezvous.port);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
  return std::make_unique<Sockets>(socket);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Figures {
  std::vector<double> first;  ///< microseconds, there and back
  std::vector<double> there;  ///< of these, until the sleeper's thread had it
  std::vector<double> usual;
};

void measure(Way& way, const Options& options, Figures& into) {
  std::this_thread::sleep_for(std::chrono::milliseconds(options.idle_ms));
  const std::int64_t begin = now();
  const std::int64_t seen = way.ask(true);
  into.first.push_back(static_cast<double>(now() - begin) * 1e-3);
  into.there.push_back(static_cast<double>(seen - begin) * 1e-3);
  for (int i = 0; i < kFollowing; ++i) {
    const std::int64_t start = now();
    way.ask(false);
    if (i >= kWarm) into.usual.push_back(static_cast<double>(now() - start) * 1e-3);
  }
}

void run(const Options& options) {
  World world = must(World::open());
  if (world.size() != 2) throw std::runtime_error("two ranks, please: railyard launch -n 2 -- ...");
  Window window = must(Window::allocate(world, 4096));
  const bool asks = world.rank() == 0;
  Ours ours(window, 1 - world.rank());
  const std::unique_ptr<Way> bare = asks ? take_up(window, options.pipe) : offer(window, options.pipe);
  Figures of_ours;
  Figures of_bare;
  // Right before one first message the other's were the last that ran: both are cold alike.
  for (int round = 0; round < options.rounds; ++round) {
    for (Way* way : {static_cast<Way*>(&ours), bare.get()}) {
      if (asks)
        measure(*way, options, way == &ours ? of_ours : of_bare);
      else
        for (int i = 0; i <= kFollowing; ++i) way->answer(i == 0);
    }
  }
  if (asks) {
    const double wake_up = median(of_bare.first) - median(of_bare.usual);
    const double bar = 1.2 * median(of_ours.usual) + wake_up;
    const auto line = [](const char* name, const Figures& figures) {
      fmt::print("{:8} first {:7.1f} us (there {:6.1f})   usual {:7.2f} us\n", name, median(figures.first),
                 median(figures.there), median(figures.usual));
    };
    fmt::print("idle {} ms, medians of {}\n", options.idle_ms, options.rounds);
    line("ours", of_ours);
    line(options.pipe ? "pipe" : "sockets", of_bare);
    fmt::print("bar {:.1f} us: 1.2 x {:.2f} + a wake-up of {:.1f}; ours / bar {:.2f}\n", bar, median(of_ours.usual),
               wake_up, median(of_ours.first) / bar);
  }
  must(window.close());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("The first message after both sides have been idle");
  app.add_option("--idle-ms", options.idle_ms, "Time without a message before each")->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds, "First messages")->check(CLI::Range(1, 100'000));
  app.add_flag("--pipe", options.pipe, "Beside a byte in a pipe and a word in shared memory; else beside TCP sockets");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "first-message: {}\n", error.what());
    return 1;
  }
  return 0;
}
