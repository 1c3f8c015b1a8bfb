/* A user of the C API, compiled as C. Each returns 0, or the line where it went wrong. */
#ifndef RAILYARD_TESTS_C_API_PLAIN_C_H
#define RAILYARD_TESTS_C_API_PLAIN_C_H

#include "railyard/railyard.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every operation of a window of one rank, on itself. */
int plain_c_operations(ry_window *window);
/* Rank 0 and 1 of a world of two exchange blocks with signals; both call it. */
int plain_c_exchange(ry_window *window, int rank);
/* A listener and a channel to it within one context: messages of every kind both ways, until both ends are closed. */
int plain_c_messages(ry_context *context);

#ifdef __cplusplus
}
#endif

#endif
