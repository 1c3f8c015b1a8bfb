/// World and settings, as Python sees them.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "lifetime.hpp"
#include "railyard/bootstrap.hpp"
#include "railyard/settings.hpp"
#include "railyard/world.hpp"

namespace railyard::python {

class PyContext;
class PyWindow;

/// A Python object with rank, size, allgather and barrier, as the library wants it.
class PyBootstrap : public Bootstrap {
 public:
  explicit PyBootstrap(py::object object);
  ~PyBootstrap() override;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, Deadline deadline) override;
  Result<void> barrier(Deadline deadline) override;
  std::string describe() const override { return "python"; }

 private:
  py::object object_;
  int rank_;
  int size_;
};

/// Settings out of None (the environment), a Settings object, or a mapping of variables on top of the environment.
Settings settings_from(py::handle given);

class PyWorld : public Closable, public std::enable_shared_from_this<PyWorld> {
 public:
  static std::shared_ptr<PyWorld> open(py::handle settings, py::handle bootstrap,
                                       const std::shared_ptr<PyContext>& context);
  /// Null: none for this rank.
  std::shared_ptr<PyWorld> split(int color, int key);
  ~PyWorld();

  World& world() { return *world_; }
  std::uint32_t timeout_ms() const { return timeout_ms_; }
  void add(const std::shared_ptr<PyWindow>& window);
  /// Ends windows that are still open without waiting for peers, then the world.
  void close();
  /// At the interpreter's end: the same, unless a thread is still inside.
  void close_if_idle() noexcept;

 private:
  PyWorld() : Closable("World") {}
  bool windows_in_use();

  std::unique_ptr<PyBootstrap> bootstrap_;  // outlives the world
  std::unique_ptr<World> world_;
  std::uint32_t timeout_ms_ = 0;
  std::vector<std::weak_ptr<PyWindow>> windows_;
};

void bind_world(py::module_& module);
void bind_window(py::module_& module);
void bind_channel(py::module_& module);
/// Puts the short ways of fast.cc in front of the calls of a bound module.
void shorten_calls(py::handle window, py::handle ticket);
py::dict to_dict(const WorldStatistics& statistics);

}  // namespace railyard::python
