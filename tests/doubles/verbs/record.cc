#include <algorithm>
#include <cerrno>

#include "doubles/verbs/core.hpp"

namespace railyard::verbs_double {

namespace {

int limit_of(const Limits& limits, Kind kind) {
  switch (kind) {
    case Kind::context:
      return 1 << 30;
    case Kind::domain:
      return limits.max_pd;
    case Kind::region:
      return limits.max_mr;
    case Kind::completion_queue:
      return limits.max_cq;
    case Kind::shared_receive_queue:
      return limits.max_srq;
    case Kind::connected_pair:
    case Kind::datagram_pair:
      return limits.max_qp;
    case Kind::address_handle:
      return limits.max_ah;
  }
  return 0;
}

void one_more(Count& count) {
  ++count.created;
  ++count.alive;
  count.peak = std::max(count.peak, count.alive);
}

}  // namespace

void Core::violation(const std::string& text) { violations.push_back(text); }

int Core::wanted_failure(std::string_view name) {
  if (faults.empty()) return 0;
  const auto found = faults.find(name);
  if (found == faults.end()) return 0;
  CallFault& fault = found->second;
  if (fault.after > 0) {
    --fault.after;
    return 0;
  }
  const int error = fault.error;
  if (--fault.times == 0) {
    faults.erase(found);
    look_closer();
  }
  return error;
}

int refused(Device& device, std::string_view name) {
  if (const int error = here().wanted_failure(name); error != 0) return error;
  return device.dead ? EIO : 0;
}

bool Core::admit(Device& device, Kind kind) {
  std::size_t alive = device.counts[static_cast<std::size_t>(kind)].alive;
  if (kind == Kind::connected_pair) alive += device.counts[static_cast<std::size_t>(Kind::datagram_pair)].alive;
  if (kind == Kind::datagram_pair) alive += device.counts[static_cast<std::size_t>(Kind::connected_pair)].alive;
  if (alive < static_cast<std::size_t>(limit_of(device.options.limits, kind))) return true;
  errno = ENOMEM;
  return false;
}

void Core::count_one(Device& device, Kind kind) {
  one_more(device.counts[static_cast<std::size_t>(kind)]);
  one_more(totals[static_cast<std::size_t>(kind)]);
}

bool Core::known(const void* object, const char* call) {
  if (living.contains(object)) return true;
  violation(std::string(call) + " on something that is not there, or no longer");
  return false;
}

void Core::bury(Device& device, Kind kind, const void* object) {
  buried.push_back(std::move(living.extract(object).mapped()));
  --device.counts[static_cast<std::size_t>(kind)].alive;
  --totals[static_cast<std::size_t>(kind)].alive;
}

void Core::look_closer(QueuePair& pair) {
  pair.plain = !faults.contains("post_send") && !pair.owner->dead && pair.now == IBV_QPS_RTS;
}

void Core::look_closer() {
  const auto wanted = [this](std::string_view name) { return faults.contains(name); };
  const bool polls = !wanted("poll_cq");
  const bool shared = !wanted("post_srq_recv");
  for (const auto& device : devices) {
    for (const auto& [number, pair] : device->pairs) look_closer(*pair);
  }
  for (CompletionQueue* queue : completion_queues) queue->plain = polls && !queue->owner->dead;
  for (SharedReceiveQueue* queue : shared_queues) queue->plain = shared && !queue->owner->dead;
}

}  // namespace railyard::verbs_double
