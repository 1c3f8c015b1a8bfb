/*
 * What NCCL and RCCL ask of a network plugin, versions 8 to 12: the layout of the tables and structures, and nothing
 * else. Valid C11 and C++20, so that two front ends check the sizes. Member names are NCCL's own where its documents
 * use them.
 *
 *   version 8   sizes are int                         NCCL 2.20, RCCL of ROCm 6
 *   version 9   sizes are size_t, virtual devices     NCCL 2.23
 *   version 10  profiler, traffic class               NCCL 2.26
 *   version 11  a context for each communicator       NCCL 2.28
 *   version 12  rail and plane numbers                NCCL 2.30
 */
#ifndef RAILYARD_PLUGINS_NCCL_ABI_H
#define RAILYARD_PLUGINS_NCCL_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enumerations of the ABI are passed as plain integers: a number that has no name here is still a number. */
typedef int nccl_result;
enum {
  NCCL_OK = 0,
  NCCL_SYSTEM_ERROR = 2,   /* the system or the hardware */
  NCCL_INTERNAL_ERROR = 3, /* NCCL called it wrongly */
  NCCL_INVALID_USAGE = 5,  /* the user's settings or program */
  NCCL_REMOTE_ERROR = 6    /* the other process */
};

enum { NCCL_POINTER_HOST = 1, NCCL_POINTER_CUDA = 2, NCCL_POINTER_DMABUF = 4 };
enum { NCCL_DEVICE_HOST = 0 };
enum { NCCL_LEVEL_WARN = 2, NCCL_LEVEL_INFO = 3, NCCL_LEVEL_TRACE = 5 };
enum { NCCL_SUBSYSTEM_INIT = 0x1, NCCL_SUBSYSTEM_NET = 0x10 };
enum { NCCL_EVENT_START = 0, NCCL_EVENT_STOP = 1 };

#define NCCL_HANDLE_BYTES 128
#define NCCL_MOST_REQUESTS 32                    /* under way on one comm, for each message of a grouped receive */
#define NCCL_MOST_BYTES ((size_t)1 << 40)        /* the largest maxP2pBytes that NCCL takes */
#define NCCL_MOST_BYTES_V8 ((size_t)1 << 30)     /* its largest message where sizes are int */
#define NCCL_UNDEFINED (-1)                      /* a traffic class, rail or plane that nobody gave */
#define NCCL_OPTIONAL_COMPLETION ((void *)0x1UL) /* in *request of irecv */

typedef void (*nccl_logger)(int level, unsigned long subsystems, const char *where, int line, const char *format, ...);
typedef nccl_result (*nccl_profiler)(void **event, int type, void *parent, int64_t plugin, void *descriptor);

/* ---- what calls are given ---------------------------------------------------------------------------------------- */

struct nccl_device_handle {
  int netDeviceType;
  int netDeviceVersion;
  void *handle;
  size_t size;
  int needsProxyProgress;
};

struct nccl_comm_config {
  int trafficClass;
};

struct nccl_virtual_device_v9 {
  int ndevs;
  int devs[4];
};

struct nccl_virtual_device_v12 {
  int ndevs;
  int devs[8];
};

struct nccl_comm_attributes {
  int32_t maxConcurrentPeers;
  int32_t minConcurrentPeers;
  int32_t maxFlowsPerPeer;
  int32_t minFlowsPerPeer;
};

struct nccl_net_attributes {
  struct nccl_comm_attributes sendCommAttr;
  struct nccl_comm_attributes recvCommAttr;
  uint32_t op;
  uint32_t algo;
  uint32_t proto;
};

/* ---- properties of a device -------------------------------------------------------------------------------------- */

struct nccl_properties_v8 {
  char *name;
  char *pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int speed; /* Mb/s */
  int port;
  float latency; /* microseconds */
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
};

struct nccl_properties_v9 {
  char *name;
  char *pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  struct nccl_virtual_device_v9 vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
};

struct nccl_properties_v11 {
  char *name;
  char *pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  struct nccl_virtual_device_v9 vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
  int maxMultiRequestSize;
};

struct nccl_properties_v12 {
  char *name;
  char *pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  struct nccl_virtual_device_v12 vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
  int maxMultiRequestSize;
  int16_t railId;
  int16_t planeId;
};

/* ---- calls whose form is the same in all versions, and those that changed ---------------------------------------- */

typedef nccl_result (*nccl_devices)(int *count);
typedef nccl_result (*nccl_accept)(void *listener, void **receiver, struct nccl_device_handle **device);
typedef nccl_result (*nccl_register)(void *comm, void *data, size_t bytes, int type, void **memory);
typedef nccl_result (*nccl_register_dmabuf)(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                                            void **memory);
typedef nccl_result (*nccl_deregister)(void *comm, void *memory);
typedef nccl_result (*nccl_flush)(void *receiver, int n, void **data, int *sizes, void **memories, void **request);
typedef nccl_result (*nccl_test)(void *request, int *done, int *sizes);
typedef nccl_result (*nccl_close)(void *comm);
typedef nccl_result (*nccl_device_memory)(void *comm, void *memory, void **device_memory);
typedef nccl_result (*nccl_consumed)(void *receiver, int n, void *request);

typedef nccl_result (*nccl_init_v8)(nccl_logger logger);
typedef nccl_result (*nccl_init_v10)(nccl_logger logger, nccl_profiler profiler);
typedef nccl_result (*nccl_init_v11)(void **context, uint64_t comm_id, struct nccl_comm_config *config,
                                     nccl_logger logger, nccl_profiler profiler);

typedef nccl_result (*nccl_listen_v8)(int device, void *handle, void **listener);
typedef nccl_result (*nccl_listen_v11)(void *context, int device, void *handle, void **listener);

typedef nccl_result (*nccl_connect_v8)(int device, void *handle, void **sender, struct nccl_device_handle **offload);
typedef nccl_result (*nccl_connect_v10)(int device, struct nccl_comm_config *config, void *handle, void **sender,
                                        struct nccl_device_handle **offload);
typedef nccl_result (*nccl_connect_v11)(void *context, int device, void *handle, void **sender,
                                        struct nccl_device_handle **offload);

typedef nccl_result (*nccl_send_v8)(void *sender, void *data, int bytes, int tag, void *memory, void **request);
typedef nccl_result (*nccl_send_v9)(void *sender, void *data, size_t bytes, int tag, void *memory, void **request);
typedef nccl_result (*nccl_send_v10)(void *sender, void *data, size_t bytes, int tag, void *memory, void *parent,
                                     void **request);

typedef nccl_result (*nccl_receive_v8)(void *receiver, int n, void **data, int *sizes, int *tags, void **memories,
                                       void **request);
typedef nccl_result (*nccl_receive_v9)(void *receiver, int n, void **data, size_t *sizes, int *tags, void **memories,
                                       void **request);
typedef nccl_result (*nccl_receive_v10)(void *receiver, int n, void **data, size_t *sizes, int *tags, void **memories,
                                        void **parents, void **request);

typedef nccl_result (*nccl_properties_of_v8)(int device, struct nccl_properties_v8 *properties);
typedef nccl_result (*nccl_properties_of_v9)(int device, struct nccl_properties_v9 *properties);
typedef nccl_result (*nccl_properties_of_v11)(int device, struct nccl_properties_v11 *properties);
typedef nccl_result (*nccl_properties_of_v12)(int device, struct nccl_properties_v12 *properties);

typedef nccl_result (*nccl_make_device_v9)(int *device, struct nccl_virtual_device_v9 *properties);
typedef nccl_result (*nccl_make_device_v12)(int *device, struct nccl_virtual_device_v12 *properties);
typedef nccl_result (*nccl_finalize)(void *context);
typedef nccl_result (*nccl_set_attributes)(void *context, struct nccl_net_attributes *attributes);

/* ---- the tables -------------------------------------------------------------------------------------------------- */

struct nccl_net_v8 {
  const char *name;
  nccl_init_v8 init;
  nccl_devices devices;
  nccl_properties_of_v8 getProperties;
  nccl_listen_v8 listen;
  nccl_connect_v8 connect;
  nccl_accept accept;
  nccl_register regMr;
  nccl_register_dmabuf regMrDmaBuf;
  nccl_deregister deregMr;
  nccl_send_v8 isend;
  nccl_receive_v8 irecv;
  nccl_flush iflush;
  nccl_test test;
  nccl_close closeSend;
  nccl_close closeRecv;
  nccl_close closeListen;
  nccl_device_memory getDeviceMr;
  nccl_consumed irecvConsumed;
};

struct nccl_net_v9 {
  const char *name;
  nccl_init_v8 init;
  nccl_devices devices;
  nccl_properties_of_v9 getProperties;
  nccl_listen_v8 listen;
  nccl_connect_v8 connect;
  nccl_accept accept;
  nccl_register regMr;
  nccl_register_dmabuf regMrDmaBuf;
  nccl_deregister deregMr;
  nccl_send_v9 isend;
  nccl_receive_v9 irecv;
  nccl_flush iflush;
  nccl_test test;
  nccl_close closeSend;
  nccl_close closeRecv;
  nccl_close closeListen;
  nccl_device_memory getDeviceMr;
  nccl_consumed irecvConsumed;
  nccl_make_device_v9 makeVDevice;
};

struct nccl_net_v10 {
  const char *name;
  nccl_init_v10 init;
  nccl_devices devices;
  nccl_properties_of_v9 getProperties;
  nccl_listen_v8 listen;
  nccl_connect_v10 connect;
  nccl_accept accept;
  nccl_register regMr;
  nccl_register_dmabuf regMrDmaBuf;
  nccl_deregister deregMr;
  nccl_send_v10 isend;
  nccl_receive_v10 irecv;
  nccl_flush iflush;
  nccl_test test;
  nccl_close closeSend;
  nccl_close closeRecv;
  nccl_close closeListen;
  nccl_device_memory getDeviceMr;
  nccl_consumed irecvConsumed;
  nccl_make_device_v9 makeVDevice;
};

struct nccl_net_v11 {
  const char *name;
  nccl_init_v11 init;
  nccl_devices devices;
  nccl_properties_of_v11 getProperties;
  nccl_listen_v11 listen;
  nccl_connect_v11 connect;
  nccl_accept accept;
  nccl_register regMr;
  nccl_register_dmabuf regMrDmaBuf;
  nccl_deregister deregMr;
  nccl_send_v10 isend;
  nccl_receive_v10 irecv;
  nccl_flush iflush;
  nccl_test test;
  nccl_close closeSend;
  nccl_close closeRecv;
  nccl_close closeListen;
  nccl_device_memory getDeviceMr;
  nccl_consumed irecvConsumed;
  nccl_make_device_v9 makeVDevice;
  nccl_finalize finalize;
  nccl_set_attributes setNetAttr;
};

struct nccl_net_v12 {
  const char *name;
  nccl_init_v11 init;
  nccl_devices devices;
  nccl_properties_of_v12 getProperties;
  nccl_listen_v11 listen;
  nccl_connect_v11 connect;
  nccl_accept accept;
  nccl_register regMr;
  nccl_register_dmabuf regMrDmaBuf;
  nccl_deregister deregMr;
  nccl_send_v10 isend;
  nccl_receive_v10 irecv;
  nccl_flush iflush;
  nccl_test test;
  nccl_close closeSend;
  nccl_close closeRecv;
  nccl_close closeListen;
  nccl_device_memory getDeviceMr;
  nccl_consumed irecvConsumed;
  nccl_make_device_v12 makeVDevice;
  nccl_finalize finalize;
  nccl_set_attributes setNetAttr;
};

/* ---- as NCCL's own headers lay them out on x86-64 and AArch64 ---------------------------------------------------- */

static_assert(sizeof(int) == 4 && sizeof(void *) == 8 && sizeof(size_t) == 8, "an LP64 machine");
static_assert(sizeof(struct nccl_device_handle) == 32, "nccl_device_handle");
static_assert(sizeof(struct nccl_comm_config) == 4, "nccl_comm_config");
static_assert(sizeof(struct nccl_net_attributes) == 44, "nccl_net_attributes");
static_assert(sizeof(struct nccl_virtual_device_v9) == 20, "nccl_virtual_device_v9");
static_assert(sizeof(struct nccl_virtual_device_v12) == 36, "nccl_virtual_device_v12");

static_assert(sizeof(struct nccl_properties_v8) == 64, "nccl_properties_v8");
static_assert(offsetof(struct nccl_properties_v8, speed) == 32, "nccl_properties_v8.speed");
static_assert(offsetof(struct nccl_properties_v8, netDeviceType) == 52, "nccl_properties_v8.netDeviceType");
static_assert(sizeof(struct nccl_properties_v9) == 104, "nccl_properties_v9");
static_assert(offsetof(struct nccl_properties_v9, forceFlush) == 32, "nccl_properties_v9.forceFlush");
static_assert(offsetof(struct nccl_properties_v9, vProps) == 64, "nccl_properties_v9.vProps");
static_assert(offsetof(struct nccl_properties_v9, maxP2pBytes) == 88, "nccl_properties_v9.maxP2pBytes");
static_assert(sizeof(struct nccl_properties_v11) == 112, "nccl_properties_v11");
static_assert(offsetof(struct nccl_properties_v11, forceFlush) == 32, "nccl_properties_v11.forceFlush");
static_assert(offsetof(struct nccl_properties_v11, speed) == 36, "nccl_properties_v11.speed");
static_assert(offsetof(struct nccl_properties_v11, latency) == 44, "nccl_properties_v11.latency");
static_assert(offsetof(struct nccl_properties_v11, maxRecvs) == 52, "nccl_properties_v11.maxRecvs");
static_assert(offsetof(struct nccl_properties_v11, netDeviceType) == 56, "nccl_properties_v11.netDeviceType");
static_assert(offsetof(struct nccl_properties_v11, vProps) == 64, "nccl_properties_v11.vProps");
static_assert(offsetof(struct nccl_properties_v11, maxP2pBytes) == 88, "nccl_properties_v11.maxP2pBytes");
static_assert(offsetof(struct nccl_properties_v11, maxMultiRequestSize) == 104, "nccl_properties_v11.maxMulti");
static_assert(sizeof(struct nccl_properties_v12) == 128, "nccl_properties_v12");
static_assert(offsetof(struct nccl_properties_v12, maxP2pBytes) == 104, "nccl_properties_v12.maxP2pBytes");
static_assert(offsetof(struct nccl_properties_v12, railId) == 124, "nccl_properties_v12.railId");

static_assert(sizeof(struct nccl_net_v8) == 152, "nccl_net_v8");
static_assert(sizeof(struct nccl_net_v9) == 160, "nccl_net_v9");
static_assert(sizeof(struct nccl_net_v10) == 160, "nccl_net_v10");
static_assert(sizeof(struct nccl_net_v11) == 176, "nccl_net_v11");
static_assert(sizeof(struct nccl_net_v12) == 176, "nccl_net_v12");
static_assert(offsetof(struct nccl_net_v8, irecvConsumed) == 18 * 8, "nccl_net_v8.irecvConsumed");
static_assert(offsetof(struct nccl_net_v10, makeVDevice) == 19 * 8, "nccl_net_v10.makeVDevice");
static_assert(offsetof(struct nccl_net_v11, setNetAttr) == 21 * 8, "nccl_net_v11.setNetAttr");
static_assert(offsetof(struct nccl_net_v12, isend) == 10 * 8, "nccl_net_v12.isend");

#ifdef __cplusplus
}
#endif

#endif
