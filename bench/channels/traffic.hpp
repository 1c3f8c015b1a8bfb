/// What a channel carries in a measurement. Each is a small machine that `step` moves on; nothing waits, so that one
/// thread drives any number of them, as NCCL's does.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "pair.hpp"

namespace railyard::bench {

/// Memory of one channel for `depth` messages, registered.
class Buffers {
 public:
  Buffers(Channel& channel, std::size_t bytes, std::uint32_t depth);
  std::span<std::byte> slot(std::uint64_t message) {
    return std::span(memory_).subspan((message % depth_) * bytes_, bytes_);
  }
  const Memory* registered() const { return registered_.get(); }

 private:
  std::size_t bytes_;
  std::uint32_t depth_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Memory> registered_;
};

/// The number of a message stands at its beginning and its end.
void stamp(std::span<std::byte> message, std::uint64_t number);
void check(std::span<const std::byte> message, std::uint64_t number);

/// Begins every exchange of a ping-pong, and knows how long each took.
class Pinger {
 public:
  Pinger(Channel& out, Channel& in, std::size_t bytes);
  /// False: the trip under way has not ended. `more`: begin another one when it has.
  bool step(bool more);
  std::uint64_t trips() const { return trips_; }
  bool idle() const { return !under_way_; }
  std::vector<std::int64_t>& times() { return times_; }

 private:
  Channel& out_channel_;
  Channel& in_channel_;
  Buffers out_;
  Buffers in_;
  Request* receive_ = nullptr;
  Request* send_ = nullptr;
  bool under_way_ = false;
  std::int64_t begun_ = 0;
  std::uint64_t trips_ = 0;
  std::vector<std::int64_t> times_;
};

class Echo {
 public:
  Echo(Channel& in, Channel& out, std::size_t bytes);
  bool step();
  std::uint64_t trips() const { return trips_; }

 private:
  Channel& out_channel_;
  Channel& in_channel_;
  Buffers out_;
  Buffers in_;
  Request* receive_ = nullptr;
  Request* send_ = nullptr;
  std::uint64_t trips_ = 0;
};

/// Both ends send and receive at the same time, and begin again when both messages are there: a step of a collective. A
/// receive is posted no earlier than the send that it waits for.
class Exchange {
 public:
  Exchange(Channel& out, Channel& in, std::size_t bytes);
  /// Nanoseconds of one exchange.
  std::int64_t run();

 private:
  Channel& out_channel_;
  Channel& in_channel_;
  Buffers out_;
  Buffers in_;
  std::uint64_t done_ = 0;
};

/// A stream: so many sends, or receives, under way all the time.
class Stream {
 public:
  Stream(Channel& channel, std::size_t bytes, std::uint32_t depth, bool sends);
  /// Takes what is done; `more`: begins new ones. Returns whether anything happened.
  bool step(bool more);
  std::uint64_t begun() const { return begun_; }
  std::uint64_t done() const { return done_; }

 private:
  Channel& channel_;
  Buffers buffers_;
  const std::uint32_t depth_;
  const bool sends_;
  std::vector<Request*> requests_;
  std::uint64_t begun_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace railyard::bench
