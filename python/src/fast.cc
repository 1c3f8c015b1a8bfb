/// The short way into the calls that loops are made of: put, get, put_signal, wait_signal and Ticket.wait with plain
/// positional arguments. pybind11's dispatch costs a third of a microsecond, and several times that with cold caches
/// after a copy of 1 MiB. Whatever is unusual goes to the calls that pybind11 has made, which do the same.
#include <array>
#include <cstring>

#include "window.hpp"

namespace railyard::python {
namespace {

/// A call of pybind11's and the one put in its place.
struct Short {
  PyObject* whole = nullptr;
  PyMethodDef definition{};
};
std::array<Short, 5> shorts;
enum Which : std::size_t { kPut, kGet, kPutSignal, kWaitSignal, kTicketWait };

using Arguments = PyObject* const*;

PyObject* go_the_whole_way(Which which, PyObject* self, Arguments arguments, Py_ssize_t count, PyObject* keywords) {
  const py::tuple positional(static_cast<std::size_t>(count) + 1);
  PyTuple_SET_ITEM(positional.ptr(), 0, py::handle(self).inc_ref().ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(positional.ptr(), i + 1, py::handle(arguments[i]).inc_ref().ptr());
  }
  py::object named;
  if (keywords != nullptr) {
    py::dict all;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keywords); ++i) {
      all[PyTuple_GET_ITEM(keywords, i)] = py::handle(arguments[count + i]);
    }
    named = std::move(all);
  }
  return PyObject_Call(shorts[which].whole, positional.ptr(), named.ptr());
}

/// The C++ object of an instance that is made in the usual way; null for any other.
template <typename T>
T* object_of(PyObject* self) {
  const auto* const instance = reinterpret_cast<py::detail::instance*>(self);
  return instance->simple_layout ? static_cast<T*>(instance->simple_value_holder[0]) : nullptr;
}

/// A Python int that is small enough; false for anything else, with no exception set.
bool read(PyObject* object, std::int64_t& value) {
  if (!PyLong_CheckExact(object)) return false;
  int overflow = 0;
  value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0;
}

template <typename Code>
PyObject* guarded(Code&& code) {
  try {
    return code();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

/// put, get and put_signal: (rank, offset, memory[, signal]).
template <Which kWhich>
PyObject* move_bytes(PyObject* self, Arguments arguments, Py_ssize_t count, PyObject* keywords) {
  PyWindow* const window = object_of<PyWindow>(self);
  std::int64_t rank = 0;
  std::int64_t offset = 0;
  std::int64_t signal = 0;
  const Py_ssize_t most = kWhich == kPutSignal ? 4 : 3;
  if (keywords != nullptr || count < 3 || count > most || window == nullptr || !read(arguments[0], rank) ||
      !read(arguments[1], offset) || rank != static_cast<int>(rank) ||
      (count == 4 && (!read(arguments[3], signal) || signal < 0))) {
    return go_the_whole_way(kWhich, self, arguments, count, keywords);
  }
  return guarded([&] {
    constexpr const char* kNames[] = {"put", "get", "put_signal"};
    const Call call(*window, kNames[kWhich]);
    Buffer buffer(arguments[2], kWhich == kGet ? Access::write : Access::read);
    const int to = static_cast<int>(rank);
    const auto at = static_cast<std::size_t>(offset);
    auto submitted = without_gil([&] {
      if constexpr (kWhich == kPut) return window->window().put(to, at, buffer.data(), buffer.size());
      if constexpr (kWhich == kGet) return window->window().get(to, at, buffer.data(), buffer.size());
      return window->window().put_signal(to, at, buffer.data(), buffer.size(),
                                         {.index = static_cast<std::size_t>(signal)});
    });
    const Ticket ticket = take(std::move(submitted));
    if (ticket.number == 0) return complete_ticket().release().ptr();
    auto pending = window->keep(ticket, std::move(buffer));
    return py::cast(PyTicket{window->shared_from_this(), ticket, std::move(pending)}).release().ptr();
  });
}

/// wait_signal: (index[, value]).
PyObject* wait_signal(PyObject* self, Arguments arguments, Py_ssize_t count, PyObject* keywords) {
  PyWindow* const window = object_of<PyWindow>(self);
  std::int64_t index = 0;
  std::int64_t value = 1;
  if (keywords != nullptr || count < 1 || count > 2 || window == nullptr || !read(arguments[0], index) || index < 0 ||
      (count == 2 && (!read(arguments[1], value) || value < 0))) {
    return go_the_whole_way(kWaitSignal, self, arguments, count, keywords);
  }
  return guarded([&] {
    const Call call(*window, "wait_signal");
    const std::uint64_t held = take(wait_in_parts(Timeout(py::none()), window->timeout_ms(), [&](Deadline deadline) {
      return window->window().wait_signal(static_cast<std::size_t>(index), Comparison::greater_equal,
                                          static_cast<std::uint64_t>(value), deadline);
    }));
    return PyLong_FromUnsignedLongLong(held);
  });
}

/// Ticket.wait: ().
PyObject* wait_ticket(PyObject* self, Arguments arguments, Py_ssize_t count, PyObject* keywords) {
  PyTicket* const ticket = object_of<PyTicket>(self);
  if (keywords != nullptr || count != 0 || ticket == nullptr) {
    return go_the_whole_way(kTicketWait, self, arguments, count, keywords);
  }
  return guarded([&] {
    ticket->wait(Completion::remote, Timeout(py::none()));
    return py::none().release().ptr();
  });
}

void replace(Which which, py::handle type, const char* name, _PyCFunctionFastWithKeywords function) {
  py::object whole = type.attr(name);
  Short& one = shorts[which];
  // The words are the type's for ever, as are these.
  const auto words = whole.attr("__doc__").cast<std::string>();
  one.definition = {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
                    METH_FASTCALL | METH_KEYWORDS, ::strdup(words.c_str())};
  const auto made = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &one.definition));
  if (!made) throw py::error_already_set();
  one.whole = whole.release().ptr();
  py::setattr(type, name, made);
}

}  // namespace

void shorten_calls(py::handle window, py::handle ticket) {
  replace(kPut, window, "put", move_bytes<kPut>);
  replace(kGet, window, "get", move_bytes<kGet>);
  replace(kPutSignal, window, "put_signal", move_bytes<kPutSignal>);
  replace(kWaitSignal, window, "wait_signal", wait_signal);
  replace(kTicketWait, ticket, "wait", wait_ticket);
}

}  // namespace railyard::python
