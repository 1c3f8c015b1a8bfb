/// The failover of a report: a stream of puts while the connections of one tcp rail are cut, again and again, for a
/// while.
#include <fmt/core.h>
#include <linux/tcp.h>  // glibc's own has no tcpi_bytes_acked
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <set>

#include "base/clock.hpp"
#include "bench/pattern.hpp"
#include "railyard/window.hpp"
#include "report_measure.hpp"

namespace railyard::tool {

namespace {

constexpr int kTarget = 1;
constexpr std::size_t kOver = 0;  ///< signal at the target: the stream is over
constexpr std::size_t kPut = std::size_t{256} << 10U;
constexpr std::size_t kSlots = 32;
constexpr std::uint64_t kSeed = 17;
constexpr double kStep = 0.01;  ///< seconds of one sample
constexpr int kDescriptors = 1024;
constexpr std::uint8_t kListening = 10;  ///< TCP_LISTEN, a state of the kernel's

/// A TCP connection of this process.
struct Connection {
  int descriptor = -1;
  std::uint16_t local = 0;
  std::uint16_t remote = 0;
  std::uint64_t acknowledged = 0;
};

std::uint16_t port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return reinterpret_cast<const sockaddr_in&>(address).sin_port;
  if (address.ss_family == AF_INET6) return reinterpret_cast<const sockaddr_in6&>(address).sin6_port;
  return 0;
}

/// The connections of this process; the ports that it listens on go to `listening`.
std::vector<Connection> connections(std::set<std::uint16_t>& listening) {
  std::vector<Connection> found;
  for (int descriptor = 3; descriptor < kDescriptors; ++descriptor) {
    sockaddr_storage local{};
    sockaddr_storage remote{};
    socklen_t local_bytes = sizeof(local);
    socklen_t remote_bytes = sizeof(remote);
    tcp_info info{};
    socklen_t info_bytes = sizeof(info);
    if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&local), &local_bytes) != 0 || port_of(local) == 0)
      continue;
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &info_bytes) != 0) continue;
    if (info.tcpi_state == kListening) listening.insert(port_of(local));
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&remote), &remote_bytes) != 0) continue;
    found.push_back({descriptor, port_of(local), port_of(remote), info.tcpi_bytes_acked});
  }
  return found;
}

/// All connections of one rail: the kernel knows them by the port that one side of them listens on.
class RailCutter {
 public:
  /// Chooses the rail with the busiest connection. False: no connection has carried anything.
  bool choose() {
    std::set<std::uint16_t> listening;
    const auto all = connections(listening);
    const auto busiest = std::max_element(all.begin(), all.end(), [](const Connection& a, const Connection& b) {
      return a.acknowledged < b.acknowledged;
    });
    if (busiest == all.end() || busiest->acknowledged < kPut) return false;
    port_ = listening.contains(busiest->local) ? busiest->local : busiest->remote;
    return true;
  }
  void cut() const {
    std::set<std::uint16_t> ignored;
    for (const Connection& connection : connections(ignored)) {
      if (connection.local == port_ || connection.remote == port_) shutdown(connection.descriptor, SHUT_RDWR);
    }
  }

 private:
  std::uint16_t port_ = 0;
};

/// What has happened up to now, every kStep.
class Timeline {
 public:
  explicit Timeline(World& world) : world_(world), before_(world.statistics()), began_(SteadyClock().now()), last_(0) {
    found_.series.push_back({"all rails: complete at the target", {}});
    for (std::size_t i = 0; i < before_.rails.size(); ++i) found_.series.push_back({fmt::format("rail {}", i), {}});
  }

  double now() const { return static_cast<double>(SteadyClock().now() - began_) * 1e-9; }
  void mark(const std::string& text) { found_.marks.push_back({now(), text}); }
  void complete(std::size_t bytes) { delivered_ += bytes; }

  void sample() {
    const double time = now();
    if (time - last_ < kStep) return;
    const WorldStatistics after = world_.statistics();
    const double scale = 1e-6 / (time - last_);
    found_.series[0].points.push_back({time, static_cast<double>(delivered_) * scale});
    for (std::size_t i = 0; i < after.rails.size(); ++i) {
      const std::uint64_t sent = after.rails[i].bytes_sent - before_.rails[i].bytes_sent;
      found_.series[i + 1].points.push_back({time, static_cast<double>(sent) * scale});
    }
    if (after.links_lost > before_.links_lost && losses_++ == 0) mark("link lost");
    if (after.links_rejoined > before_.links_rejoined && whole_ && joins_++ == 0) mark("link back");
    before_ = after;
    last_ = time;
    delivered_ = 0;
  }
  void outage_over() { whole_ = true; }
  std::uint64_t losses() const { return losses_; }
  ReportFindings take() { return std::move(found_); }

 private:
  World& world_;
  WorldStatistics before_;
  std::int64_t began_;
  double last_;
  std::size_t delivered_ = 0;
  std::uint64_t losses_ = 0;
  std::uint64_t joins_ = 0;
  bool whole_ = false;
  ReportFindings found_;
};

Result<ReportFindings> stream(World& world, Window& window, std::span<const std::byte> buffer, double seconds) {
  Timeline timeline(world);
  RailCutter cutter;
  // Three parts of the same length. They count from each other: a machine that is busy may skip no part.
  const double part = seconds / 3;
  enum class Stage { before, outage, after } stage = Stage::before;
  double stage_began = 0;
  double last_cut = 0;
  std::array<Ticket, kSlots> tickets{};
  for (std::uint64_t i = 0; stage != Stage::after || timeline.now() < stage_began + part; ++i) {
    const std::size_t slot = i % kSlots;
    if (auto done = window.wait(tickets[slot]); !done) return std::move(done.error());
    if (i >= kSlots) timeline.complete(kPut);
    auto ticket = window.put(kTarget, slot * kPut, buffer.data() + slot * kPut, kPut);
    if (!ticket) return std::move(ticket.error());
    tickets[slot] = *ticket;
    timeline.sample();
    const double now = timeline.now();
    if (stage == Stage::before && now > part && i > kSlots) {
      if (!cutter.choose()) return Error(Status::rail_failed, "no tcp connection carries the stream: nothing to cut");
      timeline.mark("rail cut");
      stage = Stage::outage;
      stage_began = now;
    }
    if (stage != Stage::outage) continue;
    if (now > stage_began + part && timeline.losses() > 0) {
      timeline.mark("rail works again");
      timeline.outage_over();
      stage = Stage::after;
      stage_began = now;
    } else if (now > stage_began + 10 * part) {
      return Error(Status::rail_failed, "a rail was cut, and no link was lost");
    } else if (now - last_cut > 0.001) {
      last_cut = now;
      cutter.cut();
    }
  }
  if (auto done = window.quiet(kTarget); !done) return std::move(done.error());
  return timeline.take();
}

}  // namespace

ReportBody failover_body(double seconds) {
  return [seconds](const Settings& settings, Bootstrap& bootstrap) -> Result<ReportFindings> {
    auto world = World::open({.settings = &settings, .bootstrap = &bootstrap});
    if (!world) return std::move(world.error());
    auto window = Window::allocate(*world, kSlots * kPut);
    if (!window) return std::move(window.error());
    ReportFindings found;
    if (world->rank() == 0) {
      std::vector<std::byte> buffer(kSlots * kPut);
      bench::fill_pattern(buffer, kSeed);
      auto streamed = stream(*world, *window, buffer, seconds);
      if (!streamed) return streamed;
      found = std::move(*streamed);
      if (auto told = window->signal(kTarget, {.index = kOver}); !told) return std::move(told.error());
    } else {
      const auto patience = Deadline::in(std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3) + 60'000));
      auto over = window->wait_signal(kOver, Comparison::greater_equal, 1, patience);
      if (!over) return std::move(over.error());
      if (const auto wrong = bench::find_difference(window->local(), kSeed))
        return Error(Status::rail_failed, fmt::format("wrong data at byte {} after the failover", *wrong));
    }
    if (auto closed = window->close(); !closed) return std::move(closed.error());
    return found;
  };
}

}  // namespace railyard::tool
