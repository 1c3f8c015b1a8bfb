/// Device memory on its way out. A fragment is copied into a pinned buffer ahead of its turn, a few of them at a time,
/// so that the GPU copies one while the kernel sends another. It enters the order of the wire only when it is there:
/// messages, acknowledgements and bytes of the host never stand behind a GPU.
#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "fabric/tcp/rail.hpp"

namespace railyard::fabric::tcp {

namespace {

constexpr std::size_t kAhead = 4;   ///< fragments of one connection, each way of using it
constexpr std::size_t kLookAt = 8;  ///< posts in search of one to fetch for

bool same_operation(const Fetch& one, const Fetch& other) {
  return one.context == other.context && one.number == other.number;
}

}  // namespace

/// When memory is registered, before kernels run: to open a queue, to allocate pinned memory and the first copy may
/// wait for those that do.
Result<void> TcpRail::open_device(int device) {
  const auto refuse = [&](const Error& error) {
    return Error(error.status(), fmt::format("{}: memory of GPU {}: {}", name_, device, error.message()));
  };
  if (static_cast<std::size_t>(device) >= DeviceTraffic::kMostDevices)
    return refuse(Error(Status::unsupported, "this rail serves GPUs 0 to 127"));
  if (device_ == nullptr) device_ = std::make_unique<DeviceTraffic>();
  for (DeviceCopies* const copies : {&device_->to_host, &device_->to_device}) {
    if (auto ready = copies->prepare(device); !ready) return refuse(ready.error());
  }
  return {};
}

DeviceCopies::State TcpRail::state_of(const Fetch& fetch) {
  return fetch.bounce == nullptr ? DeviceCopies::State::failed : device_->to_host.state(fetch.ticket);
}

/// False: no buffer is free.
bool TcpRail::fetch(Connection& connection, std::vector<Fetch>& queue, int device, const std::byte* from,
                    Fetch wanted) {
  if (!connection.fetching) {
    connection.fetching = true;
    device_->fetching.push_back(&connection);
  }
  wanted.bounce = device_->to_host.take_bounce();
  connection.starved = wanted.bounce == nullptr;
  if (connection.starved) return false;
  if (auto ticket = device_->to_host.copy(device, wanted.bounce, from, wanted.bytes)) {
    wanted.ticket = *ticket;
  } else {
    static LogLimit limit;
    if (limit.allow(now_ns()))
      log_warn(in_log(), "{} bytes of GPU {} cannot be sent: {}", wanted.bytes, device, ticket.error().text());
    device_->to_host.give_bounce(std::exchange(wanted.bounce, nullptr));
  }
  queue.push_back(wanted);
  return true;
}

void TcpRail::fetch_ahead(Connection& connection) {
  connection.starved = false;
  if (connection.link != nullptr && !connection.binding) fetch_writes(connection, *connection.link);
  fetch_answers(connection);
}

void TcpRail::fetch_writes(Connection& connection, TcpLink& link) {
  PostContext* context = link.bulk.front();
  for (std::size_t looked = 0; context != nullptr && looked < kLookAt; ++looked, context = posted_of(context).next) {
    Posted& posted = posted_of(context);
    if (!posted.on_device() || posted.kind != FrameKind::write) continue;
    while (posted.fetched < posted.bytes) {
      if (link.fetches.size() == kAhead) return;
      Fetch wanted;
      wanted.context = context;
      wanted.bytes = std::min(posted.bytes - posted.fetched, static_cast<std::uint32_t>(kFragmentBytes));
      if (!fetch(connection, link.fetches, posted.device, posted.address + posted.fetched, wanted)) return;
      posted.fetched += wanted.bytes;
    }
  }
}

void TcpRail::fetch_answers(Connection& connection) {
  for (std::size_t i = 0; i < std::min<std::size_t>(connection.served.size(), kLookAt); ++i) {
    ServedRead& read = connection.served[i];
    if (!read.on_device() || read.refused) continue;
    while (read.fetched < read.bytes) {
      if (connection.served_fetches.size() == kAhead) return;
      Fetch wanted;
      wanted.key = read.key;
      wanted.number = read.number;
      wanted.bytes = std::min(read.bytes - read.fetched, static_cast<std::uint32_t>(kFragmentBytes));
      if (!fetch(connection, connection.served_fetches, read.device, read.from + read.fetched, wanted)) return;
      read.fetched += wanted.bytes;
    }
  }
}

/// What the first of a queue has come to. One that failed is dealt with when nothing else of its operation is under
/// way.
DeviceCopies::State TcpRail::state_of_first(const std::vector<Fetch>& queue) {
  using State = DeviceCopies::State;
  if (queue.empty()) return State::under_way;
  const State state = state_of(queue.front());
  const bool waits = state == State::failed && std::ranges::any_of(queue, [&](const Fetch& fetch) {
                       return same_operation(fetch, queue.front()) && state_of(fetch) == State::under_way;
                     });
  return waits ? State::under_way : state;
}

std::byte* TcpRail::take_fetched(std::vector<Fetch>& queue) {
  std::byte* const bounce = queue.front().bounce;
  queue.erase(queue.begin());
  return bounce;
}

/// The GPU did not make a copy. False: some of the write is with the target, which waits for the rest, and the
/// connection had to end.
bool TcpRail::give_up_write(Connection& connection, TcpLink& link) {
  PostContext* const context = link.bulk.pop();
  std::erase_if(link.fetches, [&](const Fetch& fetch) {
    if (fetch.context != context) return false;
    if (fetch.bounce != nullptr) device_->to_host.give_bounce(fetch.bounce);
    return true;
  });
  const bool whole = posted_of(context).started == 0;
  fail_operation(context, kGpuFailed, Blame::operation);
  if (!whole) end_connection(connection, kGpuFailed);
  return whole;
}

void TcpRail::give_up_answer(Connection& connection) {
  ServedRead& read = connection.served.front();
  read.refused = read.device_failed = true;
  std::erase_if(connection.served_fetches, [&](const Fetch& fetch) {
    if (fetch.number != read.number) return false;
    if (fetch.bounce != nullptr) device_->to_host.give_bounce(fetch.bounce);
    return true;
  });
}

void TcpRail::look_at_fetches() {
  bool starved = false;
  std::erase_if(device_->fetching, [&](Connection* connection) {
    using State = DeviceCopies::State;
    const auto ready = [&](const std::vector<Fetch>& queue) { return state_of_first(queue) != State::under_way; };
    if (connection->standing() && !connection->blocked) {
      const bool writes = connection->link != nullptr && ready(connection->link->fetches);
      const bool fed = connection->starved && device_->to_host.has_free_bounce();
      if (fed || writes || ready(connection->served_fetches)) mark_dirty(*connection);
    }
    starved |= connection->starved;
    const bool none = connection->served_fetches.empty() &&
                      (connection->link == nullptr || connection->link->fetches.empty()) && !connection->starved;
    connection->fetching = connection->standing() && !none;
    return !connection->fetching;
  });
  if (starved && !device_->to_host.has_free_bounce()) free_outgoing_buffers();
  // None is always the first that finds a buffer.
  if (starved && device_->fetching.size() > 1)
    std::rotate(device_->fetching.begin(), device_->fetching.begin() + 1, device_->fetching.end());
}

/// Every buffer is full and waits for a socket. Peers that read nothing must not keep the others from theirs: what has
/// its place on the wire moves to memory of the host, and what has none yet is fetched again later.
void TcpRail::free_outgoing_buffers() {
  const auto idle = [&](const std::vector<Fetch>& queue) {
    return std::ranges::none_of(queue,
                                [&](const Fetch& fetch) { return state_of(fetch) == DeviceCopies::State::under_way; });
  };
  for (const Connection* const connection : device_->fetching)
    if (!idle(connection->served_fetches) || (connection->link != nullptr && !idle(connection->link->fetches))) return;
  for (auto& connection : connections_) {
    if (!connection->blocked) continue;
    for (std::size_t i = connection->out_head; i < connection->out.size(); ++i) {
      OutgoingFrame& frame = connection->out[i];
      if (frame.bounce == nullptr) continue;
      frame.payload = connection->copies.emplace_back(frame.bounce, frame.bounce + frame.bytes).data();
      device_->to_host.give_bounce(std::exchange(frame.bounce, nullptr));
    }
    if (connection->link != nullptr) {
      for (const Fetch& fetch : connection->link->fetches) posted_of(fetch.context).fetched -= fetch.bytes;
      let_go_of_fetches(connection->link->fetches);
    }
    for (ServedRead& read : connection->served) read.fetched = read.done;
    let_go_of_fetches(connection->served_fetches);
  }
}

/// Nobody waits for them any more; those under way still read device memory.
void TcpRail::let_go_of_fetches(std::vector<Fetch>& fetches) {
  for (const Fetch& fetch : fetches) drain(device_->to_host, fetch);
  fetches.clear();
}

}  // namespace railyard::fabric::tcp
