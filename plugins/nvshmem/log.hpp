/// What goes wrong is written down here, with names, before the host sees a number: it ends the process on any.
#pragma once

#include "abi.hpp"
#include "railyard/result.hpp"

namespace railyard::nvshmem {

/// Logs the error and answers the host's code for it.
abi::Code fail(const char* call, const Error& error) noexcept;

/// Runs one call of the host's: nothing is thrown out of it.
template <typename Body>
int guarded(const char* call, Body&& body) noexcept {
  try {
    const Result<void> done = body();
    return done ? abi::kSuccess : fail(call, done.error());
  } catch (...) {  // only memory running out throws
    return fail(call, Error(Status::no_memory));
  }
}

}  // namespace railyard::nvshmem
