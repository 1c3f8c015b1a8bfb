#include "memory/mapped.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <string>

namespace railyard::memory {

namespace {

Error not_usable(std::span<const std::byte> memory, const char* why) {
  return Error(Status::invalid, fmt::format("the {} bytes at {} are not memory this process can use ({}): check the "
                                            "pointer and the size",
                                            memory.size(), static_cast<const void*>(memory.data()), why));
}

/// Reads one byte the way a debugger would, so that a page without access is an answer and not a signal.
bool readable(const std::byte* address) {
  std::byte value{};
  const iovec to{&value, 1};
  const iovec from{const_cast<std::byte*>(address), 1};
  // Where the call is forbidden (a sandbox) nothing was learnt: that is no reason to refuse the memory.
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 || errno != EFAULT;
}

}  // namespace

std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

Result<void> check_mapped(std::span<const std::byte> memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  if (memory.empty()) return not_usable(memory, "no bytes");
  if (address == 0) return not_usable(memory, "null");
  if (address + memory.size() < address) return not_usable(memory, "past the end of the address space");
  const std::uintptr_t mask = page_bytes() - 1;
  const std::uintptr_t first = address & ~mask;
  const std::size_t bytes = ((address + memory.size() + mask) & ~mask) - first;
  // For MS_ASYNC the kernel only walks the mappings, and says ENOMEM where there is a hole.
  if (msync(reinterpret_cast<void*>(first), bytes, MS_ASYNC) != 0) return not_usable(memory, "not mapped");
  if (!readable(memory.data()) || !readable(memory.data() + memory.size() - 1)) return not_usable(memory, "no access");
  return {};
}

}  // namespace railyard::memory
