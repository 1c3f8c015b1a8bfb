/// Streams: a thread each, which does what was submitted in order, a while later.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "doubles/cuda/core.hpp"

namespace railyard::accelerator::cuda {

struct EventObject {
  std::atomic<std::uint64_t> recorded{0};
  std::atomic<std::uint64_t> reached{0};
};

struct StreamObject {
  using Code = cuda_double::Code;

  explicit StreamObject(int on) : device(on), random_(static_cast<unsigned>(on) + 1), worker_([this] { work(); }) {}
  ~StreamObject() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  Code failure() const { return cuda_double::state().failure[device].load(); }

  void submit(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return jobs_.empty();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return jobs_.empty(); });
  }
  /// On the worker's thread: what makes a copy late.
  void delay() {
    const unsigned least = cuda_double::state().copy_us.load();
    const unsigned chance = static_cast<unsigned>(random_() % 64);
    const unsigned more = chance < 32 ? 0 : chance;  // half of them at once
    if (least + more > 0) std::this_thread::sleep_for(std::chrono::microseconds(least + more));
  }

  const int device;

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const std::function<void()>& job = jobs_.front();  // stays there until it is done
      lock.unlock();
      if (failure() == kSuccess) job();
      lock.lock();
      jobs_.pop_front();
      if (jobs_.empty()) changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool ending_ = false;
  std::minstd_rand random_;
  std::thread worker_;  // last: it uses the rest
};

}  // namespace railyard::accelerator::cuda

namespace cuda_double {

namespace {

/// Whether it was one: an aligned word is read and written whole.
template <typename Word>
bool move_word(std::byte* to, const std::byte* from, std::size_t bytes) {
  const auto whole = [](const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at) % sizeof(Word) == 0; };
  if (bytes != sizeof(Word) || (!whole(to) && !whole(from))) return false;
  Word word = 0;
  if (whole(from)) {
    auto* const source = reinterpret_cast<Word*>(const_cast<std::byte*>(from));
    word = std::atomic_ref<Word>(*source).load(std::memory_order_acquire);
  } else {
    std::memcpy(&word, from, sizeof word);
  }
  if (whole(to)) {
    std::atomic_ref<Word>(*reinterpret_cast<Word*>(to)).store(word, std::memory_order_release);
  } else {
    std::memcpy(to, &word, sizeof word);
  }
  return true;
}

/// Late, and the end before the start: nobody may rely on the order within a copy. A word arrives whole, as from a
/// copy engine, and after the copies before it: release, for whoever polls it.
void move_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;  // either may be null then
  if (move_word<std::uint64_t>(to, from, bytes) || move_word<std::uint32_t>(to, from, bytes)) return;
  const std::size_t half = bytes / 2;
  std::memmove(to + half, from + half, bytes - half);
  std::memmove(to, from, half);
}

Code check(cuda::Stream stream) {
  const int device = current_device();
  if (device < 0) return cuda::kInvalidContext;
  if (stream == nullptr) return cuda::kNotSupported;  // the default stream waits for all others
  if (stream->device != device) return cuda::kInvalidHandle;
  return stream->failure();
}

Code copy_now(Address to, Address from, std::size_t bytes) {
  if (current_device() < 0) return cuda::kInvalidContext;
  const std::lock_guard lock(state().mutex);
  const auto target = state().reach(to, bytes, true);
  const auto source = state().reach(from, bytes, true);
  if (!target || !source) return cuda::kInvalidValue;
  move_bytes(target->bytes, source->bytes, bytes);
  return cuda::kSuccess;
}

}  // namespace

CUDA_DOUBLE_CALL Code cuStreamCreateWithPriority(cuda::Stream* stream, unsigned /*flags*/, int /*priority*/) {
  if (kernel_holds_up()) return cuda::kNotReady;
  const int device = current_device();
  if (device < 0) return cuda::kInvalidContext;
  *stream = new cuda::StreamObject(device);
  const std::lock_guard lock(state().mutex);
  state().streams.insert(*stream);
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuStreamCreate(cuda::Stream* stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

CUDA_DOUBLE_CALL Code cuStreamDestroy_v2(cuda::Stream stream) {
  {
    const std::lock_guard lock(state().mutex);
    if (state().streams.erase(stream) == 0) return cuda::kInvalidHandle;
  }
  delete stream;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuStreamQuery(cuda::Stream stream) {
  if (const Code code = check(stream); code != cuda::kSuccess) return code;
  const bool idle = stream->is_idle();
  if (const Code code = stream->failure(); code != cuda::kSuccess) return code;
  return idle ? cuda::kSuccess : cuda::kNotReady;
}

CUDA_DOUBLE_CALL Code cuStreamSynchronize(cuda::Stream stream) {
  if (const Code code = check(stream); code != cuda::kSuccess) return code;
  stream->wait();
  return stream->failure();
}

CUDA_DOUBLE_CALL Code cuMemcpyAsync(Address to, Address from, std::size_t bytes, cuda::Stream stream) {
  if (const Code code = check(stream); code != cuda::kSuccess) return code;
  std::optional<Reached> target;
  std::optional<Reached> source;
  {
    const std::lock_guard lock(state().mutex);
    target = state().reach(to, bytes, false);
    source = state().reach(from, bytes, false);
  }
  if (!target || !source) return cuda::kInvalidValue;
  stream->submit([=] {
    stream->delay();
    if (++state().copies == state().failing_copy.load()) {
      state().failure[stream->device] = cuda::kIllegalAddress;
      return;
    }
    move_bytes(target->bytes, source->bytes, bytes);
  });
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuStreamBatchMemOp_v2(cuda::Stream stream, unsigned count, cuda::StreamWrite* writes,
                                            unsigned flags) {
  if (const Code code = check(stream); code != cuda::kSuccess) return code;
  if (!state().stream_writes) return cuda::kNotSupported;
  if (count == 0 || count > 256 || flags != 0) return cuda::kInvalidValue;
  std::vector<Reached> targets;
  {
    const std::lock_guard lock(state().mutex);
    for (const cuda::StreamWrite& each : std::span(writes, count)) {
      const auto target = state().reach(each.address, sizeof(each.value), false);
      if (!target || each.operation != cuda::StreamWrite().operation || each.flags != 0 ||
          each.address % sizeof(each.value) != 0)
        return cuda::kInvalidValue;
      targets.push_back(*target);
    }
  }
  for (unsigned i = 0; i < count; ++i) {
    stream->submit([stream, target = targets[i], value = writes[i].value] {
      if (target.block) stream->delay();  // a word of device memory is as late as a copy
      // Publishes every copy before it.
      reinterpret_cast<std::atomic<std::uint64_t>*>(target.bytes)->store(value, std::memory_order_release);
    });
  }
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuEventCreate(cuda::Event* event, unsigned /*flags*/) {
  if (kernel_holds_up()) return cuda::kNotReady;
  if (current_device() < 0) return cuda::kInvalidContext;
  *event = new cuda::EventObject;
  const std::lock_guard lock(state().mutex);
  state().events.insert(*event);
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuEventDestroy_v2(cuda::Event event) {
  {
    const std::lock_guard lock(state().mutex);
    if (state().events.erase(event) == 0) return cuda::kInvalidHandle;
  }
  delete event;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuEventRecord(cuda::Event event, cuda::Stream stream) {
  if (const Code code = check(stream); code != cuda::kSuccess) return code;
  const std::uint64_t number = ++event->recorded;
  stream->submit([=] { event->reached.store(number, std::memory_order_release); });
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuEventQuery(cuda::Event event) {
  const int device = current_device();
  if (device < 0) return cuda::kInvalidContext;
  if (const Code code = state().failure[device].load(); code != cuda::kSuccess) return code;
  return event->reached.load(std::memory_order_acquire) == event->recorded ? cuda::kSuccess : cuda::kNotReady;
}

CUDA_DOUBLE_CALL Code cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
  return copy_now(to, reinterpret_cast<Address>(from), bytes);
}
CUDA_DOUBLE_CALL Code cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
  return copy_now(reinterpret_cast<Address>(to), from, bytes);
}
CUDA_DOUBLE_CALL Code cuMemcpyDtoD_v2(Address to, Address from, std::size_t bytes) { return copy_now(to, from, bytes); }

CUDA_DOUBLE_CALL Code cuMemsetD8_v2(Address to, unsigned char value, std::size_t bytes) {
  if (current_device() < 0) return cuda::kInvalidContext;
  const std::lock_guard lock(state().mutex);
  const auto target = state().reach(to, bytes, false);
  if (!target) return cuda::kInvalidValue;
  std::memset(target->bytes, value, bytes);
  return cuda::kSuccess;
}

}  // namespace cuda_double
