/// Asynchronous events: a queue for each context, and a descriptor that is readable while it is not empty.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "doubles/verbs/core.hpp"

namespace railyard::verbs_double {

namespace {

const void* subject(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return event.element.cq;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return event.element.qp;
    default:
      return nullptr;  // a port or the device
  }
}

/// Takes one off the descriptor's count. False: it is empty, and told not to wait.
bool take_ticket(int descriptor) {
  std::uint64_t one = 0;
  ssize_t got = 0;
  do {
    got = ::read(descriptor, &one, sizeof one);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(sizeof one);
}

int get_async_event(ibv_context* handle, ibv_async_event* event) {
  DoubleContext& context = *static_cast<DoubleContext*>(handle);
  while (true) {
    if (!take_ticket(context.async_fd)) return -1;
    const std::lock_guard lock(here().lock);
    if (context.events.empty()) continue;  // its object was destroyed in between
    *event = context.events.front();
    context.events.pop_front();
    ++context.unacknowledged[subject(*event)];
    return 0;
  }
}

void ack_async_event(ibv_async_event* event) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  // The context is not in the event: find who handed it out.
  for (const auto& device : core.devices) {
    for (DoubleContext* context : device->contexts) {
      const auto found = context->unacknowledged.find(subject(*event));
      if (found == context->unacknowledged.end()) continue;
      if (--found->second == 0) context->unacknowledged.erase(found);
      return;
    }
  }
  core.violation("ack_async_event of an event that nobody got");
}

}  // namespace

void Core::tell(DoubleContext& context, ibv_event_type type, const void* about) {
  ibv_async_event event{};
  event.event_type = type;
  void* const object = const_cast<void*>(about);
  if (type == IBV_EVENT_CQ_ERR) {
    event.element.cq = static_cast<CompletionQueue*>(object);
  } else if (type != IBV_EVENT_DEVICE_FATAL) {
    event.element.qp = static_cast<QueuePair*>(object);
  }
  context.events.push_back(event);
  ::eventfd_write(context.async_fd, 1);
}

void Core::tell_pair(QueuePair& pair, ibv_event_type type) {
  tell(static_cast<DoubleContext&>(*pair.context), type, &pair);
}

void Core::tell_port(Device& device, ibv_event_type type, std::uint8_t port) {
  for (DoubleContext* context : device.contexts) {
    ibv_async_event event{};
    event.event_type = type;
    event.element.port_num = port;
    context->events.push_back(event);
    ::eventfd_write(context->async_fd, 1);
  }
}

void Core::forget_events(DoubleContext& context, const void* object, const char* what) {
  const std::size_t dropped =
      std::erase_if(context.events, [object](const ibv_async_event& event) { return subject(event) == object; });
  for (std::size_t i = 0; i < dropped; ++i) {
    pollfd readable{.fd = context.async_fd, .events = POLLIN, .revents = 0};
    if (::poll(&readable, 1, 0) == 1) take_ticket(context.async_fd);
  }
  if (context.unacknowledged.erase(object) != 0) {
    violation(std::string(what) + " while an event about it is not acknowledged: a device waits for ever here");
  }
}

void add_event_calls(fabric::verbs::Library& calls) {
  calls.get_async_event = get_async_event;
  calls.ack_async_event = ack_async_event;
}

}  // namespace railyard::verbs_double
