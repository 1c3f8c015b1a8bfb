/// Somebody who writes CM messages to a rail and is none himself.
#pragma once

#include <array>
#include <cerrno>
#include <optional>

#include "fabric/verbs/admission.hpp"
#include "fabric/verbs/connection_manager.hpp"
#include "fabric/verbs/port.hpp"

namespace railyard::fabric::verbs {

class RoguePeer {
 public:
  /// On this device, whose GID number 3 he uses.
  static std::optional<RoguePeer> open(const Library& library, const std::string& device) {
    RoguePeer one;
    auto context = open_device(library, device);
    if (!context) return std::nullopt;
    one.context_ = std::move(*context);
    *one.port_ = {};
    one.port_->gid_index = 3;
    if (library.query_device(one.context_.get(), one.limits_.get()) != 0 ||
        library.query_gid(one.context_.get(), 1, one.port_->gid_index, &one.port_->gid) != 0)
      return std::nullopt;
    one.domain_ = Domain(library.alloc_pd(one.context_.get()), {&library});
    constexpr int kEntries = 512;
    one.queue_ = Queue(library.create_cq(one.context_.get(), kEntries, nullptr, nullptr, 0), {&library});
    ConnectionManager::Parts parts;
    parts.library = &library;
    parts.domain = one.domain_.get();
    parts.queue = one.queue_.get();
    parts.port = one.port_.get();
    parts.limits = one.limits_.get();
    const char* step = "";
    int limit = 0;
    if (one.connection_manager_.open(parts, step, limit) != 0) return std::nullopt;
    return one;
  }

  /// The address he would give as his own. Nobody has been told a secret of his.
  VerbsRailAddress address(std::uint64_t name) const {
    VerbsRailAddress own;
    own.name = name;
    own.gid = port_->gid;
    own.queue_pair = connection_manager_.queue_pair();
    own.queue_key = connection_manager_.queue_key();
    return own;
  }
  /// With a number above all before, and the proof that he knows the secret in `to`: the target's, or a guess.
  std::vector<std::byte> seal(const VerbsRailAddress& to, const CmMessage& message) {
    admission_.know(to);
    return admission_.seal(message, to.name);
  }
  bool write(const VerbsRailAddress& to, const CmMessage& message) { return write(to, seal(to, message)); }
  bool write(const CmAddress& to, std::span<const std::byte> bytes) {
    auto peer = connection_manager_.peer(to, "rogue peer");
    if (!peer) return false;
    peer_ = std::move(*peer);
    return connection_manager_.send(*peer_, bytes);
  }
  /// The next CM message that came, if any; whether it is proven is no matter to him.
  std::optional<CmMessage> read() {
    ibv_wc completion{};
    while (ibv_poll_cq(queue_.get(), 1, &completion) == 1) {
      const auto bytes = connection_manager_.take(completion);
      if (!bytes || bytes->size() <= CmMessage::kMacBytes) continue;
      if (auto message = CmMessage::parse(std::span(*bytes).first(bytes->size() - CmMessage::kMacBytes)))
        return message;
    }
    return std::nullopt;
  }

 private:
  std::unique_ptr<Port> port_ = std::make_unique<Port>();
  std::unique_ptr<ibv_device_attr> limits_ = std::make_unique<ibv_device_attr>();
  DeviceContext context_;
  Domain domain_;
  Queue queue_;
  ConnectionManager connection_manager_;
  Admission admission_;
  std::shared_ptr<Peer> peer_;
};

}  // namespace railyard::fabric::verbs
