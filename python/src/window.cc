/// Windows: making, closing, waiting. Operations are in operations.cc.
#include "window.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace railyard::python {
namespace {

/// This rank's memory of a window that the library allocated. Keeps it mapped; knows nothing of the window.
struct LocalMemory {
  std::shared_ptr<const void> keep;
  std::span<std::byte> bytes;
};

/// The same in the memory of a GPU: for CuPy, torch and others that take `__cuda_array_interface__`.
struct DeviceMemory {
  LocalMemory memory;
  int device = 0;

  py::dict interface() const {
    py::dict fields;
    fields["shape"] = py::make_tuple(memory.bytes.size());
    fields["typestr"] = "|u1";
    fields["data"] = py::make_tuple(reinterpret_cast<std::uintptr_t>(memory.bytes.data()), false);
    fields["strides"] = py::none();
    fields["version"] = 3;
    return fields;
  }
};

WindowOptions options_from(std::size_t signals, std::size_t counters, bool per_rank, bool native_atomics) {
  WindowOptions options;
  options.signals = signals;
  options.counters = counters;
  options.per_rank = per_rank;
  options.native_atomics = native_atomics;
  return options;
}

void check_index(std::size_t index, std::size_t count, const char* call, const char* what) {
  if (index < count) return;
  raise(Error(Status::out_of_range,
              std::string(call) + ": " + what + " " + std::to_string(index) + " of " + std::to_string(count),
              {.operation = call}));
}

}  // namespace

std::shared_ptr<PyWindow> PyWindow::finish(std::shared_ptr<PyWindow> made, Result<Window>&& window,
                                           std::size_t counters) {
  made->window_ = std::make_unique<Window>(take(std::move(window)));
  made->counters_ = counters;
  made->world_->add(made);
  return made;
}

std::shared_ptr<PyWindow> PyWindow::allocate(std::shared_ptr<PyWorld> world, std::size_t bytes,
                                             const WindowOptions& options) {
  std::shared_ptr<PyWindow> made(new PyWindow(std::move(world)));
  const Call call(*made->world_, "allocate");
  made->device_ = options.device;
  auto window = without_gil([&] { return Window::allocate(made->world_->world(), bytes, options); });
  return finish(made, std::move(window), options.counters);
}

std::shared_ptr<PyWindow> PyWindow::adopt(std::shared_ptr<PyWorld> world, py::handle memory,
                                          const WindowOptions& options) {
  std::shared_ptr<PyWindow> made(new PyWindow(std::move(world)));
  const Call call(*made->world_, "adopt");
  made->memory_ = Buffer(memory, Access::write);
  auto window = without_gil([&] { return Window::adopt(made->world_->world(), made->memory_.bytes(), options); });
  return finish(made, std::move(window), options.counters);
}

py::object PyWindow::local() {
  const Call call(*this, "local");
  if (memory_.data() != nullptr) {
    throw py::type_error("Window.local: this window lies over memory of yours: use that");
  }
  LocalMemory memory{window_->keep_local(), window_->local()};
  if (device_ >= 0) return py::cast(DeviceMemory{std::move(memory), device_});
  return py::memoryview(py::cast(std::move(memory)));
}

void PyWindow::close(Timeout timeout) {
  if (!begin_close()) return;
  auto closed = without_gil([&] { return window_->close(timeout.deadline()); });
  end_close(closed.ok());
  if (!closed) raise(closed.error());
  abandon();
}

void PyWindow::close_all(const std::vector<std::shared_ptr<PyWindow>>& windows, Timeout timeout) {
  std::vector<PyWindow*> closing;
  std::vector<Window*> all;
  try {
    for (const auto& each : windows) {
      const bool again = std::ranges::find(closing, each.get()) != closing.end();  // for the library to refuse
      if (!again && !each->begin_close()) continue;
      if (!again) closing.push_back(each.get());
      all.push_back(each->window_.get());
    }
  } catch (...) {  // a call of another thread is inside
    for (PyWindow* each : closing) each->end_close(false);
    throw;
  }
  auto closed = without_gil([&] { return Window::close_all(all, timeout.deadline()); });
  for (PyWindow* each : closing) {
    const bool done = !each->window_->is_open();
    each->end_close(done);
    if (done) each->abandon();
  }
  if (!closed) raise(closed.error());
}

void PyWindow::abandon_idle() {
  if (begin_close()) abandon();
}

void PyWindow::abandon() noexcept {
  end(*this, window_);
  end_close(true);
  // Nobody touches their memory now.
  pending_.clear();
  memory_.release();
}

void PyWindow::sweep() {
  std::erase_if(pending_, [this](const std::shared_ptr<Pending>& one) {
    // Of one that failed the memory is held until the window ends: only then nobody can touch it for certain.
    if (one->until_end) return false;
    auto done = window_->test(one->ticket, Completion::local);
    if (!done || !*done) return false;
    one->release();
    return true;
  });
  sweep_at_ = std::max<std::size_t>(64, 2 * pending_.size());
}

std::shared_ptr<Pending> PyWindow::keep(Ticket ticket, Buffer&& buffer) {
  if (ticket.number == 0) return nullptr;
  auto pending = std::make_shared<Pending>(Pending{ticket, std::move(buffer)});
  keep(pending);
  return pending;
}

void PyWindow::keep(std::shared_ptr<Pending> pending) {
  pending_.push_back(std::move(pending));
  if (pending_.size() >= sweep_at_) sweep();
}

py::object complete_ticket() {
  // Never freed: it may be handed out until the interpreter ends.
  static PyObject* const ticket = py::cast(PyTicket{}).release().ptr();
  return py::reinterpret_borrow<py::object>(ticket);
}

bool PyTicket::test(Completion completion) {
  if (window == nullptr) return true;
  const Call call(*window, "test");
  const bool done = take(without_gil([&] { return window->window().test(ticket, completion); }));
  if (done) over();
  return done;
}

bool PyTicket::peek(Completion completion) const {
  if (window == nullptr) return true;
  const Call call(*window, "peek");
  return take(window->window().peek(ticket, completion));
}

void PyTicket::wait(Completion completion, Timeout timeout) {
  if (window == nullptr) return;
  const Call call(*window, "wait");
  take(wait_in_parts(timeout, window->timeout_ms(),
                     [&](Deadline deadline) { return window->window().wait(ticket, completion, deadline); }));
  over();
}

py::object PyFetch::result(Timeout timeout) {
  wait(Completion::remote, timeout);
  const auto as = [this](auto word) {
    std::memcpy(&word, &pending->before, sizeof(word));  // little-endian: the low bytes come first
    return word;
  };
  switch (type) {
    case WordType::int32:
      return py::int_(as(std::int32_t{}));
    case WordType::uint32:
      return py::int_(as(std::uint32_t{}));
    case WordType::int64:
      return py::int_(as(std::int64_t{}));
    case WordType::float32:
      return py::float_(as(float{}));
    case WordType::float64:
      return py::float_(as(double{}));
    case WordType::uint64:
      break;
  }
  return py::int_(as(std::uint64_t{}));
}

namespace {

void bind_values(py::module_& module) {
  py::enum_<Order>(module, "Order", "Whether a put is in the sequence of its target.")
      .value("ordered", Order::ordered)
      .value("relaxed", Order::relaxed);
  py::enum_<Comparison>(module, "Comparison", "How a signal compares with the value waited for.")
      .value("equal", Comparison::equal)
      .value("not_equal", Comparison::not_equal)
      .value("less", Comparison::less)
      .value("less_equal", Comparison::less_equal)
      .value("greater", Comparison::greater)
      .value("greater_equal", Comparison::greater_equal);
  py::enum_<AtomicOp>(module, "AtomicOp", "What an atomic does to its word.")
      .value("add", AtomicOp::add)
      .value("increment", AtomicOp::increment)
      .value("bit_and", AtomicOp::bit_and)
      .value("bit_or", AtomicOp::bit_or)
      .value("bit_xor", AtomicOp::bit_xor)
      .value("set", AtomicOp::set)
      .value("swap", AtomicOp::swap)
      .value("compare_swap", AtomicOp::compare_swap)
      .value("fetch", AtomicOp::fetch)
      .value("min", AtomicOp::min)
      .value("max", AtomicOp::max);
  py::enum_<SignalOp>(module, "SignalOp", "What a signal does to its word.")
      .value("add", SignalOp::add)
      .value("set", SignalOp::set);
  py::enum_<Completion>(module, "Completion",
                        "local: the source may be reused; remote: the bytes are visible at the target.")
      .value("local", Completion::local)
      .value("remote", Completion::remote);
  py::class_<SignalCondition>(module, "SignalCondition", "A signal of this rank's and what it is waited for to be.")
      .def(py::init([](std::size_t index, std::uint64_t value, Comparison comparison, int from_rank) {
             return SignalCondition{index, comparison, value, from_rank};
           }),
           py::arg("index"), py::arg("value") = 1, py::arg("comparison") = Comparison::greater_equal,
           py::arg("from_rank") = SignalCondition::kAnyRank,
           "`from_rank`: who signals; the wait ends with PeerLostError as soon as that rank is gone. -1: any.")
      .def_readwrite("index", &SignalCondition::index, "Which signal.")
      .def_readwrite("value", &SignalCondition::value, "What it is compared with.")
      .def_readwrite("comparison", &SignalCondition::comparison, "How it is compared.")
      .def_readwrite("from_rank", &SignalCondition::from, "Who signals; -1: any rank.");
  py::class_<LocalMemory>(module, "_LocalMemory", py::buffer_protocol(), "This rank's memory of a window.")
      .def_buffer([](const LocalMemory& self) {
        return py::buffer_info(reinterpret_cast<unsigned char*>(self.bytes.data()),
                               static_cast<py::ssize_t>(self.bytes.size()));
      });
  py::class_<DeviceMemory>(module, "_DeviceMemory", "This rank's memory of a window, on a GPU.")
      .def_readonly("device", &DeviceMemory::device, "The GPU's number.")
      .def_property_readonly("__cuda_array_interface__", &DeviceMemory::interface);
}

void bind_tickets(py::module_& module) {
  py::class_<PyTicket>(module, "Ticket",
                       "One operation. Keeps its window; its memory is kept until it is complete, with or without it.")
      .def("test", &PyTicket::test, py::arg("completion") = Completion::remote,
           "Whether the operation is complete. Makes progress. Raises the error of one that failed.")
      .def("peek", &PyTicket::peek, py::arg("completion") = Completion::remote,
           "The same without progress: for event loops, between `World.arm` and their sleep, which a `test` would end.")
      .def(
          "wait",
          [](PyTicket& self, Completion completion, py::handle timeout) { self.wait(completion, Timeout(timeout)); },
          py::arg("completion") = Completion::remote, py::arg("timeout") = py::none(),
          "Waits until the operation is complete. `await ticket` does the same in asyncio.")
      .def_property_readonly(
          "window", [](const PyTicket& self) { return self.window; },
          "The window whose operation it is; None for one that was complete when its call returned.")
      .def_property_readonly(
          "peer", [](const PyTicket& self) { return self.ticket.peer; },
          "The target's rank; -1 for an operation that was complete when its call returned.");
  py::class_<PyFetch, PyTicket>(module, "Fetch", "A fetching atomic under way.")
      .def(
          "result", [](PyFetch& self, py::handle timeout) { return self.result(Timeout(timeout)); },
          py::arg("timeout") = py::none(), "Waits for it; returns what the word held before.");
}

void bind_waits(py::class_<PyWindow, std::shared_ptr<PyWindow>>& type) {
  type.def(
          "read_signal",
          [](PyWindow& self, std::size_t index) {
            const Call call(self, "read_signal");
            check_index(index, self.window().signals(self.world().world().rank()), "read_signal", "signal");
            return self.window().read_signal(index);
          },
          py::arg("index"), "This rank's signal. What preceded the signal at its sender is visible after this.")
      .def(
          "reset_signal",
          [](PyWindow& self, std::size_t index) {
            const Call call(self, "reset_signal");
            take(without_gil([&] { return self.window().reset_signal(index); }));
          },
          py::arg("index"), "Sets this rank's signal to zero, in turn with what the engine applies.")
      .def(
          "wait_signal",
          [](PyWindow& self, std::size_t index, std::uint64_t value, Comparison comparison, py::handle timeout,
             int from_rank) {
            const Timeout limit(timeout);
            const Call call(self, "wait_signal");
            return take(wait_in_parts(limit, self.timeout_ms(), [&](Deadline deadline) {
              return self.window().wait_signal(index, comparison, value, deadline, from_rank);
            }));
          },
          py::arg("index"), py::arg("value") = 1, py::arg("comparison") = Comparison::greater_equal,
          py::arg("timeout") = py::none(), py::arg("from_rank") = SignalCondition::kAnyRank,
          "Waits until the signal compares so with `value`; returns what it held then.")
      .def(
          "wait_any_signal",
          [](PyWindow& self, const std::vector<SignalCondition>& conditions, py::handle timeout) {
            const Timeout limit(timeout);
            const Call call(self, "wait_any_signal");
            const SignalMet met = take(wait_in_parts(limit, self.timeout_ms(), [&](Deadline deadline) {
              return self.window().wait_any_signal(conditions, deadline);
            }));
            return py::make_tuple(met.condition, met.held);
          },
          py::arg("conditions"), py::arg("timeout") = py::none(),
          "Waits until one condition is met; returns (which of them, what its signal held).")
      .def(
          "wait_all_signals",
          [](PyWindow& self, const std::vector<SignalCondition>& conditions, py::handle timeout) {
            const Timeout limit(timeout);
            const Call call(self, "wait_all_signals");
            take(wait_in_parts(limit, self.timeout_ms(), [&](Deadline deadline) {
              return self.window().wait_all_signals(conditions, deadline);
            }));
          },
          py::arg("conditions"), py::arg("timeout") = py::none(), "Waits until all conditions are met at once.")
      .def(
          "read_counter",
          [](PyWindow& self, std::size_t index) {
            const Call call(self, "read_counter");
            check_index(index, self.counters(), "read_counter", "counter");
            return self.window().read_counter(index);
          },
          py::arg("index"), "This rank's counter.")
      .def(
          "reset_counter",
          [](PyWindow& self, std::size_t index) {
            const Call call(self, "reset_counter");
            take(without_gil([&] { return self.window().reset_counter(index); }));
          },
          py::arg("index"), "Sets this rank's counter to zero.")
      .def(
          "wait_counter",
          [](PyWindow& self, std::size_t index, std::uint64_t value, py::handle timeout) {
            const Timeout limit(timeout);
            const Call call(self, "wait_counter");
            return take(wait_in_parts(limit, self.timeout_ms(), [&](Deadline deadline) {
              return self.window().wait_counter(index, value, deadline);
            }));
          },
          py::arg("index"), py::arg("value") = 1, py::arg("timeout") = py::none(),
          "Waits until the counter is at least `value`; returns what it held then. Raises the error of an operation "
          "that failed.")
      .def(
          "fence",
          [](PyWindow& self, std::optional<int> rank) {
            const Call call(self, "fence");
            take(without_gil([&] { return rank ? self.window().fence(*rank) : self.window().fence(); }));
          },
          py::arg("rank") = py::none(),
          "Every later operation to `rank` (None: to all) takes effect after every earlier one. Does not wait.")
      .def(
          "quiet",
          [](PyWindow& self, std::optional<int> rank, py::handle timeout) {
            const Timeout limit(timeout);
            const Call call(self, "quiet");
            take(wait_in_parts(limit, self.timeout_ms(), [&](Deadline deadline) {
              return rank ? self.window().quiet(*rank, deadline) : self.window().quiet(deadline);
            }));
            self.sweep();
          },
          py::arg("rank") = py::none(), py::arg("timeout") = py::none(),
          "Waits until every operation to `rank` (None: to all) is complete at its target.")
      .def(
          "barrier",
          [](PyWindow& self, py::handle timeout) {
            const Timeout limit(timeout);
            const Call call(self, "barrier");
            take(wait_in_parts(limit, self.timeout_ms(),
                               [&](Deadline deadline) { return self.window().barrier(deadline); }));
            self.sweep();
          },
          py::arg("timeout") = py::none(),
          "Completes this rank's operations, then waits until every rank has entered. After a timeout the next call "
          "goes on with the same barrier.");
}

}  // namespace

void bind_window(py::module_& module) {
  bind_values(module);
  py::class_<PyWindow, std::shared_ptr<PyWindow>> type(module, "Window",
                                                       "Memory that every rank of a world exposes, with its signals "
                                                       "and counters. Making and closing one is collective.");
  bind_tickets(module);
  type.def_static(
          "allocate",
          [](std::shared_ptr<PyWorld> world, std::size_t bytes, std::size_t signals, std::size_t counters,
             bool per_rank, bool native_atomics, int device) {
            WindowOptions options = options_from(signals, counters, per_rank, native_atomics);
            options.device = device;
            return PyWindow::allocate(std::move(world), bytes, options);
          },
          py::arg("world"), py::arg("bytes"), py::kw_only(), py::arg("signals") = 64, py::arg("counters") = 64,
          py::arg("per_rank") = false, py::arg("native_atomics") = false, py::arg("device") = -1,
          "Makes a window over zeroed memory of its own, which ranks on the same host reach by loads and stores. "
          "`device`: in the memory of that GPU. Collective; `bytes` is equal on all ranks unless `per_rank`.")
      .def_static(
          "adopt",
          [](std::shared_ptr<PyWorld> world, py::handle memory, std::size_t signals, std::size_t counters,
             bool per_rank, bool native_atomics) {
            return PyWindow::adopt(std::move(world), memory, options_from(signals, counters, per_rank, native_atomics));
          },
          py::arg("world"), py::arg("memory"), py::kw_only(), py::arg("signals") = 64, py::arg("counters") = 64,
          py::arg("per_rank") = false, py::arg("native_atomics") = false,
          "Makes a window over memory of the caller's: a writable, contiguous buffer (a NumPy array), or an object "
          "with "
          "__cuda_array_interface__ or __dlpack__. The window keeps it until it is closed. Collective.")
      .def_property_readonly("local", &PyWindow::local,
                             "This rank's memory as a memoryview of bytes, where the window allocated it; on a GPU, an "
                             "object with __cuda_array_interface__ (cupy.asarray, torch.as_tensor). It stays valid "
                             "beyond `close`; nobody else reaches it then.")
      .def(
          "bytes",
          [](PyWindow& self, int rank) {
            const Call call(self, "bytes");
            return self.window().bytes(rank);
          },
          py::arg("rank"), "The size of `rank`'s memory.")
      .def(
          "signals",
          [](PyWindow& self, int rank) {
            const Call call(self, "signals");
            return self.window().signals(rank);
          },
          py::arg("rank"), "How many signals `rank` has.")
      .def_property_readonly(
          "world", [](PyWindow& self) { return self.world().shared_from_this(); }, "The window's world.")
      .def_property_readonly("closed", &PyWindow::closed, "Whether the window is closed.")
      .def_property_readonly("_in_use", &PyWindow::in_use)
      .def_property_readonly("_pending", &PyWindow::pending)
      .def(
          "close", [](PyWindow& self, py::handle timeout) { self.close(Timeout(timeout)); },
          py::arg("timeout") = py::none(),
          "Completes what this rank has outstanding, waits for all ranks, then takes the window down. Collective.")
      .def_static(
          "close_all",
          [](const std::vector<std::shared_ptr<PyWindow>>& windows, py::handle timeout) {
            PyWindow::close_all(windows, Timeout(timeout));
          },
          py::arg("windows"), py::arg("timeout") = py::none(),
          "Closes windows under one timeout: their ranks wait for each other once. Collective: all ranks of a world "
          "give "
          "the same windows of it, and worlds in the same order. If a world fails its windows stay open, and the error "
          "is the first one's.")
      .def("abandon", &PyWindow::abandon_idle, "Takes the window down without waiting for peers: after an error.")
      .def("__enter__", [](std::shared_ptr<PyWindow> self) { return self; })
      .def("__exit__", [](PyWindow& self, py::handle kind, py::handle, py::handle) {
        // With an exception on its way this rank may not be where the others are: a collective call would hang them.
        if (kind.is_none()) {
          self.close(Timeout(py::none()));
        } else if (!self.in_use()) {
          self.abandon();
        }
      });
  bind_operations(type);
  bind_waits(type);
}

}  // namespace railyard::python
