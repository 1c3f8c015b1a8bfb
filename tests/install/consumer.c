/* The same as consumer.cc, in C. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "railyard/railyard.h"

static int report(const char *call) {
  fprintf(stderr, "%s: %s\n", call, ry_error_text());
  return 1;
}

int main(void) {
  ry_world *world = NULL;
  ry_window *window = NULL;
  const uint64_t sent = 42;
  uint64_t received = 0;
  if (ry_world_open(NULL, NULL, &world) != RY_OK) return report("ry_world_open");
  if (ry_window_allocate(world, 4096, NULL, &window) != RY_OK) return report("ry_window_allocate");
  const ry_signal_update signal = {.index = 0, .value = 1, .op = RY_SIGNAL_ADD};
  if (ry_put_signal(window, ry_world_rank(world), 8, &sent, sizeof sent, signal, NULL) != RY_OK)
    return report("ry_put_signal");
  if (ry_wait_signal(window, 0, RY_GREATER_EQUAL, 1, RY_DEFAULT, NULL) != RY_OK) return report("ry_wait_signal");
  memcpy(&received, (const char *)ry_window_local(window) + 8, sizeof received);
  if (ry_window_close(window, RY_DEFAULT) != RY_OK) return report("ry_window_close");
  ry_window_free(window);
  ry_world_free(world);
  printf("consumer-c: %s\n", received == sent ? "put and signal arrived" : "WRONG BYTES");
  return received == sent ? 0 : 1;
}
