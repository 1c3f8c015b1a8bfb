#include "base/shared_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstddef>
#include <mutex>

namespace railyard {

namespace {

struct AddressRange {
  std::uintptr_t first = 0;
  std::uintptr_t last = 0;
};

/// The libraries that were loaded under a guard. Needs no destructor: nothing may be left when a plugin is unloaded.
struct GuardedLibraries {
  static constexpr std::size_t kMost = 256;
  std::array<AddressRange, kMost> ranges;
  std::size_t count = 0;
};
constinit std::mutex g_guarded_mutex;
constinit GuardedLibraries g_guarded;

AddressRange range_of(const dl_phdr_info& object) {
  AddressRange range{UINTPTR_MAX, 0};
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& segment = object.dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    const std::uintptr_t first = object.dlpi_addr + segment.p_vaddr;
    range.first = std::min<std::uintptr_t>(range.first, first);
    range.last = std::max<std::uintptr_t>(range.last, first + segment.p_memsz);
  }
  return range;
}

int note_base(dl_phdr_info* object, std::size_t /*bytes*/, void* objects) {
  static_cast<std::vector<std::uintptr_t>*>(objects)->push_back(object->dlpi_addr);
  return 0;
}

int note_range(dl_phdr_info* object, std::size_t /*bytes*/, void* before) {
  const auto& known = *static_cast<const std::vector<std::uintptr_t>*>(before);
  if (std::ranges::find(known, object->dlpi_addr) != known.end()) return 0;
  if (g_guarded.count < GuardedLibraries::kMost) g_guarded.ranges[g_guarded.count++] = range_of(*object);
  return 0;
}

bool is_guarded(const struct sigaction& action) {
  const auto handler = reinterpret_cast<std::uintptr_t>(action.sa_handler);
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return true;
  if (g_guarded.count == GuardedLibraries::kMost) return true;  // it may be one that found no room
  return std::any_of(g_guarded.ranges.begin(), g_guarded.ranges.begin() + g_guarded.count,
                     [&](const AddressRange& range) { return handler >= range.first && handler < range.last; });
}

bool is_same(const struct sigaction& a, const struct sigaction& b) {
  return a.sa_handler == b.sa_handler && a.sa_flags == b.sa_flags;
}

}  // namespace

KeepSignals::KeepSignals() {
  for (int number = 1; number < NSIG; ++number) {
    const auto index = static_cast<std::size_t>(number);
    known_[index] = ::sigaction(number, nullptr, &before_[index]) == 0;
  }
  ::dl_iterate_phdr(&note_base, &objects_);
}

KeepSignals::~KeepSignals() {
  const std::lock_guard lock(g_guarded_mutex);
  ::dl_iterate_phdr(&note_range, &objects_);
  for (int number = 1; number < NSIG; ++number) {
    const auto index = static_cast<std::size_t>(number);
    struct sigaction now {};
    if (!known_[index] || ::sigaction(number, nullptr, &now) != 0) continue;
    if (!is_same(now, before_[index]) && is_guarded(now)) ::sigaction(number, &before_[index], nullptr);
  }
}

void* open_shared_library(const char* name) {
  const KeepSignals keep;
  return ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

LibraryCalls::LibraryCalls(const char* name) : object_(open_shared_library(name)) {
  if (object_ != nullptr) return;
  why_ = ::dlerror();
  if (why_ == nullptr) why_ = "unknown";
}

void* LibraryCalls::address_of(const char* name) const { return ::dlsym(object_, name); }

}  // namespace railyard
