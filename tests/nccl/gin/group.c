/* Groups of ranks, their memory and their operations, made as NCCL makes them. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gin_driver.h"

void open_group(struct group *group, struct member *member, int number) {
  const struct table *const table = &member->table;
  struct shared *const shared = member->shared;
  void *listener = NULL;
  void *handles[kMostRanks];
  memset(group, 0, sizeof(*group));
  group->member = member;
  group->table = table;
  CHECK_OK(table_listen(table, member->context, 0, shared->handles[number][member->rank], &listener));
  CHECK(listener != NULL, "listen answers with a comm");
  meet_all(member);
  for (int i = 0; i < member->size; ++i) handles[i] = shared->handles[number][i];
  /* The context of another init, or none: NCCL 2.28 has it so. */
  CHECK_OK(table_connect(table, number % 2 == 0 ? NULL : member->context, handles, member->size, member->rank, listener,
                         &group->coll));
  CHECK(group->coll != NULL, "connect answers with a comm");
  group->context = group->coll;
  if (table->contexts > 0) CHECK_OK(table_create(table, group->coll, &group->context));
  CHECK_OK(table_close_listen(table, listener));
}

void close_group(struct group *group) {
  if (group->table->contexts > 0) CHECK_OK(table_destroy(group->table, group->context));
  CHECK_OK(table_close(group->table, group->coll));
}

struct block make_block(const struct group *group, size_t bytes) {
  struct block block = {.bytes = bytes};
  /* Zeroed pages of its own: whoever touches them after their end is found out. */
  block.data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(block.data != MAP_FAILED, "no memory");
  CHECK_OK(table_register(group->table, group->coll, block.data, bytes, NCCL_POINTER_HOST, &block.memory, &block.gin));
  CHECK(block.memory != NULL && block.gin == block.memory, "one handle for both uses");
  CHECK((uint64_t)(uintptr_t)block.memory >> 63 == 0, "a handle of 63 bits");
  return block;
}

void free_block(struct block *block) {
  munmap(block->data, block->bytes);
  memset(block, 0, sizeof(*block));
}

void end_block(const struct group *group, struct block *block) {
  CHECK_OK(table_deregister(group->table, group->coll, block->memory));
  free_block(block);
}

static int next_queue;

static void *must(nccl_result answer, void *request, const char *what) {
  CHECK(answer == NCCL_OK, "%s answered %d; last warning: %s", what, answer, last_warning());
  CHECK(request != NULL, "%s was taken without a request", what);
  return request;
}

void *put(const struct group *group, const struct block *from, uint64_t from_offset, size_t bytes,
          const struct block *to, uint64_t to_offset, int rank) {
  void *request = NULL;
  const nccl_result answer =
      table_put(group, next_queue++, from_offset, from->gin, bytes, to_offset, to->gin, (uint32_t)rank, &request);
  return must(answer, request, "iput");
}

void *put_signal(const struct group *group, const struct block *from, uint64_t from_offset, size_t bytes,
                 const struct block *to, uint64_t to_offset, int rank, const struct block *signals, uint64_t index,
                 uint64_t value, uint32_t op) {
  void *request = NULL;
  const nccl_result answer =
      table_put_signal(group, next_queue++, from_offset, from->gin, bytes, to_offset, to->gin, (uint32_t)rank,
                       index * sizeof(uint64_t), signals->gin, value, op, &request);
  return must(answer, request, "iputSignal");
}

void *signal_only(const struct group *group, int rank, const struct block *signals, uint64_t index, uint64_t value,
                  uint32_t op) {
  void *request = NULL;
  const nccl_result answer = table_put_signal(group, next_queue++, 0, NULL, 0, 0, NULL, (uint32_t)rank,
                                              index * sizeof(uint64_t), signals->gin, value, op, &request);
  return must(answer, request, "a signal alone");
}

void finish_all(const struct group *group, void **requests, int count) {
  for (int left = count; left > 0;) {
    left = 0;
    for (int i = 0; i < count; ++i) {
      int done = 0;
      if (requests[i] == NULL) continue;
      CHECK_OK(table_test(group, requests[i], &done));
      if (done)
        requests[i] = NULL;
      else
        ++left;
    }
    CHECK_OK(table_progress(group));
    if (left > 0) sched_yield(); /* as NCCL's thread does */
  }
}

uint64_t read_word(const struct block *signals, uint64_t index) {
  return __atomic_load_n((uint64_t *)(void *)signals->data + index, __ATOMIC_ACQUIRE);
}

void await_word(const struct group *group, const struct block *signals, uint64_t index, uint64_t value) {
  while (read_word(signals, index) < value) {
    CHECK_OK(table_progress(group));
    sched_yield();
  }
}
