/// Operations of a window. Each releases Python's lock: with every queue full it waits for room, and on the same host
/// it copies the bytes itself.
#include <cstring>

#include "window.hpp"

namespace railyard::python {
namespace {

/// Beyond every window where it is negative: the library says so, with the call's name.
std::size_t to_offset(py::ssize_t offset) { return static_cast<std::size_t>(offset); }

/// Most operations on the same host are complete when their call returns. They share one ticket, which costs nothing.
py::object hand_out(const std::shared_ptr<PyWindow>& self, Ticket ticket, Buffer&& buffer = {}) {
  if (ticket.number == 0) return complete_ticket();
  return py::cast(PyTicket{self, ticket, self->keep(ticket, std::move(buffer))});
}

/// Submits an operation with memory of the caller's, which is held until the library is done with it.
template <typename Operation>
py::object submit(const std::shared_ptr<PyWindow>& self, const char* name, py::handle memory, Access access,
                  Operation&& operation) {
  const Call call(*self, name);
  Buffer buffer(memory, access);
  auto submitted = without_gil([&] { return operation(self->window(), buffer); });
  return hand_out(self, take(std::move(submitted)), std::move(buffer));
}

template <typename Operation>
py::object submit_without_memory(const std::shared_ptr<PyWindow>& self, const char* name, Operation&& operation) {
  const Call call(*self, name);
  return hand_out(self, take(without_gil([&] { return operation(self->window()); })));
}

/// An integer of `width` bytes, with or without a sign.
std::uint64_t to_word(py::handle given, std::size_t width) {
  const auto value = py::reinterpret_steal<py::object>(PyNumber_Index(given.ptr()));
  if (!value) throw py::error_already_set();
  int overflow = 0;
  const long long with_sign = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow == 0) {
    if (width == 4 && (with_sign < INT32_MIN || with_sign > static_cast<long long>(UINT32_MAX))) overflow = 1;
    if (overflow == 0) return static_cast<std::uint64_t>(with_sign);
  } else if (overflow > 0 && width == 8) {
    const unsigned long long word = PyLong_AsUnsignedLongLong(value.ptr());
    if (PyErr_Occurred() == nullptr) return word;
    PyErr_Clear();
  }
  PyErr_Format(PyExc_OverflowError, "%R does not fit a word of %zu bytes", value.ptr(), width);
  throw py::error_already_set();
}

void check_width(std::size_t width) {
  if (width != 4 && width != 8) throw py::value_error("an atomic's word has 4 or 8 bytes");
}

py::object put_value(const std::shared_ptr<PyWindow>& self, int rank, py::ssize_t offset, py::handle value,
                     std::size_t bytes) {
  std::uint64_t word = 0;
  if (bytes == 0 || bytes > sizeof(word)) throw py::value_error("a value has 1 to 8 bytes");
  if (PyFloat_Check(value.ptr())) {
    const auto number = value.cast<double>();
    const auto half = static_cast<float>(number);
    if (bytes != 4 && bytes != 8) throw py::value_error("a float has 4 or 8 bytes");
    std::memcpy(&word, bytes == 8 ? static_cast<const void*>(&number) : &half, bytes);
  } else {
    word = to_word(value, 8);
    const std::size_t bits = 8 * bytes;
    if (bits < 64 && word >> bits != 0 && ~(static_cast<std::int64_t>(word) >> (bits - 1)) != 0) {
      PyErr_Format(PyExc_OverflowError, "%R does not fit %zu bytes", value.ptr(), bytes);
      throw py::error_already_set();
    }
  }
  return submit_without_memory(self, "put_value",
                               [&](Window& window) { return window.put_value(rank, to_offset(offset), &word, bytes); });
}

/// The word's type: `dtype` (a name, or what NumPy takes for one), or an integer of `width`.
WordType word_type(py::handle dtype, std::size_t width, bool is_signed) {
  if (dtype.is_none()) {
    check_width(width);
    if (width == 4) return is_signed ? WordType::int32 : WordType::uint32;
    return is_signed ? WordType::int64 : WordType::uint64;
  }
  const std::string name = py::isinstance<py::str>(dtype)
                               ? py::str(dtype)
                               : py::str(py::module_::import("numpy").attr("dtype")(dtype).attr("name"));
  static constexpr const char* kNames[] = {"int32", "uint32", "int64", "uint64", "float32", "float64"};
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<WordType>(i);
  }
  throw py::value_error("an atomic's word is an int32, uint32, int64, uint64, float32 or float64, not a '" + name +
                        "'");
}

/// A word's bits.
std::uint64_t to_bits(py::handle given, WordType type) {
  std::uint64_t word = 0;
  if (type == WordType::float32 || type == WordType::float64) {
    const double number = PyFloat_AsDouble(given.ptr());
    if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    const auto half = static_cast<float>(number);
    std::memcpy(&word, type == WordType::float64 ? static_cast<const void*>(&number) : &half,
                type == WordType::float64 ? 8 : 4);
    return word;
  }
  return to_word(given, type == WordType::int32 || type == WordType::uint32 ? 4 : 8);
}

PyFetch start_fetch(const std::shared_ptr<PyWindow>& self, int rank, py::ssize_t offset, AtomicOp op,
                    py::handle operand, py::handle compare, std::size_t width, bool is_signed, py::handle dtype) {
  const WordType type = word_type(dtype, width, is_signed);
  const Call call(*self, "fetch_atomic");
  const std::size_t at = to_offset(offset);
  auto pending = std::make_shared<Pending>();
  const std::uint64_t words[] = {to_bits(operand, type), to_bits(compare, type)};
  pending->ticket = take(without_gil(
      [&] { return self->window().atomic_word(rank, at, op, type, words[0], words[1], &pending->before); }));
  if (pending->ticket.number != 0) self->keep(pending);
  PyFetch fetch;
  fetch.window = self;
  fetch.ticket = pending->ticket;
  fetch.pending = std::move(pending);
  fetch.type = type;
  return fetch;
}

using Self = const std::shared_ptr<PyWindow>&;

}  // namespace

void bind_operations(py::class_<PyWindow, std::shared_ptr<PyWindow>>& type) {
  type.def(
          "put",
          [](Self self, int rank, py::ssize_t offset, py::handle source, Order order) {
            return submit(self, "put", source, Access::read, [&](Window& window, const Buffer& from) {
              return window.put(rank, to_offset(offset), from.data(), from.size(), order);
            });
          },
          py::arg("rank"), py::arg("offset"), py::arg("source"), py::arg("order") = Order::ordered,
          "Copies the bytes of `source` to `offset` in `rank`'s window. Does not wait; `source` is kept, and must not "
          "change, until local completion.")
      .def("put_value", &put_value, py::arg("rank"), py::arg("offset"), py::arg("value"), py::arg("bytes") = 8,
           "Puts an int or a float of `bytes` bytes, taken at the call.")
      .def(
          "get",
          [](Self self, int rank, py::ssize_t offset, py::handle destination) {
            return submit(self, "get", destination, Access::write, [&](Window& window, const Buffer& to) {
              return window.get(rank, to_offset(offset), to.data(), to.size());
            });
          },
          py::arg("rank"), py::arg("offset"), py::arg("destination"),
          "Fills `destination` from `offset` of `rank`'s window. Complete when the bytes are there.")
      .def(
          "put_signal",
          [](Self self, int rank, py::ssize_t offset, py::handle source, std::size_t signal, std::uint64_t value,
             SignalOp op) {
            return submit(self, "put_signal", source, Access::read, [&](Window& window, const Buffer& from) {
              return window.put_signal(rank, to_offset(offset), from.data(), from.size(), {signal, value, op});
            });
          },
          py::arg("rank"), py::arg("offset"), py::arg("source"), py::arg("signal") = 0, py::arg("value") = 1,
          py::arg("op") = SignalOp::add, "A put and, after it, a signal: whoever sees the signal sees the bytes.")
      .def(
          "put_counter",
          [](Self self, int rank, py::ssize_t offset, py::handle source, std::size_t counter, std::uint64_t value) {
            return submit(self, "put_counter", source, Access::read, [&](Window& window, const Buffer& from) {
              return window.put_counter(rank, to_offset(offset), from.data(), from.size(), {counter, value});
            });
          },
          py::arg("rank"), py::arg("offset"), py::arg("source"), py::arg("counter") = 0, py::arg("value") = 1,
          "A put that advances a counter of this rank's when it is done with its source.")
      .def(
          "put_signal_counter",
          [](Self self, int rank, py::ssize_t offset, py::handle source, std::size_t signal, std::size_t counter,
             std::uint64_t value, SignalOp op, std::uint64_t counter_value) {
            return submit(self, "put_signal_counter", source, Access::read, [&](Window& window, const Buffer& from) {
              return window.put_signal_counter(rank, to_offset(offset), from.data(), from.size(), {signal, value, op},
                                               {counter, counter_value});
            });
          },
          py::arg("rank"), py::arg("offset"), py::arg("source"), py::arg("signal") = 0, py::arg("counter") = 0,
          py::arg("value") = 1, py::arg("op") = SignalOp::add, py::arg("counter_value") = 1,
          "A put with a signal at its target and a counter here.")
      .def(
          "signal",
          [](Self self, int rank, std::size_t index, std::uint64_t value, SignalOp op) {
            return submit_without_memory(self, "signal", [&](Window& window) {
              return window.signal(rank, {index, value, op});
            });
          },
          py::arg("rank"), py::arg("index") = 0, py::arg("value") = 1, py::arg("op") = SignalOp::add,
          "Changes a signal of `rank`'s, after every earlier ordered operation to it.")
      .def(
          "atomic",
          [](Self self, int rank, py::ssize_t offset, AtomicOp op, py::handle operand, py::handle compare,
             std::size_t width, py::handle dtype) {
            const WordType type = word_type(dtype, width, false);
            const std::uint64_t words[] = {to_bits(operand, type), to_bits(compare, type)};
            return submit_without_memory(self, "atomic", [&](Window& window) {
              return window.atomic_word(rank, to_offset(offset), op, type, words[0], words[1], nullptr);
            });
          },
          py::arg("rank"), py::arg("offset"), py::arg("op"), py::arg("operand") = py::int_(0),
          py::arg("compare") = py::int_(0), py::arg("width") = 8, py::arg("dtype") = py::none(),
          "Changes the word (aligned) at `offset` in `rank`'s window: an unsigned integer of 4 or 8 bytes, or of "
          "`dtype` ('int32', 'float64', numpy.float32, ...).")
      .def("start_fetch_atomic", &start_fetch, py::arg("rank"), py::arg("offset"), py::arg("op"),
           py::arg("operand") = py::int_(0), py::arg("compare") = py::int_(0), py::arg("width") = 8,
           py::arg("signed") = false, py::arg("dtype") = py::none(),
           "The same, fetching: `Fetch.result` is what the word held before.")
      .def(
          "fetch_atomic",
          [](Self self, int rank, py::ssize_t offset, AtomicOp op, py::handle operand, py::handle compare,
             std::size_t width, bool is_signed, py::handle timeout, py::handle dtype) {
            return start_fetch(self, rank, offset, op, operand, compare, width, is_signed, dtype)
                .result(Timeout(timeout));
          },
          py::arg("rank"), py::arg("offset"), py::arg("op"), py::arg("operand") = py::int_(0),
          py::arg("compare") = py::int_(0), py::arg("width") = 8, py::arg("signed") = false,
          py::arg("timeout") = py::none(), py::arg("dtype") = py::none(),
          "The same, waiting: returns what the word held before.");
  bind_vectors(type);
}

}  // namespace railyard::python
