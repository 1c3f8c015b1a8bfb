/// A rank's side of the rendezvous without its socket: bytes in, bytes out. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/protocol.hpp"
#include "railyard/result.hpp"

namespace railyard::bootstrap {

struct ClientCoreOptions {
  std::int32_t rank = 0;
  std::int32_t size = 1;
  std::string job_key;
  std::string where;  ///< the rendezvous's address, for messages
  Nonce nonce{};      ///< fresh for each connection
};

class ClientCore {
 public:
  /// The first frame waits in `outgoing` at once.
  explicit ClientCore(ClientCoreOptions options);

  void received(std::span<const std::byte> bytes);
  /// The rendezvous has proven itself: calls may be made.
  bool welcomed() const { return phase_ == Phase::member; }
  /// Why nothing more can come of this connection, if that is so.
  const std::optional<Error>& failure() const { return failure_; }

  /// Makes the next collective call. One at a time.
  void enter(Call call, std::uint64_t timeout_ns, std::vector<std::byte> contribution);
  /// The answer to the call, once it is there.
  std::optional<GatherResult> take_result();
  /// Says good-bye.
  void leave();

  std::span<const std::byte> outgoing() const;
  void sent(std::size_t bytes);

 private:
  enum class Phase : std::uint8_t { challenge, welcome, member };

  void handle(const Frame& frame);
  void handle_challenge(const Frame& frame);
  void handle_welcome(const Frame& frame);
  void handle_member(const Frame& frame);
  void send(FrameType type, std::span<const std::byte> payload);
  void fail(Status status, std::string message, std::int32_t peer = -1);

  ClientCoreOptions options_;
  Phase phase_ = Phase::challenge;
  FrameReader reader_;
  Handshake handshake_;
  std::optional<Seal> seal_;
  std::optional<Error> failure_;
  std::uint64_t sequence_ = 0;
  std::optional<Call> call_;  ///< the one under way
  std::optional<GatherResult> result_;
  std::deque<std::vector<std::byte>> queue_;
  std::size_t queue_offset_ = 0;
};

}  // namespace railyard::bootstrap
