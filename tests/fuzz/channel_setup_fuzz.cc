// Feeds handles and the listening side of channels' set-up whatever the fuzzer makes up: connections of those who have
// the handle and seal what they send around contents of the fuzzer's, in any order. (Those who have proven nothing:
// bootstrap_fuzz.)
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <vector>

#include "base/log.hpp"
#include "message/handle.hpp"
#include "message/setup_listeners.hpp"
#include "message/setup_wire.hpp"
#include "rendezvous/handshake.hpp"
#include "rendezvous/test_bytes.hpp"

namespace railyard::message {
namespace {

using rendezvous::FrameType;
using rendezvous::ManualClock;

void require(bool promise) {
  if (!promise) std::abort();
}

std::vector<std::byte> some_bytes(FuzzedDataProvider& data, std::size_t most) {
  const auto bytes = data.ConsumeBytes<std::uint8_t>(data.ConsumeIntegralInRange<std::size_t>(0, most));
  const auto span = std::as_bytes(std::span(bytes));
  return {span.begin(), span.end()};
}

void fuzz_parsers(FuzzedDataProvider& data) {
  const auto bytes = some_bytes(data, 512);
  if (const auto listener = parse_listener(bytes)) require(claim_of_listener(*listener) == bytes);
  Handle handle;
  std::copy_n(bytes.begin(), std::min(bytes.size(), handle.bytes.size()), handle.bytes.begin());
  require(!read_handle(handle));  // no checksum comes right by chance
  require(read_handle(handle).error().status() != Status::ok);

  HandleContents contents;
  contents.listener = data.ConsumeIntegral<std::uint64_t>();
  contents.port = data.ConsumeIntegral<std::uint16_t>();
  contents.addresses.resize(data.ConsumeIntegralInRange<std::size_t>(0, 6));
  handle = make_handle(contents);
  set_handshake(handle, data.ConsumeIntegral<std::uint64_t>());
  const auto read = read_handle(handle);
  require(static_cast<bool>(read) == (contents.listener != 0 && contents.port != 0 && !contents.addresses.empty()));
  if (read) order_targets(read->addresses, data.ConsumeBool(), {});
}

class NoHost final : public Host {
 public:
  Result<std::vector<std::byte>> on_hello(std::uint64_t, std::span<const std::byte>) override { std::abort(); }
  void on_ready(std::uint64_t, std::span<const std::byte>) override { std::abort(); }
  void on_gone(std::uint64_t) override { std::abort(); }
};

/// What the host was told of one handshake.
struct Told {
  bool hello = false;
  bool accepted = false;
  bool over = false;
};

void fuzz_listener(FuzzedDataProvider& data) {
  ManualClock clock;
  const auto set = rendezvous::EpollSet::open(clock).value();
  SetupListeners inbound(*set, clock, 1, "lo", "", 5'000'000'000);
  NoHost host;
  const Handle handle = inbound.open_listener(host).value();
  const HandleContents contents = read_handle(handle).value();
  rendezvous::Acceptor& acceptor = inbound.acceptor();
  std::map<std::uint64_t, rendezvous::ConnectingEnd> ends;
  std::map<std::uint64_t, Told> told;
  std::uint64_t last_id = 0;
  const auto exchange = [&](std::uint64_t id) {
    const auto found = ends.find(id);
    if (found == ends.end()) return;
    rendezvous::ConnectingEnd& end = found->second;
    for (bool moved = true; moved;) {
      moved = false;
      while (!end.outgoing().empty()) {
        const std::vector<std::byte> bytes(end.outgoing().begin(), end.outgoing().end());
        end.sent(bytes.size());
        acceptor.received(id, bytes);
        moved = true;
      }
      rendezvous::Conversation* const conversation = acceptor.conversation(id);
      while (conversation != nullptr && !conversation->outgoing().empty()) {
        end.feed(conversation->outgoing());
        conversation->sent(conversation->outgoing().size());
        moved = true;
      }
      rendezvous::Frame frame;
      while (end.next(frame) == rendezvous::ConnectingEnd::News::frame) require(frame.type == kWelcome);
    }
  };
  bool closed = false;
  for (int step = 0; step < 60 && data.remaining_bytes() > 0; ++step) {
    clock.now_ns += data.ConsumeIntegralInRange<std::int64_t>(0, 3'000'000'000);
    const int action = data.ConsumeIntegralInRange(0, 6);
    std::uint64_t id = last_id == 0 ? 0 : data.ConsumeIntegralInRange<std::uint64_t>(1, last_id);
    const auto found = ends.find(id);
    if (action == 0 || found == ends.end()) {
      id = ++last_id;
      acceptor.connected(id, "somebody");
      std::optional<rendezvous::OutgoingFrame> first;
      if (data.ConsumeBool()) first = rendezvous::make_frame(kHello, some_bytes(data, 64));
      ends.emplace(id, rendezvous::ConnectingEnd({rendezvous::Protocol::channel, claim_of_listener(contents.listener),
                                                  key_of_listener(contents.secret), kMostSetupMessageFrame, first},
                                                 {}));
    } else if (action == 1) {
      acceptor.received(id, some_bytes(data, 64));
    } else if (action == 2) {
      if (found->second.proven())
        found->second.send(static_cast<FrameType>(data.ConsumeIntegralInRange(0, 20)), some_bytes(data, 64));
    } else if (action == 3) {
      if (found->second.proven()) found->second.send(kReady, some_bytes(data, 64));
    } else if (action == 4) {
      acceptor.closed(id, "it closed");
      ends.erase(found);
    } else if (action == 5 && data.ConsumeProbability<float>() < 0.1F) {
      inbound.close_listener(handle);
      closed = true;
    }
    exchange(id);
    acceptor.tick();
    while (const auto call = inbound.take_call()) {
      require(!closed && call->host == &host);
      Told& known = told[call->handshake];
      require(!known.over);
      switch (call->kind) {
        case HostCall::Kind::hello:
          require(!known.hello && call->setup_message.size() <= kMostSetupMessage);
          known.hello = true;
          known.accepted = data.ConsumeBool();
          known.over = !known.accepted;
          if (known.accepted) {
            inbound.answered(call->handshake, some_bytes(data, 64));
          } else {
            inbound.answered(call->handshake, Error(Status::busy, "no"));
          }
          exchange(call->handshake);
          break;
        case HostCall::Kind::ready:
        case HostCall::Kind::gone:
          require(known.accepted);
          known.over = true;
          break;
      }
    }
    acceptor.take_dropped();
    acceptor.take_touched();
  }
  inbound.close_listener(handle);
  for (std::uint64_t id = 1; id <= last_id; ++id) acceptor.closed(id, "the end");
  require(inbound.idle());
}

}  // namespace
}  // namespace railyard::message

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace railyard;
  static const bool quiet = [] {
    set_log_sink([](LogLevel, std::string_view) {});
    return true;
  }();
  (void)quiet;
  FuzzedDataProvider data(bytes, size);
  if (data.ConsumeBool()) {
    message::fuzz_parsers(data);
  } else {
    message::fuzz_listener(data);
  }
  return 0;
}
