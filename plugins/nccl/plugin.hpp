/// Plugin: what the process holds between calls: settings, devices, communicators, and when contexts open and close.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi.h"
#include "device.hpp"
#include "railyard/channel.hpp"
#include "railyard/context.hpp"
#include "railyard/result.hpp"
#include "railyard/settings.hpp"

namespace railyard::nccl {

/// One communicator, from init to finalize.
struct InitContext {
  std::uint32_t service_class = 0;
};

class Plugin;

/// Keeps the context of a device open.
class Hold {
 public:
  Hold(Plugin& plugin, Device& device) : plugin_(&plugin), device_(&device) {}
  Hold(Hold&& other) noexcept;
  Hold& operator=(Hold&&) = delete;
  ~Hold();
  /// A second one on the same context.
  Hold another() const;

  Context& context() const { return *device_->context; }
  Device& device() const { return *device_; }

 private:
  Plugin* plugin_;
  Device* device_;
};

/// A context opens with the first comm of its device. It closes when no comm uses it and no communicator is left: a job
/// that makes communicators one after the other keeps its links. Versions before 11 have no finalize, so that there
/// only comms count: after the last is closed nothing of the plugin runs, and the library may be unloaded.
///
/// One lock for all of this; no message takes it.
class Plugin {
 public:
  static Plugin& instance();

  /// Reads settings and looks for devices, the first time; says in three lines what it found. Null context: a version
  /// without contexts.
  Result<void> init(int abi_version, nccl_logger logger, nccl_profiler profiler, const nccl_comm_config* config,
                    void** context);
  /// The same for a GIN or RMA table, which `table` names. Whether the user wants it.
  Result<bool> init_one_sided(const char* table, nccl_logger logger);
  /// Takes what is no context (any more), too: NCCL finalizes also what failed to init.
  void finalize(void* context);

  int device_count();
  /// Null: no such device.
  Device* device(int number);
  nccl_profiler profiler();
  /// What a context that NCCL hands over stands for. One that is none any more (a communicator split from one that has
  /// ended) is as good as one without a traffic class.
  InitContext init_context(const void* context);

  Result<Hold> hold(int device);
  /// Whether the connect with this handle will be called again.
  void set_connecting(Device& device, const void* handle, bool connecting);

  /// For the end of the library: closes what no comm uses. Whether that was all.
  bool end();

 private:
  friend class Hold;
  /// They end side by side: each may wait for the peers of its channels.
  struct Contexts : std::vector<std::unique_ptr<Context>> {
    Contexts() = default;
    Contexts(Contexts&&) = default;
    Contexts& operator=(Contexts&&) = default;
    ~Contexts();
  };

  Result<void> discover(const std::string& table);
  void announce(const std::string& table) const;
  void release(Device& device);
  /// Takes out the contexts that are not needed, for their end outside the lock.
  Contexts take_unused(bool ending);

  std::mutex mutex_;
  bool ready_ = false;
  bool one_sided_announced_ = false;
  bool advised_ = false;
  Settings settings_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<InitContext>> init_contexts_;
  nccl_profiler profiler_ = nullptr;
};

}  // namespace railyard::nccl
