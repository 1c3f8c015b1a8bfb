#include "world.hpp"

#include <pybind11/stl.h>

#include <cstring>
#include <optional>

#include "buffers.hpp"
#include "channel.hpp"
#include "errors.hpp"
#include "waits.hpp"
#include "window.hpp"

namespace railyard::python {
namespace {

double seconds_of(Deadline deadline) {
  constexpr std::int64_t kDefault = -1;
  const std::int64_t nanoseconds = deadline.nanoseconds(kDefault);
  return nanoseconds == kDefault || nanoseconds == INT64_MAX ? 1e9 : static_cast<double>(nanoseconds) * 1e-9;
}

/// Runs Python code for the library, which knows no exceptions: they are reported and become an error.
template <typename T, typename Code>
Result<T> for_library(const char* call, Code&& code) {
  const py::gil_scoped_acquire acquire;
  try {
    return code();
  } catch (py::error_already_set& error) {
    const std::string what = std::string("bootstrap.") + call + ": " + error.what();
    return Error(Status::io, what, {.operation = call});
  } catch (const std::exception& error) {
    return Error(Status::io, std::string("bootstrap.") + call + ": " + error.what(), {.operation = call});
  }
}

}  // namespace

PyBootstrap::PyBootstrap(py::object object)
    : object_(std::move(object)), rank_(object_.attr("rank").cast<int>()), size_(object_.attr("size").cast<int>()) {}

PyBootstrap::~PyBootstrap() {
  const py::gil_scoped_acquire acquire;
  object_ = py::object();
}

Result<std::vector<std::vector<std::byte>>> PyBootstrap::allgather(std::span<const std::byte> mine, Deadline deadline) {
  using All = std::vector<std::vector<std::byte>>;
  return for_library<All>("allgather", [&]() -> Result<All> {
    const py::object answer = object_.attr("allgather")(
        py::bytes(reinterpret_cast<const char*>(mine.data()), mine.size()), seconds_of(deadline));
    All all;
    for (const py::handle one : answer) {
      const auto part = static_cast<std::string>(py::reinterpret_borrow<py::bytes>(one));
      const auto* const begin = reinterpret_cast<const std::byte*>(part.data());
      all.emplace_back(begin, begin + part.size());
    }
    if (all.size() == static_cast<std::size_t>(size_)) return all;
    return Error(Status::invalid, "bootstrap.allgather: " + std::to_string(all.size()) + " contributions of " +
                                      std::to_string(size_) + " ranks");
  });
}

Result<void> PyBootstrap::barrier(Deadline deadline) {
  return for_library<void>("barrier", [&]() -> Result<void> {
    object_.attr("barrier")(seconds_of(deadline));
    return {};
  });
}

Settings settings_from(py::handle given) {
  if (py::isinstance<Settings>(given)) return given.cast<Settings>();
  Settings settings = take(Settings::from_environment());
  if (given.is_none()) return settings;
  for (const auto& [name, value] : py::dict(py::reinterpret_borrow<py::object>(given))) {
    take(settings.set(std::string(py::str(name)), std::string(py::str(value))));
  }
  return settings;
}

std::shared_ptr<PyWorld> PyWorld::open(py::handle given, py::handle bootstrap, const std::shared_ptr<PyContext>& on) {
  if (on != nullptr && !given.is_none()) {
    throw py::value_error("World: a world on a context has the context's settings: give one of the two");
  }
  std::optional<Call> in_use;  // of the context
  if (on != nullptr) in_use.emplace(*on, "World");
  const Settings settings = on != nullptr ? on->context().settings() : settings_from(given);
  std::shared_ptr<PyWorld> made(new PyWorld);
  WorldOptions options{.settings = &settings};
  if (on != nullptr) options = {.context = &on->context()};
  if (!bootstrap.is_none()) {
    made->bootstrap_ = std::make_unique<PyBootstrap>(py::reinterpret_borrow<py::object>(bootstrap));
    options.bootstrap = made->bootstrap_.get();
  }
  auto world = without_gil([&] { return World::open(options); });
  made->world_ = std::make_unique<World>(take(std::move(world)));
  made->timeout_ms_ = settings.timeout_ms;
  return made;
}

std::shared_ptr<PyWorld> PyWorld::split(int color, int key) {
  const Call call(*this, "split");
  auto part = take(without_gil([&] { return world_->split(color, key); }));
  if (!part) return nullptr;
  std::shared_ptr<PyWorld> made(new PyWorld);
  made->world_ = std::make_unique<World>(std::move(*part));
  made->timeout_ms_ = timeout_ms_;
  return made;
}

PyWorld::~PyWorld() { end(*this, world_); }

void PyWorld::add(const std::shared_ptr<PyWindow>& window) {
  std::erase_if(windows_, [](const auto& one) { return one.expired(); });
  windows_.push_back(window);
}

bool PyWorld::windows_in_use() {
  for (const auto& one : windows_) {
    if (const auto window = one.lock(); window != nullptr && window->in_use()) return true;
  }
  return false;
}

void PyWorld::close() {
  if (!inherited() && !closed() && windows_in_use()) raise_busy("World.close: another thread is in a call of a window");
  if (!begin_close()) return;
  for (const auto& one : windows_) {
    if (const auto window = one.lock()) window->abandon();
  }
  windows_.clear();
  end(*this, world_);
  end_close(true);
}

void PyWorld::close_if_idle() noexcept {
  if (in_use() || windows_in_use()) return;
  try {
    close();
  } catch (const py::error_already_set&) {
    // Being closed by another thread: nothing is left to do.
  }
}

py::dict to_dict(const WorldStatistics& from) {
  py::dict all;
#define RAILYARD_FIELD(name) all[#name] = from.name
  RAILYARD_FIELD(operations_completed);
  RAILYARD_FIELD(acknowledgements_sent);
  RAILYARD_FIELD(held_out_of_order);
  RAILYARD_FIELD(dropped_stale);
  RAILYARD_FIELD(dropped_malformed);
  RAILYARD_FIELD(backpressure);
  RAILYARD_FIELD(links_suspected);
  RAILYARD_FIELD(links_lost);
  RAILYARD_FIELD(links_rejoined);
  RAILYARD_FIELD(fences);
  RAILYARD_FIELD(segments_replayed);
  RAILYARD_FIELD(peers_lost);
  RAILYARD_FIELD(peers_stalled);
  RAILYARD_FIELD(direct_puts);
  RAILYARD_FIELD(direct_gets);
  RAILYARD_FIELD(direct_atomics);
  RAILYARD_FIELD(direct_bytes_put);
  RAILYARD_FIELD(direct_bytes_got);
  RAILYARD_FIELD(direct_wakes);
#undef RAILYARD_FIELD
  py::list rails;
  for (const RailStatistics& rail : from.rails) {
    py::dict one;
    one["name"] = rail.name;
    one["provider"] = rail.provider;
    one["bytes_sent"] = rail.bytes_sent;
    one["bytes_received"] = rail.bytes_received;
    one["frames_sent"] = rail.frames_sent;
    one["writes_sent"] = rail.writes_sent;
    one["reads_sent"] = rail.reads_sent;
    one["rate"] = rail.rate;
    one["up"] = rail.up;
    one["links"] = rail.links;
    one["links_down"] = rail.links_down;
    one["deadline"] = rail.deadline;
    one["links_suspected"] = rail.links_suspected;
    one["links_lost"] = rail.links_lost;
    one["segments_replayed"] = rail.segments_replayed;
    rails.append(std::move(one));
  }
  all["rails"] = std::move(rails);
  return all;
}

namespace {

py::list to_list(const Settings& settings) {
  py::list all;
  for (const Settings::Entry& entry : settings.list()) {
    py::dict one;
    one["name"] = entry.name;
    one["value"] = entry.value;
    one["default"] = entry.by_default;
    one["meaning"] = entry.meaning;
    one["source"] = entry.source;
    all.append(std::move(one));
  }
  return all;
}

void bind_settings(py::module_& module) {
  py::class_<Settings>(module, "Settings", "The RAILYARD_* settings, by the names of their variables.")
      .def(py::init([](py::handle values) { return settings_from(values); }), py::arg("values") = py::none(),
           "The environment's settings, with `values` (a mapping of variables) on top.")
      .def(
          "set",
          [](Settings& self, const std::string& name, py::handle value) {
            take(self.set(name, std::string(py::str(value))));
          },
          py::arg("name"), py::arg("value"), "Sets one by its variable's name, as the environment would.")
      .def("list", &to_list, "Every setting: a dict with name, value, default, meaning and source.");
}

}  // namespace

void bind_world(py::module_& module) {
  bind_settings(module);
  py::class_<PyWorld, std::shared_ptr<PyWorld>>(module, "World",
                                                "The ranks of one job, the rails of this process and the engine that "
                                                "moves data over them. Opening one is collective.")
      .def(py::init(&PyWorld::open), py::arg("settings") = py::none(), py::arg("bootstrap") = py::none(), py::kw_only(),
           py::arg("context") = py::none(),
           "Opens a world. `settings`: None (the environment), Settings, or a mapping of RAILYARD_* variables. "
           "`bootstrap`: None (launcher, TCP rendezvous or PMIx of the environment; one rank where there is none), or "
           "an object with rank, size, allgather(bytes, seconds) -> list of bytes, and barrier(seconds). "
           "`context`: whose rails, engine and settings the world has, with any number of others.")
      .def_property_readonly(
          "rank",
          [](PyWorld& self) {
            const Call call(self, "rank");
            return self.world().rank();
          },
          "This process's number in the world.")
      .def_property_readonly(
          "size",
          [](PyWorld& self) {
            const Call call(self, "size");
            return self.world().size();
          },
          "How many ranks there are.")
      .def_property_readonly(
          "rail_count",
          [](PyWorld& self) {
            const Call call(self, "rail_count");
            return self.world().rail_count();
          },
          "How many rails this process has.")
      .def_property_readonly(
          "settings",
          [](PyWorld& self) {
            const Call call(self, "settings");
            return self.world().settings();
          },
          "A copy of the settings that the world was opened with.")
      .def(
          "progress",
          [](PyWorld& self) {
            const Call call(self, "progress");
            without_gil([&] { self.world().progress(); });
          },
          "Polls every rail once, applies what arrived, sends what waits. Waits do so by themselves, and while a rank "
          "makes no call a thread of the library does.")
      .def(
          "descriptor",
          [](PyWorld& self) {
            const Call call(self, "descriptor");
            return take(without_gil([&] { return self.world().descriptor(); }));
          },
          "A descriptor for event loops that is readable when `progress` may have something to do. It is the world's: "
          "do not close it. See `arm`.")
      .def(
          "arm",
          [](PyWorld& self) {
            const Call call(self, "arm");
            return without_gil([&] { return self.world().arm(); });
          },
          "Before each sleep on the descriptor. True: whatever happens from now on makes it readable. False: call "
          "`progress` first.")
      .def(
          "remember",
          [](PyWorld& self, py::handle memory) {
            const Call call(self, "remember");
            const Buffer buffer(memory, Access::read);
            take(without_gil([&] { return self.world().remember(buffer.bytes()); }));
          },
          py::arg("memory"),
          "Registers memory on every rail ahead of time, so that its first use does not pay for it. Call `forget` "
          "before the memory is freed.")
      .def(
          "forget",
          [](PyWorld& self, py::handle memory) {
            const Call call(self, "forget");
            const Buffer buffer(memory, Access::read);
            without_gil([&] { self.world().forget(buffer.bytes()); });
          },
          py::arg("memory"), "Drops cached registrations that overlap the memory; none of its operations is under way.")
      .def(
          "barrier",
          [](PyWorld& self, py::handle timeout) {
            const Timeout limit(timeout);
            const Call call(self, "barrier");
            take(without_gil([&] { return self.world().barrier(limit.deadline()); }));
          },
          py::arg("timeout") = py::none(),
          "Returns once every rank has entered. Through the bootstrap: for set-up; in loops use Window.barrier.")
      .def("split", &PyWorld::split, py::arg("color"), py::arg("key") = 0,
           "Makes a world of those ranks that give the same `color`, in the order of `key` and, among equals, of their "
           "rank here. A negative color: None. Collective; closing a part is not.")
      .def(
          "world_rank",
          [](PyWorld& self, int rank) {
            const Call call(self, "world_rank");
            return self.world().world_rank(rank);
          },
          py::arg("rank"), "The rank that a rank of this world has in the one that was opened; -1: there is none.")
      .def(
          "translate",
          [](PyWorld& self, int rank, PyWorld& other) {
            const Call call(self, "translate");
            const Call other_call(other, "translate");
            return self.world().translate(rank, other.world());
          },
          py::arg("rank"), py::arg("other"),
          "The rank of the same process in another world; -1: it is not in that one.")
      .def(
          "statistics",
          [](PyWorld& self) {
            const Call call(self, "statistics");
            return to_dict(without_gil([&] { return self.world().statistics(); }));
          },
          "What the engine counted since the world opened, as a dict; under 'rails' a list of one dict for each rail.")
      .def("close", &PyWorld::close,
           "Ends the world. Windows that are still open are taken down first, without waiting for peers.")
      .def_property_readonly("closed", &PyWorld::closed, "Whether `close` was called.")
      .def("_close_if_idle", &PyWorld::close_if_idle)
      .def("__enter__", [](std::shared_ptr<PyWorld> self) { return self; })
      .def("__exit__", [](PyWorld& self, const py::args&) { self.close(); });
}

}  // namespace railyard::python
