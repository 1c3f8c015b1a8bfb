#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "doubles/verbs/core.hpp"

namespace railyard::verbs_double {

namespace {

Core* g_core = nullptr;

/// Knobs: under the lock, and what they set free moves.
template <typename Change>
void turn(Core& core, Change&& change) {
  const std::lock_guard lock(core.lock);
  change();
  core.look_closer();
  if (core.by_itself) core.advance();
}

}  // namespace

Core* core() { return g_core; }

Network::Network(const NetworkOptions& options) : core_(std::make_unique<Core>()) {
  if (g_core != nullptr) throw std::logic_error("there is a network of the verbs double already: one at a time");
  for (std::size_t i = 0; i < options.devices; ++i) {
    auto device = std::make_unique<Device>();
    device->node_type = IBV_NODE_CA;
    device->transport_type = IBV_TRANSPORT_IB;
    device->number = i;
    device->options = options.device;
    std::snprintf(device->name, sizeof device->name, "fake%zu", i);
    std::snprintf(device->dev_name, sizeof device->dev_name, "uverbs%zu", i);
    core_->devices.push_back(std::move(device));
  }
  g_core = core_.get();
  add_device_calls(library_);
  add_region_calls(library_);
  add_queue_calls(library_);
  add_pair_calls(library_);
  add_state_calls(library_);
  add_event_calls(library_);
  fabric::verbs::replace_library(&library_);
}

Network::~Network() {
  fabric::verbs::replace_library(nullptr);
  g_core = nullptr;
}

DeviceOptions& Network::options(std::size_t device) { return core_->devices.at(device)->options; }

void Network::motion(Motion motion) {
  turn(*core_, [&] { core_->by_itself = motion == Motion::by_itself; });
}

void Network::advance() {
  const std::lock_guard lock(core_->lock);
  // Nobody rang: look at all of them.
  for (const auto& device : core_->devices) {
    for (const auto& [number, pair] : device->pairs) {
      if (pair->sends.acknowledged != pair->sends.doorbell.load(std::memory_order_acquire)) core_->wake(*pair);
    }
  }
  core_->advance();
}

void Network::freeze(std::size_t device) {
  turn(*core_, [&] { core_->devices.at(device)->frozen = true; });
}
void Network::thaw(std::size_t device) {
  turn(*core_, [&] { core_->devices.at(device)->frozen = false; });
}
void Network::hold_completions(std::size_t device, bool hold) {
  turn(*core_, [&] { core_->devices.at(device)->held = hold; });
}

void Network::pace(std::size_t device, unsigned work_requests) {
  turn(*core_, [&] { core_->devices.at(device)->pace = work_requests; });
}

void Network::keep_packets(std::size_t device) {
  turn(*core_, [&] {
    Device& from = *core_->devices.at(device);
    from.keeps_packets = true;
    for (const auto& [number, pair] : from.pairs) pair->copied = pair->sends.executed;
  });
}
void Network::release_packets(std::size_t device) {
  turn(*core_, [&] {
    Device& from = *core_->devices.at(device);
    from.keeps_packets = false;
    core_->deliver_stragglers(from);
  });
}

void Network::port_down(std::size_t device, std::uint8_t port) {
  turn(*core_, [&] { core_->switch_port(*core_->devices.at(device), port, false); });
}
void Network::port_up(std::size_t device, std::uint8_t port) {
  turn(*core_, [&] { core_->switch_port(*core_->devices.at(device), port, true); });
}
void Network::cut(std::size_t device) {
  turn(*core_, [&] { core_->devices.at(device)->cut = true; });
}
void Network::mend(std::size_t device) {
  turn(*core_, [&] { core_->devices.at(device)->cut = false; });
}
void Network::cut_path(std::size_t one, std::size_t other) {
  turn(*core_, [&] { core_->cut_paths.insert(std::minmax(one, other)); });
}
void Network::mend_path(std::size_t one, std::size_t other) {
  turn(*core_, [&] { core_->cut_paths.erase(std::minmax(one, other)); });
}
void Network::retry_time(std::chrono::nanoseconds time) {
  turn(*core_, [&] { core_->retry_time = time; });
}

void Network::kill(std::size_t device) {
  turn(*core_, [&] {
    Device& dead = *core_->devices.at(device);
    dead.dead = true;
    for (DoubleContext* context : dead.contexts) core_->tell(*context, IBV_EVENT_DEVICE_FATAL, nullptr);
  });
}

void Network::break_pair(std::size_t device, std::uint32_t qp_num) {
  turn(*core_, [&] {
    QueuePair& pair = *core_->devices.at(device)->pairs.at(qp_num);
    core_->tell_pair(pair, IBV_EVENT_QP_FATAL);
    core_->to_error(pair);
  });
}

void Network::lose_datagrams(std::size_t device, unsigned next) {
  turn(*core_, [&] { core_->devices.at(device)->faults.lose_next = next; });
}
void Network::lose_every(std::size_t device, unsigned every) {
  turn(*core_, [&] { core_->devices.at(device)->faults.lose_every = every; });
}
void Network::duplicate_datagrams(std::size_t device, unsigned next) {
  turn(*core_, [&] { core_->devices.at(device)->faults.duplicate_next = next; });
}
void Network::swap_datagrams(std::size_t device, unsigned next) {
  turn(*core_, [&] { core_->devices.at(device)->faults.swap_next = next; });
}
void Network::delay_datagrams(std::size_t device, std::chrono::nanoseconds time) {
  turn(*core_, [&] { core_->devices.at(device)->faults.delay = time; });
}

void Network::record_datagrams(std::size_t device) {
  turn(*core_, [&] { core_->devices.at(device)->faults.record = true; });
}

std::vector<std::vector<std::byte>> Network::recorded_datagrams(std::size_t device) const {
  const std::lock_guard lock(core_->lock);
  return core_->devices.at(device)->faults.recorded;
}

void Network::fail_call(std::string_view name, unsigned nth, int error, unsigned times) {
  turn(*core_, [&] { core_->faults[std::string(name)] = {nth - 1, times, error}; });
}

Count Network::count(std::size_t device, Kind kind) const {
  const std::lock_guard lock(core_->lock);
  return core_->devices.at(device)->counts[static_cast<std::size_t>(kind)];
}
Count Network::count(Kind kind) const {
  const std::lock_guard lock(core_->lock);
  return core_->totals[static_cast<std::size_t>(kind)];
}
std::size_t Network::alive() const {
  const std::lock_guard lock(core_->lock);
  return core_->living.size();
}
Traffic Network::traffic(std::size_t device) const {
  const std::lock_guard lock(core_->lock);
  return core_->devices.at(device)->traffic;
}

std::size_t Network::relaxed_regions() const {
  const std::lock_guard lock(core_->lock);
  std::size_t relaxed = 0;
  for (const auto& device : core_->devices) {
    for (const Region* region : device->regions) {
      if (region != nullptr && (region->access & IBV_ACCESS_RELAXED_ORDERING) != 0) ++relaxed;
    }
  }
  return relaxed;
}

std::vector<std::string> Network::violations() const {
  const std::lock_guard lock(core_->lock);
  return core_->violations;
}
void Network::forget_violations() {
  const std::lock_guard lock(core_->lock);
  core_->violations.clear();
}

}  // namespace railyard::verbs_double
