/* Cases about what begins and ends: requests, communicators, the library, rails. */
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <linux/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

/* ---- h ----------------------------------------------------------------------------------------------------------- */

static void test_again(void *argument) {
  struct pair *const pair = argument;
  struct rank *const rank = pair->rank;
  const struct plugin *const plugin = &rank->plugin;
  void *data = pair->receive_arena;
  size_t room = 4096;
  int tag = 5;
  void *requests[2] = {NULL, NULL};
  CHECK_OK(plugin_irecv(plugin, pair->receiver, 1, &data, &room, &tag, &pair->receive_memory, NULL, &requests[0]));
  for (int i = 0; i < 1000; ++i) { /* not done is not done, however often it is asked */
    int done = 1;
    CHECK_OK(plugin->test(requests[0], &done, NULL));
    CHECK(done == 0, "nothing was sent yet");
  }
  meet(rank);
  fill(pair->send_arena, 4096, 9);
  CHECK_OK(plugin_isend(plugin, pair->sender, pair->send_arena, 4096, 5, pair->send_memory, NULL, &requests[1]));
  void *const gone[2] = {requests[0], requests[1]};
  finish(plugin, requests, 2, NULL);
  int done = 1;
  for (int i = 0; i < 2; ++i)
    CHECK(plugin->test(gone[i], &done, NULL) == NCCL_INTERNAL_ERROR && done == 0, "a request is gone once it was done");
  CHECK(plugin->test(NULL, &done, NULL) == NCCL_INTERNAL_ERROR, "no request is no request");
}

static void test_once_body(struct rank *rank) {
  struct pair pair;
  open_pair(&pair, rank, 1 << 20);
  run_job(&rank->progress, test_again, &pair);
  const struct stream stream = {.messages = 500, .most_bytes = 4096, .window = 32, .group = 1};
  stream_between(&pair, &stream); /* the comm is as good as new */
  meet(rank);
  close_pair(&pair);
}
void case_test_once(struct rank *rank) { with_communicator(rank, test_once_body); }

/* ---- i: communicators -------------------------------------------------------------------------------------------- */

static void communicators_body(struct rank *rank) {
  enum { kMany = 4 };
  void *contexts[kMany];
  struct pair pairs[kMany];
  void *const first = rank->context;
  for (int i = 0; i < kMany; ++i) {
    CHECK_OK(plugin_init(&rank->plugin, &contexts[i], i % 2 == 0 ? NCCL_UNDEFINED : i));
    rank->context = contexts[i];
    open_pair(&pairs[i], rank, 1 << 19);
  }
  CHECK_OK(plugin_finalize(&rank->plugin, first)); /* others go on */
  const struct stream stream = {.messages = 100, .most_bytes = 1 << 15, .window = 8, .group = 1};
  for (int i = 0; i < kMany; ++i) stream_between(&pairs[i], &stream);
  meet(rank);
  for (int i = 0; i < kMany; ++i) close_pair(&pairs[i]);
  for (int i = 0; i < kMany; ++i) CHECK_OK(plugin_finalize(&rank->plugin, contexts[i]));
  CHECK_OK(plugin_finalize(&rank->plugin, contexts[0])); /* twice, */
  CHECK_OK(plugin_finalize(&rank->plugin, NULL));        /* without init */
  CHECK_OK(plugin_init(&rank->plugin, &rank->context, NCCL_UNDEFINED));
  open_pair(&pairs[0], rank, 1 << 19); /* and all over again */
  stream_between(&pairs[0], &stream);
  meet(rank);
  close_pair(&pairs[0]);
}
void case_communicators(struct rank *rank) { with_communicator(rank, communicators_body); }

/* ---- i: communicators come and go -------------------------------------------------------------------------------- */

static long resident_kilobytes(void) {
  FILE *const status = fopen("/proc/self/status", "r");
  char line[256];
  long kilobytes = -1;
  while (fgets(line, sizeof(line), status) != NULL)
    if (strncmp(line, "VmRSS:", 6) == 0) kilobytes = strtol(line + 6, NULL, 10);
  fclose(status);
  return kilobytes;
}

static void come_and_go(struct rank *rank) {
  struct pair pair;
  CHECK_OK(plugin_init(&rank->plugin, &rank->context, NCCL_UNDEFINED));
  open_pair(&pair, rank, 1 << 16);
  const struct stream stream = {.messages = 8, .most_bytes = 8000, .window = 4, .group = 1};
  stream_between(&pair, &stream);
  meet(rank);
  close_pair(&pair);
  CHECK_OK(plugin_finalize(&rank->plugin, rank->context));
}

void case_cycles(struct rank *rank) {
  /* A sanitizer keeps freed memory: there it is the calls that are looked at, not the growth. */
  const int cycles = given_long() ? 1000 : SANITIZED ? 20 : 100;
  start_threads(rank);
  for (int i = 0; i < 20; ++i) come_and_go(rank);
  const long before = resident_kilobytes();
  for (int i = 0; i < cycles; ++i) come_and_go(rank);
  const long grown = resident_kilobytes() - before;
  end_threads(rank);
  if (rank->number == 0) printf("%d communicators: %ld KiB more\n", cycles, grown);
  /* What the allocator keeps for threads that come and go differs by some MiB; what is left each time adds up. */
  CHECK(SANITIZED || grown < 8192 + 4L * cycles, "%d communicators left %ld KiB behind", cycles, grown);
}

/* ---- i: the library is unloaded ---------------------------------------------------------------------------------- */

struct holdings {
  int descriptors;
  int threads;
  int mappings; /* of files and of this library */
  int of_plugin;
};

static int count_entries(const char *folder) {
  DIR *const opened = opendir(folder);
  CHECK(opened != NULL, "no %s", folder);
  int count = 0;
  while (readdir(opened) != NULL) ++count;
  closedir(opened);
  return count;
}

static struct holdings look(void) {
  struct holdings held = {count_entries("/proc/self/fd"), count_entries("/proc/self/task"), 0, 0};
  FILE *const maps = fopen("/proc/self/maps", "r");
  char line[1024];
  while (fgets(line, sizeof(line), maps) != NULL) {
    held.mappings += strchr(line, '/') != NULL;
    held.of_plugin += strstr(line, "nccl-net-railyard") != NULL;
  }
  fclose(maps);
  return held;
}

/* A thread that was joined may be in the list for a moment. */
static struct holdings look_calmly(int threads) {
  struct holdings held = look();
  for (int i = 0; i < 100 && held.threads > threads; ++i) {
    usleep(10000);
    held = look();
  }
  return held;
}

enum ending { kOrderly, kWithoutFinalize, kConnectAbandoned, kEndings };

static void use_and_close(struct rank *rank, enum ending ending, int threads) {
  CHECK_OK(plugin_init(&rank->plugin, &rank->context, NCCL_UNDEFINED));
  start_threads(rank);
  struct pair pair;
  open_pair(&pair, rank, 1 << 19);
  const struct stream stream = {.messages = 40, .most_bytes = 1 << 15, .window = 8, .group = 1};
  stream_between(&pair, &stream);
  meet(rank);
  close_pair(&pair);
  if (ending == kConnectAbandoned) {
    unsigned char handle[NCCL_HANDLE_BYTES];
    void *listener = NULL;
    void *sender = NULL;
    CHECK_OK(plugin_listen(&rank->plugin, rank->context, 0, handle, &listener));
    send_to_peer(rank, handle, sizeof(handle));
    receive_from_peer(rank, handle, sizeof(handle));
    CHECK_OK(plugin_connect(&rank->plugin, rank->context, 0, handle, &sender));
    meet(rank);
    if (sender != NULL) CHECK_OK(rank->plugin.closeSend(sender));
    CHECK_OK(rank->plugin.closeListen(listener));
  }
  end_threads(rank);
  if (ending != kWithoutFinalize) CHECK_OK(plugin_finalize(&rank->plugin, rank->context));
  if (ending == kOrderly) {
    const struct holdings held = look_calmly(threads);
    CHECK(held.threads == threads, "%d threads of the plugin are left after the last close", held.threads - threads);
  }
}

void case_unload(struct rank *rank) {
  const int version = rank->plugin.version;
  CHECK_OK(plugin_init(&rank->plugin, &rank->context, NCCL_UNDEFINED)); /* libfabric stays from here on */
  CHECK_OK(plugin_finalize(&rank->plugin, rank->context));
  unload_plugin(&rank->plugin);
  start_threads(rank); /* a sanitizer adds a thread of its own with the first */
  end_threads(rank);
  usleep(100000);
  struct holdings before = look();
  for (int i = 0; i < 9; ++i) {
    rank->plugin = load_plugin(rank->library, version);
    use_and_close(rank, (enum ending)(i % kEndings), before.threads);
    unload_plugin(&rank->plugin);
    const struct holdings after = look_calmly(before.threads);
    CHECK(after.of_plugin == 0, "the library is still mapped after dlclose");
    const pid_t child = fork(); /* nothing that the library left behind is called */
    if (child == 0) _exit(0);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "a process forks after dlclose");
    /* What libfabric and the C library keep once is there after the first round. */
    CHECK(after.threads == before.threads, "round %d: %d threads, %d before", i, after.threads, before.threads);
    if (i >= kEndings) {
      CHECK(after.descriptors == before.descriptors, "round %d: %d descriptors, %d before", i, after.descriptors,
            before.descriptors);
      CHECK(after.mappings <= before.mappings, "round %d: %d mappings, %d before", i, after.mappings, before.mappings);
    }
    before = after;
  }
  rank->plugin = load_plugin(rank->library, version);
}

/* ---- j ----------------------------------------------------------------------------------------------------------- */

/* The fd of a TCP connection that has carried a good part of the traffic; -1: none. */
static int busy_connection(void) {
  for (int fd = 3; fd < 1024; ++fd) {
    struct sockaddr_storage peer;
    socklen_t bytes = sizeof(peer);
    struct tcp_info info;
    socklen_t info_bytes = sizeof(info);
    memset(&info, 0, sizeof(info));
    if (getpeername(fd, (struct sockaddr *)&peer, &bytes) != 0 || peer.ss_family == AF_UNIX) continue;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_bytes) != 0) continue;
    if (info.tcpi_bytes_acked > 1 << 20) return fd;
  }
  return -1;
}

static int rails_killed;

static void kill_rail(void *argument) {
  (void)argument;
  const char *const command = getenv("TEST_CUT"); /* where rails are no sockets */
  if (command != NULL) {
    CHECK(system(command) == 0, "%s", command);
    ++rails_killed;
    return;
  }
  const int fd = busy_connection();
  if (fd < 0) return;
  CHECK(shutdown(fd, SHUT_RDWR) == 0, "shutdown");
  ++rails_killed;
}

static void rail_killed_body(struct rank *rank) {
  struct pair pair;
  open_pair(&pair, rank, (size_t)16 << 20);
  for (int round = 0; round < 4; ++round) {
    struct stream stream = {.messages = 64, .most_bytes = 1 << 20, .same_size = true, .window = 16, .group = 1};
    if (round > 0 && round % 2 == rank->number) stream.midway = kill_rail; /* the first round finds who is busy */
    stream_between(&pair, &stream);
  }
  CHECK(rails_killed > 0 || rank->number == 1, "a connection under load was found and cut");
  meet(rank);
  close_pair(&pair);
}
void case_rail_killed(struct rank *rank) { with_communicator(rank, rail_killed_body); }

/* ---- k ----------------------------------------------------------------------------------------------------------- */

static void stream_body(struct rank *rank) {
  struct pair pair;
  open_pair(&pair, rank, (size_t)16 << 19);
  const struct stream small = {.messages = 2000, .most_bytes = 2000, .window = 32, .group = 1};
  const struct stream large = {.messages = 300, .most_bytes = 1 << 19, .window = 16, .group = 1};
  stream_between(&pair, &small);
  stream_between(&pair, &large);
  meet(rank);
  close_pair(&pair);
}
void case_stream(struct rank *rank) { with_communicator(rank, stream_body); }

/* ---- a comm is closed, or its peer dies, with messages under way --------------------------------------------------
 */

enum { kUnderWay = 32 };

static void post_many(void *argument) {
  struct pair *const pair = argument;
  const struct plugin *const plugin = &pair->rank->plugin;
  for (int i = 0; i < kUnderWay; ++i) {
    void *request = NULL;
    void *data = pair->receive_arena + ((size_t)i << 20);
    size_t room = 1 << 20;
    int tag = 5;
    nccl_result answer = plugin_isend(plugin, pair->sender, pair->send_arena + ((size_t)i << 20), room, 5,
                                      pair->send_memory, NULL, &request);
    /* One rank receives only half of it. */
    if (answer == NCCL_OK && (i % 2 == 0 || pair->rank->number == 0))
      answer = plugin_irecv(plugin, pair->receiver, 1, &data, &room, &tag, &pair->receive_memory, NULL, &request);
    /* The other rank may have closed its end by now. */
    CHECK(answer == NCCL_OK || answer == NCCL_REMOTE_ERROR, "%d: %s", answer, last_warning());
  }
}

static void close_under_way_body(struct rank *rank) {
  struct pair pair;
  for (int round = 0; round < 3; ++round) {
    open_pair(&pair, rank, (size_t)kUnderWay << 20);
    meet(rank);
    run_job(&rank->progress, post_many, &pair);
    if (round == 1) meet(rank);
    if (round == 2 && rank->number == 1) usleep(50000);
    const uint64_t begin = now_ns();
    close_pair(&pair);
    CHECK(now_ns() - begin < 10000000000U, "closing took %.1f s", (double)(now_ns() - begin) / 1e9);
    meet(rank);
  }
}
void case_close_under_way(struct rank *rank) { with_communicator(rank, close_under_way_body); }

static void test_until_error(void *argument) {
  struct pair *const pair = argument;
  const struct plugin *const plugin = &pair->rank->plugin;
  void *request = NULL;
  void *data = pair->receive_arena;
  size_t room = 1 << 20;
  int tag = 5;
  int done = 0;
  const uint64_t begin = now_ns();
  /* It may be known already that the peer has died. */
  nccl_result answer =
      plugin_irecv(plugin, pair->receiver, 1, &data, &room, &tag, &pair->receive_memory, NULL, &request);
  while (answer == NCCL_OK && !done) answer = plugin->test(request, &done, NULL);
  CHECK(answer == NCCL_REMOTE_ERROR, "a peer that died is a remote error, not %d (done %d)", answer, done);
  CHECK(now_ns() - begin < 20000000000U, "it took %.1f s to say so", (double)(now_ns() - begin) / 1e9);
}

static void peer_dies_body(struct rank *rank) {
  struct pair pair;
  open_pair(&pair, rank, (size_t)kUnderWay << 20);
  const struct stream stream = {.messages = 20, .most_bytes = 1 << 16, .window = 4, .group = 1};
  stream_between(&pair, &stream);
  meet(rank);
  if (rank->number == 1) _exit(0); /* without a word */
  run_job(&rank->progress, test_until_error, &pair);
  close_pair(&pair);
}
void case_peer_dies(struct rank *rank) {
  setenv("RAILYARD_PEER_TIMEOUT_MS", "3000", 1);
  with_communicator(rank, peer_dies_body);
}

/* ---- the process ends with everything open ----------------------------------------------------------------------- */

void case_exit(struct rank *rank) {
  static struct pair pair;
  CHECK_OK(plugin_init(&rank->plugin, &rank->context, NCCL_UNDEFINED));
  start_threads(rank);
  open_pair(&pair, rank, 1 << 20);
  const struct stream stream = {.messages = 100, .most_bytes = 1 << 15, .window = 8, .group = 1};
  stream_between(&pair, &stream);
  meet(rank);
  exit(0); /* as a program that forgets its communicators */
}
