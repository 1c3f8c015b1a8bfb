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

ssize_t write(fid_ep* fid, const IoVector& from, fi_addr_t to, std::uint64_t address, std::uint64_t key, void* context,
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
    return write(fid, IoVector(buffer, bytes), to, address, key, context, extra, 0);
  Guard guard(endpoint.domain.lock);
  return endpoint.send_buffer(kWrite, FI_RMA | FI_WRITE, buffer, bytes, to, {address, key}, context, flags);
}

ssize_t read(fid_ep* fid, const IoVector& to, fi_addr_t from, std::uint64_t address, std::uint64_t key, void* context,
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
  return read(fid, IoVector(buffer, bytes), from, address, key, context, nullptr);
}
ssize_t read_iov(fid_ep* fid, const iovec* iov, void**, std::size_t count, fi_addr_t from, std::uint64_t address,
                 std::uint64_t key, void* context) {
  if (count > kMostIov) return -FI_EINVAL;
  return read(fid, IoVector(iov, count), from, address, key, context, nullptr);
}
/// Checks the iov entries of both sides; 0, or why not.
int check_iov_counts(const fi_msg_rma& message) {
  if (message.iov_count > kMostIov)
    return refuse(-FI_EINVAL, fmt::format("{} local iov entries: iov_limit is {}", message.iov_count, kMostIov));
  if (message.rma_iov_count == 0 || message.rma_iov_count > kMostRemoteIov)
    return refuse(-FI_EINVAL,
                  fmt::format("{} remote iov entries: rma_iov_limit is {}", message.rma_iov_count, kMostRemoteIov));
  std::size_t remote = 0;
  for (std::size_t index = 0; index < message.rma_iov_count; ++index) remote += message.rma_iov[index].len;
  const std::size_t local = IoVector(message.msg_iov, message.iov_count).bytes;
  // With one entry the local length counts, whatever its `len` says: so it is in the calls without a message.
  if (message.rma_iov_count > 1 && remote != local)
    return refuse(-FI_EINVAL, fmt::format("{} bytes here, {} there: they must be the same", local, remote));
  return 0;
}

ssize_t read_message(fid_ep* fid, const fi_msg_rma* message, std::uint64_t flags) {
  if (const int code = check_iov_counts(*message); code != 0) return code;
  const IoVector to(message->msg_iov, message->iov_count);
  if (message->rma_iov_count > 1 && to.bytes != 0) {
    Endpoint& endpoint = Endpoint::of(fid);
    Guard guard(endpoint.domain.lock);
    Order order = order_for(endpoint, kRead, FI_RMA | FI_READ, message->addr, 0, 0, message->context);
    order.flags = flags & FI_COMPLETION;
    return endpoint.read_remote_iov(order, to, message->rma_iov, message->rma_iov_count);
  }
  return read(fid, IoVector(message->msg_iov, message->iov_count), message->addr, message->rma_iov[0].addr,
              message->rma_iov[0].key, message->context, &flags);
}
ssize_t write_one(fid_ep* fid, const void* buffer, std::size_t bytes, void*, fi_addr_t to, std::uint64_t address,
                  std::uint64_t key, void* context) {
  return write_buffer(fid, buffer, bytes, to, address, key, context, 0);
}
ssize_t write_iov(fid_ep* fid, const iovec* iov, void**, std::size_t count, fi_addr_t to, std::uint64_t address,
                  std::uint64_t key, void* context) {
  if (count > kMostIov) return -FI_EINVAL;
  return write(fid, IoVector(iov, count), to, address, key, context, 0, 0);
}
ssize_t write_message(fid_ep* fid, const fi_msg_rma* message, std::uint64_t flags) {
  if (const int code = check_iov_counts(*message); code != 0) return code;
  const IoVector from(message->msg_iov, message->iov_count);
  if ((flags & FI_INJECT) != 0 && from.bytes > kInjectBytes) return -FI_EMSGSIZE;
  Endpoint& endpoint = Endpoint::of(fid);
  Guard guard(endpoint.domain.lock);
  Order order = order_for(endpoint, kWrite, FI_RMA | FI_WRITE, message->addr, message->rma_iov[0].addr,
                          message->rma_iov[0].key, message->context);
  order.flags = flags;
  order.data = message->data;
  if (message->rma_iov_count > 1 && from.bytes != 0)
    return endpoint.write_remote_iov(order, from, message->rma_iov, message->rma_iov_count);
  return endpoint.send(order, from);
}
ssize_t inject_write(fid_ep* fid, const void* buffer, std::size_t bytes, fi_addr_t to, std::uint64_t address,
                     std::uint64_t key) {
  if (bytes > kInjectBytes) return -FI_EMSGSIZE;
  return write_buffer(fid, buffer, bytes, to, address, key, nullptr, kQuiet);
}
ssize_t write_data(fid_ep* fid, const void* buffer, std::size_t bytes, void*, std::uint64_t data, fi_addr_t to,
                   std::uint64_t address, std::uint64_t key, void* context) {
  return write(fid, IoVector(buffer, bytes), to, address, key, context, FI_REMOTE_CQ_DATA, data);
}
ssize_t inject_write_data(fid_ep* fid, const void* buffer, std::size_t bytes, std::uint64_t data, fi_addr_t to,
                          std::uint64_t address, std::uint64_t key) {
  if (bytes > kInjectBytes) return -FI_EMSGSIZE;
  return write(fid, IoVector(buffer, bytes), to, address, key, nullptr, FI_REMOTE_CQ_DATA | kQuiet, data);
}

// Atomics. All forms become one: operands, comparands and results as IoVectors, one remote address.

/// Elements as bytes.
bool to_iov(const fi_ioc* list, std::size_t count, std::size_t size, IoVector& iov) {
  if (count > kMostIov) return false;
  iov = IoVector();
  iov.count = count;
  for (std::size_t index = 0; index < count; ++index) {
    iov.list[index] = {list[index].addr, list[index].count * size};
    iov.bytes += list[index].count * size;
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
  IoVector operands;
  if (!to_iov(call.operands, call.operands_count, size, operands) ||
      !to_iov(call.compares, call.compares_count, size, how.compare) ||
      !to_iov(call.results, call.results_count, size, how.result))
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

ssize_t atomic_iov(fid_ep* fid, const fi_ioc* iov, void**, std::size_t count, fi_addr_t to, std::uint64_t address,
                   std::uint64_t key, fi_datatype datatype, fi_op operation, void* context) {
  AtomicCall call;
  call.operands = iov;
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
  const fi_ioc entry{const_cast<void*>(buffer), count};
  return atomic_iov(fid, &entry, nullptr, 1, to, address, key, datatype, operation, context);
}
ssize_t inject_atomic(fid_ep* fid, const void* buffer, std::size_t count, fi_addr_t to, std::uint64_t address,
                      std::uint64_t key, fi_datatype datatype, fi_op operation) {
  const fi_ioc entry{const_cast<void*>(buffer), count};
  AtomicCall call;
  call.operands = &entry;
  call.operands_count = 1;
  call.to = to;
  call.address = address;
  call.key = key;
  call.datatype = datatype;
  call.operation = operation;
  call.extra = kQuiet;
  return run(fid, call);
}

ssize_t fetch_iov(fid_ep* fid, const fi_ioc* iov, void**, std::size_t count, fi_ioc* results, void**,
                  std::size_t results_count, fi_addr_t to, std::uint64_t address, std::uint64_t key,
                  fi_datatype datatype, fi_op operation, void* context) {
  AtomicCall call;
  call.operands = iov;
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
  const fi_ioc entry{const_cast<void*>(buffer), count};
  fi_ioc back{result, count};
  return fetch_iov(fid, &entry, nullptr, 1, &back, nullptr, 1, to, address, key, datatype, operation, context);
}

ssize_t compare_iov(fid_ep* fid, const fi_ioc* iov, void**, std::size_t count, const fi_ioc* compares, void**,
                    std::size_t compares_count, fi_ioc* results, void**, std::size_t results_count, fi_addr_t to,
                    std::uint64_t address, std::uint64_t key, fi_datatype datatype, fi_op operation, void* context) {
  AtomicCall call;
  call.operands = iov;
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
  const fi_ioc entry{const_cast<void*>(buffer), count};
  const fi_ioc against{const_cast<void*>(compare), count};
  fi_ioc back{result, count};
  return compare_iov(fid, &entry, nullptr, 1, &against, nullptr, 1, &back, nullptr, 1, to, address, key, datatype,
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

fi_ops_rma remote_calls{sizeof(fi_ops_rma), read_one,      read_iov,     read_message, write_one,
                        write_iov,          write_message, inject_write, write_data,   inject_write_data};
fi_ops_atomic atomic_calls{
    sizeof(fi_ops_atomic), atomic_one,  atomic_iov,  atomic_message,  inject_atomic, fetch_one,   fetch_iov,
    fetch_message,         compare_one, compare_iov, compare_message, atomic_valid,  fetch_valid, compare_valid};

}  // namespace railyard::provider
