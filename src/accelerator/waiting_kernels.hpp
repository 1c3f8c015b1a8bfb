/// Kernels that wait for something that the GPU itself must copy.
#pragma once

#include <string>

namespace railyard::accelerator {

/// What in the environment makes such kernels wait for ever, and what to set; empty: nothing does.
///
/// A kernel that is loaded on first use (the CUDA driver's default) holds up everything that is submitted to the GPU
/// until the kernels that run have ended. Streams share a few hardware queues; a copy stands behind work of another
/// stream that stands behind a kernel that waits.
std::string advice_for_waiting_kernels();

}  // namespace railyard::accelerator
