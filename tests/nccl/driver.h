/*
 * nccl-driver: plays NCCL's part for the plugin, in C, without a GPU. Two processes (ranks), each with NCCL's two
 * threads: the service thread listens, connects, accepts, registers and closes; the progress thread sends, receives and
 * tests.
 */
#ifndef RAILYARD_TESTS_NCCL_DRIVER_H
#define RAILYARD_TESTS_NCCL_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "abi.h"

/* Sanitizers slow everything down, keep freed memory, and have no word for a GPU that looks at memory being written. */
#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZED 1
#elif defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZED 1
#elif __has_feature(thread_sanitizer)
#define THREAD_SANITIZED 1
#endif
#endif
#ifndef ADDRESS_SANITIZED
#define ADDRESS_SANITIZED 0
#endif
#ifndef THREAD_SANITIZED
#define THREAD_SANITIZED 0
#endif
#define SANITIZED (ADDRESS_SANITIZED || THREAD_SANITIZED)

/* ---- failing ----------------------------------------------------------------------------------------------------- */

/* Says what was promised and ends the process. */
_Noreturn void fail_at(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition, ...) ((condition) ? (void)0 : FAIL(__VA_ARGS__))
#define CHECK_OK(call)                                                                             \
  do {                                                                                             \
    const nccl_result answer_ = (call);                                                            \
    CHECK(answer_ == NCCL_OK, "%s answered %d; last warning: %s", #call, answer_, last_warning()); \
  } while (0)

/* Whose failures these are. */
void name_rank(int number);

/* ./test --long */
bool given_long(void);
uint64_t now_ns(void);
uint64_t next_random(uint64_t *state);

/* ---- the plugin, whatever its version (load.c) ------------------------------------------------------------------- */

struct plugin {
  int version;
  void *library;
  const char *name;
  nccl_devices devices;
  nccl_accept accept;
  nccl_register regMr;
  nccl_register_dmabuf regMrDmaBuf;
  nccl_deregister deregMr;
  nccl_flush iflush;
  nccl_test test;
  nccl_close closeSend;
  nccl_close closeRecv;
  nccl_close closeListen;
  const void *table;
};

/* Version 0: the newest, as NCCL chooses. */
struct plugin load_plugin(const char *path, int version);
void unload_plugin(struct plugin *plugin);
void check_symbol_size(void *library, const char *name, size_t bytes);

nccl_result plugin_init(const struct plugin *plugin, void **context, int traffic_class);
nccl_result plugin_finalize(const struct plugin *plugin, void *context);
nccl_result plugin_properties(const struct plugin *plugin, int device, struct nccl_properties_v12 *properties);
nccl_result plugin_listen(const struct plugin *plugin, void *context, int device, void *handle, void **comm);
nccl_result plugin_connect(const struct plugin *plugin, void *context, int device, void *handle, void **comm);
nccl_result plugin_isend(const struct plugin *plugin, void *comm, void *data, size_t bytes, int tag, void *memory,
                         void *parent, void **request);
nccl_result plugin_irecv(const struct plugin *plugin, void *comm, int n, void **data, size_t *sizes, int *tags,
                         void **memories, void **parents, void **request);

/* What the plugin said (record.c): counted, and the last line kept. Both threads may ask. */
void driver_log(int level, unsigned long subsystems, const char *where, int line, const char *format, ...);
nccl_result driver_profile(void **event, int type, void *parent, int64_t id, void *descriptor);
const char *last_warning(void);
int warnings(void);
int infos(void);
const char *info_line(int number);
void forget_log(void);

struct profile {
  int started;
  int stopped;
  int wrong; /* calls that NCCL would not survive, or that make no sense */
};
struct profile profile_so_far(void);
/* What isend and irecv are given as `parent`. */
extern int profile_parent;

/* ---- processes and threads (ranks.c) ----------------------------------------------------------------------------- */

typedef void (*job)(void *argument);

struct worker {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  job run;
  void *argument;
  bool end;
};

struct rank {
  int number; /* 0 or 1 */
  const char *library;
  struct plugin plugin;
  void *context;
  int to_peer;
  int from_peer;
  struct worker service;
  struct worker progress;
  uint64_t seed;
};

typedef void (*rank_case)(struct rank *rank);

void start_job(struct worker *worker, job run, void *argument);
void wait_for(struct worker *worker);
/* start_job and wait_for. */
void run_job(struct worker *worker, job run, void *argument);

void start_threads(struct rank *rank);
void end_threads(struct rank *rank);
/* To the other rank and back, by a pipe: what NCCL's bootstrap does. */
void send_to_peer(struct rank *rank, const void *bytes, size_t count);
void receive_from_peer(struct rank *rank, void *bytes, size_t count);
/* Both ranks have come here. */
void meet(struct rank *rank);

/* Two processes that run `body`, with settings of their own ("NAME=value ..."). The number that failed. */
int run_ranks(const char *library, int version, rank_case body, const char *const settings[2], int seconds);

/* ---- connections and traffic (link.c, traffic.c) ----------------------------------------------------------------- */

/* One connection each way between the ranks. */
struct pair {
  struct rank *rank;
  int peer; /* the rank at the other end */
  void *sender;
  void *receiver;
  unsigned char *send_arena;
  unsigned char *receive_arena;
  size_t arena_bytes;
  void *send_memory;
  void *receive_memory;
};

/* On the service thread: listens, exchanges handles, connects and accepts in turn, registers both arenas. */
void open_pair(struct pair *pair, struct rank *rank, size_t arena_bytes);
void close_pair(struct pair *pair);
/* One connection from this process to itself. */
void open_loop(struct pair *pair, struct rank *rank, size_t arena_bytes);

void fill(unsigned char *data, size_t bytes, uint64_t seed);
/* The offset of the first wrong byte; `bytes`: none. */
size_t first_wrong(const unsigned char *data, size_t bytes, uint64_t seed);

struct stream {
  int messages;                   /* each way */
  size_t most_bytes;              /* sizes are random up to this */
  bool same_size;                 /* all of that size */
  int window;                     /* requests under way at a time, each way */
  int group;                      /* messages of one receive */
  bool smaller_sends;             /* posted buffers have room for most_bytes, sends are smaller */
  void (*midway)(void *argument); /* called once, on the progress thread, when half has been sent */
  void *argument;
};

/* On the progress thread: sends and receives as the stream says, testing in random order; checks every byte, size and
 * tag. */
void run_stream(struct pair *pair, const struct stream *stream);

/* Tests all of them in turn until they are done, the newest first; `sizes`, one for each, may be null. */
void finish(const struct plugin *plugin, void **requests, int count, int *sizes);

/* ---- the cases (cases_*.c) --------------------------------------------------------------------------------------- */

/* init, threads, and the end of both; what most cases run in between. */
void with_communicator(struct rank *rank, rank_case body);
/* run_stream on the progress thread. */
void stream_between(struct pair *pair, const struct stream *stream);

/* ---- memory of GPUs (gpu.c). Where TEST_CUDA names no driver the process ends with 77 ---------------------------- */

void open_gpu(void);
unsigned char *gpu_memory(size_t bytes);
void to_gpu(unsigned char *gpu, const void *host, size_t bytes);
void from_gpu(void *host, const unsigned char *gpu, size_t bytes);
/* A dma-buf descriptor of the pages that hold it, and where in them it begins. */
int gpu_descriptor(const unsigned char *gpu, size_t bytes, uint64_t *offset);

void case_handle(struct rank *rank);        /* a */
void case_connect_order(struct rank *rank); /* b */
void case_requests(struct rank *rank);      /* c */
void case_optional(struct rank *rank);      /* d */
void case_sizes(struct rank *rank);         /* e */
void case_too_long(struct rank *rank);      /* e */
void case_groups(struct rank *rank);        /* f */
void case_registration(struct rank *rank);  /* g */
void case_test_once(struct rank *rank);     /* h */
void case_communicators(struct rank *rank); /* i */
void case_cycles(struct rank *rank);        /* i */
void case_unload(struct rank *rank);        /* i */
void case_rail_killed(struct rank *rank);   /* j */
void case_stream(struct rank *rank);        /* k */
void case_devices(struct rank *rank);       /* l */
void case_tables(struct rank *rank);        /* m */
void case_log(struct rank *rank);
void case_wrong_setting(struct rank *rank);
void case_misuse(struct rank *rank);
void case_profiler(struct rank *rank);
void case_exit(struct rank *rank);
void case_close_under_way(struct rank *rank);
void case_peer_dies(struct rank *rank);
void case_self(struct rank *rank);
void case_tags(struct rank *rank);
void case_sent_then_closed(struct rank *rank);
void case_abort_order(struct rank *rank);
void case_abort_stopped(struct rank *rank);
void case_stopped_peers(struct rank *rank);
void case_threads_end(struct rank *rank);
void case_threads_end_alone(struct rank *rank);
void case_gpu_memory(struct rank *rank);
void case_gpu_memory_nic(struct rank *rank);

#endif
