/// The tables of calls for remote memory and atomics.
#include <fmt/format.h>

#include "atomics.hpp"
#include "endpoint.hpp"
#include "log.hpp"

namespace railyard::provider {

namespace {

Order order_for(const Endpoint& endpoint, Kind kind, std::uint64_t operation, fi_addr_t to, std::uint64_t address,
                std::uint64_t key, void* context) {
  Order order;
  order.kind = kind;
  order.flags = endpoint.transmit_flags;
  order.operation = operation;
  order.to = to;
  order.arguments = {address, key};
  order.context = context;
  return order;
}

ssize_t write(fid_ep* fid, const Pieces& from, fi_addr_t to, std::uint64_t address, std::uint64_t key, void* context,
              std::uint64_t extra, std::uint64_t data) {
  Endpoint& endpoint = Endpoint::of(fid);
  Guard guard(endpoint.domain.lock);
  Order order = order_for(endpoint, kWrite, FI_RMA | FI_WRITE, to, address, key, context);
  order.flags |= extra;
  order.data = data;
  return endpoint.send(order, from);
}

/// One buffer and no remote data: most of all writes.
ssize_t write_buffer(fid_ep* fid, const void* buffer, std::size_t bytes, fi_addr_t to, std::uint64_t address,
                     std::uint64_t key, void* context, std::uint64_t extra) {
  Endpoint& endpoint = Endpoint::of(fid);
  const std::uint64_t flags = endpoint.transmit_flags | extra;
  if ((flags & kNeedsDone) != 0 && (flags & kQuiet) == 0) [[unlikely]]
    return write(fid, Pieces(buffer, bytes), to, address, key, context, extra, 0);
  Guard guard(endpoint.domain.lock);
  return endpoint.send_buffer(kWrite, FI_RMA | FI_WRITE, buffer, bytes, to, {address, key}, context, flags);
}

ssize_t read(fid_ep* fid, const Pieces& to, fi_addr_t from, std::uint64_t address, std::uint64_t key, void* context,
             const std::uint64_t* flags) {
  Endpoint& endpoint = Endpoint::of(fid);
  Guard guard(endpoint.domain.lock);
  Order order = order_for(endpoint, kRead, FI_RMA | FI_READ, from, address, key, context);
  // A read is over when its bytes are here: no level of completion means less, none more.
  order.flags = (flags != nullptr ? *flags : order.flags) & FI_COMPLETION;
  return endpoint.read(order, to);
}

ssize_t read_one(fid_ep* fid, void* buffer, std::size_t bytes, void*, fi_addr_t from, std::uint64_t address,
                 std::uint64_t key, void* context) {
  return read(fid, Pieces(buffer, bytes), from, address, key, context, nullptr);
}
ssize_t read_pieces(fid_ep* fid, const iovec* pieces, void**, std::size_t count, fi_addr_t from, std::uint64_t address,
                    std::uint64_t key, void* context) {
  if (count > kMostPieces) return -FI_EINVAL;
  return read(fid, Pieces(pieces, count), from, address, key, context, nullptr);
}
/// Checks the pieces of both sides; 0, or why not.
int check_places(const fi_msg_rma& message) {
  if (message.iov_count > kMostPieces)
    return refuse(-FI_EINVAL, fmt::format("{} local pieces: iov_limit is {}", message.iov_count, kMostPieces));
  if (message.rma_iov_count == 0 || message.rma_iov_count > kMostRemotePieces)
    return refuse(-FI_EINVAL,
                  fmt::format("{} remote pieces: rma_iov_limit is {}", message.rma_iov_count, kMostRemotePieces));
  std::size_t remote = 0;
  for (std::size_t index = 0; index < message.rma_iov_count; ++index) remote += message.rma_iov[index].len;
  const std::size_t local = Pieces(message.msg_iov, message.iov_count).bytes;
  // With one piece the local length counts, whatever its `len` says: so it is in the calls without a message.
  if (message.rma_iov_count > 1 && remote != local)
    return refuse(-FI_EINVAL, fmt::format("{} bytes here, {} there: they must be the same", local, remote));
  return 0;
}

ssize_t read_message(fid_ep* fid, const fi_msg_rma* message, std::uint64_t flags) {
  if (const int code = check_places(*message); code != 0) return code;
  const Pieces to(message->msg_iov, message->iov_count);
  if (message->rma_iov_count > 1 && to.bytes != 0) {
    Endpoint& endpoint = Endpoint::of(fid);
    Guard guard(endpoint.domain.lock);
    Order order = order_for(endpoint, kRead, FI_RMA | FI_READ, message->addr, 0, 0, message->context);
    order.flags = flags & FI_COMPLETION;
    return endpoint.read_places(order, to, message->rma_iov, message->rma_iov_count);
  }
  return read(fid, Pieces(message->msg_iov, message->iov_count), message->addr, message->rma_iov[0].addr,
              message->rma_iov[0].key, message->context, &flags);
}
ssize_t write_one(fid_ep* fid, const void* buffer, std::size_t bytes, void*, fi_addr_t to, std::uint64_t address,
                  std::uint64_t key, void* context) {
  return write_buffer(fid, buffer, bytes, to, address, key, context, 0);
}
ssize_t write_pieces(fid_ep* fid, const iovec* pieces, void**, std::size_t count, fi_addr_t to, std::uint64_t address,
                     std::uint64_t key, void* context) {
  if (count > kMostPieces) return -FI_EINVAL;
  return write(fid, Pieces(pieces, count), to, address, key, context, 0, 0);
}
ssize_t write_message(fid_ep* fid, const fi_msg_rma* message, std::uint64_t flags) {
  if (const int code = check_places(*message); code != 0) return code;
  const Pieces from(message->msg_iov, message->iov_count);
  if ((flags & FI_INJECT) != 0 && from.bytes > kInjectBytes) return -FI_EMSGSIZE;
  Endpoint& endpoint = Endpoint::of(fid);
  Guard guard(endpoint.domain.lock);
  Order order = order_for(endpoint, kWrite, FI_RMA | FI_WRITE, message->addr, message->rma_iov[0].addr,
                          message->rma_iov[0].key, message->context);
  order.flags = flags;
  order.data = message->data;
  if (message->rma_iov_count > 1 && from.bytes != 0)
    return endpoint.write_places(order, from, message->rma_iov, message->rma_iov_count);
  return endpoint.send(order, from);
}
ssize_t inject_write(fid_ep* fid, const void* buffer, std::size_t bytes, fi_addr_t to, std::uint64_t address,
                     std::uint64_t key) {
  if (bytes > kInjectBytes) return -FI_EMSGSIZE;
  return write_buffer(fid, buffer, bytes, to, address, key, nullptr, kQuiet);
}
ssize_t write_data(fid_ep* fid, const void* buffer, std::size_t bytes, void*, std::uint64_t data, fi_addr_t to,
                   std::uint64_t address, std::uint64_t key, void* context) {
  return write(fid, Pieces(buffer, bytes), to, address, key, context, FI_REMOTE_CQ_DATA, data);
}
ssize_t inject_write_data(fid_ep* fid, const void* buffer, std::size_t bytes, std::uint64_t data, fi_addr_t to,
                          std::uint64_t address, std::uint64_t key) {
  if (bytes > kInjectBytes) return -FI_EMSGSIZE;
  return write(fid, Pieces(buffer, bytes), to, address, key, nullptr, FI_REMOTE_CQ_DATA | kQuiet, data);
}

// Atomics. All forms become one: operands, comparands and results in pieces, one remote place.

/// Elements in pieces as bytes in pieces.
bool to_pieces(const fi_ioc* list, std::size_t count, std::size_t size, Pieces& pieces) {
  if (count > kMostPieces) return false;
  pieces = Pieces();
  pieces.count = count;
  for (std::size_t index = 0; index < count; ++index) {
    pieces.list[index] = {list[index].addr, list[index].count * size};
    pieces.bytes += list[index].count * size;
  }
  return true;
}

struct AtomicCall {
  const fi_ioc* operands = nullptr;
  std::size_t operands_count = 0;
  const fi_ioc* compares = nullptr;
  std::size_t compares_count = 0;
  const fi_ioc* results = nullptr;
  std::size_t results_count = 0;
  fi_addr_t to = FI_ADDR_UNSPEC;
  std::uint64_t address = 0;
  std::uint64_t key = 0;
  fi_datatype datatype = FI_INT8;
  fi_op operation = FI_SUM;
  void* context = nullptr;
  AtomicKind kind = AtomicKind::plain;
  const std::uint64_t* flags = nullptr;  ///< instead of the endpoint's own
  std::uint64_t extra = 0;
  std::uint64_t data = 0;
};

ssize_t run(fid_ep* fid, const AtomicCall& call) {
  if (find_atomic(call.kind, call.datatype, call.operation) == nullptr) return -FI_EOPNOTSUPP;
  const std::size_t size = datatype_bytes(call.datatype);
  AtomicOrder how;
  Pieces operands;
  if (!to_pieces(call.operands, call.operands_count, size, operands) ||
      !to_pieces(call.compares, call.compares_count, size, how.compare) ||
      !to_pieces(call.results, call.results_count, size, how.result))
    return -FI_EINVAL;
  // A read has no operands: what comes back says how many elements there are.
  const std::size_t bytes = call.operation == FI_ATOMIC_READ ? how.result.bytes : operands.bytes;
  const bool fits = (call.kind == AtomicKind::plain || how.result.bytes == bytes) &&
                    (call.kind != AtomicKind::compare || how.compare.bytes == bytes);
  if (bytes == 0 || bytes > kMostAtomicBytes || !fits) return -FI_EINVAL;
  how.datatype = call.datatype;
  how.operation = call.operation;
  how.elements = bytes / size;
  how.fetches = call.kind == AtomicKind::fetch;
  how.compares = call.kind == AtomicKind::compare;
  Endpoint& endpoint = Endpoint::of(fid);
  Guard guard(endpoint.domain.lock);
  const std::uint64_t direction = call.kind == AtomicKind::plain ? FI_WRITE : FI_READ;
  Order order = order_for(endpoint, kAtomic, FI_ATOMIC | direction, call.to, call.address, call.key, call.context);
  order.flags = (call.flags != nullptr ? *call.flags : order.flags) | call.extra;
  order.data = call.data;
  return endpoint.atomic(order, how, operands);
}

ssize_t atomic_pieces(fid_ep* fid, const fi_ioc* pieces, void**, std::size_t count, fi_addr_t to, std::uint64_t address,
                      std::uint64_t key, fi_datatype datatype, fi_op operation, void* context) {
  AtomicCall call;
  call.operands = pieces;
  call.operands_count = count;
  call.to = to;
  call.address = address;
  call.key = key;
  call.datatype = datatype;
  call.operation = operation;
  call.context = context;
  return run(fid, call);
}
ssize_t atomic_one(fid_ep* fid, const void* buffer, std::size_t count, void*, fi_addr_t to, std::uint64_t address,
                   std::uint64_t key, fi_datatype datatype, fi_op operation, void* context) {
  const fi_ioc piece{const_cast<void*>(buffer), count};
  return atomic_pieces(fid, &piece, nullptr, 1, to, address, key, datatype, operation, context);
}
ssize_t inject_atomic(fid_ep* fid, const void* buffer, std::size_t count, fi_addr_t to, std::uint64_t address,
                      std::uint64_t key, fi_datatype datatype, fi_op operation) {
  const fi_ioc piece{const_cast<void*>(buffer), count};
  AtomicCall call;
  call.operands = &piece;
  call.operands_count = 1;
  call.to = to;
  call.address = address;
  call.key = key;
  call.datatype = datatype;
  call.operation = operation;
  call.extra = kQuiet;
  return run(fid, call);
}

ssize_t fetch_pieces(fid_ep* fid, const fi_ioc* pieces, void**, std::size_t count, fi_ioc* results, void**,
                     std::size_t results_count, fi_addr_t to, std::uint64_t address, std::uint64_t key,
                     fi_datatype datatype, fi_op operation, void* context) {
  AtomicCall call;
  call.operands = pieces;
  call.operands_count = operation == FI_ATOMIC_READ ? 0 : count;
  call.results = results;
  call.results_count = results_count;
  call.to = to;
  call.address = address;
  call.key = key;
  call.datatype = datatype;
  call.operation = operation;
  call.context = context;
  call.kind = AtomicKind::fetch;
  return run(fid, call);
}
ssize_t fetch_one(fid_ep* fid, const void* buffer, std::size_t count, void*, void* result, void*, fi_addr_t to,
                  std::uint64_t address, std::uint64_t key, fi_datatype datatype, fi_op operation, void* context) {
  const fi_ioc piece{const_cast<void*>(buffer), count};
  fi_ioc back{result, count};
  return fetch_pieces(fid, &piece, nullptr, 1, &back, nullptr, 1, to, address, key, datatype, operation, context);
}

ssize_t compare_pieces(fid_ep* fid, const fi_ioc* pieces, void**, std::size_t count, const fi_ioc* compares, void**,
                       std::size_t compares_count, fi_ioc* results, void**, std::size_t results_count, fi_addr_t to,
                       std::uint64_t address, std::uint64_t key, fi_datatype datatype, fi_op operation, void* context) {
  AtomicCall call;
  call.operands = pieces;
  call.operands_count = count;
  call.compares = compares;
  call.compares_count = compares_count;
  call.results = results;
  call.results_count = results_count;
  call.to = to;
  call.address = address;
  call.key = key;
  call.datatype = datatype;
  call.operation = operation;
  call.context = context;
  call.kind = AtomicKind::compare;
  return run(fid, call);
}
ssize_t compare_one(fid_ep* fid, const void* buffer, std::size_t count, void*, const void* compare, void*, void* result,
                    void*, fi_addr_t to, std::uint64_t address, std::uint64_t key, fi_datatype datatype,
                    fi_op operation, void* context) {
  const fi_ioc piece{const_cast<void*>(buffer), count};
  const fi_ioc against{const_cast<void*>(compare), count};
  fi_ioc back{result, count};
  return compare_pieces(fid, &piece, nullptr, 1, &against, nullptr, 1, &back, nullptr, 1, to, address, key, datatype,
                        operation, context);
}

ssize_t run_message(fid_ep* fid, const fi_msg_atomic& message, AtomicCall call, const std::uint64_t& flags) {
  if (message.rma_iov_count != 1) return -FI_EINVAL;
  call.operands = message.msg_iov;
  call.operands_count = message.op == FI_ATOMIC_READ ? 0 : message.iov_count;
  call.to = message.addr;
  call.address = message.rma_iov[0].addr;
  call.key = message.rma_iov[0].key;
  call.datatype = message.datatype;
  call.operation = message.op;
  call.context = message.context;
  call.flags = &flags;
  call.data = message.data;
  return run(fid, call);
}
ssize_t atomic_message(fid_ep* fid, const fi_msg_atomic* message, std::uint64_t flags) {
  return run_message(fid, *message, {}, flags);
}
ssize_t fetch_message(fid_ep* fid, const fi_msg_atomic* message, fi_ioc* results, void**, std::size_t results_count,
                      std::uint64_t flags) {
  AtomicCall call;
  call.results = results;
  call.results_count = results_count;
  call.kind = AtomicKind::fetch;
  return run_message(fid, *message, call, flags);
}
ssize_t compare_message(fid_ep* fid, const fi_msg_atomic* message, const fi_ioc* compares, void**,
                        std::size_t compares_count, fi_ioc* results, void**, std::size_t results_count,
                        std::uint64_t flags) {
  AtomicCall call;
  call.compares = compares;
  call.compares_count = compares_count;
  call.results = results;
  call.results_count = results_count;
  call.kind = AtomicKind::compare;
  return run_message(fid, *message, call, flags);
}

int valid(AtomicKind kind, fi_datatype datatype, fi_op operation, std::size_t* count) {
  if (find_atomic(kind, datatype, operation) == nullptr) return -FI_EOPNOTSUPP;
  *count = kMostAtomicBytes / datatype_bytes(datatype);
  return 0;
}
int atomic_valid(fid_ep*, fi_datatype datatype, fi_op operation, std::size_t* count) {
  return valid(AtomicKind::plain, datatype, operation, count);
}
int fetch_valid(fid_ep*, fi_datatype datatype, fi_op operation, std::size_t* count) {
  return valid(AtomicKind::fetch, datatype, operation, count);
}
int compare_valid(fid_ep*, fi_datatype datatype, fi_op operation, std::size_t* count) {
  return valid(AtomicKind::compare, datatype, operation, count);
}

}  // namespace

fi_ops_rma remote_calls{sizeof(fi_ops_rma), read_one,      read_pieces,  read_message, write_one,
                        write_pieces,       write_message, inject_write, write_data,   inject_write_data};
fi_ops_atomic atomic_calls{
    sizeof(fi_ops_atomic), atomic_one,  atomic_pieces,  atomic_message,  inject_atomic, fetch_one,   fetch_pieces,
    fetch_message,         compare_one, compare_pieces, compare_message, atomic_valid,  fetch_valid, compare_valid};

}  // namespace railyard::provider
