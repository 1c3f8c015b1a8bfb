#include "bootstrap/client.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "bootstrap/protocol.hpp"
#include "rendezvous/connector.hpp"

namespace railyard::bootstrap {

using rendezvous::EpollSet;
using rendezvous::Failure;
using rendezvous::Frame;

namespace {

constexpr std::int64_t kForever = INT64_MAX;
/// How long the rendezvous may take to prove itself: a lost packet or a process that is stopped must not cost the whole
/// deadline.
constexpr std::int64_t kProofNs = 10'000'000'000;
/// How long saying good-bye may take.
constexpr std::int64_t kLeaveNs = 1'000'000'000;

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
  Client(ClientOptions options, std::unique_ptr<EpollSet> set)
      : options_(std::move(options)), where_(all_addresses(options_)), set_(std::move(set)) {}
  ~Client() override {
    if (!connector_ || !connector_->proven()) return;
    connector_->send(kLeave, {});
    const std::int64_t by = after(set_->now(), kLeaveNs);
    while (connector_->anything_outgoing() && advance(by)) {
    }
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::string describe() const override {
    return options_.description.empty() ? "tcp " + where_ : options_.description;
  }

  /// Tries until the deadline: the rendezvous may not be up yet, or be that of this job's last rank group.
  Result<void> join() {
    const std::int64_t deadline = after(set_->now(), options_.timeout_ns);
    rendezvous::ConnectorOptions options;
    options.protocol = rendezvous::Protocol::job;
    options.claim = encode(Claim{options_.rank, options_.size});
    options.key = options_.job_key;
    options.most_frame = kMostFrameToClient;
    options.endpoints = [this] { return endpoints(); };
    options.first = [this, deadline] {
      const std::int64_t left = std::max<std::int64_t>(deadline - set_->now(), 0);
      return rendezvous::make_frame(kEnter, encode(start_call(Call::join, left, own_name())));
    };
    options.on_frame = [this](Frame& frame) { hear(frame); };
    options.deadline_ns = deadline;
    options.grace_ns = grace(options_.timeout_ns);
    options.proof_ns = kProofNs;
    options.patient = true;
    connector_.emplace(*set_, set_->new_id(), std::move(options));
    connector_->start();
    while (!result_ && !connector_->failure() && !nonsense_) advance(kForever);
    if (!result_) return give_up(why_not_joined());
    result_.reset();
    connector_->establish();
    return {};
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
  Result<std::vector<rendezvous::Endpoint>> endpoints() const {
    auto all = rendezvous::resolve(options_.address);
    for (const Address& other : options_.others) {
      auto more = rendezvous::resolve(other);
      if (!more) continue;
      if (!all) all = std::vector<rendezvous::Endpoint>();
      all->insert(all->end(), more->begin(), more->end());
    }
    return all;
  }

  Enter start_call(Call call, std::int64_t timeout_ns, std::vector<std::byte> contribution) {
    call_ = call;
    return {call, sequence_, timeout_ns == kForever ? Enter::kNoTimeout : static_cast<std::uint64_t>(timeout_ns),
            std::move(contribution)};
  }

  void hear(const Frame& frame) {
    auto result = frame.type == kResult ? parse_result(frame.payload, options_.size) : std::nullopt;
    if (!result || !call_ || result->call != *call_ || result->sequence != sequence_) {
      nonsense_ = true;
      return;
    }
    result_ = std::move(result);
    call_.reset();
    ++sequence_;
  }

  Error why_not_joined() const {
    if (nonsense_) return senseless();
    const Failure& failure = *connector_->failure();
    const auto& [status, peer, text] = failure.complaint;
    const auto error = [&, status = status, peer = peer](std::string message) {
      return Error(status, std::move(message), {.peer = peer, .operation = "bootstrap"});
    };
    switch (failure.kind) {
      case Failure::Kind::refused:
        return error(fmt::format("the rendezvous at {} refused rank {}: {}", where_, options_.rank, text));
      case Failure::Kind::foreign:
        return error(fmt::format("what answers at {} is no rendezvous of Railyard: {}; check RAILYARD_RENDEZVOUS",
                                 where_, text));
      case Failure::Kind::version:
        return error(fmt::format("the rendezvous at {} is of another release: {}", where_, text));
      case Failure::Kind::wrong_key:
        return error(
            fmt::format("the rendezvous at {} does not know the job key: set RAILYARD_JOB_KEY to the same secret on "
                        "every rank, and check RAILYARD_RENDEZVOUS",
                        where_));
      case Failure::Kind::forged:
        return error(fmt::format("a message from the rendezvous at {} was changed on its way", where_));
      case Failure::Kind::told:
        return error(text);
      case Failure::Kind::late:
      case Failure::Kind::unreachable:
      case Failure::Kind::nobody:
      case Failure::Kind::lost:
        break;
    }
    return error(
        fmt::format("rank {} could not join the rendezvous at {} within {} (last: {}); check that rank 0 or the "
                    "launcher runs there and that RAILYARD_RENDEZVOUS is right",
                    options_.rank, where_, show_duration(static_cast<std::uint64_t>(options_.timeout_ns)), text));
  }

  Error senseless() const {
    return Error(Status::io,
                 fmt::format("the rendezvous at {} sent a message that makes no sense at this point", where_),
                 {.operation = "bootstrap"});
  }

  Result<GatherResult> call(Call call, std::vector<std::byte> contribution, Deadline deadline) {
    // The analyzer loses sight of what it moved into a variant.
    if (broken_) return broken_->copy();  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
    const std::int64_t timeout_ns = deadline.nanoseconds(options_.timeout_ns);
    const std::int64_t by = after(after(set_->now(), timeout_ns), grace(timeout_ns));
    connector_->send(kEnter, encode(start_call(call, timeout_ns, std::move(contribution))));
    for (;;) {
      if (result_) return std::move(*std::exchange(result_, std::nullopt));
      if (nonsense_) return give_up(senseless());
      if (const auto& failure = connector_->failure()) return give_up(why_lost(*failure, call));
      if (!advance(by)) {
        return give_up(
            Error(Status::timeout,
                  fmt::format("the rendezvous at {} did not answer a {} within {}; check that its host is up", where_,
                              to_string(call), show_duration(static_cast<std::uint64_t>(timeout_ns))),
                  {.operation = to_string(call)}));
      }
    }
  }

  Error why_lost(const Failure& failure, Call call) const {
    const auto& [status, peer, text] = failure.complaint;
    if (failure.kind == Failure::Kind::told) return Error(status, text, {.peer = peer, .operation = "bootstrap"});
    if (failure.kind == Failure::Kind::forged) return why_not_joined();
    return Error(Status::peer_lost,
                 fmt::format("the rendezvous at {} is gone ({}): the process that served it, rank 0 or the "
                             "launcher, ended or closed its bootstrap",
                             where_, text),
                 {.operation = to_string(call)});
  }

  Error give_up(const Error& error) {
    broken_.emplace(error.copy());
    return error.copy();  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
  }

  /// Waits until something happens, and handles it. False when the deadline passed before that.
  bool advance(std::int64_t deadline) {
    const std::int64_t now = set_->now();
    if (now >= deadline) return false;
    const std::int64_t left_ms = deadline == kForever ? 3'600'000 : (deadline - now + 999'999) / 1'000'000;
    if (!set_->poll(static_cast<int>(std::min<std::int64_t>(left_ms, 3'600'000))).empty()) connector_->serve();
    while (set_->take_alarm(set_->now())) connector_->ring();
    return true;
  }

  const ClientOptions options_;
  const std::string where_;
  std::unique_ptr<EpollSet> set_;
  std::optional<rendezvous::Connector> connector_;
  std::uint64_t sequence_ = 0;
  std::optional<Call> call_;  ///< the one under way
  std::optional<GatherResult> result_;
  bool nonsense_ = false;        ///< the rendezvous said what it may not
  std::optional<Error> broken_;  ///< what ended this bootstrap
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
  static const SteadyClock clock;
  auto set = EpollSet::open(clock);
  if (!set) return std::move(set.error());
  auto client = std::make_unique<Client>(options, std::move(*set));
  if (auto joined = client->join(); !joined) return std::move(joined.error());
  log_debug("rank {} of {} has joined at {}", options.rank, options.size, options.address.text());
  return std::unique_ptr<Bootstrap>(std::move(client));
}

}  // namespace railyard::bootstrap
