/// Registrations: domain-wide, or bound to one endpoint and enabled, as the provider demands.
#include <fmt/format.h>

#include "fabric/ofi/rail.hpp"

namespace railyard::fabric::ofi {

namespace {

constexpr std::uint64_t kMessageAccess = FI_SEND | FI_RECV;
constexpr std::uint64_t kTransferAccess = FI_READ | FI_WRITE;
constexpr std::uint64_t kRemoteAccess = FI_REMOTE_READ | FI_REMOTE_WRITE;

}  // namespace

Error OfiRail::registration_error(const char* step, std::span<std::byte> memory, Lane lane, int code) const {
  return Error(code == -FI_ENOMEM ? Status::no_memory : Status::io,
               fmt::format("{}: could not {} {} bytes at {} for the {} lane: {}", name_, step, memory.size(),
                           static_cast<const void*>(memory.data()), lane == Lane::data ? "data" : "control",
                           library().strerror(-code)));
}

/// The one place where memory is registered. Returns the id of what is now held.
Result<std::uint64_t> OfiRail::hold(std::span<std::byte> memory, Lane lane, std::uint64_t access) {
  Held held;
  if ((info_->domain_attr->mr_mode & FI_MR_PROV_KEY) == 0) {
    auto key = keys_.take();
    if (!key) return std::move(key.error());
    held.own_key = true;
    held.key = *key;
  }
  // Whatever goes wrong below, the object closes before its key is free again.
  auto give_up = [&](const char* step, int code) {
    held.object.reset();
    if (held.own_key) keys_.give(held.key);
    return registration_error(step, memory, lane, code);
  };
  fid_mr* object = nullptr;
  int code = fi_mr_reg(domain_.get(), memory.data(), memory.size(), access, 0, held.key, 0, &object, nullptr);
  if (code != 0) return give_up("register", code);
  held.object.reset(object);
  held.remote = (access & kRemoteAccess) != 0;
  if (capabilities_.binds_registrations) {
    code = fi_mr_bind(object, &endpoint_for(lane)->fid, 0);
    if (code != 0) return give_up("bind the registration of", code);
    code = fi_mr_enable(object);
    if (code != 0) return give_up("enable the registration of", code);
  }
  if (fi_mr_key(object) == FI_KEY_NOTAVAIL) return give_up("get a key for", -FI_ENOKEY);
  const std::uint64_t id = next_held_++;
  held_.emplace(id, std::move(held));
  return id;
}

void OfiRail::release(std::uint64_t id) {
  const auto found = held_.find(id);
  if (found == held_.end()) return;  // the rail was stopped: it is closed already
  found->second.object.reset();
  if (found->second.own_key) keys_.give(found->second.key);
  held_.erase(found);
}

void OfiRail::close_registrations() {
  for (auto& [id, held] : held_) held.object.reset();
  held_.clear();
}

Result<Registration> OfiRail::register_memory(std::span<std::byte> memory, Access access) {
  if (auto running = refuse_if_stopped(); !running) return std::move(running.error());
  Registration registration;
  registration.remote_base =
      capabilities_.virtual_addresses ? reinterpret_cast<std::uint64_t>(memory.data()) : std::uint64_t{0};
  const bool local = capabilities_.needs_local_registration;
  if (!local && !access.remote) return registration;

  constexpr auto data = static_cast<std::size_t>(Lane::data);
  constexpr auto control = static_cast<std::size_t>(Lane::control);
  const bool apart = capabilities_.binds_registrations;
  const std::uint64_t flags =
      kTransferAccess | (access.remote ? kRemoteAccess : 0) | (apart ? std::uint64_t{0} : kMessageAccess);
  auto held = hold(memory, Lane::data, flags);
  if (!held) return std::move(held.error());
  registration.id[data] = *held;
  fid_mr* const object = held_.at(*held).object.get();
  registration.key = fi_mr_key(object);
  registration.descriptor[data] = fi_mr_desc(object);
  if (!apart) {
    registration.descriptor[control] = registration.descriptor[data];
    return registration;
  }
  if (local) {
    auto second = hold(memory, Lane::control, kMessageAccess);
    if (!second) {
      release(registration.id[data]);
      return std::move(second.error());
    }
    registration.id[control] = *second;
    registration.descriptor[control] = fi_mr_desc(held_.at(*second).object.get());
  }
  return registration;
}

bool OfiRail::is_remote(const Registration& registration) const {
  const auto held = held_.find(registration.id[static_cast<std::size_t>(Lane::data)]);
  return held != held_.end() && held->second.remote;
}

void OfiRail::revoke(const Registration& registration) {
  if (is_remote(registration)) cut_off_peers();
  deregister(registration);
}

void OfiRail::deregister(const Registration& registration) {
  for (const std::uint64_t id : registration.id)
    if (id != 0) release(id);
}

}  // namespace railyard::fabric::ofi
