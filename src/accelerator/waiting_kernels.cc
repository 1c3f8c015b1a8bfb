#include "accelerator/waiting_kernels.hpp"

#include <cstdlib>
#include <string_view>

namespace railyard::accelerator {
namespace {

constexpr long kEnoughQueues = 32;  // the most there are

bool loads_at_start() {
  const char* const loading = std::getenv("CUDA_MODULE_LOADING");
  return loading != nullptr && std::string_view(loading) == "EAGER";
}

bool has_enough_queues() {
  const char* const queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return queues != nullptr && std::strtol(queues, nullptr, 10) >= kEnoughQueues;
}

}  // namespace

std::string advice_for_waiting_kernels() {
  std::string wanted;
  if (!loads_at_start()) wanted += " CUDA_MODULE_LOADING=EAGER";
  if (!has_enough_queues()) wanted += " CUDA_DEVICE_MAX_CONNECTIONS=32";
  if (wanted.empty()) return wanted;
  return "kernels that wait for puts into the memory of their GPU may wait for ever: set" + wanted +
         " before the program starts";
}

}  // namespace railyard::accelerator
