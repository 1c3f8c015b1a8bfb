/// A rail that only registers: counts what is alive, refuses on demand, and moves nothing.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>

#include "fabric/rail.hpp"

namespace railyard::memory {

class CountingRail final : public fabric::Rail {
 public:
  const fabric::Capabilities& capabilities() const override { return capabilities_; }
  std::string name() const override { return "counting"; }
  std::string fabric() const override { return "none"; }
  std::vector<std::byte> address() const override { return {}; }
  Result<fabric::RemoteId> connect(std::span<const std::byte> /*address*/, fabric::LinkTag /*tag*/) override {
    return Error(Status::unsupported, "a counting rail connects to nothing");
  }
  void disconnect(fabric::RemoteId /*remote*/) override {}
  bool fence(fabric::LinkTag /*tag*/) override { return true; }

  Result<fabric::Registration> register_memory(std::span<std::byte> memory, fabric::Access access) override {
    const std::lock_guard lock(mutex_);
    if (refuse_) return Error(Status::no_memory, "the counting rail refuses");
    if (gone_) return Error(Status::rail_failed, "the counting rail has gone");
    fabric::Registration registration;
    registration.id = {++last_, last_};
    registration.descriptor = {reinterpret_cast<void*>(last_ * 2), reinterpret_cast<void*>(last_ * 2 + 1)};
    registration.key = last_;
    alive_.emplace(last_, memory);
    last_access_ = access;
    ++registered_;
    return registration;
  }
  void deregister(const fabric::Registration& registration) override {
    ++settled_;
    revoke(registration);
  }
  void revoke(const fabric::Registration& registration) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(alive_.erase(registration.id[0]), 1u) << "closed twice or never opened";
  }

  fabric::Post send(fabric::RemoteId, const fabric::LocalChunk&, fabric::PostContext*) override {
    return fabric::Post::failed;
  }
  fabric::Post receive(const fabric::LocalChunk&, fabric::PostContext*) override { return fabric::Post::failed; }
  fabric::Post write(const fabric::RemoteChunk&, const fabric::LocalChunk&, fabric::WriteOptions,
                     fabric::PostContext*) override {
    return fabric::Post::failed;
  }
  fabric::Post read(const fabric::RemoteChunk&, const fabric::LocalChunk&, fabric::PostContext*) override {
    return fabric::Post::failed;
  }
  std::size_t poll(std::span<fabric::Event> /*events*/) override { return 0; }
  std::string describe_error(int /*error*/) const override { return ""; }
  std::string failure() const override { return "a counting rail posts nothing"; }

  void refuse(bool refuse) { refuse_ = refuse; }
  void go() { gone_ = true; }
  void pin() { capabilities_.needs_local_registration = true; }
  std::size_t alive() const {
    const std::lock_guard lock(mutex_);
    return alive_.size();
  }
  std::size_t registered() const {
    const std::lock_guard lock(mutex_);
    return registered_;
  }
  fabric::Access last_access() const { return last_access_; }
  std::span<std::byte> last_memory() const { return alive_.at(last_); }
  /// Those that were given back with nothing under way.
  std::size_t settled() const { return settled_; }

 private:
  fabric::Capabilities capabilities_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::span<std::byte>> alive_;
  std::uint64_t last_ = 0;
  std::size_t registered_ = 0;
  std::size_t settled_ = 0;
  fabric::Access last_access_;
  bool refuse_ = false;
  bool gone_ = false;
};

}  // namespace railyard::memory
