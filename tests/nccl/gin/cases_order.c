/* Cases about order and rails: q, t, v, w, x. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gin_driver.h"

/* Puts into one block and signals in another: NCCL's own have no memory in common either. */
struct pair_of_blocks {
  struct block source;
  struct block target;
  struct block signals;
};

static struct pair_of_blocks make_pair(const struct group *group, size_t bytes) {
  struct pair_of_blocks pair;
  pair.source = make_block(group, bytes);
  pair.target = make_block(group, bytes);
  pair.signals = make_block(group, 4096);
  return pair;
}

/* ---- q ----------------------------------------------------------------------------------------------------------- */

enum { kPuts = 8 };
static const size_t kPutBytes = 192 * 1024;

static uint64_t seed_of_put(uint64_t round, int number) { return round * 100 + (uint64_t)number; }

/* k puts without a signal and then one alone. */
static void put_then_signal(const struct group *group, struct pair_of_blocks *pair, uint64_t round) {
  void *requests[kPuts + 1];
  for (int i = 0; i < kPuts; ++i) {
    const size_t at = (size_t)i * kPutBytes;
    /* Small ones in between travel another way than large ones. */
    const size_t bytes = i % 3 == 1 ? 96 : kPutBytes;
    fill(pair->source.data + at, bytes, seed_of_put(round, i));
    requests[i] = put(group, &pair->source, at, bytes, &pair->target, at, 1);
  }
  requests[kPuts] = signal_only(group, 1, &pair->signals, 0, 0, NCCL_SIGNAL_INC);
  finish_all(group, requests, kPuts + 1);
}

static void expect_puts(const struct pair_of_blocks *pair, uint64_t round) {
  for (int i = 0; i < kPuts; ++i) {
    const size_t bytes = i % 3 == 1 ? 96 : kPutBytes;
    const size_t wrong = first_wrong(pair->target.data + (size_t)i * kPutBytes, bytes, seed_of_put(round, i));
    CHECK(wrong == bytes, "round %d: the signal is early: put %d of %zu bytes is missing from byte %zu on", (int)round,
          i, bytes, wrong);
  }
}

void gin_strong_signal(struct member *member) {
  const uint64_t rounds = given_long() ? 1000 : SANITIZED ? 20 : 40;
  struct group group;
  CHECK_OK(table_init(&member->table, &member->context));
  open_group(&group, member, 0);
  struct pair_of_blocks pair = make_pair(&group, kPuts * kPutBytes);
  for (uint64_t round = 1; round <= rounds; ++round) {
    if (member->rank == 0) {
      put_then_signal(&group, &pair, round);
    } else {
      await_word(&group, &pair.signals, 0, round);
      expect_puts(&pair, round);
      if (round == 5 && over_tcp(member)) CHECK(slow_a_rail(), "a rail that carries something was found");
    }
    meet_all(member);
  }
  CHECK(member->rank == 0 || !over_tcp(member) || times_slowed() > 0, "the slow rail was read from");
  close_group(&group);
}

/* ---- t ----------------------------------------------------------------------------------------------------------- */

void gin_exact_sum(struct member *member) {
  enum { kAdds = 1500, kDepth = 100 };
  struct group group;
  CHECK_OK(table_init(&member->table, &member->context));
  open_group(&group, member, 0);
  struct pair_of_blocks pair = make_pair(&group, 64 * 1024);
  void *requests[kDepth] = {NULL};
  uint64_t added = 0;
  for (int i = 0; i < kAdds; ++i) {
    void **const request = &requests[i % kDepth];
    finish_all(&group, request, 1);
    const uint64_t value = next_random(&member->seed) % 1000;
    if (i % 3 == 0) {
      *request = signal_only(&group, 0, &pair.signals, 7, value, NCCL_SIGNAL_INC);
      added += 1;
    } else {
      *request = put_signal(&group, &pair.source, 0, 64, &pair.target, (uint64_t)member->rank * 64, 0, &pair.signals, 7,
                            value, NCCL_SIGNAL_ADD);
      added += value;
    }
  }
  finish_all(&group, requests, kDepth);
  member->shared->words[member->rank] = added;
  meet_all(member);
  uint64_t sum = 0;
  for (int i = 0; i < member->size; ++i) sum += member->shared->words[i];
  const uint64_t held = read_word(&pair.signals, 7);
  CHECK(held == (member->rank == 0 ? sum : 0), "%d ranks added %llu, the signal holds %llu", member->size,
        (unsigned long long)sum, (unsigned long long)held);
  meet_all(member);
  close_group(&group);
}

/* ---- v ----------------------------------------------------------------------------------------------------------- */

void gin_rail_between(struct member *member) {
  const uint64_t rounds = SANITIZED ? 8 : 16;
  struct group group;
  int cuts = 0;
  CHECK_OK(table_init(&member->table, &member->context));
  open_group(&group, member, 0);
  struct pair_of_blocks pair = make_pair(&group, kPuts * kPutBytes);
  for (uint64_t round = 1; round <= rounds; ++round) {
    if (member->rank == 0) {
      void *requests[kPuts + 1];
      for (int i = 0; i < kPuts; ++i) {
        const size_t at = (size_t)i * kPutBytes;
        const size_t bytes = i % 3 == 1 ? 96 : kPutBytes;
        fill(pair.source.data + at, bytes, seed_of_put(round, i));
        requests[i] = put(&group, &pair.source, at, bytes, &pair.target, at, 1);
      }
      if (round % 4 == 3) cuts += cut_a_rail();
      requests[kPuts] = signal_only(&group, 1, &pair.signals, 0, 0, NCCL_SIGNAL_INC);
      finish_all(&group, requests, kPuts + 1);
    } else {
      await_word(&group, &pair.signals, 0, round);
      expect_puts(&pair, round);
    }
    meet_all(member);
    CHECK(read_word(&pair.signals, 0) == (member->rank == 1 ? round : 0), "round %d: the signal, once", (int)round);
    meet_all(member);
  }
  CHECK(member->rank == 1 || cuts > 0, "a rail that carries something was found and cut");
  close_group(&group);
}

/* ---- w ----------------------------------------------------------------------------------------------------------- */

void gin_replayed_once(struct member *member) {
  enum { kSignals = 4000, kDepth = 200, kCutEvery = 700 };
  struct group group;
  int cuts = 0;
  CHECK_OK(table_init(&member->table, &member->context));
  open_group(&group, member, 0);
  struct pair_of_blocks pair = make_pair(&group, 1 << 20);
  if (member->rank == 0) {
    void *requests[kDepth] = {NULL};
    for (int i = 0; i < kSignals; ++i) {
      void **const request = &requests[i % kDepth];
      finish_all(&group, request, 1);
      *request = i % 2 == 0 ? signal_only(&group, 1, &pair.signals, 0, 0, NCCL_SIGNAL_INC)
                            : put_signal(&group, &pair.source, 0, 3000, &pair.target, 0, 1, &pair.signals, 0, 1,
                                         NCCL_SIGNAL_ADD);
      if (i % kCutEvery == kCutEvery - 1) cuts += cut_a_rail(); /* with up to kDepth of them under way */
    }
    finish_all(&group, requests, kDepth);
    CHECK(cuts > 0, "a rail that carries something was found and cut");
  } else {
    await_word(&group, &pair.signals, 0, kSignals);
  }
  meet_all(member);
  usleep(50000); /* whatever was sent twice has arrived */
  const uint64_t held = read_word(&pair.signals, 0);
  CHECK(held == (member->rank == 1 ? kSignals : 0), "%d signals, %llu applied", kSignals, (unsigned long long)held);
  meet_all(member);
  close_group(&group);
}

/* ---- x ----------------------------------------------------------------------------------------------------------- */

/* Everybody sends everybody something, with the shape of an all-to-all: data, signal, then the next round. */
void gin_all_tables(struct member *member) {
  const size_t bytes = 20000;
  struct group groups[2]; /* two at once, as NCCL has up to four */
  struct pair_of_blocks pairs[2];
  CHECK(strcmp(member->table.name, "Railyard") == 0, "the name of %s", table_symbol(member->table.kind));
  CHECK_OK(table_init(&member->table, &member->context));
  for (int i = 0; i < 2; ++i) {
    open_group(&groups[i], member, i);
    pairs[i] = make_pair(&groups[i], bytes * (size_t)member->size);
  }
  for (uint64_t round = 1; round <= 10; ++round) {
    struct group *const group = &groups[round % 2];
    struct pair_of_blocks *const pair = &pairs[round % 2];
    void *requests[kMostRanks];
    for (int to = 0; to < member->size; ++to) {
      fill(pair->source.data + (size_t)to * bytes, bytes, round * 16 + (uint64_t)(member->rank * 4 + to));
      requests[to] =
          put_signal(group, &pair->source, (uint64_t)to * bytes, bytes, &pair->target, (uint64_t)member->rank * bytes,
                     to, &pair->signals, (uint64_t)member->rank, 0, NCCL_SIGNAL_INC);
    }
    finish_all(group, requests, member->size);
    for (int from = 0; from < member->size; ++from) {
      await_word(group, &pair->signals, (uint64_t)from, (round + 1) / 2);
      CHECK(first_wrong(pair->target.data + (size_t)from * bytes, bytes,
                        round * 16 + (uint64_t)(from * 4 + member->rank)) == bytes,
            "round %d: the bytes of rank %d", (int)round, from);
    }
    bool failed = true;
    CHECK_OK(table_last_error(group, &failed));
    CHECK(!failed, "no error");
    meet_all(member);
  }
  for (int i = 0; i < 2; ++i) close_group(&groups[i]);
  CHECK_OK(table_finalize(&member->table, member->context));
}
