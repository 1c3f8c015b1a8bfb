#include "traffic.hpp"

namespace railyard::bench {

Buffers::Buffers(Channel& channel, std::size_t bytes, std::uint32_t depth)
    : bytes_(bytes), depth_(depth), memory_(bytes * depth), registered_(must(channel.register_memory(memory_))) {}

void stamp(std::span<std::byte> message, std::uint64_t number) {
  if (message.size() < sizeof number) return;
  std::memcpy(message.data(), &number, sizeof number);
  std::memcpy(message.data() + message.size() - sizeof number, &number, sizeof number);
}

void check(std::span<const std::byte> message, std::uint64_t number) {
  if (message.size() < sizeof number) return;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::memcpy(&first, message.data(), sizeof first);
  std::memcpy(&last, message.data() + message.size() - sizeof last, sizeof last);
  if (first != number || last != number) {
    fail(fmt::format("message {} holds the bytes of {} and {}", number, first, last));
  }
}

namespace {

Request* receive_into(Channel& channel, Buffers& buffers, std::uint64_t number) {
  const ReceiveSlot slot{buffers.slot(number), 0, buffers.registered()};
  Request* const request = must(channel.receive(std::span(&slot, 1)));
  if (request == nullptr) fail("no request is free for a receive");
  return request;
}

Request* send_from(Channel& channel, Buffers& buffers, std::uint64_t number) {
  stamp(buffers.slot(number), number);
  Request* const request = must(channel.send(buffers.slot(number), 0, buffers.registered()));
  if (request == nullptr) fail("no request is free for a send");
  return request;
}

/// Whether there is nothing any more to wait for.
bool settle(Channel& channel, Request*& request) {
  if (request != nullptr && must(channel.test(request))) request = nullptr;
  return request == nullptr;
}

}  // namespace

Pinger::Pinger(Channel& out, Channel& in, std::size_t bytes)
    : out_channel_(out), in_channel_(in), out_(out, bytes, 1), in_(in, bytes, 1) {
  times_.reserve(1U << 20U);
}

bool Pinger::step(bool more) {
  if (under_way_) {
    if (!settle(in_channel_, receive_)) return false;
    if (!settle(out_channel_, send_)) return false;
    times_.push_back(now() - begun_);
    check(in_.slot(0), trips_);
    ++trips_;
    under_way_ = false;
  }
  if (!more) return true;
  receive_ = receive_into(in_channel_, in_, 0);
  stamp(out_.slot(0), trips_);
  begun_ = now();
  send_ = must(out_channel_.send(out_.slot(0), 0, out_.registered()));
  under_way_ = true;
  return true;
}

Echo::Echo(Channel& in, Channel& out, std::size_t bytes)
    : out_channel_(out), in_channel_(in), out_(out, bytes, 1), in_(in, bytes, 2) {
  receive_ = receive_into(in_channel_, in_, 0);
}

bool Echo::step() {
  if (!settle(out_channel_, send_) || !settle(in_channel_, receive_)) return false;
  const auto message = in_.slot(trips_);
  check(message, trips_);
  // The next receive first: its grant rides with the answer.
  receive_ = receive_into(in_channel_, in_, trips_ + 1);
  stamp(out_.slot(0), trips_);
  send_ = must(out_channel_.send(out_.slot(0), 0, out_.registered()));
  ++trips_;
  return true;
}

Exchange::Exchange(Channel& out, Channel& in, std::size_t bytes)
    : out_channel_(out), in_channel_(in), out_(out, bytes, 1), in_(in, bytes, 1) {}

std::int64_t Exchange::run() {
  const std::int64_t begun = now();
  Request* receive = receive_into(in_channel_, in_, 0);
  stamp(out_.slot(0), done_);
  Request* send = must(out_channel_.send(out_.slot(0), 0, out_.registered()));
  for (bool sent = false, received = false; !sent || !received;) {
    sent = sent || settle(out_channel_, send);
    received = received || settle(in_channel_, receive);
  }
  check(in_.slot(0), done_++);
  return now() - begun;
}

Stream::Stream(Channel& channel, std::size_t bytes, std::uint32_t depth, bool sends)
    : channel_(channel), buffers_(channel, bytes, depth), depth_(depth), sends_(sends), requests_(depth) {}

bool Stream::step(bool more) {
  bool moved = false;
  while (done_ < begun_ && must(channel_.test(requests_[done_ % depth_]))) {
    if (!sends_) check(buffers_.slot(done_), done_);
    ++done_;
    moved = true;
  }
  while (more && begun_ < done_ + depth_) {
    requests_[begun_ % depth_] =
        sends_ ? send_from(channel_, buffers_, begun_) : receive_into(channel_, buffers_, begun_);
    ++begun_;
    moved = true;
  }
  return moved;
}

}  // namespace railyard::bench
