#include "accelerator/gpu.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <random>

namespace railyard::accelerator::testing {

namespace {

void* g_library = nullptr;

template <typename Call>
void find_call(const char* name, Call& call) {
  call = reinterpret_cast<Call>(::dlsym(g_library, name));
}

}  // namespace

bool wants_real_gpu() {
  const char* const value = std::getenv("TEST_REAL_GPU");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

void load_gpu() {
  if (g_library != nullptr) return;
  // The library finds it by its name from now on.
  g_library = ::dlopen(wants_real_gpu() ? "libcuda.so.1" : RAILYARD_CUDA_DOUBLE, RTLD_NOW | RTLD_GLOBAL);
}

const ProgramCalls& program() {
  static const ProgramCalls calls = [] {
    ProgramCalls found;
    find_call("cuMemAlloc_v2", found.allocate);
    find_call("cuMemAllocManaged", found.allocate_managed);
    find_call("cuMemFree_v2", found.free);
    find_call("cuCtxSetCurrent", found.set_current);
    find_call("cuMemcpyHtoD_v2", found.to_device);
    find_call("cuMemcpyDtoH_v2", found.to_host);
    find_call("cuMemCreate", found.create);
    find_call("cuMemGetAllocationGranularity", found.granularity);
    find_call("cuda_double_live", found.live);
    find_call("cuda_double_set_copy_us", found.set_copy_us);
    find_call("cuda_double_fail_copy", found.fail_copy);
    find_call("cuda_double_mend", found.mend);
    find_call("cuda_double_peek", found.peek);
    find_call("cuda_double_poke", found.poke);
    return found;
  }();
  return calls;
}

const cuda::Library& library() {
  static const cuda::Library calls = *cuda::load();
  return calls;
}

DeviceMemory::DeviceMemory(std::size_t bytes, Kind kind) : bytes_(bytes), kind_(kind) {
  if (kind_ == Kind::allocated) {
    EXPECT_EQ(program().allocate(&address_, bytes_), cuda::kSuccess);
    return;
  }
  cuda::AllocationProperties wanted{};
  wanted.type = cuda::kAllocationPinned;
  wanted.location = {cuda::kLocationDevice, 0};
  wanted.handle_types = kind == Kind::mapped ? cuda::kHandlePosixDescriptor : 0;
  std::size_t unit = 0;
  EXPECT_EQ(program().granularity(&unit, &wanted, 0), cuda::kSuccess);
  bytes_ = (bytes + unit - 1) / unit * unit;
  EXPECT_EQ(program().create(&handle_, bytes_, &wanted, 0), cuda::kSuccess);
  EXPECT_EQ(library().address_reserve(&address_, bytes_, 0, 0, 0), cuda::kSuccess);
  EXPECT_EQ(library().memory_map(address_, bytes_, 0, handle_, 0), cuda::kSuccess);
  const cuda::Access access{wanted.location, cuda::kAccessReadWrite};
  EXPECT_EQ(library().memory_access(address_, bytes_, &access, 1), cuda::kSuccess);
}

DeviceMemory::~DeviceMemory() {
  if (kind_ == Kind::allocated) {
    EXPECT_EQ(program().free(address_), cuda::kSuccess);
    return;
  }
  EXPECT_EQ(library().memory_unmap(address_, bytes_), cuda::kSuccess);
  EXPECT_EQ(library().address_free(address_, bytes_), cuda::kSuccess);
  EXPECT_EQ(library().memory_release(handle_), cuda::kSuccess);
}

void DeviceMemory::fill(const std::vector<std::byte>& bytes, std::size_t at) const {
  EXPECT_EQ(program().to_device(address_ + at, bytes.data(), bytes.size()), cuda::kSuccess);
}

std::vector<std::byte> DeviceMemory::read(std::size_t at, std::size_t bytes) const {
  std::vector<std::byte> read(bytes);
  EXPECT_EQ(program().to_host(read.data(), address_ + at, bytes), cuda::kSuccess);
  return read;
}

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> made(bytes);
  std::minstd_rand random(seed);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random() >> 8);
  return made;
}

bool wait_for(CopyQueue& queue, std::uint64_t number) {
  for (;;) {
    const auto done = queue.completed();
    if (!done) return false;
    if (*done >= number) return true;
  }
}

void GpuTest::SetUp() {
  load_gpu();
  gpus_ = driver();
  if (gpus_ == nullptr && wants_real_gpu()) GTEST_SKIP() << "there is no GPU here";
  ASSERT_NE(gpus_, nullptr);
  ASSERT_EQ(library().primary_retain(&context_, 0), cuda::kSuccess);
  ASSERT_EQ(program().set_current(context_), cuda::kSuccess);
  ASSERT_TRUE(gpus_->open_queue(0).ok());  // has the words that stay
  if (on_double()) program().live(&before_);
}

void GpuTest::TearDown() {
  if (gpus_ == nullptr) return;
  cuda::CudaContext now = nullptr;
  EXPECT_EQ(library().context_current(&now), cuda::kSuccess);
  EXPECT_EQ(now, context_) << "another context is current";
  EXPECT_EQ(program().set_current(nullptr), cuda::kSuccess);
  if (!on_double()) return;
  program().set_copy_us(0);
  program().fail_copy(0);
  program().mend();
  CudaDoubleLive after{};
  program().live(&after);
  EXPECT_EQ(after.allocations, before_.allocations);
  EXPECT_EQ(after.mappings, before_.mappings);
  EXPECT_EQ(after.reservations, before_.reservations);
  EXPECT_EQ(after.handles, before_.handles);
  EXPECT_EQ(after.pinned, before_.pinned);
  EXPECT_EQ(after.streams, before_.streams);
  EXPECT_EQ(after.events, before_.events);
}

}  // namespace railyard::accelerator::testing
