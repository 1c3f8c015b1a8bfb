/* Channels in C: two processes that have no ranks and no launcher. The child listens and sends the name of its listener
 * through a pipe; the parent connects and asks for blocks by their number; the child answers each with the block.
 *
 *   example-10-messages-in-c
 */
#include <railyard/railyard.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kBlocks = 32, kBlockBytes = 300 * 1000, kQuestion = 1, kBlock = 2 };

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, ry_error_text());
  return 1;
}

static unsigned char content(uint64_t block) { return (unsigned char)(block * 7 + 1); }

/* Sends one message, or receives one, and waits until that is done. */
static ry_status send_one(ry_channel *channel, const void *message, size_t bytes, int tag) {
  ry_request request;
  ry_status status = ry_channel_send(channel, message, bytes, tag, NULL, &request);
  return status == RY_OK ? ry_channel_wait(channel, request, NULL, 0, RY_DEFAULT) : status;
}
static ry_status receive_one(ry_channel *channel, void *memory, size_t bytes, int tag) {
  const ry_receive_slot slot = {memory, bytes, tag, NULL};
  ry_request request;
  ry_status status = ry_channel_receive(channel, &slot, 1, &request);
  return status == RY_OK ? ry_channel_wait(channel, request, NULL, 0, RY_DEFAULT) : status;
}

/* The child: answers until the other end closes the channel. */
static int serve(int pipe_out) {
  ry_context *context = NULL;
  ry_listener *listener = NULL;
  ry_channel *channel = NULL;
  ry_handle handle;
  ry_status status = RY_BUSY;
  uint64_t block = 0;
  unsigned char *bytes = malloc(kBlockBytes);
  if (bytes == NULL || ry_context_open(NULL, &context) != RY_OK) return failed("open");
  if (ry_context_listen(context, &listener) != RY_OK || ry_listener_handle(listener, &handle) != RY_OK)
    return failed("listen");
  if (write(pipe_out, &handle, sizeof handle) != (ssize_t)sizeof handle) return failed("pipe");
  while (status == RY_BUSY) status = ry_listener_accept(listener, &channel);
  if (status != RY_OK) return failed("accept");
  while ((status = receive_one(channel, &block, sizeof block, kQuestion)) == RY_OK) {
    memset(bytes, content(block), kBlockBytes);
    if (send_one(channel, bytes, kBlockBytes, kBlock) != RY_OK) return failed("answer");
  }
  if (status != RY_PEER_LOST) return failed("question");
  ry_channel_free(channel);
  ry_listener_free(listener);
  ry_context_free(context);
  free(bytes);
  return 0;
}

/* The parent. */
static int ask(int pipe_in) {
  ry_context *context = NULL;
  ry_channel *channel = NULL;
  ry_handle handle;
  ry_status status = RY_BUSY;
  int wrong = 0;
  unsigned char *bytes = malloc(kBlockBytes);
  if (bytes == NULL || ry_context_open(NULL, &context) != RY_OK) return failed("open");
  if (read(pipe_in, &handle, sizeof handle) != (ssize_t)sizeof handle) return failed("pipe");
  while (status == RY_BUSY) status = ry_context_connect(context, &handle, 0, &channel);
  if (status != RY_OK) return failed("connect");
  for (uint64_t block = 0; block < kBlocks; ++block) {
    if (send_one(channel, &block, sizeof block, kQuestion) != RY_OK) return failed("question");
    if (receive_one(channel, bytes, kBlockBytes, kBlock) != RY_OK) return failed("answer");
    for (size_t i = 0; i < kBlockBytes; ++i) wrong += bytes[i] != content(block);
  }
  printf("%d blocks of %d bytes, %d wrong bytes\n", kBlocks, kBlockBytes, wrong);
  ry_channel_free(channel);
  ry_context_free(context);
  free(bytes);
  return wrong != 0;
}

int main(void) {
  int ends[2];
  int child_status = 0;
  int answer = 0;
  pid_t child;
  if (pipe(ends) != 0) return failed("pipe");
  child = fork(); /* before either opens anything of Railyard's */
  if (child < 0) return failed("fork");
  if (child == 0) return serve(ends[1]);
  answer = ask(ends[0]);
  waitpid(child, &child_status, 0);
  return answer != 0 || child_status != 0;
}
