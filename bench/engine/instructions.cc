/// Instructions per operation of the engine alone, over a rail that does nothing: run under callgrind by
/// `bench/engine/instructions`, which subtracts two counts. Counting, unlike timing, gives the same answer on a busy
/// machine.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.hpp"
#include "quiet_rail.hpp"
#include "transport/engine.hpp"

namespace {

using namespace railyard;  // NOLINT(google-build-using-namespace)
namespace wire = transport::wire;

/// A rail whose peer acknowledges everything at once and which keeps no record.
class NullRail final : public bench::QuietRail {
 public:
  fabric::Post send(fabric::RemoteId, const fabric::LocalChunk& message, fabric::PostContext* context) override {
    wire::FrameHeader header;
    std::memcpy(&header, message.address, sizeof header);
    if (header.kind == wire::FrameKind::sequenced) last_ = header;
    sent_ = context;
    return fabric::Post::posted;
  }
  fabric::Post receive(const fabric::LocalChunk& buffer, fabric::PostContext* context) override {
    if (count_ == slots_.size()) return fabric::Post::busy;
    slots_[count_++] = {buffer.address, context};
    return fabric::Post::posted;
  }
  std::size_t poll(std::span<fabric::Event> events) override {
    std::size_t count = 0;
    if (sent_ != nullptr) {
      events[count++] = {fabric::Event::Kind::sent, 0, 0, std::exchange(sent_, nullptr), 0};
    }
    if (arrival_ != 0 && count_ > 0) {
      const auto [address, context] = slots_[--count_];
      std::memcpy(address, frame_.data(), arrival_);
      events[count++] = {fabric::Event::Kind::received, 0, std::exchange(arrival_, 0), context, 0};
    }
    return count;
  }

  /// The last frame's acknowledgement arrives with the next poll.
  void acknowledge(std::uint64_t session) {
    wire::FrameHeader header;
    header.kind = wire::FrameKind::acknowledge;
    header.flow = 1;
    header.session = session;
    header.acknowledged = last_.sequence + 1;
    header.limit = header.acknowledged + 16;
    header.bytes = wire::kRecordsAt;
    std::memcpy(frame_.data(), &header, sizeof header);
    arrival_ = wire::kRecordsAt;
  }
  /// A frame with one 8-byte put and a signal arrives with the next poll.
  void arrive(std::uint64_t session, std::uint32_t exposed_region, std::uint32_t sequence) {
    std::uint32_t used = wire::kRecordsAt;
    wire::FrameWriter::append(frame_.data(), used, {wire::RecordKind::put, 0, 8, exposed_region, 0});
    wire::FrameWriter::append(frame_.data(), used, {wire::RecordKind::signal, 0, 8, exposed_region, 0});
    wire::FrameHeader header;
    header.flow = 1;
    header.records = 2;
    header.session = session;
    header.sequence = sequence;
    header.limit = 16;
    header.bytes = used;
    std::memcpy(frame_.data(), &header, sizeof header);
    arrival_ = used;
  }

 private:
  std::array<std::byte, wire::kFrameBytes> frame_{};
  std::size_t arrival_ = 0;
  fabric::PostContext* sent_ = nullptr;
  wire::FrameHeader last_;
  std::array<std::pair<void*, fabric::PostContext*>, 64> slots_{};
  std::size_t count_ = 0;
};

/// The machine's clock is asked, and paid for; but what it shows moves on by the same for each operation, so that what
/// is done now and then (publishing, looking after links) comes as often in every run, and as often as on a machine
/// that valgrind does not slow down.
class PacedClock final : public Clock {
 public:
  std::int64_t now() const override {
    machine_.now();
    return time_;
  }
  void idle() override {}
  void move_on() { time_ += kPerOperation; }

 private:
  static constexpr std::int64_t kPerOperation = 500;  ///< nanoseconds: two million operations a second
  SteadyClock machine_;
  std::int64_t time_ = 1'000'000'000;
};

}  // namespace

int main(int argc, char** argv) {
  const bool published = argc == 4 && std::string_view(argv[3]) == "telemetry";
  if (argc != 3 && !published) {
    std::fprintf(stderr, "usage: instructions put|put_signal|arrival|quiet|read_signal|pass COUNT [telemetry]\n");
    return 2;
  }
  const std::string what = argv[1];
  const long count = std::strtol(argv[2], nullptr, 10);
  if (count <= 0) return 2;
  PacedClock clock;
  std::array<std::uint64_t, 8> memory{};
  std::array<std::uint64_t, 1> signals{};
  transport::EngineParts parts;
  parts.clock = &clock;
  parts.size = 2;
  auto owned = std::make_unique<NullRail>();
  NullRail& rail = *owned;
  parts.rails.push_back(std::move(owned));
  parts.find_peer = [](int) -> Result<transport::PeerAddress> {
    static const std::array<std::byte, 1> kAddress{};
    transport::PeerAddress peer;
    peer.rails.push_back({"null", kAddress});
    return peer;
  };
  auto opened = transport::Engine::open(std::move(parts));
  if (!opened) return 1;
  const std::unique_ptr<transport::Engine> engine = std::move(opened.value());
  transport::Flow& flow = **engine->peers().flow(1);
  if (published) engine->begin_publishing({telemetry::Store::open(""), "world 0"});
  const std::uint32_t exposed_region = *engine->exposed().expose({std::as_writable_bytes(std::span(memory)), signals});
  const std::array<std::byte, 8> bytes{};
  const transport::PutRecord put{1, 0, bytes};
  const transport::SignalRecord signal{1, 0, SignalOp::add, 1};
  std::uint64_t sum = 0;
  const auto repeat = [count, &clock](auto&& once) {
    for (long i = 0; i < count; ++i, clock.move_on()) once(i);
  };
  const auto submit = [&](const transport::SignalRecord* with_signal) {
    std::uint64_t number = 0;
    {
      const transport::ProgressGuard hold(engine->progress_lock());
      if (!engine->submissions().try_records(flow, &put, with_signal, number)) std::abort();
    }
    rail.acknowledge(flow.session_in);
    engine->progress();
  };
  if (what == "put") {
    repeat([&](long) { submit(nullptr); });
  } else if (what == "put_signal") {
    repeat([&](long) { submit(&signal); });
  } else if (what == "arrival") {
    repeat([&](long i) {
      rail.arrive(flow.session_in, exposed_region, static_cast<std::uint32_t>(i));
      engine->progress();
    });
  } else if (what == "pass") {
    repeat([&](long) { engine->progress(); });
  } else if (what == "quiet") {
    repeat(
        [&](long) { sum += engine->wait_until([&] { return engine->completions().outstanding() == 0; }, 1) ? 1 : 0; });
  } else if (what == "read_signal") {
    repeat([&](long) { sum += std::atomic_ref<std::uint64_t>(signals[0]).load(std::memory_order_acquire); });
  } else {
    std::fprintf(stderr, "instructions: no such operation: %s\n", what.c_str());
    return 2;
  }
  std::printf("%llu\n", static_cast<unsigned long long>(sum + signals[0]));
  return 0;
}
