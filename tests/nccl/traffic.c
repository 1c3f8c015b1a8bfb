/* Messages each way, tested in random order, every byte checked. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define MOST_SLOTS 8
#define TAG_BASE 70000 /* more than 16 bits */

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

void fill(unsigned char *data, size_t bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes; at += 8) {
    const uint64_t word = next_random(&seed);
    memcpy(data + at, &word, smaller(8, bytes - at));
  }
}

size_t first_wrong(const unsigned char *data, size_t bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes; at += 8) {
    const uint64_t word = next_random(&seed);
    if (memcmp(data + at, &word, smaller(8, bytes - at)) != 0) return at;
  }
  return bytes;
}

void finish(const struct plugin *plugin, void **requests, int count, int *sizes) {
  for (int left = count; left > 0;) {
    for (int i = count - 1; i >= 0; --i) {
      int done = 0;
      if (requests[i] == NULL) continue;
      CHECK_OK(plugin->test(requests[i], &done, sizes == NULL ? NULL : &sizes[i]));
      if (!done) continue;
      requests[i] = NULL;
      --left;
    }
  }
}

/* What both ends know of message `index` of rank `from`. */
static uint64_t seed_of(int from, int index) { return ((uint64_t)(from + 1) << 40) + (uint64_t)index; }

static size_t size_of(const struct stream *stream, int from, int index) {
  if (stream->same_size) return stream->most_bytes;
  uint64_t state = seed_of(from, index) * 31;
  const uint64_t value = next_random(&state);
  if (value % 16 == 0) return 0;
  if (value % 3 == 0) return (size_t)(next_random(&state) % 512) % (stream->most_bytes + 1);
  return (size_t)(next_random(&state) % (stream->most_bytes + 1));
}

/* Which slot of its group message `index` goes to: the order inside a group is turned round and rotated. */
static int slot_of(const struct stream *stream, int index) {
  const int group = stream->group;
  return (group - 1 - index % group + index / group) % group;
}

struct flight {
  void *request;
  int first;            /* its (first) message */
  unsigned char *place; /* room for `group` messages when receiving */
};

struct side {
  const struct stream *stream;
  struct pair *pair;
  uint64_t random;
  struct flight *sends;
  struct flight *receives;
  int next_send;
  int next_receive;
  int done_sends;
  int done_receives;
  bool midway_called;
};

static bool try_send(struct side *side) {
  const struct stream *const stream = side->stream;
  const struct rank *const rank = side->pair->rank;
  if (side->next_send == stream->messages) return false;
  for (int i = 0; i < stream->window; ++i) {
    struct flight *const flight = &side->sends[i];
    if (flight->request != NULL) continue;
    const int index = side->next_send;
    const size_t bytes = size_of(stream, rank->number, index);
    fill(flight->place, bytes, seed_of(rank->number, index));
    flight->request = (void *)0xbad;
    CHECK_OK(plugin_isend(&rank->plugin, side->pair->sender, flight->place, bytes, TAG_BASE + slot_of(stream, index),
                          side->pair->send_memory, &profile_parent, &flight->request));
    CHECK(flight->request != (void *)0xbad, "isend writes *request");
    if (flight->request == NULL) return false;
    flight->first = index;
    ++side->next_send;
    return true;
  }
  return false;
}

/* Room for the largest, or just as much as will come. */
static size_t room_of(const struct stream *stream, int from, int index) {
  return stream->smaller_sends ? stream->most_bytes : size_of(stream, from, index);
}

static bool try_receive(struct side *side) {
  const struct stream *const stream = side->stream;
  const struct rank *const rank = side->pair->rank;
  const int group = stream->group;
  if (side->next_receive == stream->messages) return false;
  for (int i = 0; i < stream->window; ++i) {
    struct flight *const flight = &side->receives[i];
    if (flight->request != NULL) continue;
    void *data[MOST_SLOTS];
    size_t sizes[MOST_SLOTS];
    int tags[MOST_SLOTS];
    void *memories[MOST_SLOTS];
    void *parents[MOST_SLOTS];
    for (int k = 0; k < group; ++k) {
      const int index = side->next_receive + k;
      const int slot = slot_of(stream, index);
      data[slot] = flight->place + (size_t)slot * stream->most_bytes;
      sizes[slot] = room_of(stream, side->pair->peer, index);
      tags[slot] = TAG_BASE + slot;
      memories[slot] = side->pair->receive_memory;
      parents[slot] = &profile_parent;
    }
    memset(flight->place, 0xee, smaller((size_t)group * stream->most_bytes, 4096));
    flight->request = (void *)0xbad;
    CHECK_OK(plugin_irecv(&rank->plugin, side->pair->receiver, group, data, sizes, tags, memories, parents,
                          &flight->request));
    CHECK(flight->request != (void *)0xbad, "irecv writes *request");
    if (flight->request == NULL) return false;
    flight->first = side->next_receive;
    side->next_receive += group;
    return true;
  }
  return false;
}

static void test_one_send(struct side *side) {
  const struct rank *const rank = side->pair->rank;
  struct flight *const flight = &side->sends[next_random(&side->random) % (uint64_t)side->stream->window];
  if (flight->request == NULL) return;
  int done = 7;
  int size = -1;
  CHECK_OK(rank->plugin.test(flight->request, &done, &size));
  CHECK(done == 0 || done == 1, "test writes *done");
  if (!done) return;
  const size_t bytes = size_of(side->stream, rank->number, flight->first);
  CHECK((size_t)size == bytes, "send %d had %zu bytes, test says %d", flight->first, bytes, size);
  flight->request = NULL;
  ++side->done_sends;
}

static void test_one_receive(struct side *side) {
  const struct stream *const stream = side->stream;
  const struct rank *const rank = side->pair->rank;
  struct flight *const flight = &side->receives[next_random(&side->random) % (uint64_t)stream->window];
  if (flight->request == NULL) return;
  int done = 7;
  int sizes[MOST_SLOTS];
  CHECK_OK(rank->plugin.test(flight->request, &done, sizes));
  if (!done) return;
  for (int k = 0; k < stream->group; ++k) {
    const int index = flight->first + k;
    const int slot = slot_of(stream, index);
    const size_t bytes = size_of(stream, side->pair->peer, index);
    CHECK((size_t)sizes[slot] == bytes, "message %d has %zu bytes, test says %d", index, bytes, sizes[slot]);
    const size_t wrong =
        first_wrong(flight->place + (size_t)slot * stream->most_bytes, bytes, seed_of(side->pair->peer, index));
    CHECK(wrong == bytes, "message %d of %zu bytes is wrong from byte %zu on", index, bytes, wrong);
  }
  flight->request = NULL;
  side->done_receives += stream->group;
}

static struct flight *flights(const struct stream *stream, unsigned char *arena, size_t bytes, int messages) {
  struct flight *const made = calloc((size_t)stream->window, sizeof(*made));
  CHECK(made != NULL, "no memory");
  const size_t room = (size_t)messages * stream->most_bytes;
  CHECK((size_t)stream->window * room <= bytes, "the arena is too small for this stream");
  for (int i = 0; i < stream->window; ++i) made[i].place = arena + (size_t)i * room;
  return made;
}

void run_stream(struct pair *pair, const struct stream *stream) {
  struct side side = {.stream = stream, .pair = pair, .random = pair->rank->seed};
  CHECK(stream->messages % stream->group == 0, "messages come in whole groups");
  side.sends = flights(stream, pair->send_arena, pair->arena_bytes, 1);
  side.receives = flights(stream, pair->receive_arena, pair->arena_bytes, stream->group);
  while (side.done_sends < stream->messages || side.done_receives < stream->messages) {
    switch (next_random(&side.random) % 4) {
      case 0:
        try_send(&side);
        break;
      case 1:
        try_receive(&side);
        break;
      case 2:
        test_one_send(&side);
        break;
      default:
        test_one_receive(&side);
        break;
    }
    if (!side.midway_called && stream->midway != NULL && side.next_send >= stream->messages / 2) {
      side.midway_called = true;
      stream->midway(stream->argument);
    }
  }
  free(side.sends);
  free(side.receives);
}
