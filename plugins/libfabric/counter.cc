#include "counter.hpp"

#include <memory>

namespace railyard::provider {

namespace {

constexpr std::chrono::milliseconds kLongestSleep{100};
constexpr int kPassesBeforeSleep = 2000;

/// Reads of an unchanged value before the processor is offered to others, and how often from then on.
constexpr std::uint32_t kIdleReads = 4096;
constexpr std::uint32_t kReadsPerYield = 16;

std::uint64_t read_value(fid_cntr* fid) {
  auto* counter = object_of<Counter>(fid);
  std::uint32_t idle = 0;
  std::uint64_t value = 0;
  {
    Guard guard(counter->domain.lock);
    counter->watch.progress();
    value = counter->value.load(std::memory_order_acquire);
    idle = counter->idle_reads = value == counter->last_read ? counter->idle_reads + 1 : 0;
    counter->last_read = value;
  }
  if (idle > kIdleReads && idle % kReadsPerYield == 0) ::sched_yield();
  return value;
}
std::uint64_t read_errors(fid_cntr* fid) {
  auto* counter = object_of<Counter>(fid);
  Guard guard(counter->domain.lock);
  counter->watch.progress();
  return counter->errors.load(std::memory_order_acquire);
}

int add_value(fid_cntr* fid, std::uint64_t value) {
  auto* counter = object_of<Counter>(fid);
  Guard guard(counter->domain.lock);
  counter->add(value);
  return 0;
}
int add_errors(fid_cntr* fid, std::uint64_t value) {
  auto* counter = object_of<Counter>(fid);
  Guard guard(counter->domain.lock);
  counter->add_error(value);
  return 0;
}
int set_value(fid_cntr* fid, std::uint64_t value) {
  auto* counter = object_of<Counter>(fid);
  Guard guard(counter->domain.lock);
  counter->value.store(value, std::memory_order_release);
  counter->changed();
  return 0;
}
int set_errors(fid_cntr* fid, std::uint64_t value) {
  auto* counter = object_of<Counter>(fid);
  Guard guard(counter->domain.lock);
  counter->errors.store(value, std::memory_order_release);
  counter->changed();
  return 0;
}

int wait_value(fid_cntr* fid, std::uint64_t threshold, int timeout) {
  auto* counter = object_of<Counter>(fid);
  const Until until(timeout);
  const std::uint64_t errors_before = counter->errors.load(std::memory_order_acquire);
  for (int pass = 0;; ++pass) {
    bool asleep = false;
    {
      Guard guard(counter->domain.lock);
      counter->watch.progress();
      if (counter->value.load(std::memory_order_relaxed) >= threshold) return 0;
      if (counter->errors.load(std::memory_order_relaxed) != errors_before) return -FI_EAVAIL;
      if (pass >= kPassesBeforeSleep && counter->watch.waiting.sleeps()) {
        counter->armed = true;
        asleep = counter->watch.fall_asleep();
      }
    }
    if ((pass % 64 == 0 || asleep) && until.over()) return -FI_ETIMEDOUT;
    if (asleep) {
      counter->watch.waiting.sleep(until.left(kLongestSleep));
      Guard guard(counter->domain.lock);
      counter->armed = false;
      counter->watch.waiting.clear();
      counter->watch.wake_up();
    } else if (pass % 64 == 63) {
      ::sched_yield();
    }
  }
}

int close_counter(fid* fid) {
  auto* counter = object_of<Counter>(fid);
  if (!counter->references.none()) return -FI_EBUSY;
  counter->domain.references.drop();
  delete counter;
  return 0;
}
int control_counter(fid* fid, int command, void* argument) {
  return object_of<Counter>(fid)->watch.waiting.control(command, argument);
}

fi_ops counter_fid_calls{sizeof(fi_ops),
                         close_counter,
                         not_offered<&fi_ops::bind>,
                         control_counter,
                         not_offered<&fi_ops::ops_open>,
                         not_offered<&fi_ops::tostr>,
                         not_offered<&fi_ops::ops_set>};
fi_ops_cntr counter_calls{sizeof(fi_ops_cntr), read_value, read_errors, add_value,
                          set_value,           wait_value, add_errors,  set_errors};

}  // namespace

int open_counter(fid_domain* fid, fi_cntr_attr* attributes, fid_cntr** result, void* context) {
  if (attributes != nullptr && (attributes->events != FI_CNTR_EVENTS_COMP || attributes->flags != 0)) return -FI_EINVAL;
  Domain& domain = *object_of<Domain>(fid);
  auto counter = std::make_unique<Counter>(domain);
  const fi_wait_obj wait = attributes != nullptr ? attributes->wait_obj : FI_WAIT_UNSPEC;
  if (const int code = counter->watch.waiting.open(wait); code != 0) return code;
  counter->fid.fid.fclass = FI_CLASS_CNTR;
  counter->fid.fid.context = context;
  counter->fid.fid.ops = &counter_fid_calls;
  counter->fid.ops = &counter_calls;
  domain.references.add();
  *result = &counter.release()->fid;
  return 0;
}

}  // namespace railyard::provider
