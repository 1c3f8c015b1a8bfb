/// Event queue: what a program writes, and reads again. This provider's calls all finish at once, so it has no events
/// of its own.
#include "events.hpp"

#include <sys/uio.h>

#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "domain.hpp"

namespace railyard::provider {

bool Events::pending() {
  const std::lock_guard guard(mutex);
  return !entries.empty() || !errors.empty();
}

namespace {

/// Makes the descriptor readable exactly while there is something to read.
void settle(Events& events) {
  events.waiting.clear();
  if (!events.entries.empty() || !events.errors.empty()) events.waiting.ring();
}

ssize_t read_events(fid_eq* fid, std::uint32_t* event, void* buffer, std::size_t bytes, std::uint64_t flags) {
  auto* events = object_of<Events>(fid);
  const std::lock_guard guard(events->mutex);
  if (!events->errors.empty()) return -FI_EAVAIL;
  if (events->entries.empty()) return -FI_EAGAIN;
  const Events::Entry& entry = events->entries.front();
  if (bytes < entry.content.size()) return -FI_ETOOSMALL;
  *event = entry.event;
  std::memcpy(buffer, entry.content.data(), entry.content.size());
  const auto length = static_cast<ssize_t>(entry.content.size());
  if ((flags & FI_PEEK) == 0) events->entries.pop_front();
  settle(*events);
  return length;
}

ssize_t read_error(fid_eq* fid, fi_eq_err_entry* entry, std::uint64_t flags) {
  auto* events = object_of<Events>(fid);
  const std::lock_guard guard(events->mutex);
  if (events->errors.empty()) return -FI_EAGAIN;
  *entry = events->errors.front();
  entry->err_data_size = 0;
  if ((flags & FI_PEEK) == 0) events->errors.pop_front();
  settle(*events);
  return sizeof *entry;
}

ssize_t write_event(fid_eq* fid, std::uint32_t event, const void* buffer, std::size_t bytes, std::uint64_t) {
  auto* events = object_of<Events>(fid);
  if (!events->writable) return -FI_EINVAL;
  const std::lock_guard guard(events->mutex);
  const auto* from = static_cast<const std::byte*>(buffer);
  events->entries.push_back({event, std::vector<std::byte>(from, from + bytes)});
  settle(*events);
  return static_cast<ssize_t>(bytes);
}

ssize_t wait_event(fid_eq* fid, std::uint32_t* event, void* buffer, std::size_t bytes, int timeout,
                   std::uint64_t flags) {
  auto* events = object_of<Events>(fid);
  if (!events->waiting.sleeps()) return -FI_EOPNOTSUPP;
  const Until until(timeout);
  while (true) {
    const ssize_t got = read_events(fid, event, buffer, bytes, flags);
    if (got != -FI_EAGAIN || until.over()) return got;
    events->waiting.sleep(until.left(std::chrono::milliseconds(1000)));
  }
}

const char* describe_error(fid_eq*, int code, const void*, char* buffer, std::size_t bytes) {
  const char* const text = ::strerror(code);
  if (buffer != nullptr && bytes != 0) {
    std::strncpy(buffer, text, bytes - 1);
    buffer[bytes - 1] = '\0';
  }
  return text;
}

int close_events(fid* fid) {
  auto* events = object_of<Events>(fid);
  events->fabric.references.drop();
  delete events;
  return 0;
}
int control_events(fid* fid, int command, void* argument) {
  return object_of<Events>(fid)->waiting.control(command, argument);
}

fi_ops events_fid_calls{sizeof(fi_ops),
                        close_events,
                        not_offered<&fi_ops::bind>,
                        control_events,
                        not_offered<&fi_ops::ops_open>,
                        not_offered<&fi_ops::tostr>,
                        not_offered<&fi_ops::ops_set>};
fi_ops_eq events_calls{sizeof(fi_ops_eq), read_events, read_error, write_event, wait_event, describe_error};

}  // namespace

int open_events(fid_fabric* fid, fi_eq_attr* attributes, fid_eq** result, void* context) {
  if (attributes == nullptr) return -FI_EINVAL;
  Fabric& fabric = *object_of<Fabric>(fid);
  auto events = std::make_unique<Events>(fabric);
  events->writable = (attributes->flags & FI_WRITE) != 0;
  if (const int code = events->waiting.open(attributes->wait_obj); code != 0) return code;
  events->fid.fid.fclass = FI_CLASS_EQ;
  events->fid.fid.context = context;
  events->fid.fid.ops = &events_fid_calls;
  events->fid.ops = &events_calls;
  fabric.references.add();
  *result = &events.release()->fid;
  return 0;
}

}  // namespace railyard::provider
