/// Whole pages of memory whose mapping a test controls.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <span>

#include "memory/mapped.hpp"

namespace railyard::memory {

class Pages {
 public:
  explicit Pages(std::size_t count) : bytes_(count * page_bytes()) {
    start_ =
        static_cast<std::byte*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~Pages() { ::munmap(start_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::span<std::byte> all() const { return {start_, bytes_}; }
  std::span<std::byte> pages(std::size_t first, std::size_t count) const {
    return all().subspan(first * page_bytes(), count * page_bytes());
  }
  void unmap(std::size_t first, std::size_t count) const {
    ::munmap(start_ + first * page_bytes(), count * page_bytes());
  }
  void take_access(std::size_t first, std::size_t count) const {
    ::mprotect(start_ + first * page_bytes(), count * page_bytes(), PROT_NONE);
  }

 private:
  std::size_t bytes_;
  std::byte* start_;
};

}  // namespace railyard::memory
