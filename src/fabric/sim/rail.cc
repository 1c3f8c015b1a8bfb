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

Result<RemoteId> SimRail::connect(std::span<const std::byte> address) {
  ByteReader reader(address);
  const std::uint32_t mark = reader.u32();
  const RemoteId remote = reader.u32();
  if (!reader.done() || mark != kAddressMark || remote >= fabric_->ports_.size()) {
    return Error(Status::invalid, fmt::format("{}: this is no address of a simulated rail", name()));
  }
  const RailOptions& there = fabric_->options(remote);
  if (there.plane != fabric()) {
    return Error(Status::not_found, fmt::format("{} (plane {}) cannot reach sim {}.{} (plane {})", name(), fabric(),
                                                there.process, there.number, there.plane));
  }
  fabric_->connect(port_, remote);
  return remote;
}

void SimRail::disconnect(RemoteId remote) { fabric_->disconnect(port_, remote); }

Result<Registration> SimRail::register_memory(std::span<std::byte> memory, Access access) {
  if (memory.data() == nullptr || memory.empty()) {
    return Error(Status::invalid, fmt::format("{}: cannot register empty memory", name()));
  }
  return fabric_->ports_[port_].registrations.add(memory, access.remote);
}

void SimRail::deregister_memory(const Registration& registration) {
  if (!fabric_->ports_[port_].registrations.remove(registration)) ++fabric_->statistics_.unknown_registrations;
}

Post SimRail::send(RemoteId remote, LocalPiece message, PostContext* context) {
  SimFabric::Operation operation;
  operation.kind = SimFabric::Operation::Kind::send;
  operation.lane = Lane::control;
  operation.to = remote;
  operation.local = message;
  operation.context = context;
  return fabric_->post(port_, operation);
}

Post SimRail::receive(LocalPiece buffer, PostContext* context) { return fabric_->post_receive(port_, buffer, context); }

Post SimRail::write(RemotePiece to, LocalPiece from, WriteOptions options, PostContext* context) {
  SimFabric::Operation operation;
  operation.kind = SimFabric::Operation::Kind::write;
  operation.lane = Lane::data;
  operation.to = to.remote;
  operation.address = to.address;
  operation.key = to.key;
  operation.local = from;
  operation.options = options;
  operation.context = context;
  return fabric_->post(port_, operation);
}

Post SimRail::read(RemotePiece from, LocalPiece to, PostContext* context) {
  SimFabric::Operation operation;
  operation.kind = SimFabric::Operation::Kind::read;
  operation.lane = Lane::data;
  operation.to = from.remote;
  operation.address = from.address;
  operation.key = from.key;
  operation.local = to;
  operation.context = context;
  return fabric_->post(port_, operation);
}

std::size_t SimRail::poll(std::span<Event> events) { return fabric_->poll(port_, events); }

void SimRail::stop() { fabric_->stop(port_); }

std::string SimRail::describe_error(int error) const { return fault_text(error); }

std::string SimRail::failure() const { return fabric_->ports_[port_].failure; }

}  // namespace railyard::fabric::sim
