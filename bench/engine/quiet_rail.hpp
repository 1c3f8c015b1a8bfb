/// What the rails of these programs have in common: they take memory and links as they come, and carry no chunks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fabric/rail.hpp"

namespace railyard::bench {

class QuietRail : public fabric::Rail {
 public:
  QuietRail() {
    capabilities_.delivery_complete = true;
    capabilities_.max_message = 1U << 20U;
    capabilities_.max_write = 1U << 30U;
  }
  const fabric::Capabilities& capabilities() const override { return capabilities_; }
  std::string name() const override { return "null"; }
  std::string fabric() const override { return "null"; }
  std::vector<std::byte> address() const override { return {std::byte{1}}; }
  Result<fabric::RemoteId> connect(std::span<const std::byte>, fabric::LinkTag) override { return fabric::RemoteId{0}; }
  void disconnect(fabric::RemoteId) override {}
  bool fence(fabric::LinkTag) override { return true; }
  Result<fabric::Registration> register_memory(std::span<std::byte>, fabric::Access) override {
    return fabric::Registration{};
  }
  void revoke(const fabric::Registration&) override {}
  fabric::Post write(const fabric::RemoteChunk&, const fabric::LocalChunk&, fabric::WriteOptions,
                     fabric::PostContext*) override {
    return fabric::Post::busy;
  }
  fabric::Post read(const fabric::RemoteChunk&, const fabric::LocalChunk&, fabric::PostContext*) override {
    return fabric::Post::busy;
  }
  std::string describe_error(int) const override { return ""; }
  std::string failure() const override { return ""; }

 private:
  fabric::Capabilities capabilities_;
};

}  // namespace railyard::bench
