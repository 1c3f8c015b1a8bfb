#include "fabric/sim/rail.hpp"

#include <fmt/format.h>

#include "base/bytes.hpp"

namespace railyard::fabric::sim {

namespace {

constexpr std::uint32_t kAddressMark = 0x314d4953;  // "SIM1"

Capabilities capabilities_of(const RailOptions& options) {
  Capabilities capabilities;
  capabilities.driver = "sim";
  capabilities.provider = "sim";
  capabilities.delivery_complete = options.delivery_complete;
  capabilities.needs_local_registration = options.needs_local_registration;
  capabilities.binds_registrations = options.binds_registrations;
  capabilities.virtual_addresses = options.virtual_addresses;
  capabilities.progresses_alone = options.progresses_alone;
  capabilities.max_message = options.max_message;
  capabilities.max_write = options.max_write;
  capabilities.inject_bytes = options.inject_bytes;
  capabilities.depth = options.depth;
  capabilities.line_rate = options.tells_rate ? options.bandwidth : 0;
  capabilities.fencing = options.fencing;
  capabilities.packet_lifetime = options.packet_lifetime;
  return capabilities;
}

}  // namespace

SimRail::SimRail(SimFabric& fabric, std::uint32_t port)
    : fabric_(&fabric),
      port_(port),
      capabilities_(std::make_unique<const Capabilities>(capabilities_of(fabric.options(port)))) {}

SimRail::~SimRail() { fabric_->close(port_); }

std::string SimRail::name() const {
  const RailOptions& options = fabric_->options(port_);
  return fmt::format("sim {}.{}", options.process, options.number);
}

std::string SimRail::fabric() const { return fabric_->options(port_).plane; }

std::vector<std::byte> SimRail::address() const {
  ByteWriter writer;
  writer.u32(kAddressMark);
  writer.u32(port_);
  return writer.take();
}

Result<RemoteId> SimRail::connect(std::span<const std::byte> address, LinkTag tag) {
  ByteReader reader(address);
  const std::uint32_t mark = reader.u32();
  const std::uint32_t to = reader.u32();
  if (!reader.done() || mark != kAddressMark || to >= fabric_->ports_.size()) {
    return Error(Status::invalid, fmt::format("{}: this is no address of a simulated rail", name()));
  }
  const RailOptions& there = fabric_->options(to);
  if (there.plane != fabric()) {
    return Error(Status::not_found, fmt::format("{} (plane {}) cannot reach sim {}.{} (plane {})", name(), fabric(),
                                                there.process, there.number, there.plane));
  }
  if (!fabric_->ports_[port_].open) return Error(Status::rail_failed, fmt::format("{} is stopped", name()));
  return fabric_->connect(port_, to, tag);
}

void SimRail::disconnect(RemoteId remote) { fabric_->disconnect(port_, remote); }

bool SimRail::fence(LinkTag tag) { return fabric_->fence(port_, tag); }

Result<Registration> SimRail::register_memory(std::span<std::byte> memory, Access access) {
  if (memory.data() == nullptr || memory.empty()) {
    return Error(Status::invalid, fmt::format("{}: cannot register empty memory", name()));
  }
  return fabric_->ports_[port_].registrations.add(memory, access.remote);
}

void SimRail::revoke(const Registration& registration) {
  if (!fabric_->ports_[port_].registrations.remove(registration)) ++fabric_->statistics_.unknown_registrations;
}

Post SimRail::send(RemoteId remote, const LocalChunk& message, PostContext* context) {
  SimFabric::Operation operation;
  operation.kind = SimFabric::Operation::Kind::send;
  operation.lane = Lane::control;
  operation.local = message;
  operation.context = context;
  return fabric_->post(port_, remote, operation);
}

Post SimRail::receive(const LocalChunk& buffer, PostContext* context) {
  return fabric_->post_receive(port_, buffer, context);
}

Post SimRail::write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context) {
  SimFabric::Operation operation;
  operation.kind = SimFabric::Operation::Kind::write;
  operation.lane = Lane::data;
  operation.address = to.address;
  operation.key = to.key;
  operation.local = from;
  operation.options = options;
  operation.context = context;
  return fabric_->post(port_, to.remote, operation);
}

Post SimRail::read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) {
  SimFabric::Operation operation;
  operation.kind = SimFabric::Operation::Kind::read;
  operation.lane = Lane::data;
  operation.address = from.address;
  operation.key = from.key;
  operation.local = to;
  operation.context = context;
  return fabric_->post(port_, from.remote, operation);
}

std::size_t SimRail::poll(std::span<Event> events) { return fabric_->poll(port_, events); }

Liveness SimRail::liveness(RemoteId remote) { return fabric_->liveness(port_, remote); }

void SimRail::stop() { fabric_->stop(port_); }

std::string SimRail::describe_error(int error) const { return fault_text(error); }

std::string SimRail::failure() const { return fabric_->ports_[port_].failure; }

}  // namespace railyard::fabric::sim
