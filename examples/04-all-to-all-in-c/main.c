/* The C API: every rank puts a block into every rank's window, itself included, and waits for one signal that counts
 * the blocks. Ends with the bytes that each rail carried.
 *
 *   RAILYARD_RAILS=2 railyard launch -n 4 -- example-04-all-to-all-in-c
 */
#include <railyard/railyard.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBlockBytes = 256 * 1024, kBlocks = 0 };

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, ry_error_text());
  return 1;
}

/* What `from` sends to `to`. */
static unsigned char content(int from, int to) { return (unsigned char)(from * 16 + to + 1); }

static int exchange(ry_window *window, int rank, int size, unsigned char *blocks) {
  const ry_signal_update one_more = {kBlocks, 1, RY_SIGNAL_ADD};
  int wrong = 0;
  for (int i = 0; i < size; ++i) {
    const int to = (rank + i) % size; /* not everybody to rank 0 first */
    unsigned char *block = blocks + (size_t)to * kBlockBytes;
    memset(block, content(rank, to), kBlockBytes);
    if (ry_put_signal(window, to, (size_t)rank * kBlockBytes, block, kBlockBytes, one_more, NULL) != RY_OK) {
      return failed("put");
    }
  }
  if (ry_wait_signal(window, kBlocks, RY_EQUAL, (uint64_t)size, RY_DEFAULT, NULL) != RY_OK) return failed("wait");
  const unsigned char *mine = ry_window_local(window);
  for (int from = 0; from < size; ++from) {
    for (size_t i = 0; i < kBlockBytes; ++i) wrong += mine[(size_t)from * kBlockBytes + i] != content(from, rank);
  }
  /* Our own blocks may be freed once they are complete. */
  if (ry_quiet(window, RY_ALL_RANKS, RY_DEFAULT) != RY_OK) return failed("quiet");
  printf("rank %d: %d blocks, %d wrong bytes\n", rank, size, wrong);
  return wrong != 0;
}

static void print_rails(const ry_world *world) {
  for (size_t i = 0; i < ry_world_rail_count(world); ++i) {
    ry_rail_statistics rail;
    if (ry_world_read_rail(world, i, &rail) != RY_OK) return;
    printf("rank %d, rail %zu (%s): %llu bytes\n", ry_world_rank(world), i, rail.name,
           (unsigned long long)rail.bytes_sent);
  }
}

int main(void) {
  ry_world *world = NULL;
  ry_window *window = NULL;
  int result = 1;
  if (ry_world_open(NULL, NULL, &world) != RY_OK) return failed("no world");
  const int size = ry_world_size(world);
  const size_t bytes = (size_t)size * kBlockBytes;
  unsigned char *blocks = malloc(bytes);
  if (blocks == NULL) {
    fprintf(stderr, "no memory\n");
  } else if (ry_window_allocate(world, bytes, NULL, &window) != RY_OK) {
    failed("no window");
  } else {
    result = exchange(window, ry_world_rank(world), size, blocks);
    if (result == 0) print_rails(world);
    if (ry_window_close(window, RY_DEFAULT) != RY_OK) result = failed("close");
  }
  ry_window_free(window);
  ry_world_free(world);
  free(blocks);
  return result;
}
