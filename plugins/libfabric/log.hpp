/// What the program did wrong and what would help, through libfabric's own log: FI_LOG_LEVEL=warn shows it.
#pragma once

#include <rdma/providers/fi_prov.h>

#include <string>

namespace railyard::provider {

extern fi_provider provider;

/// Answers `code` and says why. Never on a path that succeeds.
int refuse(int code, const std::string& why, const char* where = __builtin_FUNCTION(), int line = __builtin_LINE());
/// FI_LOG_LEVEL=info: why this provider does not answer to some hints.
void tell(const std::string& what, const char* where = __builtin_FUNCTION(), int line = __builtin_LINE());

}  // namespace railyard::provider
