/// Memory of GPUs. The rules are those of host memory: the owner alone stores into it, after a look at its key, and
/// what it copies out of a peer's memory counts only if the peer's link was still alive afterwards. What differs is who
/// copies: a GPU does, while polls go on, and everything that a copy promises waits until it is done.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "fabric/shm/rail.hpp"

namespace railyard::fabric::shm {

// ---- Whose memory ----

Result<DeviceMemory*> ShmRail::device_memory(std::span<std::byte> memory) {
  accelerator::Driver* const driver = accelerator::loaded_driver();
  const auto found = driver != nullptr ? driver->find(memory.data()) : std::nullopt;
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  if (!found || memory.size() > found->base + found->bytes - address)
    return Error(Status::invalid, fmt::format("shared memory: {} bytes at {} are not in one allocation of a GPU",
                                              memory.size(), static_cast<const void*>(memory.data())));
  if (found->bytes >= std::size_t{1} << DeviceLocation::kOffsetBits || next_share_ == DeviceLocation::kMostShares)
    return Error(Status::no_memory, "shared memory: too much memory of GPUs for one rail");
  // Another allocation may have taken the address of one that was freed while it was registered.
  const auto known = std::ranges::find_if(device_memory_, [&](const auto& each) {
    return each->allocation.base == found->base && each->allocation.id == found->id;
  });
  if (known != device_memory_.end()) {
    ++(*known)->users;
    return known->get();
  }
  device_memory_.push_back(std::make_unique<DeviceMemory>());
  DeviceMemory& memory_of = *device_memory_.back();
  memory_of.allocation = *found;
  memory_of.share = next_share_++;
  memory_of.users = 1;
  // Now, before kernels run: mapping memory, and the first copy of a GPU, may wait for those that do.
  if (auto ready = device_copies_.prepare(found->device); !ready) return std::move(ready.error());
  for (auto& [identity, peer] : peers_) tell_shares(*peer);
  return &memory_of;
}

void ShmRail::release(DeviceMemory& memory) {
  if (--memory.users != 0) return;
  for (auto& [identity, peer] : peers_)
    if (peer->told.erase(memory.share) != 0) owe(*peer, {kUnshare, 0, {memory.share, 0}, {}});
  std::erase_if(device_memory_, [&](const auto& each) { return each.get() == &memory; });
}

/// False: the ring is full, or, with a trouble, it cannot be told.
bool ShmRail::tell_share(Peer& peer, DeviceMemory& memory, Trouble& trouble) {
  if (peer.told.contains(memory.share)) return true;
  if (memory.shared == nullptr && !peer.memory.own()) {
    auto shared = accelerator::loaded_driver()->share(memory.allocation);
    if (!shared) {
      // No warning: an operation that needs it fails and says so. Words of NCCL's cannot be exported and are never
      // read.
      log_info(in_log(), "{} bytes of GPU {} cannot be shared: {}", memory.allocation.bytes, memory.allocation.device,
               shared.error().text());
      trouble = kNotMapped;
      return false;
    }
    memory.shared = std::move(*shared);
  }
  accelerator::ShareHandle handle;
  if (memory.shared != nullptr) handle = memory.shared->handle();
  handle.bytes = memory.allocation.bytes;
  handle.id = memory.allocation.id;
  const Reservation room = peer.out->reserve(sizeof handle);
  if (room.record == nullptr) return false;
  room.record->arguments = {memory.share, memory.allocation.base};
  peer.out->write(room.payload, reinterpret_cast<const std::byte*>(&handle), sizeof handle);
  peer.out->publish({sizeof handle, kShare, 0});
  peer.told.insert(memory.share);
  return true;
}

void ShmRail::tell_shares(Peer& peer) {
  if (peer.out == nullptr || !peer.memory.readable()) return;
  Trouble trouble = kNoTrouble;  // whoever needs it meets it again
  for (const auto& memory : device_memory_)
    if (!tell_share(peer, *memory, trouble) && trouble == kNoTrouble) return;
}

void ShmRail::take_share(Peer& peer, const Arrival& arrival) {
  const std::uint64_t number = arrival.record->arguments[0];
  if (arrival.word.bytes != sizeof(accelerator::ShareHandle) || number >= DeviceLocation::kMostShares) return;
  if (peer.shares.size() >= kMostOwed) return;  // it is not believed that it has so many
  PeerShare share;
  std::memcpy(&share.handle, arrival.payload, sizeof share.handle);
  share.base = arrival.record->arguments[1];
  peer.shares[static_cast<std::uint32_t>(number)] = std::move(share);
  const int device = device_memory_.empty() ? -1 : device_memory_.front()->allocation.device;
  static_cast<void>(resolve(peer, DeviceLocation::pack(static_cast<std::uint32_t>(number), 0), 1, device));
}

void ShmRail::take_unshare(Peer& peer, const Record& record) {
  peer.shares.erase(static_cast<std::uint32_t>(record.arguments[0]));
}

/// Where the bytes of a peer are in this process, for copies by `device`; -1: by the GPU that they are on.
std::optional<ShmRail::DeviceSource> ShmRail::resolve(Peer& peer, std::uint64_t location, std::size_t bytes,
                                                      int device) {
  const auto entry = peer.shares.find(DeviceLocation::share(location));
  accelerator::Driver* const driver = accelerator::driver();
  if (entry == peer.shares.end() || driver == nullptr) return std::nullopt;
  PeerShare& share = entry->second;
  const std::uint64_t offset = DeviceLocation::offset(location);
  if (share.unusable || offset > share.handle.bytes || bytes > share.handle.bytes - offset) return std::nullopt;
  if (peer.memory.own()) {
    const auto* const address = reinterpret_cast<const std::byte*>(share.base + offset);
    const auto found = driver->find(address);
    if (!found || found->id != share.handle.id || share.base + offset + bytes > found->base + found->bytes)
      return std::nullopt;
    if (!device_copies_.prepare(found->device)) return std::nullopt;
    return DeviceSource{address, nullptr, found->device};
  }
  if (share.mapping == nullptr) {
    auto mapping = driver->map(share.handle, device);
    Result<void> ready;
    if (mapping) ready = device_copies_.prepare((*mapping)->device());
    if (!mapping || !ready) {
      log_warn(in_log(), "a peer's GPU memory cannot be mapped: {}",
               (mapping ? ready.error() : mapping.error()).text());
      share.unusable = true;
      return std::nullopt;
    }
    share.mapping = std::move(*mapping);
  }
  const std::span<std::byte> memory = share.mapping->memory();
  if (offset > memory.size() || bytes > memory.size() - offset) return std::nullopt;
  return DeviceSource{memory.data() + offset, share.mapping, share.mapping->device()};
}

// ---- Copies ----

/// False: the GPU does not take it.
bool ShmRail::begin_copy(int device, void* to, const void* from, std::size_t bytes, DeviceCopy copy) {
  auto ticket = device_copies_.copy(device, to, from, bytes);
  if (!ticket) {
    log_warn(in_log(), "a copy of {} bytes on GPU {}: {}", bytes, device, ticket.error().text());
    if (copy.bounce != nullptr) device_copies_.give_bounce(copy.bounce);
    return false;
  }
  copy.ticket = *ticket;
  if (copy.operation != nullptr) ++copy.operation->copying;
  copying_.push_back(std::move(copy));
  return true;
}

/// A pull or an answer in which device memory takes part. True: it is out of the way.
bool ShmRail::do_device_job(Peer& peer, Job& job, const Registrations::Found& found) {
  const auto fail = [&](Trouble trouble) {
    owe(peer, {kDone, 0, {job.handle, static_cast<std::uint64_t>(trouble)}, {}});
    return true;
  };
  if (!job.pull) {
    // The reader gets the bytes itself.
    const auto memory = device_memory({found.memory, job.bytes});
    if (!memory) return fail(kDeviceError);
    Trouble trouble = kNoTrouble;
    const bool told = tell_share(peer, **memory, trouble);
    const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(found.memory) - (*memory)->allocation.base;
    const std::uint64_t location = DeviceLocation::pack((*memory)->share, offset);
    --(*memory)->users;  // its registration keeps it
    if (trouble != kNoTrouble) return fail(trouble);
    if (told) owe(peer, {kAnswerShare, 0, {job.handle, location}, {}});
    return told;
  }
  const ShmInboundLink* const inbound_link = inbound_link_of(peer, job.number);
  if (inbound_link == nullptr) return true;
  DeviceCopy copy;
  copy.peer = &peer;
  copy.link = *inbound_link->inbound;
  copy.number = job.number;
  copy.key = job.key;
  copy.handle = job.handle;
  copy.address = job.address;
  copy.guarded = true;
  copy.immediate_wanted = job.immediate_wanted;
  copy.immediate = job.immediate;
  copy.bytes = job.bytes;
  std::optional<DeviceSource> source;
  if (job.from_device) {
    source = resolve(peer, job.source, job.bytes, found.device);
    if (!source) return fail(kNotMapped);
    copy.source = source->mapping;
    if (found.on_device())
      return begin_copy(found.device, found.memory, source->address, job.bytes, std::move(copy)) || fail(kDeviceError);
  }
  // Host memory on one side: a slice at a time, through a pinned buffer.
  while (job.moved < job.bytes) {
    DeviceCopy slice = copy;
    slice.bounce = device_copies_.take_bounce();
    if (slice.bounce == nullptr) return copying_.empty() ? fail(kDeviceError) : false;
    const std::size_t bytes = std::min(job.bytes - job.moved, DeviceCopies::kBounceBytes);
    slice.last = job.moved + bytes == job.bytes;
    if (source) {
      slice.store_to = found.memory + job.moved;
      slice.store_bytes = bytes;
      slice.address = job.address + job.moved;
      std::byte* const bounce = slice.bounce;
      if (!begin_copy(source->device, bounce, source->address + job.moved, bytes, std::move(slice)))
        return fail(kDeviceError);
    } else {
      if (!peer.memory.read({slice.bounce, bytes}, job.source + job.moved)) {
        device_copies_.give_bounce(slice.bounce);
        return fail(kUnreadable);
      }
      const std::byte* const bounce = slice.bounce;
      if (!begin_copy(found.device, found.memory + job.moved, bounce, bytes, std::move(slice)))
        return fail(kDeviceError);
    }
    job.moved += bytes;
  }
  return true;
}

/// Bytes of a write that came through the ring, for device memory. False: no buffer is free.
bool ShmRail::write_from_ring(Peer& peer, ShmInboundLink& inbound_link, const Arrival& arrival,
                              const Registrations::Found& to) {
  const std::size_t bytes = arrival.word.bytes;
  DeviceCopy copy;
  copy.bounce = device_copies_.take_bounce();
  if (copy.bounce == nullptr) return false;
  const Record& record = *arrival.record;
  copy.last = (arrival.word.flags & kLast) != 0;
  copy.peer = &peer;
  copy.link = *inbound_link.inbound;
  copy.number = inbound_link.number;
  copy.key = record.arguments[1];
  copy.address = record.more[0];
  copy.handle = record.more[1];
  copy.immediate_wanted = (arrival.word.flags & kImmediate) != 0;
  copy.immediate = static_cast<std::uint32_t>(record.more[2]);
  copy.bytes = inbound_link.landing + bytes;
  inbound_link.landing = copy.last ? 0 : copy.bytes;
  copy_bytes(copy.bounce, arrival.payload, bytes);
  const std::byte* const bounce = copy.bounce;
  if (begin_copy(to.device, to.memory, bounce, bytes, std::move(copy))) return true;
  // The GPU is out of order: this link cannot deliver any more.
  shut(inbound_link, kDeviceError);
  return true;
}

/// Bytes of a read that came through the ring, for device memory. False: no buffer is free.
bool ShmRail::answer_from_ring(Operation& operation, const Arrival& arrival) {
  const std::size_t bytes = arrival.word.bytes;
  DeviceCopy copy;
  copy.bounce = device_copies_.take_bounce();
  if (copy.bounce == nullptr) return false;
  copy.operation = &operation;
  copy.last = operation.moved + bytes == operation.bytes;
  copy_bytes(copy.bounce, arrival.payload, bytes);
  const std::byte* const bounce = copy.bounce;
  std::byte* const to = operation.local + operation.moved;
  operation.moved += bytes;
  if (!begin_copy(operation.device->allocation.device, to, bounce, bytes, std::move(copy)) && operation.copying == 0)
    fail_operation(operation, kDeviceError);
  return true;
}

// ---- Reads of a peer's device memory ----

int ShmRail::device_of(const Operation& operation) {
  return operation.device != nullptr ? operation.device->allocation.device : -1;
}

void ShmRail::take_answer_share(Peer& peer, const Record& record) {
  Operation* const operation = find(peer, record.arguments[0]);
  if (operation == nullptr || operation->kind != Operation::Kind::fetch || operation->moved != 0) return;
  if (!resolve(peer, record.arguments[1], operation->bytes, device_of(*operation)))
    return fail_operation(*operation, kNotMapped);
  operation->kind = Operation::Kind::device_read;
  operation->location = record.arguments[1];
  if (!move_device_read(peer, *operation)) queue(peer, *operation);
}

/// True: all of it is being copied.
bool ShmRail::move_device_read(Peer& peer, Operation& operation) {
  const auto source = resolve(peer, operation.location, operation.bytes, device_of(operation));
  if (!source) {
    if (operation.copying == 0) fail_operation(operation, kNotMapped);
    return true;
  }
  DeviceCopy copy;
  copy.peer = &peer;
  copy.source = source->mapping;
  copy.operation = &operation;
  if (operation.device != nullptr) {
    operation.moved = operation.bytes;
    if (!begin_copy(operation.device->allocation.device, operation.local, source->address, operation.bytes,
                    std::move(copy)))
      fail_operation(operation, kDeviceError);
    return true;
  }
  while (operation.moved < operation.bytes) {
    DeviceCopy slice = copy;
    slice.bounce = device_copies_.take_bounce();
    if (slice.bounce == nullptr) return false;
    const std::size_t bytes = std::min(operation.bytes - operation.moved, DeviceCopies::kBounceBytes);
    slice.store_to = operation.local + operation.moved;
    slice.store_bytes = bytes;
    slice.last = operation.moved + bytes == operation.bytes;
    std::byte* const bounce = slice.bounce;
    if (!begin_copy(source->device, bounce, source->address + operation.moved, bytes, std::move(slice))) {
      if (operation.copying == 0) fail_operation(operation, kDeviceError);
      return true;
    }
    operation.moved += bytes;
  }
  return true;
}

// ---- What is done ----

void ShmRail::finish_copies() {
  // Copies of one device are done in order; so are their ends.
  std::size_t kept = 0;
  std::vector<int> waiting;
  for (std::size_t i = 0; i < copying_.size(); ++i) {
    DeviceCopy& copy = copying_[i];
    DeviceCopies::State state = DeviceCopies::State::under_way;
    if (std::ranges::find(waiting, copy.ticket.device) == waiting.end()) state = device_copies_.state(copy.ticket);
    if (state == DeviceCopies::State::under_way) {
      waiting.push_back(copy.ticket.device);
      if (kept != i) copying_[kept] = std::move(copy);
      ++kept;
      continue;
    }
    DeviceCopy done = std::move(copy);
    finish(done, state == DeviceCopies::State::done);
  }
  copying_.resize(kept);
}

void ShmRail::finish(DeviceCopy& copy, bool good) {
  if (copy.operation != nullptr) {
    Operation& operation = *copy.operation;
    --operation.copying;
    if (good && copy.store_to != nullptr && !operation.ended) copy_bytes(copy.store_to, copy.bounce, copy.store_bytes);
    if (copy.bounce != nullptr) device_copies_.give_bounce(copy.bounce);
    if (operation.copying != 0) return;
    if (operation.ended) return fail_operation(operation, kEnded);
    if (!good) return fail_operation(operation, kDeviceError);
    if (operation.moved != operation.bytes) return;
    if (operation.kind == Operation::Kind::fetch) return complete(operation, Event::Kind::read);
    if (copy.peer != nullptr) owe(*copy.peer, request_of(operation));  // were they the right bytes?
    return;
  }
  // The key is looked at again: the owner may have taken the memory back while the GPU copied.
  Trouble trouble = good ? kNoTrouble : kDeviceError;
  if (good && copy.store_to != nullptr) {
    const auto to = registrations_.find(copy.key, copy.address, copy.store_bytes);
    if (to)
      copy_bytes(to.memory, copy.bounce, copy.store_bytes);
    else
      trouble = kBadKey;
  }
  if (copy.bounce != nullptr) device_copies_.give_bounce(copy.bounce);
  ShmInboundLink* const inbound_link = copy.peer != nullptr ? inbound_link_of(*copy.peer, copy.number) : nullptr;
  if (inbound_link == nullptr) return;
  if (trouble != kNoTrouble) inbound_link->bad_copy = trouble;
  if (!copy.last) return;
  trouble = std::exchange(inbound_link->bad_copy, kNoTrouble);
  if (copy.guarded && !guard_holds(*copy.peer, copy.number)) return;  // its sender has given it up, and knows
  if (trouble == kNoTrouble) land(copy.bytes, copy.immediate_wanted, copy.immediate);
  if (copy.handle != 0) {
    owe(*copy.peer, {kDone, 0, {copy.handle, static_cast<std::uint64_t>(trouble)}, {}});
  } else if (trouble != kNoTrouble) {
    // Its sender has been told that it is done: only the end of the link can tell it otherwise.
    shut(*inbound_link, trouble);
  }
}

/// For memory that goes back to its owner: no GPU touches it any more when this returns.
void ShmRail::wait_for_copies(std::uint64_t key) {
  for (const DeviceCopy& copy : copying_)
    if (copy.operation == nullptr && copy.key == key) device_copies_.wait(copy.ticket);
}

void ShmRail::forget_copies(const Peer& peer) {
  for (DeviceCopy& copy : copying_)
    if (copy.peer == &peer) copy.peer = nullptr;
}

bool ShmRail::copies_of(const LinkTag& tag) const {
  return std::ranges::any_of(copying_, [&](const DeviceCopy& copy) {
    return copy.operation == nullptr && copy.link.id == tag.id && copy.link.epoch <= tag.epoch;
  });
}

}  // namespace railyard::fabric::shm
