/// Window and its tickets, as Python sees them.
#pragma once

#include <memory>
#include <vector>

#include "buffers.hpp"
#include "lifetime.hpp"
#include "railyard/window.hpp"
#include "waits.hpp"
#include "world.hpp"

namespace railyard::python {

/// Memory of an operation under way: held until the library is done with it.
struct Pending {
  Ticket ticket;
  Buffer buffer;
  std::uint64_t before = 0;         ///< where a fetching atomic stores
  std::vector<Buffer> blocks = {};  ///< of a vector
  bool until_end = false;           ///< it failed, and what of it is under way nobody knows: held while the window is

  void release() {
    buffer.release();
    blocks.clear();
  }
};

class PyWindow : public Closable, public std::enable_shared_from_this<PyWindow> {
 public:
  static std::shared_ptr<PyWindow> allocate(std::shared_ptr<PyWorld> world, std::size_t bytes,
                                            const WindowOptions& options);
  static std::shared_ptr<PyWindow> adopt(std::shared_ptr<PyWorld> world, py::handle memory,
                                         const WindowOptions& options);
  ~PyWindow() { abandon(); }

  Window& window() { return *window_; }
  PyWorld& world() { return *world_; }
  std::uint32_t timeout_ms() const { return world_->timeout_ms(); }
  py::object local();
  void close(Timeout timeout);
  static void close_all(const std::vector<std::shared_ptr<PyWindow>>& windows, Timeout timeout);
  /// Takes the window down without waiting for peers.
  void abandon() noexcept;
  /// The same; raises where a call of another thread is inside.
  void abandon_idle();

  /// Keeps the memory of an operation until it is done; null where it is done already.
  std::shared_ptr<Pending> keep(Ticket ticket, Buffer&& buffer);
  void keep(std::shared_ptr<Pending> pending);
  /// Lets go of the memory of every operation that is done.
  void sweep();
  std::size_t counters() const { return counters_; }
  std::size_t pending() const { return pending_.size(); }

 private:
  explicit PyWindow(std::shared_ptr<PyWorld> world) : Closable("Window"), world_(std::move(world)) {}
  static std::shared_ptr<PyWindow> finish(std::shared_ptr<PyWindow> made, Result<Window>&& window,
                                          std::size_t counters);

  std::shared_ptr<PyWorld> world_;
  Buffer memory_;  ///< what an adopted window lies over
  std::unique_ptr<Window> window_;
  std::vector<std::shared_ptr<Pending>> pending_;
  std::size_t sweep_at_ = 64;
  std::size_t counters_ = 0;
  int device_ = -1;  ///< the GPU that an allocated window lies on; -1: host memory
};

/// One operation. Keeps its window, and with it the operation's memory.
struct PyTicket {
  std::shared_ptr<PyWindow> window;  ///< null: it was complete when its call returned
  Ticket ticket;
  std::shared_ptr<Pending> pending;

  bool test(Completion completion);
  bool peek(Completion completion) const;
  void wait(Completion completion, Timeout timeout);
  void over() {
    if (pending != nullptr) pending->release();
  }
};

/// A fetching atomic.
struct PyFetch : PyTicket {
  WordType type = WordType::uint64;
  py::object result(Timeout timeout);
};

/// The one ticket of every operation that was complete when its call returned.
py::object complete_ticket();

/// The ticket of an operation that keeps what is pending.
py::object hand_out(const std::shared_ptr<PyWindow>& self, Result<Ticket> submitted, std::vector<Buffer>&& blocks);
void bind_vectors(py::class_<PyWindow, std::shared_ptr<PyWindow>>& type);
void bind_operations(py::class_<PyWindow, std::shared_ptr<PyWindow>>& type);

}  // namespace railyard::python
