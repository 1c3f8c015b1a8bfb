/*
 * What NCCL asks of a plugin for one-sided operations: the layout of its GIN and RMA tables, and nothing else. Valid
 * C11 and C++20, as abi.h. Member names are NCCL's own where its documents use them.
 *
 *   GIN version 11  NCCL 2.28.7 to 2.29.3
 *   GIN version 12  NCCL 2.29.7
 *   GIN version 13  NCCL 2.30.3; the same table is RMA version 13
 *   RMA version 14  NCCL 2.30.7: GIN tables of proxies are not looked at there
 *   RMA version 15  flags for each operation; from NCCL's public headers, in no release that was at hand
 *
 * All of these are for proxies: NCCL has the queues that kernels write to and the thread that empties them, and calls
 * the plugin for each operation.
 */
#ifndef RAILYARD_PLUGINS_NCCL_ABI_GIN_H
#define RAILYARD_PLUGINS_NCCL_ABI_GIN_H

#include <stdbool.h>

#include "abi.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { NCCL_DEVICE_GIN_PROXY = 2 };                /* netDeviceType */
enum { NCCL_SIGNAL_INC = 1, NCCL_SIGNAL_ADD = 2 }; /* signalOp: INC adds 1 whatever the value */
enum { NCCL_MR_STRONG_ORDER = 1 };                 /* mrFlags: memory of signals */
enum { NCCL_RMA_MORE_FOLLOWS = 1 };                /* optFlags: another operation will follow at once */

/* ---- what calls are given ---------------------------------------------------------------------------------------- */

struct nccl_gin_config_v13 {
  int nSignals;
  int nCounters;
  int nContexts;
  int queueDepth;
  int trafficClass;
};

struct nccl_rma_config_v14 {
  int nContexts;
  int trafficClass;
  int rankStride;
};

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* connect returns when all ranks are connected; it, regMrSym and regMrSymDmaBuf are collective. */
typedef nccl_result (*nccl_gin_init)(void **context, uint64_t comm_id, nccl_logger logger);
typedef nccl_result (*nccl_gin_connect)(void *context, void *handles[], int nranks, int rank, void *listener,
                                        void **coll);
typedef nccl_result (*nccl_gin_connect_v12)(void *context, void *handles[], int nranks, int rank, int connections,
                                            int queue_depth, void *listener, void **coll);

typedef nccl_result (*nccl_gin_create_v11)(void *coll, int signals, int counters, void **gin,
                                           struct nccl_device_handle **device);
typedef nccl_result (*nccl_gin_create_v12)(void *coll, int signals, int counters, int contexts, void **gin,
                                           struct nccl_device_handle **device);
typedef nccl_result (*nccl_gin_create_v13)(void *coll, struct nccl_gin_config_v13 *config, void **gin,
                                           struct nccl_device_handle **device);
typedef nccl_result (*nccl_rma_create_v14)(void *coll, struct nccl_rma_config_v14 *config, void **rma);

typedef nccl_result (*nccl_gin_register)(void *coll, void *data, size_t bytes, int type, uint64_t flags, void **memory,
                                         void **gin_memory);
typedef nccl_result (*nccl_gin_register_dmabuf)(void *coll, void *data, size_t bytes, int type, uint64_t offset, int fd,
                                                uint64_t flags, void **memory, void **gin_memory);
typedef nccl_result (*nccl_rma_register)(void *coll, void *data, size_t bytes, int type, uint64_t flags, void **memory);
typedef nccl_result (*nccl_rma_register_dmabuf)(void *coll, void *data, size_t bytes, int type, uint64_t offset, int fd,
                                                uint64_t flags, void **memory);

typedef nccl_result (*nccl_gin_put_v11)(void *coll, uint64_t source_offset, void *source, size_t bytes,
                                        uint64_t target_offset, void *target, uint32_t rank, void **request);
typedef nccl_result (*nccl_gin_put_v12)(void *coll, uint64_t source_offset, void *source, size_t bytes,
                                        uint64_t target_offset, void *target, uint32_t rank, int connection,
                                        void **request);
typedef nccl_result (*nccl_gin_put_v13)(void *gin, int context, uint64_t source_offset, void *source, size_t bytes,
                                        uint64_t target_offset, void *target, uint32_t rank, void **request);
typedef nccl_result (*nccl_rma_put_v15)(void *rma, int context, uint64_t source_offset, void *source, size_t bytes,
                                        uint64_t target_offset, void *target, uint32_t rank, uint32_t flags,
                                        void **request);

typedef nccl_result (*nccl_gin_put_signal_v11)(void *coll, uint64_t source_offset, void *source, size_t bytes,
                                               uint64_t target_offset, void *target, uint32_t rank,
                                               uint64_t signal_offset, void *signal, uint64_t value, uint32_t op,
                                               void **request);
typedef nccl_result (*nccl_gin_put_signal_v12)(void *coll, uint64_t source_offset, void *source, size_t bytes,
                                               uint64_t target_offset, void *target, uint32_t rank,
                                               uint64_t signal_offset, void *signal, uint64_t value, uint32_t op,
                                               int connection, void **request);
typedef nccl_result (*nccl_gin_put_signal_v13)(void *gin, int context, uint64_t source_offset, void *source,
                                               size_t bytes, uint64_t target_offset, void *target, uint32_t rank,
                                               uint64_t signal_offset, void *signal, uint64_t value, uint32_t op,
                                               void **request);
typedef nccl_result (*nccl_rma_put_signal_v14)(void *rma, int context, uint64_t source_offset, void *source,
                                               size_t bytes, uint64_t target_offset, void *target, uint32_t rank,
                                               uint64_t signal_offset, void *signal, uint64_t value, uint32_t op,
                                               bool strong, void **request);
typedef nccl_result (*nccl_rma_put_signal_v15)(void *rma, int context, uint64_t source_offset, void *source,
                                               size_t bytes, uint64_t target_offset, void *target, uint32_t rank,
                                               uint64_t signal_offset, void *signal, uint64_t value, uint32_t op,
                                               bool strong, uint32_t flags, void **request);

typedef nccl_result (*nccl_gin_get_v13)(void *gin, int context, uint64_t remote_offset, void *remote, size_t bytes,
                                        uint64_t local_offset, void *local, uint32_t rank, void **request);
typedef nccl_result (*nccl_rma_get_v15)(void *rma, int context, uint64_t remote_offset, void *remote, size_t bytes,
                                        uint64_t local_offset, void *local, uint32_t rank, uint32_t flags,
                                        void **request);
typedef nccl_result (*nccl_gin_flush_v13)(void *gin, int context, void *memory, uint32_t rank, void **request);

typedef nccl_result (*nccl_gin_test)(void *coll, void *request, int *done);
typedef nccl_result (*nccl_gin_progress)(void *coll_or_context);
typedef nccl_result (*nccl_gin_last_error)(void *gin, bool *failed);

/* ---- the tables -------------------------------------------------------------------------------------------------- */

struct nccl_gin_v11 {
  const char *name;
  nccl_gin_init init;
  nccl_devices devices;
  nccl_properties_of_v11 getProperties;
  nccl_listen_v11 listen;
  nccl_gin_connect connect;
  nccl_gin_create_v11 createContext;
  nccl_gin_register regMrSym;
  nccl_gin_register_dmabuf regMrSymDmaBuf;
  nccl_deregister deregMrSym;
  nccl_close destroyContext;
  nccl_close closeColl;
  nccl_close closeListen;
  nccl_gin_put_v11 iput;
  nccl_gin_put_signal_v11 iputSignal;
  nccl_gin_test test;
  nccl_gin_progress ginProgress;
  nccl_gin_last_error queryLastError;
  nccl_finalize finalize;
};

struct nccl_gin_v12 {
  const char *name;
  nccl_gin_init init;
  nccl_devices devices;
  nccl_properties_of_v11 getProperties;
  nccl_listen_v11 listen;
  nccl_gin_connect_v12 connect;
  nccl_gin_create_v12 createContext;
  nccl_gin_register regMrSym;
  nccl_gin_register_dmabuf regMrSymDmaBuf;
  nccl_deregister deregMrSym;
  nccl_close destroyContext;
  nccl_close closeColl;
  nccl_close closeListen;
  nccl_gin_put_v12 iput;
  nccl_gin_put_signal_v12 iputSignal;
  nccl_gin_test test;
  nccl_gin_progress ginProgress;
  nccl_gin_last_error queryLastError;
  nccl_finalize finalize;
};

/* Of GIN and of RMA. */
struct nccl_gin_v13 {
  const char *name;
  nccl_gin_init init;
  nccl_devices devices;
  nccl_properties_of_v12 getProperties;
  nccl_listen_v11 listen;
  nccl_gin_connect connect;
  nccl_gin_create_v13 createContext;
  nccl_gin_register regMrSym;
  nccl_gin_register_dmabuf regMrSymDmaBuf;
  nccl_deregister deregMrSym;
  nccl_close destroyContext;
  nccl_close closeColl;
  nccl_close closeListen;
  nccl_gin_put_v13 iput;
  nccl_gin_put_signal_v13 iputSignal;
  nccl_gin_get_v13 iget;
  nccl_gin_flush_v13 iflush;
  nccl_gin_test test;
  nccl_gin_progress ginProgress;
  nccl_gin_last_error queryLastError;
  nccl_finalize finalize;
};

struct nccl_rma_v14 {
  const char *name;
  nccl_gin_init init;
  nccl_devices devices;
  nccl_properties_of_v12 getProperties;
  nccl_listen_v11 listen;
  nccl_gin_connect connect;
  nccl_rma_create_v14 createContext;
  nccl_rma_register regMrSym;
  nccl_rma_register_dmabuf regMrSymDmaBuf;
  nccl_deregister deregMrSym;
  nccl_close destroyContext;
  nccl_close closeColl;
  nccl_close closeListen;
  nccl_gin_put_v13 iput;
  nccl_rma_put_signal_v14 iputSignal;
  nccl_gin_get_v13 iget;
  nccl_gin_flush_v13 iflush;
  nccl_gin_test test;
  nccl_gin_progress rmaProgress;
  nccl_gin_last_error queryLastError;
  nccl_finalize finalize;
};

struct nccl_rma_v15 {
  const char *name;
  nccl_gin_init init;
  nccl_devices devices;
  nccl_properties_of_v12 getProperties;
  nccl_listen_v11 listen;
  nccl_gin_connect connect;
  nccl_rma_create_v14 createContext;
  nccl_rma_register regMrSym;
  nccl_rma_register_dmabuf regMrSymDmaBuf;
  nccl_deregister deregMrSym;
  nccl_close destroyContext;
  nccl_close closeColl;
  nccl_close closeListen;
  nccl_rma_put_v15 iput;
  nccl_rma_put_signal_v15 iputSignal;
  nccl_rma_get_v15 iget;
  nccl_gin_flush_v13 iflush;
  nccl_gin_test test;
  nccl_gin_progress rmaProgress;
  nccl_gin_last_error queryLastError;
  nccl_finalize finalize;
};

/* ---- as NCCL's own headers lay them out on x86-64 and AArch64 ---------------------------------------------------- */

static_assert(sizeof(bool) == 1, "bool");
static_assert(sizeof(struct nccl_gin_config_v13) == 20, "nccl_gin_config_v13");
static_assert(offsetof(struct nccl_gin_config_v13, nContexts) == 8, "nccl_gin_config_v13.nContexts");
static_assert(sizeof(struct nccl_rma_config_v14) == 12, "nccl_rma_config_v14");

static_assert(sizeof(struct nccl_gin_v11) == 152, "nccl_gin_v11");
static_assert(offsetof(struct nccl_gin_v11, createContext) == 48, "nccl_gin_v11.createContext");
static_assert(offsetof(struct nccl_gin_v11, iput) == 104, "nccl_gin_v11.iput");
static_assert(offsetof(struct nccl_gin_v11, ginProgress) == 128, "nccl_gin_v11.ginProgress");
static_assert(offsetof(struct nccl_gin_v11, finalize) == 144, "nccl_gin_v11.finalize");
static_assert(sizeof(struct nccl_gin_v12) == 152, "nccl_gin_v12");
static_assert(offsetof(struct nccl_gin_v12, iput) == 104, "nccl_gin_v12.iput");
static_assert(sizeof(struct nccl_gin_v13) == 168, "nccl_gin_v13");
static_assert(offsetof(struct nccl_gin_v13, iget) == 120, "nccl_gin_v13.iget");
static_assert(offsetof(struct nccl_gin_v13, test) == 136, "nccl_gin_v13.test");
static_assert(offsetof(struct nccl_gin_v13, finalize) == 160, "nccl_gin_v13.finalize");
static_assert(sizeof(struct nccl_rma_v14) == 168, "nccl_rma_v14");
static_assert(offsetof(struct nccl_rma_v14, createContext) == 48, "nccl_rma_v14.createContext");
static_assert(offsetof(struct nccl_rma_v14, iputSignal) == 112, "nccl_rma_v14.iputSignal");
static_assert(offsetof(struct nccl_rma_v14, rmaProgress) == 144, "nccl_rma_v14.rmaProgress");
static_assert(sizeof(struct nccl_rma_v15) == 168, "nccl_rma_v15");
static_assert(offsetof(struct nccl_rma_v15, iget) == 120, "nccl_rma_v15.iget");
static_assert(offsetof(struct nccl_rma_v15, finalize) == 160, "nccl_rma_v15.finalize");

#ifdef __cplusplus
}
#endif

#endif
