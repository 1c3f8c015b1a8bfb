/// Instructions of a message through a channel, both its ends in one thread: run under callgrind by
/// `bench/engine/instructions`, which subtracts two counts. The two rails hand over what is sent and do nothing else.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "message/channel_state.hpp"
#include "message/worker.hpp"
#include "quiet_rail.hpp"

namespace {

using namespace railyard;  // NOLINT(google-build-using-namespace)

constexpr long kMostAsked = 100;  ///< for each message: it is stuck

class PairedRail final : public bench::QuietRail {
 public:
  void pair_with(PairedRail& peer) { peer_ = &peer; }
  fabric::Post send(fabric::RemoteId, const fabric::LocalChunk& message, fabric::PostContext* context) override {
    if (posted_ == contexts_.size() || peer_->waiting_ == 0) return fabric::Post::busy;
    const auto [address, receive] = peer_->slots_[--peer_->waiting_];
    std::memcpy(address, message.address, message.bytes);
    peer_->arrived_[peer_->arrivals_++] = {receive, message.bytes};
    contexts_[posted_++] = context;
    return fabric::Post::posted;
  }
  fabric::Post receive(const fabric::LocalChunk& buffer, fabric::PostContext* context) override {
    if (waiting_ == slots_.size()) return fabric::Post::busy;
    slots_[waiting_++] = {buffer.address, context};
    return fabric::Post::posted;
  }
  std::size_t poll(std::span<fabric::Event> events) override {
    std::size_t count = 0;
    for (; posted_ > 0 && count < events.size(); ++count)
      events[count] = {fabric::Event::Kind::sent, 0, 0, contexts_[--posted_], 0};
    for (std::size_t i = 0; i < arrivals_; ++i, ++count)
      events[count] = {fabric::Event::Kind::received, 0, arrived_[i].second, arrived_[i].first, 0};
    arrivals_ = 0;
    return count;
  }

 private:
  PairedRail* peer_ = nullptr;
  std::array<fabric::PostContext*, 16> contexts_{};
  std::size_t posted_ = 0;
  std::array<std::pair<void*, fabric::PostContext*>, 64> slots_{};
  std::size_t waiting_ = 0;
  std::array<std::pair<fabric::PostContext*, std::size_t>, 64> arrived_{};
  std::size_t arrivals_ = 0;
};

/// Moves on by the same for each message.
class PacedClock final : public Clock {
 public:
  std::int64_t now() const override { return time_; }
  void idle() override {}
  void move_on() { time_ += 1000; }

 private:
  std::int64_t time_ = 1'000'000'000;
};

std::shared_ptr<message::Worker> open_worker(Clock& clock, std::unique_ptr<fabric::Rail> rail, std::uint8_t number) {
  message::WorkerParts parts;
  parts.settings.threads = "single";
  parts.clock = &clock;
  parts.rails.push_back(std::move(rail));
  parts.identity.bytes[0] = parts.identity.bytes[1] = number;
  parts.seed = number;
  auto worker = message::Worker::open(std::move(parts));
  if (!worker) std::abort();
  return std::move(*worker);
}

}  // namespace

int main(int argc, char** argv) {
  const long count = argc == 2 ? std::strtol(argv[1], nullptr, 10) : 0;
  if (count <= 0) {
    std::fprintf(stderr, "usage: message COUNT\n");
    return 2;
  }
  PacedClock clock;
  auto here = std::make_unique<PairedRail>();
  auto there = std::make_unique<PairedRail>();
  here->pair_with(*there);
  there->pair_with(*here);
  const auto from = open_worker(clock, std::move(here), 1);
  const auto to = open_worker(clock, std::move(there), 2);
  auto joining = from->begin(0, true);
  auto answer = joining ? to->answer(*message::read_hello(from->hello(*joining)))
                        : Result<message::Worker::Answer>(joining.error().copy());
  if (!answer) return 1;
  auto concluded = from->conclude(*joining, answer->welcome);
  if (!concluded || *concluded == nullptr) return 1;
  const auto out = std::move(*concluded);
  const auto in = std::move(answer->channel);

  std::array<std::byte, 8> sent{};
  std::array<std::byte, 8> arrived{};
  auto source = out->register_memory(sent);  // as NCCL does
  auto target = in->register_memory(arrived);
  if (!source || !target) return 1;
  long asked = 0;
  for (long i = 0; i < count; ++i, clock.move_on()) {
    std::memcpy(sent.data(), &i, sizeof i);
    const ReceiveSlot slot{arrived, 0, target->get()};
    std::array<std::uint64_t, 1> bytes{};
    auto receive = in->receive({&slot, 1}, false);
    auto send = out->send(sent, 0, source->get());
    if (!receive || !send) return 1;
    bool gone = false;
    bool here_now = false;
    // An end that has what it asked for goes on making passes, as a process with other channels does.
    while (!gone || !here_now) {
      const auto taken = here_now ? Result<bool>(to->try_pass()) : in->test(*receive, bytes);
      const auto left = gone ? Result<bool>(from->try_pass()) : out->test(*send, {});
      if (!taken || !left || ++asked > kMostAsked * count) return 1;
      here_now = here_now || *taken;
      gone = gone || *left;
    }
    if (arrived != sent) return 1;
  }
  std::printf("%.2f rounds of questions a message\n", static_cast<double>(asked) / static_cast<double>(count));
  for (const auto& worker : {from, to}) worker->close();
  return 0;
}
