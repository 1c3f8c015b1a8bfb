/// hwloc, found at run time: the library and all that links it work without it. Only src/topology/machine.cc calls it.
#pragma once

#include <hwloc.h>

#include "railyard/result.hpp"

namespace railyard::topology {

/// Its calls, by the names of hwloc.h. That header's inline helpers call functions by name: they cannot be used.
struct HwlocLibrary {
  decltype(&::hwloc_topology_init) init = nullptr;
  decltype(&::hwloc_topology_destroy) destroy = nullptr;
  decltype(&::hwloc_topology_load) load = nullptr;
  decltype(&::hwloc_topology_set_flags) set_flags = nullptr;
  decltype(&::hwloc_topology_set_io_types_filter) set_io_types_filter = nullptr;
  decltype(&::hwloc_topology_set_components) set_components = nullptr;
  decltype(&::hwloc_topology_set_xml) set_xml = nullptr;
  decltype(&::hwloc_get_nbobjs_by_depth) count = nullptr;
  decltype(&::hwloc_get_obj_by_depth) object = nullptr;
  decltype(&::hwloc_bitmap_weight) weight = nullptr;
  decltype(&::hwloc_bitmap_first) first = nullptr;
};

/// An error says what to install.
Result<const HwlocLibrary*> hwloc_library();

}  // namespace railyard::topology
