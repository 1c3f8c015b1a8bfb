#include "plain_c.h"

#include <string.h>

#define EXPECT(condition)              \
  do {                                 \
    if (!(condition)) return __LINE__; \
  } while (0)

enum { kBlock = 200 * 1000 };

int plain_c_operations(ry_window *window) {
  static unsigned char source[kBlock];
  static unsigned char back[kBlock];
  const ry_signal_update signal = {3, 5, RY_SIGNAL_ADD};
  const ry_signal_update set = {4, 77, RY_SIGNAL_SET};
  const ry_counter_update counter = {2, 1};
  unsigned char *mine = ry_window_local(window);
  uint64_t before = 0;
  uint32_t before32 = 0;
  uint64_t held = 0;
  ry_ticket ticket;
  int done = 0;
  size_t i;
  for (i = 0; i < sizeof source; ++i) source[i] = (unsigned char)(i * 7 + 1);

  EXPECT(ry_put(window, 0, 0, source, sizeof source, RY_ORDERED, &ticket) == RY_OK);
  EXPECT(ry_wait(window, ticket, RY_LOCAL, RY_DEFAULT) == RY_OK);
  EXPECT(ry_wait(window, ticket, RY_REMOTE, 10000) == RY_OK);
  EXPECT(memcmp(mine, source, sizeof source) == 0);
  EXPECT(ry_get(window, 0, 0, back, sizeof back, &ticket) == RY_OK);
  do {
    EXPECT(ry_test(window, ticket, RY_REMOTE, &done) == RY_OK);
  } while (!done);
  EXPECT(memcmp(back, source, sizeof source) == 0);
  done = 0;
  EXPECT(ry_peek(window, ticket, RY_REMOTE, &done) == RY_OK && done);

  EXPECT(ry_put(window, 0, 64, source + 3, 1000, RY_RELAXED, NULL) == RY_OK);
  EXPECT(ry_fence(window, 0) == RY_OK);
  EXPECT(ry_fence(window, RY_ALL_RANKS) == RY_OK);
  EXPECT(ry_put_signal(window, 0, 2000, source + 9, 500, signal, NULL) == RY_OK);
  EXPECT(ry_wait_signal(window, 3, RY_GREATER_EQUAL, 5, RY_DEFAULT, &held) == RY_OK && held == 5);
  EXPECT(memcmp(mine + 64, source + 3, 1000) == 0 && memcmp(mine + 2000, source + 9, 500) == 0);
  EXPECT(ry_read_signal(window, 3) == 5);
  EXPECT(ry_reset_signal(window, 3) == RY_OK && ry_read_signal(window, 3) == 0);
  EXPECT(ry_signal(window, 0, set, NULL) == RY_OK);
  EXPECT(ry_wait_signal(window, 4, RY_EQUAL, 77, RY_DEFAULT, NULL) == RY_OK);

  EXPECT(ry_put_counter(window, 0, 0, source, 16, counter, NULL) == RY_OK);
  EXPECT(ry_put_signal_counter(window, 0, 16, source, 16, signal, counter, NULL) == RY_OK);
  EXPECT(ry_wait_counter(window, 2, 2, RY_DEFAULT, &held) == RY_OK && held == 2);
  EXPECT(ry_read_counter(window, 2) == 2);
  EXPECT(ry_reset_counter(window, 2) == RY_OK && ry_read_counter(window, 2) == 0);

  before = 40;
  EXPECT(ry_put_value(window, 0, 4096, &before, 8, NULL) == RY_OK);
  EXPECT(ry_atomic(window, 0, 4096, RY_ADD, 8, 2, 0, NULL, NULL) == RY_OK);
  EXPECT(ry_atomic(window, 0, 4096, RY_COMPARE_SWAP, 8, 9, 42, &before, &ticket) == RY_OK);
  EXPECT(ry_wait(window, ticket, RY_REMOTE, RY_DEFAULT) == RY_OK && before == 42);
  EXPECT(ry_atomic(window, 0, 4096, RY_FETCH, 8, 0, 0, &before, &ticket) == RY_OK);
  EXPECT(ry_wait(window, ticket, RY_REMOTE, RY_DEFAULT) == RY_OK && before == 9);
  EXPECT(ry_atomic(window, 0, 4104, RY_SET, 4, 0xf0f0f0f0u, 0, NULL, NULL) == RY_OK);
  EXPECT(ry_atomic(window, 0, 4104, RY_AND, 4, 0xffff0000u, 0, NULL, NULL) == RY_OK);
  EXPECT(ry_atomic(window, 0, 4104, RY_OR, 4, 1, 0, NULL, NULL) == RY_OK);
  EXPECT(ry_atomic(window, 0, 4104, RY_XOR, 4, 3, 0, NULL, NULL) == RY_OK);
  EXPECT(ry_atomic(window, 0, 4104, RY_INCREMENT, 4, 0, 0, NULL, NULL) == RY_OK);
  EXPECT(ry_atomic(window, 0, 4104, RY_SWAP, 4, 1, 0, &before32, &ticket) == RY_OK);
  EXPECT(ry_wait(window, ticket, RY_REMOTE, RY_DEFAULT) == RY_OK && before32 == 0xf0f00003u);
  EXPECT(ry_quiet(window, 0, RY_DEFAULT) == RY_OK);
  {
    const double half = 0.5, less = -2.0;
    double was = 7;
    const int32_t minus = -4;
    int32_t was32 = 7;
    EXPECT(ry_atomic_typed(window, 0, 4112, RY_SET, RY_DOUBLE, NULL, NULL, NULL, NULL) == RY_OK);
    EXPECT(ry_atomic_typed(window, 0, 4120, RY_SET, RY_INT32, NULL, NULL, NULL, NULL) == RY_OK);
    EXPECT(ry_atomic_typed(window, 0, 4112, RY_ADD, RY_DOUBLE, &half, NULL, NULL, NULL) == RY_OK);
    EXPECT(ry_atomic_typed(window, 0, 4112, RY_MIN, RY_DOUBLE, &less, NULL, &was, &ticket) == RY_OK);
    EXPECT(ry_wait(window, ticket, RY_REMOTE, RY_DEFAULT) == RY_OK && was == 0.5);
    EXPECT(ry_atomic_typed(window, 0, 4112, RY_FETCH, RY_DOUBLE, NULL, NULL, &was, &ticket) == RY_OK);
    EXPECT(ry_wait(window, ticket, RY_REMOTE, RY_DEFAULT) == RY_OK && was == -2.0);
    EXPECT(ry_atomic_typed(window, 0, 4120, RY_MIN, RY_INT32, &minus, NULL, NULL, NULL) == RY_OK);
    EXPECT(ry_atomic_typed(window, 0, 4120, RY_MAX, RY_INT32, NULL, NULL, &was32, &ticket) == RY_OK);
    EXPECT(ry_wait(window, ticket, RY_REMOTE, RY_DEFAULT) == RY_OK && was32 == -4);
    EXPECT(ry_atomic_typed(window, 0, 4120, RY_ADD, 6, NULL, NULL, NULL, NULL) == RY_INVALID);
    EXPECT(ry_atomic_typed(window, 0, 4120, RY_AND, RY_FLOAT, NULL, NULL, NULL, NULL) == RY_INVALID);
  }
  {
    const ry_put_block puts[2] = {{source, 5000, 10}, {source + 100, 5020, 20}};
    unsigned char got[60];
    const ry_get_block gets[2] = {{got, 5020, 20}, {got + 30, 5000, 10}};
    const ry_strides rows = {3, 4, 10, 100};
    const ry_signal_update after = {5, 1, RY_SIGNAL_ADD};
    EXPECT(ry_put_vector(window, 0, puts, 1, NULL) == RY_OK);
    EXPECT(ry_put_vector_signal(window, 0, puts, 2, after, &ticket) == RY_OK);
    EXPECT(ry_wait_signal(window, 5, RY_EQUAL, 1, RY_DEFAULT, NULL) == RY_OK);
    EXPECT(memcmp(mine + 5000, source, 10) == 0 && memcmp(mine + 5020, source + 100, 20) == 0);
    EXPECT(ry_get_vector(window, 0, gets, 2, &ticket) == RY_OK);
    EXPECT(ry_wait(window, ticket, RY_REMOTE, RY_DEFAULT) == RY_OK);
    EXPECT(memcmp(got, source + 100, 20) == 0 && memcmp(got + 30, source, 10) == 0);
    EXPECT(ry_put_strided(window, 0, 6000, source, rows, NULL) == RY_OK);
    EXPECT(ry_put_strided_signal(window, 0, 6000, source, rows, after, NULL) == RY_OK);
    EXPECT(ry_wait_signal(window, 5, RY_EQUAL, 2, RY_DEFAULT, NULL) == RY_OK);
    EXPECT(memcmp(mine + 6100, source + 10, 4) == 0 && memcmp(mine + 6200, source + 20, 4) == 0);
    EXPECT(ry_get_strided(window, 0, 6000, got, rows, &ticket) == RY_OK);
    EXPECT(ry_wait(window, ticket, RY_REMOTE, RY_DEFAULT) == RY_OK && memcmp(got + 10, source + 10, 4) == 0);
    EXPECT(ry_put_vector(window, 0, NULL, 0, NULL) == RY_OK && ry_put_vector(window, 0, NULL, 1, NULL) == RY_INVALID);
    EXPECT(ry_put_vector(window, 1, puts, 2, NULL) == RY_OUT_OF_RANGE);
  }
  EXPECT(ry_quiet(window, RY_ALL_RANKS, RY_NEVER) == RY_OK);
  EXPECT(ry_barrier(window, RY_DEFAULT) == RY_OK);
  return 0;
}

int plain_c_exchange(ry_window *window, int rank) {
  static unsigned char blocks[2][kBlock];
  const ry_signal_update signal = {0, 1, RY_SIGNAL_ADD};
  unsigned char *block = blocks[rank];
  const unsigned char *mine = ry_window_local(window);
  uint64_t round;
  for (round = 1; round <= 20; ++round) {
    const size_t bytes = round % 2 == 0 ? kBlock : 100;
    memset(block, (int)round * 4 + rank, bytes);
    EXPECT(ry_put_signal(window, 1 - rank, 0, block, bytes, signal, NULL) == RY_OK);
    EXPECT(ry_wait_signal(window, 0, RY_GREATER_EQUAL, round, RY_DEFAULT, NULL) == RY_OK);
    EXPECT(mine[0] == (unsigned char)(round * 4 + 1u - (unsigned)rank));
    EXPECT(mine[bytes - 1] == mine[0]);
    EXPECT(ry_barrier(window, RY_DEFAULT) == RY_OK);
  }
  return 0;
}

static int connect_both(ry_context *context, ry_channel *ends[2]) {
  ry_listener *listener = NULL;
  ry_handle handle;
  ry_status connected = RY_BUSY;
  ry_status accepted = RY_BUSY;
  EXPECT(ry_context_listen(context, &listener) == RY_OK);
  EXPECT(ry_listener_handle(listener, &handle) == RY_OK);
  while (connected == RY_BUSY || accepted == RY_BUSY) {
    if (connected == RY_BUSY) connected = ry_context_connect(context, &handle, 0, &ends[0]);
    if (accepted == RY_BUSY) accepted = ry_listener_accept(listener, &ends[1]);
  }
  EXPECT(connected == RY_OK && accepted == RY_OK);
  ry_listener_free(listener);
  return 0;
}

/* Memory for sends is sent from, and nothing is received into it. */
static int send_from_memory_for_sends(ry_channel *ends[2], unsigned char *source, unsigned char *target) {
  ry_memory *sources = NULL;
  ry_request send;
  ry_request receive;
  ry_receive_slot slot = {source, kBlock, 9, NULL};
  EXPECT(ry_channel_register_for(ends[1], source, kBlock, 2, &sources) == RY_INVALID && sources == NULL);
  EXPECT(strstr(ry_error_text(), "RY_FOR_SENDS") != NULL);
  EXPECT(ry_channel_register_for(ends[1], source, kBlock, RY_FOR_SENDS, &sources) == RY_OK);
  slot.registered = sources;
  EXPECT(ry_channel_receive(ends[1], &slot, 1, &receive) == RY_INVALID);
  EXPECT(strstr(ry_error_text(), "for sends") != NULL);
  slot.memory = target;
  slot.registered = NULL;
  memset(target, 0, kBlock);
  EXPECT(ry_channel_receive(ends[0], &slot, 1, &receive) == RY_OK);
  EXPECT(ry_channel_send(ends[1], source, kBlock, 9, sources, &send) == RY_OK);
  EXPECT(ry_channel_wait(ends[0], receive, NULL, 0, RY_DEFAULT) == RY_OK);
  EXPECT(ry_channel_wait(ends[1], send, NULL, 0, RY_DEFAULT) == RY_OK);
  EXPECT(memcmp(target, source, kBlock) == 0);
  ry_memory_free(sources);

  /* For any use, as without the choice. */
  EXPECT(ry_channel_register_for(ends[0], target, kBlock, RY_FOR_ANY, &sources) == RY_OK);
  memset(target, 0, kBlock);
  slot.registered = sources;
  EXPECT(ry_channel_receive(ends[0], &slot, 1, &receive) == RY_OK);
  EXPECT(ry_channel_send(ends[1], source, kBlock, 9, NULL, &send) == RY_OK);
  EXPECT(ry_channel_wait(ends[0], receive, NULL, 0, RY_DEFAULT) == RY_OK);
  EXPECT(ry_channel_wait(ends[1], send, NULL, 0, RY_DEFAULT) == RY_OK);
  EXPECT(memcmp(target, source, kBlock) == 0);
  ry_memory_free(sources);
  return 0;
}

int plain_c_messages(ry_context *context) {
  static unsigned char source[kBlock];
  static unsigned char target[kBlock];
  ry_channel *ends[2] = {NULL, NULL};
  ry_memory *sources = NULL;
  ry_memory *targets = NULL;
  ry_request sends[3];
  ry_request receive;
  uint64_t sizes[2] = {0, 0};
  ry_receive_slot slots[2] = {{target, 100, 7, NULL}, {target + 100, 100, 8, NULL}};
  ry_channel_statistics seen;
  int done = 0;
  size_t i;
  int line = connect_both(context, ends);
  if (line != 0) return line;
  for (i = 0; i < sizeof source; ++i) source[i] = (unsigned char)(i * 5 + 3);

  /* Two messages for the slots of their tags, whatever their order. */
  EXPECT(ry_channel_receive(ends[1], slots, 2, &receive) == RY_OK);
  EXPECT(ry_channel_send(ends[0], source, 50, 8, NULL, &sends[0]) == RY_OK);
  EXPECT(ry_channel_send(ends[0], source + 50, 60, 7, NULL, &sends[1]) == RY_OK);
  EXPECT(ry_channel_wait(ends[1], receive, sizes, 2, RY_DEFAULT) == RY_OK);
  EXPECT(sizes[0] == 60 && sizes[1] == 50);
  EXPECT(memcmp(target, source + 50, 60) == 0 && memcmp(target + 100, source, 50) == 0);
  while (!done) EXPECT(ry_channel_test(ends[0], sends[0], &done, NULL, 0) == RY_OK);
  EXPECT(ry_channel_wait(ends[0], sends[1], NULL, 0, 10000) == RY_OK);

  /* A long one between registered memory, the other way. */
  EXPECT(ry_channel_register(ends[1], source, sizeof source, &sources) == RY_OK);
  EXPECT(ry_channel_register(ends[0], target, sizeof target, &targets) == RY_OK);
  slots[0].bytes = sizeof target;
  slots[0].registered = targets;
  EXPECT(ry_channel_receive(ends[0], slots, 1, &receive) == RY_OK);
  EXPECT(ry_channel_send(ends[1], source, sizeof source, 7, sources, &sends[2]) == RY_OK);
  EXPECT(ry_channel_wait(ends[0], receive, sizes, 1, RY_DEFAULT) == RY_OK && sizes[0] == sizeof source);
  EXPECT(ry_channel_wait(ends[1], sends[2], NULL, 0, RY_DEFAULT) == RY_OK);
  EXPECT(memcmp(target, source, sizeof target) == 0);
  EXPECT(ry_channel_read_statistics(ends[0], &seen) == RY_OK);
  EXPECT(seen.messages_sent == 2 && seen.messages_received == 1 && seen.bytes_received == sizeof source);
  ry_memory_free(sources);
  ry_memory_free(targets);
  line = send_from_memory_for_sends(ends, source, target);
  if (line != 0) return line;

  /* What was done is a request no more. */
  EXPECT(ry_channel_test(ends[0], sends[0], &done, NULL, 0) == RY_INVALID);
  ry_channel_close(ends[0]);
  EXPECT(ry_channel_send(ends[0], source, 1, 0, NULL, &sends[0]) == RY_INVALID);
  ry_channel_free(ends[0]);
  ry_channel_free(ends[1]);
  return 0;
}
