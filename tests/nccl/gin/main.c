/* gin-driver --library FILE --case NAME [--tables g11,g12,g13,r13,r14,r15] [--bed shm|tcp] [--rails N] */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gin_driver.h"

struct gin_case {
  const char *name;
  member_case run;
  int ranks;
  const char *settings; /* beside those of the bed */
};

/* A link that is only slow must not be given up. */
#define PATIENT "RAILYARD_ACK_DEADLINE_MS=20000"

static const struct gin_case cases[] = {
    {"n-self-put", gin_self_put, 2, ""},
    {"o-signal-alone", gin_signal_alone, 3, ""},
    {"p-inc-and-add", gin_inc_and_add, 2, ""},
    {"q-strong-signal", gin_strong_signal, 2, PATIENT},
    {"r-many-requests", gin_many_requests, 3, ""},
    {"s-source-free", gin_source_free, 2, ""},
    {"t-exact-sum", gin_exact_sum, 4, ""},
    {"u-register-order", gin_register_order, 3, ""},
    {"v-rail-between", gin_rail_between, 2, ""},
    {"w-replayed-once", gin_replayed_once, 2, ""},
    {"x-all-tables", gin_all_tables, 3, ""},
    {"devices", gin_devices, 2, ""},
    {"life", gin_life, 2, ""},
    {"off", gin_off, 2, "RAILYARD_NCCL_GIN=off"},
    {"misuse", gin_misuse, 2, ""},
    {"peer-dies", gin_peer_dies, 2, "RAILYARD_PEER_TIMEOUT_MS=3000"},
    {"closes-at-once", gin_closes_at_once, 2, ""},
    {"long-put", gin_long_put, 2, ""},
    {"exit", gin_exit, 2, ""},
    {"device-memory", gin_device_memory, 2, ""},
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

static int usage(void) {
  fprintf(stderr, "usage: gin-driver --library FILE --case NAME [--tables T,T...] [--bed shm|tcp] [--rails N]\ncases:");
  for (size_t i = 0; i < CASES; ++i) fprintf(stderr, " %s", cases[i].name);
  fprintf(stderr, "\ntables:");
  for (int i = 0; i < kTables; ++i) fprintf(stderr, " %s", table_word((enum table_kind)i));
  fprintf(stderr, "\n");
  return 64;
}

void meet_all(struct member *member) {
  const int answer = pthread_barrier_wait(&member->shared->barrier);
  CHECK(answer == 0 || answer == PTHREAD_BARRIER_SERIAL_THREAD, "no barrier");
}

bool over_tcp(const struct member *member) { return strcmp(member->bed, "tcp") == 0; }

/* "A=1 B=2" */
static void set_from(const char *settings) {
  char copy[512];
  char *rest = NULL;
  snprintf(copy, sizeof(copy), "%s", settings);
  for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
    char *const equals = strchr(word, '=');
    CHECK(equals != NULL, "no setting: %s", word);
    *equals = 0;
    setenv(word, equals + 1, 1);
  }
}

static _Noreturn void be_member(struct member *member, const struct gin_case *test, const char *library,
                                enum table_kind kind) {
  char rails[64];
  const char *const seconds = getenv("NCCL_DRIVER_SECONDS");
  name_rank(member->rank);
  alarm(seconds == NULL ? 150 : (unsigned)atoi(seconds));
  set_from("RAILYARD_NCCL_GIN=on RAILYARD_INTERFACES=lo");
  set_from(over_tcp(member) ? "RAILYARD_SHARED_MEMORY=off" : "RAILYARD_SHARED_MEMORY=on");
  snprintf(rails, sizeof(rails), "RAILYARD_RAILS=%d", member->rails);
  set_from(rails);
  set_from(test->settings);
  member->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  CHECK(member->library != NULL, "dlopen: %s", dlerror());
  member->table = load_table(member->library, kind);
  test->run(member);
  exit(0); /* with all that belongs to the end of a process */
}

static struct shared *share(int size) {
  struct shared *const shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED, "no memory");
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  CHECK(pthread_barrier_init(&shared->barrier, &attributes, (unsigned)size) == 0, "no barrier");
  return shared;
}

/* Exit code of a rank that could not run the case. */
enum { kSkipped = 77 };

static int run_members(const struct gin_case *test, const char *library, enum table_kind kind, const char *bed,
                       int rails) {
  pid_t processes[kMostRanks];
  struct shared *const shared = share(test->ranks);
  fflush(NULL);
  for (int i = 0; i < test->ranks; ++i) {
    processes[i] = fork();
    CHECK(processes[i] >= 0, "no process");
    if (processes[i] != 0) continue;
    struct member member = {.rank = i, .size = test->ranks, .bed = bed, .rails = rails, .shared = shared};
    member.seed = (uint64_t)(i + 1);
    be_member(&member, test, library, kind);
  }
  int failed = 0;
  int skipped = 0;
  for (int i = 0; i < test->ranks; ++i) {
    int status = 0;
    CHECK(waitpid(processes[i], &status, 0) == processes[i], "waitpid");
    if (WIFSIGNALED(status)) fprintf(stderr, "rank %d ended by signal %d\n", i, WTERMSIG(status));
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    skipped += code == kSkipped;
    failed += code != 0 && code != kSkipped;
  }
  munmap(shared, sizeof(*shared));
  return failed != 0 ? 1 : skipped != 0 ? kSkipped : 0;
}

static bool is_listed(const char *list, const char *word) {
  const size_t length = strlen(word);
  for (const char *rest = list; rest != NULL; rest = strchr(rest, ',')) {
    rest += *rest == ',';
    if (strncmp(rest, word, length) == 0 && (rest[length] == ',' || rest[length] == 0)) return true;
  }
  return false;
}

int main(int count, char **words) {
  const char *library = NULL;
  const struct gin_case *test = NULL;
  const char *tables = "g11,g12,g13,r13,r14,r15";
  const char *bed = "shm";
  int rails = 2;
  for (int i = 1; i + 1 < count; i += 2) {
    const char *const value = words[i + 1];
    if (strcmp(words[i], "--library") == 0) library = value;
    if (strcmp(words[i], "--tables") == 0) tables = value;
    if (strcmp(words[i], "--bed") == 0) bed = value;
    if (strcmp(words[i], "--rails") == 0) rails = atoi(value);
    for (size_t k = 0; strcmp(words[i], "--case") == 0 && k < CASES; ++k)
      if (strcmp(cases[k].name, value) == 0) test = &cases[k];
  }
  const bool known_bed = strcmp(bed, "shm") == 0 || strcmp(bed, "tcp") == 0;
  if (library == NULL || test == NULL || !known_bed || rails < 1 || count % 2 == 0) return usage();
  int result = 0;
  for (int kind = 0; kind < kTables; ++kind) {
    if (!is_listed(tables, table_word((enum table_kind)kind))) continue;
    const uint64_t begin = now_ns();
    const int answer = run_members(test, library, (enum table_kind)kind, bed, rails);
    printf("%s %s %s, %d rails: %s (%.2f s)\n", test->name, table_word((enum table_kind)kind), bed, rails,
           answer == 0          ? "ok"
           : answer == kSkipped ? "skipped"
                                : "FAILED",
           (double)(now_ns() - begin) / 1e9);
    if (result == 0 || answer == 1) result = answer;
  }
  return result;
}
