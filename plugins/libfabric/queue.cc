#include "queue.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "endpoint.hpp"

namespace railyard::provider {

void Watch::add(Endpoint& endpoint) {
  if (std::find(endpoints_.begin(), endpoints_.end(), &endpoint) == endpoints_.end()) endpoints_.push_back(&endpoint);
  waiting.add(endpoint.bell());
}
void Watch::remove(Endpoint& endpoint) {
  waiting.remove(endpoint.bell());
  std::erase(endpoints_, &endpoint);
}
void Watch::progress() {
  for (Endpoint* endpoint : endpoints_) endpoint->progress();
}
bool Watch::fall_asleep() {
  // One that cannot sleep has something to do; those before it stay awake at their next progress.
  return std::all_of(endpoints_.begin(), endpoints_.end(), [](Endpoint* endpoint) { return endpoint->fall_asleep(); });
}
void Watch::wake_up() {
  for (Endpoint* endpoint : endpoints_) endpoint->wake_up();
}

namespace {

std::size_t bytes_of(fi_cq_format format) {
  switch (format) {
    case FI_CQ_FORMAT_TAGGED:
      return sizeof(fi_cq_tagged_entry);
    case FI_CQ_FORMAT_DATA:
      return sizeof(fi_cq_data_entry);
    case FI_CQ_FORMAT_MSG:
      return sizeof(fi_cq_msg_entry);
    default:
      return sizeof(fi_cq_entry);
  }
}

}  // namespace

Queue::Queue(Domain& owner, fi_cq_format entry_format)
    : domain(owner), format(entry_format), entry_bytes_(bytes_of(entry_format)) {}

void Queue::grow() {
  std::vector<Completion> larger(ring_.size() * 2);
  for (std::size_t at = head_; at != tail_; ++at) larger[at & (larger.size() - 1)] = ring_[at & (ring_.size() - 1)];
  ring_.swap(larger);
}

void Queue::disarm() {
  armed = false;
  watch.waiting.ring();
}

void Queue::push_error(const fi_cq_err_entry& error) {
  errors_.push_back(error);
  Completion place;
  place.flags = kError;
  // Never into the program's buffer: what is there is a success.
  keep(place);
}

ssize_t Queue::read(void* buffer, std::size_t count, fi_addr_t* sources) {
  into_ = buffer;
  sources_ = sources;
  if (head_ == tail_ || count == 0) {
    // Who asks for nothing wants progress.
    room_ = count;
    watch.progress();
    const std::size_t done = count - std::exchange(room_, 0);
    if (done != 0) return static_cast<ssize_t>(done);
    if (head_ == tail_) return -FI_EAGAIN;
  }
  std::size_t done = 0;
  for (; done < count && head_ != tail_; ++done, ++head_) {
    const Completion& from = ring_[head_ & (ring_.size() - 1)];
    if (from.flags == kError) [[unlikely]]
      return done != 0 ? static_cast<ssize_t>(done) : -FI_EAVAIL;
    put(from);
  }
  return static_cast<ssize_t>(done);
}

ssize_t Queue::read_error(fi_cq_err_entry& entry) {
  if (head_ == tail_ || ring_[head_ & (ring_.size() - 1)].flags != kError) return -FI_EAGAIN;
  const fi_cq_err_entry& error = errors_.front();
  entry.op_context = error.op_context;
  entry.flags = error.flags;
  entry.len = error.len;
  entry.buf = error.buf;
  entry.data = error.data;
  entry.tag = error.tag;
  entry.olen = error.olen;
  entry.err = error.err;
  entry.prov_errno = error.prov_errno;
  // No error here has more to say than its number; `err_data` stays the program's.
  entry.err_data_size = 0;
  errors_.pop_front();
  ++head_;
  return 1;
}

namespace {

constexpr std::chrono::milliseconds kLongestSleep{100};
/// Passes before a blocking read sleeps: a peer that answers at once is not worth a system call.
constexpr int kPassesBeforeSleep = 2000;

/// Reads in vain before the processor is offered to others, and how often from then on: the peer that is waited for may
/// be one of them.
constexpr std::uint32_t kIdleReads = 4096;
constexpr std::uint32_t kReadsPerYield = 16;

ssize_t read_from(fid_cq* fid, void* buffer, std::size_t count, fi_addr_t* sources) {
  auto* queue = object_of<Queue>(fid);
  std::uint32_t idle = 0;
  {
    Guard guard(queue->domain.lock);
    const ssize_t got = queue->read(buffer, count, sources);
    if (got != -FI_EAGAIN) {
      queue->idle_reads = 0;
      return got;
    }
    idle = ++queue->idle_reads;
  }
  if (idle > kIdleReads && idle % kReadsPerYield == 0) ::sched_yield();
  return -FI_EAGAIN;
}
ssize_t read_plain(fid_cq* fid, void* buffer, std::size_t count) { return read_from(fid, buffer, count, nullptr); }

ssize_t read_error(fid_cq* fid, fi_cq_err_entry* entry, std::uint64_t) {
  auto* queue = object_of<Queue>(fid);
  Guard guard(queue->domain.lock);
  return queue->read_error(*entry);
}

/// Arms the queue and its endpoints; false when there is something to do first.
bool prepare_sleep(Queue& queue) {
  if (!queue.empty() || queue.signalled) return false;
  queue.armed = true;
  if (queue.watch.fall_asleep()) return true;
  queue.armed = false;
  return false;
}
void finish_sleep(Queue& queue) {
  queue.armed = false;
  queue.watch.waiting.clear();
  queue.watch.wake_up();
}

ssize_t wait_from(fid_cq* fid, void* buffer, std::size_t count, fi_addr_t* sources, const void*, int timeout) {
  auto* queue = object_of<Queue>(fid);
  if (queue->watch.waiting.kind() == FI_WAIT_NONE) return -FI_EOPNOTSUPP;
  const Until until(timeout);
  for (int pass = 0;; ++pass) {
    bool asleep = false;
    {
      Guard guard(queue->domain.lock);
      const ssize_t got = queue->read(buffer, count, sources);
      if (got != -FI_EAGAIN) return got;
      if (queue->signalled) {
        queue->signalled = false;
        return -FI_EAGAIN;
      }
      if (pass >= kPassesBeforeSleep && queue->watch.waiting.sleeps()) asleep = prepare_sleep(*queue);
    }
    if (pass % 64 == 0 || asleep)
      if (until.over()) return -FI_EAGAIN;
    if (asleep) {
      queue->watch.waiting.sleep(until.left(kLongestSleep));
      Guard guard(queue->domain.lock);
      finish_sleep(*queue);
    } else if (pass % 64 == 63) {
      ::sched_yield();
    }
  }
}
ssize_t wait_plain(fid_cq* fid, void* buffer, std::size_t count, const void* condition, int timeout) {
  return wait_from(fid, buffer, count, nullptr, condition, timeout);
}

int signal_queue(fid_cq* fid) {
  auto* queue = object_of<Queue>(fid);
  Guard guard(queue->domain.lock);
  queue->signalled = true;
  queue->watch.waiting.ring();
  return 0;
}

const char* describe_error(fid_cq*, int code, const void*, char* buffer, std::size_t bytes) {
  const char* const text = ::strerror(code);
  if (buffer != nullptr && bytes != 0) {
    std::strncpy(buffer, text, bytes - 1);
    buffer[bytes - 1] = '\0';
  }
  return text;
}

int close_queue(fid* fid) {
  auto* queue = object_of<Queue>(fid);
  if (!queue->references.none()) return -FI_EBUSY;
  queue->domain.references.drop();
  delete queue;
  return 0;
}

int control_queue(fid* fid, int command, void* argument) {
  return object_of<Queue>(fid)->watch.waiting.control(command, argument);
}

fi_ops queue_fid_calls{sizeof(fi_ops),
                       close_queue,
                       not_offered<&fi_ops::bind>,
                       control_queue,
                       not_offered<&fi_ops::ops_open>,
                       not_offered<&fi_ops::tostr>,
                       not_offered<&fi_ops::ops_set>};
fi_ops_cq queue_calls{sizeof(fi_ops_cq), read_plain, read_from,    read_error,
                      wait_plain,        wait_from,  signal_queue, describe_error};

}  // namespace

int open_queue(fid_domain* fid, fi_cq_attr* attributes, fid_cq** result, void* context) {
  if (attributes == nullptr || attributes->format > FI_CQ_FORMAT_TAGGED ||
      (attributes->flags & ~static_cast<std::uint64_t>(FI_AFFINITY)) != 0)
    return -FI_EINVAL;
  if (attributes->wait_cond != FI_CQ_COND_NONE) return -FI_ENOSYS;
  Domain& domain = *object_of<Domain>(fid);
  auto queue = std::make_unique<Queue>(
      domain, attributes->format == FI_CQ_FORMAT_UNSPEC ? FI_CQ_FORMAT_CONTEXT : attributes->format);
  if (const int code = queue->watch.waiting.open(attributes->wait_obj); code != 0) return code;
  queue->fid.fid.fclass = FI_CLASS_CQ;
  queue->fid.fid.context = context;
  queue->fid.fid.ops = &queue_fid_calls;
  queue->fid.ops = &queue_calls;
  domain.references.add();
  *result = &queue.release()->fid;
  return 0;
}

}  // namespace railyard::provider
