/// The environment in which NVSHMEM loads Railyard's transport.
#pragma once

#include <string>
#include <vector>

#include "railyard/result.hpp"

namespace railyard::tool {

/// NVSHMEM's host library, as its file and its folder tell.
struct NvshmemHost {
  std::string path;
  std::string version;               ///< "3.4.5"; empty: unknown
  int major = 0;                     ///< of its transport ABI; 0: unknown
  std::string rpath;                 ///< what is searched before LD_LIBRARY_PATH; empty: nothing
  bool has_stock_transport = false;  ///< a libfabric transport of its own lies where that leads
};

/// Where the library may be, best first: NVSHMEM_HOME, LD_LIBRARY_PATH, Python environments, the system.
std::vector<std::string> nvshmem_places();
/// The library at `path`, a file or its folder; empty: at the first of `places` that has it.
Result<NvshmemHost> find_nvshmem(const std::string& path, const std::vector<std::string>& places);
/// Our transport of that major in `folder`; empty: beside the command that runs.
Result<std::string> find_transport(int major, const std::string& folder);

struct Variable {
  std::string name;
  std::string value;
  bool is_list = false;  ///< goes in front of what is there
};
/// What to set, so that this host library loads this transport.
std::vector<Variable> nvshmem_variables(const NvshmemHost& host, const std::string& transport);

}  // namespace railyard::tool
