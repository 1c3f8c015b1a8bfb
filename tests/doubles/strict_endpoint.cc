/// Endpoints: each has a domain, a queue and an address vector of its own below.
#include <algorithm>
#include <cstring>

#include "doubles/strict.hpp"

namespace strict {

namespace {

/// Puts an operation on the books, with the context scribbled over as FI_CONTEXT2 allows a provider to.
Operation* begin(Endpoint& endpoint, void* context, Registration* registration, bool receive, const char* name) {
  if (!alive(&endpoint) || endpoint.inner_queue == nullptr) {
    breach(0, std::string(name) + " on an endpoint that is closed or not enabled");
    return nullptr;
  }
  if (context == nullptr) {
    breach(0, std::string(name) + ": no context");
    return nullptr;
  }
  if (endpoint.contexts.contains(context)) {
    breach(0, std::string(name) + ": context is in flight already");
    return nullptr;
  }
  auto operation = std::make_unique<Operation>();
  operation->endpoint = &endpoint;
  operation->context = context;
  operation->registration = registration;
  operation->receive = receive;
  Operation* const raw = operation.get();
  endpoint.operations.emplace(raw, std::move(operation));
  endpoint.contexts.emplace(context, raw);
  if (receive)
    endpoint.receives.push_back(raw);
  else if (registration != nullptr)
    ++registration->transmits;
  std::memset(context, 0xa5, sizeof(fi_context2));
  return raw;
}

ssize_t settle(Operation* operation, ssize_t code) {
  if (code != 0) finish(operation);
  return code;
}

/// The part that all operations share: checks the descriptor, books the operation, posts it, and unbooks it on failure.
template <typename PostInner>
ssize_t run(fid_ep* object, const void* memory, std::size_t bytes, void* descriptor, std::uint64_t access,
            void* context, const char* name, PostInner post) {
  const std::lock_guard lock(big_lock());
  Endpoint& endpoint = *outer<Endpoint>(object);
  Registration* registration = nullptr;
  if (bytes != 0) {
    registration = check_descriptor(endpoint, memory, bytes, descriptor, access, name);
    if (registration == nullptr) return -FI_EINVAL;
  }
  Operation* const operation = begin(endpoint, context, registration, access == FI_RECV, name);
  if (operation == nullptr) return -FI_EINVAL;
  return settle(operation, post(endpoint, operation));
}

ssize_t receive(fid_ep* object, void* memory, std::size_t bytes, void* descriptor, fi_addr_t source, void* context) {
  return run(object, memory, bytes, descriptor, FI_RECV, context, "recv",
             [&](Endpoint& endpoint, Operation* operation) {
               return fi_recv(endpoint.inner, memory, bytes, nullptr, source, operation);
             });
}

ssize_t send(fid_ep* object, const void* memory, std::size_t bytes, void* descriptor, fi_addr_t target, void* context) {
  return run(object, memory, bytes, descriptor, FI_SEND, context, "send",
             [&](Endpoint& endpoint, Operation* operation) {
               return fi_send(endpoint.inner, memory, bytes, nullptr, target, operation);
             });
}

ssize_t read(fid_ep* object, void* memory, std::size_t bytes, void* descriptor, fi_addr_t source, std::uint64_t address,
             std::uint64_t key, void* context) {
  return run(object, memory, bytes, descriptor, FI_READ, context, "read",
             [&](Endpoint& endpoint, Operation* operation) {
               return fi_read(endpoint.inner, memory, bytes, nullptr, source, address, key, operation);
             });
}

ssize_t write(fid_ep* object, const void* memory, std::size_t bytes, void* descriptor, fi_addr_t target,
              std::uint64_t address, std::uint64_t key, void* context) {
  return run(object, memory, bytes, descriptor, FI_WRITE, context, "write",
             [&](Endpoint& endpoint, Operation* operation) {
               return fi_write(endpoint.inner, memory, bytes, nullptr, target, address, key, operation);
             });
}

ssize_t write_data(fid_ep* object, const void* memory, std::size_t bytes, void* descriptor, std::uint64_t data,
                   fi_addr_t target, std::uint64_t address, std::uint64_t key, void* context) {
  return run(object, memory, bytes, descriptor, FI_WRITE, context, "writedata",
             [&](Endpoint& endpoint, Operation* operation) {
               return fi_writedata(endpoint.inner, memory, bytes, nullptr, data, target, address, key, operation);
             });
}

ssize_t write_message(fid_ep* object, const fi_msg_rma* message, std::uint64_t flags) {
  if (message->iov_count != 1) return -FI_EINVAL;
  void* const descriptor = message->desc == nullptr ? nullptr : message->desc[0];
  return run(object, message->msg_iov->iov_base, message->msg_iov->iov_len, descriptor, FI_WRITE, message->context,
             "writemsg", [&](Endpoint& endpoint, Operation* operation) {
               fi_msg_rma inner = *message;
               inner.desc = nullptr;
               inner.context = operation;
               return fi_writemsg(endpoint.inner, &inner, flags);
             });
}

int get_name(fid* object, void* address, std::size_t* bytes) {
  return fi_getname(&outer<Endpoint>(object)->inner->fid, address, bytes);
}

int bind_queue(Endpoint& endpoint, Queue& queue, std::uint64_t flags) {
  if (endpoint.queue != nullptr) return breach(-FI_EINVAL, "an endpoint was bound to two completion queues");
  fi_cq_attr attributes = queue.attributes;
  if (const int code = fi_cq_open(endpoint.inner_domain, &attributes, &endpoint.inner_queue, nullptr); code != 0)
    return code;
  endpoint.queue = &queue;
  queue.endpoints.push_back(&endpoint);
  return fi_ep_bind(endpoint.inner, &endpoint.inner_queue->fid, flags);
}

int bind_addresses(Endpoint& endpoint, AddressVector& addresses) {
  if (endpoint.addresses != nullptr || addresses.endpoint != nullptr)
    return breach(-FI_EINVAL, "an address vector serves one endpoint only");
  fi_av_attr attributes = addresses.attributes;
  if (const int code = fi_av_open(endpoint.inner_domain, &attributes, &endpoint.inner_addresses, nullptr); code != 0)
    return code;
  endpoint.addresses = &addresses;
  addresses.endpoint = &endpoint;
  return fi_ep_bind(endpoint.inner, &endpoint.inner_addresses->fid, 0);
}

int bind_endpoint(fid* object, fid* other, std::uint64_t flags) {
  const std::lock_guard lock(big_lock());
  Endpoint& endpoint = *outer<Endpoint>(object);
  if (!alive(&endpoint) || !alive(other)) return breach(-FI_EINVAL, "bind with a closed object");
  if (other->fclass == FI_CLASS_CQ) return bind_queue(endpoint, *outer<Queue>(other), flags);
  if (other->fclass == FI_CLASS_AV) return bind_addresses(endpoint, *outer<AddressVector>(other));
  return -FI_ENOSYS;
}

int control_endpoint(fid* object, int command, void* /*argument*/) {
  const std::lock_guard lock(big_lock());
  return command == FI_ENABLE ? fi_enable(outer<Endpoint>(object)->inner) : -FI_ENOSYS;
}

int close_endpoint(fid* object) {
  const std::lock_guard lock(big_lock());
  auto* const endpoint = outer<Endpoint>(object);
  if (alive(endpoint) && endpoint->registrations != 0)
    return breach(-FI_EBUSY, "endpoint closed before " + std::to_string(endpoint->registrations) +
                                 " registrations that are bound to it");
  if (!dies(endpoint, "endpoint")) return -FI_EINVAL;
  if (endpoint->queue != nullptr) {
    std::erase(endpoint->queue->endpoints, endpoint);
    std::erase_if(endpoint->queue->late, [&](const LateWrite& write) { return write.endpoint == endpoint; });
  }
  if (endpoint->addresses != nullptr) endpoint->addresses->endpoint = nullptr;
  --endpoint->domain->children;
  int code = fi_close(&endpoint->inner->fid);
  if (endpoint->inner_queue != nullptr) code = std::min(code, fi_close(&endpoint->inner_queue->fid));
  if (endpoint->inner_addresses != nullptr) code = std::min(code, fi_close(&endpoint->inner_addresses->fid));
  code = std::min(code, fi_close(&endpoint->inner_domain->fid));
  endpoint->operations.clear();
  endpoint->contexts.clear();
  endpoint->receives.clear();
  return code;
}

template <typename Operations, typename Fill>
Operations* table(Fill fill) {
  static Operations operations = [&] {
    Operations made{};
    made.size = sizeof(made);
    fill(made);
    return made;
  }();
  return &operations;
}

void set_operations(Endpoint& endpoint) {
  endpoint.fid.fid.ops = table<fi_ops>([](fi_ops& made) {
    made.close = close_endpoint;
    made.bind = bind_endpoint;
    made.control = control_endpoint;
  });
  endpoint.fid.cm = table<fi_ops_cm>([](fi_ops_cm& made) { made.getname = get_name; });
  endpoint.fid.msg = table<fi_ops_msg>([](fi_ops_msg& made) {
    made.recv = receive;
    made.send = send;
  });
  endpoint.fid.rma = table<fi_ops_rma>([](fi_ops_rma& made) {
    made.read = read;
    made.write = write;
    made.writedata = write_data;
    made.writemsg = write_message;
  });
}

}  // namespace

int open_endpoint(fid_domain* object, fi_info* /*info*/, fid_ep** result, void* context) {
  const std::lock_guard lock(big_lock());
  auto* const domain = outer<Domain>(object);
  if (!alive(domain)) return breach(-FI_EINVAL, "an endpoint was opened in a closed domain");
  auto endpoint = std::make_unique<Endpoint>();
  endpoint->domain = domain;
  if (int code = fi_domain(domain->fabric->inner, domain->inner_info, &endpoint->inner_domain, nullptr); code != 0)
    return code;
  if (int code = fi_endpoint(endpoint->inner_domain, domain->inner_info, &endpoint->inner, nullptr); code != 0) {
    fi_close(&endpoint->inner_domain->fid);
    return code;
  }
  endpoint->fid.fid.fclass = FI_CLASS_EP;
  endpoint->fid.fid.context = context;
  set_operations(*endpoint);
  ++domain->children;
  born(endpoint.get());
  *result = &endpoint.release()->fid;
  return 0;
}

void* finish(Operation* operation) {
  Endpoint& endpoint = *operation->endpoint;
  void* const context = operation->context;
  if (operation->receive) {
    const auto place = std::find(endpoint.receives.begin(), endpoint.receives.end(), operation);
    if (place != endpoint.receives.end()) endpoint.receives.erase(place);  // gone already where it was used up
  } else if (operation->registration != nullptr) {
    --operation->registration->transmits;
  }
  if (const auto found = endpoint.contexts.find(context);
      found != endpoint.contexts.end() && found->second == operation)
    endpoint.contexts.erase(found);
  endpoint.operations.erase(operation);
  return context;
}

}  // namespace strict
