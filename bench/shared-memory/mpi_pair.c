/* Latency and bandwidth between two ranks of whatever MPI it is compiled with; bench/shared-memory/compare does both.
 * usage: mpi_pair CPU CPU PRIORITY BYTES...   (two ranks)
 * Prints a line per sample: latency|bandwidth BYTES VALUE LINE_BEFORE LINE_AFTER, where VALUE is microseconds one way
 * or MB/s, and LINE_* the nanoseconds a cache line took one way just before and after. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kLineTrips = 2500, kWarmUp = 500, kWindow = 64, kLongest = 1 << 20, kTag = 7 };

/* Two lines, one for each direction, far enough apart that fetching one does not bring the other. */
struct Lines {
  _Alignas(128) atomic_ulong there;
  _Alignas(128) atomic_ulong back;
};

static int rank;
static struct Lines* lines;
static char* buffer;

static int iterations(int bytes) { return bytes <= 8192 ? 5000 : bytes < 262144 ? 1000 : 200; }

static double line_ns(void) {
  static unsigned long number;
  double begin = 0;
  for (int i = 0; i < kWarmUp + kLineTrips; ++i) {
    if (i == kWarmUp) begin = MPI_Wtime();
    ++number;
    if (rank == 0) {
      atomic_store_explicit(&lines->there, number, memory_order_release);
      while (atomic_load_explicit(&lines->back, memory_order_acquire) != number) {
      }
    } else {
      while (atomic_load_explicit(&lines->there, memory_order_acquire) != number) {
      }
      atomic_store_explicit(&lines->back, number, memory_order_release);
    }
  }
  return (MPI_Wtime() - begin) / kLineTrips / 2 * 1e9;
}

static void exchange(int bytes) {
  if (rank == 0) MPI_Send(buffer, bytes, MPI_BYTE, 1, kTag, MPI_COMM_WORLD);
  MPI_Recv(buffer, bytes, MPI_BYTE, 1 - rank, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (rank == 1) MPI_Send(buffer, bytes, MPI_BYTE, 0, kTag, MPI_COMM_WORLD);
}

static double latency(int bytes) {
  const int count = iterations(bytes);
  for (int i = 0; i < count / 10; ++i) exchange(bytes);
  const double begin = MPI_Wtime();
  for (int i = 0; i < count; ++i) exchange(bytes);
  return (MPI_Wtime() - begin) / count / 2 * 1e6;
}

/* A window of messages, then an answer that they are all there. */
static void burst(int bytes) {
  MPI_Request requests[kWindow];
  for (int i = 0; i < kWindow; ++i) {
    if (rank == 0) {
      MPI_Isend(buffer, bytes, MPI_BYTE, 1, kTag, MPI_COMM_WORLD, &requests[i]);
    } else {
      MPI_Irecv(buffer, bytes, MPI_BYTE, 0, kTag, MPI_COMM_WORLD, &requests[i]);
    }
  }
  MPI_Waitall(kWindow, requests, MPI_STATUSES_IGNORE);
  if (rank == 1) MPI_Send(buffer, 0, MPI_BYTE, 0, kTag, MPI_COMM_WORLD);
  if (rank == 0) MPI_Recv(buffer, 0, MPI_BYTE, 1, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static double bandwidth(int bytes) {
  const int count = iterations(bytes) / 10;
  for (int i = 0; i < count / 10; ++i) burst(bytes);
  const double begin = MPI_Wtime();
  for (int i = 0; i < count; ++i) burst(bytes);
  return (double)bytes * kWindow * count / (MPI_Wtime() - begin) / 1e6;
}

static void sample(const char* what, double (*measure)(int), int bytes) {
  const double before = line_ns();
  const double value = measure(bytes);
  const double after = line_ns();
  if (rank == 0) printf("%s %d %.4f %.1f %.1f\n", what, bytes, value, before, after);
}

static void schedule(int cpu, int priority) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)cpu, &set);
  const struct sched_param parameters = {.sched_priority = priority};
  if (sched_setaffinity(0, sizeof set, &set) != 0 ||
      sched_setscheduler(0, priority ? SCHED_FIFO : SCHED_OTHER, &parameters) != 0) {
    fprintf(stderr, "mpi_pair: no such processor, or priority %d is not allowed\n", priority);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

int main(int argc, char** argv) {
  int ranks = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != 2 || argc < 5) {
    fprintf(stderr, "usage: mpi_pair CPU CPU PRIORITY BYTES...   (two ranks)\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  MPI_Win window;
  MPI_Aint size = 0;
  int unit = 0;
  MPI_Win_allocate_shared(rank == 0 ? sizeof(struct Lines) + 128 : 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &lines,
                          &window);
  MPI_Win_shared_query(window, 0, &size, &unit, &lines);
  /* The memory is zeroed only where the system gave it fresh. */
  if (rank == 0) memset(lines, 0, sizeof *lines);
  buffer = aligned_alloc(4096, kLongest);
  memset(buffer, rank, kLongest);
  MPI_Barrier(MPI_COMM_WORLD);
  schedule(atoi(argv[1 + rank]), atoi(argv[3]));
  for (int i = 4; i < argc; ++i) {
    const int bytes = atoi(argv[i]);
    if (bytes < 0 || bytes > kLongest) continue;
    sample("latency", latency, bytes);
    sample("bandwidth", bandwidth, bytes);
  }
  /* Whoever ends the job must get a processor. */
  schedule(atoi(argv[1 + rank]), 0);
  MPI_Win_free(&window);
  free(buffer);
  MPI_Finalize();
  return 0;
}
