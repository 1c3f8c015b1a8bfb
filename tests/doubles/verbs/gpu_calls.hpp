/// How the devices' DMA reaches the memory of GPUs: through the double of the CUDA driver, if that is in the process.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace railyard::verbs_double {

class GpuCalls {
 public:
  GpuCalls() : driver_(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) {
    find("cuda_double_nic_attach", attach);
    find("cuda_double_nic_detach", detach);
    find("cuda_double_nic_drain", drain);
    find("cuda_double_nic_write", write);
    find("cuda_double_nic_read", read);
  }
  ~GpuCalls() {
    if (driver_ != nullptr) ::dlclose(driver_);
  }
  GpuCalls(const GpuCalls&) = delete;
  GpuCalls& operator=(const GpuCalls&) = delete;

  explicit operator bool() const { return attach != nullptr; }

  void* (*attach)(const void* nic, int descriptor, std::uint64_t offset, std::size_t bytes) = nullptr;
  void (*detach)(void* mapping) = nullptr;
  void (*drain)(const void* nic) = nullptr;
  void (*write)(void* mapping, std::size_t at, const void* from, std::size_t bytes) = nullptr;
  void (*read)(void* mapping, std::size_t at, void* to, std::size_t bytes) = nullptr;

 private:
  template <typename Call>
  void find(const char* name, Call& call) const {
    if (driver_ != nullptr) call = reinterpret_cast<Call>(::dlsym(driver_, name));
  }
  void* driver_;
};

}  // namespace railyard::verbs_double
