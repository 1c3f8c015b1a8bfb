/* nccl-driver --library FILE --case NAME [--abi N,N...] [--bed shm|bare|tcp|strict|verbs]: one case, in these versions
 * of the ABI or in all. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define SHM "RAILYARD_SHARED_MEMORY=on RAILYARD_INTERFACES=lo"
/* A machine without libfabric. */
#define BARE "RAILYARD_SHARED_MEMORY=on RAILYARD_LIBFABRIC=libfabric-that-is-not-here.so.1"
/* The strict provider of tests/doubles, which FI_PROVIDER_PATH leads to. */
#define STRICT "RAILYARD_PROVIDER=strict RAILYARD_SHARED_MEMORY=off RAILYARD_INTERFACES=lo RAILYARD_RAILS="
#define TCP "RAILYARD_SHARED_MEMORY=off RAILYARD_INTERFACES=lo RAILYARD_RAILS="
/* And TEST_RAILS, which names the devices: those of tests/lab/verbs.test, or of the double on LD_LIBRARY_PATH. */
#define VERBS "RAILYARD_DRIVER=verbs RAILYARD_SHARED_MEMORY=off RAILYARD_RAILS=%s RAILYARD_INTERFACES="

struct test_case {
  const char *name;
  rank_case run;
  const char *rails[2]; /* of each rank, over tcp */
};

static const struct test_case cases[] = {
    {"a-handle", case_handle, {"2", "2"}},
    {"b-connect-order", case_connect_order, {"2", "2"}},
    {"c-requests", case_requests, {"2", "2"}},
    {"d-optional-completion", case_optional, {"2", "2"}},
    {"e-sizes", case_sizes, {"2", "2"}},
    {"e-too-long", case_too_long, {"2", "2"}},
    {"f-groups", case_groups, {"2", "2"}},
    {"g-registration", case_registration, {"2", "2"}},
    {"h-test-once", case_test_once, {"2", "2"}},
    {"i-communicators", case_communicators, {"2", "2"}},
    {"i-cycles", case_cycles, {"2", "2"}},
    {"i-unload", case_unload, {"2", "2"}},
    {"j-rail-killed", case_rail_killed, {"4", "4"}},
    {"k-unequal-rails", case_stream, {"1", "3"}},
    {"l-devices", case_devices, {"2", "2"}},
    {"m-tables", case_tables, {"2", "2"}},
    {"log", case_log, {"2", "2"}},
    {"wrong-setting", case_wrong_setting, {"2", "2"}},
    {"misuse", case_misuse, {"2", "2"}},
    {"profiler", case_profiler, {"2", "2"}},
    {"self", case_self, {"2", "2"}},
    {"close-under-way", case_close_under_way, {"2", "2"}},
    {"peer-dies", case_peer_dies, {"2", "2"}},
    {"exit", case_exit, {"2", "2"}},
    {"tags", case_tags, {"2", "2"}},
    {"sent-then-closed", case_sent_then_closed, {"2", "2"}},
    {"abort-order", case_abort_order, {"2", "2"}},
    {"abort-stopped", case_abort_stopped, {"2", "2"}},
    {"stopped-peers", case_stopped_peers, {"2", "2"}},
    {"threads-end", case_threads_end, {"2", "2"}},
    {"threads-end-alone", case_threads_end_alone, {"2", "2"}},
    {"gpu-memory", case_gpu_memory, {"2", "2"}},
    {"gpu-memory-nic", case_gpu_memory_nic, {"2", "2"}},
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

static int usage(void) {
  fprintf(stderr,
          "usage: nccl-driver --library FILE --case NAME [--abi N[,N...]] [--bed shm|bare|tcp|strict|verbs]\ncases:");
  for (size_t i = 0; i < CASES; ++i) fprintf(stderr, " %s", cases[i].name);
  fprintf(stderr, "\n");
  return 64;
}

/* Breaches of libfabric's rules that the strict provider has written down. */
static int breaches(void) {
  const char *const name = getenv("STRICT_FI_LOG");
  FILE *const log = name == NULL ? NULL : fopen(name, "r");
  char line[512];
  int count = 0;
  while (log != NULL && fgets(line, sizeof(line), log) != NULL) {
    fprintf(stderr, "%s", line);
    ++count;
  }
  if (log != NULL) fclose(log);
  return count;
}

static void settings_for(const char *bed, const char *rails, char *settings, size_t room) {
  if (strcmp(bed, "shm") == 0)
    snprintf(settings, room, "%s", SHM);
  else if (strcmp(bed, "bare") == 0)
    snprintf(settings, room, "%s", BARE);
  else if (strcmp(bed, "verbs") == 0) /* on every device, unless a case is about their number */
    snprintf(settings, room, VERBS "%s", strcmp(rails, "2") == 0 ? "0" : rails, getenv("TEST_RAILS"));
  else
    snprintf(settings, room, "%s%s", strcmp(bed, "tcp") == 0 ? TCP : STRICT, rails);
}

static bool known(const char *bed) {
  if (strcmp(bed, "verbs") == 0) return getenv("TEST_RAILS") != NULL;
  return strcmp(bed, "shm") == 0 || strcmp(bed, "bare") == 0 || strcmp(bed, "tcp") == 0 || strcmp(bed, "strict") == 0;
}

static int run_case(const struct test_case *test, const char *library, int version, const char *bed) {
  char settings[2][256];
  const int seconds = getenv("NCCL_DRIVER_SECONDS") == NULL ? 100 : atoi(getenv("NCCL_DRIVER_SECONDS"));
  for (int i = 0; i < 2; ++i) settings_for(bed, test->rails[i], settings[i], sizeof(settings[i]));
  const char *const both[2] = {settings[0], settings[1]};
  const uint64_t begin = now_ns();
  const int failed = run_ranks(library, version, test->run, both, seconds) + breaches();
  printf("%s v%d %s: %s (%.2f s)\n", test->name, version, bed, failed ? "FAILED" : "ok",
         (double)(now_ns() - begin) / 1e9);
  return failed;
}

int main(int count, char **words) {
  const char *library = NULL;
  const struct test_case *test = NULL;
  const char *versions = "8,9,10,11,12";
  const char *bed = "shm";
  for (int i = 1; i + 1 < count; i += 2) {
    const char *const value = words[i + 1];
    if (strcmp(words[i], "--library") == 0) library = value;
    if (strcmp(words[i], "--abi") == 0) versions = value;
    if (strcmp(words[i], "--bed") == 0) bed = value;
    for (size_t k = 0; strcmp(words[i], "--case") == 0 && k < CASES; ++k)
      if (strcmp(cases[k].name, value) == 0) test = &cases[k];
  }
  if (library == NULL || test == NULL || !known(bed) || count % 2 == 0) return usage();
  if (getenv("STRICT_FI_LOG") != NULL) remove(getenv("STRICT_FI_LOG")); /* of an earlier run */
  /* Under a sanitizer the versions between the first and the last only repeat. */
  const bool thorough = !SANITIZED || given_long();
  int failed = 0;
  for (const char *rest = versions; rest != NULL; rest = strchr(rest, ',')) {
    rest += *rest == ',';
    if (!thorough && rest != versions && strchr(rest, ',') != NULL) continue;
    failed += run_case(test, library, atoi(rest), bed);
  }
  return failed != 0;
}
