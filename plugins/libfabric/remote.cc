/// Remote memory access and atomics, at the target: done inside its progress, in the order they were sent.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "atomics.hpp"
#include "endpoint.hpp"
#include "log.hpp"

namespace railyard::provider {

using shm::Reservation;

std::byte* Endpoint::registered(std::uint64_t key, std::uint64_t address, std::size_t bytes, std::uint64_t access) {
  const Registration* const region = domain.registrations.find(key, address, bytes, access, &fid_.fid);
  return region != nullptr ? region->memory + (address - region->base) : nullptr;
}

/// Says that a write or atomic was not done. Its sender may have called it complete when it was in our ring.
void Endpoint::refuse_source(Source& source, std::uint64_t handle, std::uint64_t why) {
  refuse(0,
         fmt::format("a write or atomic from {} was refused: no registration holds its range with that key and access",
                     source.address));
  control(source, kRefused, handle, why);
}

/// A write or atomic has taken effect: those who count such things hear of it.
void Endpoint::wrote(Source& source, std::uint64_t key, std::uint64_t address, bool has_data, std::uint64_t data,
                     std::size_t bytes) {
  if (bound_.remote_write != nullptr) bound_.remote_write->add(1);
  const Registration* const region = domain.registrations.find(key, address, bytes, 0, &fid_.fid);
  if (region != nullptr && region->counter != nullptr) region->counter->add(1);
  if (!has_data || bound_.receive == nullptr) return;
  bound_.receive->push(
      {nullptr, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, bytes, nullptr, data, 0, number_of(source)});
}

bool Endpoint::take_write(Source& source, const Arrival& arrival) {
  const std::uint64_t address = arrival.record->arguments[0];
  const std::uint64_t key = arrival.record->arguments[1];
  const std::uint8_t flags = arrival.word.flags;
  const std::size_t bytes = arrival.word.bytes;
  const bool in_first = (flags & Word::kInFirst) != 0;
  const bool several = !in_first && (flags & kSeveral) != 0;
  const std::size_t total = several ? arrival.record->more[0] : bytes;
  const std::uint64_t handle = in_first ? 0 : arrival.record->more[1];
  const bool wants_done = !in_first && (flags & kWantsDone) != 0;
  const bool has_data = !in_first && (flags & kHasData) != 0;
  const std::uint64_t data = has_data ? arrival.record->more[2] : 0;
  const bool part = (flags & kPart) != 0;
  if (total < bytes) return true;
  std::byte* const to = registered(key, address, total, FI_REMOTE_WRITE);
  if (to == nullptr) {
    refuse_source(source, several || wants_done ? handle : 0, FI_EACCES);
    return true;
  }
  if (!in_first) shm::prefetch_for_reading(arrival.payload, std::min(bytes, kPrefetched));
  shm::copy_bytes(to, arrival.payload, bytes);
  if (!several || total == bytes) {
    if (!part) wrote(source, key, address, has_data, data, bytes);
    if (wants_done) control(source, kDone, handle, 0);
    return true;
  }
  Incoming& incoming = pool_.incoming.take();
  incoming = Incoming{};
  incoming.source = &source;
  incoming.data = data;
  incoming.has_data = has_data;
  incoming.wants_done = wants_done;
  incoming.several = true;
  incoming.handle = handle;
  incoming.total = total;
  incoming.received = bytes;
  incoming.part = part;
  incoming.key = key;
  incoming.address = address;
  ++source.held;
  source.open.push_back(&incoming);
  return true;
}

bool Endpoint::take_read(Source& source, const Arrival& arrival) {
  const std::uint64_t address = arrival.record->arguments[0];
  const std::uint64_t key = arrival.record->arguments[1];
  const std::size_t bytes = arrival.record->more[0];
  const std::uint64_t handle = arrival.record->more[1];
  std::byte* const from = registered(key, address, bytes, FI_REMOTE_READ);
  if (from == nullptr || bytes == 0) {
    control(source, kDone, handle, from != nullptr ? 0 : FI_EACCES);
    return true;
  }
  // As many answers as one may have operations of one's own; then the asking ones wait.
  if (transfers_in_use_ >= 2 * kTransmits) return false;
  if (bound_.remote_read != nullptr && (arrival.word.flags & kPart) == 0) bound_.remote_read->add(1);
  answer(source, handle, key, address, IoVector(from, bytes));
  return true;
}

void Endpoint::answer(Source& source, std::uint64_t handle, std::uint64_t key, std::uint64_t address,
                      const IoVector& from) {
  Path* const path = path_back(source);
  if (path == nullptr) return;
  if (path->idle() && from.bytes <= std::min(kChunk, path->out->most_payload())) {
    const bool in_first = from.bytes <= Record::kShort;
    Reservation reservation;
    if (in_first) {
      reservation.record = path->out->reserve_line();
    } else {
      reservation = path->out->reserve(from.bytes);
    }
    if (reservation.record != nullptr) {
      if (in_first) {
        from.gather(0, reservation.record->payload.data(), from.bytes);
      } else {
        path->out->write(reservation.payload, static_cast<const std::byte*>(from.front()), from.bytes);
      }
      reservation.record->arguments = {handle, 0};
      path->out->publish({.bytes = static_cast<std::uint32_t>(from.bytes),
                          .kind = kAnswer,
                          .flags = in_first ? Word::kInFirst : std::uint8_t{0}});
      return;
    }
  }
  Order order;
  order.kind = kAnswer;
  order.flags = kQuiet;
  Transfer& transfer = *new_transfer(*path, order, from);
  transfer.counter = nullptr;
  transfer.allowed = transfer.total;
  transfer.remote_handle = handle;
  transfer.key = key;
  transfer.address = address;
  if (key == kNoKey) {
    // The result of an atomic lies in no registered memory: the transfer keeps it.
    transfer.own.resize(from.bytes);
    from.gather(0, transfer.own.data(), from.bytes);
    transfer.iov = IoVector(transfer.own.data(), transfer.own.size());
  }
  transfer.queued = true;
  path->queue.push_back(&transfer);
  list_busy(*path);
}

bool Endpoint::take_atomic(Source& source, const Arrival& arrival) {
  const std::uint8_t flags = arrival.word.flags;
  const std::uint64_t address = arrival.record->arguments[0];
  const std::uint64_t key = arrival.record->arguments[1];
  const std::uint64_t handle = arrival.record->more[1];
  const std::uint64_t what = arrival.record->more[3];
  const std::uint64_t elements = what >> 32;
  const auto datatype = static_cast<fi_datatype>(what & 0xff);
  const auto operation = static_cast<fi_op>(what >> 8 & 0xff);
  const AtomicKind kind = (flags & kCompares) != 0  ? AtomicKind::compare
                          : (flags & kFetches) != 0 ? AtomicKind::fetch
                                                    : AtomicKind::plain;
  const AtomicFunction function = find_atomic(kind, datatype, operation);
  const std::size_t size = function != nullptr ? datatype_bytes(datatype) : 0;
  const std::size_t bytes = elements <= kMostAtomicBytes ? elements * size : 0;
  const std::size_t operands = operation == FI_ATOMIC_READ ? 0 : bytes;
  const std::size_t expected = operands + (kind == AtomicKind::compare ? bytes : 0);
  const bool has_handle = kind != AtomicKind::plain || (flags & kWantsDone) != 0;
  if (bytes == 0 || bytes > kMostAtomicBytes || arrival.word.bytes != expected) {
    refuse_source(source, has_handle ? handle : 0, FI_EINVAL | kWasAtomic);
    return true;
  }
  if (transfers_in_use_ >= 2 * kTransmits) return false;
  const std::uint64_t access =
      (kind != AtomicKind::plain ? FI_REMOTE_READ : 0) | (operation != FI_ATOMIC_READ ? FI_REMOTE_WRITE : 0);
  std::byte* const at = registered(key, address, bytes, access);
  if (at == nullptr) {
    refuse_source(source, has_handle ? handle : 0, FI_EACCES | kWasAtomic);
    return true;
  }
  alignas(16) std::array<std::byte, kMostAtomicBytes> result;
  // Operands lie in the ring, which its sender can still write: the function reads each once.
  function(at, arrival.payload, arrival.payload + operands, result.data(), elements);
  if (operation != FI_ATOMIC_READ) {
    wrote(source, key, address, (flags & kHasData) != 0, arrival.record->more[2], bytes);
  } else if (bound_.remote_read != nullptr) {
    bound_.remote_read->add(1);
  }
  if (kind != AtomicKind::plain) {
    answer(source, handle, kNoKey, 0, IoVector(result.data(), bytes));
  } else if ((flags & kWantsDone) != 0) {
    control(source, kDone, handle, 0);
  }
  return true;
}

void Endpoint::late_error(std::uint64_t operation, int error) {
  if (bound_.transmit != nullptr) {
    fi_cq_err_entry entry{};
    entry.flags = operation;
    entry.err = error;
    entry.prov_errno = error;
    bound_.transmit->push_error(entry);
  }
  if (bound_.write != nullptr) bound_.write->add_error(1);
}

Path* Endpoint::path_for_parts(const Order& order, std::size_t count, ssize_t& code) {
  Path* const path = path_to(order.to, code);
  if (path == nullptr) return nullptr;
  // All parts go out together or none does.
  code = -FI_EAGAIN;
  return path->idle() && transfers_in_use_ + count <= kTransmits ? path : nullptr;
}

Transfer& Endpoint::new_part(Path& path, const Order& order, const IoVector& iov, const fi_rma_iov& remote,
                             const std::shared_ptr<Group>& group) {
  Transfer& transfer = *new_transfer(path, order, iov);
  transfer.arguments = {remote.addr, remote.key};
  transfer.group = group;
  ++group->left;
  return transfer;
}

ssize_t Endpoint::write_remote_iov(const Order& order, const IoVector& from, const fi_rma_iov* remote_iov,
                                   std::size_t count) {
  ssize_t code = 0;
  Path* const path = path_for_parts(order, count, code);
  if (path == nullptr) return code;
  // One operation has one completion: when the target has confirmed every part.
  Order each = order;
  each.flags |= FI_DELIVERY_COMPLETE;
  const auto group = std::make_shared<Group>();
  std::size_t offset = 0;
  Transfer* last = nullptr;
  for (std::size_t index = 0; index < count; ++index) {
    if (remote_iov[index].len == 0) continue;
    Transfer& transfer = new_part(*path, each, from.slice(offset, remote_iov[index].len), remote_iov[index], group);
    offset += remote_iov[index].len;
    transfer.allowed = transfer.total;
    transfer.flags |= kSeveral | kPart;
    if ((order.flags & FI_INJECT) != 0) {
      transfer.own.resize(transfer.total);
      transfer.iov.gather(0, transfer.own.data(), transfer.total);
      transfer.iov = IoVector(transfer.own.data(), transfer.total);
    }
    transfer.queued = true;
    path->queue.push_back(&transfer);
    last = &transfer;
  }
  // The remote datum and the count of writes come once, with the last part.
  for (Transfer* transfer : path->queue)
    if (transfer != last) transfer->flags &= static_cast<std::uint8_t>(~kHasData);
  last->flags &= static_cast<std::uint8_t>(~kPart);
  list_busy(*path);
  pump(*path);
  return 0;
}

ssize_t Endpoint::read_remote_iov(const Order& order, const IoVector& to, const fi_rma_iov* remote_iov,
                                  std::size_t count) {
  ssize_t code = 0;
  Path* const path = path_for_parts(order, count, code);
  if (path == nullptr) return code;
  const auto group = std::make_shared<Group>();
  std::size_t offset = 0;
  for (std::size_t index = 0; index < count; ++index) {
    if (remote_iov[index].len == 0) continue;
    const Transfer& transfer =
        new_part(*path, order, to.slice(offset, remote_iov[index].len), remote_iov[index], group);
    offset += remote_iov[index].len;
    path->controls.push_back({kRead, kPart, transfer.arguments, {transfer.total, transfer.handle}});
  }
  path->controls.back().flags = 0;
  if (!push_controls(*path)) list_busy(*path);
  return 0;
}

ssize_t Endpoint::atomic(const Order& order, const AtomicOrder& how, const IoVector& operands) {
  ssize_t code = 0;
  Path* const path = path_to(order.to, code);
  if (path == nullptr) return code;
  const bool answers = how.fetches || how.compares;
  const bool wants_done =
      !answers && (order.flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE)) != 0 && (order.flags & kQuiet) == 0;
  if ((answers || wants_done) && transfers_in_use_ >= kTransmits) return -FI_EAGAIN;
  const std::size_t own = how.operation == FI_ATOMIC_READ ? 0 : operands.bytes;
  const std::size_t payload = own + (how.compares ? how.compare.bytes : 0);
  const auto [record, to] = path->blocked() ? Reservation{} : path->out->reserve(payload);
  if (record == nullptr) return -FI_EAGAIN;
  std::uint8_t flags = (order.flags & FI_REMOTE_CQ_DATA) != 0 ? kHasData : std::uint8_t{0};
  if (how.fetches) flags |= kFetches;
  if (how.compares) flags |= kCompares;
  if (wants_done) flags |= kWantsDone;
  operands.gather(0, to, own);
  if (how.compares) how.compare.gather(0, to + own, how.compare.bytes);
  record->arguments = order.arguments;
  record->more = {
      how.elements * datatype_bytes(how.datatype), 0, order.data,
      static_cast<std::uint64_t>(how.datatype) | static_cast<std::uint64_t>(how.operation) << 8 | how.elements << 32};
  if (answers || wants_done) record->more[1] = new_transfer(*path, order, answers ? how.result : operands)->handle;
  path->out->publish({.bytes = static_cast<std::uint32_t>(payload), .kind = kAtomic, .flags = flags});
  if (!answers && !wants_done) sent(order.operation, order.context, order.flags);
  return 0;
}

}  // namespace railyard::provider
