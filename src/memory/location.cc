#include "memory/location.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "memory/mapped.hpp"

namespace railyard::memory {

std::optional<accelerator::Allocation> find_device(const void* address) {
  accelerator::Driver* const driver = accelerator::loaded_driver();
  return driver != nullptr ? driver->find(address) : std::nullopt;
}

std::string location_name(int device) { return device < 0 ? "host memory" : fmt::format("GPU {}", device); }

Result<int> check_usable(std::span<const std::byte> memory) {
  const auto device = memory.empty() ? std::nullopt : find_device(memory.data());
  if (!device) {
    if (auto mapped = check_mapped(memory); !mapped) return std::move(mapped.error());
    return -1;
  }
  const std::size_t room = device->base + device->bytes - reinterpret_cast<std::uintptr_t>(memory.data());
  if (memory.size() <= room) return device->device;
  return Error(Status::invalid,
               fmt::format("{} bytes at {} of GPU {} are more than its allocation holds from there ({}): check the "
                           "pointer and the size",
                           memory.size(), static_cast<const void*>(memory.data()), device->device, room));
}

}  // namespace railyard::memory
