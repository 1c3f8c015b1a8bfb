/* A small MPI program whose every byte is checked, for running MPI over the libfabric provider: point to point,
 * collectives, one-sided. Prints one line and answers 0 when nothing was wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;
static long wrong;

static void expect(int good, const char *what) {
  if (good) return;
  if (wrong++ < 10) fprintf(stderr, "rank %d: wrong: %s\n", rank, what);
}

static void *memory(size_t bytes) {
  void *found = malloc(bytes);
  if (found == NULL) MPI_Abort(MPI_COMM_WORLD, 2);
  return found;
}

static int value(int from, int at) { return from * 1000003 + at; }

/* Everybody to its right neighbour, from one element to 8 MiB. */
static void around_the_ring(int elements) {
  const int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
  int *out = memory((size_t)elements * sizeof *out), *in = memory((size_t)elements * sizeof *in);
  for (int at = 0; at < elements; ++at) out[at] = value(rank, at);
  MPI_Request requests[2];
  MPI_Irecv(in, elements, MPI_INT, left, 7, MPI_COMM_WORLD, &requests[0]);
  MPI_Isend(out, elements, MPI_INT, right, 7, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  int good = 1;
  for (int at = 0; at < elements; ++at) good = good && in[at] == value(left, at);
  expect(good, "a message around the ring");
  free(out);
  free(in);
}

/* Many short messages nobody waits for, received from any source and with any tag: in order from each sender. */
static void unexpected(int messages) {
  if (rank != 0) {
    for (int number = 0; number < messages; ++number) MPI_Send(&number, 1, MPI_INT, 0, rank, MPI_COMM_WORLD);
    return;
  }
  int *next = memory((size_t)ranks * sizeof *next);
  for (int from = 0; from < ranks; ++from) next[from] = 0;
  for (int left = messages * (ranks - 1); left > 0; --left) {
    int number = -1;
    MPI_Status status;
    MPI_Recv(&number, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    expect(number == next[status.MPI_SOURCE]++ && status.MPI_TAG == status.MPI_SOURCE, "the order of a sender");
  }
  free(next);
}

/* A synchronous send ends only after its receive began. */
static void synchronous(void) {
  int word = 41;
  if (rank == 0) {
    MPI_Ssend(&word, 1, MPI_INT, 1, 3, MPI_COMM_WORLD);
  } else if (rank == 1) {
    MPI_Status status;
    int count = 0;
    MPI_Probe(0, 3, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_INT, &count);
    word = 0;
    MPI_Recv(&word, 1, MPI_INT, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    expect(count == 1 && word == 41, "a synchronous send");
  }
}

static void reduce_all(int elements) {
  long *own = memory((size_t)elements * sizeof *own), *sum = memory((size_t)elements * sizeof *sum);
  for (int at = 0; at < elements; ++at) own[at] = rank + at;
  MPI_Allreduce(own, sum, elements, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  int good = 1;
  for (int at = 0; at < elements; ++at) good = good && sum[at] == (long)ranks * at + (long)ranks * (ranks - 1) / 2;
  expect(good, "an allreduce");
  free(own);
  free(sum);
}

static void collectives(int elements) {
  const size_t all = (size_t)elements * (size_t)ranks;
  int *out = memory(all * sizeof *out), *in = memory(all * sizeof *in);
  for (int to = 0; to < ranks; ++to)
    for (int at = 0; at < elements; ++at) out[to * elements + at] = value(rank * ranks + to, at);
  MPI_Alltoall(out, elements, MPI_INT, in, elements, MPI_INT, MPI_COMM_WORLD);
  int good = 1;
  for (int from = 0; from < ranks; ++from)
    for (int at = 0; at < elements; ++at) good = good && in[from * elements + at] == value(from * ranks + rank, at);
  expect(good, "an alltoall");

  for (int at = 0; at < elements; ++at) out[at] = rank == ranks - 1 ? value(17, at) : 0;
  MPI_Bcast(out, elements, MPI_INT, ranks - 1, MPI_COMM_WORLD);
  good = 1;
  for (int at = 0; at < elements; ++at) good = good && out[at] == value(17, at);
  expect(good, "a broadcast");

  for (int at = 0; at < elements; ++at) out[at] = value(rank, at);
  MPI_Allgather(out, elements, MPI_INT, in, elements, MPI_INT, MPI_COMM_WORLD);
  good = 1;
  for (int from = 0; from < ranks; ++from)
    for (int at = 0; at < elements; ++at) good = good && in[from * elements + at] == value(from, at);
  expect(good, "an allgather");
  free(out);
  free(in);
  MPI_Barrier(MPI_COMM_WORLD);
}

enum { kWords = 1 << 16, kCounter = 0, kData = 16 };

static void one_sided(void) {
  const int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
  const int part = (kWords - kData) / 2;
  long *words = NULL, *own = memory((size_t)part * sizeof *own);
  MPI_Win window;
  MPI_Win_allocate((MPI_Aint)(kWords * sizeof *words), sizeof *words, MPI_INFO_NULL, MPI_COMM_WORLD, &words, &window);
  for (int at = 0; at < kWords; ++at) words[at] = 0;
  for (int at = 0; at < part; ++at) own[at] = value(rank, at);
  MPI_Win_fence(0, window);
  MPI_Put(own, part, MPI_LONG, right, kData, part, MPI_LONG, window);
  MPI_Win_fence(0, window);
  int good = 1;
  for (int at = 0; at < part; ++at) good = good && words[kData + at] == value(left, at);
  expect(good, "a put");
  for (int at = 0; at < part; ++at) own[at] = 0;
  MPI_Get(own, part, MPI_LONG, right, kData, part, MPI_LONG, window);
  MPI_Win_fence(0, window);
  good = 1;
  for (int at = 0; at < part; ++at) good = good && own[at] == value(rank, at);
  expect(good, "a get");

  /* Every rank draws numbers from one counter: each number once. */
  const int draws = 100;
  char *seen = memory((size_t)(draws * ranks));
  char *mine = memory((size_t)(draws * ranks));
  for (int at = 0; at < draws * ranks; ++at) mine[at] = 0;
  MPI_Win_lock_all(0, window);
  for (int draw = 0; draw < draws; ++draw) {
    const long one = 1;
    long number = -1;
    MPI_Fetch_and_op(&one, &number, MPI_LONG, 0, kCounter, MPI_SUM, window);
    MPI_Win_flush(0, window);
    if (number >= 0 && number < (long)draws * ranks) mine[number] = 1;
  }
  MPI_Win_unlock_all(window);
  MPI_Reduce(mine, seen, draws * ranks, MPI_CHAR, MPI_SUM, 0, MPI_COMM_WORLD);
  good = 1;
  for (int at = 0; rank == 0 && at < draws * ranks; ++at) good = good && seen[at] == 1;
  expect(good, "numbers drawn from a counter");

  const long two = 2;
  MPI_Win_fence(0, window);
  MPI_Accumulate(&two, 1, MPI_LONG, 0, kCounter + 1, 1, MPI_LONG, MPI_SUM, window);
  MPI_Win_fence(0, window);
  expect(rank != 0 || words[kCounter + 1] == 2L * ranks, "an accumulate");
  free(seen);
  free(mine);
  free(own);
  MPI_Win_free(&window);
}

int main(int count, char **words) {
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int elements = 1; elements <= 1 << 21; elements *= 8) {
    around_the_ring(elements);
    around_the_ring(elements + 3);
  }
  unexpected(5000);
  synchronous();
  for (int elements = 1; elements <= 1 << 18; elements *= 16) reduce_all(elements);
  for (int elements = 1; elements <= 1 << 15; elements *= 32) collectives(elements);
  one_sided();
  long all = 0;
  MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%d ranks, %ld wrong\n", ranks, all);
  MPI_Finalize();
  return all == 0 ? 0 : 1;
}
