#include "topology/hwloc_library.hpp"

#include <fmt/format.h>

#include "base/shared_library.hpp"

namespace railyard::topology {

namespace {

constexpr const char* kHwlocName = "libhwloc.so.15";  // every hwloc 2; its structures are those of our header

LoadedCalls<HwlocLibrary> load_hwloc() {
  LoadedCalls<HwlocLibrary> loaded;
  LibraryCalls library(kHwlocName);
  if (!library) {
    loaded.fail(fmt::format("there is no {} here ({}): install hwloc (Debian: libhwloc15)", kHwlocName, library.why()));
    return loaded;
  }
  HwlocLibrary& calls = loaded.calls;
  library.need("hwloc_topology_init", calls.init);
  library.need("hwloc_topology_destroy", calls.destroy);
  library.need("hwloc_topology_load", calls.load);
  library.need("hwloc_topology_set_flags", calls.set_flags);
  library.need("hwloc_topology_set_io_types_filter", calls.set_io_types_filter);
  library.need("hwloc_topology_set_components", calls.set_components);
  library.need("hwloc_topology_set_xml", calls.set_xml);
  library.need("hwloc_get_nbobjs_by_depth", calls.count);
  library.need("hwloc_get_obj_by_depth", calls.object);
  library.need("hwloc_bitmap_weight", calls.weight);
  library.need("hwloc_bitmap_first", calls.first);
  if (library.missing() != nullptr)
    loaded.fail(fmt::format("{} here has no {}: it is too old", kHwlocName, library.missing()));
  return loaded;
}

}  // namespace

Result<const HwlocLibrary*> hwloc_library() {
  static const LoadedCalls<HwlocLibrary> loaded = load_hwloc();  // never closed, since its plugins keep state
  if (loaded.failed()) return Error(Status::not_found, loaded.error.data());
  return &loaded.calls;
}

}  // namespace railyard::topology
