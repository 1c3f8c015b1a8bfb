#include "log.hpp"

#include "base/log.hpp"

namespace railyard::nvshmem {
namespace {

abi::Code code_of(Status status) {
  switch (status) {
    case Status::ok:
      return abi::kSuccess;
    case Status::invalid:
    case Status::out_of_range:
      return abi::kInvalidValue;
    case Status::no_memory:
      return abi::kOutOfMemory;
    case Status::unsupported:
    case Status::version_mismatch:
      return abi::kNotSupported;
    default:
      return abi::kInternal;
  }
}

}  // namespace

abi::Code fail(const char* call, const Error& error) noexcept {
  try {
    log_error("NVSHMEM transport: {}: {}", call, error.text());
  } catch (...) {  // no memory for the line: the code alone
  }
  return code_of(error.status());
}

}  // namespace railyard::nvshmem
