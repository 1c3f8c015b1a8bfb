/// What programs with kernels need around them: they end at the first call that fails.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "railyard/device.hpp"
#include "railyard/world.hpp"

inline void check_cuda(cudaError_t error, const char* file, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, cudaGetErrorString(error));
  std::exit(1);
}
#define CUDA(call) check_cuda(call, __FILE__, __LINE__)

template <typename T>
T must(railyard::Result<T> result) {
  if (!result) std::fprintf(stderr, "%s\n", result.error().text().c_str()), std::exit(1);
  return std::move(result).value();
}
inline void must(railyard::Result<void> result) {
  if (!result) std::fprintf(stderr, "%s\n", result.error().text().c_str()), std::exit(1);
}

/// Gives the options device memory for what blocks share. It is freed with the process.
inline void give_memory(railyard::DeviceOptions& options, const railyard::Window& window) {
  void* shared = nullptr;
  const std::size_t bytes = railyard::DeviceProxy::device_bytes(window, options);
  CUDA(cudaMalloc(&shared, bytes));
  options.device_memory = {static_cast<std::byte*>(shared), bytes};
}
