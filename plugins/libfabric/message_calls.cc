/// The tables of calls for messages with and without tags.
#include "endpoint.hpp"

namespace railyard::provider {

namespace {

constexpr std::uint64_t kMessageOperation = FI_SEND | FI_MSG;
constexpr std::uint64_t kTaggedOperation = FI_SEND | FI_TAGGED;

ssize_t receive(fid_ep* fid, bool with_tag, const IoVector& to, fi_addr_t from, std::uint64_t tag, std::uint64_t ignore,
                void* context, const std::uint64_t* flags) {
  Endpoint& endpoint = Endpoint::of(fid);
  Guard guard(endpoint.domain.lock);
  return endpoint.receive(with_tag ? endpoint.tagged : endpoint.messages, to, from, tag, ignore, context,
                          flags != nullptr ? *flags : endpoint.receive_flags);
}

/// `extra` comes on top of the endpoint's own flags.
ssize_t send(fid_ep* fid, bool with_tag, const IoVector& from, fi_addr_t to, std::uint64_t tag, std::uint64_t data,
             void* context, std::uint64_t extra) {
  Endpoint& endpoint = Endpoint::of(fid);
  Guard guard(endpoint.domain.lock);
  Order order;
  order.kind = with_tag ? kTagged : kMessage;
  order.flags = endpoint.transmit_flags | extra;
  order.operation = with_tag ? kTaggedOperation : kMessageOperation;
  order.to = to;
  order.arguments = {tag, data};
  order.data = data;
  order.context = context;
  return endpoint.send(order, from);
}

/// One buffer and no remote data: most of all messages.
inline ssize_t send_buffer(fid_ep* fid, bool with_tag, const void* buffer, std::size_t bytes, fi_addr_t to,
                           std::uint64_t tag, void* context, std::uint64_t extra) {
  Endpoint& endpoint = Endpoint::of(fid);
  const std::uint64_t flags = endpoint.transmit_flags | extra;
  if ((flags & kNeedsDone) != 0 && (flags & kQuiet) == 0) [[unlikely]]
    return send(fid, with_tag, IoVector(buffer, bytes), to, tag, 0, context, extra);
  Guard guard(endpoint.domain.lock);
  return endpoint.send_buffer(with_tag ? kTagged : kMessage, with_tag ? kTaggedOperation : kMessageOperation, buffer,
                              bytes, to, {tag, 0}, context, flags);
}

template <typename Message>
ssize_t send_message(fid_ep* fid, bool with_tag, const Message& message, std::uint64_t tag, std::uint64_t flags) {
  Endpoint& endpoint = Endpoint::of(fid);
  if (message.iov_count > kMostIov) return -FI_EINVAL;
  const IoVector from(message.msg_iov, message.iov_count);
  if ((flags & FI_INJECT) != 0 && from.bytes > kInjectBytes) return -FI_EMSGSIZE;
  Guard guard(endpoint.domain.lock);
  Order order;
  order.kind = with_tag ? kTagged : kMessage;
  order.flags = flags;
  order.operation = with_tag ? kTaggedOperation : kMessageOperation;
  order.to = message.addr;
  order.arguments = {tag, message.data};
  order.data = message.data;
  order.context = message.context;
  return endpoint.send(order, from);
}

// Without tags.

ssize_t recv_one(fid_ep* fid, void* buffer, std::size_t bytes, void*, fi_addr_t from, void* context) {
  return receive(fid, false, IoVector(buffer, bytes), from, 0, 0, context, nullptr);
}
ssize_t recv_iov(fid_ep* fid, const iovec* iov, void**, std::size_t count, fi_addr_t from, void* context) {
  if (count > kMostIov) return -FI_EINVAL;
  return receive(fid, false, IoVector(iov, count), from, 0, 0, context, nullptr);
}
ssize_t recv_message(fid_ep* fid, const fi_msg* message, std::uint64_t flags) {
  if (message->iov_count > kMostIov) return -FI_EINVAL;
  return receive(fid, false, IoVector(message->msg_iov, message->iov_count), message->addr, 0, 0, message->context,
                 &flags);
}
ssize_t send_one(fid_ep* fid, const void* buffer, std::size_t bytes, void*, fi_addr_t to, void* context) {
  return send_buffer(fid, false, buffer, bytes, to, 0, context, 0);
}
ssize_t send_iov(fid_ep* fid, const iovec* iov, void**, std::size_t count, fi_addr_t to, void* context) {
  if (count > kMostIov) return -FI_EINVAL;
  return send(fid, false, IoVector(iov, count), to, 0, 0, context, 0);
}
ssize_t send_described(fid_ep* fid, const fi_msg* message, std::uint64_t flags) {
  return send_message(fid, false, *message, 0, flags);
}
ssize_t inject(fid_ep* fid, const void* buffer, std::size_t bytes, fi_addr_t to) {
  if (bytes > kInjectBytes) return -FI_EMSGSIZE;
  return send_buffer(fid, false, buffer, bytes, to, 0, nullptr, kQuiet);
}
ssize_t send_data(fid_ep* fid, const void* buffer, std::size_t bytes, void*, std::uint64_t data, fi_addr_t to,
                  void* context) {
  return send(fid, false, IoVector(buffer, bytes), to, 0, data, context, FI_REMOTE_CQ_DATA);
}
ssize_t inject_data(fid_ep* fid, const void* buffer, std::size_t bytes, std::uint64_t data, fi_addr_t to) {
  if (bytes > kInjectBytes) return -FI_EMSGSIZE;
  return send(fid, false, IoVector(buffer, bytes), to, 0, data, nullptr, FI_REMOTE_CQ_DATA | kQuiet);
}

// With tags.

ssize_t tagged_recv_one(fid_ep* fid, void* buffer, std::size_t bytes, void*, fi_addr_t from, std::uint64_t tag,
                        std::uint64_t ignore, void* context) {
  return receive(fid, true, IoVector(buffer, bytes), from, tag, ignore, context, nullptr);
}
ssize_t tagged_recv_iov(fid_ep* fid, const iovec* iov, void**, std::size_t count, fi_addr_t from, std::uint64_t tag,
                        std::uint64_t ignore, void* context) {
  if (count > kMostIov) return -FI_EINVAL;
  return receive(fid, true, IoVector(iov, count), from, tag, ignore, context, nullptr);
}
ssize_t tagged_recv_message(fid_ep* fid, const fi_msg_tagged* message, std::uint64_t flags) {
  if (message->iov_count > kMostIov) return -FI_EINVAL;
  return receive(fid, true, IoVector(message->msg_iov, message->iov_count), message->addr, message->tag,
                 message->ignore, message->context, &flags);
}
ssize_t tagged_send_one(fid_ep* fid, const void* buffer, std::size_t bytes, void*, fi_addr_t to, std::uint64_t tag,
                        void* context) {
  return send_buffer(fid, true, buffer, bytes, to, tag, context, 0);
}
ssize_t tagged_send_iov(fid_ep* fid, const iovec* iov, void**, std::size_t count, fi_addr_t to, std::uint64_t tag,
                        void* context) {
  if (count > kMostIov) return -FI_EINVAL;
  return send(fid, true, IoVector(iov, count), to, tag, 0, context, 0);
}
ssize_t tagged_send_described(fid_ep* fid, const fi_msg_tagged* message, std::uint64_t flags) {
  return send_message(fid, true, *message, message->tag, flags);
}
ssize_t tagged_inject(fid_ep* fid, const void* buffer, std::size_t bytes, fi_addr_t to, std::uint64_t tag) {
  if (bytes > kInjectBytes) return -FI_EMSGSIZE;
  return send_buffer(fid, true, buffer, bytes, to, tag, nullptr, kQuiet);
}
ssize_t tagged_send_data(fid_ep* fid, const void* buffer, std::size_t bytes, void*, std::uint64_t data, fi_addr_t to,
                         std::uint64_t tag, void* context) {
  return send(fid, true, IoVector(buffer, bytes), to, tag, data, context, FI_REMOTE_CQ_DATA);
}
ssize_t tagged_inject_data(fid_ep* fid, const void* buffer, std::size_t bytes, std::uint64_t data, fi_addr_t to,
                           std::uint64_t tag) {
  if (bytes > kInjectBytes) return -FI_EMSGSIZE;
  return send(fid, true, IoVector(buffer, bytes), to, tag, data, nullptr, FI_REMOTE_CQ_DATA | kQuiet);
}

}  // namespace

fi_ops_msg message_calls{sizeof(fi_ops_msg), recv_one,       recv_iov, recv_message, send_one,
                         send_iov,           send_described, inject,   send_data,    inject_data};
fi_ops_tagged tagged_calls{sizeof(fi_ops_tagged), tagged_recv_one,   tagged_recv_iov,       tagged_recv_message,
                           tagged_send_one,       tagged_send_iov,   tagged_send_described, tagged_inject,
                           tagged_send_data,      tagged_inject_data};

}  // namespace railyard::provider
