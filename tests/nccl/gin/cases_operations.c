/* Cases about what one operation does: n, o, p, r, s, and puts that are long. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gin_driver.h"

static const size_t kSizes[] = {1, 7, 8, 1000, 1024, 1025, 65536, (1 << 20) + 3};
enum { kSizesCount = sizeof(kSizes) / sizeof(kSizes[0]) };

/* ---- n ----------------------------------------------------------------------------------------------------------- */

void gin_self_put(struct member *member) {
  struct group group;
  CHECK_OK(table_init(&member->table, &member->context));
  open_group(&group, member, 0);
  struct block source = make_block(&group, 2 << 20);
  struct block target = make_block(&group, 2 << 20);
  struct block signals = make_block(&group, 4096);
  fill(source.data, source.bytes, 11);
  for (int i = 0; i < kSizesCount; ++i) {
    const size_t bytes = kSizes[i];
    memset(target.data, 0, target.bytes);
    void *requests[2] = {put(&group, &source, 3, bytes, &target, 64, member->rank),
                         put_signal(&group, &source, 0, 8, &target, 0, member->rank, &signals, 5, 0, NCCL_SIGNAL_INC)};
    finish_all(&group, requests, 2);
    CHECK(read_word(&signals, 5) == (uint64_t)i + 1, "the signal of put %d", i);
    CHECK(memcmp(target.data + 64, source.data + 3, bytes) == 0, "%zu bytes put to itself", bytes);
    CHECK(target.data[64 + bytes] == 0, "and not one more");
  }
  if (table_has_get(&member->table)) {
    void *request = NULL;
    memset(target.data, 0, target.bytes);
    CHECK_OK(table_get(&group, 0, 100, source.gin, 5000, 9, target.gin, (uint32_t)member->rank, &request));
    finish_all(&group, &request, 1);
    CHECK(memcmp(target.data + 9, source.data + 100, 5000) == 0, "bytes got from itself");
  }
  end_block(&group, &source);
  end_block(&group, &target);
  end_block(&group, &signals);
  close_group(&group);
  CHECK_OK(table_finalize(&member->table, member->context));
}

/* ---- o ----------------------------------------------------------------------------------------------------------- */

void gin_signal_alone(struct member *member) {
  enum { kRounds = 50 };
  struct group group;
  CHECK_OK(table_init(&member->table, &member->context));
  open_group(&group, member, 0);
  struct block signals = make_block(&group, 4096);
  for (int round = 1; round <= kRounds; ++round) {
    void *requests[kMostRanks];
    for (int to = 0; to < member->size; ++to)
      requests[to] = signal_only(&group, to, &signals, (uint64_t)member->rank, 3, NCCL_SIGNAL_ADD);
    for (int from = 0; from < member->size; ++from) await_word(&group, &signals, (uint64_t)from, 3 * (uint64_t)round);
    finish_all(&group, requests, member->size);
    meet_all(member);
    for (int from = 0; from < member->size; ++from)
      CHECK(read_word(&signals, (uint64_t)from) == 3 * (uint64_t)round, "a signal of round %d, once", round);
    meet_all(member);
  }
  end_block(&group, &signals);
  close_group(&group);
}

/* ---- p ----------------------------------------------------------------------------------------------------------- */

void gin_inc_and_add(struct member *member) {
  struct group group;
  CHECK_OK(table_init(&member->table, &member->context));
  open_group(&group, member, 0);
  struct block source = make_block(&group, 4096);
  struct block target = make_block(&group, 4096);
  struct block signals = make_block(&group, 4096);
  const int other = 1 - member->rank;
  const uint64_t large = ((uint64_t)1 << 40) + 5;
  void *requests[] = {
      signal_only(&group, other, &signals, 0, 77, NCCL_SIGNAL_INC), /* the value counts for nothing */
      signal_only(&group, other, &signals, 1, large, NCCL_SIGNAL_ADD),
      put_signal(&group, &source, 0, 100, &target, 0, other, &signals, 2, 77, NCCL_SIGNAL_INC),
      put_signal(&group, &source, 0, 100, &target, 0, other, &signals, 3, large, NCCL_SIGNAL_ADD),
      signal_only(&group, other, &signals, 4, 10, NCCL_SIGNAL_ADD),
      signal_only(&group, other, &signals, 4, UINT64_MAX, NCCL_SIGNAL_ADD), /* round the end: 9 */
      signal_only(&group, other, &signals, 5, 1, NCCL_SIGNAL_ADD),
  };
  finish_all(&group, requests, sizeof(requests) / sizeof(requests[0]));
  await_word(&group, &signals, 5, 1);
  const uint64_t expected[] = {1, large, 1, large, 9, 1};
  for (uint64_t i = 0; i < 6; ++i)
    CHECK(read_word(&signals, i) == expected[i], "signal %llu holds %llu", (unsigned long long)i,
          (unsigned long long)read_word(&signals, i));
  void *request = &group;
  CHECK(table_put_signal(&group, 0, 0, NULL, 0, 0, NULL, (uint32_t)other, 0, signals.gin, 1, 7, &request) != NCCL_OK &&
            request == NULL,
        "an operation that is neither");
  meet_all(member);
  close_group(&group); /* with memory that is still registered */
}

/* ---- r ----------------------------------------------------------------------------------------------------------- */

void gin_many_requests(struct member *member) {
  struct group group;
  struct nccl_properties_v12 properties;
  CHECK_OK(table_init(&member->table, &member->context));
  CHECK_OK(table_properties(&member->table, 0, &properties));
  CHECK(properties.maxRecvs > 0 && (properties.maxRecvs & (properties.maxRecvs - 1)) == 0, "a power of two");
  open_group(&group, member, 0);
  const int contexts = member->table.contexts > 0 ? member->table.contexts : 1;
  const int each = NCCL_MOST_REQUESTS * properties.maxRecvs * contexts;
  const int count = each * member->size;
  const size_t bytes = 2000; /* larger than what travels inside a message */
  struct block source = make_block(&group, (size_t)each * bytes);
  struct block target = make_block(&group, (size_t)count * bytes);
  struct block signals = make_block(&group, 4096);
  void **const requests = calloc((size_t)count, sizeof(*requests));
  for (int round = 1; round <= 3; ++round) {
    fill(source.data, source.bytes, (uint64_t)(member->rank + 10 * round));
    for (int i = 0; i < each; ++i)
      for (int to = 0; to < member->size; ++to) {
        const uint64_t offset = (uint64_t)i * bytes;
        const uint64_t place = (uint64_t)member->rank * (uint64_t)each * bytes + offset;
        requests[i * member->size + to] = i % 2 == 0 ? put(&group, &source, offset, bytes, &target, place, to)
                                                     : put_signal(&group, &source, offset, bytes, &target, place, to,
                                                                  &signals, (uint64_t)member->rank, 0, NCCL_SIGNAL_INC);
      }
    for (int i = 0; i < 20; ++i) /* each is one of its own */
      for (int k = 0; k < count; ++k) CHECK(k == i || requests[k] != requests[i], "requests %d and %d", i, k);
    finish_all(&group, requests, count);
    for (int from = 0; from < member->size; ++from) {
      await_word(&group, &signals, (uint64_t)from, (uint64_t)(each / 2) * (uint64_t)round);
      const unsigned char *const place = target.data + (size_t)from * (size_t)each * bytes;
      CHECK(first_wrong(place, (size_t)each * bytes, (uint64_t)(from + 10 * round)) == (size_t)each * bytes,
            "round %d: the bytes of rank %d", round, from);
    }
    meet_all(member);
  }
  free(requests);
  close_group(&group);
}

/* ---- s ----------------------------------------------------------------------------------------------------------- */

void gin_source_free(struct member *member) {
  struct group group;
  const size_t bytes = 1 << 20;
  CHECK_OK(table_init(&member->table, &member->context));
  open_group(&group, member, 0);
  struct block source = make_block(&group, bytes);
  struct block target = make_block(&group, bytes);
  struct block signals = make_block(&group, 4096);
  const int other = 1 - member->rank;
  for (uint64_t round = 1; round <= 20; ++round) {
    const size_t now = round % 2 == 0 ? bytes : 700;
    fill(source.data, now, round);
    void *request = put(&group, &source, 0, now, &target, 0, other);
    finish_all(&group, &request, 1);
    memset(source.data, 0xee, bytes); /* done: the source is the caller's again */
    void *signal = signal_only(&group, other, &signals, 0, 0, NCCL_SIGNAL_INC);
    await_word(&group, &signals, 0, round);
    CHECK(first_wrong(target.data, now, round) == now, "round %d: bytes of after the end", (int)round);
    finish_all(&group, &signal, 1);
    meet_all(member);
    if (!table_has_get(&member->table)) continue;
    /* What a flush answers for: all that was asked of that rank before, though nobody has tested it yet. */
    fill(source.data, bytes, round + 1000);
    memset(target.data, 0, bytes);
    meet_all(member);
    void *requests[5] = {NULL};
    for (uint64_t i = 0; i < 4; ++i)
      CHECK_OK(table_get(&group, (int)i, i * bytes / 4, source.gin, bytes / 4, i * bytes / 4, target.gin,
                         (uint32_t)other, &requests[i]));
    CHECK_OK(table_flush(&group, 0, signals.gin, (uint32_t)other, &requests[4]));
    CHECK(requests[4] != NULL, "a flush is a request");
    finish_all(&group, &requests[4], 1);
    CHECK(first_wrong(target.data, bytes, round + 1000) == bytes, "round %d: a flush before what it covers",
          (int)round);
    finish_all(&group, requests, 4);
    meet_all(member);
  }
  end_block(&group, &source);
  end_block(&group, &target);
  end_block(&group, &signals);
  close_group(&group);
}

/* ---- more than 4 GiB at once ------------------------------------------------------------------------------------- */

/* Memory as long as that, of which one part is there again and again. */
static unsigned char *map_repeated(size_t bytes, size_t part) {
  const int file = memfd_create("gin-driver", MFD_CLOEXEC);
  CHECK(file >= 0 && ftruncate(file, (off_t)part) == 0, "no memory");
  unsigned char *const place = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(place != MAP_FAILED, "no room");
  for (size_t at = 0; at < bytes; at += part)
    CHECK(mmap(place + at, part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED, "no mapping");
  close(file);
  return place;
}

void gin_long_put(struct member *member) {
  const size_t part = (size_t)64 << 20;
  const size_t bytes = ((size_t)4 << 30) + part;
  struct group group;
  CHECK_OK(table_init(&member->table, &member->context));
  open_group(&group, member, 0);
  struct block blocks[2]; /* source and target */
  for (int i = 0; i < 2; ++i) {
    blocks[i].bytes = bytes;
    blocks[i].data = map_repeated(bytes, part);
    CHECK_OK(table_register(&member->table, group.coll, blocks[i].data, bytes, NCCL_POINTER_HOST, &blocks[i].memory,
                            &blocks[i].gin));
  }
  struct block signals = make_block(&group, 4096);
  if (member->rank == 0) {
    fill(blocks[0].data, part, 99);
    /* Another offset there than here: what lands at the end of the file is what was sent last. */
    void *request =
        put_signal(&group, &blocks[0], 0, bytes - 4096, &blocks[1], 4096, 1, &signals, 0, 1, NCCL_SIGNAL_ADD);
    finish_all(&group, &request, 1);
  } else {
    await_word(&group, &signals, 0, 1);
    unsigned char *const expected = malloc(part);
    fill(expected, part, 99);
    CHECK(memcmp(blocks[1].data + 4096, expected, part - 4096) == 0, "the bytes of a put of more than 4 GiB");
    CHECK(memcmp(blocks[1].data, expected + part - 4096, 4096) == 0, "and those round the end");
    free(expected);
  }
  meet_all(member);
  for (int i = 0; i < 2; ++i) CHECK_OK(table_deregister(&member->table, group.coll, blocks[i].memory));
  close_group(&group);
}
