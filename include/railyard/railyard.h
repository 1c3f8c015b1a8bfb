/*
 * Railyard in C: the calls of world.hpp, window.hpp and channel.hpp, one for one. The C++ headers say more about what
 * each promises.
 *
 * Every call that can fail returns a ry_status; ry_error_text() says why, for the calling thread. Handles are opaque;
 * every *_free takes NULL. A deadline is in milliseconds, RY_DEFAULT (the world's, RAILYARD_TIMEOUT_MS) or RY_NEVER.
 * Codes are plain integers with names: one that has no name here is an error of the call, never undefined.
 *
 * Ordering. Ordered operations to one rank (the default) form one sequence over all rails: a signal or an atomic takes
 * effect at its target after every earlier ordered put to that target is visible there, exactly once. Puts among
 * themselves and gets may overtake each other; ry_fence stops that. A relaxed put is outside the sequence until the
 * next fence or quiet.
 *
 * Losses. A rail that fails costs bandwidth, no operation. A rank that is gone fails what was under way to it and all
 * that comes later with RY_PEER_LOST; the window carries on with the others.
 *
 * Threads. Any number of threads may use one window at the same time. Sends, receives and tests of one channel come
 * from one thread at a time.
 */
#ifndef RAILYARD_RAILYARD_H
#define RAILYARD_RAILYARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What went wrong, in the terms a caller can act on. */
typedef int ry_status;
enum {
  RY_OK = 0,
  RY_BUSY = 1,             /* back-pressure: nothing happened, try again later */
  RY_TIMEOUT = 2,          /* a deadline passed */
  RY_INVALID = 3,          /* the call or a setting makes no sense */
  RY_OUT_OF_RANGE = 4,     /* rank, offset, index or size outside what was agreed */
  RY_NOT_FOUND = 5,        /* no such provider, rail, window, host */
  RY_UNSUPPORTED = 6,      /* this rail or provider cannot do it */
  RY_REFUSED = 7,          /* authentication or permission */
  RY_VERSION_MISMATCH = 8, /* the peer speaks another wire version */
  RY_PEER_LOST = 9,        /* the named peer is gone */
  RY_RAIL_FAILED = 10,     /* the named rail failed */
  RY_IO = 11,              /* the system refused: see the message */
  RY_NO_MEMORY = 12
};

/* The status as a word. */
const char *ry_status_text(ry_status status);
/* One line about the last call of this thread that failed; "" before the first. Valid until the thread's next failure.
 */
const char *ry_error_text(void);
/* The library's version, "0.1.0". */
const char *ry_version(void);

/* Deadlines. */
#define RY_DEFAULT ((int64_t)-1) /* the world's default */
#define RY_NEVER ((int64_t)-2)   /* for ever: only on request */

/* ---- settings ---------------------------------------------------------------------------------------------------- */

typedef struct ry_settings ry_settings;

/* Settings as the RAILYARD_* variables of the environment give them. */
ry_status ry_settings_from_environment(ry_settings **settings);
/* Sets one by its variable's name ("RAILYARD_RAILS"), as the environment would. */
ry_status ry_settings_set(ry_settings *settings, const char *name, const char *value);
void ry_settings_free(ry_settings *settings);

/* ---- bootstrap --------------------------------------------------------------------------------------------------- */

/* How the ranks of a world find each other, where a job has a way already (MPI, a scheduler, sockets of its own). Used
 * at set-up only. Every rank makes the same calls in the same order. Both calls return RY_OK or why they failed. A
 * deadline is in milliseconds, or RY_NEVER. */
typedef struct ry_bootstrap {
  void *context; /* handed to each call */
  int rank;
  int size;
  /* Puts `bytes` bytes from `mine` of every rank into `all`, by rank: size * bytes. `bytes` is equal on all ranks. */
  ry_status (*allgather)(void *context, const void *mine, size_t bytes, void *all, int64_t deadline_ms);
  /* Returns once every rank has entered. */
  ry_status (*barrier)(void *context, int64_t deadline_ms);
  const char *description; /* for messages: "mpi"; may be NULL */
} ry_bootstrap;

/* ---- context ----------------------------------------------------------------------------------------------------- */

/* What a process opens once: settings, rails, engines and the threads that move them on. Worlds, listeners and channels
 * attach to it. Rails and engines open when their first user comes: one set for worlds, one for channels. */
typedef struct ry_context ry_context;

/* `settings`: NULL for the environment's. */
ry_status ry_context_open(const ry_settings *settings, ry_context **context);
/* Listeners and channels are freed before; worlds may be freed after. */
void ry_context_free(ry_context *context);

/* ---- world ------------------------------------------------------------------------------------------------------- */

/* The ranks of one job, the rails of this process and the engine that moves data over them. */
typedef struct ry_world ry_world;

/* Opens a world. Collective. `settings`: NULL for the environment's. `bootstrap`: NULL for the launcher, TCP rendezvous
 * or PMIx found in the environment, and a world of one rank where there is none; its structure is copied, what it
 * points to must outlive the world. */
ry_status ry_world_open(const ry_settings *settings, const ry_bootstrap *bootstrap, ry_world **world);
/* The same over the rails and the engine of a context, whose settings it has; any number of worlds may share one.
 * The context may be freed before the world. */
ry_status ry_world_open_on(ry_context *context, const ry_bootstrap *bootstrap, ry_world **world);
/* All windows must be freed before. */
void ry_world_free(ry_world *world);

int ry_world_rank(const ry_world *world);          /* -1 for NULL */
int ry_world_size(const ry_world *world);          /* -1 for NULL */
size_t ry_world_rail_count(const ry_world *world); /* 0 for NULL */

/* Polls every rail once, applies what arrived, sends what waits. Bounded work; any thread may call it. Waits call it by
 * themselves, and while a rank makes no call a thread does (RAILYARD_PROGRESS). */
void ry_world_progress(ry_world *world);
/* For event loops: a descriptor that becomes readable when ry_world_progress may have something to do; it is the
 * world's. Before each sleep on it: do { ry_world_progress(world); } while (!ry_world_arm(world)); */
ry_status ry_world_descriptor(ry_world *world, int *descriptor);
/* Not 0: nothing is to be done now, and whatever happens from now on makes the descriptor readable. 0: make progress
 * first (or there is no descriptor yet). */
int ry_world_arm(ry_world *world);
/* Registers memory on every rail ahead of time. Optional: otherwise it happens on first use. */
ry_status ry_world_remember(ry_world *world, const void *memory, size_t bytes);
/* Drops cached registrations that overlap the memory: before it is unmapped. Operations on it that are still
 * outstanding fail; when this returns, nothing reads or writes the memory on their behalf. */
void ry_world_forget(ry_world *world, const void *memory, size_t bytes);
/* Returns once every rank has entered (through the bootstrap: for set-up; see ry_barrier). */
ry_status ry_world_barrier(ry_world *world, int64_t deadline_ms);

/* Makes a world of those ranks that give the same `color`, in the order of `key` and, among equals, of their rank here.
 * A negative color: none for this rank, and *part is NULL. Collective over all ranks of `world`; freeing a part is not.
 * It shares rails and engine with the world that was opened, in whatever order they are freed. */
ry_status ry_world_split(ry_world *world, int color, int key, ry_world **part);
/* The rank of the same process in `other` (NULL: the world that was opened); -1: it is not in that one. */
int ry_world_translate(const ry_world *world, int rank, const ry_world *other);

/* What the engine counted since the world opened. */
typedef struct ry_world_statistics {
  uint64_t operations_completed;
  uint64_t acknowledgements_sent;
  uint64_t held_out_of_order; /* messages that arrived before their turn */
  uint64_t dropped_stale;     /* messages with an unknown or stale id */
  uint64_t dropped_malformed; /* messages that failed a check */
  uint64_t backpressure;      /* times a queue was full */
  uint64_t links_suspected;
  uint64_t links_lost;
  uint64_t links_rejoined;
  uint64_t fences;            /* dead links that their target has shut out */
  uint64_t segments_replayed; /* segments that went out again on another link */
  uint64_t peers_lost;
  uint64_t peers_stalled; /* times that a peer was silent though its process lived */
} ry_world_statistics;

/* One rail as it stands now. Texts are cut to fit, always ended by a zero. */
typedef struct ry_rail_statistics {
  char name[64];
  char provider[64];
  uint64_t bytes_sent;
  uint64_t bytes_received; /* where a NIC places bytes by itself: those that this process was told of */
  uint64_t frames_sent;    /* small-op messages */
  uint64_t writes_sent;    /* direct writes (chunks) */
  uint64_t reads_sent;
  double rate; /* measured delivery rate, bytes per second; 0: not measured yet */
  int up;      /* not 0: its interface can carry something */
  uint32_t links;
  uint32_t links_down;
  uint64_t links_suspected;   /* times that one was late */
  uint64_t links_lost;        /* times that one was given up */
  uint64_t segments_replayed; /* segments that it lost and that went out once more */
} ry_rail_statistics;

ry_status ry_world_read_statistics(const ry_world *world, ry_world_statistics *statistics);
ry_status ry_world_read_rail(const ry_world *world, size_t rail, ry_rail_statistics *statistics);

/* ---- window ------------------------------------------------------------------------------------------------------ */

/* Memory that every rank of a world exposes, with its signals and counters. */
typedef struct ry_window ry_window;

typedef struct ry_window_options {
  size_t signals;           /* 64-bit words that peers signal, all zero at the start */
  size_t counters;          /* 64-bit words that this rank's own operations advance */
  int per_rank;             /* not 0: ranks may bring different sizes; otherwise a difference is an error */
  uint64_t *signal_memory;  /* place for the signals; NULL: the window's own */
  uint64_t *counter_memory; /* place for the counters; NULL: the window's own */
  int native_atomics;       /* not 0: atomics by the targets' NICs, at most once (see window.hpp) */
  int device;               /* ry_window_allocate: in the memory of this GPU; -1: in host memory */
} ry_window_options;

/* The defaults: 64 signals, 64 counters, equal sizes, host memory of its own. */
ry_window_options ry_window_default_options(void);

/* Makes a window over zeroed memory that it owns. Collective. `options`: NULL for the defaults. */
ry_status ry_window_allocate(ry_world *world, size_t bytes, const ry_window_options *options, ry_window **window);
/* Makes a window over memory that the caller brings and keeps valid until the window is freed. Collective. */
ry_status ry_window_adopt(ry_world *world, void *memory, size_t bytes, const ry_window_options *options,
                          ry_window **window);
/* Completes what this rank has outstanding, waits for all ranks, then takes the window down. Collective. The handle
 * still has to be freed, and only that. */
ry_status ry_window_close(ry_window *window, int64_t deadline_ms);
/* Closes `count` windows under one deadline: their ranks wait for each other once. Collective: all ranks of a world
 * give the same windows of it, and whoever is in several worlds gives these in the same order. If a world fails its
 * windows stay open, those of the others are closed all the same (ry_window_is_open), and the error is the first one's.
 */
ry_status ry_window_close_all(ry_window *const *windows, size_t count, int64_t deadline_ms);
int ry_window_is_open(const ry_window *window); /* 0 for NULL */
/* Frees the handle; a window not closed before is taken down without waiting for the peers. */
void ry_window_free(ry_window *window);

void *ry_window_local(const ry_window *window);              /* this rank's memory; NULL for NULL */
size_t ry_window_bytes(const ry_window *window, int rank);   /* of `rank`'s memory; 0 for no such rank */
size_t ry_window_signals(const ry_window *window, int rank); /* of `rank`; 0 for no such rank */

typedef int ry_order;
enum { RY_ORDERED = 0, RY_RELAXED = 1 };
typedef int ry_comparison;
enum { RY_EQUAL = 0, RY_NOT_EQUAL = 1, RY_LESS = 2, RY_LESS_EQUAL = 3, RY_GREATER = 4, RY_GREATER_EQUAL = 5 };
typedef int ry_atomic_op;
enum {
  RY_ADD = 0,
  RY_INCREMENT = 1,
  RY_AND = 2,
  RY_OR = 3,
  RY_XOR = 4,
  RY_SET = 5,
  RY_SWAP = 6,
  RY_COMPARE_SWAP = 7,
  RY_FETCH = 8,
  RY_MIN = 9,
  RY_MAX = 10
};
/* What an atomic takes its word for. */
typedef int ry_word_type;
enum { RY_INT32 = 0, RY_UINT32 = 1, RY_INT64 = 2, RY_UINT64 = 3, RY_FLOAT = 4, RY_DOUBLE = 5 };
typedef int ry_signal_op;
enum { RY_SIGNAL_ADD = 0, RY_SIGNAL_SET = 1 };
/* Which completion to wait for: the source may be reused, or the bytes are visible at the target. */
typedef int ry_completion;
enum { RY_LOCAL = 0, RY_REMOTE = 1 };

/* A change to one signal of the target. */
typedef struct ry_signal_update {
  size_t index;
  uint64_t value;
  ry_signal_op op;
} ry_signal_update;

/* A change to one counter of the caller, made when the operation is done with its source. */
typedef struct ry_counter_update {
  size_t index;
  uint64_t value;
} ry_counter_update;

/* Names one operation. A plain value; it stays valid as long as its window. */
typedef struct ry_ticket {
  uint64_t number;
  int32_t peer;
  uint32_t slot;
} ry_ticket;

/* In every operation `ticket` may be NULL: ry_quiet covers it all the same. */

/* Copies `bytes` from `source` to `offset` in `rank`'s window. Non-blocking; `source` must stay unchanged until local
 * completion. With every queue full it waits for room, up to the default deadline. */
ry_status ry_put(ry_window *window, int rank, size_t offset, const void *source, size_t bytes, ry_order order,
                 ry_ticket *ticket);
/* Puts a value of 1 to 8 bytes, taken at the call. */
ry_status ry_put_value(ry_window *window, int rank, size_t offset, const void *value, size_t bytes, ry_ticket *ticket);
/* Copies `bytes` at `offset` of `rank`'s window to `destination`. Complete when the bytes are there. */
ry_status ry_get(ry_window *window, int rank, size_t offset, void *destination, size_t bytes, ry_ticket *ticket);
/* A put and, after it, a signal. Zero bytes: a signal alone. */
ry_status ry_put_signal(ry_window *window, int rank, size_t offset, const void *source, size_t bytes,
                        ry_signal_update signal, ry_ticket *ticket);
ry_status ry_put_counter(ry_window *window, int rank, size_t offset, const void *source, size_t bytes,
                         ry_counter_update counter, ry_ticket *ticket);
ry_status ry_put_signal_counter(ry_window *window, int rank, size_t offset, const void *source, size_t bytes,
                                ry_signal_update signal, ry_counter_update counter, ry_ticket *ticket);
ry_status ry_signal(ry_window *window, int rank, ry_signal_update signal, ry_ticket *ticket);

/* One block of a vector. */
typedef struct ry_put_block {
  const void *source;
  size_t offset; /* in the target's window */
  size_t bytes;
} ry_put_block;
typedef struct ry_get_block {
  void *destination;
  size_t offset;
  size_t bytes;
} ry_get_block;

/* Many blocks as one operation with one ticket; small ones travel together. All are checked before the first byte
 * moves. The list is free when the call returns. Where blocks overlap, either may win. A vector that fills a quarter of
 * a queue (256 large blocks, some 12,000 of 64 bytes) makes the call wait for most of it to complete (see window.hpp).
 */
ry_status ry_put_vector(ry_window *window, int rank, const ry_put_block *blocks, size_t count, ry_ticket *ticket);
/* The same and, after all of it, a signal. */
ry_status ry_put_vector_signal(ry_window *window, int rank, const ry_put_block *blocks, size_t count,
                               ry_signal_update signal, ry_ticket *ticket);
ry_status ry_get_vector(ry_window *window, int rank, const ry_get_block *blocks, size_t count, ry_ticket *ticket);

/* `count` blocks of `bytes` each; each further one is a stride (in bytes) behind the one before, here and there. */
typedef struct ry_strides {
  size_t count;
  size_t bytes;
  size_t local;
  size_t remote;
} ry_strides;

ry_status ry_put_strided(ry_window *window, int rank, size_t offset, const void *source, ry_strides blocks,
                         ry_ticket *ticket);
ry_status ry_put_strided_signal(ry_window *window, int rank, size_t offset, const void *source, ry_strides blocks,
                                ry_signal_update signal, ry_ticket *ticket);
ry_status ry_get_strided(ry_window *window, int rank, size_t offset, void *destination, ry_strides blocks,
                         ry_ticket *ticket);

/* Changes the unsigned integer of `width` bytes (4 or 8, aligned) at `offset` in `rank`'s window. `before`: NULL, or a
 * place of `width` bytes for what the word held before, valid until completion. `compare` is used by RY_COMPARE_SWAP
 * alone. */
ry_status ry_atomic(ry_window *window, int rank, size_t offset, ry_atomic_op op, size_t width, uint64_t operand,
                    uint64_t compare, void *before, ry_ticket *ticket);
/* The same for a word of any type; `operand`, `compare` and `before` point to one of that type, or are NULL: zero,
 * zero, and not wanted. RY_FLOAT and RY_DOUBLE have no RY_AND, RY_OR and RY_XOR; RY_MIN and RY_MAX prefer a number to a
 * NaN and take -0.0 for less than +0.0; RY_COMPARE_SWAP compares bits (see window.hpp). */
ry_status ry_atomic_typed(ry_window *window, int rank, size_t offset, ry_atomic_op op, ry_word_type type,
                          const void *operand, const void *compare, void *before, ry_ticket *ticket);

/* This rank's signal. No lock, no system call. What preceded the signal at its sender is visible after this. */
uint64_t ry_read_signal(const ry_window *window, size_t index);
/* Sets this rank's signal to zero, in turn with what the engine applies. */
ry_status ry_reset_signal(ry_window *window, size_t index);
/* Waits until the signal compares so with `value`; stores what it held then (`held` may be NULL). RY_PEER_LOST: every
 * other rank is gone. To name the rank that signals, see ry_wait_any_signal. */
ry_status ry_wait_signal(ry_window *window, size_t index, ry_comparison comparison, uint64_t value, int64_t deadline_ms,
                         uint64_t *held);

#define RY_ANY_RANK (-1)
/* A signal of this rank's and what it is waited for to be. `from`: the rank that signals, or RY_ANY_RANK. */
typedef struct ry_signal_condition {
  size_t index;
  ry_comparison comparison;
  uint64_t value;
  int from;
} ry_signal_condition;

/* Waits until one of the conditions is met: `which` and `held` (both may be NULL) say which one and what its signal
 * held then. RY_PEER_LOST: nobody is left who could meet any (its `from`, or every other rank). */
ry_status ry_wait_any_signal(ry_window *window, const ry_signal_condition *conditions, size_t count,
                             int64_t deadline_ms, size_t *which, uint64_t *held);
/* Waits until all conditions are met at once. RY_PEER_LOST: one cannot be met any more. */
ry_status ry_wait_all_signals(ry_window *window, const ry_signal_condition *conditions, size_t count,
                              int64_t deadline_ms);

uint64_t ry_read_counter(const ry_window *window, size_t index);
ry_status ry_reset_counter(ry_window *window, size_t index);
/* Waits until the counter is at least `value`. A counter says that the source is free, not that the bytes arrived: a
 * small put advances it at the call, even if its target refuses it later. An operation that failed before its source
 * was free does not advance it; its error comes out here. */
ry_status ry_wait_counter(ry_window *window, size_t index, uint64_t value, int64_t deadline_ms, uint64_t *held);

/* Whether the operation is complete: *done is 0 or 1. Makes progress. An operation that failed returns its error. */
ry_status ry_test(ry_window *window, ry_ticket ticket, ry_completion completion, int *done);
/* The same without progress: a look for an event loop, between ry_world_arm and its sleep. */
ry_status ry_peek(const ry_window *window, ry_ticket ticket, ry_completion completion, int *done);
ry_status ry_wait(ry_window *window, ry_ticket ticket, ry_completion completion, int64_t deadline_ms);

#define RY_ALL_RANKS (-1)
/* Every later operation to `rank` (or RY_ALL_RANKS) takes effect after every earlier one, relaxed ones too. Does not
 * wait. */
ry_status ry_fence(ry_window *window, int rank);
/* Waits until every operation to `rank` (or RY_ALL_RANKS) is complete at its target. Free when nothing is outstanding.
 * For all ranks it tells once of each rank that was lost with something under way, then goes on without it. */
ry_status ry_quiet(ry_window *window, int rank, int64_t deadline_ms);
/* Completes this rank's operations, then waits until every rank has entered. Fails where one is lost. After RY_TIMEOUT
 * this rank is still inside: the next call goes on with the same barrier. */
ry_status ry_barrier(ry_window *window, int64_t deadline_ms);

/* ---- channels ---------------------------------------------------------------------------------------------------- */

/* A channel is a first-in-first-out message stream between two processes. It needs no world, only a handle that travels
 * from the process that listens to the one that connects. Nothing blocks but ry_channel_wait, ry_channel_close and the
 * end of registered memory. RY_BUSY: not yet, call again; it leaves ry_error_text as it was. */

typedef struct ry_listener ry_listener;
typedef struct ry_channel ry_channel;
/* Memory registered for the messages of one channel. */
typedef struct ry_memory ry_memory;
/* Names a send or a receive under way, until ry_channel_test or ry_channel_wait said that it is done. A plain value:
 * one that names nothing any more is an error of the call. */
typedef struct ry_request {
  uint64_t number;
} ry_request;

/* Names a listener: plain bytes, to be carried by any means. Whoever holds them may connect, so they are a secret of
 * the job. The connecting side keeps its progress in its copy: pass the same one again until there is a channel. */
typedef struct ry_handle {
  uint64_t words[16];
} ry_handle;

ry_status ry_context_listen(ry_context *context, ry_listener **listener);
ry_status ry_listener_handle(const ry_listener *listener, ry_handle *handle);
/* The next channel that was connected; RY_BUSY: none yet. It outlives the listener. */
ry_status ry_listener_accept(ry_listener *listener, ry_channel **channel);
void ry_listener_free(ry_listener *listener);

/* RY_BUSY: the listener has not answered yet; call again with the same handle. Channels of different service classes
 * never share a link; 0: the usual one. One from 4 to 255 also marks their packets over tcp rails (DSCP times 4). */
ry_status ry_context_connect(ry_context *context, ry_handle *handle, uint32_t service_class, ry_channel **channel);
/* Gives up a connect that will not be called again. */
void ry_context_abandon(ry_context *context, ry_handle *handle);

/* Registers memory of the host or of a GPU for messages. Optional for host memory: otherwise it happens on the way. */
ry_status ry_channel_register(ry_channel *channel, void *memory, size_t bytes, ry_memory **registered);
/* What registered memory is for. RY_FOR_ANY: messages both ways, as ry_channel_register has it. RY_FOR_SENDS: sources
 * only: no peer gets the right to read or write it, and a receive into it is RY_INVALID. */
typedef int ry_memory_use;
enum { RY_FOR_ANY = 0, RY_FOR_SENDS = 1 };
ry_status ry_channel_register_for(ry_channel *channel, void *memory, size_t bytes, ry_memory_use use,
                                  ry_memory **registered);
/* Returns when nobody can touch the memory any more. Messages of it that are under way end the channel. */
void ry_memory_free(ry_memory *registered);

/* Begins to send a message; its bytes stay as they are until it is done. `registered`: what they lie in, or NULL.
 * RY_BUSY: 256 sends are under way. */
ry_status ry_channel_send(ry_channel *channel, const void *message, size_t bytes, int tag, const ry_memory *registered,
                          ry_request *request);

/* A slot for one message of a receive. */
typedef struct ry_receive_slot {
  void *memory;
  size_t bytes;
  int tag;
  const ry_memory *registered; /* what `memory` lies in, or NULL */
} ry_receive_slot;

#define RY_MOST_SLOTS 8
/* Begins to receive `count` messages, 1 to RY_MOST_SLOTS. A message goes into the oldest receive that has a free slot
 * of its tag; messages of one tag stay in order. RY_BUSY: 256 receives are under way. */
ry_status ry_channel_receive(ry_channel *channel, const ry_receive_slot *slots, size_t count, ry_request *request);

/* Whether the request is done: *done is 0 or 1. Makes progress. If it is, the request is gone, and `sizes` has the
 * bytes of each slot (or of the send), `count` of them at most; NULL and 0: not wanted. An error ends the channel;
 * where the peer has closed it or is lost, what has arrived can still be received. */
ry_status ry_channel_test(ry_channel *channel, ry_request request, int *done, uint64_t *sizes, size_t count);
ry_status ry_channel_wait(ry_channel *channel, ry_request request, uint64_t *sizes, size_t count, int64_t deadline_ms);

/* Gives up what is under way; returns when nobody can touch memory of this channel any more. Messages whose sends were
 * done are delivered all the same. The handle still has to be freed. */
void ry_channel_close(ry_channel *channel);
/* Closes it first where that was not done. Its registered memory is freed before. */
void ry_channel_free(ry_channel *channel);

/* What can be seen of a channel. The text is cut to fit, always ended by a zero. */
typedef struct ry_channel_statistics {
  char peer[64];    /* the other process's identity */
  uint32_t route;   /* which set of links it uses; those of one number are shared */
  uint32_t sharers; /* channels on them */
  uint64_t messages_sent;
  uint64_t messages_received;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t eager_sent; /* messages that needed no grant */
  uint64_t unexpected; /* messages that came before their receive */
} ry_channel_statistics;

ry_status ry_channel_read_statistics(const ry_channel *channel, ry_channel_statistics *statistics);

#ifdef __cplusplus
}
#endif

#endif /* RAILYARD_RAILYARD_H */
