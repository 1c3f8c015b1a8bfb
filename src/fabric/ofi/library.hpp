/// The calls of libfabric that rails use, found when ofi rails are first wanted: a machine without the library has none
/// and needs nothing installed. All other calls of libfabric go through the tables in its objects.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include <string_view>

#include "railyard/result.hpp"

namespace railyard::fabric::ofi {

inline constexpr std::string_view kLibraryName = "libfabric.so.1";

/// One pointer for each call. Before a library is loaded they find nothing.
struct Library {
  int (*getinfo)(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
                 const fi_info* hints, fi_info** info) = nullptr;
  void (*freeinfo)(fi_info* info) = nullptr;
  /// Of null: an empty one.
  fi_info* (*dupinfo)(const fi_info* info) = nullptr;
  int (*fabric)(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) = nullptr;
  const char* (*strerror)(int code) = nullptr;
};

/// Loads the library of this name, or says what to install. A process has one: another name later is an error. Without
/// a name: the one that is loaded, else the system's.
Result<void> load_library(std::string_view name = {});
/// What was loaded. It stays as long as the process.
const Library& library();
/// For tests and benchmarks that look at the calls: used from now on. Not while rails are open.
void replace_library(const Library* other);

}  // namespace railyard::fabric::ofi
