/* The two processes of a case, and the two threads of each. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

static int own_rank = -1;

void name_rank(int number) { own_rank = number; }

void fail_at(const char *file, int line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%s:%d: rank %d: ", file, line, own_rank);
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  _exit(1);
}

bool given_long(void) {
  const char *const given = getenv("TEST_LONG");
  return given != NULL && strcmp(given, "1") == 0;
}

uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}

uint64_t next_random(uint64_t *state) {
  uint64_t value = *state += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void *work(void *argument) {
  struct worker *const worker = argument;
  pthread_mutex_lock(&worker->mutex);
  while (!worker->end) {
    if (worker->run == NULL) {
      pthread_cond_wait(&worker->changed, &worker->mutex);
      continue;
    }
    pthread_mutex_unlock(&worker->mutex);
    worker->run(worker->argument);
    pthread_mutex_lock(&worker->mutex);
    worker->run = NULL;
    pthread_cond_broadcast(&worker->changed);
  }
  pthread_mutex_unlock(&worker->mutex);
  return NULL;
}

static void start_worker(struct worker *worker) {
  memset(worker, 0, sizeof(*worker));
  pthread_mutex_init(&worker->mutex, NULL);
  pthread_cond_init(&worker->changed, NULL);
  CHECK(pthread_create(&worker->thread, NULL, work, worker) == 0, "no thread");
}

static void end_worker(struct worker *worker) {
  pthread_mutex_lock(&worker->mutex);
  worker->end = true;
  pthread_cond_broadcast(&worker->changed);
  pthread_mutex_unlock(&worker->mutex);
  pthread_join(worker->thread, NULL);
}

void start_job(struct worker *worker, job run, void *argument) {
  pthread_mutex_lock(&worker->mutex);
  CHECK(worker->run == NULL, "the thread has a job already");
  worker->run = run;
  worker->argument = argument;
  pthread_cond_broadcast(&worker->changed);
  pthread_mutex_unlock(&worker->mutex);
}

void wait_for(struct worker *worker) {
  pthread_mutex_lock(&worker->mutex);
  while (worker->run != NULL) pthread_cond_wait(&worker->changed, &worker->mutex);
  pthread_mutex_unlock(&worker->mutex);
}

void run_job(struct worker *worker, job run, void *argument) {
  start_job(worker, run, argument);
  wait_for(worker);
}

void start_threads(struct rank *rank) {
  start_worker(&rank->service);
  start_worker(&rank->progress);
}

void end_threads(struct rank *rank) {
  end_worker(&rank->service);
  end_worker(&rank->progress);
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

void send_to_peer(struct rank *rank, const void *bytes, size_t count) {
  const char *rest = bytes;
  while (count > 0) {
    const ssize_t written = write(rank->to_peer, rest, count);
    CHECK(written > 0 || errno == EINTR, "the other rank is gone");
    if (written <= 0) continue;
    rest += written;
    count -= (size_t)written;
  }
}

void receive_from_peer(struct rank *rank, void *bytes, size_t count) {
  char *rest = bytes;
  while (count > 0) {
    const ssize_t got = read(rank->from_peer, rest, count);
    CHECK(got > 0 || (got < 0 && errno == EINTR), "the other rank is gone");
    if (got <= 0) continue;
    rest += got;
    count -= (size_t)got;
  }
}

void meet(struct rank *rank) {
  char word = 'm';
  send_to_peer(rank, &word, 1);
  receive_from_peer(rank, &word, 1);
  CHECK(word == 'm', "the ranks are out of step");
}

/* "A=1 B=2" */
static void set_all(const char *settings) {
  char copy[512];
  char *rest = NULL;
  snprintf(copy, sizeof(copy), "%s", settings == NULL ? "" : settings);
  for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
    char *const equals = strchr(word, '=');
    CHECK(equals != NULL, "no setting: %s", word);
    *equals = 0;
    setenv(word, equals + 1, 1);
  }
}

static _Noreturn void be_rank(struct rank *rank, int version, rank_case body, const char *settings, int seconds) {
  own_rank = rank->number;
  alarm((unsigned)seconds); /* a hang ends here, not in the test's own limit */
  set_all(settings);
  rank->plugin = load_plugin(rank->library, version);
  body(rank);
  exit(0); /* with all that belongs to the end of a process */
}

static int wait_for_rank(int number, pid_t process) {
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  if (WIFSIGNALED(status))
    fprintf(stderr, "rank %d ended by signal %d%s\n", number, WTERMSIG(status),
            WTERMSIG(status) == SIGALRM ? " (it took too long)" : "");
  return 1;
}

int run_ranks(const char *library, int version, rank_case body, const char *const settings[2], int seconds) {
  int pipes[2][2]; /* [from] */
  pid_t processes[2];
  for (int i = 0; i < 2; ++i) CHECK(pipe(pipes[i]) == 0, "no pipe");
  fflush(NULL);
  for (int i = 0; i < 2; ++i) {
    processes[i] = fork();
    CHECK(processes[i] >= 0, "no process");
    if (processes[i] != 0) continue;
    struct rank rank = {.number = i, .library = library, .to_peer = pipes[i][1], .from_peer = pipes[1 - i][0]};
    close(pipes[i][0]);
    close(pipes[1 - i][1]);
    const char *const seed = getenv("NCCL_DRIVER_SEED");
    rank.seed = (seed == NULL ? 1 : (uint64_t)strtoul(seed, NULL, 10)) * 2 + (uint64_t)i;
    be_rank(&rank, version, body, settings[i], seconds);
  }
  for (int i = 0; i < 2; ++i) {
    close(pipes[i][0]);
    close(pipes[i][1]);
  }
  int failed = 0;
  for (int i = 0; i < 2; ++i) failed += wait_for_rank(i, processes[i]);
  return failed;
}
