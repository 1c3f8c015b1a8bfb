/// Contexts, listeners and channels of the C API.
#include "railyard/channel.hpp"

#include <array>
#include <cstring>
#include <vector>

#include "c_api/handles.hpp"

struct ry_listener {
  std::unique_ptr<railyard::Listener> listener;
};

struct ry_memory {
  std::unique_ptr<railyard::Memory> memory;
};

namespace railyard::c_api {

static_assert(sizeof(ry_handle) == Handle::kBytes && alignof(ry_handle) == alignof(Handle));
static_assert(RY_MOST_SLOTS == Channel::kMostSlots);

/// The requests that a C program holds, by number: one that is done, or was made up, is found to be neither.
class RequestTable {
 public:
  ry_request add(Request* request) {
    if (free_.empty()) {
      slots_.emplace_back();
      free_.push_back(static_cast<std::uint32_t>(slots_.size() - 1));
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    slots_[index].request = request;
    return {std::uint64_t{slots_[index].use} << 32U | index};
  }
  /// Null: it names nothing.
  Request* find(ry_request name) const {
    const auto index = static_cast<std::uint32_t>(name.number);
    const bool known = index < slots_.size() && slots_[index].use == name.number >> 32U;
    return known ? slots_[index].request : nullptr;
  }
  void remove(ry_request name) {
    const auto index = static_cast<std::uint32_t>(name.number);
    slots_[index].request = nullptr;
    ++slots_[index].use;
    free_.push_back(index);
  }

 private:
  struct Slot {
    Request* request = nullptr;
    std::uint32_t use = 1;  ///< counts the requests that were here: no name is 0
  };
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace railyard::c_api

struct ry_channel {
  std::unique_ptr<railyard::Channel> channel;
  railyard::c_api::RequestTable requests;
};

namespace railyard::c_api {
namespace {

const Memory* registered_in(const ry_memory* memory) { return memory == nullptr ? nullptr : memory->memory.get(); }

ry_status hand_out(Result<std::unique_ptr<Channel>>&& made, ry_channel** channel) {
  if (!made) return fail(made.error());
  if (*made == nullptr) return RY_BUSY;
  *channel = new ry_channel{std::move(*made), {}};
  return RY_OK;
}

ry_status hand_out(ry_channel& channel, Result<Request*>&& made, ry_request* request) {
  if (!made) return fail(made.error());
  if (*made == nullptr) return RY_BUSY;
  *request = channel.requests.add(*made);
  return RY_OK;
}

ry_status register_memory(const char* call, ry_channel* channel, void* memory, size_t bytes, MemoryUse use,
                          ry_memory** registered) {
  if (channel == nullptr || memory == nullptr || registered == nullptr)
    return fail_invalid(call, "an argument is NULL");
  return guarded(call, [&]() -> ry_status {
    auto made = channel->channel->register_memory({static_cast<std::byte*>(memory), bytes}, {}, use);
    if (!made) return fail(made.error());
    *registered = new ry_memory{std::move(*made)};
    return RY_OK;
  });
}

/// Runs a call that may end a request: `ends` answers whether it is done.
template <typename Ends>
ry_status end_request(const char* call, ry_channel* channel, ry_request name, const uint64_t* sizes, size_t count,
                      Ends ends) noexcept {
  if (channel == nullptr) return fail_invalid(call, "no channel");
  if (sizes == nullptr && count > 0) return fail_invalid(call, "no place for the sizes");
  Request* const request = channel->requests.find(name);
  if (request == nullptr) return fail_invalid(call, "the request is done already, or was never made");
  return guarded(call, [&]() -> ry_status {
    Result<bool> done = ends(*channel->channel, request);
    if (!done) return fail(done.error());
    if (*done) channel->requests.remove(name);
    return RY_OK;
  });
}

}  // namespace
}  // namespace railyard::c_api

using railyard::Deadline;
using railyard::MemoryUse;
using railyard::Result;
using namespace railyard::c_api;  // NOLINT(google-build-using-namespace): these are the C side's own helpers

extern "C" {

ry_status ry_context_open(const ry_settings* settings, ry_context** context) {
  if (context == nullptr) return fail_invalid(__func__, "no place for the context");
  return guarded(__func__, [&]() -> ry_status {
    auto wanted =
        settings == nullptr ? railyard::Settings::from_environment() : Result<railyard::Settings>(settings->settings);
    if (!wanted) return fail(wanted.error());
    auto opened = railyard::Context::open(*wanted);
    if (!opened) return fail(opened.error());
    *context = new ry_context{std::move(*opened)};
    return RY_OK;
  });
}

void ry_context_free(ry_context* context) { delete context; }

ry_status ry_context_listen(ry_context* context, ry_listener** listener) {
  if (context == nullptr || listener == nullptr) return fail_invalid(__func__, "an argument is NULL");
  return guarded(__func__, [&]() -> ry_status {
    auto made = context->context->listen();
    if (!made) return fail(made.error());
    *listener = new ry_listener{std::move(*made)};
    return RY_OK;
  });
}

ry_status ry_listener_handle(const ry_listener* listener, ry_handle* handle) {
  if (listener == nullptr || handle == nullptr) return fail_invalid(__func__, "an argument is NULL");
  std::memcpy(handle, listener->listener->handle().bytes.data(), sizeof *handle);
  return RY_OK;
}

ry_status ry_listener_accept(ry_listener* listener, ry_channel** channel) {
  if (listener == nullptr || channel == nullptr) return fail_invalid(__func__, "an argument is NULL");
  return guarded(__func__, [&]() -> ry_status { return hand_out(listener->listener->accept(), channel); });
}

void ry_listener_free(ry_listener* listener) { delete listener; }

ry_status ry_context_connect(ry_context* context, ry_handle* handle, uint32_t service_class, ry_channel** channel) {
  if (context == nullptr || handle == nullptr || channel == nullptr)
    return fail_invalid(__func__, "an argument is NULL");
  return guarded(__func__, [&]() -> ry_status {
    railyard::Handle copy;
    std::memcpy(copy.bytes.data(), handle, sizeof *handle);
    auto made = context->context->connect(copy, {.service_class = service_class});
    std::memcpy(handle, copy.bytes.data(), sizeof *handle);
    return hand_out(std::move(made), channel);
  });
}

void ry_context_abandon(ry_context* context, ry_handle* handle) {
  if (context == nullptr || handle == nullptr) return;
  railyard::Handle copy;
  std::memcpy(copy.bytes.data(), handle, sizeof *handle);
  context->context->abandon(copy);
  std::memcpy(handle, copy.bytes.data(), sizeof *handle);
}

ry_status ry_channel_register(ry_channel* channel, void* memory, size_t bytes, ry_memory** registered) {
  return register_memory(__func__, channel, memory, bytes, MemoryUse::any, registered);
}

ry_status ry_channel_register_for(ry_channel* channel, void* memory, size_t bytes, ry_memory_use use,
                                  ry_memory** registered) {
  if (use != RY_FOR_ANY && use != RY_FOR_SENDS)
    return fail_value(__func__, "use of memory", use, "RY_FOR_ANY (0) and RY_FOR_SENDS (1)");
  return register_memory(__func__, channel, memory, bytes, static_cast<MemoryUse>(use), registered);
}

void ry_memory_free(ry_memory* registered) { delete registered; }

ry_status ry_channel_send(ry_channel* channel, const void* message, size_t bytes, int tag, const ry_memory* registered,
                          ry_request* request) {
  if (channel == nullptr || request == nullptr) return fail_invalid(__func__, "an argument is NULL");
  if (message == nullptr && bytes > 0) return fail_invalid(__func__, "no message");
  return guarded(__func__, [&]() -> ry_status {
    auto made = channel->channel->send({static_cast<const std::byte*>(message), bytes}, tag, registered_in(registered));
    return hand_out(*channel, std::move(made), request);
  });
}

ry_status ry_channel_receive(ry_channel* channel, const ry_receive_slot* slots, size_t count, ry_request* request) {
  if (channel == nullptr || slots == nullptr || request == nullptr)
    return fail_invalid(__func__, "an argument is NULL");
  if (count == 0 || count > RY_MOST_SLOTS) return fail_invalid(__func__, "a receive has 1 to 8 slots");
  std::array<railyard::ReceiveSlot, RY_MOST_SLOTS> wanted;
  for (size_t i = 0; i < count; ++i) {
    if (slots[i].memory == nullptr && slots[i].bytes > 0) return fail_invalid(__func__, "a slot has no memory");
    wanted[i].memory = {static_cast<std::byte*>(slots[i].memory), slots[i].bytes};
    wanted[i].tag = slots[i].tag;
    wanted[i].registered = registered_in(slots[i].registered);
  }
  return guarded(__func__, [&]() -> ry_status {
    return hand_out(*channel, channel->channel->receive(std::span(wanted).first(count)), request);
  });
}

ry_status ry_channel_test(ry_channel* channel, ry_request request, int* done, uint64_t* sizes, size_t count) {
  if (done == nullptr) return fail_invalid(__func__, "no place for the answer");
  return end_request(__func__, channel, request, sizes, count, [&](railyard::Channel& at, railyard::Request* which) {
    auto answer = at.test(which, {sizes, count});
    if (answer) *done = *answer ? 1 : 0;
    return answer;
  });
}

ry_status ry_channel_wait(ry_channel* channel, ry_request request, uint64_t* sizes, size_t count, int64_t deadline_ms) {
  Deadline deadline;
  if (!to_deadline(deadline_ms, deadline)) return fail_invalid(__func__, "no such deadline");
  return end_request(__func__, channel, request, sizes, count,
                     [&](railyard::Channel& at, railyard::Request* which) -> Result<bool> {
                       auto done = at.wait(which, {sizes, count}, deadline);
                       if (!done) return std::move(done.error());
                       return true;
                     });
}

void ry_channel_close(ry_channel* channel) {
  if (channel != nullptr) channel->channel->close();
}

void ry_channel_free(ry_channel* channel) { delete channel; }

ry_status ry_channel_read_statistics(const ry_channel* channel, ry_channel_statistics* statistics) {
  if (channel == nullptr || statistics == nullptr) return fail_invalid(__func__, "an argument is NULL");
  return guarded(__func__, [&]() -> ry_status {
    const railyard::ChannelStatistics now = channel->channel->statistics();
    *statistics = {};
    copy_text(statistics->peer, now.peer);
    statistics->route = now.route;
    statistics->sharers = now.sharers;
    statistics->messages_sent = now.messages_sent;
    statistics->messages_received = now.messages_received;
    statistics->bytes_sent = now.bytes_sent;
    statistics->bytes_received = now.bytes_received;
    statistics->eager_sent = now.eager_sent;
    statistics->unexpected = now.unexpected;
    return RY_OK;
  });
}

}  // extern "C"
