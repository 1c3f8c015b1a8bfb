// Feeds the rendezvous's parsers, both its ends and a job's server whatever the fuzzer makes up: bytes of
// unauthenticated peers, and, because nothing gets past the proof of the key by chance, frames that are properly proven
// and sealed around contents of the fuzzer's.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <vector>

#include "base/log.hpp"
#include "bootstrap/job_server.hpp"
#include "bootstrap/protocol.hpp"
#include "rendezvous/address.hpp"
#include "rendezvous/handshake.hpp"
#include "rendezvous/test_bytes.hpp"

namespace railyard::bootstrap {
namespace {

using namespace rendezvous;
using rendezvous::encode;

constexpr std::int32_t kSize = 3;
constexpr std::size_t kMostUnauthenticated = 4;

void require(bool promise) {
  if (!promise) std::abort();
}

std::vector<std::byte> some_bytes(FuzzedDataProvider& data, std::size_t most) {
  const auto bytes = data.ConsumeBytes<std::uint8_t>(data.ConsumeIntegralInRange<std::size_t>(0, most));
  const auto span = std::as_bytes(std::span(bytes));
  return {span.begin(), span.end()};
}

void fuzz_parsers(FuzzedDataProvider& data) {
  const auto bytes = some_bytes(data, 4096);
  if (const auto hello = parse_hello(bytes); hello && hello->version == kWireVersion) require(encode(*hello) == bytes);
  if (const auto challenge = parse_challenge(bytes); challenge && challenge->version == kWireVersion) {
    require(encode(*challenge) == bytes);
  }
  if (const auto claim = parse_claim(bytes)) require(encode(*claim) == bytes);
  if (const auto enter = parse_enter(bytes)) require(encode(*enter) == bytes);
  if (const auto proof = parse_proof(bytes)) require(encode(*proof) == bytes);
  if (const auto result = parse_result(bytes, kSize)) {
    require(encode_result(result->call, result->sequence, result->contributions) == bytes);
  }
  if (const auto complaint = parse_complaint(bytes, kMostText)) require(complaint->text.size() <= kMostText);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (const auto address = Address::parse(text)) require(Address::parse(address->text()).value() == *address);
}

/// A rank as the fuzzer plays it: it knows the key and keeps to the frame format, or does not.
struct FuzzRank {
  Handshake handshake;
  std::optional<Seal> seal;
  FrameReader reader{kMostHandshake};
  std::uint64_t calls = 0;
};

class ServerFuzz {
 public:
  ServerFuzz()
      : server_(
            [this] {
              JobServerOptions options;
              options.size = kSize;
              options.job_key = kKey;
              options.where = "here";
              options.most_unauthenticated = kMostUnauthenticated;
              options.make_nonce = [this]() -> Result<Nonce> {
                Nonce nonce{};
                nonce[0] = static_cast<std::byte>(++nonces_);
                return nonce;
              };
              return options;
            }(),
            clock_) {}

  void run(FuzzedDataProvider& data) {
    for (int step = 0; step < 200 && data.remaining_bytes() > 0; ++step) {
      clock_.now_ns += data.ConsumeIntegralInRange<std::int64_t>(0, 3'000'000'000);
      act(data);
      core_.tick();
      server_.tick();
      for (const ConnectionId id : core_.take_dropped()) ranks_.erase(id);
      for (const ConnectionId id : core_.take_touched()) drain(id);
      require(core_.connections() <= kMostUnauthenticated + 4 * kSize);
      require(core_.connections() == ranks_.size());
    }
    for (const auto& [id, rank] : ranks_) core_.closed(id, "the end");
    require(core_.connections() == 0);
  }

 private:
  void act(FuzzedDataProvider& data) {
    const int action = data.ConsumeIntegralInRange(0, 8);
    if (action == 7) return arrive(data.ConsumeIntegralInRange(0, kSize - 1));
    if (action == 8) return everybody_calls(static_cast<Call>(data.ConsumeIntegralInRange(1, 3)), some_bytes(data, 64));
    if (action == 0 || ranks_.empty()) {
      ranks_.try_emplace(connected("somebody"));
      return;
    }
    auto found = ranks_.begin();
    std::advance(found, data.ConsumeIntegralInRange<std::size_t>(0, ranks_.size() - 1));
    const ConnectionId id = found->first;
    switch (action) {
      case 1:
        core_.received(id, some_bytes(data, 256));
        break;
      case 2:
        say_hello(id, data);
        break;
      case 3:
        core_.received(
            id, *make_frame(FrameType::proof, encode(proof_of(kKey, found->second.handshake, Side::connector))).bytes);
        break;
      case 4:
        send_sealed(id, static_cast<FrameType>(data.ConsumeIntegralInRange(0, 11)), some_bytes(data, 256));
        break;
      case 5:
        send_sealed(id, kEnter,
                    encode(Enter{static_cast<Call>(data.ConsumeIntegralInRange(1, 3)),
                                 data.ConsumeIntegralInRange<std::uint64_t>(0, 3),
                                 data.ConsumeIntegral<std::uint64_t>(), some_bytes(data, 64)}));
        break;
      default:
        if (data.ConsumeBool()) {
          server_.process_ended(data.ConsumeIntegralInRange(-1, kSize), "it ended");
        } else {
          core_.closed(id, "it closed");
          ranks_.erase(id);
        }
        break;
    }
  }

  /// A rank that does everything right up to its welcome, so that what follows is tried too.
  void arrive(std::int32_t number) {
    const ConnectionId id = connected("a rank");
    for (const ConnectionId dropped : core_.take_dropped()) ranks_.erase(dropped);
    FuzzRank& rank = ranks_[id];
    rank.handshake.claim = encode(Claim{number, kSize});
    core_.received(
        id, *make_frame(FrameType::hello, encode(Hello{kWireVersion, Protocol::job, rank.handshake.claim, {}})).bytes);
    drain(id);
    core_.received(id, *make_frame(FrameType::proof, encode(proof_of(kKey, rank.handshake, Side::connector))).bytes);
    drain(id);
  }

  ConnectionId connected(const char* peer) {
    core_.connected(++last_id_, peer);
    return last_id_;
  }

  void everybody_calls(Call call, const std::vector<std::byte>& contribution) {
    std::vector<ConnectionId> ids;
    for (const auto& [id, rank] : ranks_) {
      if (rank.seal) ids.push_back(id);
    }
    for (const ConnectionId id : ids) {
      send_sealed(id, kEnter, encode(Enter{call, ranks_.at(id).calls++, 1'000'000'000, contribution}));
    }
  }

  void say_hello(ConnectionId id, FuzzedDataProvider& data) {
    FuzzRank& rank = ranks_.at(id);
    if (rank.seal) return;
    Hello hello;
    hello.version = static_cast<std::uint16_t>(data.ConsumeIntegralInRange<int>(kWireVersion - 1, kWireVersion));
    hello.protocol = static_cast<Protocol>(data.ConsumeIntegralInRange(1, 2));
    const std::int32_t size = data.ConsumeIntegralInRange(kSize, kSize + 1);
    hello.claim = encode(Claim{data.ConsumeIntegralInRange(0, size - 1), size});
    if (data.ConsumeBool()) hello.claim = some_bytes(data, kMostClaim);
    rank.handshake.claim = hello.claim;
    core_.received(id, *make_frame(FrameType::hello, encode(hello)).bytes);
  }

  void send_sealed(ConnectionId id, FrameType type, std::span<const std::byte> payload) {
    FuzzRank& rank = ranks_.at(id);
    const OutgoingFrame frame = make_frame(type, payload);
    core_.received(id, *frame.bytes);
    if (rank.seal) core_.received(id, rank.seal->next(frame.digest));
  }

  /// Reads what the server says, as far as a rank must to go on.
  void drain(ConnectionId id) {
    Conversation* const conversation = core_.conversation(id);
    while (conversation != nullptr && !conversation->outgoing().empty()) {
      const auto bytes = conversation->outgoing();
      if (const auto found = ranks_.find(id); found != ranks_.end()) listen(found->second, bytes);
      conversation->sent(bytes.size());
    }
  }
  static void listen(FuzzRank& rank, std::span<const std::byte> bytes) {
    if (rank.seal) return;
    rank.reader.feed(bytes);
    Frame frame;
    while (rank.reader.next(frame) == FrameReader::State::frame) {
      if (frame.type == FrameType::challenge) {
        const auto challenge = parse_challenge(frame.payload);
        require(challenge.has_value());
        rank.handshake.acceptor_nonce = challenge->nonce;
      }
      if (frame.type == FrameType::proof) {
        require(parse_proof(frame.payload) == proof_of(kKey, rank.handshake, Side::acceptor));
        rank.seal.emplace(kKey, rank.handshake, Side::connector);
        return;
      }
    }
  }

  int nonces_ = 0;
  ManualClock clock_;
  JobServer server_;
  Acceptor& core_ = server_.acceptor();
  ConnectionId last_id_ = 0;
  std::map<ConnectionId, FuzzRank> ranks_;
};

/// Frames of the acceptor's as the fuzzer makes them up, for the connecting end.
void fuzz_connecting_end(FuzzedDataProvider& data) {
  Handshake handshake{Protocol::job, encode(Claim{1, kSize}), {}, {}};
  ConnectingEnd end(
      {Protocol::job, handshake.claim, kKey, kMostFrameToClient, make_frame(kEnter, some_bytes(data, 64))}, {});
  std::optional<Seal> seal;
  for (int step = 0; step < 100 && data.remaining_bytes() > 0; ++step) {
    const auto receive = [&](FrameType type, Bytes payload) {
      const OutgoingFrame frame = make_frame(type, payload);
      end.feed(*frame.bytes);
      if (seal) end.feed(seal->next(frame.digest));
    };
    switch (data.ConsumeIntegralInRange(0, 6)) {
      case 0:
        end.feed(some_bytes(data, 256));
        break;
      case 1:
        if (!seal) receive(FrameType::challenge, encode(Challenge{kWireVersion, handshake.acceptor_nonce}));
        break;
      case 2:
        if (!seal) receive(FrameType::proof, encode(proof_of(kKey, handshake, Side::acceptor)));
        break;
      case 3:
        receive(static_cast<FrameType>(data.ConsumeIntegralInRange(0, 20)), some_bytes(data, 512));
        break;
      case 4:
        end.send(kEnter, some_bytes(data, 64));
        break;
      case 5: {
        const std::vector<std::vector<std::byte>> contributions(data.ConsumeIntegralInRange<std::size_t>(0, 4),
                                                                some_bytes(data, 16));
        receive(kResult, encode_result(static_cast<Call>(data.ConsumeIntegralInRange(0, 4)),
                                       data.ConsumeIntegralInRange<std::uint64_t>(0, 3), contributions));
        break;
      }
      default:
        end.sent(data.ConsumeIntegralInRange<std::size_t>(0, 300));
        break;
    }
    const bool before = end.proven();
    Frame frame;
    while (end.next(frame) == ConnectingEnd::News::frame) {
      require(end.proven());
      const auto result = frame.type == kResult ? parse_result(frame.payload, kSize) : std::nullopt;
      if (result) require(result->contributions.size() == (result->call == Call::allgather ? kSize : 0));
    }
    if (end.proven() && !before) seal.emplace(kKey, handshake, Side::acceptor);
    require(!end.failure() || end.failure()->complaint.status != Status::ok);
  }
}

}  // namespace
}  // namespace railyard::bootstrap

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace railyard;
  static const bool quiet = [] {
    set_log_sink([](LogLevel, std::string_view) {});
    return true;
  }();
  (void)quiet;
  FuzzedDataProvider data(bytes, size);
  switch (data.ConsumeIntegralInRange(0, 2)) {
    case 0:
      bootstrap::fuzz_parsers(data);
      break;
    case 1:
      bootstrap::ServerFuzz().run(data);
      break;
    default:
      bootstrap::fuzz_connecting_end(data);
      break;
  }
  return 0;
}
