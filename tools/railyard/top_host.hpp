/// All Railyard processes of this host, as their telemetry files show them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "telemetry/files.hpp"
#include "telemetry/reader.hpp"

namespace railyard::tool {

/// Which processes are looked at.
struct HostOptions {
  std::string directory;  ///< empty: the default one and the one of RAILYARD_TELEMETRY
  std::string file;       ///< this one alone
  int pid = 0;            ///< 0: all
};

struct SeenProcess {
  telemetry::Found found;
  telemetry::Snapshot now;
};

struct SeenHost {
  std::int64_t at = 0;  ///< wall clock, nanoseconds since 1970
  std::vector<SeenProcess> processes;
  std::vector<std::string> unreadable;  ///< why a file is left out
};

/// The directories that are looked at.
std::vector<std::string> directories(const HostOptions& options);
/// An error where a file was named and cannot be read; else what cannot be read is left out.
Result<SeenHost> look_at_host(const HostOptions& options);

}  // namespace railyard::tool
