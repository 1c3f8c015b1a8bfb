/* Makes all versions of the GIN and RMA tables look alike. */
#include <dlfcn.h>
#include <string.h>

#include "gin_driver.h"

static const struct {
  const char *word;
  const char *symbol;
  size_t bytes;
} known[kTables] = {
    {"g11", "ncclGinPlugin_v11", sizeof(struct nccl_gin_v11)},
    {"g12", "ncclGinPlugin_v12", sizeof(struct nccl_gin_v12)},
    {"g13", "ncclGinPlugin_v13", sizeof(struct nccl_gin_v13)},
    {"r13", "ncclRmaPlugin_v13", sizeof(struct nccl_gin_v13)},
    {"r14", "ncclRmaPlugin_v14", sizeof(struct nccl_rma_v14)},
    {"r15", "ncclRmaPlugin_v15", sizeof(struct nccl_rma_v15)},
};

const char *table_word(enum table_kind kind) { return known[kind].word; }
const char *table_symbol(enum table_kind kind) { return known[kind].symbol; }
size_t table_bytes(enum table_kind kind) { return known[kind].bytes; }

static const struct nccl_gin_v11 *g11(const struct table *table) { return table->entries; }
static const struct nccl_gin_v12 *g12(const struct table *table) { return table->entries; }
static const struct nccl_gin_v13 *g13(const struct table *table) { return table->entries; }
static const struct nccl_rma_v14 *r14(const struct table *table) { return table->entries; }
static const struct nccl_rma_v15 *r15(const struct table *table) { return table->entries; }

/* A call that has one form in all versions, or differs in what surrounds it. */
#define IN_ALL(table, call)    \
  switch ((table)->kind) {     \
    case kGin11:               \
      return g11(table)->call; \
    case kGin12:               \
      return g12(table)->call; \
    case kGin13:               \
    case kRma13:               \
      return g13(table)->call; \
    case kRma14:               \
      return r14(table)->call; \
    default:                   \
      return r15(table)->call; \
  }

static const char *name_of(const struct table *table) { IN_ALL(table, name) }

struct table load_table(void *library, enum table_kind kind) {
  struct table table = {.kind = kind, .contexts = kind == kGin11 || kind == kGin12 ? 0 : 4};
  table.entries = dlsym(library, table_symbol(kind));
  CHECK(table.entries != NULL, "the library has no %s", table_symbol(kind));
  table.name = name_of(&table);
  return table;
}

nccl_result table_init(const struct table *table,
                       void **context){IN_ALL(table, init(context, 42, driver_log))} nccl_result
    table_finalize(const struct table *table, void *context){IN_ALL(table, finalize(context))} nccl_result
    table_devices(const struct table *table, int *count){IN_ALL(table, devices(count))}

nccl_result table_properties(const struct table *table, int device, struct nccl_properties_v12 *properties) {
  struct nccl_properties_v11 old;
  if (table->kind != kGin11 && table->kind != kGin12) {
    if (table->kind == kRma14) return r14(table)->getProperties(device, properties);
    if (table->kind == kRma15) return r15(table)->getProperties(device, properties);
    return g13(table)->getProperties(device, properties);
  }
  const nccl_result answer =
      table->kind == kGin11 ? g11(table)->getProperties(device, &old) : g12(table)->getProperties(device, &old);
  if (answer != NCCL_OK) return answer;
  memset(properties, 0, sizeof(*properties));
  properties->name = old.name;
  properties->pciPath = old.pciPath;
  properties->guid = old.guid;
  properties->ptrSupport = old.ptrSupport;
  properties->speed = old.speed;
  properties->maxRecvs = old.maxRecvs;
  properties->netDeviceType = old.netDeviceType;
  properties->vProps.ndevs = old.vProps.ndevs;
  properties->vProps.devs[0] = old.vProps.devs[0];
  return NCCL_OK;
}

nccl_result table_listen(const struct table *table, void *context, int device, void *handle,
                         void **listener){IN_ALL(table, listen(context, device, handle, listener))}

nccl_result table_connect(const struct table *table, void *context, void **handles, int size, int rank, void *listener,
                          void **coll) {
  if (table->kind == kGin12) return g12(table)->connect(context, handles, size, rank, 4, 64, listener, coll);
  switch (table->kind) {
    case kGin11:
      return g11(table)->connect(context, handles, size, rank, listener, coll);
    case kRma14:
      return r14(table)->connect(context, handles, size, rank, listener, coll);
    case kRma15:
      return r15(table)->connect(context, handles, size, rank, listener, coll);
    default:
      return g13(table)->connect(context, handles, size, rank, listener, coll);
  }
}

nccl_result table_create(const struct table *table, void *coll, void **context) {
  struct nccl_device_handle *device = NULL;
  struct nccl_gin_config_v13 gin = {64, 64, table->contexts, 0, NCCL_UNDEFINED};
  struct nccl_rma_config_v14 rma = {table->contexts, NCCL_UNDEFINED, 1};
  switch (table->kind) {
    case kGin11:
      return g11(table)->createContext(coll, 64, 64, context, &device);
    case kGin12:
      return g12(table)->createContext(coll, 64, 64, 4, context, &device);
    case kRma14:
      return r14(table)->createContext(coll, &rma, context);
    case kRma15:
      return r15(table)->createContext(coll, &rma, context);
    default: /* NCCL's proxy gives no place for the device's handle */
      return g13(table)->createContext(coll, &gin, context, NULL);
  }
}

nccl_result table_register(const struct table *table, void *coll, void *data, size_t bytes, int type, void **memory,
                           void **gin_memory) {
  nccl_result answer = NCCL_OK;
  switch (table->kind) {
    case kGin11:
      return g11(table)->regMrSym(coll, data, bytes, type, 0, memory, gin_memory);
    case kGin12:
      return g12(table)->regMrSym(coll, data, bytes, type, 0, memory, gin_memory);
    case kRma14:
      answer = r14(table)->regMrSym(coll, data, bytes, type, 0, memory);
      *gin_memory = *memory;
      return answer;
    case kRma15:
      answer = r15(table)->regMrSym(coll, data, bytes, type, 0, memory);
      *gin_memory = *memory;
      return answer;
    default:
      return g13(table)->regMrSym(coll, data, bytes, type, 0, memory, gin_memory);
  }
}

nccl_result table_deregister(const struct table *table, void *coll,
                             void *memory){IN_ALL(table, deregMrSym(coll, memory))} nccl_result
    table_destroy(const struct table *table, void *context){IN_ALL(table, destroyContext(context))} nccl_result
    table_close(const struct table *table, void *coll){IN_ALL(table, closeColl(coll))} nccl_result
    table_close_listen(const struct table *table, void *listener) {
  IN_ALL(table, closeListen(listener))
}

static int context_of(const struct table *table, int queue) { return queue % table->contexts; }

nccl_result table_put(const struct group *group, int queue, uint64_t from_offset, void *from, size_t bytes,
                      uint64_t to_offset, void *to, uint32_t rank, void **request) {
  const struct table *const table = group->table;
  switch (table->kind) {
    case kGin11:
      return g11(table)->iput(group->coll, from_offset, from, bytes, to_offset, to, rank, request);
    case kGin12:
      return g12(table)->iput(group->coll, from_offset, from, bytes, to_offset, to, rank, queue % 4, request);
    case kRma14:
      return r14(table)->iput(group->context, context_of(table, queue), from_offset, from, bytes, to_offset, to, rank,
                              request);
    case kRma15:
      return r15(table)->iput(group->context, context_of(table, queue), from_offset, from, bytes, to_offset, to, rank,
                              NCCL_RMA_MORE_FOLLOWS, request);
    default:
      return g13(table)->iput(group->context, context_of(table, queue), from_offset, from, bytes, to_offset, to, rank,
                              request);
  }
}

nccl_result table_put_signal(const struct group *group, int queue, uint64_t from_offset, void *from, size_t bytes,
                             uint64_t to_offset, void *to, uint32_t rank, uint64_t signal_offset, void *signal,
                             uint64_t value, uint32_t op, void **request) {
  const struct table *const table = group->table;
  switch (table->kind) {
    case kGin11:
      return g11(table)->iputSignal(group->coll, from_offset, from, bytes, to_offset, to, rank, signal_offset, signal,
                                    value, op, request);
    case kGin12:
      return g12(table)->iputSignal(group->coll, from_offset, from, bytes, to_offset, to, rank, signal_offset, signal,
                                    value, op, queue % 4, request);
    case kRma14:
      return r14(table)->iputSignal(group->context, context_of(table, queue), from_offset, from, bytes, to_offset, to,
                                    rank, signal_offset, signal, value, op, true, request);
    case kRma15:
      return r15(table)->iputSignal(group->context, context_of(table, queue), from_offset, from, bytes, to_offset, to,
                                    rank, signal_offset, signal, value, op, true, 0, request);
    default:
      return g13(table)->iputSignal(group->context, context_of(table, queue), from_offset, from, bytes, to_offset, to,
                                    rank, signal_offset, signal, value, op, request);
  }
}

bool table_has_get(const struct table *table) { return table->contexts > 0; }

nccl_result table_get(const struct group *group, int queue, uint64_t remote_offset, void *remote, size_t bytes,
                      uint64_t local_offset, void *local, uint32_t rank, void **request) {
  const struct table *const table = group->table;
  if (table->kind == kRma14)
    return r14(table)->iget(group->context, context_of(table, queue), remote_offset, remote, bytes, local_offset, local,
                            rank, request);
  if (table->kind == kRma15)
    return r15(table)->iget(group->context, context_of(table, queue), remote_offset, remote, bytes, local_offset, local,
                            rank, 0, request);
  return g13(table)->iget(group->context, context_of(table, queue), remote_offset, remote, bytes, local_offset, local,
                          rank, request);
}

nccl_result table_flush(const struct group *group, int queue, void *memory, uint32_t rank, void **request) {
  const struct table *const table = group->table;
  if (table->kind == kRma14) return r14(table)->iflush(group->context, context_of(table, queue), memory, rank, request);
  if (table->kind == kRma15) return r15(table)->iflush(group->context, context_of(table, queue), memory, rank, request);
  return g13(table)->iflush(group->context, context_of(table, queue), memory, rank, request);
}

nccl_result table_test(const struct group *group, void *request,
                       int *done){IN_ALL(group->table, test(group->coll, request, done))}

nccl_result table_progress(const struct group *group) {
  const struct table *const table = group->table;
  switch (table->kind) {
    case kGin11:
      return g11(table)->ginProgress(group->coll);
    case kGin12:
      return g12(table)->ginProgress(group->coll);
    case kRma14:
      return r14(table)->rmaProgress(group->context);
    case kRma15:
      return r15(table)->rmaProgress(group->context);
    default:
      return g13(table)->ginProgress(group->context);
  }
}

nccl_result table_last_error(const struct group *group, bool *failed) {
  IN_ALL(group->table, queryLastError(group->context, failed))
}
