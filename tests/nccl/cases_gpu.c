/* Cases about the memory of GPUs, on the double of the CUDA driver. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

enum { MOST = 4 << 20, ROUNDS = 2 };

/* At either end: memory of the host (0), memory of a GPU (1). */
struct ends {
  struct pair *pair;
  unsigned char *gpu_source;
  unsigned char *gpu_target;
  void *source_memory;
  void *target_memory;
  unsigned char *staged;
};

static void exchange(const struct ends *ends, size_t bytes, bool from_device, bool to_device, int round) {
  const struct pair *const pair = ends->pair;
  const struct plugin *const plugin = &pair->rank->plugin;
  const uint64_t seed = bytes * 8 + (uint64_t)round;
  void *requests[2] = {NULL, NULL};
  int sizes[2] = {-1, -1};
  int tag = 5;
  size_t room = bytes;
  void *parent = NULL;
  void *source = from_device ? ends->gpu_source : pair->send_arena;
  void *target = to_device ? ends->gpu_target : pair->receive_arena;
  void *memory = to_device ? ends->target_memory : pair->receive_memory;
  fill(ends->staged, bytes, seed);
  if (from_device)
    to_gpu(ends->gpu_source, ends->staged, bytes);
  else
    memcpy(pair->send_arena, ends->staged, bytes);
  /* In every other round the receive is late. */
  if (round % 2 == 1) usleep(2000);
  CHECK_OK(plugin_irecv(plugin, pair->receiver, 1, &target, &room, &tag, &memory, &parent, &requests[0]));
  CHECK_OK(plugin_isend(plugin, pair->sender, source, bytes, 5, from_device ? ends->source_memory : pair->send_memory,
                        parent, &requests[1]));
  CHECK(requests[0] != NULL && requests[1] != NULL, "a request is given");
  finish(plugin, requests, 2, sizes);
  CHECK(sizes[0] == (int)bytes, "%zu bytes are reported as %d", bytes, sizes[0]);
  void *flushed = (void *)0xbad;
  int length = (int)bytes;
  CHECK_OK(plugin->iflush(pair->receiver, 1, &target, &length, &memory, &flushed));
  if (flushed != NULL) finish(plugin, &flushed, 1, NULL);
  memset(ends->staged, 0, bytes);
  if (to_device)
    from_gpu(ends->staged, ends->gpu_target, bytes);
  else
    memcpy(ends->staged, pair->receive_arena, bytes);
  CHECK(first_wrong(ends->staged, bytes, seed) == bytes, "%zu bytes from a %s to a %s", bytes,
        from_device ? "GPU" : "host", to_device ? "GPU" : "host");
}

static void exchange_all(void *argument) {
  const struct ends *const ends = argument;
  const size_t sizes[] = {1, 8, 512, 4096, 65536, 1 << 20, MOST};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i)
    for (int round = 0; round < ROUNDS; ++round)
      for (int kind = 0; kind < 4; ++kind) {
        /* Both ranks send at once: what one sends from is what the other's peer says of itself. */
        exchange(ends, sizes[i], (kind & 1) != 0, (kind & 2) != 0, round);
        meet(ends->pair->rank);
      }
}

static void register_gpu(void *argument) {
  struct ends *const ends = argument;
  const struct pair *const pair = ends->pair;
  const struct plugin *const plugin = &pair->rank->plugin;
  CHECK_OK(plugin->regMr(pair->sender, ends->gpu_source, MOST, NCCL_POINTER_CUDA, &ends->source_memory));
  CHECK_OK(plugin->regMr(pair->receiver, ends->gpu_target, MOST, NCCL_POINTER_CUDA, &ends->target_memory));
}

static void deregister_gpu(void *argument) {
  struct ends *const ends = argument;
  const struct plugin *const plugin = &ends->pair->rank->plugin;
  CHECK_OK(plugin->deregMr(ends->pair->sender, ends->source_memory));
  CHECK_OK(plugin->deregMr(ends->pair->receiver, ends->target_memory));
}

static void gpu_body(struct rank *rank) {
  struct nccl_properties_v12 properties;
  CHECK_OK(plugin_properties(&rank->plugin, 0, &properties));
  CHECK(properties.ptrSupport == (NCCL_POINTER_HOST | NCCL_POINTER_CUDA), "the device takes memory of GPUs: %d",
        properties.ptrSupport);
  struct pair pair;
  open_pair(&pair, rank, MOST);
  struct ends ends = {&pair, gpu_memory(MOST), gpu_memory(MOST), NULL, NULL, malloc(MOST)};
  run_job(&rank->service, register_gpu, &ends);
  meet(rank);
  run_job(&rank->progress, exchange_all, &ends);
  meet(rank);
  run_job(&rank->service, deregister_gpu, &ends);
  close_pair(&pair);
  free(ends.staged);
}

void case_gpu_memory(struct rank *rank) {
  setenv("RAILYARD_NCCL_GPU_MEMORY", "on", 1);
  open_gpu();
  with_communicator(rank, gpu_body);
}

/* ---- NICs that register dma-bufs --------------------------------------------------------------------------------- */

/* NCCL's own way: a descriptor of the pages around, closed right after the call. */
static void register_descriptors(void *argument) {
  struct ends *const ends = argument;
  const struct pair *const pair = ends->pair;
  const struct plugin *const plugin = &pair->rank->plugin;
  uint64_t offset = 0;
  int descriptor = gpu_descriptor(ends->gpu_source, MOST, &offset);
  CHECK_OK(plugin->regMrDmaBuf(pair->sender, ends->gpu_source, MOST, NCCL_POINTER_CUDA, offset, descriptor,
                               &ends->source_memory));
  close(descriptor);
  descriptor = gpu_descriptor(ends->gpu_target, MOST, &offset);
  CHECK_OK(plugin->regMrDmaBuf(pair->receiver, ends->gpu_target, MOST, NCCL_POINTER_CUDA, offset, descriptor,
                               &ends->target_memory));
  close(descriptor);
}

static void nic_body(struct rank *rank) {
  struct nccl_properties_v12 properties;
  CHECK_OK(plugin_properties(&rank->plugin, 0, &properties));
  CHECK(properties.ptrSupport == (NCCL_POINTER_HOST | NCCL_POINTER_CUDA | NCCL_POINTER_DMABUF),
        "the device takes memory of GPUs by their descriptors: %d", properties.ptrSupport);
  CHECK(properties.forceFlush == 0, "a receive that is done has been flushed");
  struct pair pair;
  open_loop(&pair, rank, MOST); /* the network of the double is inside this process */
  /* Once from the start of a page, once from anywhere; once by descriptors, once by addresses alone. */
  for (int turn = 0; turn < 2; ++turn) {
    const size_t at = turn == 0 ? 0 : 1000;
    struct ends ends = {&pair, gpu_memory(MOST + at) + at, gpu_memory(MOST + at) + at, NULL, NULL, malloc(MOST)};
    run_job(&rank->service, turn == 0 ? register_gpu : register_descriptors, &ends);
    run_job(&rank->progress, exchange_all, &ends);
    run_job(&rank->service, deregister_gpu, &ends);
    free(ends.staged);
  }
  close_pair(&pair);
}

void case_gpu_memory_nic(struct rank *rank) {
  setenv("RAILYARD_NCCL_GPU_MEMORY", "on", 1);
  open_gpu();
  with_communicator(rank, nic_body);
}
