/// The bench tests through Railyard's own window: the calls that a user would write.
#pragma once

#include <memory>
#include <vector>

#include "bench/contestant.hpp"
#include "railyard/window.hpp"
#include "railyard/world.hpp"

namespace railyard::bench {

class Ours final : public Contestant {
 public:
  /// Makes a window of `bytes` on every rank of the world, and a buffer as long. Collective.
  static Result<std::unique_ptr<Ours>> open(World& world, std::size_t bytes);
  /// Takes the window down. Collective.
  Result<void> close() { return window_.close(); }

  std::string name() const override { return "ours"; }
  std::span<std::byte> exposed() override { return window_.local(); }
  std::span<std::byte> buffer() override { return buffer_; }
  Result<double> run_source(const Round& round) override;
  Result<void> run_target(const Round& round) override;

 private:
  explicit Ours(Window window, std::size_t bytes) : window_(std::move(window)), buffer_(bytes) {}
  Result<void> stream(const Round& round);
  Result<void> small_puts(const Round& round);
  Result<void> ping_pong(const Round& round);
  Result<void> fetches(const Round& round);
  template <typename Word>
  Result<void> fetch_words(const Round& round);

  Window window_;
  std::vector<std::byte> buffer_;
  std::vector<Ticket> tickets_;  ///< of the operations in flight, as a ring
  std::uint64_t pings_ = 0;      ///< signals of all ping-pongs so far
};

}  // namespace railyard::bench
