/// One write as libfabric wants it, and what its errors mean, for both kinds of endpoints.
#pragma once

#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "fabric/rail.hpp"

namespace railyard::fabric::ofi {

/// `peer` is FI_ADDR_UNSPEC on a connected endpoint.
inline ssize_t post_write(fid_ep* endpoint, fi_addr_t peer, const RemoteChunk& to, LocalChunk from,
                          const WriteOptions& options, PostContext* context) {
  if (!options.delivery_complete) {
    return options.with_immediate
               ? fi_writedata(endpoint, from.address, from.bytes, from.descriptor, options.immediate, peer, to.address,
                              to.key, context)
               : fi_write(endpoint, from.address, from.bytes, from.descriptor, peer, to.address, to.key, context);
  }
  const iovec local{from.address, from.bytes};
  const fi_rma_iov remote{to.address, from.bytes, to.key};
  fi_msg_rma message{};
  message.msg_iov = &local;
  message.desc = &from.descriptor;
  message.iov_count = 1;
  message.addr = peer;
  message.rma_iov = &remote;
  message.rma_iov_count = 1;
  message.context = context;
  message.data = options.immediate;
  const std::uint64_t immediate = options.with_immediate ? FI_REMOTE_CQ_DATA : 0;
  return fi_writemsg(endpoint, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE | immediate);
}

/// What a provider's error says of the operation that it names.
inline Blame blame_for(int error) {
  switch (error) {
    case FI_EACCES:
    case FI_EFAULT:
    case FI_ENOKEY:
    case FI_EKEYREJECTED:
      return Blame::operation;
    default:  // the tcp provider says that an operation was cancelled, whatever broke its connection
      return Blame::unknown;
  }
}

}  // namespace railyard::fabric::ofi
