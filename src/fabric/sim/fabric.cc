#include "fabric/sim/fabric.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fabric/sim/rail.hpp"

namespace railyard::fabric::sim {

namespace {

/// How far an idle wait moves the clock when nothing is on its way: only deadlines and timers can be waiting then.
constexpr std::int64_t kIdleStep = 10'000;

}  // namespace

void VirtualClock::idle() {
  if (!fabric_->step()) fabric_->advance(kIdleStep);
}

std::uint64_t FabricStatistics::violations() const {
  std::uint64_t sum = registrations_left + unknown_registrations;
  for (int fault = kFaultNone + 1; fault < kFaults; ++fault) {
    if (is_violation(fault)) sum += faults[static_cast<std::size_t>(fault)];
  }
  return sum;
}

SimFabric::SimFabric(FabricOptions options) : options_(std::move(options)), random_(options_.seed), clock_(*this) {
  ports_.reserve(options_.rails.size());
  int processes = 0;
  for (const RailOptions& rail : options_.rails) {
    ports_.emplace_back(Registrations::Terms{rail.binds_registrations, rail.virtual_addresses, random_.next()});
    processes = std::max(processes, rail.process + 1);
  }
  ready_.resize(static_cast<std::size_t>(processes));
  dead_.resize(static_cast<std::size_t>(processes));
  paused_until_.resize(static_cast<std::size_t>(processes));
  longest_pause_.resize(static_cast<std::size_t>(processes));
  for (std::uint32_t i = 0; i < options_.changes.size(); ++i) {
    queue_.push(options_.changes[i].time, Happening::rail_change, i);
  }
  for (std::uint32_t i = 0; i < options_.deaths.size(); ++i) {
    queue_.push(options_.deaths[i].time, Happening::death, i);
  }
  for (std::uint32_t i = 0; i < options_.pauses.size(); ++i) {
    queue_.push(options_.pauses[i].time, Happening::pause, i);
  }
  for (std::uint32_t i = 0; i < options_.intrusions.size(); ++i) {
    queue_.push(options_.intrusions[i].time, Happening::intrusion, i);
  }
}

SimFabric::~SimFabric() = default;

Result<std::unique_ptr<Rail>> SimFabric::open_rail(std::size_t index) {
  if (index >= ports_.size()) {
    return Error(Status::out_of_range, fmt::format("no simulated rail {}: there are {}", index, ports_.size()));
  }
  Port& port = ports_[index];
  if (port.open) return Error(Status::invalid, fmt::format("simulated rail {} is open already", index));
  port.open = true;
  return std::unique_ptr<Rail>(std::make_unique<SimRail>(*this, static_cast<std::uint32_t>(index)));
}

void SimFabric::advance(std::int64_t nanoseconds) {
  const std::int64_t until = clock_.now_ + nanoseconds;
  while (!queue_.empty() && queue_.next().time <= until) {
    const Scheduled next = queue_.next();
    queue_.pop();
    clock_.now_ = next.time;
    dispatch(next);
  }
  clock_.now_ = until;
}

bool SimFabric::step() {
  if (queue_.empty()) return false;
  advance(queue_.next().time - clock_.now_);
  return true;
}

bool SimFabric::step_within(std::int64_t nanoseconds) {
  return !queue_.empty() && queue_.next().time <= now() + nanoseconds && step();
}

bool SimFabric::anything_ready() const {
  if (ready_total_ == 0 || options_.pauses.empty()) return ready_total_ != 0;
  for (std::size_t process = 0; process < ready_.size(); ++process) {
    if (ready_[process] != 0 && !paused(static_cast<int>(process))) return true;
  }
  return false;
}

void SimFabric::dispatch(const Scheduled& next) {
  note(static_cast<std::uint64_t>(next.happening), next.subject, 0);
  switch (next.happening) {
    case Happening::departure_control:
      depart(next.subject, Lane::control);
      break;
    case Happening::departure_data:
      depart(next.subject, Lane::data);
      break;
    case Happening::arrival:
      arrive(next.subject);
      break;
    case Happening::landing:
      reach(next.subject);
      break;
    case Happening::completion:
      complete(next.subject);
      break;
    case Happening::link_news:
      take_news(next.subject);
      break;
    case Happening::rail_change:
      set_state(options_.changes[next.subject].rail, options_.changes[next.subject].state);
      break;
    case Happening::death:
      kill(options_.deaths[next.subject].process, options_.deaths[next.subject].how);
      break;
    case Happening::pause:
      pause(options_.pauses[next.subject].process, options_.pauses[next.subject].length);
      break;
    case Happening::resumption:
      resume(static_cast<int>(next.subject));
      break;
    case Happening::intrusion:
      intrude(options_.intrusions[next.subject]);
      break;
  }
}

void SimFabric::note(std::uint64_t what, std::uint64_t who, std::uint64_t how_much) {
  std::uint64_t mixed = trace_ ^ (static_cast<std::uint64_t>(clock_.now_) * 0x9e3779b97f4a7c15ULL);
  mixed ^= (what << 56U) ^ (who << 28U) ^ how_much;
  mixed *= 0xff51afd7ed558ccdULL;
  trace_ = mixed ^ (mixed >> 29U);
}

std::int64_t SimFabric::wire_time(std::uint32_t port, std::size_t bytes) const {
  constexpr double kHeader = 64;  // so that empty packets take time too
  const double nanoseconds = (static_cast<double>(bytes) + kHeader) * 1e9 / options(port).bandwidth;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(nanoseconds));
}

std::int64_t SimFabric::latency(std::uint32_t from, std::uint32_t to) const {
  return std::max(options(from).latency, options(to).latency);
}

std::uint32_t SimFabric::take_packet(std::size_t bytes) {
  std::uint32_t index = 0;
  if (free_packets_.empty()) {
    index = static_cast<std::uint32_t>(packets_.size());
    packets_.emplace_back();
  } else {
    index = free_packets_.back();
    free_packets_.pop_back();
  }
  Packet& packet = packets_[index];
  if (packet.capacity < bytes) {
    packet.payload = std::make_unique_for_overwrite<std::byte[]>(bytes);
    packet.capacity = bytes;
  }
  packet.bytes = bytes;
  packet.offset = 0;
  packet.request = false;
  packet.held = false;
  packet.tries = 0;
  return index;
}

void SimFabric::give_packet(std::uint32_t packet) {
  packets_[packet].at_target = false;
  free_packets_.push_back(packet);
}

std::size_t SimFabric::memory_bytes() const {
  std::size_t sum = queue_.capacity_bytes() + options_.rails.capacity() * sizeof(RailOptions) +
                    ports_.capacity() * sizeof(Port) + operations_.capacity() * sizeof(Operation) +
                    packets_.capacity() * sizeof(Packet) + links_.capacity() * sizeof(SimLink) +
                    notices_.capacity() * sizeof(Notice) +
                    (free_operations_.capacity() + free_packets_.capacity() + free_links_.capacity() +
                     free_notices_.capacity() + ready_.capacity()) *
                        sizeof(std::uint32_t);
  for (const Packet& packet : packets_) sum += packet.capacity;
  for (const Port& port : ports_) {
    sum += port.registrations.capacity_bytes() + port.receives.capacity_bytes() + port.not_ready.capacity_bytes() +
           port.arrived.capacity_bytes() + port.completions.capacity_bytes() + port.floors.capacity() * sizeof(Floor) +
           (port.remotes.capacity() + port.free_remotes.capacity()) * sizeof(std::uint32_t) +
           port.incoming.capacity() * sizeof(Incoming) + port.fences.capacity() * sizeof(LinkTag);
    for (const auto& departures : port.departures) sum += departures.capacity_bytes();
  }
  return sum;
}

}  // namespace railyard::fabric::sim
