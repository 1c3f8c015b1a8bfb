/* Cases about tags: which message goes into which slot of which receive, where connections share a comm. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

enum { kMostReceives = 4, kMostGroup = 8, kMostMessages = 8 };

/* What rank 1 receives, what rank 0 sends and in which order. */
struct plan {
  const char *what;
  int receives;
  int sizes[kMostReceives]; /* slots of each */
  int tags[kMostReceives][kMostGroup];
  int messages;
  int sent[kMostMessages]; /* tags */
};

static const struct plan plans[] = {
    {"{8} {0,1} and 0 8 1", 2, {1, 2}, {{8}, {0, 1}}, 3, {0, 8, 1}},
    {"{0,1} {1} {0,1} and one sender an operation ahead", 3, {2, 1, 2}, {{0, 1}, {1}, {0, 1}}, 5, {1, 1, 1, 0, 0}},
    {"{1} {0} {0,1} {1} in turn", 4, {1, 1, 2, 1}, {{1}, {0}, {0, 1}, {1}}, 5, {0, 0, 1, 1, 1}},
    {"one tag: first in, first out", 3, {1, 2, 1}, {{5}, {5, 5}, {5}}, 4, {5, 5, 5, 5}},
};

struct tag_run {
  struct pair *pair;
  const struct plan *plan;
  size_t bytes;
  bool receives_first;
};

/* The message for a slot: the first of its tag that no earlier slot of that tag has. */
static int expected_message(const struct plan *plan, int receive, int slot) {
  int before = 0;
  for (int r = 0; r <= receive; ++r)
    for (int s = 0; s < (r == receive ? slot : plan->sizes[r]); ++s)
      before += plan->tags[r][s] == plan->tags[receive][slot];
  for (int message = 0; message < plan->messages; ++message)
    if (plan->sent[message] == plan->tags[receive][slot] && before-- == 0) return message;
  FAIL("%s: no message for slot %d of receive %d", plan->what, slot, receive);
}

static void send_plan(void *argument) {
  const struct tag_run *const run = argument;
  const struct plan *const plan = run->plan;
  const struct plugin *const plugin = &run->pair->rank->plugin;
  void *requests[kMostMessages] = {NULL};
  if (run->receives_first) meet(run->pair->rank);
  for (int i = 0; i < plan->messages; ++i) {
    unsigned char *const data = run->pair->send_arena + (size_t)i * run->bytes;
    fill(data, run->bytes, (uint64_t)i + 100);
    /* What cannot go now is asked for again after the others, as NCCL does. */
    CHECK_OK(plugin_isend(plugin, run->pair->sender, data, run->bytes, plan->sent[i], run->pair->send_memory, NULL,
                          &requests[i]));
    CHECK(requests[i] != NULL, "%s: a request for message %d", plan->what, i);
  }
  if (!run->receives_first) {
    usleep(20000); /* small ones are there before their receives */
    meet(run->pair->rank);
  }
  finish(plugin, requests, plan->messages, NULL);
}

static void receive_plan(void *argument) {
  const struct tag_run *const run = argument;
  const struct plan *const plan = run->plan;
  const struct plugin *const plugin = &run->pair->rank->plugin;
  void *requests[kMostReceives] = {NULL};
  unsigned char *slots[kMostReceives][kMostGroup];
  unsigned char *next = run->pair->receive_arena;
  if (!run->receives_first) meet(run->pair->rank);
  for (int r = 0; r < plan->receives; ++r) {
    void *data[kMostGroup];
    size_t sizes[kMostGroup];
    int tags[kMostGroup];
    void *memories[kMostGroup];
    for (int s = 0; s < plan->sizes[r]; ++s) {
      data[s] = slots[r][s] = next;
      next += run->bytes;
      sizes[s] = run->bytes;
      tags[s] = plan->tags[r][s];
      memories[s] = run->pair->receive_memory;
    }
    CHECK_OK(
        plugin_irecv(plugin, run->pair->receiver, plan->sizes[r], data, sizes, tags, memories, NULL, &requests[r]));
    CHECK(requests[r] != NULL, "%s: a request for receive %d", plan->what, r);
  }
  if (run->receives_first) {
    int done = 0;
    for (int i = 0; i < 100; ++i) CHECK_OK(plugin->test(requests[0], &done, NULL)); /* grants leave */
    usleep(20000);
    meet(run->pair->rank);
  }
  finish(plugin, requests, plan->receives, NULL);
  for (int r = 0; r < plan->receives; ++r)
    for (int s = 0; s < plan->sizes[r]; ++s) {
      const int message = expected_message(plan, r, s);
      CHECK(first_wrong(slots[r][s], run->bytes, (uint64_t)message + 100) == run->bytes,
            "%s, %zu bytes, %s first: slot %d of receive %d does not hold message %d", plan->what, run->bytes,
            run->receives_first ? "receives" : "sends", s, r, message);
    }
}

static void tags_body(struct rank *rank) {
  const size_t sizes[] = {512, 1 << 18};
  for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); ++i)
    for (int kind = 0; kind < 4; ++kind) {
      struct pair pair;
      open_pair(&pair, rank, (size_t)kMostMessages << 18);
      struct tag_run run = {&pair, &plans[i], sizes[kind / 2], kind % 2 == 0};
      run_job(&rank->progress, rank->number == 0 ? send_plan : receive_plan, &run);
      meet(rank);
      close_pair(&pair);
    }
}
void case_tags(struct rank *rank) { with_communicator(rank, tags_body); }
