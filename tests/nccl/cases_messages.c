/* Cases about messages: how many at a time, sizes, groups, registration. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define REQUESTS 256 /* 32 for each of 8 messages of a group */
#define STALE ((void *)0xbad)

/* ---- c ----------------------------------------------------------------------------------------------------------- */

struct all_requests {
  struct pair *pair;
  size_t bytes;
};

static void fill_sends(struct pair *pair, size_t bytes, void **requests) {
  const struct rank *const rank = pair->rank;
  for (int i = 0; i < REQUESTS; ++i) {
    fill(pair->send_arena + (size_t)i * bytes, bytes, (uint64_t)i);
    requests[i] = STALE;
    CHECK_OK(plugin_isend(&rank->plugin, pair->sender, pair->send_arena + (size_t)i * bytes, bytes, 5,
                          pair->send_memory, &profile_parent, &requests[i]));
    CHECK(requests[i] != NULL && requests[i] != STALE, "request %d of %d is given", i, REQUESTS);
  }
  void *one_more = STALE;
  CHECK_OK(plugin_isend(&rank->plugin, pair->sender, pair->send_arena, bytes, 5, pair->send_memory, &profile_parent,
                        &one_more));
  CHECK(one_more == NULL, "a stale *request is overwritten with NULL when all requests are under way");
}

static void fill_receives(struct pair *pair, size_t bytes, void **requests) {
  const struct rank *const rank = pair->rank;
  int tag = 5;
  void *parent = &profile_parent;
  for (int i = 0; i < REQUESTS; ++i) {
    void *data = pair->receive_arena + (size_t)i * bytes;
    requests[i] = STALE;
    CHECK_OK(plugin_irecv(&rank->plugin, pair->receiver, 1, &data, &bytes, &tag, &pair->receive_memory, &parent,
                          &requests[i]));
    CHECK(requests[i] != NULL && requests[i] != STALE, "request %d of %d is given", i, REQUESTS);
  }
  for (void *stale = STALE; stale != NULL;) {
    void *data = pair->receive_arena;
    CHECK_OK(
        plugin_irecv(&rank->plugin, pair->receiver, 1, &data, &bytes, &tag, &pair->receive_memory, &parent, &stale));
    CHECK(stale == NULL, "a stale *request is overwritten with NULL when all requests are under way");
    stale = NCCL_OPTIONAL_COMPLETION;
    CHECK_OK(
        plugin_irecv(&rank->plugin, pair->receiver, 1, &data, &bytes, &tag, &pair->receive_memory, &parent, &stale));
    CHECK(stale == NULL, "the hint in *request does not stay there when nothing was posted");
  }
}

static void use_all_requests(void *argument) {
  const struct all_requests *const all = argument;
  struct pair *const pair = all->pair;
  struct rank *const rank = pair->rank;
  void *requests[2 * REQUESTS]; /* sends, then receives */
  int sizes[2 * REQUESTS];
  /* Nobody receives before all was sent. */
  fill_sends(pair, all->bytes, requests);
  meet(rank);
  fill_receives(pair, all->bytes, requests + REQUESTS);
  finish(&rank->plugin, requests, 2 * REQUESTS, sizes);
  for (int i = 0; i < REQUESTS; ++i) {
    CHECK(sizes[REQUESTS + i] == (int)all->bytes, "message %d: %d bytes, not %zu", i, sizes[REQUESTS + i], all->bytes);
    const size_t wrong = first_wrong(pair->receive_arena + (size_t)i * all->bytes, all->bytes, (uint64_t)i);
    CHECK(wrong == all->bytes, "message %d is wrong from byte %zu on", i, wrong);
  }
}

static void requests_body(struct rank *rank) {
  const size_t sizes[] = {1, 64, 4096, 65536};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
    struct pair pair;
    open_pair(&pair, rank, REQUESTS * 65536);
    struct all_requests all = {&pair, sizes[i]};
    run_job(&rank->progress, use_all_requests, &all);
    run_job(&rank->progress, use_all_requests, &all); /* all of them are free again */
    meet(rank);
    close_pair(&pair);
  }
}
void case_requests(struct rank *rank) { with_communicator(rank, requests_body); }

/* ---- d ----------------------------------------------------------------------------------------------------------- */

static void wait_for_bytes(const unsigned char *data, size_t bytes, uint64_t seed) {
  const uint64_t begin = now_ns();
  const volatile unsigned char *const last = data + bytes - 1; /* as a kernel looks at the flag */
  unsigned char *const expected = malloc(bytes);
  fill(expected, bytes, seed);
  while (*last != expected[bytes - 1] || memcmp(data, expected, bytes) != 0) {
    CHECK(now_ns() - begin < 20000000000U, "the bytes of an optional completion never came");
    usleep(10); /* a GPU polls, not a core that others need */
  }
  free(expected);
}

static void receive_without_completion(void *argument) {
  struct pair *const pair = argument;
  const struct rank *const rank = pair->rank;
  const size_t bytes = 8192;
  int tag = 5;
  void *parent = &profile_parent;
  for (int i = 0; i < 100; ++i) {
    const bool hint = i % 3 != 2 && !THREAD_SANITIZED;
    void *requests[2] = {NULL, NULL};
    void *data = pair->receive_arena;
    size_t room = bytes;
    memset(pair->receive_arena, 0, bytes);
    while (requests[0] == NULL) {
      requests[0] = hint ? NCCL_OPTIONAL_COMPLETION : NULL;
      CHECK_OK(plugin_irecv(&rank->plugin, pair->receiver, 1, &data, &room, &tag, &pair->receive_memory, &parent,
                            &requests[0]));
      CHECK(requests[0] != NCCL_OPTIONAL_COMPLETION, "the hint in *request is no request");
    }
    fill(pair->send_arena, bytes, (uint64_t)i + 1);
    while (requests[1] == NULL)
      CHECK_OK(plugin_isend(&rank->plugin, pair->sender, pair->send_arena, bytes, 5, pair->send_memory, parent,
                            &requests[1]));
    finish(&rank->plugin, requests, 2, NULL);
    if (hint) wait_for_bytes(pair->receive_arena, bytes, (uint64_t)i + 1);
    CHECK(first_wrong(pair->receive_arena, bytes, (uint64_t)i + 1) == bytes, "message %d is wrong", i);
    meet(pair->rank); /* the arena is used again */
  }
}

static void optional_body(struct rank *rank) {
  struct pair pair;
  open_pair(&pair, rank, 1 << 16);
  run_job(&rank->progress, receive_without_completion, &pair);
  close_pair(&pair);
}
void case_optional(struct rank *rank) { with_communicator(rank, optional_body); }

/* ---- e ----------------------------------------------------------------------------------------------------------- */

static void exchange_one(struct pair *pair, size_t bytes, size_t room) {
  const struct rank *const rank = pair->rank;
  void *requests[2] = {NULL, NULL};
  void *data = pair->receive_arena;
  void *parent = &profile_parent;
  int tag = 5;
  int sizes[2] = {-1, -1};
  fill(pair->send_arena, bytes, bytes + 1);
  CHECK_OK(
      plugin_irecv(&rank->plugin, pair->receiver, 1, &data, &room, &tag, &pair->receive_memory, &parent, &requests[0]));
  CHECK_OK(
      plugin_isend(&rank->plugin, pair->sender, pair->send_arena, bytes, 5, pair->send_memory, parent, &requests[1]));
  CHECK(requests[0] != NULL && requests[1] != NULL, "a first request is given");
  finish(&rank->plugin, requests, 2, sizes);
  const int expected = bytes > INT32_MAX ? INT32_MAX : (int)bytes;
  CHECK(sizes[0] == expected && sizes[1] == expected, "%zu bytes are reported as %d and %d", bytes, sizes[0], sizes[1]);
  const size_t wrong = first_wrong(pair->receive_arena, bytes, bytes + 1);
  CHECK(wrong == bytes, "a message of %zu bytes is wrong from byte %zu on", bytes, wrong);
}

static void exchange_sizes(void *argument) {
  struct pair *const pair = argument;
  const size_t most = pair->arena_bytes;
  const size_t sizes[] = {0, 1, 7, 8, 255, 256, 1023, 1024, 1025, 4096, 16384, 65535, 65536, 65537, 1 << 20, most};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
    exchange_one(pair, sizes[i], sizes[i]);
    if (sizes[i] + 100 <= most) exchange_one(pair, sizes[i], sizes[i] + 100);
    if (sizes[i] < 1 << 20) exchange_one(pair, sizes[i], most);
  }
}

static void sizes_body(struct rank *rank) {
  const char *const given = getenv("TEST_LONG");
  const bool all = given != NULL && strcmp(given, "1") == 0;
  size_t most = (size_t)8 << 20;
  /* The largest that fits an int, and what does not. */
  if (rank->plugin.version == 8 && all) most = NCCL_MOST_BYTES_V8;
  if (rank->plugin.version == 12 && !SANITIZED) most = all ? (size_t)5 << 30 : NCCL_MOST_BYTES_V8 + 8192;
  struct pair pair;
  open_pair(&pair, rank, most);
  run_job(&rank->progress, exchange_sizes, &pair);
  meet(rank);
  close_pair(&pair);
}
void case_sizes(struct rank *rank) { with_communicator(rank, sizes_body); }

struct excess {
  struct pair *pair;
  size_t bytes;
};

static void send_too_much(void *argument) {
  const struct excess *const excess = argument;
  struct pair *const pair = excess->pair;
  struct rank *const rank = pair->rank;
  size_t room = excess->bytes - 1;
  void *request = NULL;
  void *data = pair->receive_arena;
  int tag = 5;
  if (rank->number == 0) {
    memset(pair->receive_arena, 0x77, excess->bytes);
    CHECK_OK(plugin_irecv(&rank->plugin, pair->receiver, 1, &data, &room, &tag, &pair->receive_memory, NULL, &request));
    int done = 0;
    nccl_result answer = NCCL_OK;
    const uint64_t begin = now_ns();
    while (answer == NCCL_OK && !done && now_ns() - begin < 20000000000U)
      answer = rank->plugin.test(request, &done, NULL);
    CHECK(answer == NCCL_INVALID_USAGE, "a message longer than its buffer is refused, not %d (done %d)", answer, done);
    char text[32];
    snprintf(text, sizeof(text), "%zu", excess->bytes);
    CHECK(strstr(last_warning(), text) != NULL, "the warning names the size: %s", last_warning());
    snprintf(text, sizeof(text), "%zu", room);
    CHECK(strstr(last_warning(), text) != NULL, "the warning names the room: %s", last_warning());
    CHECK(pair->receive_arena[excess->bytes - 1] == 0x77, "nothing is written behind the buffer");
  } else {
    fill(pair->send_arena, excess->bytes, 3);
    CHECK_OK(plugin_isend(&rank->plugin, pair->sender, pair->send_arena, excess->bytes, 5, pair->send_memory, NULL,
                          &request));
    /* Whether the sender is told depends on the size: what it must not do is hang or crash. */
    int done = 0;
    for (int i = 0; i < 1000 && !done; ++i)
      if (rank->plugin.test(request, &done, NULL) != NCCL_OK) break;
  }
}

static void too_long_body(struct rank *rank) {
  const size_t sizes[] = {64, 1 << 20};
  for (size_t i = 0; i < 2; ++i) {
    struct pair pair;
    open_pair(&pair, rank, 1 << 21);
    struct excess excess = {&pair, sizes[i]};
    run_job(&rank->progress, send_too_much, &excess);
    meet(rank);
    close_pair(&pair); /* a comm that has failed still closes */
  }
}
void case_too_long(struct rank *rank) { with_communicator(rank, too_long_body); }

/* ---- f ----------------------------------------------------------------------------------------------------------- */

static void groups_body(struct rank *rank) {
  for (int group = 1; group <= 8; ++group) {
    struct pair pair;
    open_pair(&pair, rank, (size_t)8 * 8 * 40000);
    const struct stream stream = {
        .messages = 40 * group, .most_bytes = 40000, .window = 8, .group = group, .smaller_sends = group % 2 == 0};
    stream_between(&pair, &stream);
    meet(rank);
    close_pair(&pair);
  }
}
void case_groups(struct rank *rank) { with_communicator(rank, groups_body); }

/* ---- g ----------------------------------------------------------------------------------------------------------- */

static atomic_bool traffic_over;

static void register_again_and_again(void *argument) {
  struct pair *const pair = argument;
  const struct plugin *const plugin = &pair->rank->plugin;
  uint64_t random = pair->rank->seed + 99;
  for (int i = 0; i < 200 || !atomic_load(&traffic_over); ++i) {
    void *memory[2] = {NULL, NULL};
    const size_t begin = (size_t)(next_random(&random) % (pair->arena_bytes / 2));
    const size_t bytes = 1 + (size_t)(next_random(&random) % (pair->arena_bytes / 2));
    CHECK_OK(plugin->regMr(pair->sender, pair->send_arena + begin, bytes, NCCL_POINTER_HOST, &memory[0]));
    CHECK_OK(plugin->regMr(pair->receiver, pair->receive_arena + begin, bytes, NCCL_POINTER_HOST, &memory[1]));
    CHECK(memory[0] != NULL && memory[1] != NULL, "regMr answers with a handle");
    CHECK_OK(plugin->deregMr(pair->sender, memory[0]));
    CHECK_OK(plugin->deregMr(pair->receiver, memory[1]));
  }
}

static void registration_body(struct rank *rank) {
  struct pair pair;
  open_pair(&pair, rank, (size_t)16 << 18);
  atomic_store(&traffic_over, false);
  start_job(&rank->service, register_again_and_again, &pair);
  const struct stream stream = {.messages = 300, .most_bytes = 1 << 18, .window = 16, .group = 1};
  stream_between(&pair, &stream);
  atomic_store(&traffic_over, true);
  wait_for(&rank->service);
  meet(rank);
  close_pair(&pair);
}
void case_registration(struct rank *rank) { with_communicator(rank, registration_body); }
