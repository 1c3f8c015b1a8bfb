/// SimRail: fabric::Rail over a SimFabric. A thin handle; the state behind it is the fabric's.
#pragma once

#include <memory>

#include "fabric/rail.hpp"
#include "fabric/sim/fabric.hpp"

namespace railyard::fabric::sim {

class SimRail final : public Rail {
 public:
  /// Use SimFabric::open_rail.
  SimRail(SimFabric& fabric, std::uint32_t port);
  /// What it still has to send is dropped; what is on its way may land; what comes for it is dropped.
  ~SimRail() override;
  SimRail(const SimRail&) = delete;
  SimRail& operator=(const SimRail&) = delete;

  const Capabilities& capabilities() const override { return *capabilities_; }
  std::string name() const override;
  std::string fabric() const override;
  std::vector<std::byte> address() const override;
  Result<RemoteId> connect(std::span<const std::byte> address, LinkTag tag) override;
  void disconnect(RemoteId remote) override;
  bool fence(LinkTag tag) override;
  Result<Registration> register_memory(std::span<std::byte> memory, Access access) override;
  void revoke(const Registration& registration) override;
  Post send(RemoteId remote, const LocalChunk& message, PostContext* context) override;
  Post receive(const LocalChunk& buffer, PostContext* context) override;
  Post write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context) override;
  Post read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) override;
  std::size_t poll(std::span<Event> events) override;
  Liveness liveness(RemoteId remote) override;
  void stop() override;
  std::string describe_error(int error) const override;
  std::string failure() const override;

 private:
  SimFabric* fabric_;
  std::uint32_t port_;
  std::unique_ptr<const Capabilities> capabilities_;
};

}  // namespace railyard::fabric::sim
