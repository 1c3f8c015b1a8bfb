/// What tests may ask of the double of the CUDA driver (libcuda.so.1 without a GPU) beside the driver's own calls.
///
/// Device memory is a file in memory: its address cannot be touched by the processor (SIGSEGV), as on a GPU whose
/// driver maps nothing; the bytes are mapped a second time where only the double knows. Copies run on a thread for each
/// stream, after a random delay. Other processes map it as they would on a GPU.
///
/// Environment, read when the driver starts: CUDA_DOUBLE_DEVICES (2), CUDA_DOUBLE_COPY_US (each copy takes as long, at
/// least), CUDA_DOUBLE_FAIL_COPY (the number of the copy that fails, from 1), CUDA_DOUBLE_STREAM_WRITES (0: streams do
/// not write values), CUDA_DOUBLE_P2P_ATOMICS (0: GPUs have no atomics in each other's memory), CUDA_DOUBLE_VERSION
/// (11: knows neither mappings nor block ids of pointers).
///
/// A dma-buf descriptor is the file, and its position (lseek) is where the range begins in it.
///
/// NICs (tests/doubles/verbs) write by such a descriptor. Nobody but the NIC sees what it has written until the
/// driver's flush call, or a read of the device's memory by the same NIC: a flush that is missing is seen as bytes that
/// are. CUDA_DOUBLE_RDMA_ORDERING (100: the device sees every write at once), CUDA_DOUBLE_RDMA_FLUSH (0: there is no
/// flush call, a read alone helps).
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

/// What is there now in this process. All zero: nothing is left.
struct CudaDoubleLive {
  std::size_t allocations;   ///< cuMemAlloc, cuMemAllocManaged
  std::size_t mappings;      ///< of IPC handles and by cuMemMap
  std::size_t reservations;  ///< cuMemAddressReserve
  std::size_t handles;       ///< of memory: created, retained, imported
  std::size_t pinned;        ///< cuMemHostAlloc, cuMemHostRegister
  std::size_t streams;
  std::size_t events;
  std::size_t nic_mappings;  ///< registrations of NICs
};

void cuda_double_live(CudaDoubleLive* live);
/// Reads or writes device memory behind the driver's back, at once. Whether the range is device memory.
int cuda_double_peek(void* to, const void* device, std::size_t bytes);
int cuda_double_poke(void* device, const void* from, std::size_t bytes);
/// Where a thread that plays a kernel can touch this device memory; null: it is none. Valid until it is unmapped.
void* cuda_double_reach(const void* device);
/// Copies that streams have done.
std::uint64_t cuda_double_copies();
/// From now on. 0: random delays alone.
void cuda_double_set_copy_us(unsigned microseconds);
/// The copy that fails, counted from now on: 1 is the next, 0 none. Its device is broken then, until it is mended.
void cuda_double_fail_copy(std::uint64_t number);
void cuda_double_mend();
/// 1: a kernel runs from now on, until 0. Meanwhile calls that make memory, mappings, streams or events fail, where the
/// driver's might wait for the kernel.
void cuda_double_kernel(int runs);
/// How many have failed so.
std::uint64_t cuda_double_held_up();

/// Whether devices have dma-buf descriptors.
void cuda_double_set_dma_bufs(int has);
/// How writes of NICs become visible, from now on: what the device says of their order, and whether it has the flush
/// call.
void cuda_double_set_rdma(int ordering, int flush);
/// How often it was asked whose memory an address is.
std::uint64_t cuda_double_questions();
/// Flush calls that were made.
std::uint64_t cuda_double_flushes();
/// Bytes that NICs have written and devices do not see yet.
std::size_t cuda_double_unseen();
/// Memory that was freed or unmapped while a NIC had it registered.
std::uint64_t cuda_double_freed_under_nic();

/// For NICs: a mapping of `bytes` from `offset` on in the range of a dma-buf. Null: none of this driver's, or too
/// short.
void* cuda_double_nic_attach(const void* nic, int descriptor, std::uint64_t offset, std::size_t bytes);
/// What was written through it has landed when this returns.
void cuda_double_nic_detach(void* mapping);
/// All that the NIC has written has landed when this returns.
void cuda_double_nic_drain(const void* nic);
void cuda_double_nic_write(void* mapping, std::size_t at, const void* from, std::size_t bytes);
/// Comes behind the writes of the same NIC to that device: those land first.
void cuda_double_nic_read(void* mapping, std::size_t at, void* to, std::size_t bytes);
}
