/// A bare TCP socket as a competent user would write it for speed: what tcp rails are measured against.
///
/// One connection, TCP_NODELAY, non-blocking, spinning. No headers, no keys: both ranks know what comes, and receive
/// it straight into its place. Shares no code with the library's own sockets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/fd.hpp"
#include "bench/contestant.hpp"

namespace railyard::bench {

class RawSocket final : public Contestant {
 public:
  /// Listens at a numeric address of this host. Both memories must outlive it. No wait lasts longer than `timeout_ms`.
  static Result<std::unique_ptr<RawSocket>> open(const std::string& address, std::span<std::byte> exposed,
                                                 std::span<std::byte> buffer, std::uint32_t timeout_ms);

  /// What the peer's `connect` needs.
  const std::string& address() const { return address_; }
  std::uint16_t port() const { return port_; }
  /// Rank 0 connects, rank 1 accepts.
  Result<void> connect(int rank, const std::string& address, std::uint16_t port);

  std::string name() const override { return "a bare socket"; }
  bool changes_words() const override { return false; }
  std::span<std::byte> exposed() override { return exposed_; }
  std::span<std::byte> buffer() override { return buffer_; }
  Result<double> run_source(const Round& round) override;
  Result<void> run_target(const Round& round) override;

 private:
  RawSocket() = default;
  Result<void> send(const std::byte* from, std::size_t bytes);
  Result<void> receive(std::byte* to, std::size_t bytes);
  Result<void> send_slots(const Round& round, std::span<const std::byte> memory);
  Result<void> receive_slots(const Round& round, std::span<std::byte> memory);
  template <typename Call>
  Result<void> move(const char* what, std::size_t bytes, Call&& call);

  std::string address_;
  std::uint16_t port_ = 0;
  std::int64_t timeout_ns_ = 0;
  Fd listener_;
  Fd socket_;
  std::span<std::byte> exposed_;
  std::span<std::byte> buffer_;
};

}  // namespace railyard::bench
