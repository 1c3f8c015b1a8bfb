/* Cases about what begins, ends and goes wrong: u, devices, the setting, misuse, peers that die, memory of GPUs. */
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gin_driver.h"

/* ---- u ----------------------------------------------------------------------------------------------------------- */

struct traffic {
  const struct group *group;
  struct block *source;
  struct block *target;
  struct block *signals;
  atomic_bool end;
  uint64_t sent;
};

/* NCCL's progress thread, while its user's thread registers. */
static void *keep_putting(void *argument) {
  struct traffic *const traffic = argument;
  const struct member *const member = traffic->group->member;
  const int to = (member->rank + 1) % member->size;
  while (!atomic_load(&traffic->end)) {
    void *request = put_signal(traffic->group, traffic->source, 0, 3000, traffic->target, 0, to, traffic->signals, 0, 0,
                               NCCL_SIGNAL_INC);
    finish_all(traffic->group, &request, 1);
    ++traffic->sent;
  }
  return NULL;
}

void gin_register_order(struct member *member) {
  enum { kBlocks = 12 };
  struct group group;
  pthread_t thread;
  CHECK_OK(table_init(&member->table, &member->context));
  open_group(&group, member, 0);
  struct block source = make_block(&group, 1 << 16);
  struct block target = make_block(&group, 1 << 16);
  struct block signals = make_block(&group, 4096);
  struct block blocks[kBlocks];
  struct traffic traffic = {&group, &source, &target, &signals, false, 0};
  CHECK(pthread_create(&thread, NULL, keep_putting, &traffic) == 0, "no thread");
  /* In the same order everywhere, some ranks later than others; some go again. */
  for (int i = 0; i < kBlocks; ++i) {
    if (i % member->size == member->rank) usleep(2000);
    blocks[i] = make_block(&group, 4096 * (size_t)(i + 1));
    if (i % 4 == 3) end_block(&group, &blocks[i - 2]);
  }
  /* One rank brings what is no memory of a GPU: nobody gets it, and all go on. */
  void *memory = &group;
  void *gin = &group;
  const int type = member->rank == member->size - 1 ? NCCL_POINTER_CUDA : NCCL_POINTER_HOST;
  CHECK(table_register(&member->table, group.coll, source.data, 4096, type, &memory, &gin) != NCCL_OK, "all fail");
  CHECK(memory == NULL, "and get nothing");
  struct block last = make_block(&group, 8192);
  atomic_store(&traffic.end, true);
  pthread_join(thread, NULL);
  CHECK(traffic.sent > 0, "traffic beside registration");
  meet_all(member);
  /* Each block is its own, everywhere. */
  const int to = (member->rank + 1) % member->size;
  const int from = (member->rank + member->size - 1) % member->size;
  for (int i = 0; i < kBlocks; ++i) {
    if (blocks[i].data == NULL) continue;
    fill(source.data, 4096, (uint64_t)(i * 10 + member->rank));
    void *request = put(&group, &source, 0, 4096, &blocks[i], 4096 * (uint64_t)i, to);
    finish_all(&group, &request, 1);
  }
  meet_all(member);
  for (int i = 0; i < kBlocks; ++i)
    if (blocks[i].data != NULL)
      CHECK(first_wrong(blocks[i].data + 4096 * (size_t)i, 4096, (uint64_t)(i * 10 + from)) == 4096, "block %d", i);
  end_block(&group, &last);
  meet_all(member);
  close_group(&group);
}

/* ---- devices and tables ------------------------------------------------------------------------------------------ */

void gin_devices(struct member *member) {
  const struct table *const table = &member->table;
  const struct nccl_net_v12 *const net = dlsym(member->library, "ncclNetPlugin_v12");
  struct nccl_comm_config config = {NCCL_UNDEFINED};
  void *context = NULL;
  int count = 0;
  int of_net = 0;
  check_symbol_size(member->library, table_symbol(table->kind), table_bytes(table->kind));
  for (size_t i = 0; i < table_bytes(table->kind) / sizeof(void *); ++i)
    CHECK(((void *const *)table->entries)[i] != NULL, "entry %zu of %s", i, table_symbol(table->kind));
  /* The network first, as NCCL does. */
  CHECK_OK(net->init(&context, 42, &config, driver_log, driver_profile));
  CHECK_OK(table_init(table, &member->context));
  CHECK_OK(net->devices(&of_net));
  CHECK_OK(table_devices(table, &count));
  CHECK(count == of_net && count > 0, "%d devices here, %d there", count, of_net);
  for (int i = 0; i < count; ++i) {
    struct nccl_properties_v12 here;
    struct nccl_properties_v12 there;
    CHECK_OK(table_properties(table, i, &here));
    CHECK_OK(net->getProperties(i, &there));
    CHECK(strcmp(here.name, there.name) == 0 && here.guid == there.guid && here.speed == there.speed, "device %d", i);
    CHECK(here.ptrSupport == there.ptrSupport && here.maxRecvs == there.maxRecvs, "device %d", i);
    CHECK(here.netDeviceType == NCCL_DEVICE_GIN_PROXY && there.netDeviceType == NCCL_DEVICE_HOST, "who drives it");
    CHECK(here.vProps.ndevs == 1 && here.vProps.devs[0] == i, "no virtual device");
  }
  CHECK_OK(table_finalize(table, member->context));
  CHECK_OK(net->finalize(context));
}

/* ---- the setting ------------------------------------------------------------------------------------------------- */

void gin_off(struct member *member) {
  const struct nccl_net_v12 *const net = dlsym(member->library, "ncclNetPlugin_v12");
  struct nccl_comm_config config = {NCCL_UNDEFINED};
  void *context = NULL;
  if (member->rank == 0) unsetenv("RAILYARD_NCCL_GIN"); /* as when it is off */
  CHECK_OK(net->init(&context, 42, &config, driver_log, driver_profile));
  member->context = member;
  CHECK(table_init(&member->table, &member->context) != NCCL_OK && member->context == NULL,
        "NCCL is told that it is not");
  CHECK(warnings() == 0, "without a warning: %s", last_warning());
  CHECK_OK(table_finalize(&member->table, NULL)); /* NCCL may */
  int count = 0;
  CHECK_OK(net->devices(&count));
  CHECK(count > 0, "the network is what it was");
  CHECK_OK(net->finalize(context));
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static int count_entries(const char *folder) {
  DIR *const opened = opendir(folder);
  CHECK(opened != NULL, "no %s", folder);
  int count = 0;
  while (readdir(opened) != NULL) ++count;
  closedir(opened);
  return count;
}

/* A thread that was joined may be in the list for a moment. */
static int count_calmly(const char *folder, int expected) {
  int count = count_entries(folder);
  for (int i = 0; i < 100 && count > expected; ++i) {
    usleep(10000);
    count = count_entries(folder);
  }
  return count;
}

void gin_life(struct member *member) {
  const struct table *const table = &member->table;
  int descriptors = 0;
  int threads = 0;
  for (int round = 0; round < 4; ++round) {
    void *context = NULL;
    struct group groups[2];
    CHECK_OK(table_init(table, &context));
    CHECK_OK(table_init(table, &member->context));
    for (int i = 0; i < 2; ++i) open_group(&groups[i], member, i);
    CHECK_OK(table_finalize(table, context)); /* before its groups are closed, */
    struct block source = make_block(&groups[1], 4096);
    struct block signals = make_block(&groups[1], 4096);
    const int other = 1 - member->rank;
    void *request = put_signal(&groups[1], &source, 0, 4096, &source, 0, other, &signals, 0, 1, NCCL_SIGNAL_ADD);
    finish_all(&groups[1], &request, 1);
    await_word(&groups[1], &signals, 0, 1);
    meet_all(member);
    for (int i = 0; i < 2; ++i) close_group(&groups[i]);
    CHECK_OK(table_finalize(table, member->context));
    CHECK_OK(table_finalize(table, member->context)); /* twice, */
    CHECK_OK(table_finalize(table, NULL));            /* and without init */
    if (round == 1) {
      descriptors = count_entries("/proc/self/fd");
      threads = count_calmly("/proc/self/task", 0);
    }
    if (round > 1) {
      CHECK(count_calmly("/proc/self/task", threads) <= threads, "round %d left a thread", round);
      CHECK(count_calmly("/proc/self/fd", descriptors) <= descriptors, "round %d left a descriptor", round);
    }
    meet_all(member);
  }
  CHECK(count_calmly("/proc/self/task", SANITIZED ? threads : 3) <= (SANITIZED ? threads : 3),
        "no thread outlives its group"); /* itself, . and .. */
  CHECK(dlclose(member->library) == 0, "dlclose: %s", dlerror());
  if (SANITIZED) return;
  char line[1024];
  FILE *const maps = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof(line), maps) != NULL)
    CHECK(strstr(line, "nccl-net-railyard") == NULL, "the library is still mapped after dlclose");
  fclose(maps);
}

/* ---- misuse ------------------------------------------------------------------------------------------------------ */

void gin_misuse(struct member *member) {
  const struct table *const table = &member->table;
  struct group group;
  unsigned char handle[NCCL_HANDLE_BYTES];
  void *answer = member;
  int done = 5;
  CHECK_OK(table_init(table, &member->context));
  CHECK(table_init(table, NULL) == NCCL_INTERNAL_ERROR, "init without a place");
  CHECK(table_listen(table, NULL, 99, handle, &answer) != NCCL_OK && answer == NULL, "a device that is not there");
  CHECK(table_listen(table, NULL, 0, NULL, &answer) == NCCL_INTERNAL_ERROR, "no place for the handle");
  open_group(&group, member, 0);
  struct block source = make_block(&group, 4096);
  struct block target = make_block(&group, 4096);
  struct block signals = make_block(&group, 4096);
  const uint32_t other = (uint32_t)(1 - member->rank);
  answer = member;
  CHECK(table_put(&group, 0, 0, NULL, 8, 0, target.gin, other, &answer) == NCCL_INTERNAL_ERROR && answer == NULL,
        "no source");
  CHECK(table_put(&group, 0, 4090, source.gin, 8, 0, target.gin, other, &answer) == NCCL_INTERNAL_ERROR, "beyond it");
  CHECK(table_put(&group, 0, 0, source.gin, 8, 0, group.coll, other, &answer) == NCCL_INTERNAL_ERROR, "no memory");
  CHECK(table_put(&group, 0, 0, source.gin, 8, 0, target.gin, 7, &answer) == NCCL_INTERNAL_ERROR, "no such rank");
  CHECK(table_put(&group, 0, 0, source.gin, 8, 0, target.gin, other, NULL) == NCCL_INTERNAL_ERROR, "no request");
  CHECK(table_test(&group, NULL, &done) == NCCL_INTERNAL_ERROR && done == 0, "no request is none");
  void *request = put(&group, &source, 0, 8, &target, 0, (int)other);
  void *const gone = request;
  finish_all(&group, &request, 1);
  CHECK(table_test(&group, gone, &done) == NCCL_INTERNAL_ERROR, "a request is gone once it was done");
  CHECK(table_deregister(table, group.coll, group.coll) == NCCL_INTERNAL_ERROR, "no memory to deregister");
  CHECK(table_close(table, source.memory) == NCCL_INTERNAL_ERROR, "no group to close");
  bool failed = true;
  struct group foreign = group;
  char others[64] = {0};
  foreign.context = others; /* as NCCL 2.30.3 asks */
  CHECK_OK(table_last_error(&foreign, &failed));
  CHECK(!failed, "nothing is known of a context that is none of ours");
  /* All of it broke nothing. */
  request = put_signal(&group, &source, 0, 4096, &target, 0, (int)other, &signals, 0, 1, NCCL_SIGNAL_ADD);
  finish_all(&group, &request, 1);
  await_word(&group, &signals, 0, 1);
  meet_all(member);
  if (member->rank == 0) {
    /* Beyond the target's memory: an error, and from then on every operation says so, since NCCL 2.28 does not look at
     * what test answers. */
    nccl_result result = table_put(&group, 0, 0, source.gin, 64, 4090, target.gin, other, &answer);
    CHECK(result == NCCL_INVALID_USAGE, "a put beyond the target's memory: %d", result);
    CHECK_OK(table_last_error(&group, &failed));
    CHECK(failed, "it is known");
    result = table_put(&group, 0, 0, source.gin, 8, 0, target.gin, other, &answer);
    CHECK(result == NCCL_INVALID_USAGE && answer == NULL, "the next one: %d", result);
  }
  meet_all(member);
  close_group(&group);
}

/* ---- peers ------------------------------------------------------------------------------------------------------- */

void gin_peer_dies(struct member *member) {
  struct group group;
  CHECK_OK(table_init(&member->table, &member->context));
  open_group(&group, member, 0);
  struct block source = make_block(&group, 1 << 20);
  struct block signals = make_block(&group, 4096);
  void *request =
      put_signal(&group, &source, 0, 1 << 20, &source, 0, 1 - member->rank, &signals, 0, 1, NCCL_SIGNAL_ADD);
  finish_all(&group, &request, 1);
  meet_all(member);
  if (member->rank == 1) _exit(0); /* without a word */
  nccl_result answer = NCCL_OK;
  int done = 0;
  for (uint64_t begin = now_ns(); answer == NCCL_OK;) {
    CHECK(now_ns() - begin < 60000000000U, "nobody says that the peer is gone");
    answer = table_put(&group, 0, 0, source.gin, 1 << 20, 0, source.gin, 1, &request);
    done = 0;
    while (answer == NCCL_OK && !done) answer = table_test(&group, request, &done);
  }
  CHECK(answer == NCCL_REMOTE_ERROR && !done, "a peer that died is a remote error, not %d", answer);
  const int said = warnings();
  if (request != NULL)
    for (int i = 0; i < 10; ++i)
      CHECK(table_test(&group, request, &done) == NCCL_REMOTE_ERROR && !done, "it stays one");
  CHECK(warnings() == said, "said once");
  bool failed = false;
  CHECK_OK(table_last_error(&group, &failed));
  CHECK(failed, "and known");
  end_block(&group, &source);
  close_group(&group);
}

/* One rank has seen its signal and goes; what the other asked of it is done all the same. */
void gin_closes_at_once(struct member *member) {
  CHECK_OK(table_init(&member->table, &member->context));
  for (int round = 0; round < 6; ++round) {
    struct group group;
    open_group(&group, member, 0);
    struct block source = make_block(&group, 1 << 18);
    struct block target = make_block(&group, 1 << 18);
    struct block signals = make_block(&group, 4096);
    if (member->rank == 0) {
      void *requests[20];
      for (int i = 0; i < 20; ++i)
        requests[i] =
            put_signal(&group, &source, 0, i % 2 == 0 ? 1 << 18 : 100, &target, 0, 1, &signals, 0, 1, NCCL_SIGNAL_ADD);
      finish_all(&group, requests, 20);
    } else {
      await_word(&group, &signals, 0, 20);
    }
    close_group(&group);
    meet_all(member);
    free_block(&source);
    free_block(&target);
    free_block(&signals);
  }
}

/* A program that forgets its communicators. */
void gin_exit(struct member *member) {
  static struct group group;
  CHECK_OK(table_init(&member->table, &member->context));
  open_group(&group, member, 0);
  struct block source = make_block(&group, 1 << 18);
  struct block signals = make_block(&group, 4096);
  void *request =
      put_signal(&group, &source, 0, 1 << 18, &source, 0, 1 - member->rank, &signals, 0, 1, NCCL_SIGNAL_ADD);
  finish_all(&group, &request, 1);
  await_word(&group, &signals, 0, 1);
  meet_all(member);
  exit(0);
}

/* ---- memory of GPUs, on the double of the CUDA driver ------------------------------------------------------------ */

void gin_device_memory(struct member *member) {
  open_gpu();
  const size_t bytes = 1 << 20;
  struct group group;
  CHECK_OK(table_init(&member->table, &member->context));
  open_group(&group, member, 0);
  struct block blocks[2]; /* source and target */
  unsigned char *const host = malloc(bytes);
  memset(host, 0, bytes);
  for (int i = 0; i < 2; ++i) {
    blocks[i].data = gpu_memory(bytes);
    to_gpu(blocks[i].data, host, bytes);
    CHECK_OK(table_register(&member->table, group.coll, blocks[i].data, bytes, NCCL_POINTER_CUDA, &blocks[i].memory,
                            &blocks[i].gin));
  }
  struct block signals = make_block(&group, 4096); /* of the host */
  const int other = 1 - member->rank;
  const size_t sizes[] = {1, 8, 4096, 1 << 20};
  for (uint64_t round = 0; round < 4; ++round) {
    for (int self = 0; self < 2; ++self) {
      fill(host, bytes, round * 10 + (uint64_t)member->rank);
      to_gpu(blocks[0].data, host, bytes);
      meet_all(member);
      void *request = put_signal(&group, &blocks[0], 0, sizes[round], &blocks[1], 0, self ? member->rank : other,
                                 &signals, 0, 0, NCCL_SIGNAL_INC);
      finish_all(&group, &request, 1);
      await_word(&group, &signals, 0, round * 2 + (uint64_t)self + 1);
      from_gpu(host, blocks[1].data, sizes[round]);
      CHECK(first_wrong(host, sizes[round], round * 10 + (uint64_t)(self ? member->rank : other)) == sizes[round],
            "%zu bytes of GPU memory", sizes[round]);
      meet_all(member);
    }
  }
  /* A signal there. Where windows cannot change words of a GPU's memory, it is refused in words, and nothing breaks. */
  void *request = NULL;
  const nccl_result answer = table_put_signal(&group, 0, 0, NULL, 0, 0, NULL, (uint32_t)other, 64, blocks[1].gin, 5,
                                              NCCL_SIGNAL_ADD, &request);
  if (answer == NCCL_OK) {
    finish_all(&group, &request, 1);
    meet_all(member);
    uint64_t word = 0;
    uint64_t before = 0;
    fill((unsigned char *)host, bytes, 30 + (uint64_t)member->rank);
    memcpy(&before, host + 64, 8);
    from_gpu(&word, blocks[1].data + 64, 8);
    CHECK(word == before + 5, "a signal in memory of a GPU");
  } else {
    CHECK(strstr(last_warning(), "GPU") != NULL, "the refusal says why: %s", last_warning());
    if (member->rank == 0) printf("signals in memory of a GPU: not tested, windows refuse atomics there\n");
    meet_all(member);
  }
  meet_all(member);
  close_group(&group);
  free(host);
}
