/// Traffic of the bare libfabric endpoint: windowed streams and ping-pongs.
#include <fmt/core.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "bench/raw_libfabric.hpp"

namespace railyard::bench {

namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

constexpr std::size_t kQueueBatch = 64;
constexpr std::uint32_t kPollsPerClockRead = 4096;
constexpr std::size_t kNoticeBytes = 8;

}  // namespace

Result<bool> RawRail::post(Kind kind, std::size_t offset, std::size_t bytes) {
  if (free_contexts_.empty()) return false;
  fi_context2* context = free_contexts_.back();
  std::byte* local = buffer_.data() + offset;
  void* descriptor = buffer_registration_ ? fi_mr_desc(buffer_registration_.get()) : nullptr;
  const std::uint64_t remote = peer_base_ + offset;
  ssize_t code = 0;
  switch (kind) {
    case Kind::write:
      code = fi_write(endpoint_.get(), local, bytes, descriptor, peer_, remote, peer_key_, context);
      break;
    case Kind::write_data:
      code = fi_writedata(endpoint_.get(), local, bytes, descriptor, 1, peer_, remote, peer_key_, context);
      break;
    case Kind::read:
      code = fi_read(endpoint_.get(), local, bytes, descriptor, peer_, remote, peer_key_, context);
      break;
    case Kind::fetch_add:
      // The operand lies in the spare bytes, the word's old value goes to the front of the buffer.
      code = fi_fetch_atomic(endpoint_.get(), buffer_.data() + spare_offset(), 1, descriptor, local, descriptor, peer_,
                             remote, peer_key_, bytes == 4 ? FI_UINT32 : FI_UINT64, FI_SUM, context);
      break;
    case Kind::send:
      code = fi_send(endpoint_.get(), local, bytes, descriptor, peer_, context);
      break;
  }
  if (code == -FI_EAGAIN) return false;
  if (code != 0) {
    return Error(Status::rail_failed, fmt::format("bare libfabric on {} {}: post: {}", where_.provider, where_.domain,
                                                  fabric::ofi::library().strerror(static_cast<int>(-code))));
  }
  free_contexts_.pop_back();
  ++posted_;
  return true;
}

Result<void> RawRail::poll() {
  std::array<fi_cq_data_entry, kQueueBatch> entries;
  const ssize_t got = fi_cq_read(queue_.get(), entries.data(), entries.size());
  if (got == -FI_EAGAIN) {
    if (++empty_polls_ > patience_) sched_yield();
    return {};
  }
  empty_polls_ = 0;
  if (got < 0) return queue_error();
  for (std::size_t i = 0; i < static_cast<std::size_t>(got); ++i) {
    const fi_cq_data_entry& entry = entries[i];
    auto* context = static_cast<fi_context2*>(entry.op_context);
    const bool landed = (entry.flags & FI_REMOTE_CQ_DATA) != 0;
    if (landed || (entry.flags & FI_RECV) != 0) {
      ++(landed ? landed_ : received_);
      // A write with data uses up a receive only where the provider's mode says so.
      if (uses_receives_ && context != nullptr) free_receives_.push_back(context);
    } else {
      ++completed_;
      free_contexts_.push_back(context);
    }
  }
  return free_receives_.empty() ? Result<void>{} : keep_receives();
}

Error RawRail::queue_error() {
  fi_cq_err_entry entry{};
  if (fi_cq_readerr(queue_.get(), &entry, 0) < 0) {
    return Error(Status::rail_failed,
                 fmt::format("bare libfabric on {} {}: the queue failed", where_.provider, where_.domain));
  }
  return Error(Status::rail_failed,
               fmt::format("bare libfabric on {} {}: completion: {}: {}", where_.provider, where_.domain,
                           fabric::ofi::library().strerror(entry.err),
                           fi_cq_strerror(queue_.get(), entry.prov_errno, entry.err_data, nullptr, 0)));
}

template <typename Condition>
Result<void> RawRail::poll_until(const char* what, Condition done) {
  std::int64_t give_up_at = 0;
  for (std::uint32_t polls = 1; !done(); ++polls) {
    if (auto polled = poll(); !polled) return polled;
    if (polls % kPollsPerClockRead != 0) continue;
    const std::int64_t now = now_ns();
    if (give_up_at == 0) give_up_at = now + timeout_ns_;
    if (now > give_up_at) {
      return Error(Status::timeout, fmt::format("bare libfabric on {} {}: waited {} s for {}", where_.provider,
                                                where_.domain, timeout_ns_ / 1'000'000'000, what));
    }
  }
  return {};
}

Result<void> RawRail::post_now(Kind kind, std::size_t offset, std::size_t bytes) {
  bool posted = false;
  Error failure;
  auto waited = poll_until("room to post", [&] {
    auto answer = post(kind, offset, bytes);
    if (!answer) {
      failure = std::move(answer.error());
      return true;
    }
    posted = *answer;
    return posted;
  });
  if (failure.status() != Status::ok) return failure;
  return waited;
}

Result<void> RawRail::drain() {
  return poll_until("its own operations", [&] { return completed_ == posted_; });
}

Result<void> RawRail::notify() {
  if (auto posted = post_now(Kind::write_data, spare_offset(), kNoticeBytes); !posted) return posted;
  return drain();
}

Result<void> RawRail::stream(const Round& round, Kind kind) {
  const std::size_t depth = std::min(round.depth, contexts_.size());
  const std::uint64_t first = posted_;
  const std::uint64_t last = first + round.count;
  Error failure;
  auto waited = poll_until("a stream of operations", [&] {
    while (posted_ < last && posted_ - completed_ < depth) {
      auto answer = post(kind, (posted_ - first) % round.slots * round.bytes, round.bytes);
      if (!answer) {
        failure = std::move(answer.error());
        return true;
      }
      if (!*answer) break;
    }
    return completed_ == last;
  });
  if (failure.status() != Status::ok) return failure;
  return waited;
}

Result<void> RawRail::ping_pong(const Round& round, Kind kind, bool first) {
  std::uint64_t& arrived = kind == Kind::send ? received_ : landed_;
  const std::uint64_t before = arrived;
  for (std::uint64_t i = 0; i < round.count; ++i) {
    if (first) {
      if (auto posted = post_now(kind, 0, round.bytes); !posted) return posted;
    }
    if (auto waited = poll_until("the other side", [&] { return arrived > before + i; }); !waited) return waited;
    if (!first) {
      if (auto posted = post_now(kind, 0, round.bytes); !posted) return posted;
    }
  }
  return drain();
}

Result<void> RawRail::fetch_loop(const Round& round) {
  const std::uint64_t one = 1;
  std::memcpy(buffer_.data() + spare_offset(), &one, sizeof(one));
  for (std::uint64_t i = 0; i < round.count; ++i) {
    if (auto posted = post_now(Kind::fetch_add, 0, round.bytes); !posted) return posted;
    if (auto waited = drain(); !waited) return waited;
    std::uint64_t before = 0;
    std::memcpy(&before, buffer_.data(), round.bytes);
    if (before != i) {
      return Error(Status::rail_failed, fmt::format("bare libfabric on {} {}: fetch-add {} returned {}",
                                                    where_.provider, where_.domain, i, before));
    }
  }
  return {};
}

Result<double> RawRail::run_source(const Round& round) {
  const bool messages = round.test == Test::atomic && !has_atomics_;
  const std::uint64_t landed_before = landed_;
  const std::int64_t begin = now_ns();
  Result<void> done;
  if (round.test == Test::put_signal || messages) {
    done = ping_pong(round, messages ? Kind::send : Kind::write_data, true);
  } else if (round.test == Test::atomic) {
    done = fetch_loop(round);
  } else {
    done = stream(round, round.test == Test::get ? Kind::read : Kind::write);
  }
  if (!done) return std::move(done.error());
  std::int64_t end = now_ns();
  if (round.test != Test::put_signal && !messages) {
    if (auto told = notify(); !told) return std::move(told.error());
    auto answered = poll_until("the target's answer", [&] { return landed_ > landed_before; });
    if (!answered) return std::move(answered.error());
    // A stream of writes is over when the target has it; reads and fetches were over when they returned.
    if (round.test == Test::put || round.test == Test::rate) end = now_ns();
  }
  return static_cast<double>(end - begin) * 1e-9;
}

Result<void> RawRail::run_target(const Round& round) {
  const bool messages = round.test == Test::atomic && !has_atomics_;
  if (round.test == Test::put_signal || messages) {
    return ping_pong(round, messages ? Kind::send : Kind::write_data, false);
  }
  const std::uint64_t landed_before = landed_;
  auto waited = poll_until("the source's end of round", [&] { return landed_ > landed_before; });
  if (!waited) return waited;
  return notify();
}

}  // namespace railyard::bench
