#include "bench/ours.hpp"

#include <fmt/core.h>

#include <chrono>

namespace railyard::bench {

namespace {

constexpr int kTarget = 1;
constexpr std::size_t kPing = 0;       ///< signal that the other side of a ping-pong waits on
constexpr std::size_t kRoundOver = 1;  ///< signal at the target: so many rounds are over

}  // namespace

Result<std::unique_ptr<Ours>> Ours::open(World& world, std::size_t bytes) {
  auto window = Window::allocate(world, bytes);
  if (!window) return std::move(window.error());
  std::unique_ptr<Ours> ours(new Ours(std::move(*window), bytes));
  if (auto registered = world.remember(ours->buffer_); !registered) return std::move(registered.error());
  return ours;
}

Result<void> Ours::stream(const Round& round) {
  tickets_.assign(round.depth, Ticket{});
  for (std::uint64_t i = 0; i < round.count; ++i) {
    Ticket& place = tickets_[i % round.depth];
    if (auto done = window_.wait(place); !done) return done;
    const std::size_t offset = i % round.slots * round.bytes;
    auto ticket = round.test == Test::get ? window_.get(kTarget, offset, buffer_.data() + offset, round.bytes)
                                          : window_.put(kTarget, offset, buffer_.data() + offset, round.bytes);
    if (!ticket) return std::move(ticket.error());
    place = *ticket;
  }
  return window_.quiet(kTarget);
}

Result<void> Ours::small_puts(const Round& round) {
  // No window here: the library's own back-pressure is part of what is measured.
  for (std::uint64_t i = 0; i < round.count; ++i) {
    const std::size_t offset = i % round.slots * round.bytes;
    auto ticket = window_.put(kTarget, offset, buffer_.data() + offset, round.bytes);
    if (!ticket) return std::move(ticket.error());
  }
  return window_.quiet(kTarget);
}

Result<void> Ours::ping_pong(const Round& round) {
  for (std::uint64_t i = 0; i < round.count; ++i) {
    auto ping = window_.put_signal(kTarget, 0, buffer_.data(), round.bytes, {.index = kPing});
    if (!ping) return std::move(ping.error());
    auto pong = window_.wait_signal(kPing, Comparison::greater_equal, ++pings_);
    if (!pong) return std::move(pong.error());
  }
  return {};
}

template <typename Word>
Result<void> Ours::fetch_words(const Round& round) {
  for (std::uint64_t i = 0; i < round.count; ++i) {
    Word before{};
    auto ticket = window_.fetch_atomic(kTarget, 0, AtomicOp::add, &before, Word{1});
    if (!ticket) return std::move(ticket.error());
    if (auto done = window_.wait(*ticket); !done) return done;
    if (before != static_cast<Word>(i)) {
      return Error(Status::rail_failed, fmt::format("fetch-add {} returned {}", i, before));
    }
  }
  return {};
}

Result<void> Ours::fetches(const Round& round) {
  return round.bytes == 4 ? fetch_words<std::uint32_t>(round) : fetch_words<std::uint64_t>(round);
}

Result<double> Ours::run_source(const Round& round) {
  const auto begin = std::chrono::steady_clock::now();
  Result<void> done;
  switch (round.test) {
    case Test::put:
    case Test::get:
      done = stream(round);
      break;
    case Test::rate:
      done = small_puts(round);
      break;
    case Test::put_signal:
      done = ping_pong(round);
      break;
    case Test::atomic:
      done = fetches(round);
      break;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (!done) return std::move(done.error());
  if (auto told = window_.signal(kTarget, {.index = kRoundOver}); !told) return std::move(told.error());
  if (auto met = window_.barrier(); !met) return std::move(met.error());
  return seconds.count();
}

Result<void> Ours::run_target(const Round& round) {
  if (round.test == Test::put_signal) {
    for (std::uint64_t i = 0; i < round.count; ++i) {
      auto ping = window_.wait_signal(kPing, Comparison::greater_equal, ++pings_);
      if (!ping) return std::move(ping.error());
      auto pong = window_.put_signal(0, 0, buffer_.data(), round.bytes, {.index = kPing});
      if (!pong) return std::move(pong.error());
    }
  }
  auto over = window_.wait_signal(kRoundOver, Comparison::greater_equal, round.serial);
  if (!over) return std::move(over.error());
  return window_.barrier();
}

}  // namespace railyard::bench
