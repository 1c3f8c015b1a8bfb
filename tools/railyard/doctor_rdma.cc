/// Between the ranks of a world whose rails are verbs: whether what an RDMA port sends arrives at those of the others.
/// A message of several packets of full size goes over a queue pair made as rails make theirs, so that a wrong GID, a
/// switch that drops long packets and a firewall that drops UDP show here rather than as links that do not come up.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <thread>

#include "base/bytes.hpp"
#include "base/entropy.hpp"
#include "doctor_checks.hpp"
#include "fabric/rail.hpp"
#include "fabric/verbs/port.hpp"
#include "railyard/bootstrap.hpp"

namespace railyard::tool {

namespace {

using fabric::Event;
using fabric::Post;

constexpr std::size_t kMessage = 8192;  ///< packets have up to 4096 bytes
constexpr std::uint16_t kMostPorts = 256;

/// A port that a rail is opened on, as its rank tells the others.
struct RdmaPort {
  std::string name;
  std::string fabric;
  std::uint32_t mtu = 0;
  std::vector<std::byte> address;
};

/// One of ours, with a message to send and room for what peers send.
struct OwnPort {
  RdmaPort port;
  std::vector<std::byte> memory;  ///< outlives the rail, which knows it
  fabric::Registration registration;
  std::vector<fabric::PostContext> receives;
  std::unique_ptr<fabric::Rail> rail;

  std::size_t message_bytes() const { return std::min(kMessage, rail->capabilities().max_message); }
  fabric::LocalChunk chunk(std::size_t number) {
    return {memory.data() + number * kMessage, message_bytes(),
            registration.descriptor[static_cast<std::size_t>(fabric::Lane::control)]};
  }
};

/// A message on its way to a port of a peer.
struct Attempt : fabric::PostContext {
  static constexpr std::uint8_t kTag = 1;

  std::size_t rank = 0;
  const RdmaPort* to = nullptr;
  OwnPort* from = nullptr;
  fabric::RemoteId remote = 0;
  bool posted = false;
  bool over = false;
  std::string why;  ///< it did not arrive; empty: it did, or has not been heard of
  bool arrived = false;

  void fail(std::string reason) {
    over = true;
    why = std::move(reason);
  }
};

Result<std::vector<OwnPort>> open_ports(Settings settings, std::size_t peers) {
  std::vector<OwnPort> ports;
  settings.rails = 0;
  settings.shared_memory = "off";
  const auto offers = fabric::chosen_offers(settings);
  if (!offers || offers->front().driver != "verbs") return ports;
  auto rails = fabric::open_rails(settings);
  if (!rails) return std::move(rails.error());
  for (std::size_t i = 0; i < rails->size() && i < kMostPorts; ++i) {
    const auto& about = *std::static_pointer_cast<fabric::verbs::Port>((*offers)[i].driver_data);
    OwnPort& own = ports.emplace_back();
    own.rail = std::move((*rails)[i]);
    own.port = {about.name(), own.rail->fabric(), 128U << about.mtu, own.rail->address()};
    own.receives.resize(std::min(peers * rails->size(), own.rail->capabilities().depth));
    own.memory.resize((1 + own.receives.size()) * kMessage);
    auto registered = own.rail->register_memory(own.memory, {});
    if (!registered) return std::move(registered.error());
    own.registration = *registered;
    for (std::size_t j = 0; j < own.receives.size(); ++j)
      if (own.rail->receive(own.chunk(1 + j), &own.receives[j]) != Post::posted) break;
  }
  return ports;
}

std::vector<std::byte> write_ports(const std::vector<OwnPort>& ports) {
  ByteWriter out;
  out.u16(static_cast<std::uint16_t>(ports.size()));
  for (const OwnPort& own : ports) {
    out.text(own.port.name);
    out.text(own.port.fabric);
    out.u32(own.port.mtu);
    out.blob(own.port.address);
  }
  return out.take();
}

std::optional<std::vector<RdmaPort>> read_ports(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  std::vector<RdmaPort> ports;
  const std::uint16_t count = in.u16();
  if (count > kMostPorts) in.fail();
  for (std::uint16_t i = 0; i < count && in.ok(); ++i) {
    RdmaPort port;
    port.name = in.text();
    port.fabric = in.text();
    port.mtu = in.u32();
    const auto address = in.blob();
    port.address.assign(address.begin(), address.end());
    ports.push_back(std::move(port));
  }
  return in.done() ? std::optional(std::move(ports)) : std::nullopt;
}

/// The port of ours that `peer`, one of its rank's in that turn, is tried from: of the same subnet, and of the same
/// turn where that is possible, so that all of ours are tried. Null: there is none.
OwnPort* port_towards(std::vector<OwnPort>& mine, const RdmaPort& peer, std::size_t turn) {
  const auto same = [&](const OwnPort& own) { return own.port.fabric == peer.fabric; };
  if (turn < mine.size() && same(mine[turn])) return &mine[turn];
  const auto found = std::ranges::find_if(mine, same);
  return found == mine.end() ? nullptr : &*found;
}

Result<void> begin(Attempt& attempt) {
  fabric::LinkTag tag;
  if (auto filled = fill_random(std::as_writable_bytes(std::span(&tag.id, 1))); !filled) return filled;
  auto remote = attempt.from->rail->connect(attempt.to->address, tag);
  if (!remote) return std::move(remote.error());
  attempt.remote = *remote;
  return {};
}

/// Sends what has not been sent yet, and takes note of what happened.
void move_on(std::vector<OwnPort>& ports, std::deque<Attempt>& attempts) {
  for (Attempt& attempt : attempts) {
    if (attempt.posted || attempt.over) continue;
    const Post post = attempt.from->rail->send(attempt.remote, attempt.from->chunk(0), &attempt);
    attempt.posted = post == Post::posted;
    if (post == Post::failed) attempt.fail(attempt.from->rail->failure());
  }
  std::array<Event, 64> events;
  for (OwnPort& own : ports) {
    own.rail->ring();
    const std::size_t count = own.rail->poll(events);
    for (const Event& event : std::span(events).first(count)) {
      if (event.kind == Event::Kind::lost) {
        for (Attempt& attempt : attempts)
          if (attempt.from == &own && attempt.remote == event.remote && !attempt.over)
            attempt.fail(own.rail->describe_error(event.error));
      } else if (event.context != nullptr && event.context->tag == Attempt::kTag) {
        auto& attempt = static_cast<Attempt&>(*event.context);
        if (attempt.over) continue;
        attempt.arrived = event.kind == Event::Kind::sent;
        attempt.over = true;
        if (!attempt.arrived) attempt.why = own.rail->describe_error(event.error);
      }
    }
  }
}

Finding finding_of(const Attempt& attempt) {
  const std::string way = fmt::format("rank {}: {} from {}", attempt.rank, attempt.to->name, attempt.from->port.name);
  if (attempt.arrived)
    return {"rdma-peer", Verdict::ok,
            fmt::format("{}: {} bytes arrived, MTU {}", way, attempt.from->message_bytes(),
                        std::min(attempt.to->mtu, attempt.from->port.mtu)),
            "", ""};
  const std::string why = !attempt.why.empty() ? attempt.why
                          : attempt.posted     ? "a message of full packets did not arrive"
                                               : "no answer";
  return {"rdma-peer", Verdict::fail, fmt::format("{}: {}", way, why),
          "Both ports are up, and no verbs rail comes about between them.",
          "Compare GID, VLAN and partition of both ends (`railyard info`); the network must let UDP port 4791 through "
          "(RoCE), in packets as long as the MTU"};
}

}  // namespace

Result<void> check_rdma_ranks(Bootstrap& bootstrap, const Settings& settings, int timeout_ms, Findings& out) {
  auto mine = open_ports(settings, static_cast<std::size_t>(bootstrap.size()) - 1);
  if (!mine)
    out.push_back({"rdma-peer", Verdict::fail, mine.error().text(), "No verbs rail can be opened on this host.",
                   "See `railyard info`; RAILYARD_DRIVER=tcp does without"});
  std::vector<OwnPort> none;
  std::vector<OwnPort>& ports = mine ? *mine : none;
  auto all = bootstrap.allgather(write_ports(ports), {});
  if (!all) return std::move(all.error());
  std::deque<std::vector<RdmaPort>> peers;
  std::deque<Attempt> attempts;
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    if (static_cast<int>(rank) == bootstrap.rank()) continue;
    std::size_t turn = 0;
    for (const RdmaPort& port : peers.emplace_back(read_ports((*all)[rank]).value_or(std::vector<RdmaPort>()))) {
      OwnPort* const from = port_towards(ports, port, turn++);
      if (from == nullptr) continue;
      Attempt& attempt = attempts.emplace_back();
      attempt.tag = Attempt::kTag;
      attempt.rank = rank;
      attempt.to = &port;
      attempt.from = from;
      if (auto begun = begin(attempt); !begun) attempt.fail(begun.error().text());
    }
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  const auto under_way = [](const Attempt& attempt) { return !attempt.over; };
  while (std::ranges::any_of(attempts, under_way) && std::chrono::steady_clock::now() < end) {
    move_on(ports, attempts);
    std::this_thread::yield();
  }
  for (const Attempt& attempt : attempts) {
    out.push_back(finding_of(attempt));
    const std::uint32_t here = attempt.from->port.mtu;
    if (here == attempt.to->mtu) continue;
    out.push_back({"rdma-mtu", Verdict::warn,
                   fmt::format("rank {}: {} has an MTU of {}, {} here {}", attempt.rank, attempt.to->name,
                               attempt.to->mtu, attempt.from->port.name, here),
                   "Links between them have the smaller one: more packets for the same bytes.",
                   "Give the interfaces below both ports the same MTU (`ip link set NAME mtu 9000`)"});
  }
  // The others may not be through, and a rail answers while it is polled.
  Result<void> met;
  std::atomic<bool> over{false};  // publishes `met` to the loop
  std::thread waiting([&] {
    met = bootstrap.barrier({});
    over.store(true, std::memory_order_release);
  });
  while (!over.load(std::memory_order_acquire)) {
    move_on(ports, attempts);
    std::this_thread::yield();
  }
  waiting.join();
  for (OwnPort& own : ports) own.rail->stop();
  return met;
}

}  // namespace railyard::tool
