// Feeds a channel the records of a peer that says whatever it likes, between true calls of its own user; and both ends
// of a handshake set-up messages that were changed on their way. Nothing may crash, and memory of the user's is written
// only where a receive is.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "base/log.hpp"
#include "fabric/sim/fabric.hpp"
#include "message/setup_messages.hpp"
#include "message/wire.hpp"
#include "message/worker.hpp"

namespace railyard::message {
namespace {

void require(bool promise) {
  if (!promise) std::abort();
}

std::vector<std::byte> some_bytes(FuzzedDataProvider& data, std::size_t most) {
  const auto bytes = data.ConsumeBytes<std::uint8_t>(data.ConsumeIntegralInRange<std::size_t>(0, most));
  const auto span = std::as_bytes(std::span(bytes));
  return {span.begin(), span.end()};
}

/// Two workers on one simulated network.
class Two {
 public:
  explicit Two(std::uint32_t eager_bytes) : fabric_(options()) {
    for (std::size_t process = 0; process < 2; ++process) {
      WorkerParts parts;
      parts.settings.threads = "single";
      parts.settings.timeout_ms = 0;
      parts.settings.eager_bytes = eager_bytes;
      parts.clock = &fabric_.clock();
      parts.rails.push_back(std::move(fabric_.open_rail(process)).value());
      parts.identity.bytes[0] = static_cast<std::uint8_t>(process + 1);
      parts.seed = process + 1;
      workers_[process] = std::move(Worker::open(std::move(parts))).value();
    }
  }
  ~Two() {
    for (auto& worker : workers_) worker->close();
  }
  Two(const Two&) = delete;
  Two& operator=(const Two&) = delete;

  Worker& at(std::size_t process) { return *workers_[process]; }
  void round() {
    for (auto& worker : workers_) worker->pass();
    fabric_.advance(5'000);
  }

 private:
  static fabric::sim::FabricOptions options() {
    fabric::sim::FabricOptions options;
    for (int process = 0; process < 2; ++process) {
      fabric::sim::RailOptions rail;
      rail.process = process;
      options.rails.push_back(rail);
    }
    return options;
  }
  fabric::sim::SimFabric fabric_;
  std::array<std::shared_ptr<Worker>, 2> workers_;
};

/// A record: often of a right size and with small numbers, so that it gets somewhere.
void say_something(ChannelState& channel, FuzzedDataProvider& data) {
  transport::wire::Message header;
  header.kind = data.ConsumeIntegralInRange<std::uint8_t>(0, 9);
  header.failed = data.ConsumeBool();
  header.number =
      data.ConsumeBool() ? data.ConsumeIntegralInRange<std::uint32_t>(0, 3) : data.ConsumeIntegral<std::uint32_t>();
  header.word =
      data.ConsumeBool() ? data.ConsumeIntegralInRange<std::uint64_t>(0, 5000) : data.ConsumeIntegral<std::uint64_t>();
  std::vector<std::byte> body;
  if (data.ConsumeBool()) {
    const auto append = [&](const auto& value) {
      const auto bytes = bytes_of(value);
      body.assign(bytes.begin(), bytes.end());
    };
    const auto number = data.ConsumeIntegralInRange<std::uint64_t>(0, 6000);
    const auto group = data.ConsumeIntegralInRange<std::uint32_t>(0, 3);
    const auto slot = data.ConsumeIntegralInRange<std::uint8_t>(0, 9);
    switch (static_cast<Kind>(header.kind)) {
      case Kind::eager: {
        append(EagerHead{number, group, slot, data.ConsumeIntegral<std::uint8_t>(), 0});
        const auto chunk = some_bytes(data, 64);
        body.insert(body.end(), chunk.begin(), chunk.end());
        body.resize(std::min<std::size_t>(sizeof(EagerHead) + std::min<std::uint64_t>(number, 4000), 4096));
        break;
      }
      case Kind::grant:
        append(Grant{number,
                     group,
                     data.ConsumeIntegralInRange<std::int32_t>(0, 3),
                     slot,
                     data.ConsumeIntegralInRange<std::uint8_t>(0, 9),
                     {}});
        break;
      case Kind::done:
        append(Done{number, group, slot, {}});
        break;
      case Kind::overflow:
        append(Overflow{number, number / 2});
        break;
      case Kind::region:
        append(transport::RemoteKey{number, number});
        break;
      default:
        break;
    }
  } else {
    body = some_bytes(data, 200);
  }
  channel.on_message(header, body);
}

void fuzz_records(FuzzedDataProvider& data) {
  Two two(data.ConsumeBool() ? 4096 : data.ConsumeIntegralInRange<std::uint32_t>(0, 20'000));
  auto joining = std::move(two.at(0).begin(0, true)).value();
  auto answer = std::move(two.at(1).answer(joining.hello)).value();
  const auto channel = std::move(two.at(0).conclude(joining, answer.welcome)).value();
  constexpr std::size_t kRoom = 3000;
  constexpr std::byte kGuard{0xa5};
  // Places for messages, each between two guards.
  std::vector<std::byte> memory(64 * 2 * kRoom, kGuard);
  std::vector<bool> in_use(64);
  std::vector<std::byte> source(20'000, std::byte{1});
  for (int step = 0; step < 200 && data.remaining_bytes() > 0; ++step) {
    switch (data.ConsumeIntegralInRange<int>(0, 5)) {
      case 0: {
        const auto bytes = data.ConsumeIntegralInRange<std::size_t>(0, source.size());
        (void)channel->send(std::span(source).first(bytes), data.ConsumeIntegralInRange<int>(0, 3), nullptr);
        break;
      }
      case 1: {
        std::vector<ReceiveSlot> slots;
        for (auto left = data.ConsumeIntegralInRange<std::size_t>(1, Channel::kMostSlots); left > 0; --left) {
          const auto free = std::ranges::find(in_use, false);
          if (free == in_use.end()) break;
          *free = true;
          const auto worker_index = static_cast<std::size_t>(free - in_use.begin()) * 2 * kRoom;
          slots.push_back(
              {std::span(memory).subspan(worker_index, kRoom), data.ConsumeIntegralInRange<int>(0, 3), nullptr});
        }
        if (!slots.empty()) (void)channel->receive(slots, data.ConsumeBool());
        break;
      }
      case 2:
        two.round();
        break;
      default:
        say_something(*channel, data);
    }
  }
  for (int i = 0; i < 20; ++i) two.round();
  for (std::size_t i = 0; i < in_use.size(); ++i) {
    const auto from = memory.begin() + static_cast<std::ptrdiff_t>(i * 2 * kRoom + (in_use[i] ? kRoom : 0));
    const auto to = memory.begin() + static_cast<std::ptrdiff_t>((i + 1) * 2 * kRoom);
    require(std::all_of(from, to, [](std::byte byte) { return byte == kGuard; }));
  }
  channel->end_at_once("the fuzzer has seen enough");
  answer.channel->end_at_once("the fuzzer has seen enough");
  two.round();
}

void change(std::vector<std::byte>& setup_message, FuzzedDataProvider& data) {
  for (auto left = data.ConsumeIntegralInRange<std::size_t>(0, 6); left > 0 && !setup_message.empty(); --left) {
    setup_message[data.ConsumeIntegralInRange<std::size_t>(0, setup_message.size() - 1)] =
        static_cast<std::byte>(data.ConsumeIntegral<std::uint8_t>());
  }
  if (data.ConsumeBool()) setup_message.resize(data.ConsumeIntegralInRange<std::size_t>(0, setup_message.size() + 8));
}

void fuzz_setup_messages(FuzzedDataProvider& data) {
  const auto bytes = some_bytes(data, 512);
  if (const auto hello = read_hello(bytes)) require(write_setup_message(*hello) == bytes);
  if (const auto welcome = read_welcome(bytes)) require(write_setup_message(*welcome) == bytes);
  Two two(4096);
  auto joining = std::move(two.at(0).begin(0, data.ConsumeBool())).value();
  auto setup_message = two.at(0).hello(joining);
  change(setup_message, data);
  const auto hello = read_hello(setup_message);
  if (!hello) return;
  auto answer = two.at(1).answer(*hello);
  if (!answer) return;
  change(answer->welcome, data);
  const auto channel = two.at(0).conclude(joining, answer->welcome);
  for (int i = 0; i < 4; ++i) two.round();
  answer->channel->end_at_once("the fuzzer has seen enough");
  if (channel && *channel != nullptr) (*channel)->end_at_once("the fuzzer has seen enough");
  for (int i = 0; i < 4; ++i) two.round();
}

}  // namespace
}  // namespace railyard::message

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const bool kQuiet = (railyard::set_log_level(railyard::LogLevel::error), true);
  if (!kQuiet || size == 0) return 0;
  FuzzedDataProvider data(bytes, size);
  data.ConsumeBool() ? railyard::message::fuzz_setup_messages(data) : railyard::message::fuzz_records(data);
  return 0;
}
