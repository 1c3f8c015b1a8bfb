/// Channels, and the context they begin and end in, as Python sees them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "buffers.hpp"
#include "lifetime.hpp"
#include "railyard/channel.hpp"
#include "railyard/context.hpp"
#include "waits.hpp"

namespace railyard::python {

class PyContext : public Closable {
 public:
  explicit PyContext(py::handle settings);
  ~PyContext() { end(*this, context_); }
  Context& context() { return *context_; }
  std::uint32_t timeout_ms() const { return context_->settings().timeout_ms; }
  void close();

  /// Closed before the context: a context that ends takes them along.
  void add(const std::shared_ptr<Closable>& user);

 private:
  std::unique_ptr<Context> context_;
  std::vector<std::weak_ptr<Closable>> users_;
};

/// A send or a receive under way, with its memory.
struct Transfer {
  Request* request = nullptr;  ///< null: over
  std::vector<Buffer> buffers;
  std::array<std::uint64_t, Channel::kMostSlots> sizes{};
  std::size_t count = 0;
  bool failed = false;
};

class PyMemory;

class PyChannel : public Closable, public std::enable_shared_from_this<PyChannel> {
 public:
  PyChannel(std::shared_ptr<PyContext> context, std::unique_ptr<Channel> channel)
      : Closable("Channel"), context_(std::move(context)), channel_(std::move(channel)) {}
  ~PyChannel() { take_down(); }

  Channel& channel() { return *channel_; }
  std::uint32_t timeout_ms() const { return context_->timeout_ms(); }
  std::shared_ptr<Transfer> send(py::handle message, int tag, const PyMemory* registered, Timeout timeout);
  std::shared_ptr<Transfer> receive(const std::vector<py::object>& destinations, const std::vector<int>& tags,
                                    const PyMemory* registered, Timeout timeout);
  bool test(Transfer& transfer);
  void wait(Transfer& transfer, Timeout timeout);
  void close();
  void add(const std::shared_ptr<PyMemory>& memory) { memories_.push_back(memory); }

 private:
  template <typename Begin>
  void begin(const std::shared_ptr<Transfer>& transfer, Timeout timeout, Begin&& begin);
  template <typename Use>
  auto alone(Use&& use);
  /// Everybody who wants the mutex says so first: it is not fair, and a wait that takes it again and again makes room.
  std::unique_lock<std::mutex> take_turn();
  void let_others_in() const;
  void sweep();
  void take_down() noexcept;

  std::shared_ptr<PyContext> context_;
  std::unique_ptr<Channel> channel_;
  /// The library wants one thread at a time in a channel. Taken without Python's lock.
  std::mutex mutex_;
  std::atomic<int> waiting_{0};  ///< for the mutex: a long wait makes room for them
  std::vector<std::shared_ptr<Transfer>> transfers_;
  std::vector<std::weak_ptr<PyMemory>> memories_;
};

class PyMemory : public Closable {
 public:
  PyMemory(std::shared_ptr<PyChannel> channel, Buffer buffer, std::unique_ptr<Memory> memory)
      : Closable("RegisteredMemory"),
        channel_(std::move(channel)),
        buffer_(std::move(buffer)),
        memory_(std::move(memory)) {}
  ~PyMemory() { take_down(); }
  const Memory* memory() const { return memory_.get(); }
  void close() {
    if (begin_close()) take_down();
  }
  void take_down() noexcept {
    end(*this, memory_);
    end_close(true);
    buffer_.release();
  }

 private:
  std::shared_ptr<PyChannel> channel_;
  Buffer buffer_;
  std::unique_ptr<Memory> memory_;
};

class PyListener : public Closable {
 public:
  PyListener(std::shared_ptr<PyContext> context, std::unique_ptr<Listener> listener)
      : Closable("Listener"), context_(std::move(context)), listener_(std::move(listener)) {}
  ~PyListener() { take_down(); }
  Listener& listener() { return *listener_; }
  const std::shared_ptr<PyContext>& context() const { return context_; }
  void close() {
    if (begin_close()) take_down();
  }
  void take_down() noexcept {
    end(*this, listener_);
    end_close(true);
  }

 private:
  std::shared_ptr<PyContext> context_;
  std::unique_ptr<Listener> listener_;
};

struct PyRequest {
  std::shared_ptr<PyChannel> channel;
  std::shared_ptr<Transfer> transfer;
};

}  // namespace railyard::python
