/// The public classes: each hands its calls to its state.
#include "railyard/channel.hpp"

#include "message/channel_state.hpp"
#include "message/channels.hpp"

namespace railyard {

Memory::Memory(std::unique_ptr<MemoryState> state) : state_(std::move(state)) {}
Memory::~Memory() { state_->channel->deregister(std::move(state_->region), state_->id); }
std::span<std::byte> Memory::bytes() const noexcept { return state_->region->memory(); }

Channel::Channel(std::shared_ptr<ChannelState> state) : state_(std::move(state)) {}
Channel::~Channel() { state_->close(); }
Result<std::unique_ptr<Memory>> Channel::register_memory(std::span<std::byte> memory, DmaBufRange dma_buf,
                                                         MemoryUse use) {
  return state_->register_memory(memory, dma_buf, use);
}
Result<Request*> Channel::send(std::span<const std::byte> message, int tag, const Memory* registered) {
  return state_->send(message, tag, registered);
}
Result<Request*> Channel::receive(std::span<const ReceiveSlot> slots, bool completion_optional) {
  return state_->receive(slots, completion_optional);
}
Result<bool> Channel::test(Request* request, std::span<std::uint64_t> sizes) { return state_->test(request, sizes); }
Result<void> Channel::wait(Request* request, std::span<std::uint64_t> sizes, Deadline deadline) {
  return state_->wait(request, sizes, deadline);
}
std::span<std::byte, Channel::kUserBytes> Channel::user_bytes(Request* request) noexcept { return request->user_bytes; }
ChannelStatistics Channel::statistics() const { return state_->statistics(); }
void Channel::close() { state_->close(); }

Listener::Listener(std::unique_ptr<ListenerState> state) : state_(std::move(state)) {}
Listener::~Listener() = default;
const Handle& Listener::handle() const noexcept { return state_->handle(); }
Result<std::unique_ptr<Channel>> Listener::accept() { return state_->accept(); }

// ---- A context's channels ----

Result<std::unique_ptr<Listener>> Context::listen() {
  auto channels = Channels::of(*state_);
  if (!channels) return std::move(channels.error());
  return (*channels)->listen();
}

Result<std::unique_ptr<Channel>> Context::connect(Handle& handle, const ConnectOptions& options) {
  auto channels = Channels::of(*state_);
  if (!channels) return std::move(channels.error());
  return (*channels)->connect(handle, options);
}

void Context::abandon(Handle& handle) {
  if (const auto channels = state_->existing(&ContextState::channels)) channels->abandon(handle);
}

std::string Context::report() const {
  const auto channels = state_->existing(&ContextState::channels);
  return channels == nullptr ? "no channel was asked for yet\n" : channels->report();
}

}  // namespace railyard
