/* Connections between the ranks, made as NCCL's service thread makes them. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

static void connect_and_accept(struct pair *pair, void *listener, void *handle) {
  const struct rank *const rank = pair->rank;
  while (pair->sender == NULL || pair->receiver == NULL) {
    if (pair->sender == NULL) CHECK_OK(plugin_connect(&rank->plugin, rank->context, 0, handle, &pair->sender));
    if (pair->receiver == NULL) CHECK_OK(rank->plugin.accept(listener, &pair->receiver, NULL));
    if (pair->sender == NULL || pair->receiver == NULL) usleep(50);
  }
  CHECK_OK(rank->plugin.closeListen(listener)); /* what was accepted stays */
}

static void register_arenas(struct pair *pair) {
  const struct plugin *const plugin = &pair->rank->plugin;
  CHECK_OK(plugin->regMr(pair->sender, pair->send_arena, pair->arena_bytes, NCCL_POINTER_HOST, &pair->send_memory));
  CHECK_OK(
      plugin->regMr(pair->receiver, pair->receive_arena, pair->arena_bytes, NCCL_POINTER_HOST, &pair->receive_memory));
}

static void open_on_service(void *argument) {
  struct pair *const pair = argument;
  struct rank *const rank = pair->rank;
  unsigned char handle[NCCL_HANDLE_BYTES];
  void *listener = NULL;
  CHECK_OK(plugin_listen(&rank->plugin, rank->context, 0, handle, &listener));
  CHECK(listener != NULL, "listen answers with a comm");
  send_to_peer(rank, handle, sizeof(handle));
  receive_from_peer(rank, handle, sizeof(handle));
  connect_and_accept(pair, listener, handle);
  register_arenas(pair);
}

static void open_to_self(void *argument) {
  struct pair *const pair = argument;
  struct rank *const rank = pair->rank;
  unsigned char handle[NCCL_HANDLE_BYTES];
  void *listener = NULL;
  CHECK_OK(plugin_listen(&rank->plugin, rank->context, 0, handle, &listener));
  connect_and_accept(pair, listener, handle);
  register_arenas(pair);
}

static void prepare(struct pair *pair, struct rank *rank, int peer, size_t arena_bytes) {
  memset(pair, 0, sizeof(*pair));
  pair->rank = rank;
  pair->peer = peer;
  pair->arena_bytes = arena_bytes;
  pair->send_arena = aligned_alloc(4096, arena_bytes);
  pair->receive_arena = aligned_alloc(4096, arena_bytes);
  CHECK(pair->send_arena != NULL && pair->receive_arena != NULL, "no memory");
}

void open_pair(struct pair *pair, struct rank *rank, size_t arena_bytes) {
  prepare(pair, rank, 1 - rank->number, arena_bytes);
  run_job(&rank->service, open_on_service, pair);
}

void open_loop(struct pair *pair, struct rank *rank, size_t arena_bytes) {
  prepare(pair, rank, rank->number, arena_bytes);
  run_job(&rank->service, open_to_self, pair);
}

static void close_on_service(void *argument) {
  struct pair *const pair = argument;
  const struct plugin *const plugin = &pair->rank->plugin;
  CHECK_OK(plugin->deregMr(pair->sender, pair->send_memory));
  CHECK_OK(plugin->deregMr(pair->receiver, pair->receive_memory));
  CHECK_OK(plugin->closeSend(pair->sender));
  CHECK_OK(plugin->closeRecv(pair->receiver));
}

void close_pair(struct pair *pair) {
  run_job(&pair->rank->service, close_on_service, pair);
  free(pair->send_arena);
  free(pair->receive_arena);
}
