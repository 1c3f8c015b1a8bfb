// Settings from any text: by name, as the environment brings them, and through the parsers of their values that are
// parsed again where they are used. A value is taken or refused with an error that names it; what was taken can be
// listed and set again.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/log.hpp"
#include "base/ports.hpp"
#include "fabric/interface_filter.hpp"
#include "railyard/settings.hpp"
#include "telemetry/files.hpp"

namespace railyard {
namespace {

const std::vector<Settings::Entry>& known() {
  static const std::vector<Settings::Entry> all = Settings().list();
  return all;
}

void check(bool holds, const char* what, const std::string& name, const std::string& value) {
  if (holds) return;
  std::fprintf(stderr, "%s: %s='%s'\n", what, name.c_str(), value.c_str());
  std::abort();
}

}  // namespace
}  // namespace railyard

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*words*/) {
  railyard::set_log_sink([](railyard::LogLevel, std::string_view) {});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace railyard;
  FuzzedDataProvider data(bytes, size);
  Settings settings;
  while (data.remaining_bytes() > 0) {
    const bool known_name = data.ConsumeBool();
    const std::string name = known_name ? known()[data.ConsumeIntegralInRange<std::size_t>(0, known().size() - 1)].name
                                        : data.ConsumeRandomLengthString(40);
    const std::string value = data.ConsumeRandomLengthString(200);
    const auto set = settings.set(name, value);
    if (!set) {
      check(set.error().message().find(name) != std::string::npos, "an error that does not name the setting", name,
            value);
      continue;
    }
    // What was taken is shown, and taken again as it is shown.
    for (const Settings::Entry& entry : settings.list()) {
      if (entry.name != name) continue;
      Settings again;
      check(static_cast<bool>(again.set(name, entry.value)), "what is listed is refused", name, entry.value);
    }
    (void)PortRange::parse(settings.ports);
    (void)fabric::InterfaceFilter(settings.interfaces).takes(value);
    (void)telemetry::directory_of(settings.telemetry);
    // As a process would find it. Neither may hold a zero byte there.
    if (name.find('\0') != std::string::npos || value.find('\0') != std::string::npos ||
        name.find('=') != std::string::npos)
      continue;
    if (!name.starts_with("RAILYARD_") || ::setenv(name.c_str(), value.c_str(), 1) != 0) continue;
    // What must fit together is checked there, and not when one is set by hand.
    const auto read = Settings::from_environment();
    check(read || read.error().message().find(name) != std::string::npos, "an error that does not name the setting",
          name, value);
    ::unsetenv(name.c_str());
  }
  return 0;
}
