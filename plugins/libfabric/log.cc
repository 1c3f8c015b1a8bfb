#include "log.hpp"

#include <dlfcn.h>
#include <rdma/providers/fi_log.h>

namespace railyard::provider {

namespace {

/// The log of the libfabric that loaded this library. It is looked up rather than linked: the library imports nothing,
/// so that any libfabric can load it, also one that a program keeps to itself.
struct Log {
  decltype(&fi_log) write = nullptr;
  decltype(&fi_log_enabled) enabled = nullptr;

  Log() {
    void* const loaded = ::dlopen("libfabric.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void* const place = loaded != nullptr ? loaded : RTLD_DEFAULT;
    write = reinterpret_cast<decltype(write)>(::dlsym(place, "fi_log"));
    enabled = reinterpret_cast<decltype(enabled)>(::dlsym(place, "fi_log_enabled"));
    if (loaded != nullptr) ::dlclose(loaded);
  }
};

void say(fi_log_level level, const std::string& what, const char* where, int line) {
  static const Log log;
  if (log.write == nullptr || log.enabled == nullptr || log.enabled(&provider, level, FI_LOG_CORE) == 0) return;
  log.write(&provider, level, FI_LOG_CORE, where, line, "%s\n", what.c_str());
}

}  // namespace

int refuse(int code, const std::string& why, const char* where, int line) {
  say(FI_LOG_WARN, why, where, line);
  return code;
}
void tell(const std::string& what, const char* where, int line) { say(FI_LOG_INFO, what, where, line); }

}  // namespace railyard::provider
