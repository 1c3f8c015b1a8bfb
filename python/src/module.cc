/// railyard._railyard: the library for Python. What is written in Python itself is in python/railyard.
#include <pybind11/pybind11.h>

#include "lifetime.hpp"
#include "railyard/railyard.h"
#include "world.hpp"

// NOLINTNEXTLINE: pybind11's macro
PYBIND11_MODULE(_railyard, module) {
  module.doc() = "The part of railyard that is written in C++.";
  module.attr("__version__") = ry_version();
  railyard::python::watch_forks();
  railyard::python::bind_world(module);
  railyard::python::bind_window(module);
  railyard::python::bind_channel(module);
  railyard::python::shorten_calls(module.attr("Window"), module.attr("Ticket"));
}
