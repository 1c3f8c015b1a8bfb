/* Cases about connections: handles, order, requests, the end of a comm. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

/* Far more than a call takes, far less than one that waits for somebody. */
#define PROMPT_NS 100000000U

void with_communicator(struct rank *rank, rank_case body) {
  CHECK_OK(plugin_init(&rank->plugin, &rank->context, NCCL_UNDEFINED));
  start_threads(rank);
  body(rank);
  end_threads(rank);
  CHECK_OK(plugin_finalize(&rank->plugin, rank->context));
}

struct stream_job {
  struct pair *pair;
  const struct stream *stream;
};

static void stream_on_progress(void *argument) {
  const struct stream_job *const job = argument;
  run_stream(job->pair, job->stream);
}

void stream_between(struct pair *pair, const struct stream *stream) {
  struct stream_job job = {pair, stream};
  run_job(&pair->rank->progress, stream_on_progress, &job);
}

/* ---- a ----------------------------------------------------------------------------------------------------------- */

#define GUARD 64

static void handles(void *argument) {
  struct rank *const rank = argument;
  const struct plugin *const plugin = &rank->plugin;
  unsigned char room[GUARD + 1 + NCCL_HANDLE_BYTES + GUARD];
  unsigned char *const handle = room + GUARD + 1; /* of no alignment at all */
  void *listener = NULL;
  void *sender = NULL;
  void *receiver = NULL;
  if (rank->number == 0) {
    memset(room, 0xa5, sizeof(room));
    CHECK_OK(plugin_listen(plugin, rank->context, 0, handle, &listener));
    for (size_t i = 0; i < sizeof(room); ++i)
      CHECK((i > GUARD && i <= GUARD + NCCL_HANDLE_BYTES) || room[i] == 0xa5, "listen wrote outside 128 bytes");
    send_to_peer(rank, handle, NCCL_HANDLE_BYTES);
    meet(rank); /* the other rank has called connect many times */
    while (receiver == NULL) CHECK_OK(plugin->accept(listener, &receiver, NULL));
    send_to_peer(rank, "r", 1);
    void *second = NULL;
    for (int i = 0; i < 100; ++i) CHECK_OK(plugin->accept(listener, &second, NULL));
    CHECK(second == NULL, "many calls of connect with one handle are one connection");
    CHECK_OK(plugin->closeListen(listener));
    CHECK_OK(plugin->closeRecv(receiver));
    return;
  }
  memset(room, 0x5a, sizeof(room));
  receive_from_peer(rank, handle, NCCL_HANDLE_BYTES);
  for (int i = 0; i < 50 && sender == NULL; ++i) {
    CHECK_OK(plugin_connect(plugin, rank->context, 0, handle, &sender));
    usleep(1000);
  }
  for (size_t i = 0; i < sizeof(room); ++i)
    CHECK((i > GUARD && i <= GUARD + NCCL_HANDLE_BYTES) || room[i] == 0x5a, "connect wrote outside 128 bytes");
  meet(rank);
  while (sender == NULL) CHECK_OK(plugin_connect(plugin, rank->context, 0, handle, &sender));
  char word;
  receive_from_peer(rank, &word, 1);
  CHECK_OK(plugin->closeSend(sender));
}

static void handle_body(struct rank *rank) { run_job(&rank->service, handles, rank); }
void case_handle(struct rank *rank) { with_communicator(rank, handle_body); }

/* ---- b ----------------------------------------------------------------------------------------------------------- */

/* On a busy machine a slow call now and then means nothing. */
static struct tally {
  int calls;
  int slow;
} connects, accepts;

static void note_call(struct tally *tally, uint64_t begin) {
  ++tally->calls;
  tally->slow += now_ns() - begin > PROMPT_NS;
}

static void timed_connect(struct rank *rank, void *handle, void **sender) {
  const uint64_t begin = now_ns();
  CHECK_OK(plugin_connect(&rank->plugin, rank->context, 0, handle, sender));
  note_call(&connects, begin);
}

static void timed_accept(struct rank *rank, void *listener, void **receiver) {
  const uint64_t begin = now_ns();
  CHECK_OK(rank->plugin.accept(listener, receiver, NULL));
  note_call(&accepts, begin);
}

/* One connection each way. `accept_first`: what this rank finishes before it begins the other. */
static void connect_mutually(struct rank *rank, bool accept_first, bool in_turn) {
  unsigned char handle[NCCL_HANDLE_BYTES];
  void *listener = NULL;
  void *sender = NULL;
  void *receiver = NULL;
  CHECK_OK(plugin_listen(&rank->plugin, rank->context, 0, handle, &listener));
  for (int i = 0; i < 20; ++i) timed_accept(rank, listener, &receiver);
  CHECK(receiver == NULL, "nobody can have connected yet");
  send_to_peer(rank, handle, sizeof(handle));
  receive_from_peer(rank, handle, sizeof(handle));
  if (in_turn) {
    while (sender == NULL || receiver == NULL) {
      if (sender == NULL) timed_connect(rank, handle, &sender);
      if (receiver == NULL) timed_accept(rank, listener, &receiver);
    }
  } else if (accept_first) {
    while (receiver == NULL) timed_accept(rank, listener, &receiver);
    while (sender == NULL) timed_connect(rank, handle, &sender);
  } else {
    while (sender == NULL) timed_connect(rank, handle, &sender);
    while (receiver == NULL) timed_accept(rank, listener, &receiver);
  }
  CHECK_OK(rank->plugin.closeListen(listener));
  meet(rank);
  CHECK_OK(rank->plugin.closeSend(sender));
  CHECK_OK(rank->plugin.closeRecv(receiver));
}

/* The listener's process does nothing at all meanwhile. */
static void connect_to_one_who_sleeps(struct rank *rank) {
  unsigned char handle[NCCL_HANDLE_BYTES];
  void *listener = NULL;
  void *comm = NULL;
  if (rank->number == 0) {
    CHECK_OK(plugin_listen(&rank->plugin, rank->context, 0, handle, &listener));
    send_to_peer(rank, handle, sizeof(handle));
    meet(rank);
    while (comm == NULL) timed_accept(rank, listener, &comm);
    CHECK_OK(rank->plugin.closeListen(listener));
    meet(rank);
    CHECK_OK(rank->plugin.closeRecv(comm));
    return;
  }
  receive_from_peer(rank, handle, sizeof(handle));
  for (int i = 0; i < 200 && comm == NULL; ++i) timed_connect(rank, handle, &comm);
  meet(rank);
  while (comm == NULL) timed_connect(rank, handle, &comm);
  meet(rank);
  CHECK_OK(rank->plugin.closeSend(comm));
}

static void orders(void *argument) {
  struct rank *const rank = argument;
  void *listener = NULL;
  unsigned char handle[NCCL_HANDLE_BYTES];
  CHECK_OK(plugin_listen(&rank->plugin, rank->context, 0, handle, &listener)); /* rails open here, once */
  connect_to_one_who_sleeps(rank);
  connect_mutually(rank, rank->number == 0, false); /* one accepts first, the other connects first */
  connect_mutually(rank, rank->number == 1, false);
  connect_mutually(rank, false, true);
  CHECK_OK(rank->plugin.closeListen(listener));
  CHECK(connects.slow * 10 < connects.calls, "%d of %d calls of connect were slow", connects.slow, connects.calls);
  CHECK(accepts.slow * 10 < accepts.calls, "%d of %d calls of accept were slow", accepts.slow, accepts.calls);
}

static void order_body(struct rank *rank) { run_job(&rank->service, orders, rank); }
void case_connect_order(struct rank *rank) { with_communicator(rank, order_body); }

/* ---- self: one process connects to itself ------------------------------------------------------------------------ */

static void self_body(struct rank *rank) {
  struct pair pair;
  open_loop(&pair, rank, 1 << 22);
  const struct stream stream = {.messages = 200, .most_bytes = 100000, .window = 8, .group = 1};
  stream_between(&pair, &stream);
  close_pair(&pair);
}
void case_self(struct rank *rank) { with_communicator(rank, self_body); }
