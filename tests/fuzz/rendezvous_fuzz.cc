// Feeds the rendezvous's parsers and both ends of a handshake whatever the fuzzer makes up: bytes of unauthenticated
// peers, and, because nothing gets past the proof of the secret by chance, frames that are properly proven and sealed
// around contents of the fuzzer's.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "message/handle.hpp"
#include "message/rendezvous.hpp"
#include "message/rendezvous_wire.hpp"

namespace railyard::message {
namespace {

using bootstrap::FrameType;
using bootstrap::Side;

constexpr std::uint64_t kListener = 77;
constexpr Secret kSecret{std::byte{1}, std::byte{2}, std::byte{3}};

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
  if (const auto request = parse_connection_request(bytes); request && request->version == kRendezvousVersion)
    require(encode(*request) == bytes);
  if (const auto challenge = parse_challenge(bytes); challenge && challenge->version == kRendezvousVersion) {
    require(encode(*challenge) == bytes);
  }
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

/// The other end as the fuzzer plays it: knows the secret and keeps to the frame format, or does not.
class Other {
 public:
  explicit Other(Side side) : side_(side) {}

  template <typename Talk>
  void say(Talk& talk, FrameType type, std::span<const std::byte> payload) {
    const auto frame = bootstrap::make_frame(type, payload);
    talk.feed(*frame.bytes);
    if (seal_) talk.feed(seal_->next(frame.digest));
  }
  Digest proof() const { return proof_of(listener_key(kSecret, kListener), handshake, side_); }
  void seal() { seal_.emplace(listener_key(kSecret, kListener), handshake, side_); }
  bool sealed() const { return seal_.has_value(); }

  bootstrap::Handshake handshake;

 private:
  Side side_;
  std::optional<bootstrap::Seal> seal_;
};

template <typename Talk>
void drain(Talk& talk) {
  while (!talk.outgoing().empty()) talk.sent(talk.outgoing().size());
}

void fuzz_listener(FuzzedDataProvider& data) {
  ListenerHandshake talk(bootstrap::Nonce{});
  Other inbound(Side::client);
  int hellos = 0;
  int readies = 0;
  bool over = false;
  const auto listen = [&] {
    for (;;) {
      switch (talk.next([](std::uint64_t listener) { return listener == kListener ? &kSecret : nullptr; })) {
        case ListenerHandshake::News::nothing:
          return;
        case ListenerHandshake::News::hello:
          require(!over && inbound.sealed() && ++hellos == 1);
          require(talk.take_setup_message().size() <= kMostSetupMessage && talk.listener() == kListener);
          if (data.ConsumeBool()) talk.answer(some_bytes(data, 64));
          break;
        case ListenerHandshake::News::ready:
          require(!over && hellos == 1 && ++readies == 1);
          over = true;
          break;
        case ListenerHandshake::News::fault:
          require(!over && talk.fault() != ListenerHandshake::Fault::none && !talk.fault_text().empty());
          over = true;
          break;
      }
    }
  };
  for (int step = 0; step < 50 && data.remaining_bytes() > 0; ++step) {
    switch (data.ConsumeIntegralInRange(0, 6)) {
      case 0:
        talk.feed(some_bytes(data, 256));
        break;
      case 1:
        inbound.say(talk, FrameType::hello, encode(ConnectionRequest{kRendezvousVersion, kListener, {}}));
        break;
      case 2:
        inbound.say(talk, FrameType::proof, bootstrap::encode(inbound.proof()));
        if (!inbound.sealed() && data.ConsumeBool()) inbound.seal();
        break;
      case 3:
        inbound.say(talk, static_cast<FrameType>(data.ConsumeIntegralInRange(0, 11)), some_bytes(data, 512));
        break;
      case 4:
        inbound.say(talk, FrameType::enter, some_bytes(data, 64));
        break;
      case 5:
        inbound.say(talk, FrameType::leave, some_bytes(data, 64));
        break;
      default:
        talk.sent(data.ConsumeIntegralInRange<std::size_t>(0, talk.outgoing().size()));
        break;
    }
    listen();
    require(talk.outgoing().size() <= 64 * 1024);
  }
  talk.refuse(Status::busy, "the end");
  drain(talk);
}

void fuzz_connector(FuzzedDataProvider& data) {
  ConnectorHandshake talk(kSecret, kListener, {}, std::make_shared<const std::vector<std::byte>>(some_bytes(data, 64)));
  Other listener(Side::server);
  int welcomes = 0;
  for (int step = 0; step < 50 && data.remaining_bytes() > 0; ++step) {
    switch (data.ConsumeIntegralInRange(0, 6)) {
      case 0:
        talk.feed(some_bytes(data, 256));
        break;
      case 1:
        listener.say(talk, FrameType::challenge, encode(Challenge{}));
        break;
      case 2:
        listener.say(talk, FrameType::proof, bootstrap::encode(listener.proof()));
        if (!listener.sealed() && data.ConsumeBool()) listener.seal();
        break;
      case 3:
        listener.say(talk, static_cast<FrameType>(data.ConsumeIntegralInRange(0, 11)), some_bytes(data, 512));
        break;
      case 4:
        listener.say(talk, FrameType::result, some_bytes(data, 64));
        break;
      case 5:
        listener.say(talk, FrameType::failure,
                     bootstrap::encode(bootstrap::Complaint{Status::busy, -1, "no"}, bootstrap::kMostText));
        break;
      default:
        talk.sent(data.ConsumeIntegralInRange<std::size_t>(0, talk.outgoing().size()));
        break;
    }
    talk.advance();
    if (const auto welcome = talk.take_welcome()) {
      require(listener.sealed() && ++welcomes == 1 && welcome->size() <= kMostSetupMessage);
      if (data.ConsumeBool()) talk.send_ready(some_bytes(data, 64));
    }
    require(!talk.failure() || talk.failure()->status() != Status::ok);
    require(!talk.refused_by_host() || listener.sealed());
  }
  drain(talk);
}

}  // namespace
}  // namespace railyard::message

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace railyard;
  FuzzedDataProvider data(bytes, size);
  switch (data.ConsumeIntegralInRange(0, 2)) {
    case 0:
      message::fuzz_parsers(data);
      break;
    case 1:
      message::fuzz_listener(data);
      break;
    default:
      message::fuzz_connector(data);
      break;
  }
  return 0;
}
