/* NCCL's logger and profiler, as far as a test needs them. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define MOST_INFOS 16
#define LONGEST_LINE 1024
#define PROFILER_ID (((int64_t)0x5259 << 16) | 1)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int warning_count;
static int info_count;
static char warning[LONGEST_LINE] = "none";
static char info[MOST_INFOS][LONGEST_LINE];
static struct profile profile;
int profile_parent = 1;

void driver_log(int level, unsigned long subsystems, const char *where, int line, const char *format, ...) {
  char text[LONGEST_LINE];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  (void)subsystems;
  (void)where;
  (void)line;
  pthread_mutex_lock(&mutex);
  if (level == NCCL_LEVEL_WARN) {
    ++warning_count;
    snprintf(warning, sizeof(warning), "%s", text);
  }
  if (level == NCCL_LEVEL_INFO && info_count < MOST_INFOS) snprintf(info[info_count++], LONGEST_LINE, "%s", text);
  pthread_mutex_unlock(&mutex);
  if (getenv("NCCL_DEBUG") != NULL) fprintf(stderr, "[%d] %s\n", level, text);
}

const char *last_warning(void) { return warning; }
const char *info_line(int number) { return info[number]; }

static int read_counter(const int *counter) {
  pthread_mutex_lock(&mutex);
  const int value = *counter;
  pthread_mutex_unlock(&mutex);
  return value;
}
int warnings(void) { return read_counter(&warning_count); }
int infos(void) { return read_counter(&info_count); }

void forget_log(void) {
  pthread_mutex_lock(&mutex);
  warning_count = info_count = 0;
  snprintf(warning, sizeof(warning), "none");
  pthread_mutex_unlock(&mutex);
}

/* Every third event is not wanted, as with a profiler that is not switched on: its handle stays unset. */
nccl_result driver_profile(void **event, int type, void *parent, int64_t id, void *descriptor) {
  static int calls;
  static int an_event;
  pthread_mutex_lock(&mutex);
  const bool start = type == NCCL_EVENT_START;
  const bool stop = type == NCCL_EVENT_STOP;
  if ((!start && !stop) || event == NULL || id != PROFILER_ID) ++profile.wrong;
  if (start && (parent != &profile_parent || descriptor == NULL || *event != NULL)) ++profile.wrong;
  if (stop && *event != &an_event) ++profile.wrong;
  if (start && ++calls % 3 != 0) {
    *event = &an_event;
    ++profile.started;
  }
  if (stop) ++profile.stopped;
  pthread_mutex_unlock(&mutex);
  return NCCL_OK;
}

struct profile profile_so_far(void) {
  pthread_mutex_lock(&mutex);
  const struct profile copy = profile;
  pthread_mutex_unlock(&mutex);
  return copy;
}
