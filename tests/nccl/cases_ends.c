/* Cases about the end of comms: what was sent is there, what was taken back is not touched, nobody waits for long. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

/* ---- what is done is the receiver's, whatever the sender does next ------------------------------------------------
 */

static const size_t kSmall = 512;

static void send_small(void *argument) {
  struct pair *const pair = argument;
  const struct plugin *const plugin = &pair->rank->plugin;
  void *requests[20] = {NULL};
  for (int i = 0; i < 20; ++i) {
    unsigned char *const data = pair->send_arena + (size_t)i * kSmall;
    fill(data, kSmall, (uint64_t)i);
    CHECK_OK(plugin_isend(plugin, pair->sender, data, kSmall, 5, pair->send_memory, NULL, &requests[i]));
    CHECK(requests[i] != NULL, "a request");
  }
  finish(plugin, requests, 20, NULL);
}

/* The answer of an irecv, or of the tests of its request. */
static nccl_result receive_small(struct pair *pair, int count, int first) {
  const struct plugin *const plugin = &pair->rank->plugin;
  void *requests[8] = {NULL};
  size_t room = kSmall;
  int tag = 5;
  for (int i = 0; i < count; ++i) {
    void *data = pair->receive_arena + (size_t)(first + i) * kSmall;
    const nccl_result answer =
        plugin_irecv(plugin, pair->receiver, 1, &data, &room, &tag, &pair->receive_memory, NULL, &requests[i]);
    if (answer != NCCL_OK) return answer;
    CHECK(requests[i] != NULL, "a request");
  }
  for (int i = 0; i < count; ++i) {
    int done = 0;
    int size = 0;
    nccl_result answer = NCCL_OK;
    while (answer == NCCL_OK && !done) answer = plugin->test(requests[i], &done, &size);
    if (answer != NCCL_OK) return answer;
    CHECK(size == (int)kSmall, "message %d has %d bytes", first + i, size);
    CHECK(first_wrong(pair->receive_arena + (size_t)(first + i) * kSmall, kSmall, (uint64_t)(first + i)) == kSmall,
          "message %d is wrong", first + i);
  }
  return NCCL_OK;
}

/* Local calls that need no peer. */
static void register_after_the_end(struct pair *pair) {
  const struct plugin *const plugin = &pair->rank->plugin;
  void *memory = NULL;
  CHECK_OK(plugin->regMr(pair->receiver, pair->receive_arena, kSmall, NCCL_POINTER_HOST, &memory));
  CHECK_OK(plugin->deregMr(pair->receiver, memory));
  CHECK_OK(plugin->regMr(pair->sender, pair->send_arena, kSmall, NCCL_POINTER_HOST, &memory));
  CHECK_OK(plugin->deregMr(pair->sender, memory));
}

static void receive_late(void *argument) {
  struct pair *const pair = argument;
  usleep(300000); /* the sender has closed its comms, finalized and exited */
  register_after_the_end(pair);
  const int each[] = {1, 3, 8, 8};
  for (int i = 0, first = 0; i < 4; first += each[i++]) {
    const nccl_result answer = receive_small(pair, each[i], first);
    CHECK(answer == NCCL_OK, "messages %d to %d of 20: %d: %s", first, first + each[i] - 1, answer, last_warning());
  }
  CHECK(receive_small(pair, 1, 20) == NCCL_REMOTE_ERROR, "then there is nobody left to receive from");
  register_after_the_end(pair);
}

static void sent_then_closed_body(struct rank *rank) {
  struct pair pair;
  open_pair(&pair, rank, 1 << 16);
  if (rank->number == 0) {
    run_job(&rank->progress, send_small, &pair);
    send_to_peer(rank, "m", 1);
  } else {
    char word = 0;
    receive_from_peer(rank, &word, 1);
    run_job(&rank->progress, receive_late, &pair);
  }
  close_pair(&pair);
}
void case_sent_then_closed(struct rank *rank) { with_communicator(rank, sent_then_closed_body); }

/* ---- an abort takes memory back before it closes ------------------------------------------------------------------
 */

enum { kPosted = 8, kRounds = 4 };
static const size_t kLarge = 1 << 20;

/* Memory that is given back to the system, and taken again at the same place for something else. */
static unsigned char *map_at(unsigned char *place) {
  const int fixed = place == NULL ? 0 : MAP_FIXED;
  unsigned char *const mapped =
      mmap(place, kPosted * kLarge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  CHECK(mapped != MAP_FAILED, "no memory");
  return mapped;
}

struct aborted {
  struct pair *pair;
  unsigned char *memory;
  void *registered;
  bool sends;
};

static void post_large(void *argument) {
  struct aborted *const aborted = argument;
  struct pair *const pair = aborted->pair;
  const struct plugin *const plugin = &pair->rank->plugin;
  int tag = 5;
  for (int i = 0; i < kPosted; ++i) {
    void *request = NULL;
    void *data = aborted->memory + (size_t)i * kLarge;
    size_t room = kLarge;
    nccl_result answer = NCCL_OK;
    if (aborted->sends) {
      fill(data, kLarge, (uint64_t)i);
      answer = plugin_isend(plugin, pair->sender, data, kLarge, tag, aborted->registered, NULL, &request);
    } else {
      answer = plugin_irecv(plugin, pair->receiver, 1, &data, &room, &tag, &aborted->registered, NULL, &request);
    }
    CHECK(answer == NCCL_OK || answer == NCCL_REMOTE_ERROR, "%d: %s", answer, last_warning());
    int done = 0;
    if (answer == NCCL_OK) plugin->test(request, &done, NULL);
  }
}

/* deregMr, the memory is something else's, later the close: NCCL's order. */
static void take_back(struct aborted *aborted) {
  const struct plugin *const plugin = &aborted->pair->rank->plugin;
  void *const comm = aborted->sends ? aborted->pair->sender : aborted->pair->receiver;
  CHECK_OK(plugin->deregMr(comm, aborted->registered));
  CHECK(munmap(aborted->memory, kPosted * kLarge) == 0, "munmap");
  usleep(20000);
  map_at(aborted->memory);
  memset(aborted->memory, 0x5a, kPosted * kLarge);
}

static void expect_untouched(const struct aborted *aborted) {
  size_t changed = 0;
  for (size_t i = 0; i < kPosted * kLarge; ++i) changed += aborted->memory[i] != 0x5a;
  CHECK(changed == 0, "%zu bytes of memory that was deregistered have been overwritten", changed);
}

/* What arrives after the sender's memory has become something else's must not pass for a message. */
static void receive_from_aborted(void *argument) {
  struct pair *const pair = argument;
  const struct plugin *const plugin = &pair->rank->plugin;
  int tag = 5;
  for (int i = 0; i < kPosted; ++i) {
    void *request = NULL;
    void *data = pair->receive_arena + (size_t)i * kLarge;
    size_t room = kLarge;
    int done = 0;
    nccl_result answer =
        plugin_irecv(plugin, pair->receiver, 1, &data, &room, &tag, &pair->receive_memory, NULL, &request);
    while (answer == NCCL_OK && !done) answer = plugin->test(request, &done, NULL);
    if (answer != NCCL_OK) return;
    CHECK(first_wrong(pair->receive_arena + (size_t)i * kLarge, kLarge, (uint64_t)i) == kLarge,
          "message %d was done with bytes that nobody sent", i);
  }
}

/* Rank 0 aborts; rank 1 knows nothing of it and goes on. `early`: the other side's half is under way already. */
static void abort_once(struct rank *rank, bool sends, bool early) {
  struct pair pair;
  open_pair(&pair, rank, kPosted * kLarge);
  struct aborted aborted = {&pair, NULL, NULL, sends};
  struct aborted other = {&pair, pair.send_arena, pair.send_memory, true};
  if (rank->number == 0) {
    aborted.memory = map_at(NULL);
    CHECK_OK(rank->plugin.regMr(sends ? pair.sender : pair.receiver, aborted.memory, kPosted * kLarge,
                                NCCL_POINTER_HOST, &aborted.registered));
    if (early) meet(rank);
    run_job(&rank->progress, post_large, &aborted);
    if (early) usleep((useconds_t)(next_random(&rank->seed) % 3000));
    take_back(&aborted);
    if (!early) meet(rank);
    usleep(200000);
    expect_untouched(&aborted);
  } else {
    meet(rank);
    run_job(&rank->progress, sends ? receive_from_aborted : post_large, sends ? (void *)&pair : (void *)&other);
  }
  close_pair(&pair);
  if (rank->number == 0) {
    expect_untouched(&aborted);
    munmap(aborted.memory, kPosted * kLarge);
  }
  meet(rank);
}

static void abort_order_body(struct rank *rank) {
  struct pair pair; /* on the same links, of which no abort may take anything away */
  open_pair(&pair, rank, 1 << 20);
  for (int round = 0; round < kRounds; ++round)
    for (int kind = 0; kind < 4; ++kind) abort_once(rank, kind / 2 == 1, kind % 2 == 1);
  const struct stream stream = {.messages = 100, .most_bytes = 1 << 16, .window = 8, .group = 1};
  stream_between(&pair, &stream);
  meet(rank);
  close_pair(&pair);
}
void case_abort_order(struct rank *rank) { with_communicator(rank, abort_order_body); }

/* ---- a peer is stopped in the middle of its messages, and goes on when their memory is something else's ------------
 */

static bool is_stopped(pid_t process) {
  char name[64];
  char line[512] = "";
  snprintf(name, sizeof(name), "/proc/%d/stat", (int)process);
  FILE *const file = fopen(name, "r");
  if (file == NULL) return false;
  const bool read = fgets(line, sizeof(line), file) != NULL;
  fclose(file);
  const char *const end = strrchr(line, ')'); /* of the process's name */
  return read && end != NULL && end[1] == ' ' && end[2] == 'T';
}

static void send_and_stop(void *argument) {
  struct aborted *const sends = argument;
  post_large(sends);
  usleep((useconds_t)(next_random(&sends->pair->rank->seed) % 2000));
  raise(SIGSTOP);
}

static void abort_stopped_once(struct rank *rank) {
  struct pair pair;
  open_pair(&pair, rank, kPosted * kLarge);
  struct aborted receives = {&pair, NULL, NULL, false};
  struct aborted sends = {&pair, pair.send_arena, pair.send_memory, true};
  pid_t peer = getpid();
  if (rank->number == 0) {
    receives.memory = map_at(NULL);
    CHECK_OK(
        rank->plugin.regMr(pair.receiver, receives.memory, kPosted * kLarge, NCCL_POINTER_HOST, &receives.registered));
    run_job(&rank->progress, post_large, &receives);
  }
  send_to_peer(rank, &peer, sizeof(peer));
  receive_from_peer(rank, &peer, sizeof(peer));
  if (rank->number == 1) {
    run_job(&rank->progress, send_and_stop, &sends);
  } else {
    while (!is_stopped(peer)) usleep(100);
    take_back(&receives);
    kill(peer, SIGCONT);
  }
  meet(rank);
  usleep(200000);
  if (rank->number == 0) expect_untouched(&receives);
  close_pair(&pair);
  if (rank->number == 0) {
    expect_untouched(&receives);
    munmap(receives.memory, kPosted * kLarge);
  }
  meet(rank);
}

static void abort_stopped_body(struct rank *rank) {
  struct pair beside;
  open_pair(&beside, rank, 1 << 20);
  for (int round = 0; round < kRounds; ++round) abort_stopped_once(rank);
  const struct stream stream = {.messages = 100, .most_bytes = 1 << 16, .window = 8, .group = 1};
  stream_between(&beside, &stream);
  meet(rank);
  close_pair(&beside);
}
void case_abort_stopped(struct rank *rank) { with_communicator(rank, abort_stopped_body); }

/* ---- stopped peers ------------------------------------------------------------------------------------------------
 */

enum { kStopped = 4 };
#define TIMEOUT_MS 3000

/* As many links as comms: what several stopped peers are. */
static void stopped_peers_body(struct rank *rank) {
  struct pair pairs[kStopped];
  for (int i = 0; i < kStopped; ++i) {
    open_pair(&pairs[i], rank, kPosted * kLarge);
    struct aborted receives = {&pairs[i], pairs[i].receive_arena, pairs[i].receive_memory, false};
    run_job(&rank->progress, post_large, &receives);
  }
  pid_t peer = getpid();
  send_to_peer(rank, &peer, sizeof(peer));
  receive_from_peer(rank, &peer, sizeof(peer));
  if (rank->number == 1) {
    raise(SIGSTOP);
  } else {
    usleep(200000);
    const uint64_t begin = now_ns();
    for (int i = 0; i < kStopped; ++i) close_pair(&pairs[i]);
    const double seconds = (double)(now_ns() - begin) / 1e9;
    kill(peer, SIGCONT);
    CHECK(seconds < 1.0 * TIMEOUT_MS / 1000,
          "%d comms with a stopped peer took %.1f s to close, with a time-out of %d s", kStopped, seconds,
          TIMEOUT_MS / 1000);
  }
  meet(rank);
  for (int i = 0; i < kStopped && rank->number == 1; ++i) close_pair(&pairs[i]);
  meet(rank);
}
void case_stopped_peers(struct rank *rank) {
  char text[16];
  snprintf(text, sizeof(text), "%d", TIMEOUT_MS);
  setenv("RAILYARD_TIMEOUT_MS", text, 1);
  setenv("RAILYARD_SHARED_LINKS", "0", 1);
  setenv("RAILYARD_WORKERS", "4", 1); /* each of which waits for its own peers */
  with_communicator(rank, stopped_peers_body);
}

/* ---- several threads end their comms with messages under way ------------------------------------------------------
 */

enum { kThreads = 4, kUnderWay = 32 };

static void *post_and_close(void *argument) {
  struct pair *const pair = argument;
  const struct plugin *const plugin = &pair->rank->plugin;
  uint64_t random = pair->rank->seed + (uint64_t)(uintptr_t)pair;
  const int receives = (int)(next_random(&random) % (kUnderWay + 1)); /* the others' sends wait for ever */
  int tag = 5;
  void *sends[kUnderWay] = {NULL};
  for (int i = 0; i < kUnderWay; ++i) {
    void *request = NULL;
    void *data = pair->receive_arena + (size_t)i * kLarge;
    size_t room = kLarge;
    nccl_result answer = NCCL_OK;
    if (i < receives)
      answer = plugin_irecv(plugin, pair->receiver, 1, &data, &room, &tag, &pair->receive_memory, NULL, &request);
    if (answer == NCCL_OK)
      answer = plugin_isend(plugin, pair->sender, pair->send_arena + (size_t)i * kLarge, kLarge, tag, pair->send_memory,
                            NULL, &request);
    CHECK(answer == NCCL_OK || answer == NCCL_REMOTE_ERROR, "%d: %s", answer, last_warning());
    sends[i] = request;
  }
  /* Some get through, some are half-way, some have not begun. */
  const uint64_t until = now_ns() + next_random(&random) % 20000000;
  for (int i = 0; i < kUnderWay && now_ns() < until;) {
    int done = 0;
    if (sends[i] == NULL || plugin->test(sends[i], &done, NULL) != NCCL_OK || done) ++i;
  }
  CHECK_OK(plugin->deregMr(pair->sender, pair->send_memory));
  CHECK_OK(plugin->deregMr(pair->receiver, pair->receive_memory));
  CHECK_OK(plugin->closeSend(pair->sender));
  CHECK_OK(plugin->closeRecv(pair->receiver));
  free(pair->send_arena);
  free(pair->receive_arena);
  return NULL;
}

static void end_together(struct rank *rank) {
  const int rounds = SANITIZED ? 4 : 20;
  for (int round = 0; round < rounds; ++round) {
    struct pair pairs[kThreads];
    pthread_t threads[kThreads];
    for (int i = 0; i < kThreads; ++i) open_pair(&pairs[i], rank, kUnderWay * kLarge);
    (void)next_random(&rank->seed);
    meet(rank);
    const uint64_t begin = now_ns();
    for (int i = 0; i < kThreads; ++i)
      CHECK(pthread_create(&threads[i], NULL, post_and_close, &pairs[i]) == 0, "no thread");
    for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
    const double seconds = (double)(now_ns() - begin) / 1e9;
    CHECK(seconds < 15, "round %d: half the time-out is over, %.1f s", round, seconds);
    meet(rank);
  }
}

/* The links go with the last comm, and its last word must not. */
void case_threads_end_alone(struct rank *rank) { with_communicator(rank, end_together); }

static void threads_end_body(struct rank *rank) {
  struct pair beside; /* shares the links: whoever shuts the peer out ends this one, too */
  open_pair(&beside, rank, 1 << 20);
  end_together(rank);
  const struct stream stream = {.messages = 100, .most_bytes = 1 << 16, .window = 8, .group = 1};
  stream_between(&beside, &stream);
  meet(rank);
  close_pair(&beside);
}
void case_threads_end(struct rank *rank) { with_communicator(rank, threads_end_body); }
