/// How a command ends, and what it says then.
#include <fmt/core.h>

#include <cstdio>

#include "commands.hpp"

namespace railyard::tool {

int exit_code_for(Status status) noexcept {
  switch (status) {
    case Status::ok:
      return kExitOk;
    case Status::invalid:
    case Status::out_of_range:
      return kExitUsage;
    case Status::not_found:
    case Status::unsupported:
    case Status::refused:
    case Status::io:
    case Status::no_memory:
      return kExitMachine;
    case Status::busy:
    case Status::timeout:
    case Status::version_mismatch:
    case Status::peer_lost:
    case Status::rail_failed:
      return kExitFailed;
  }
  return kExitFailed;
}

int report_error(const char* command, const Error& error) {
  fmt::print(stderr, "railyard {}: {}\n", command, error.text());
  return exit_code_for(error.status());
}

}  // namespace railyard::tool
