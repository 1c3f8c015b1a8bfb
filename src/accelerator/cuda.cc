#include "accelerator/cuda.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "base/entropy.hpp"
#include "base/log.hpp"
#include "base/shared_library.hpp"

namespace railyard::accelerator {

namespace cuda {

Current::Current(const Library& calls, CudaContext context) : calls_(calls) {
  calls_.exchange_capture_mode(&capture_mode_);
  CudaContext now = nullptr;
  if (context == nullptr || (calls_.context_current(&now) == kSuccess && now == context)) return;
  code_ = calls_.context_push(context);
  pushed_ = code_ == kSuccess;
}

Current::~Current() {
  CudaContext popped = nullptr;
  if (pushed_) calls_.context_pop(&popped);
  calls_.exchange_capture_mode(&capture_mode_);
}

Result<std::unique_ptr<CudaDriver>> CudaDriver::open() {
  auto library = load();
  if (!library) return std::move(library.error());
  auto driver = std::unique_ptr<CudaDriver>(new CudaDriver(*library));
  const Library& calls = driver->calls_;
  int count = 0;
  if (const Code code = calls.device_count(&count); code != kSuccess) {
    return driver->error(code, "cuDeviceGetCount", -1, "GPUs are not used");
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    auto gpu = std::make_unique<Gpu>();
    std::array<char, 32> text{};
    Code code = calls.device_get(&gpu->handle, ordinal);
    if (code == kSuccess) code = calls.device_uuid(&gpu->uuid, gpu->handle);
    if (code == kSuccess) code = calls.device_bus_id(text.data(), static_cast<int>(text.size()), gpu->handle);
    if (code != kSuccess) return driver->error(code, "cuDeviceGet", ordinal, "GPUs are not used");
    gpu->bus_id = text.data();
    std::ranges::transform(gpu->bus_id, gpu->bus_id.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    driver->gpus_.push_back(std::move(gpu));
    driver->gpus_.back()->writes_values =
        calls.stream_writes != nullptr && driver->attribute(ordinal, kAttributeStreamWrites64) != 0;
  }
  if (count == 0) return Error(Status::not_found, "the CUDA driver lists no GPU: see CUDA_VISIBLE_DEVICES");
  if (auto filled = fill_random(std::as_writable_bytes(std::span(&driver->owner_, 1))); !filled) {
    return std::move(filled.error());
  }
  return driver;
}

int CudaDriver::attribute(int device, int number) const {
  int value = 0;
  const Code code = calls_.device_attribute(&value, number, gpus_[static_cast<std::size_t>(device)]->handle);
  return code == kSuccess ? value : 0;
}

std::string CudaDriver::bus_id(int device) const {
  return is_device(device) ? gpus_[static_cast<std::size_t>(device)]->bus_id : std::string();
}

int CudaDriver::find_device(std::span<const std::byte, 16> uuid) const {
  const auto found =
      std::ranges::find_if(gpus_, [&](const auto& gpu) { return std::ranges::equal(gpu->uuid.bytes, uuid); });
  return found == gpus_.end() ? -1 : static_cast<int>(found - gpus_.begin());
}

Error CudaDriver::error(Code code, const char* call, int device, std::string_view advice) const {
  const char* name = nullptr;
  calls_.error_name(code, &name);
  const std::string where =
      is_device(device) ? fmt::format(" on GPU {} ({})", device, gpus_[static_cast<std::size_t>(device)]->bus_id)
                        : std::string();
  Status status = Status::io;
  if (code == kOutOfMemory) status = Status::no_memory;
  if (code == kNotSupported) status = Status::unsupported;
  return Error(status, fmt::format("{}{}: {}: {}", call, where, name == nullptr ? std::to_string(code) : name, advice));
}

Result<CudaContext> CudaDriver::context(int device) {
  if (!is_device(device)) {
    return Error(Status::out_of_range, fmt::format("there is no GPU {}: there are {}", device, devices()));
  }
  Gpu& gpu = *gpus_[static_cast<std::size_t>(device)];
  // Acquires what the thread that made it has stored.
  if (CudaContext made = gpu.context.load(std::memory_order_acquire); made != nullptr) return made;
  const KeepSignals keep;
  const std::lock_guard lock(mutex_);
  if (CudaContext made = gpu.context.load(std::memory_order_relaxed); made != nullptr) return made;
  const Current none(calls_, nullptr);
  CudaContext made = nullptr;
  if (const Code code = calls_.primary_retain(&made, gpu.handle); code != kSuccess) {
    return error(code, "cuDevicePrimaryCtxRetain", device, "is the GPU in exclusive mode, or its memory full?");
  }
  gpu.context.store(made, std::memory_order_release);
  return made;
}

Result<CudaContext> CudaDriver::any_context() {
  CudaContext current = nullptr;
  if (calls_.context_current(&current) == kSuccess && current != nullptr) return current;
  for (const auto& gpu : gpus_) {
    if (CudaContext made = gpu->context.load(std::memory_order_acquire); made != nullptr) return made;
  }
  for (int device = 0; device < devices(); ++device) {
    unsigned flags = 0;
    int active = 0;
    const Code code = calls_.primary_state(gpus_[static_cast<std::size_t>(device)]->handle, &flags, &active);
    if (code == kSuccess && active != 0) return context(device);
  }
  return context(0);
}

Result<std::unique_ptr<CopyQueue>> CudaDriver::open_queue(int device) {
  auto made = context(device);
  if (!made) return std::move(made.error());
  return open_copy_queue(*this, device, *made, gpus_[static_cast<std::size_t>(device)]->writes_values);
}

}  // namespace cuda

namespace {

/// Whether there is a driver. Needs no destructor: nothing may be left when a plugin is unloaded.
struct Search {
  std::mutex mutex;
  std::atomic<Driver*> found{nullptr};
  std::atomic<bool> over{false};  ///< and nothing was found, for good
};
constinit Search g_search;

bool is_off() {
  const char* const value = std::getenv("RAILYARD_GPU");
  return value != nullptr && std::strcmp(value, "off") == 0;
}

}  // namespace

Driver* driver() {
  // Acquires what the thread that found it has stored.
  if (Driver* const found = g_search.found.load(std::memory_order_acquire); found != nullptr) return found;
  if (g_search.over.load(std::memory_order_relaxed)) return nullptr;
  const std::lock_guard lock(g_search.mutex);
  if (Driver* const found = g_search.found.load(std::memory_order_relaxed); found != nullptr) return found;
  if (g_search.over.load(std::memory_order_relaxed)) return nullptr;
  if (is_off()) {
    g_search.over.store(true, std::memory_order_relaxed);
    return nullptr;
  }
  auto opened = cuda::CudaDriver::open();
  if (!opened) {
    log_debug("no GPU: {}", opened.error().message());
    // A library that was not found may be brought by the program yet; loaded_driver looks for that.
    if (opened.status() != Status::not_found || cuda::is_loaded()) {
      g_search.over.store(true, std::memory_order_relaxed);
    }
    return nullptr;
  }
  log_debug("{} GPUs, driver cuda", (*opened)->devices());
  Driver* const found = opened->release();  // for good
  g_search.found.store(found, std::memory_order_release);
  return found;
}

Driver* loaded_driver() {
  if (Driver* const found = g_search.found.load(std::memory_order_acquire); found != nullptr) return found;
  // For every message in memory that nobody registered: the environment is not asked before there is a library.
  if (g_search.over.load(std::memory_order_relaxed) || !cuda::is_started(cuda::Look::no)) return nullptr;
  return driver();
}

bool may_have_gpus() {
  if (loaded_driver() != nullptr) return true;
  if (g_search.over.load(std::memory_order_relaxed) || is_off()) return false;
  constexpr const char* kControl = "/dev/nvidiactl";  // there is a GPU of this vendor
  const bool machine_has = ::access(kControl, F_OK) == 0;
  static_cast<void>(cuda::is_started(machine_has ? cuda::Look::on_the_machine : cuda::Look::in_the_process));
  return cuda::is_loaded();
}

}  // namespace railyard::accelerator
