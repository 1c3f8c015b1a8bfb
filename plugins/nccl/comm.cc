#include "comm.hpp"

#include <utility>

namespace railyard::nccl {

ChannelComm::ChannelComm(Kind kind, Hold hold, std::unique_ptr<Channel> channel, nccl_profiler profiler)
    : Comm{kind},
      hold_(std::move(hold)),
      channel_(std::move(channel)),
      profiler_(profiler),
      device_(hold_.device().properties().vProps.devs[0]) {}

ChannelComm::~ChannelComm() {
  channel_->close();
  memories_.clear();
}

Result<void*> ChannelComm::register_memory(std::span<std::byte> memory, DmaBufRange dma_buf) {
  auto made = channel_->register_memory(memory, dma_buf, kind == Kind::sender ? MemoryUse::sends : MemoryUse::any);
  if (!made) return std::move(made.error());
  void* const name = made->get();
  const std::lock_guard lock(memories_mutex_);
  memories_.emplace(name, std::move(*made));
  return name;
}

Result<void> ChannelComm::deregister_memory(void* memory) {
  std::unique_ptr<Memory> ended;  // outside the lock: it may wait for what is under way
  const std::lock_guard lock(memories_mutex_);
  const auto found = memories_.find(memory);
  if (found == memories_.end()) return Error(Status::invalid, "this memory is not registered with this comm");
  ended = std::move(found->second);
  memories_.erase(found);
  return {};
}

Result<Request*> ChannelComm::send(std::span<const std::byte> message, int tag, void* memory, void* parent) {
  auto made = channel_->send(message, tag, static_cast<const Memory*>(memory));
  if (!made || *made == nullptr) return made;
  NcclRequest& request = NcclRequest::make(*made, *this, 1);
  if (profiler_ != nullptr) start_event(request, 0, parent, tag, message.size());
  return made;
}

Result<Request*> ChannelComm::receive(std::span<const ReceiveSlot> slots, bool completion_optional, void** parents) {
  auto made = channel_->receive(slots, completion_optional);
  if (!made || *made == nullptr) return made;
  NcclRequest& request = NcclRequest::make(*made, *this, slots.size());
  if (profiler_ != nullptr && parents != nullptr)
    for (std::uint32_t slot = 0; slot < request.messages; ++slot)
      start_event(request, slot, parents[slot], slots[slot].tag, slots[slot].memory.size());
  return made;
}

Result<bool> ChannelComm::test(Request* request, std::span<std::uint64_t> sizes) {
  auto done = channel_->test(request, sizes);
  if (!done || !*done) return done;
  NcclRequest& known = NcclRequest::of(request);
  if (profiler_ != nullptr) stop_events(known);
  known.comm = nullptr;
  return true;
}

void ChannelComm::start_event(NcclRequest& request, std::uint32_t slot, void* parent, int tag,
                              std::size_t bytes) const {
  if (parent == nullptr) return;  // NCCL looks into it
  MessageDescriptor descriptor{device_, kind == Kind::receiver ? 1 : 0, tag, static_cast<std::int32_t>(slot), bytes};
  // What goes wrong in a profiler is no reason to fail a message.
  (void)profiler_(&request.events[slot], NCCL_EVENT_START, parent, kProfilerId, &descriptor);
}

void ChannelComm::stop_events(NcclRequest& request) const {
  for (std::uint32_t slot = 0; slot < request.messages; ++slot)
    if (request.events[slot] != nullptr)
      (void)profiler_(&request.events[slot], NCCL_EVENT_STOP, nullptr, kProfilerId, nullptr);
}

}  // namespace railyard::nccl
