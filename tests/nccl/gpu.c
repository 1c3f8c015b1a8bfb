/* Memory of a GPU: of the CUDA driver that TEST_CUDA names, or of its double. */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver.h"

typedef int (*cuda_call)();

static cuda_call call_named(void *driver, const char *name) {
  cuda_call call = NULL;
  *(void **)&call = dlsym(driver, name);
  CHECK(call != NULL, "the driver has no %s", name);
  return call;
}

static struct {
  void *context;
  int (*use)(void *);
  int (*allocate)(uint64_t *, size_t);
  int (*to_device)(uint64_t, const void *, size_t);
  int (*to_host)(void *, uint64_t, size_t);
  int (*descriptor)(void *, uint64_t, size_t, int, unsigned long long);
} cuda;

void open_gpu(void) {
  const char *const name = getenv("TEST_CUDA");
  void *const driver = name == NULL ? NULL : dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  if (driver == NULL) {
    fprintf(stderr, "TEST_CUDA names no CUDA driver or double of one\n");
    _exit(77);
  }
  int (*const init)(unsigned) = (int (*)(unsigned))call_named(driver, "cuInit");
  int (*const retain)(void **, int) = (int (*)(void **, int))call_named(driver, "cuDevicePrimaryCtxRetain");
  cuda.use = (int (*)(void *))call_named(driver, "cuCtxSetCurrent");
  cuda.allocate = (int (*)(uint64_t *, size_t))call_named(driver, "cuMemAlloc_v2");
  cuda.to_device = (int (*)(uint64_t, const void *, size_t))call_named(driver, "cuMemcpyHtoD_v2");
  cuda.to_host = (int (*)(void *, uint64_t, size_t))call_named(driver, "cuMemcpyDtoH_v2");
  cuda.descriptor =
      (int (*)(void *, uint64_t, size_t, int, unsigned long long))call_named(driver, "cuMemGetHandleForAddressRange");
  CHECK(init(0) == 0 && retain(&cuda.context, 0) == 0, "no GPU");
}

unsigned char *gpu_memory(size_t bytes) {
  uint64_t address = 0;
  CHECK(cuda.use(cuda.context) == 0 && cuda.allocate(&address, bytes) == 0, "no memory of a GPU");
  return (unsigned char *)(uintptr_t)address;
}

void to_gpu(unsigned char *gpu, const void *host, size_t bytes) {
  CHECK(cuda.use(cuda.context) == 0 && cuda.to_device((uint64_t)(uintptr_t)gpu, host, bytes) == 0, "a copy to the GPU");
}

void from_gpu(void *host, const unsigned char *gpu, size_t bytes) {
  CHECK(cuda.use(cuda.context) == 0 && cuda.to_host(host, (uint64_t)(uintptr_t)gpu, bytes) == 0, "a copy from the GPU");
}

int gpu_descriptor(const unsigned char *gpu, size_t bytes, uint64_t *offset) {
  const uint64_t page = 4096;
  const uint64_t first = (uint64_t)(uintptr_t)gpu / page * page;
  const uint64_t last = ((uint64_t)(uintptr_t)gpu + bytes + page - 1) / page * page;
  int descriptor = -1;
  CHECK(cuda.use(cuda.context) == 0 && cuda.descriptor(&descriptor, first, last - first, 1, 0) == 0,
        "no dma-buf descriptor");
  *offset = (uint64_t)(uintptr_t)gpu - first;
  return descriptor;
}
