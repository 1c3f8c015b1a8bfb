#include "errors.hpp"

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace railyard::python {
namespace {

[[noreturn]] void raise_kind(const char* status, const std::string& message, const Error::Where& where) {
  const py::object make = py::module_::import("railyard._errors").attr("_make");
  const auto known = [](int value) { return value < 0 ? py::object(py::none()) : py::object(py::int_(value)); };
  const py::object exception =
      make(status, message, known(where.peer), known(where.rail), where.operation, where.sequence);
  PyErr_SetObject(py::type::handle_of(exception).ptr(), exception.ptr());
  throw py::error_already_set();
}

}  // namespace

void raise(const Error& error, const std::string& after) {
  std::string message = error.message().empty() ? to_string(error.status()) : error.message();
  raise_kind(to_string(error.status()), message + after, error.where());
}
void raise(const Error& error) { raise(error, ""); }
void raise_closed(const std::string& message) { raise_kind("closed", message, {}); }
void raise_busy(const std::string& message) { raise_kind("busy", message, {}); }

}  // namespace railyard::python
