#include "bootstrap/client.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "base/entropy.hpp"
#include "base/log.hpp"
#include "base/random.hpp"
#include "bootstrap/client_core.hpp"

namespace railyard::bootstrap {

namespace {

constexpr std::int64_t kForever = INT64_MAX;
constexpr std::int64_t kShortestPauseNs = 5'000'000;
constexpr std::int64_t kLongestPauseNs = 500'000'000;
/// The longest that one attempt to connect may take: a lost packet must not cost the whole deadline.
constexpr std::int64_t kAttemptNs = 5'000'000'000;
/// How long saying good-bye may take.
constexpr std::int64_t kLeaveNs = 1'000'000'000;
constexpr std::size_t kReadBytes = 64 * 1024;

std::int64_t after(std::int64_t now_ns, std::int64_t duration_ns) {
  return duration_ns > kForever - now_ns ? kForever : now_ns + duration_ns;
}

/// The rendezvous watches the deadline and names who is missing; the rank itself gives up only when no answer comes a
/// while after that.
std::int64_t grace(std::int64_t timeout_ns) {
  return 1'000'000'000 + std::min<std::int64_t>(timeout_ns / 10, 4'000'000'000);
}

std::vector<std::byte> own_name() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string name = fmt::format("pid {} on {}", getpid(), host.data());
  const auto bytes = std::as_bytes(std::span(name));
  return {bytes.begin(), bytes.end()};
}

std::string all_addresses(const ClientOptions& options) {
  std::string all = options.address.text();
  for (const Address& other : options.others) all += ", " + other.text();
  return all;
}

class Client final : public Bootstrap {
 public:
  explicit Client(ClientOptions options) : options_(std::move(options)), where_(all_addresses(options_)) {}
  ~Client() override {
    if (!core_) return;
    core_->leave();
    const std::int64_t by = after(clock_.now(), kLeaveNs);
    while (!core_->outgoing().empty() && !socket_error_ && exchange(by)) {
    }
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::string describe() const override {
    return options_.description.empty() ? "tcp " + where_ : options_.description;
  }

  /// Tries until the deadline: the rendezvous may not be up yet, or be that of this job's last rank group.
  Result<void> join() {
    const std::int64_t deadline = after(clock_.now(), options_.timeout_ns);
    Random jitter(static_cast<std::uint64_t>(clock_.now()) + static_cast<std::uint64_t>(options_.rank));
    std::int64_t pause = kShortestPauseNs;
    std::string last = "no attempt was made";
    while (clock_.now() < deadline) {
      auto attempt = attempt_to_join(deadline);
      if (attempt) return {};
      // A refusal or failure was said by somebody; anything else may pass.
      if (said_no_) return attempt;
      last = attempt.error().message();
      const std::int64_t rest = std::max<std::int64_t>(deadline - clock_.now(), 0);
      sleep(std::min(rest, pause / 2 + static_cast<std::int64_t>(jitter.below(static_cast<std::uint64_t>(pause)))));
      pause = std::min(pause * 3 / 2, kLongestPauseNs);
    }
    return Error(
        Status::timeout,
        fmt::format("rank {} could not join the rendezvous at {} within {} (last: {}); check that rank 0 or the "
                    "launcher runs there and that RAILYARD_RENDEZVOUS is right",
                    options_.rank, where_, show_duration(static_cast<std::uint64_t>(options_.timeout_ns)), last),
        {.operation = "bootstrap"});
  }

  Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, Deadline deadline) override {
    if (mine.size() > kMostContribution) {
      return Error(Status::out_of_range,
                   fmt::format("a contribution of {} bytes to an allgather is too long: at most {}", mine.size(),
                               kMostContribution));
    }
    auto result = call(Call::allgather, {mine.begin(), mine.end()}, deadline);
    if (!result) return std::move(result.error());
    return std::move(result->contributions);
  }

  Result<void> barrier(Deadline deadline) override {
    auto result = call(Call::barrier, {}, deadline);
    if (!result) return std::move(result.error());
    return {};
  }

 private:
  static void sleep(std::int64_t nanoseconds) {
    const timespec pause{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
    nanosleep(&pause, nullptr);
  }

  Result<void> attempt_to_join(std::int64_t deadline) {
    said_no_ = false;
    core_.reset();
    socket_error_.reset();
    const std::size_t turn = attempts_++ % (options_.others.size() + 1);
    const Address& address = turn == 0 ? options_.address : options_.others[turn - 1];
    auto socket = connect_to(address, std::min(deadline, after(clock_.now(), kAttemptNs)));
    if (!socket) return std::move(socket.error());
    socket_ = std::move(*socket);
    Nonce nonce;
    if (auto filled = fill_random(nonce); !filled) {
      said_no_ = true;
      return filled;
    }
    core_.emplace(ClientCoreOptions{options_.rank, options_.size, options_.job_key, where_, nonce});
    const std::int64_t handshake_by = std::min(deadline, after(clock_.now(), 2 * kAttemptNs));
    while (!core_->welcomed()) {
      if (core_->failure()) {
        said_no_ = true;
        return core_->failure()->copy();
      }
      if (socket_error_) return Error(Status::io, *socket_error_);
      if (!exchange(handshake_by)) return Error(Status::timeout, "it accepted the connection and did not answer");
    }
    const std::int64_t left = std::max<std::int64_t>(deadline - clock_.now(), 0);
    auto joined = call(Call::join, own_name(), Deadline::in(std::chrono::nanoseconds(left)));
    // A rendezvous that goes away now is that of the last rank group; the next one may come.
    said_no_ = !socket_error_.has_value();
    if (!joined && !said_no_) broken_.reset();
    if (!joined) return std::move(joined.error());
    return {};
  }

  Result<GatherResult> call(Call call, std::vector<std::byte> contribution, Deadline deadline) {
    // The analyzer loses sight of what it moved into a variant.
    if (broken_) return broken_->copy();  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
    const std::int64_t timeout_ns = deadline.nanoseconds(options_.timeout_ns);
    const std::int64_t by = after(after(clock_.now(), timeout_ns), grace(timeout_ns));
    core_->enter(call, timeout_ns == kForever ? Enter::kNoTimeout : static_cast<std::uint64_t>(timeout_ns),
                 std::move(contribution));
    for (;;) {
      if (auto result = core_->take_result()) return std::move(*result);
      if (core_->failure()) return give_up(*core_->failure());
      if (socket_error_) {
        return give_up(Error(Status::peer_lost,
                             fmt::format("the rendezvous at {} is gone ({}): the process that served it, rank 0 or the "
                                         "launcher, ended or closed its bootstrap",
                                         where_, *socket_error_),
                             {.operation = to_string(call)}));
      }
      if (!exchange(by)) {
        return give_up(
            Error(Status::timeout,
                  fmt::format("the rendezvous at {} did not answer a {} within {}; check that its host is up", where_,
                              to_string(call), show_duration(static_cast<std::uint64_t>(timeout_ns))),
                  {.operation = to_string(call)}));
      }
    }
  }

  Error give_up(const Error& error) {
    broken_.emplace(error.copy());
    return error.copy();  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
  }

  /// Waits until bytes can move and moves some. False when the deadline passed before that.
  bool exchange(std::int64_t deadline) {
    pollfd wait{socket_.get(), static_cast<short>(core_->outgoing().empty() ? POLLIN : POLLIN | POLLOUT), 0};
    const std::int64_t now = clock_.now();
    if (now >= deadline) return false;
    const std::int64_t left_ms = deadline == kForever ? 3'600'000 : (deadline - now + 999'999) / 1'000'000;
    const int ready = poll(&wait, 1, static_cast<int>(std::min<std::int64_t>(left_ms, 3'600'000)));
    if (ready <= 0) return true;
    // Reading first: a refusal that came before the connection broke must be heard.
    if ((wait.revents & (POLLIN | POLLHUP | POLLERR)) != 0) receive_some();
    if ((wait.revents & POLLOUT) != 0 && !socket_error_) send_some();
    return true;
  }

  void receive_some() {
    const ssize_t count = ::recv(socket_.get(), buffer_.data(), buffer_.size(), 0);
    if (count > 0) {
      core_->received(std::span(buffer_).first(static_cast<std::size_t>(count)));
    } else if (count == 0) {
      socket_error_ = "it closed the connection";
    } else if (errno != EAGAIN && errno != EINTR) {
      socket_error_ = std::strerror(errno);
    }
  }

  void send_some() {
    const auto bytes = core_->outgoing();
    const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      core_->sent(static_cast<std::size_t>(count));
    } else if (errno != EAGAIN && errno != EINTR && errno != EPIPE && errno != ECONNRESET) {
      // A pipe that broke shows in the next read, behind whatever the other side said last.
      socket_error_ = std::strerror(errno);
    }
  }

  const ClientOptions options_;
  const std::string where_;
  SteadyClock clock_;
  Fd socket_;
  std::optional<ClientCore> core_;
  std::optional<std::string> socket_error_;  ///< the connection is of no more use
  std::optional<Error> broken_;              ///< what ended this bootstrap
  std::size_t attempts_ = 0;                 ///< to join: each tries the next address
  bool said_no_ = false;                     ///< the last attempt ended for a reason that will not pass
  std::array<std::byte, kReadBytes> buffer_;
};

}  // namespace

Result<std::unique_ptr<Bootstrap>> open_client(const ClientOptions& options) {
  if (options.job_key.empty()) {
    return Error(Status::invalid, "no job key: set RAILYARD_JOB_KEY to the same secret on every rank");
  }
  if (options.address.kind == Address::Kind::tcp && options.address.port == 0) {
    return Error(Status::invalid, fmt::format("nobody can meet at port 0 of '{}': name a port in RAILYARD_RENDEZVOUS",
                                              options.address.host));
  }
  if (options.size < 1 || options.size > kMostRanks || options.rank < 0 || options.rank >= options.size) {
    return Error(Status::out_of_range, fmt::format("rank {} is outside a job of {} ranks (at most {})", options.rank,
                                                   options.size, kMostRanks));
  }
  auto client = std::make_unique<Client>(options);
  if (auto joined = client->join(); !joined) return std::move(joined.error());
  log_debug("rank {} of {} has joined at {}", options.rank, options.size, options.address.text());
  return std::unique_ptr<Bootstrap>(std::move(client));
}

}  // namespace railyard::bootstrap
