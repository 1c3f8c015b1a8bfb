/// A libfabric that is older than Railyard is written for, and has nothing else: `railyard doctor` names its version.
#include <cstdint>

extern "C" std::uint32_t fi_version();
extern "C" std::uint32_t fi_version() { return std::uint32_t{1} << 16U | 12U; }
