#include "topology/hwloc_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <type_traits>

#include "base/shared_library.hpp"

namespace railyard::topology {

namespace {

constexpr const char* kHwlocName = "libhwloc.so.15";  // every hwloc 2; its structures are those of our header

/// Needs no destructor: nothing may be left when a plugin is unloaded.
struct LoadedHwloc {
  HwlocLibrary calls;
  std::array<char, 400> error{};  ///< empty: there is none
};
static_assert(std::is_trivially_destructible_v<LoadedHwloc>);

LoadedHwloc load_hwloc() {
  LoadedHwloc loaded;
  const auto fail = [&](const std::string& why) { why.copy(loaded.error.data(), loaded.error.size() - 1); };
  void* const object = open_shared_library(kHwlocName);
  if (object == nullptr) {
    const char* const why = ::dlerror();
    fail(fmt::format("there is no {} here ({}): install hwloc (Debian: libhwloc15)", kHwlocName,
                     why == nullptr ? "unknown" : why));
    return loaded;
  }
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto& call) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(object, name));
    if (call == nullptr && missing == nullptr) missing = name;
  };
  HwlocLibrary& calls = loaded.calls;
  need("hwloc_topology_init", calls.init);
  need("hwloc_topology_destroy", calls.destroy);
  need("hwloc_topology_load", calls.load);
  need("hwloc_topology_set_flags", calls.set_flags);
  need("hwloc_topology_set_io_types_filter", calls.set_io_types_filter);
  need("hwloc_topology_set_components", calls.set_components);
  need("hwloc_topology_set_xml", calls.set_xml);
  need("hwloc_get_nbobjs_by_depth", calls.count);
  need("hwloc_get_obj_by_depth", calls.object);
  need("hwloc_bitmap_weight", calls.weight);
  need("hwloc_bitmap_first", calls.first);
  if (missing != nullptr) fail(fmt::format("{} here has no {}: it is too old", kHwlocName, missing));
  return loaded;
}

}  // namespace

Result<const HwlocLibrary*> hwloc_library() {
  static const LoadedHwloc loaded = load_hwloc();  // never closed, since its plugins keep state
  if (loaded.error[0] != 0) return Error(Status::not_found, loaded.error.data());
  return &loaded.calls;
}

}  // namespace railyard::topology
