/// Completion queues and address vectors.
#include <array>
#include <cstdlib>

#include "doubles/strict.hpp"

namespace strict {

namespace {

unsigned receives_used_up = 0;

/// The receive that an immediate takes. The inner provider knows nothing of it and is told to give the receive back.
void* use_up_receive(Endpoint& endpoint) {
  if (endpoint.receives.empty()) {
    breach(0, "an immediate arrived and no receive was posted");
    return nullptr;
  }
  Operation* const operation = endpoint.receives.front();
  endpoint.receives.pop_front();
  endpoint.contexts.erase(operation->context);
  operation->used_up = true;
  ++receives_used_up;
  fi_cancel(&endpoint.inner->fid, operation);
  return operation->context;
}

/// Translates one inner completion; false where the application hears nothing of it.
bool translate(Endpoint& endpoint, fi_cq_data_entry& entry) {
  auto* const operation = static_cast<Operation*>(entry.op_context);
  if (operation == nullptr) {
    if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
      entry.op_context = use_up_receive(endpoint);
      entry.flags |= FI_RECV;
    }
    return true;
  }
  if (operation->used_up) {
    finish(operation);
    return false;
  }
  entry.op_context = finish(operation);
  return true;
}

/// By how many reads of the queue a write's end is told late.
std::size_t lateness() {
  static const std::size_t reads = [] {
    const char* const text = std::getenv("STRICT_FI_LATE");
    return text == nullptr ? std::size_t{0} : std::size_t{std::strtoul(text, nullptr, 10)};
  }();
  return reads;
}

/// Keeps the end of a write back; false: it is told now.
bool keep_back(Queue& queue, Endpoint& endpoint, const fi_cq_data_entry& entry) {
  const auto* const operation = static_cast<const Operation*>(entry.op_context);
  if (lateness() == 0 || operation == nullptr || operation->receive || (entry.flags & FI_WRITE) == 0) return false;
  queue.late.push_back({&endpoint, entry, queue.next + lateness()});
  return true;
}

std::size_t tell_late(Queue& queue, fi_cq_data_entry* entries, std::size_t room) {
  std::size_t told = 0;
  for (; told < room && !queue.late.empty() && queue.late.front().due <= queue.next; queue.late.pop_front()) {
    entries[told] = queue.late.front().entry;
    if (translate(*queue.late.front().endpoint, entries[told])) ++told;
  }
  return told;
}

/// Moves the inner queue's next error to ours, unless it is the end of a receive that an immediate used up.
void take_error(Queue& queue, Endpoint& endpoint) {
  fi_cq_err_entry error{};
  if (fi_cq_readerr(endpoint.inner_queue, &error, 0) != 1) return;
  error.err_data = nullptr;
  error.err_data_size = 0;
  if (auto* const operation = static_cast<Operation*>(error.op_context); operation != nullptr) {
    const bool drop = operation->used_up;
    error.op_context = finish(operation);
    if (drop) return;
  }
  queue.errors.push_back(error);
}

ssize_t read_queue(fid_cq* object, void* buffer, std::size_t count) {
  const std::lock_guard lock(big_lock());
  auto* const queue = outer<Queue>(object);
  if (!alive(queue)) return breach(-FI_EINVAL, "a closed completion queue was read");
  auto* const entries = static_cast<fi_cq_data_entry*>(buffer);
  std::size_t filled = tell_late(*queue, entries, count);
  for (std::size_t i = 0; i < queue->endpoints.size() && filled < count; ++i) {
    Endpoint& endpoint = *queue->endpoints[(queue->next + i) % queue->endpoints.size()];
    std::array<fi_cq_data_entry, 16> batch{};
    const ssize_t read = fi_cq_read(endpoint.inner_queue, batch.data(), std::min(batch.size(), count - filled));
    if (read == -FI_EAVAIL) take_error(*queue, endpoint);
    for (ssize_t k = 0; k < read; ++k) {
      fi_cq_data_entry& entry = batch[static_cast<std::size_t>(k)];
      if (!keep_back(*queue, endpoint, entry) && translate(endpoint, entry)) entries[filled++] = entry;
    }
  }
  ++queue->next;
  if (filled != 0) return static_cast<ssize_t>(filled);
  return queue->errors.empty() ? -FI_EAGAIN : -FI_EAVAIL;
}

ssize_t read_error(fid_cq* object, fi_cq_err_entry* entry, std::uint64_t /*flags*/) {
  const std::lock_guard lock(big_lock());
  auto* const queue = outer<Queue>(object);
  if (queue->errors.empty()) return -FI_EAGAIN;
  *entry = queue->errors.front();
  queue->errors.pop_front();
  return 1;
}

const char* describe(fid_cq* /*queue*/, int code, const void* /*data*/, char* /*text*/, std::size_t /*length*/) {
  return fi_strerror(code < 0 ? -code : code);
}

int close_queue(fid* object) {
  const std::lock_guard lock(big_lock());
  auto* const queue = outer<Queue>(object);
  if (alive(queue) && !queue->endpoints.empty())
    return breach(-FI_EBUSY, "completion queue closed before its endpoints");
  if (!dies(queue, "completion queue")) return -FI_EINVAL;
  --queue->domain->children;
  return 0;
}

int insert_address(fid_av* object, const void* address, std::size_t count, fi_addr_t* result, std::uint64_t flags,
                   void* context) {
  const std::lock_guard lock(big_lock());
  auto* const addresses = outer<AddressVector>(object);
  if (!alive(addresses) || addresses->endpoint == nullptr)
    return breach(-FI_EINVAL, "an address was inserted into a vector that is closed or has no endpoint");
  return fi_av_insert(addresses->endpoint->inner_addresses, address, count, result, flags, context);
}

int remove_address(fid_av* object, fi_addr_t* address, std::size_t count, std::uint64_t flags) {
  const std::lock_guard lock(big_lock());
  auto* const addresses = outer<AddressVector>(object);
  if (!alive(addresses) || addresses->endpoint == nullptr)
    return breach(-FI_EINVAL, "an address was removed from a vector that is closed or has no endpoint");
  return fi_av_remove(addresses->endpoint->inner_addresses, address, count, flags);
}

int close_addresses(fid* object) {
  const std::lock_guard lock(big_lock());
  auto* const addresses = outer<AddressVector>(object);
  if (alive(addresses) && addresses->endpoint != nullptr)
    return breach(-FI_EBUSY, "address vector closed before its endpoint");
  if (!dies(addresses, "address vector")) return -FI_EINVAL;
  --addresses->domain->children;
  return 0;
}

}  // namespace

int open_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** result, void* context) {
  if (attributes->format != FI_CQ_FORMAT_DATA) return -FI_ENOSYS;
  const std::lock_guard lock(big_lock());
  static fi_ops object_operations = [] {
    fi_ops made{};
    made.size = sizeof(made);
    made.close = close_queue;
    return made;
  }();
  static fi_ops_cq operations = [] {
    fi_ops_cq made{};
    made.size = sizeof(made);
    made.read = read_queue;
    made.readerr = read_error;
    made.strerror = describe;
    return made;
  }();
  auto queue = std::make_unique<Queue>();
  queue->domain = outer<Domain>(domain);
  queue->attributes = *attributes;
  queue->fid.fid.fclass = FI_CLASS_CQ;
  queue->fid.fid.context = context;
  queue->fid.fid.ops = &object_operations;
  queue->fid.ops = &operations;
  ++queue->domain->children;
  born(queue.get());
  *result = &queue.release()->fid;
  return 0;
}

int open_addresses(fid_domain* domain, fi_av_attr* attributes, fid_av** result, void* context) {
  const std::lock_guard lock(big_lock());
  static fi_ops object_operations = [] {
    fi_ops made{};
    made.size = sizeof(made);
    made.close = close_addresses;
    return made;
  }();
  static fi_ops_av operations = [] {
    fi_ops_av made{};
    made.size = sizeof(made);
    made.insert = insert_address;
    made.remove = remove_address;
    return made;
  }();
  auto addresses = std::make_unique<AddressVector>();
  addresses->domain = outer<Domain>(domain);
  addresses->attributes = *attributes;
  addresses->fid.fid.fclass = FI_CLASS_AV;
  addresses->fid.fid.context = context;
  addresses->fid.fid.ops = &object_operations;
  addresses->fid.ops = &operations;
  ++addresses->domain->children;
  born(addresses.get());
  *result = &addresses.release()->fid;
  return 0;
}

}  // namespace strict

unsigned strict_fi_receives_used_up(void) {
  const std::lock_guard lock(strict::big_lock());
  return strict::receives_used_up;
}
