/*
 * gin-driver: plays NCCL's part for the GIN and RMA tables of the plugin, in C. Up to four processes (ranks). As in
 * NCCL, operations and tests come from one thread of a rank, registration from another where a case is about that.
 */
#ifndef RAILYARD_TESTS_NCCL_GIN_DRIVER_H
#define RAILYARD_TESTS_NCCL_GIN_DRIVER_H

#include "../driver.h"
#include "abi_gin.h"

enum { kMostRanks = 4, kMostGroups = 4 };

/* ---- the tables, whatever their version (tables.c) --------------------------------------------------------------- */

enum table_kind { kGin11, kGin12, kGin13, kRma13, kRma14, kRma15, kTables };

struct table {
  enum table_kind kind;
  const void *entries;
  const char *name;
  int contexts; /* of each createContext; 0: this version's operations have none */
};

const char *table_word(enum table_kind kind); /* "g11", "r15" */
const char *table_symbol(enum table_kind kind);
size_t table_bytes(enum table_kind kind);
struct table load_table(void *library, enum table_kind kind);

struct group;
nccl_result table_init(const struct table *table, void **context);
nccl_result table_finalize(const struct table *table, void *context);
nccl_result table_devices(const struct table *table, int *count);
nccl_result table_properties(const struct table *table, int device, struct nccl_properties_v12 *properties);
nccl_result table_listen(const struct table *table, void *context, int device, void *handle, void **listener);
nccl_result table_connect(const struct table *table, void *context, void **handles, int size, int rank, void *listener,
                          void **coll);
nccl_result table_create(const struct table *table, void *coll, void **context);
nccl_result table_register(const struct table *table, void *coll, void *data, size_t bytes, int type, void **memory,
                           void **gin_memory);
nccl_result table_deregister(const struct table *table, void *coll, void *memory);
nccl_result table_destroy(const struct table *table, void *context);
nccl_result table_close(const struct table *table, void *coll);
nccl_result table_close_listen(const struct table *table, void *listener);
/* `queue` is counted round the contexts. */
nccl_result table_put(const struct group *group, int queue, uint64_t from_offset, void *from, size_t bytes,
                      uint64_t to_offset, void *to, uint32_t rank, void **request);
nccl_result table_put_signal(const struct group *group, int queue, uint64_t from_offset, void *from, size_t bytes,
                             uint64_t to_offset, void *to, uint32_t rank, uint64_t signal_offset, void *signal,
                             uint64_t value, uint32_t op, void **request);
bool table_has_get(const struct table *table);
nccl_result table_get(const struct group *group, int queue, uint64_t remote_offset, void *remote, size_t bytes,
                      uint64_t local_offset, void *local, uint32_t rank, void **request);
nccl_result table_flush(const struct group *group, int queue, void *memory, uint32_t rank, void **request);
nccl_result table_test(const struct group *group, void *request, int *done);
nccl_result table_progress(const struct group *group);
nccl_result table_last_error(const struct group *group, bool *failed);

/* ---- processes (main.c) ------------------------------------------------------------------------------------------ */

/* What all ranks see: NCCL's bootstrap. */
struct shared {
  pthread_barrier_t barrier;
  unsigned char handles[kMostGroups][kMostRanks][NCCL_HANDLE_BYTES];
  uint64_t words[kMostRanks];
};

struct member {
  int rank;
  int size;
  const char *bed;
  int rails;
  struct shared *shared;
  void *library;
  struct table table;
  void *context;
  uint64_t seed;
};
typedef void (*member_case)(struct member *member);

/* All ranks have come here. */
void meet_all(struct member *member);
bool over_tcp(const struct member *member);

/* ---- groups and memory (group.c) --------------------------------------------------------------------------------- */

struct group {
  struct member *member;
  const struct table *table;
  void *coll;
  void *context; /* what operations are asked of: the group itself in old versions */
};

/* listen, handles to everybody, connect, contexts, closeListen. */
void open_group(struct group *group, struct member *member, int number);
void close_group(struct group *group);

struct block {
  unsigned char *data;
  size_t bytes;
  void *memory;
  void *gin; /* for operations */
};
/* Zeroed, and registered by all ranks. */
struct block make_block(const struct group *group, size_t bytes);
/* Its memory alone: the group, or the process, has ended what was registered. */
void free_block(struct block *block);
void end_block(const struct group *group, struct block *block);

/* One that must be taken. */
void *put(const struct group *group, const struct block *from, uint64_t from_offset, size_t bytes,
          const struct block *to, uint64_t to_offset, int rank);
void *put_signal(const struct group *group, const struct block *from, uint64_t from_offset, size_t bytes,
                 const struct block *to, uint64_t to_offset, int rank, const struct block *signals, uint64_t index,
                 uint64_t value, uint32_t op);
/* A signal alone, with null handles as NCCL has it. */
void *signal_only(const struct group *group, int rank, const struct block *signals, uint64_t index, uint64_t value,
                  uint32_t op);
/* Tests them in turn until all are done. */
void finish_all(const struct group *group, void **requests, int count);
/* As a kernel would see it. */
uint64_t read_word(const struct block *signals, uint64_t index);
/* Waits, making progress as NCCL's thread does. */
void await_word(const struct group *group, const struct block *signals, uint64_t index, uint64_t value);

/* ---- rails that are slow or cut (rails.c) ------------------------------------------------------------------------ */

/* From now on what the busiest connection of this process brings is late by up to some milliseconds. Whether there is
 * one. */
bool slow_a_rail(void);
uint64_t times_slowed(void);
/* Cuts the busiest connection. Whether there is one. */
bool cut_a_rail(void);

/* ---- the cases --------------------------------------------------------------------------------------------------- */

void gin_self_put(struct member *member);       /* n */
void gin_signal_alone(struct member *member);   /* o */
void gin_inc_and_add(struct member *member);    /* p */
void gin_strong_signal(struct member *member);  /* q */
void gin_many_requests(struct member *member);  /* r */
void gin_source_free(struct member *member);    /* s */
void gin_exact_sum(struct member *member);      /* t */
void gin_register_order(struct member *member); /* u */
void gin_rail_between(struct member *member);   /* v */
void gin_replayed_once(struct member *member);  /* w */
void gin_all_tables(struct member *member);     /* x */
void gin_devices(struct member *member);
void gin_life(struct member *member);
void gin_off(struct member *member);
void gin_misuse(struct member *member);
void gin_peer_dies(struct member *member);
void gin_closes_at_once(struct member *member);
void gin_long_put(struct member *member);
void gin_exit(struct member *member);
void gin_device_memory(struct member *member);

#endif
