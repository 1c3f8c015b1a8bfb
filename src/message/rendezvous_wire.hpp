/// What the two ends of a handshake say to each other, without their sockets: bytes in, bytes out. One thread at a
/// time.
///
///     connector                     listener
///     request (version, listener, nonce) ->
///                                   <-  challenge (version, nonce)          or refusal
///     proof   (of the secret)        ->
///     hello   (sealed)               ->
///                                   <-  proof of the secret                 or refusal
///                                   <-  welcome (sealed)                    or the host's refusal, sealed
///     ready   (sealed)               ->
///
/// Frames, proofs and seals are the bootstrap's; what is there a job's key is here the listener's secret and its id.
/// Until its proof an unauthenticated peer gets frames of `kMostHandshake` bytes only. Nothing is encrypted; the secret
/// never travels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bootstrap/protocol.hpp"
#include "message/handle.hpp"
#include "railyard/result.hpp"

namespace railyard::message {

inline constexpr std::uint16_t kRendezvousVersion = 1;

/// The first words of each end. Magic and version keep their place in every version.
struct ConnectionRequest {
  std::uint16_t version = kRendezvousVersion;
  std::uint64_t listener = 0;
  bootstrap::Nonce nonce{};
};
struct Challenge {
  std::uint16_t version = kRendezvousVersion;
  bootstrap::Nonce nonce{};
};
std::vector<std::byte> encode(const ConnectionRequest& request);
std::vector<std::byte> encode(const Challenge& challenge);
/// Nothing for bytes that are no such message. Of another version, the version alone is filled in.
std::optional<ConnectionRequest> parse_connection_request(std::span<const std::byte> payload);
std::optional<Challenge> parse_challenge(std::span<const std::byte> payload);

/// What proofs and seals of a listener are made with.
std::string listener_key(const Secret& secret, std::uint64_t listener);

/// What both ends have: frames cut from what arrives, frames on their way out.
class Conversation {
 public:
  void feed(std::span<const std::byte> bytes) { reader_.feed(bytes); }
  std::span<const std::byte> outgoing() const { return std::span(outgoing_).subspan(sent_); }
  void sent(std::size_t bytes);

 protected:
  Conversation() : reader_(bootstrap::kMostHandshake) {}
  void send(bootstrap::FrameType type, std::span<const std::byte> payload);
  /// What this end sends from now on carries a tag.
  void seal_outgoing(bootstrap::Side mine) { seal_.emplace(key_, handshake_, mine); }
  /// What the other end sends from now on must carry one; whole set-up messages are taken.
  void expect_seal(bootstrap::Side other);

  std::string key_;
  bootstrap::Handshake handshake_;
  bootstrap::FrameReader reader_;
  std::optional<bootstrap::Seal> seal_;

 private:
  std::vector<std::byte> outgoing_;
  std::size_t sent_ = 0;
};

/// The listener's end: somebody connected.
class ListenerHandshake : public Conversation {
 public:
  /// Why an inbound connection was turned away, for those who count.
  enum class Fault : std::uint8_t { none, malformed, version, unknown_listener, forged };
  enum class News : std::uint8_t {
    nothing,  ///< more bytes are needed
    hello,    ///< its set-up message is there; `answer` or `refuse` is next
    ready,    ///< its last set-up message is there: the handshake is over
    fault,    ///< nothing more can come of it; what it is told is in `outgoing`
  };
  /// The secret of a listener; null: there is no such listener.
  using FindListener = std::function<const Secret*(std::uint64_t listener)>;

  explicit ListenerHandshake(const bootstrap::Nonce& nonce);
  /// The next thing in what was fed.
  News next(const FindListener& find_listener);
  std::vector<std::byte> take_setup_message() { return std::exchange(setup_message_, {}); }
  void answer(std::span<const std::byte> welcome);
  /// Tells the inbound connection why and ends the talk.
  void refuse(Status status, std::string_view why);

  std::uint64_t listener() const { return listener_; }
  Fault fault() const { return fault_; }
  /// What it did wrong, in words.
  const std::string& fault_text() const { return fault_text_; }

 private:
  enum class Phase : std::uint8_t { request, proof, hello, deciding, ready, over };

  News handle(bootstrap::Frame& frame, const FindListener& find_listener);
  News handle_request(const bootstrap::Frame& frame, const FindListener& find_listener);
  News handle_proof(const bootstrap::Frame& frame);
  News handle_setup_message(bootstrap::Frame& frame);
  News fail(Fault fault, Status status, std::string why);

  Phase phase_ = Phase::request;
  std::uint64_t listener_ = 0;
  std::vector<std::byte> setup_message_;
  Fault fault_ = Fault::none;
  std::string fault_text_;
};

/// The connector's end, for one connection.
class ConnectorHandshake : public Conversation {
 public:
  /// `hello` is sent once the listener asks for it.
  ConnectorHandshake(const Secret& secret, std::uint64_t listener, const bootstrap::Nonce& nonce,
                     bootstrap::SharedBytes hello);
  /// Handles what was fed.
  void advance();
  /// The listener's answer, once.
  std::optional<std::vector<std::byte>> take_welcome() { return std::exchange(welcome_, std::nullopt); }
  bool has_welcome() const { return welcome_.has_value(); }
  /// Why nothing more can come of this connection, if that is so.
  const std::optional<Error>& failure() const { return failure_; }
  /// That failure is the host's own word, proven: no other address will say otherwise.
  bool refused_by_host() const { return refused_by_host_; }
  void send_ready(std::span<const std::byte> ready) { send(bootstrap::FrameType::leave, ready); }

 private:
  enum class Phase : std::uint8_t { challenge, proof, answer, done };

  void handle(bootstrap::Frame& frame);
  void handle_challenge(const bootstrap::Frame& frame);
  void handle_proof(const bootstrap::Frame& frame);
  void handle_answer(bootstrap::Frame& frame);
  void fail(Status status, std::string why);

  Phase phase_ = Phase::challenge;
  bootstrap::SharedBytes hello_;
  std::optional<std::vector<std::byte>> welcome_;
  std::optional<Error> failure_;
  bool refused_by_host_ = false;
};

}  // namespace railyard::message
