/// Calls that move data. They touch nothing but their comm.
#include <algorithm>
#include <array>
#include <climits>

#include "calls.hpp"
#include "comm.hpp"
#include "log.hpp"

namespace railyard::nccl {

namespace {

ChannelComm* channel_of(void* comm, Comm::Kind kind) {
  auto* const known = static_cast<Comm*>(comm);
  return known != nullptr && known->kind == kind ? static_cast<ChannelComm*>(known) : nullptr;
}

/// The ABI has no room for more: NCCL asks for no single message of this size.
int saturated(std::uint64_t bytes) { return static_cast<int>(std::min<std::uint64_t>(bytes, INT_MAX)); }

}  // namespace

nccl_result send(void* comm, void* data, std::size_t bytes, int tag, void* memory, void* parent,
                 void** request) noexcept {
  return guarded("isend", [&]() -> nccl_result {
    if (request == nullptr) return misuse("isend", "no place for the request");
    *request = nullptr;  // whatever NCCL has left there
    ChannelComm* const known = channel_of(comm, Comm::Kind::sender);
    if (known == nullptr) return misuse("isend", "this is no sending comm");
    if (data == nullptr && bytes != 0) return misuse("isend", "a message at no address");
    auto made = known->send({static_cast<const std::byte*>(data), bytes}, tag, memory, parent);
    if (!made) return fail("isend", made.error());
    *request = *made;
    return NCCL_OK;
  });
}

nccl_result receive(void* comm, int n, void** data, const std::size_t* sizes, const int* tags, void** memories,
                    void** parents, void** request) noexcept {
  return guarded("irecv", [&]() -> nccl_result {
    if (request == nullptr) return misuse("irecv", "no place for the request");
    const bool completion_optional = *request == NCCL_OPTIONAL_COMPLETION && n == 1;
    *request = nullptr;  // the hint must not be taken for a request
    ChannelComm* const known = channel_of(comm, Comm::Kind::receiver);
    if (known == nullptr) return misuse("irecv", "this is no receiving comm");
    if (n < 1 || static_cast<std::size_t>(n) > Channel::kMostSlots)
      return misuse("irecv", "a receive takes 1 to 8 messages");
    if (data == nullptr || sizes == nullptr || tags == nullptr) return misuse("irecv", "no buffers, sizes or tags");
    std::array<ReceiveSlot, Channel::kMostSlots> slots;
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      if (data[i] == nullptr && sizes[i] != 0) return misuse("irecv", "a buffer at no address");
      slots[i] = {{static_cast<std::byte*>(data[i]), sizes[i]},
                  tags[i],
                  memories == nullptr ? nullptr : static_cast<const Memory*>(memories[i])};
    }
    auto made = known->receive(std::span(slots).first(static_cast<std::size_t>(n)), completion_optional, parents);
    if (!made) return fail("irecv", made.error());
    *request = *made;
    return NCCL_OK;
  });
}

nccl_result flush(void* comm, int /*n*/, void** /*data*/, int* /*sizes*/, void** /*memories*/,
                  void** request) noexcept {
  // There is nothing left to do: a receive is done when its bytes are visible, to the GPU too whose memory they are in
  // (Event::Kind::landed).
  if (request == nullptr) return misuse("iflush", "no place for the request");
  *request = nullptr;
  return channel_of(comm, Comm::Kind::receiver) != nullptr ? NCCL_OK : misuse("iflush", "this is no receiving comm");
}

nccl_result test(void* request, int* done, int* sizes) noexcept {
  return guarded("test", [&]() -> nccl_result {
    auto* const under_way = static_cast<Request*>(request);
    if (done == nullptr) return misuse("test", "no place for the answer");
    *done = 0;
    if (under_way == nullptr || NcclRequest::of(under_way).comm == nullptr)
      return misuse("test", "this request is not under way");
    const NcclRequest& known = NcclRequest::of(under_way);
    const std::uint32_t messages = known.messages;
    std::array<std::uint64_t, Channel::kMostSlots> bytes{};
    auto ended = known.comm->test(under_way, std::span(bytes).first(messages));
    if (!ended) return fail("test", ended.error());
    if (!*ended) return NCCL_OK;
    *done = 1;
    if (sizes != nullptr) std::transform(bytes.begin(), bytes.begin() + messages, sizes, saturated);
    return NCCL_OK;
  });
}

}  // namespace railyard::nccl
