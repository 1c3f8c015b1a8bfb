/// NCCL's log, and how a failure of ours becomes an answer of the ABI.
#pragma once

#include <string_view>

#include "abi.h"
#include "railyard/result.hpp"

namespace railyard::nccl {

/// From now on everything the library has to say goes to `logger`; null: to stderr.
void set_logger(nccl_logger logger);

/// One line that NCCL_DEBUG=INFO shows.
void inform(std::string_view line);

/// One WARN line with the error's own words, and the code that NCCL knows for it.
nccl_result fail(const char* call, const Error& error) noexcept;
/// The code alone.
nccl_result code_of(const Error& error) noexcept;
/// The same for a call that NCCL should not have made.
nccl_result misuse(const char* call, const char* what) noexcept;

/// Runs the body of a call. What it throws (no memory is all there can be) becomes its answer: NCCL knows no
/// exceptions.
template <typename Body>
nccl_result guarded(const char* call, Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return fail(call, Error(Status::no_memory));
  }
}

}  // namespace railyard::nccl
