#include "fabric/ofi/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <string>

#include "base/shared_library.hpp"

namespace railyard::fabric::ofi {

namespace {

constexpr Library kNone = {
    [](std::uint32_t, const char*, const char*, std::uint64_t, const fi_info*, fi_info**) { return -FI_ENOSYS; },
    [](fi_info*) {},
    [](const fi_info*) -> fi_info* { return nullptr; },
    [](fi_fabric_attr*, fid_fabric**, void*) { return -FI_ENOSYS; },
    [](int) { return "libfabric is not loaded"; },
};

constinit std::mutex g_mutex;
constinit Library g_loaded;
void* g_object = nullptr;  ///< null: none is loaded; never closed, since providers keep state and threads
/// Published with release after the table it points to is filled.
constinit std::atomic<const Library*> g_library = &kNone;

/// libfabric adds fields to structures from release to release and keeps the older calls beside. These are of
/// release 1.9: later ones only append attributes of a domain that this driver neither sets nor copies.
constexpr const char* kInfoVersion = "FABRIC_1.3";
constexpr const char* kFabricVersion = "FABRIC_1.1";
constexpr const char* kFirstVersion = "FABRIC_1.0";

template <typename Call>
bool find(void* object, const char* name, const char* version, Call& call) {
  void* found = ::dlvsym(object, name, version);
  // A private build may have no versions at all.
  if (found == nullptr && ::dlvsym(object, name, kFirstVersion) == nullptr) found = ::dlsym(object, name);
  call = reinterpret_cast<Call>(found);
  return call != nullptr;
}

/// The first call that the library lacks; null: it has all of them.
const char* fill(void* object, Library& calls) {
  const char* missing = nullptr;
  const auto need = [&](const char* name, const char* version, auto& call) {
    if (!find(object, name, version, call) && missing == nullptr) missing = name;
  };
  need("fi_getinfo", kInfoVersion, calls.getinfo);
  need("fi_freeinfo", kInfoVersion, calls.freeinfo);
  need("fi_dupinfo", kInfoVersion, calls.dupinfo);
  need("fi_fabric", kFabricVersion, calls.fabric);
  need("fi_strerror", kFirstVersion, calls.strerror);
  return missing;
}

}  // namespace

Result<void> load_library(std::string_view name) {
  const std::lock_guard lock(g_mutex);
  if (g_library.load(std::memory_order_relaxed) != &kNone && g_object == nullptr) return {};  // a test's own
  if (g_object != nullptr && name.empty()) return {};
  const std::string file(name.empty() ? kLibraryName : name);
  void* const object = open_shared_library(file.c_str());
  if (object == nullptr) {
    const char* const why = ::dlerror();
    return Error(Status::not_found, fmt::format("there is no libfabric here ({}): install it (Debian: libfabric1), or "
                                                "say in RAILYARD_LIBFABRIC where it is",
                                                why == nullptr ? file.c_str() : why));
  }
  if (object == g_object) return {};
  if (g_object != nullptr)
    return Error(Status::invalid, fmt::format("RAILYARD_LIBFABRIC={}: this process uses another libfabric already: set "
                                              "it before the first rail is opened",
                                              file));
  Library calls;
  if (const char* const missing = fill(object, calls))
    return Error(Status::unsupported, fmt::format("{} has no {} that this driver can use: libfabric 1.17 or later is "
                                                  "needed",
                                                  file, missing));
  g_loaded = calls;
  g_object = object;
  g_library.store(&g_loaded, std::memory_order_release);
  return {};
}

const Library& library() { return *g_library.load(std::memory_order_acquire); }

void replace_library(const Library* other) {
  const std::lock_guard lock(g_mutex);
  const Library* const own = g_object == nullptr ? &kNone : &g_loaded;
  g_library.store(other == nullptr ? own : other, std::memory_order_release);
}

}  // namespace railyard::fabric::ofi
