#include "plugin.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "accelerator/waiting_kernels.hpp"
#include "base/log.hpp"
#include "calls.hpp"
#include "log.hpp"

namespace railyard::nccl {

namespace {

/// Ends with the library or the process. Comms that are still open then belong to threads that may still use them, in a
/// process that exits without a word to NCCL: those are left alone.
struct Owner {
  Plugin* plugin = new Plugin;
  ~Owner() {
    if (plugin->end()) delete plugin;
  }
};

/// Which settings are not as they would be by themselves.
std::string changed_settings(const Settings& settings) {
  std::vector<std::string> changed;
  for (const Settings::Entry& entry : settings.list())
    if (entry.value != entry.by_default) changed.push_back(entry.name + "=" + entry.value);
  return changed.empty() ? "defaults" : fmt::format("{}; all others default", fmt::join(changed, " "));
}

}  // namespace

Hold::Hold(Hold&& other) noexcept : plugin_(std::exchange(other.plugin_, nullptr)), device_(other.device_) {}

Hold::~Hold() {
  if (plugin_ != nullptr) plugin_->release(*device_);
}

Hold Hold::another() const {
  const std::lock_guard lock(plugin_->mutex_);
  ++device_->comms;
  return {*plugin_, *device_};
}

Plugin& Plugin::instance() {
  static const Owner owner;
  return *owner.plugin;
}

Result<void> Plugin::init(int abi_version, nccl_logger logger, nccl_profiler profiler, const nccl_comm_config* config,
                          void** context) {
  const std::lock_guard lock(mutex_);
  if (logger != nullptr) set_logger(logger);
  if (profiler != nullptr) profiler_ = profiler;
  if (!ready_) {
    auto found = discover(fmt::format("net plugin v{}", abi_version));
    if (!found) return found;
  }
  if (context == nullptr) return {};
  auto made = std::make_unique<InitContext>();
  if (config != nullptr) made->service_class = service_class_of(config->trafficClass);
  *context = made.get();
  init_contexts_.push_back(std::move(made));
  return {};
}

Result<bool> Plugin::init_one_sided(const char* table, nccl_logger logger) {
  const std::lock_guard lock(mutex_);
  if (logger != nullptr) set_logger(logger);
  if (!ready_) {
    auto found = discover(table);
    if (!found) return std::move(found.error());
  }
  const bool wanted = settings_.nccl_gin == "on";
  if (!std::exchange(one_sided_announced_, true))
    inform(wanted ? fmt::format("{}: one-sided operations over all rails of a device", table)
                  : std::string("GIN and RMA are not offered to NCCL (RAILYARD_NCCL_GIN=on offers them)"));
  if (const std::string advice = accelerator::advice_for_waiting_kernels();
      wanted && !advice.empty() && !std::exchange(advised_, true))
    log_warn("GIN: {}", advice);
  return wanted;
}

Result<void> Plugin::discover(const std::string& table) {
  auto settings = Settings::from_environment();
  if (!settings) return std::move(settings.error());
  apply_log_settings(*settings);
  auto devices = find_devices(*settings);
  if (!devices) return std::move(devices.error());
  settings_ = std::move(*settings);
  devices_ = std::move(*devices);
  announce(table);
  ready_ = true;
  return {};
}

void Plugin::announce(const std::string& table) const {
  std::vector<std::string> devices;
  for (const auto& device : devices_) devices.push_back(device->description());
  inform(fmt::format("Railyard {}, {}. Rails: {}", RAILYARD_VERSION, table, fmt::join(devices, "; next device: ")));
  inform(fmt::format("Peers on this host are reached through {}, others over all rails of a device together",
                     settings_.shared_memory == "off" ? "the rails (RAILYARD_SHARED_MEMORY=off)" : "shared memory"));
  inform(fmt::format("Settings: {}", changed_settings(settings_)));
  const bool takes_gpu_memory =
      std::ranges::any_of(devices_, [](const auto& each) { return each->takes_gpu_memory(); });
  if (const std::string advice = accelerator::advice_for_waiting_kernels(); takes_gpu_memory && !advice.empty())
    log_warn("memory of GPUs: {}", advice);
}

void Plugin::finalize(void* context) {
  Contexts unused;  // end after the lock: that may take a while
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(init_contexts_, context, [](const auto& entry) { return entry.get(); });
  if (found == init_contexts_.end()) return;
  init_contexts_.erase(found);
  // Who called connect is gone, and will not call again.
  if (init_contexts_.empty())
    for (const auto& device : devices_) device->connecting.clear();
  unused = take_unused(false);
}

int Plugin::device_count() {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(devices_.size());
}

Device* Plugin::device(int number) {
  const std::lock_guard lock(mutex_);
  if (number < 0 || static_cast<std::size_t>(number) >= devices_.size()) return nullptr;
  return devices_[static_cast<std::size_t>(number)].get();
}

nccl_profiler Plugin::profiler() {
  const std::lock_guard lock(mutex_);
  return profiler_;
}

InitContext Plugin::init_context(const void* context) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(init_contexts_, context, [](const auto& entry) { return entry.get(); });
  return found == init_contexts_.end() ? InitContext() : **found;
}

Result<Hold> Plugin::hold(int number) {
  Device* const device = this->device(number);
  if (device == nullptr)
    return Error(Status::out_of_range, fmt::format("no device {}: there are {}", number, device_count()));
  const std::lock_guard lock(mutex_);
  if (device->context == nullptr) {
    auto context = Context::open(device->settings());
    if (!context) return std::move(context.error());
    device->context = std::move(*context);
  }
  ++device->comms;
  return Hold(*this, *device);
}

void Plugin::release(Device& device) {
  Contexts unused;
  const std::lock_guard lock(mutex_);
  --device.comms;
  unused = take_unused(false);
}

void Plugin::set_connecting(Device& device, const void* handle, bool connecting) {
  const std::lock_guard lock(mutex_);
  if (connecting)
    device.connecting.insert(handle);
  else
    device.connecting.erase(handle);
}

Plugin::Contexts::~Contexts() {
  std::vector<std::thread> others;
  try {
    for (std::size_t i = 1; i < size(); ++i)
      others.emplace_back([context = std::move((*this)[i])]() mutable { context.reset(); });
  } catch (const std::system_error&) {
    // No thread is to be had: the rest ends one after the other.
  }
  clear();
  for (std::thread& each : others) each.join();
}

Plugin::Contexts Plugin::take_unused(bool ending) {
  Contexts unused;
  for (const auto& device : devices_) {
    if (device->context == nullptr || device->comms != 0) continue;
    // Without contexts there is no word that ends a connect which is never called again.
    const bool awaited = !init_contexts_.empty() || !device->connecting.empty();
    if (awaited && !ending) continue;
    device->connecting.clear();
    unused.push_back(std::move(device->context));
  }
  return unused;
}

bool Plugin::end() {
  Contexts unused;
  const std::lock_guard lock(mutex_);
  unused = take_unused(true);
  return std::ranges::all_of(devices_, [](const auto& device) { return device->context == nullptr; });
}

}  // namespace railyard::nccl
