/// Device memory that bytes arrive for. The kernel puts them into a pinned buffer, a GPU copies them from there, and
/// whoever waits for them is told when it has. The acknowledgement of a write speaks for all writes before it on its
/// connection, so what comes behind a copy waits for it, wherever its own bytes go.
#include <algorithm>

#include "base/log.hpp"
#include "fabric/tcp/rail.hpp"

namespace railyard::fabric::tcp {

namespace {

constexpr std::size_t kMostLandings = 4096;  ///< more than any peer has in flight

}  // namespace

/// False: none is free, and the connection waits.
bool TcpRail::take_buffer(Connection& connection, int device, std::byte* to) {
  if (connection.frame.length == 0) return true;
  std::byte* bounce = device_->to_device.take_bounce();
  if (bounce == nullptr && device_->landing_copies == 0) {
    cut_oldest();
    if (device_->to_device.has_free_bounce()) bounce = device_->to_device.take_bounce();
  }
  if (bounce == nullptr) {
    connection.wants_bounce = true;
    return stall(connection);
  }
  connection.bounce = connection.to = bounce;
  connection.bounce_for = to;
  connection.bounce_device = device;
  connection.bounce_turn = ++device_->buffers_taken;
  return true;
}

/// Every buffer belongs to a connection whose peer has not sent all of a frame yet, and may never. The one that has had
/// its buffer for longest gives it up: what has come is copied, and the rest of the frame is a frame of its own.
void TcpRail::cut_oldest() {
  Connection* oldest = nullptr;
  for (auto& each : connections_)
    if (each->bounce != nullptr && (oldest == nullptr || each->bounce_turn < oldest->bounce_turn)) oldest = each.get();
  if (oldest == nullptr) return;
  Connection& connection = *oldest;
  std::byte* const bounce = std::exchange(connection.bounce, nullptr);
  const auto have = static_cast<std::uint32_t>(connection.to - bounce);
  PostContext* const context = std::exchange(connection.taking, nullptr);
  if (have == 0) {
    device_->to_device.give_bounce(bounce);
  } else {
    Frame& frame = connection.frame;
    Landing landing;
    landing.last = false;
    landing.context = context;
    if (context != nullptr) {
      posted_of(context).started += have;
    } else {
      landing.key = frame.key;
      landing.write.number = frame.number;
      connection.write_bytes += have;
      frame.offset += have;
    }
    frame.length -= have;
    begin_landing(connection, bounce, have, landing);
  }
  connection.to = nullptr;
  connection.wants_bounce = true;
  stall(connection);
}

/// Whether it is worth asking again for those that are stalled.
bool TcpRail::buffers_may_be_had() const {
  if (device_ == nullptr || (!device_->to_device.has_free_bounce() && device_->landing_copies != 0)) return false;
  return std::ranges::any_of(stalled_, [](const Connection* connection) { return connection->wants_bounce; });
}

/// Copies what a buffer holds to where it belongs; with no buffer it only keeps its place in the order.
void TcpRail::begin_landing(Connection& connection, std::byte* bounce, std::size_t bytes, Landing landing) {
  if (connection.landings.size() == kMostLandings) return end_connection(connection, kBadFrame);
  landing.copies = bounce != nullptr;
  if (connection.inbound) landing.link = *connection.inbound;
  if (bounce != nullptr) {
    const int device = connection.bounce_device;
    if (auto ticket = device_->to_device.copy(device, connection.bounce_for, bounce, bytes)) {
      landing.ticket = *ticket;
      landing.bounce = bounce;
      ++device_->landing_copies;
    } else {
      static LogLimit limit;
      if (limit.allow(now_ns()))
        log_warn(in_log(), "{} bytes that came for GPU {} cannot be copied there: {}", bytes, device,
                 ticket.error().text());
      device_->to_device.give_bounce(bounce);
    }
  }
  connection.landings.push_back(landing);
  if (std::exchange(connection.landing, true)) return;
  device_->landing.push_back(&connection);
}

void TcpRail::finish_device_read(Connection& connection, std::byte* bounce, PostContext* context) {
  const Frame& frame = connection.frame;
  posted_of(context).started += frame.length;
  Landing landing;
  landing.context = context;
  landing.last = frame.last;
  if (frame.last) connection.link->reading.take(frame.number);
  begin_landing(connection, bounce, frame.length, landing);
}

void TcpRail::look_at_landings() {
  std::erase_if(device_->landing, [&](Connection* connection) {
    while (!connection->landings.empty()) {
      const Landing& first = connection->landings.front();
      DeviceCopies::State state = first.copies ? DeviceCopies::State::failed : DeviceCopies::State::done;
      if (first.bounce != nullptr) state = device_->to_device.state(first.ticket);
      if (state == DeviceCopies::State::under_way) return false;
      Landing landing = first;
      connection->landings.pop_front();
      if (landing.bounce != nullptr) {
        device_->to_device.give_bounce(landing.bounce);
        --device_->landing_copies;
      }
      finish_landing(*connection, landing, state == DeviceCopies::State::done);
    }
    connection->landing = false;
    return true;
  });
}

void TcpRail::finish_landing(Connection& connection, Landing& landing, bool good) {
  if (landing.context != nullptr) {
    Posted& posted = posted_of(landing.context);
    if (!good) posted.fate = CopyFate::failed;
    if (!landing.last) return;
    if (posted.fate == CopyFate::good) return give_back(landing.context, Event::Kind::read, posted.bytes);
    return fail_operation(landing.context, posted.immediate != 0 ? static_cast<int>(posted.immediate) : kGpuFailed,
                          Blame::operation);
  }
  const ArrivedWrite& write = landing.write;
  if (!good) connection.bad_landing = write.number;
  if (!landing.last) return;
  if (connection.bad_landing == write.number) return refuse(connection, write.number, Refused::write_by_device);
  if (!inbound_.fenced(landing.link)) land(connection, write);
}

void TcpRail::look_at_device() {
  if (!device_->landing.empty()) look_at_landings();
  if (!device_->fetching.empty()) look_at_fetches();
  if (!device_->draining.empty()) look_at_draining();
}

/// Takes a copy from those who waited for it.
void TcpRail::drain(DeviceCopies& copies, const DeviceCopy& copy) {
  if (copy.bounce != nullptr) device_->draining.emplace_back(&copies, copy);
}

void TcpRail::look_at_draining() {
  std::erase_if(device_->draining, [&](const auto& entry) {
    const auto& [copies, copy] = entry;
    if (copies->state(copy.ticket) == DeviceCopies::State::under_way) return false;
    copies->give_bounce(copy.bounce);
    if (copies == &device_->to_device) --device_->landing_copies;
    if (copy.context == nullptr) return true;
    Posted& posted = posted_of(copy.context);
    if (posted.fate == CopyFate::ended && --posted.after == 0) pending_.push_failed(copy.context, ECANCELED);
    return true;
  });
}

/// The connection is over: nothing of it is told any more. A link's own fetches go with it.
void TcpRail::let_go_of_device(Connection& connection) {
  if (connection.bounce != nullptr) device_->to_device.give_bounce(std::exchange(connection.bounce, nullptr));
  for (std::size_t i = connection.out_head; i < connection.out.size(); ++i)
    if (std::byte* const bounce = std::exchange(connection.out[i].bounce, nullptr))
      device_->to_host.give_bounce(bounce);
  let_go_of_fetches(connection.served_fetches);
  if (connection.link != nullptr) let_go_of_fetches(connection.link->fetches);
  for (const Landing& landing : connection.landings) drain(device_->to_device, landing);
  connection.landings.clear();
}

/// Whether device memory that the post names is still being copied: it is told of once that is over.
bool TcpRail::ends_after_copies(PostContext* context) {
  const auto count =
      std::ranges::count_if(device_->draining, [&](const auto& entry) { return entry.second.context == context; });
  if (count == 0) return false;
  Posted& posted = posted_of(context);
  posted.fate = CopyFate::ended;
  posted.after = static_cast<std::uint64_t>(count);
  return true;
}

/// For memory that goes back to its owner: no GPU touches it any more when this returns.
void TcpRail::wait_for_copies(std::uint64_t key) {
  for (auto& connection : connections_) {
    for (const Landing& landing : connection->landings)
      if (landing.key == key && landing.bounce != nullptr) device_->to_device.wait(landing.ticket);
    std::erase_if(connection->served_fetches, [&](const Fetch& fetch) {
      if (fetch.key != key) return false;
      if (fetch.bounce == nullptr) return true;
      device_->to_host.wait(fetch.ticket);
      device_->to_host.give_bounce(fetch.bounce);
      return true;
    });
  }
  for (const auto& [copies, copy] : device_->draining)
    if (copy.key == key) copies->wait(copy.ticket);
}

/// Whether something that a peer sent on that link may still be on its way into device memory.
bool TcpRail::copies_of(const LinkTag& tag) const {
  const auto concerns = [&](const DeviceCopy& copy) {
    return copy.bounce != nullptr && copy.link.id == tag.id && copy.link.epoch <= tag.epoch;
  };
  return std::ranges::any_of(device_->draining, [&](const auto& entry) { return concerns(entry.second); }) ||
         std::ranges::any_of(
             connections_, [&](const auto& connection) { return std::ranges::any_of(connection->landings, concerns); });
}

/// Whether a GPU works on something that a later poll has to see to.
bool TcpRail::device_is_busy() {
  const auto waits = [&](const std::vector<Fetch>& queue) {
    return !queue.empty() && state_of_first(queue) == DeviceCopies::State::under_way;
  };
  return !device_->landing.empty() || !device_->draining.empty() || buffers_may_be_had() ||
         std::ranges::any_of(device_->fetching, [&](const Connection* connection) {
           return connection->starved || waits(connection->served_fetches) ||
                  (connection->link != nullptr && waits(connection->link->fetches));
         });
}

}  // namespace railyard::fabric::tcp
