/// Sending: one line, one record, or several.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "endpoint.hpp"
#include "log.hpp"

namespace railyard::provider {

namespace {

using shm::Reservation;

void gather(Outbound& out, const IoVector& from, std::size_t offset, std::byte* to, std::size_t bytes) {
  from.walk(offset, bytes, [&](const std::byte* entry, std::size_t part) {
    out.write(to, entry, part);
    to += part;
  });
}

bool identity_from(const std::string& address, Identity& identity) {
  for (std::size_t index = 0; index < identity.bytes.size(); ++index) {
    const std::string digits = address.substr(kIdentityPrefix.size() + index * 2, 2);
    char* end = nullptr;
    identity.bytes[index] = static_cast<std::uint8_t>(std::strtoul(digits.c_str(), &end, 16));
    if (digits.size() != 2 || *end != '\0') return false;
  }
  return true;
}

ssize_t code_of(Status status) {
  switch (status) {
    case Status::refused:
      return -FI_EACCES;
    case Status::version_mismatch:
      return -FI_ECONNREFUSED;
    case Status::invalid:
      return -FI_EINVAL;
    case Status::io:
      return -FI_ENOMEM;
    default:
      return -FI_EAGAIN;
  }
}

}  // namespace

Path* Endpoint::open_path(fi_addr_t number, ssize_t& code) {
  Addresses& addresses = *bound_.addresses;
  if (const std::uint64_t generation = addresses.generation; generation != known_generation_) {
    by_number_.clear();
    known_generation_ = generation;
  }
  const std::string address = addresses.address_of(number);
  if (address.empty()) {
    code = refuse(-FI_EINVAL, fmt::format("{} is not in the address vector: fi_av_insert answers numbers", number));
    return nullptr;
  }
  if (by_number_.size() <= number) by_number_.resize(number + 1);
  if (const auto it = by_address_.find(address); it != by_address_.end()) {
    if (!it->second->out->gone()) return by_number_[number] = it->second;
    // `lost` clears this away once everything from there has been handled; then a new one may be found.
    progress();
    code = -FI_EAGAIN;
    return nullptr;
  }
  Identity identity;
  const bool by_identity = address.starts_with(kIdentityPrefix);
  if (by_identity && !identity_from(address, identity)) {
    code = -FI_EINVAL;
    return nullptr;
  }
  auto out = by_identity ? core_->connect_identity(identity) : core_->connect_name(address);
  if (!out) {
    // An identity never comes back; a name may be taken by somebody any time.
    const bool gone_for_good = by_identity && out.status() == Status::not_found;
    code = gone_for_good ? -FI_EHOSTUNREACH : code_of(out.status());
    return nullptr;
  }
  Path* const path = adopt(**out);
  by_address_[address] = path;
  return by_number_[number] = path;
}

Path* Endpoint::adopt(Outbound& out) {
  auto& path = paths_[&out];
  if (!path) {
    path = std::make_unique<Path>();
    path->out = &out;
  }
  return path.get();
}

Path* Endpoint::path_back(Source& source) {
  if (source.in == nullptr) return nullptr;
  if (source.back != nullptr && !source.back->out->gone()) return source.back;
  auto out = core_->connect_identity(source.in->sender());
  source.back = out ? adopt(**out) : nullptr;
  return source.back;
}

ssize_t Endpoint::send(const Order& order, const IoVector& from) {
  ssize_t code = 0;
  Path* const path = path_to(order.to, code);
  if (path == nullptr) return code;
  const bool plain = (order.flags & kNeedsDone) == 0 || (order.flags & kQuiet) != 0;
  const bool data_needs_room = order.kind == kWrite && (order.flags & FI_REMOTE_CQ_DATA) != 0;
  if (from.bytes <= Record::kShort && plain && !data_needs_room) return send_in_first_line(*path, order, from);
  if (from.bytes <= std::min(kChunk, path->out->most_payload())) return send_in_one_record(*path, order, from);
  return send_in_several(*path, order, from);
}

ssize_t Endpoint::send_in_first_line(Path& path, const Order& order, const IoVector& from) {
  Record* const record = path.blocked() ? nullptr : path.out->reserve_line();
  if (record == nullptr) return -FI_EAGAIN;
  record->arguments = order.arguments;
  if (from.count == 1) {
    shm::copy_bytes(record->payload.data(), static_cast<const std::byte*>(from.list[0].iov_base), from.bytes);
  } else {
    from.gather(0, record->payload.data(), from.bytes);
  }
  const bool has_data = (order.flags & FI_REMOTE_CQ_DATA) != 0;
  path.out->publish({.bytes = static_cast<std::uint32_t>(from.bytes),
                     .kind = order.kind,
                     .flags = static_cast<std::uint8_t>(Word::kInFirst | (has_data ? kHasData : 0))});
  sent(order.operation, order.context, order.flags);
  return 0;
}

ssize_t Endpoint::send_in_one_record(Path& path, const Order& order, const IoVector& from) {
  const bool wants_done = (order.flags & kNeedsDone) != 0 && (order.flags & kQuiet) == 0;
  if (wants_done && transfers_in_use_ >= kTransmits) return -FI_EAGAIN;
  const auto [record, payload] = path.blocked() ? Reservation{} : path.out->reserve(from.bytes);
  if (record == nullptr) return -FI_EAGAIN;
  // The record last, all at once: the consumer is watching its line and would take it back in between.
  gather(*path.out, from, 0, payload, from.bytes);
  record->arguments = order.arguments;
  record->more[0] = from.bytes;
  record->more[2] = order.data;
  std::uint8_t flags = (order.flags & FI_REMOTE_CQ_DATA) != 0 ? kHasData : std::uint8_t{0};
  if (wants_done) {
    Transfer& transfer = *new_transfer(path, order, from);
    record->more[1] = transfer.handle;
    transfer.sent = transfer.total;
    flags |= kWantsDone;
  }
  path.out->publish({.bytes = static_cast<std::uint32_t>(from.bytes), .kind = order.kind, .flags = flags});
  if (!wants_done) sent(order.operation, order.context, order.flags);
  return 0;
}

/// As many chunks as there is room for; the rest follows from a transfer.
ssize_t Endpoint::send_cut(Path& path, const Order& order, const std::byte* from, std::size_t bytes) {
  if (bytes > kEager || transfers_in_use_ >= kTransmits) return send_in_several(path, order, IoVector(from, bytes));
  const std::uint64_t handle = kCut | ++cut_messages_;
  std::size_t sent_bytes = 0;
  while (sent_bytes < bytes) {
    const std::size_t part = std::min(path.out->chunk_bytes(bytes), bytes - sent_bytes);
    const auto [record, payload] = path.out->reserve(part);
    if (record == nullptr) break;
    path.out->write(payload, from + sent_bytes, part);
    Word word{.bytes = static_cast<std::uint32_t>(part), .kind = kMore};
    if (sent_bytes == 0) {
      word.kind = order.kind;
      word.flags = kSeveral;
      record->arguments = order.arguments;
      record->more[0] = bytes;
      record->more[1] = handle;
    } else {
      record->arguments = {handle, sent_bytes};
    }
    path.out->publish(word);
    sent_bytes += part;
  }
  if (sent_bytes == 0) return -FI_EAGAIN;
  if (sent_bytes == bytes) {
    sent(order.operation, order.context, order.flags);
    return 0;
  }
  Transfer& rest = *new_transfer(path, order, IoVector(from, bytes));
  if ((order.flags & (FI_INJECT | kQuiet)) != 0) {
    // The program may reuse its buffer when the call returns.
    rest.own.assign(from, from + bytes);
    rest.iov = IoVector(rest.own.data(), bytes);
  }
  rest.announced = handle;
  rest.sent = sent_bytes;
  rest.allowed = bytes;
  rest.queued = true;
  path.queue.push_back(&rest);
  list_busy(path);
  return 0;
}

ssize_t Endpoint::send_in_several(Path& path, const Order& order, const IoVector& from) {
  if (transfers_in_use_ >= kTransmits) return -FI_EAGAIN;
  Transfer& transfer = *new_transfer(path, order, from);
  transfer.flags |= kSeveral;
  transfer.allowed = order.kind == kWrite ? from.bytes : std::min(from.bytes, kEager);
  transfer.queued = true;
  path.queue.push_back(&transfer);
  list_busy(path);
  pump(path);
  return 0;
}

ssize_t Endpoint::read(const Order& order, const IoVector& to) {
  ssize_t code = 0;
  Path* const path = path_to(order.to, code);
  if (path == nullptr) return code;
  if (transfers_in_use_ >= kTransmits) return -FI_EAGAIN;
  // No payload: `more` says how much to read.
  Record* const record = path->blocked() ? nullptr : path->out->reserve_line();
  if (record == nullptr) return -FI_EAGAIN;
  const Transfer& transfer = *new_transfer(*path, order, to);
  record->arguments = order.arguments;
  record->more[0] = to.bytes;
  record->more[1] = transfer.handle;
  path->out->publish({.bytes = 0, .kind = kRead, .flags = Word::kInFirst});
  return 0;
}

Transfer* Endpoint::new_transfer(Path& path, const Order& order, const IoVector& iov) {
  if (free_transfers_.empty()) {
    free_transfers_.push_back(static_cast<std::uint32_t>(transfers_.size()));
    transfers_.push_back(std::make_unique<Transfer>());
  }
  const std::uint32_t index = free_transfers_.back();
  free_transfers_.pop_back();
  ++transfers_in_use_;
  Transfer& transfer = *transfers_[index];
  // The upper half tells this use of the slot from earlier ones.
  const std::uint64_t use = (transfer.handle >> 32) + 1;
  transfer = Transfer{};
  transfer.handle = (use << 32) | index;
  transfer.announced = transfer.handle;
  transfer.path = &path;
  transfer.kind = order.kind;
  transfer.iov = iov;
  transfer.total = iov.bytes;
  transfer.arguments = order.arguments;
  transfer.data = order.data;
  transfer.context = order.context;
  transfer.operation = order.operation;
  transfer.completes = wants_completion(order.flags);
  transfer.counter = counter_of(order.operation);
  if ((order.flags & FI_REMOTE_CQ_DATA) != 0) transfer.flags |= kHasData;
  if ((order.flags & kNeedsDone) != 0 && (order.flags & kQuiet) == 0) transfer.flags |= kWantsDone;
  return &transfer;
}

Transfer* Endpoint::find_transfer(const Source& source, std::uint64_t handle) {
  const std::uint64_t index = handle & 0xffff'ffff;
  if (index >= transfers_.size()) return nullptr;
  Transfer& transfer = *transfers_[index];
  const bool its_own = transfer.path != nullptr && source.in != nullptr &&
                       transfer.path->out->identity().bytes == source.in->sender().bytes;
  return transfer.handle == handle && its_own ? &transfer : nullptr;
}

void Endpoint::free_transfer(Transfer& transfer) {
  transfer.path = nullptr;
  transfer.own.clear();
  transfer.group.reset();
  --transfers_in_use_;
  free_transfers_.push_back(static_cast<std::uint32_t>(transfer.handle));
}

void Endpoint::finish(Transfer& transfer, int error) {
  if (const std::shared_ptr<Group> group = transfer.group) {
    if (group->error == 0) group->error = error;
    if (--group->left != 0) {
      free_transfer(transfer);
      return;
    }
    error = group->error;
  }
  if (error == 0) {
    if (transfer.completes) {
      Completion completion;
      completion.context = transfer.context;
      completion.flags = transfer.operation;
      bound_.transmit->push(completion);
    }
    if (transfer.counter != nullptr) transfer.counter->add(1);
  } else if (transfer.kind != kAnswer) {
    if (bound_.transmit != nullptr) {
      fi_cq_err_entry entry{};
      entry.op_context = transfer.context;
      entry.flags = transfer.operation;
      entry.err = error;
      entry.prov_errno = error;
      bound_.transmit->push_error(entry);
    }
    if (transfer.counter != nullptr) transfer.counter->add_error(1);
  }
  free_transfer(transfer);
}

void Endpoint::list_busy(Path& path) {
  if (path.listed) return;
  path.listed = true;
  busy_.push_back(&path);
}

void Endpoint::control(Source& source, Kind kind, std::uint64_t handle, std::uint64_t value) {
  Path* const path = path_back(source);
  if (path == nullptr) return;
  path->controls.push_back({kind, 0, {handle, value}, {}});
  if (!push_controls(*path)) list_busy(*path);
}

bool Endpoint::push_controls(Path& path) {
  while (!path.controls.empty()) {
    Record* const record = path.out->reserve_line();
    if (record == nullptr) return false;
    const Path::Control& control = path.controls.front();
    record->arguments = control.arguments;
    record->more[0] = control.more[0];
    record->more[1] = control.more[1];
    path.out->publish(
        {.bytes = 0, .kind = control.kind, .flags = static_cast<std::uint8_t>(Word::kInFirst | control.flags)});
    path.controls.pop_front();
  }
  return true;
}

void Endpoint::pump(Path& path) {
  if (!push_controls(path)) return;
  while (!path.queue.empty()) {
    Transfer& transfer = *path.queue.front();
    while (transfer.sent < transfer.allowed)
      if (!push_chunk(path, transfer)) return;
    path.queue.pop_front();
    transfer.queued = false;
    if (transfer.allowed == transfer.total) sent_all(transfer);
  }
}

void Endpoint::sent_all(Transfer& transfer) {
  if (transfer.kind == kAnswer) {
    free_transfer(transfer);
  } else if ((transfer.flags & kWantsDone) == 0) {
    finish(transfer, 0);
  }
}

/// An answer's memory may have been deregistered since the last chunk.
bool Endpoint::source_still_registered(Transfer& transfer) {
  if (!transfer.own.empty()) return true;
  return registered(transfer.key, transfer.address, transfer.total, FI_REMOTE_READ) != nullptr;
}

bool Endpoint::push_chunk(Path& path, Transfer& transfer) {
  const std::size_t part = std::min(path.out->chunk_bytes(transfer.total), transfer.allowed - transfer.sent);
  const auto [record, payload] = path.out->reserve(part);
  if (record == nullptr) return false;
  if (transfer.kind == kAnswer && !source_still_registered(transfer)) {
    transfer.sent = transfer.allowed = transfer.total;
    path.controls.push_back({kDone, 0, {transfer.remote_handle, FI_EACCES}, {}});
    return push_controls(path);
  }
  gather(*path.out, transfer.iov, transfer.sent, payload, part);
  Word word{.bytes = static_cast<std::uint32_t>(part), .kind = kMore, .flags = 0};
  if (transfer.kind == kAnswer) {
    word.kind = kAnswer;
    record->arguments = {transfer.remote_handle, transfer.sent};
  } else if (transfer.sent == 0) {
    word.kind = transfer.kind;
    word.flags = transfer.flags;
    record->arguments = transfer.arguments;
    record->more[0] = transfer.total;
    record->more[1] = transfer.handle;
    record->more[2] = transfer.data;
  } else {
    record->arguments = {transfer.announced, transfer.sent};
  }
  path.out->publish(word);
  transfer.sent += part;
  return true;
}

}  // namespace railyard::provider
