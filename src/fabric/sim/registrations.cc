#include "fabric/sim/registrations.hpp"

namespace railyard::fabric::sim {

namespace {

/// A name is what keys and descriptors are made of: generation, index and, in the two lowest bits, the lane it is for.
constexpr unsigned kLaneBits = 2;
constexpr unsigned kIndexBits = 24;
constexpr unsigned kGenerationBits = 32;
constexpr std::uint64_t kLaneMask = (1U << kLaneBits) - 1;
constexpr std::uint64_t kIndexMask = (1U << kIndexBits) - 1;
constexpr std::uint64_t kAnyLane = 3;
static_assert(kLaneBits + kIndexBits + kGenerationBits <= 64);
static_assert(kLanes < kAnyLane);

std::uint64_t make_name(std::uint32_t index, std::uint32_t generation, std::uint64_t lane) {
  return (std::uint64_t{generation} << (kIndexBits + kLaneBits)) | (std::uint64_t{index} << kLaneBits) | lane;
}

void* as_descriptor(std::uint64_t name) {
  return reinterpret_cast<void*>(
      static_cast<std::uintptr_t>(name));  // NOLINT(performance-no-int-to-ptr): never followed
}

}  // namespace

const char* fault_text(int fault) {
  switch (fault) {
    case kFaultNone:
      return "no error";
    case kFaultBadKey:
      return "no registration has this key";
    case kFaultDeregistered:
      return "the registration is gone";
    case kFaultOutOfBounds:
      return "outside the registered memory";
    case kFaultNotRemote:
      return "the memory is not registered for remote access";
    case kFaultBadDescriptor:
      return "local memory without this lane's descriptor for it";
    case kFaultTooLong:
      return "longer than the rail's limit";
    case kFaultTruncated:
      return "the message is longer than the receive";
    case kFaultUnreachable:
      return "the remote rail is closed";
    case kFaultDown:
      return "a rail on the way is down";
    case kFaultDisconnected:
      return "the link was disconnected";
    default:
      return "unknown error";
  }
}

Registration Registrations::add(std::span<std::byte> memory, bool remote) {
  std::uint32_t index = 0;
  if (free_.empty()) {
    index = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Entry& entry = entries_[index];
  entry.memory = memory;
  entry.live = true;
  entry.remote = remote;
  ++live_;

  Registration registration;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const std::uint64_t name = make_name(index, entry.generation, terms_.binds ? lane : kAnyLane);
    registration.descriptor[lane] = as_descriptor(name);
    registration.id[lane] = name;
  }
  registration.key = make_name(index, entry.generation, kAnyLane) ^ terms_.salt;
  registration.remote_base = terms_.virtual_addresses ? reinterpret_cast<std::uintptr_t>(memory.data()) : 0;
  return registration;
}

bool Registrations::remove(const Registration& registration) {
  int fault = kFaultNone;
  if (find(registration.id[0] | kAnyLane, fault) == nullptr) return false;
  const auto index = static_cast<std::uint32_t>((registration.id[0] >> kLaneBits) & kIndexMask);
  Entry& entry = entries_[index];
  entry.live = false;
  ++entry.generation;
  free_.push_back(index);
  --live_;
  return true;
}

const Registrations::Entry* Registrations::find(std::uint64_t name, int& fault) const {
  const std::uint64_t index = (name >> kLaneBits) & kIndexMask;
  const std::uint64_t generation = name >> (kIndexBits + kLaneBits);
  fault = kFaultBadKey;
  if (index >= entries_.size()) return nullptr;
  const Entry& entry = entries_[index];
  if (generation == 0 || generation > entry.generation) return nullptr;
  fault = kFaultDeregistered;
  if (generation < entry.generation || !entry.live) return nullptr;
  fault = kFaultNone;
  return &entry;
}

Registrations::Access Registrations::remote(std::uint64_t key, std::uint64_t address, std::size_t bytes) const {
  const std::uint64_t name = key ^ terms_.salt;
  Access access;
  if ((name & kLaneMask) != kAnyLane) return {nullptr, kFaultBadKey};
  const Entry* entry = find(name, access.fault);
  if (entry == nullptr) return access;
  if (!entry->remote) return {nullptr, kFaultNotRemote};
  const std::uint64_t base = terms_.virtual_addresses ? reinterpret_cast<std::uintptr_t>(entry->memory.data()) : 0;
  if (address < base || address - base > entry->memory.size() || bytes > entry->memory.size() - (address - base)) {
    return {nullptr, kFaultOutOfBounds};
  }
  access.memory = entry->memory.data() + (address - base);
  return access;
}

int Registrations::local(const void* descriptor, Lane lane, const void* address, std::size_t bytes) const {
  const auto name = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(descriptor));
  const std::uint64_t bound_to = name & kLaneMask;
  if (bound_to != (terms_.binds ? static_cast<std::uint64_t>(lane) : kAnyLane)) return kFaultBadDescriptor;
  int fault = kFaultNone;
  const Entry* entry = find(name, fault);
  if (entry == nullptr) return fault == kFaultBadKey ? int{kFaultBadDescriptor} : fault;
  const auto begin = reinterpret_cast<std::uintptr_t>(entry->memory.data());
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (at < begin || at - begin > entry->memory.size() || bytes > entry->memory.size() - (at - begin)) {
    return kFaultOutOfBounds;
  }
  return kFaultNone;
}

}  // namespace railyard::fabric::sim
